"""How often verdicts are wrong, and how often they are reached: whole families of arms, by simulation.

The arithmetic of verdicts for many studies at once is in `benchmarks/error_rates.py`, which does the same with many
more; here it is held to the real one.
"""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from made_comparisons import compared
from oelm.analysis.evidence import SeedOutcomes
from oelm.analysis.stats.crossed import crossed
from oelm.analysis.stats.estimate import from_seeds
from oelm.analysis.stats.power import ALPHA, decidable, detectable
from oelm.analysis.verdicts import by_stages, corrected
from oelm.message import verbatim

pytestmark = pytest.mark.slow

with pytest.MonkeyPatch.context() as patch:  # not for longer: its names are not for the other tests
    patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from error_rates import WORST, draw, fail_alike, judge, judge_stages, judge_with_failures

SEEDS, ARMS = (3, 5, 10), (3, 6)
NUMBER = 20_000
WORDS = {1: "better", -1: "worse", 2: "equivalent", 0: "inconclusive"}


@pytest.mark.parametrize("failing", [False, True])
@pytest.mark.parametrize("n", SEEDS)
def test_the_arithmetic_is_that_of_verdicts(n, failing):
    random = np.random.default_rng(n)
    effects = random.choice([-4.0, 0.0, 2.0, 4.0], size=(60, 5, 1))
    d_BAS = draw(random, 60, 6, n) + effects
    failed_BAS = (random.random(d_BAS.shape) < 0.2) & failing
    found = judge_with_failures(d_BAS, failed_BAS, 3.0, -50.0)
    if not failing:
        np.testing.assert_array_equal(found, judge(d_BAS, 3.0))
    for rows, failed, verdicts in zip(d_BAS, failed_BAS, found, strict=True):
        family = {str(arm): made(d, out) for arm, (d, out) in enumerate(zip(rows, failed, strict=True))}
        assert [one.verdict for one in corrected(family, family=5).values()] == [WORDS[int(v)] for v in verdicts]
    assert len({int(v) for v in found.ravel()}) > 1, "not all the same"


def made(differences, failed):
    """A comparison of an arm in which these seeds failed, with a baseline of 0."""
    left = dict(enumerate(differences))
    values = {seed: d for seed, d in left.items() if not failed[seed]}
    out = {seed: verbatim("diverged") for seed in left if failed[seed]}
    planned = tuple(left)
    arm = SeedOutcomes(arm="arm", planned=planned, not_run=(), failed=out, values=values)
    base = SeedOutcomes(arm="baseline", planned=planned, not_run=(), failed={}, values=dict.fromkeys(left, 0.0))
    counted = [-50.0 if failed[seed] else d for seed, d in left.items()]
    parts = {"outcomes": (arm, base), "worst": -50.0, "pull": -1, "family": 5, "with_failures": from_seeds(counted)}
    # Of fewer than one seed there is no comparison to be made; it stands for none.
    one = replace(compared(list(values.values()) or [0.0], margin=3.0), differences=values)
    return replace(one, **(parts if out else {"outcomes": (arm, base), "family": 5}))


@pytest.mark.parametrize("arms", ARMS)
@pytest.mark.parametrize("n", SEEDS)
def test_identical_arms_are_rarely_called_different(n, arms):
    """Any arm of the study: 5 %, by Holm's correction, at any margin."""
    random = np.random.default_rng([n, arms])
    d_BAS = draw(random, NUMBER, arms, n)
    for margin in (1e-9, decidable(n, alpha=ALPHA / (arms - 1))):
        wrong = np.isin(judge(d_BAS, margin), (1, -1)).any(axis=1).mean()
        assert wrong <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / NUMBER)
    assert np.isin(judge(d_BAS, 1e-9), (1, -1)).any(axis=1).mean() > 0.025, "and it does test something"


@pytest.mark.parametrize("n", SEEDS)
def test_the_arithmetic_of_two_stages_is_that_of_verdicts(n):
    random = np.random.default_rng([n, 4])
    d_BAS = draw(random, 60, 6, 2 * n) + random.choice([0.0, 1.0, 2.0], size=(60, 5, 1))
    found = judge_stages(d_BAS, n, 2.0)
    for rows, verdicts in zip(d_BAS, found, strict=True):
        looks = [corrected({str(arm): stage(d[:size]) for arm, d in enumerate(rows)}, family=5) for size in (n, 2 * n)]
        assert [one.verdict for one in by_stages(*looks).values()] == [WORDS[int(v)] for v in verdicts]
    assert (found != judge(d_BAS, 2.0, ALPHA / 2)).any(), "what the first stage has decided stays so"


def stage(differences):
    return replace(made(differences, [False] * len(differences)), alpha=ALPHA / 2, margin=2.0)


@pytest.mark.parametrize("arms", ARMS)
@pytest.mark.parametrize("n", SEEDS)
def test_a_planned_second_stage_keeps_five_percent_and_seeds_at_will_do_not(n, arms):
    random = np.random.default_rng([n, arms, 3])
    d_BAS = draw(random, NUMBER, arms, 2 * n)
    error = 4 * math.sqrt(0.05 * 0.95 / NUMBER)
    for margin in (1e-9, decidable(2 * n, alpha=ALPHA / 2 / (arms - 1))):
        assert np.isin(judge_stages(d_BAS, n, margin), (1, -1)).any(axis=1).mean() <= 0.05 + error
    at_will = np.isin(judge(d_BAS[..., :n], 1e-9), (1, -1)) | np.isin(judge(d_BAS, 1e-9), (1, -1))
    assert at_will.any(axis=1).mean() > 0.05 + error


@pytest.mark.parametrize("arms", ARMS)
@pytest.mark.parametrize("n", SEEDS)
def test_promised_power_is_reached(n, arms):
    """80 % for an arm that differs among arms that do not, and for arms that are all alike."""
    random = np.random.default_rng([n, arms, 1])
    alpha = ALPHA / (arms - 1)
    effect = np.zeros((arms - 1, 1))
    effect[0] = detectable(n, alpha=alpha)
    one = (judge(draw(random, NUMBER, arms, n, effect), 1e-9)[:, 0] == 1).mean()
    assert 0.8 - 0.01 < one < 0.85
    margin = decidable(n, alpha=alpha)
    alike = (judge(draw(random, NUMBER, arms, n), margin) == 2).mean()
    assert alike > 0.8 - 0.01, "Holm's correction asks less of all but the first"


@pytest.mark.parametrize("arms", ARMS)
@pytest.mark.parametrize("n", SEEDS)
def test_failures_are_not_equivalent(n, arms):
    """Arms that are alike, but for one seed in five that fails: of those in which any did, none is equivalent."""
    random = np.random.default_rng([n, arms, 2])
    d_BAS = draw(random, NUMBER, arms, n)
    failed_BAS = random.random(d_BAS.shape) < 0.2
    margin = 2 * decidable(n, alpha=ALPHA / (arms - 1))
    found = judge_with_failures(d_BAS, failed_BAS, margin, -100.0)
    hit = failed_BAS.any(-1)
    assert (found[hit] == 2).mean() <= 0.05
    assert (found[~hit] == 2).mean() > 0.7, "and where none did, it is what it looks like"
    assert (found[hit] == 1).mean() <= 0.05


@pytest.mark.parametrize("is_bad_luck", [True, False])
@pytest.mark.parametrize("arms", ARMS)
@pytest.mark.parametrize("n", SEEDS)
def test_identical_arms_that_fail_alike_are_rarely_called_different(n, arms, is_bad_luck):
    """Also those that fail where they would have done worst: what is left of two such arms is alike too."""
    random = np.random.default_rng([n, arms, 5])
    values_BAS = random.normal(0, 1 / math.sqrt(2), (NUMBER, arms, n))
    d_BAS = values_BAS[:, 1:] - values_BAS[:, :1]
    failed_BAS, worst_BAS = fail_alike(random, d_BAS.shape)
    if not is_bad_luck:
        out = values_BAS < np.quantile(values_BAS, 0.2)
        failed_BAS, worst_BAS = out[:, 1:] | out[:, :1], WORST * (out[:, 1:].astype(float) - out[:, :1])
    found = judge_with_failures(d_BAS, failed_BAS, 1e-9, worst_BAS)
    assert np.isin(found, (1, -1)).any(axis=1).mean() <= 0.05 + 4 * math.sqrt(0.05 * 0.95 / NUMBER)


@pytest.mark.parametrize("n", [5, 10])
def test_an_arm_that_is_worse_and_fails_too_is_found_worse(n):
    """With failures at the worst value alone it hardly ever would be; and one that is as good is not, at 2.5 %."""
    random = np.random.default_rng([n, 6])
    d_BAS = draw(random, NUMBER, 2, n, -detectable(n))
    failed_BAS = np.zeros(d_BAS.shape, dtype=bool)
    failed_BAS[..., 0] = True
    found = (judge_with_failures(d_BAS, failed_BAS, 1e-9, WORST) == -1).mean()
    assert found == pytest.approx((judge(d_BAS[..., 1:], 1e-9) == -1).mean())
    assert found > 0.6
    assert (judge(np.where(failed_BAS, WORST, d_BAS), 1e-9) == -1).mean() < 0.01
    same = judge_with_failures(d_BAS + detectable(n), failed_BAS, 1e-9, WORST)
    assert (same == -1).mean() <= 0.025 + 4 * math.sqrt(0.025 * 0.975 / NUMBER)
    assert not (same == 1).any(), "and better it is never"


@pytest.mark.parametrize("where", ["arm", "baseline"])
@pytest.mark.parametrize("n", [5, 10])
def test_one_seed_in_five_that_fails_is_never_equivalent(n, where):
    """Of either arm. Where each may fail and none did, no rule can see it: that is what the bound is said for."""
    random = np.random.default_rng([n, len(where)])
    d_BAS = draw(random, NUMBER, 2, n)
    failed_BAS = np.zeros(d_BAS.shape, dtype=bool)
    failed_BAS[..., : n // 5] = True
    margin = 3 * decidable(n)
    worst = -100.0 if where == "arm" else 100.0
    assert (judge(d_BAS, margin) == 2).mean() > 0.99, "the same arms, had none failed"
    assert (judge_with_failures(d_BAS, failed_BAS, margin, worst) == 2).mean() == 0


def test_how_many_seeds_without_a_failure_exclude_one_in_five():
    """Fewer than that may say `equivalent` of an arm that fails so often, with the bound beside it."""
    none = {n: SeedOutcomes(arm="arm", planned=tuple(range(n)), not_run=(), failed={}, values={}) for n in (5, 13, 14)}
    assert [one.rate_at_most < 0.2 for one in none.values()] == [False, False, True]


@pytest.mark.parametrize("arms", ARMS)
def test_promised_power_is_reached_where_examples_count(arms):
    """Seeds and examples of about the same weight, by the real estimate: 80 % within 5 points, for one of the arms."""
    S, E, repetitions = 5, 100, 1000
    random, alpha = np.random.default_rng(arms), ALPHA / (arms - 1)
    seed_spread, example_spread, rest = 0.1, 0.5, 0.3
    # What the seeds show of their spread has their share of the rest in it.
    spread, example_se = math.hypot(seed_spread, rest / math.sqrt(E)), example_spread / math.sqrt(E)
    effect = detectable(S, spread=spread, example_se=example_se, alpha=alpha)
    d_BSE = effect + rest * random.standard_normal((repetitions, S, E))
    d_BSE += seed_spread * random.standard_normal((repetitions, S, 1))
    d_BSE += example_spread * random.standard_normal((repetitions, 1, E))
    found = np.mean([crossed(d_SE).estimate.p_differs() < alpha for d_SE in d_BSE])
    assert 0.75 < found < 0.85
