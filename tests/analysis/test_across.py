"""Several studies together: means over them, interactions, and what must not be combined."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from made_runs import make_runs, make_text_runs, replace_at, study_of, text_study_of
from oelm.analysis.across import _on_scale, interaction, mean_over_studies
from oelm.analysis.estimands import measure_estimand
from oelm.analysis.results import load
from oelm.analysis.stats.estimate import Estimate, VarianceSource, from_seeds, weighted_sum
from oelm.errors import StudyError
from oelm.study.hypothesis import parse_estimand

SMALL = {"examples": 300, "steps": 20}
DIFFERENCE = parse_estimand("accuracy(oelm-freeze) - accuracy(baseline)")
RATIO = parse_estimand("accuracy(oelm-freeze) / accuracy(baseline)")


def results_of(root, name, *, task="sst2", treated=0.85, seeds=(0, 1, 2, 3, 4), **options):
    recipe = study_of().to_dict()["recipe"]
    recipe["data"]["task"] = task
    study = study_of(study=name, recipe=recipe, seeds=list(seeds))
    return load(make_runs(root, study, accuracy={"oelm-freeze": treated}, **{**SMALL, **options}))


@pytest.fixture(scope="module")
def studies(tmp_path_factory):
    root = tmp_path_factory.mktemp("across")
    return [
        results_of(root, "a", treated=0.85),
        results_of(root, "b", task="imdb", treated=0.80, spread=0.02),
        results_of(root, "c", task="rotten_tomatoes", treated=0.90, seeds=(0, 1, 2)),
    ]


def by_hand(terms, level=0.95):
    """(weight, estimate): the interval of a weighted sum, once more."""
    halves = []
    for sources in ([one.seeds for _, one in terms], [one.examples for _, one in terms]):
        variances = [(weight * source.se) ** 2 for (weight, _), source in zip(terms, sources, strict=True)]
        df = sum(variances) ** 2 / sum(v**2 / source.df for v, source in zip(variances, sources, strict=True))
        halves.append(t.ppf((1 + level) / 2, math.floor(df)) * math.sqrt(sum(variances)))
    mean = sum(weight * one.mean for weight, one in terms)
    return mean, mean - math.hypot(*halves), mean + math.hypot(*halves)


def test_a_mean_of_differences(studies):
    found = mean_over_studies(studies, DIFFERENCE)
    single = [one.comparisons["oelm-freeze"].estimate for one in studies]
    mean, low, high = by_hand([(1 / 3, one) for one in single])
    assert (found.value, found.interval.low, found.interval.high) == pytest.approx((mean, low, high))
    assert found.status == "estimated"
    assert [part.study for part in found.parts] == ["a", "b", "c"]
    assert [part.value for part in found.parts] == pytest.approx([one.mean for one in single])
    assert found.interval.high - found.interval.low < max(one.interval().high - one.interval().low for one in single), (
        "three studies know more than the least certain of them"
    )


def test_a_mean_of_shares_is_that_of_the_table(studies):
    found = mean_over_studies(studies, RATIO)
    assert found.value == pytest.approx(np.mean([part.value for part in found.parts])), "arithmetic"
    assert found.middle == 1
    terms = [(1 / 3, scaled(part.measured.estimate)) for part in found.parts]
    assert (found.value, found.interval.low, found.interval.high) == pytest.approx(by_hand(terms))


def scaled(one):
    r = math.exp(one.mean)
    seeds = VarianceSource(se=r * one.seeds.se, df=one.seeds.df)
    return Estimate(mean=r, seeds=seeds, examples=VarianceSource(se=r * one.examples.se, df=one.examples.df))


def test_an_interaction(studies):
    found = interaction(studies[0], studies[1], DIFFERENCE)
    terms = [(weight, one.comparisons["oelm-freeze"].estimate) for weight, one in zip((1, -1), studies, strict=False)]
    assert (found.value, found.interval.low, found.interval.high) == pytest.approx(by_hand(terms))
    turned = interaction(studies[1], studies[0], DIFFERENCE)
    assert turned.value == pytest.approx(-found.value)
    assert interaction(studies[0], studies[1], RATIO).middle == 0


def test_rules_on_a_mean(studies):
    found = mean_over_studies(studies, DIFFERENCE)
    assert -0.08 < found.value < -0.02
    assert found.test("below", 0)[0] < 0.05 < found.test("below", 0)[1]
    assert found.test("above", 0)[1] < 0.05 < found.test("above", 0)[0]
    assert found.test("within", 0.2)[0] < 0.05
    assert found.test("within", 0.01)[0] > 0.05
    share = mean_over_studies(studies, RATIO)
    assert share.test("within", 0.2)[0] < 0.05, "around 1"
    edge = found.interval.high
    assert found.test("below", edge)[0] == pytest.approx(0.05), "one-sided at 2.5 %: where the interval ends"


def test_perplexities_by_their_losses(tmp_path):
    ratio = parse_estimand("perplexity(oelm-freeze) / perplexity(baseline)")
    made = []
    for name, perplexity in (("a", 11.0), ("b", 12.0)):
        study = text_study_of(study=name)
        made.append(load(make_text_runs(tmp_path, study, perplexity={"oelm-freeze": perplexity})))
    found = mean_over_studies(made, ratio)
    assert found.value == pytest.approx(math.sqrt(1.1 * 1.2), rel=0.01), "geometric"
    assert found.interval.contains(found.value)
    assert interaction(made[0], made[1], ratio).value == pytest.approx(1.1 / 1.2, rel=0.01), "a ratio of ratios"
    assert interaction(made[0], made[1], ratio).middle == 1
    loss = mean_over_studies(made, parse_estimand("loss(oelm-freeze) - loss(baseline)"))
    assert math.exp(loss.interval.low) == pytest.approx(found.interval.low), "the same question"


def test_studies_on_the_same_examples_do_not_average_their_chance_out(tmp_path):
    one, same = (results_of(tmp_path, name, task="sst2") for name in ("a", "b"))
    other = results_of(tmp_path, "c", task="imdb")
    same_task, two_tasks = (mean_over_studies([one, another], DIFFERENCE).estimate for another in (same, other))
    each = one.comparisons["oelm-freeze"].estimate.examples.se
    assert same_task.examples.se == pytest.approx(each), "the same sentences, so the same luck"
    assert two_tasks.examples.se == pytest.approx(each / math.sqrt(2))
    assert interaction(one, same, DIFFERENCE).estimate.examples.se == pytest.approx(each * math.sqrt(2))


def test_counts_are_exact(studies):
    found = mean_over_studies(studies, parse_estimand("trainable(oelm-freeze) - trainable(baseline)"))
    assert found.value == -1_774_080
    assert found.interval is None
    assert found.status == "estimated"
    assert found.test("below", -1_000_000) == (0.0, 1.0)
    assert found.test("below", -2_000_000) == (1.0, 0.0)
    assert interaction(*studies[:2], found.estimand).value == 0


# -- parts that spoil the whole --------------------------------------------------------------------------------------


def test_a_blocked_part_blocks_the_whole(tmp_path, studies):
    def other_rate(cell, record):
        return replace_at(record, "spec.recipe.optimizer.lr", 3e-4) if cell.arm == "oelm-freeze" else record

    unfair = results_of(tmp_path, "unfair", change=other_rate)
    found = mean_over_studies([studies[0], unfair], DIFFERENCE)
    assert found.status == "invalid"
    assert "LR-DIFFERS" in str(found.why[0])
    assert "unfair" in str(found.why[0])
    assert "LR-DIFFERS" in {issue.code for issue in found.issues}
    assert found.value is not None, "the numbers are there, and decide nothing"
    assert found.test("below", 0.5) == (1.0, 1.0)
    assert interaction(studies[0], unfair, DIFFERENCE).status == "invalid"
    exact = mean_over_studies([studies[0], unfair], parse_estimand("trainable(oelm-freeze)"))
    assert exact.status == "estimated", "a learning rate is no matter of a count"


@pytest.mark.parametrize("estimand", ["accuracy(other) - accuracy(baseline)", "f1(other)", "perplexity(oelm-freeze)"])
def test_a_part_that_is_not_there(studies, estimand):
    found = mean_over_studies(studies, parse_estimand(estimand))
    assert found.status == "inconclusive"
    assert found.value is None
    assert found.interval is None
    assert len(found.why) == 3
    assert str(found.why[0]) == f"a has no {estimand}"


def test_a_part_that_is_not_finished(tmp_path, studies):
    part = results_of(tmp_path, "part", change=lambda cell, record: None if cell.seed == 4 else record)
    found = mean_over_studies([studies[0], part], DIFFERENCE)
    assert found.status == "inconclusive"
    assert "part: test numbers are shown when the study is complete" in str(found.why[0])
    assert found.test("below", 0.5) == (1.0, 1.0)
    single = mean_over_studies([studies[0], results_of(tmp_path, "single", seeds=(0,))], DIFFERENCE)
    assert single.status == "inconclusive"
    assert math.isinf(single.interval.high)


def test_failures_count_in_the_whole(tmp_path, studies):
    def failing(cell, record):
        diverged = cell.arm == "oelm-freeze" and cell.seed == 0
        return replace(record, status="diverged", test={}) if diverged else record

    part = results_of(tmp_path, "part", treated=0.95, change=failing)
    found = mean_over_studies([studies[0], part], DIFFERENCE)
    assert found.with_failures is not None
    assert found.with_failures.mean < found.estimate.mean - 0.05
    assert found.test("above", -0.9)[0] == pytest.approx(2 * found.with_failures.p_above(-0.9)), "the larger of both"
    assert found.test("below", 0.2)[0] == pytest.approx(2 * found.estimate.p_below(0.2)), "failures only add to it"
    share = mean_over_studies([studies[0], part], RATIO)
    assert share.test("above", 0.5) == (1.0, 1.0), "of a share of nothing there is no logarithm"
    more = interaction(studies[0], part, DIFFERENCE)
    assert more.test("above", -0.9)[0] == pytest.approx(2 * more.estimate.p_above(-0.9)), "the second is taken off"


def test_a_ratio_beyond_all_floats_is_no_accident(studies):
    """A loss of 1e90 to one of 1e-290 is one; nothing is known of its mean with others."""
    measured = measure_estimand(studies[0], RATIO)
    scaled = _on_scale(measured, replace(measured.estimate, mean=800.0))
    assert (scaled.mean, scaled.p_above(1.0)) == (math.inf, 1.0)
    assert _on_scale(measured, replace(measured.estimate, mean=-800.0)).mean == 0


def test_a_study_that_comes_twice(studies):
    with pytest.raises(StudyError, match="'a' is there twice"):
        mean_over_studies([studies[0], studies[1], studies[0]], DIFFERENCE)
    with pytest.raises(StudyError, match="one study is not several"):
        mean_over_studies(studies[:1], DIFFERENCE)


# -- coverage --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("seeds", "spreads"), [(2, (1, 10)), (3, (1, 1, 1)), (3, (1, 3, 9)), (5, (1, 5))])
def test_the_interval_of_a_mean_covers(seeds, spreads):
    random, hits, repetitions = np.random.default_rng(3), 0, 1500
    for _ in range(repetitions):
        terms = []
        for number, spread in enumerate(spreads):
            one = from_seeds(spread * random.standard_normal(seeds))
            terms.append((1 / len(spreads), one, str(number)))
        hits += weighted_sum(terms).interval().contains(0)
    error = 3 * math.sqrt(0.95 * 0.05 / repetitions)
    assert 0.949 - error < hits / repetitions < 0.99 + error


def test_the_interval_of_an_interaction_covers_over_seeds_and_examples():
    random, hits, repetitions = np.random.default_rng(4), 0, 2000
    for _ in range(repetitions):
        terms = []
        for number, weight in enumerate((1.0, -1.0)):
            over_seeds = from_seeds(0.01 * random.standard_normal(5))
            examples = VarianceSource(se=0.006, df=800)
            shifted = Estimate(mean=over_seeds.mean + 0.006 * random.standard_normal(), seeds=over_seeds.seeds)
            terms.append((weight, Estimate(mean=shifted.mean, seeds=shifted.seeds, examples=examples), str(number)))
        hits += weighted_sum(terms).interval().contains(0)
    assert hits / repetitions > 0.95 - 3 * math.sqrt(0.95 * 0.05 / repetitions)
