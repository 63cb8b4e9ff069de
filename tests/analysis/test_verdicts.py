"""Verdicts: right on records whose truth is known, and rarely wrong where there is nothing to find."""

import json
import math
import shutil
import statistics
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

from made_comparisons import compared
from made_runs import (
    digests,
    edit_sealed,
    keep_predictions,
    make_runs,
    make_text_runs,
    score,
    seal_files,
    study_of,
    text_study_of,
)
from oelm.analysis.checks.registry import Issue
from oelm.analysis.evidence import SeedOutcomes
from oelm.analysis.results import load
from oelm.analysis.stats.estimate import from_seeds
from oelm.analysis.text_table import comparison_as_dict
from oelm.analysis.verdicts import corrected
from oelm.errors import StudyError
from oelm.message import verbatim
from oelm.report.sections.summary import overall_verdict
from oelm.runs.predictions import read_predictions
from oelm.runs.record import RECORD_FILE, Failure, read_record
from oelm.text.messages import translate

pytestmark = pytest.mark.slow

SMALL = {"examples": 300, "steps": 20}
TREATED = {"init": "keep", "freeze": "qk"}
PRIMARY = {"metric": "accuracy", "better": "higher"}


def aiming_at(margin, **parts):
    return study_of(compare={"baseline": "baseline", "metric": "accuracy", "min_effect": margin}, **parts)


# -- how often a verdict is wrong ------------------------------------------------------------------------------------


def verdicts(differences, **options):
    """Of `[arms, seeds]` together."""
    family = {str(number): compared(row, **options) for number, row in enumerate(differences)}
    return [one.verdict for one in corrected(family, family=len(family)).values()]


def rate_is_at_most(rate, limit, number):
    assert rate <= limit + 4 * math.sqrt(limit * (1 - limit) / number)


@pytest.mark.parametrize("n", [2, 3, 5])
def test_without_an_effect_nothing_is_found(n):
    """Better in 2.5 % of all studies, and worse in as many: not more, and not never."""
    number = 2000
    random = np.random.default_rng(n)
    found = [verdicts(random.standard_normal((1, n)), margin=0.01)[0] for _ in range(number)]
    for verdict in ("better", "worse"):
        rate_is_at_most(found.count(verdict) / number, 0.025, number)
        assert found.count(verdict) / number > 0.012
    assert set(found) <= {"better", "worse", "inconclusive"}


@pytest.mark.parametrize("n", [2, 3, 5])
def test_several_arms_without_an_effect_share_the_five_percent(n):
    """Arms against one baseline: their differences go together."""
    number = 800
    random = np.random.default_rng(100 + n)
    wrong = 0
    for _ in range(number):
        seeds = random.standard_normal((5, n))
        wrong += any(verdict != "inconclusive" for verdict in verdicts(seeds[1:] - seeds[0], margin=1e-9))
    rate_is_at_most(wrong / number, 0.05, number)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
@pytest.mark.parametrize("sign", [1, -1])
def test_a_difference_of_the_margin_is_rarely_called_none(n, sign):
    number, margin = 1000, 20.0
    random = np.random.default_rng(n)
    found = [verdicts(sign * margin + random.standard_normal((1, n)), margin=margin)[0] for _ in range(number)]
    rate = found.count("equivalent") / number
    rate_is_at_most(rate, 0.05, number)
    assert rate > 0.02, "it would never be found at all"


def test_several_arms_at_the_margin_are_rarely_called_equivalent():
    number, margin, n = 500, 20.0, 5
    random = np.random.default_rng(3)
    found = [verdicts(margin + random.standard_normal((4, n)), margin=margin) for _ in range(number)]
    rate_is_at_most(sum("equivalent" in row for row in found) / number, 0.05, number)


def test_what_is_there_is_found():
    random = np.random.default_rng(0)
    noise = [random.standard_normal((1, 5)) for _ in range(200)]
    assert [verdicts(10 + row, margin=1.0) for row in noise].count(["better"]) > 195
    assert [verdicts(10 + row, margin=1.0, higher=False) for row in noise].count(["worse"]) > 195
    assert [verdicts(row, margin=10.0) for row in noise].count(["equivalent"]) > 195
    assert [verdicts(1 + 0.1 * row, margin=10.0) for row in noise].count(["equivalent"]) > 195, "sure, and too small"


def test_more_arms_make_it_harder():
    """The same numbers beside nine arms without an effect."""
    clear, nothing = [1.0, 1.2, 0.4, 1.4, 0.6], [[0.5, -0.4, 0.1, -0.3, 0.2]] * 9
    alone, beside = verdicts([clear]), verdicts([clear, *nothing])
    assert alone == ["better"]
    p = from_seeds(clear).p_differs()
    assert p < 0.05 < 10 * p, "the example is one that the correction decides"
    assert beside == ["inconclusive"] * 10


def test_an_invalid_comparison_stays_in_the_family():
    """Otherwise whoever breaks nine arms of ten has an easier time with the tenth."""
    clear = [1.0, 1.2, 0.4, 1.4, 0.6]
    assert corrected({"one": compared(clear)}, family=1)["one"].verdict == "better"
    blocked = Issue(code="UNPAIRED", severity="invalid", places=(), about=((),), message=verbatim(""))
    family = {"one": compared(clear)}
    family |= {str(n): replace(compared([0.1, -0.1, 0.2]), issues=(blocked,), verdict="invalid") for n in range(9)}
    judged = corrected(family, family=10)
    assert judged["one"].verdict == "inconclusive"
    assert judged["one"].p_differs == pytest.approx(10 * from_seeds(clear).p_differs())
    assert {judged[str(n)].verdict for n in range(9)} == {"invalid"}


UNRUN = SeedOutcomes(arm="arm", planned=(0, 1, 2, 3, 4), not_run=(4,), failed={}, values={})


@pytest.mark.parametrize(
    "untested",
    [
        compared([0.001] * 5, margin=0.02),
        replace(compared([1.0, 1.1, 0.9, 1.0], margin=0.02), outcomes=(UNRUN, UNRUN)),
        replace(compared([0.001, 0.0, -0.001, 0.0], margin=0.02), outcomes=(UNRUN, UNRUN)),
    ],
)
@pytest.mark.parametrize("differences", [[0.008, -0.006, 0.024, 0.002, 0.012], [0.04, 0.03, 0.10, 0.01, 0.08]])
def test_an_arm_that_cannot_be_judged_makes_nothing_easier_for_others(untested, differences):
    """Equal to its baseline in every seed, or not run to the end: its tests would be the first that Holm takes off."""
    other = replace(compared(differences, margin=0.02), family=2)
    alone, beside = (corrected(found | {"other": other}, family=2) for found in ({}, {"one": untested}))
    assert beside["one"].verdict == alone["other"].verdict == "inconclusive"
    assert beside["other"] == alone["other"]
    assert "inconclusive" not in verdicts([differences], margin=0.02), "the correction decides"


@pytest.mark.parametrize(
    ("differences", "margin", "needed", "why"),
    [
        ([1.0, 1.0], 0.1, None, "the very same difference"),
        ([1.0, -1.0, 0.5], None, None, "names no smallest effect of interest"),
        ([1.0, -1.0, 0.5], 0.1, 60, "a new study would need about 60 seeds to decide on a difference of 0.1"),
        ([1.0, -1.0, 0.5], 0.1, 2, "or more would be found with 80 % power"),
        ([1.0, -1.0, 0.5], 1e-6, None, "or more would be found with 80 % power"),
    ],
)
def test_inconclusive_says_why(differences, margin, needed, why):
    one = replace(compared(differences, margin=margin), seeds_needed=needed)
    judged = corrected({"a": one}, family=1)["a"]
    assert judged.verdict == "inconclusive"
    assert why in str(judged.message)


def test_one_seed_and_the_same_difference_twice_decide_nothing():
    assert verdicts([[100.0]]) == ["inconclusive"]
    assert verdicts([[0.5, 0.5, 0.5]], margin=0.1) == ["inconclusive"]
    assert verdicts([[0.0, 0.0]], margin=0.1) == ["inconclusive"]


# -- on records ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """One of each."""
    arms = {"baseline": {"init": "keep", "freeze": "none"}}
    arms |= dict.fromkeys(("better", "worse", "equivalent", "inconclusive", "invalid"), TREATED)

    def surely(cell, record):
        if cell.arm == "invalid":
            return replace(record, batches="others")
        return None if cell.arm == "inconclusive" else record

    def unsurely(cell, record):
        return record if cell.arm == "inconclusive" else None

    accuracy = {"baseline": 0.8, "better": 0.95, "worse": 0.6, "equivalent": 0.8, "inconclusive": 0.8, "invalid": 0.95}
    root, study = tmp_path_factory.mktemp("mixed"), aiming_at(0.03, arms=arms)
    make_runs(root, study, accuracy=accuracy, change=surely, **SMALL)
    return load(make_runs(root, study, accuracy=accuracy, spread=0.2, change=unsurely, **SMALL))


def test_one_of_each_verdict(mixed):
    for arm, one in mixed.comparisons.items():
        assert (one.verdict, one.arm, one.against, one.n) == (arm, arm, "baseline", 5)
        assert f"{arm}" in translate(one.message).zh
    said = {arm: str(one.message) for arm, one in mixed.comparisons.items()}
    assert said["better"].startswith("better is better than baseline: accuracy +0.1")
    assert said["worse"].startswith("worse is worse than baseline: accuracy -0.")
    assert "within the smallest effect of interest 0.03" in said["equivalent"]
    assert "cannot be compared (UNPAIRED)" in said["invalid"]
    assert "a new study would need about" in said["inconclusive"], "and not: add seeds until it is decided"
    assert "seeds to decide on a difference of 0.03 (80 % power)" in said["inconclusive"]


def test_the_numbers_are_those_of_the_records(mixed):
    for arm, one in mixed.comparisons.items():
        mine, base = mixed.values(arm, "accuracy"), mixed.values("baseline", "accuracy")
        assert one.differences == {seed: mine[seed] - base[seed] for seed in range(5)}
        assert one.estimate.mean == pytest.approx(statistics.fmean(one.differences.values()))
        assert one.interval.low <= one.over_seeds.low + 1e-12, "examples only add to what is not known"
        assert one.interval.high >= one.over_seeds.high - 1e-12
        assert one.examples is not None
        assert set(one.mcnemar) == set(range(5))


def test_the_other_way_round(mixed):
    there, back = mixed.comparisons["better"], mixed.compare("baseline", against="better")
    assert back.verdict == "worse"
    assert back.estimate.mean == pytest.approx(-there.estimate.mean)
    assert (back.interval.low, back.interval.high) == pytest.approx((-there.interval.high, -there.interval.low))
    assert mixed.compare("baseline", against="invalid").verdict == "invalid"


def test_on_the_studys_own_question_the_correction_stays(mixed):
    assert mixed.compare("better") is mixed.comparisons["better"]
    assert mixed.compare("better", metric="accuracy", against="baseline") is mixed.comparisons["better"]
    alone = mixed.compare("better", metric="macro_f1")
    assert alone.margin is None
    assert alone.examples is None


def test_an_arm_with_itself(mixed):
    with pytest.raises(StudyError, match="compared with itself"):
        mixed.compare("better", against="better")


def test_lower_is_better_for_a_loss(mixed):
    one = mixed.compare("better", metric="loss")
    assert one.estimate.mean < 0
    assert one.verdict == "better"
    assert mixed.compare("worse", metric="loss").verdict == "worse"


def test_two_treated_arms_are_held_to_each_other(tmp_path):
    """Neither is the study's baseline: what differs between these two is found for these two."""
    arms = {
        "baseline": {"init": "keep", "freeze": "none"},
        "one": TREATED,
        "other": {**TREATED, "overrides": {"optimizer.lr": 3e-4}},
        "third": {**TREATED, "overrides": {"optimizer.lr": 3e-4}},
    }
    results = load(make_runs(tmp_path, study_of(arms=arms, seeds=[0, 1, 2]), **SMALL))
    assert not any(issue.applies_to("one", "other") for issue in results.checks if issue.code == "LR-DIFFERS")
    found = results.compare("one", against="other")
    assert [issue.code for issue in found.issues if issue.severity == "invalid"] == ["LR-DIFFERS"]
    assert found.verdict == "invalid"
    assert "LR-DIFFERS" in str(found.message)
    assert results.compare("other", against="third").verdict != "invalid", "these two have one learning rate"
    assert results.compare("one", against="other", metric="trainable").issues == (), "counts do not depend on it"
    assert results.comparisons["other"].verdict == "invalid"
    assert results.comparisons["one"].verdict != "invalid"


def test_one_seed(tmp_path):
    results = load(make_runs(tmp_path, study_of(seeds=[3]), accuracy={"oelm-freeze": 0.99}, **SMALL))
    one = results.comparisons["oelm-freeze"]
    assert (one.verdict, one.n, one.seeds_needed) == ("inconclusive", 1, None)
    assert "1 seed in common gives no interval" in str(one.message)
    assert "1 个" in translate(one.message).zh
    assert math.isinf(one.detectable)
    assert {issue.code for issue in one.issues} == {"FEW-SEEDS", "UNTUNED"}
    assert "inconclusive" in str(results)


def test_no_seed_in_common(tmp_path):
    def apart(cell, record):
        return record if (cell.arm == "baseline") == (cell.seed < 2) else replace(record, status="diverged", test={})

    results = load(make_runs(tmp_path, study_of(seeds=[0, 1, 2, 3]), change=apart, **SMALL))
    one = results.comparisons["oelm-freeze"]
    assert (one.verdict, one.n) == ("inconclusive", 0)
    assert str(one.message).startswith(
        "oelm-freeze against baseline is inconclusive: no seed has a value of accuracy in both; "
    )
    assert "inconclusive (no seed in common)" in str(results)
    assert one._repr_html_()


def test_zero_variance(tmp_path):
    """All seeds show the very same difference."""

    def level(cell, record):
        metrics = {"accuracy": 0.9 if cell.arm == "baseline" else 0.95, "loss": 0.3}
        return score(record, **metrics)

    runs = make_runs(tmp_path, change=level, **SMALL)
    for path in runs.rglob("predictions.parquet"):
        path.unlink()
    one = load(runs).comparisons["oelm-freeze"]
    assert [issue for issue in one.issues if issue.severity == "invalid"] == []
    assert one.verdict == "inconclusive"
    assert "the very same difference" in str(one.message)


def test_identical_arms(tmp_path):
    """A treatment that never reached the model."""
    runs = make_runs(tmp_path, **SMALL)
    for seed in range(5):
        source, target = runs / "baseline" / f"seed-{seed}", runs / "oelm-freeze" / f"seed-{seed}"
        shutil.copy(source / "predictions.parquet", target / "predictions.parquet")
        record = json.loads((source / "record.json").read_text())
        edit_sealed(target / "record.json", lambda data, record=record, target=target: data.update(
            evaluations=record["evaluations"], test=record["test"], files=digests(target)
        ))  # fmt: skip
    results = load(runs)
    one = results.comparisons["oelm-freeze"]
    assert set(one.differences.values()) == {0.0}
    assert one.verdict == "inconclusive"
    assert "DUPLICATE-ROWS" in {issue.code for issue in one.issues}
    assert "DUPLICATE-ROWS" not in {issue.code for issue in results.comparisons["freeze-only"].issues}


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e300, -5, 1.3, None])
def test_a_seed_without_a_number_is_left_out_of_the_pairs_and_said(tmp_path, value):
    def without(data):
        for measured in data["test"].values():
            if value is None:
                del measured["splits"]["validation"]["accuracy"]
            else:
                measured["splits"]["validation"]["accuracy"] = value

    runs = make_runs(tmp_path, **SMALL)
    edit_sealed(runs / "oelm-freeze" / "seed-2" / "record.json", without)
    results = load(runs)
    one = results.comparisons["oelm-freeze"]
    assert set(one.differences) == {0, 1, 3, 4}
    assert math.isfinite(one.estimate.mean)
    assert set(results.comparisons["freeze-only"].differences) == set(range(5))
    ((where, what),) = [(one.where, str(one.message)) for one in results.checks if one.code == "INCOMPLETE"]
    if value is None:
        assert (where, what) == ("oelm-freeze/seed-2", "its record has no finite accuracy")
    else:
        assert "seed 2 (of 5): oelm-freeze/seed-2/record.json is damaged why test.final" in what
        assert "accuracy is" in what
        assert one.lacks == ("oelm-freeze/seed-2",)
        assert str(one.message).endswith("damaged, so judged without oelm-freeze/seed-2")
    assert "4 seeds" in str(one.message)


# -- seeds that failed -------------------------------------------------------------------------------------------------

GOOD = {"baseline": 0.85, "oelm-freeze": 0.95, "freeze-only": 0.85}
OTHER = {"baseline": "oelm-freeze", "oelm-freeze": "baseline"}


def diverged(record):
    return replace(record, status="diverged", error=Failure(what="the loss was nan at step 7\nmore", traceback=None))


def failing(arm, seeds, how=diverged):
    return lambda cell, record: how(record) if cell.arm == arm and cell.seed in seeds else record


def crashed(record):
    return replace(record, status="failed", error=Failure(what="out of memory", traceback=None))


def collapse(runs, arm, seeds):
    """Let cells have answered with one class."""
    for seed in seeds:
        place = runs / arm / f"seed-{seed}"
        kept = read_predictions(place, read_record(place).files["predictions.parquet"])
        kept = replace(kept, prediction=np.zeros_like(kept.label), loss=np.full(len(kept.label), 0.7))
        accuracy = float((kept.label == 0).mean())
        record = read_record(place)
        RECORD_FILE.write(place, score(record, accuracy=accuracy, loss=0.7))
        keep_predictions(place, kept)


@pytest.mark.parametrize("arm", ["oelm-freeze", "baseline"])
@pytest.mark.parametrize("how", ["diverged", "failed", "collapsed", "damaged"])
def test_no_verdict_rests_on_survivors(tmp_path, arm, how):
    """One rule for all kinds of failures and for both arms; the survivors would say better."""
    change = {"diverged": failing(arm, {1, 3}), "failed": failing(arm, {1, 3}, crashed)}.get(how)
    runs = make_runs(tmp_path, aiming_at(0.03), accuracy=GOOD, change=change, **SMALL)
    if how == "collapsed":
        collapse(runs, arm, (1, 3))
    for seed in (1, 3) if how == "damaged" else ():
        (runs / arm / f"seed-{seed}" / "record.json").write_text("{}")
    results = load(runs)
    one = results.comparisons["oelm-freeze"]
    assert (one.verdict, one.survivors, one.n, one.worst) == ("inconclusive", "better", 3, 0.0)
    assert [tuple(outcome.failed) for outcome in one.outcomes if outcome.arm == arm] == [(1, 3)]
    assert [tuple(outcome.failed) for outcome in one.outcomes if outcome.arm == OTHER[arm]] == [()]
    said = str(one)
    word = {"collapsed": "learned nothing"}.get(how, how)
    assert f"2 of 5 seeds of {arm} failed (seed 1, 3: {word}), so up to 81% may (95 %)" in said
    assert "the other 3 seeds alone would say better, but not with failures counted as 0" in said
    assert "更好" in translate(one.message).zh
    assert {issue.severity for issue in results.checks if issue.code in ("COLLAPSED", "DIVERGED")} <= {"warn"}


@pytest.mark.parametrize("how", ["diverged", "collapsed"])
def test_failures_of_the_arm_that_loses_do_not_save_it(tmp_path, how):
    """They could only make it worse; with them at 0 alone, their scatter would hide that it is."""
    bad = GOOD | {"oelm-freeze": 0.75}
    change = failing("oelm-freeze", {1, 3}) if how == "diverged" else None
    runs = make_runs(tmp_path, aiming_at(0.03), accuracy=bad, change=change, **SMALL)
    if how == "collapsed":
        collapse(runs, "oelm-freeze", (1, 3))
    results = load(runs)
    one = results.comparisons["oelm-freeze"]
    assert (one.verdict, one.survivors, one.n, one.worst) == ("worse", "worse", 3, 0.0)
    assert one.p_differs < 0.05 < one.with_failures.p_differs(), "the others show it"
    assert not one.deciding.contains(0)
    assert "2 of 5 seeds of oelm-freeze failed (seed 1, 3: " in str(one)
    assert str(one).endswith("failures could only add to it")
    assert "失败只会使这一结论更明显" in translate(one.message).zh
    assert results.compare("baseline", against="oelm-freeze").verdict == "inconclusive", (
        "better comes from no survivors"
    )


def test_failures_of_both_arms_leave_it_open(tmp_path):
    def change(cell, record):
        return diverged(record) if (cell.arm, cell.seed) in (("oelm-freeze", 1), ("baseline", 3)) else record

    bad = GOOD | {"oelm-freeze": 0.75}
    one = load(make_runs(tmp_path, aiming_at(0.03), accuracy=bad, change=change, **SMALL)).comparisons["oelm-freeze"]
    assert (one.verdict, one.survivors) == ("inconclusive", "worse")


def test_failures_are_in_the_table_and_in_the_numbers(tmp_path):
    results = load(make_runs(tmp_path, aiming_at(0.03), accuracy=GOOD, change=failing("oelm-freeze", {3}), **SMALL))
    one = results.comparisons["oelm-freeze"]
    assert str(one) in str(results).splitlines()
    assert str(results.comparisons["freeze-only"]) not in str(results), "there is nothing to explain"
    data = json.loads(json.dumps(comparison_as_dict(one)))
    assert (data["survivors"], data["worst"], data["family"], data["exploratory"]) == ("better", 0.0, 2, False)
    assert data["outcomes"][0] == {
        "arm": "oelm-freeze",
        "planned": 5,
        "not_run": [],
        "failed": {"3": "diverged"},
        "failure_rate_at_most": pytest.approx(beta.ppf(0.95, 2, 4)),
    }
    assert data["outcomes"][1]["failure_rate_at_most"] == pytest.approx(1 - 0.05**0.2)


def test_the_same_without_failures(tmp_path):
    one = load(make_runs(tmp_path, aiming_at(0.03), accuracy=GOOD, **SMALL)).comparisons["oelm-freeze"]
    assert (one.verdict, one.survivors, one.with_failures, one.worst) == ("better", "better", None, None)
    assert "no seed failed, which leaves failure rates of up to 45% possible (95 %)" in str(one)
    assert one.outcomes[0].rate_at_most == pytest.approx(1 - 0.05 ** (1 / 5))


@pytest.mark.parametrize("arm", ["freeze-only", "baseline"])
def test_survivors_are_not_equivalent(tmp_path, arm):
    study = aiming_at(0.03)
    clean = load(make_runs(tmp_path / "clean", study, accuracy=GOOD, **SMALL)).comparisons["freeze-only"]
    assert clean.verdict == "equivalent"
    runs = make_runs(tmp_path, study, accuracy=GOOD, change=failing(arm, {4}), **SMALL)
    one = load(runs).comparisons["freeze-only"]
    assert (one.verdict, one.survivors) == ("inconclusive", "equivalent")
    assert "the other 4 seeds alone would say equivalent" in str(one)


def test_a_verdict_that_holds_either_way_stands(tmp_path):
    """One of ten fails, and the difference is so large that it would have to be worth much more to matter."""
    study = aiming_at(0.03, seeds=list(range(12)))
    accuracy = {"baseline": 0.6, "oelm-freeze": 0.99}
    runs = make_runs(tmp_path, study, accuracy=accuracy, change=failing("oelm-freeze", {7}), **SMALL)
    one = load(runs).comparisons["oelm-freeze"]
    assert (one.verdict, one.n) == ("better", 11)
    assert one.p_differs > one.estimate.p_differs()
    assert "1 of 12 seeds of oelm-freeze failed (seed 7: diverged), so up to 34% may (95 %)" in str(one)
    assert "it holds also with failures counted as 0" in str(one)


@pytest.mark.parametrize("arm", ["oelm-freeze", "baseline"])
def test_an_arm_that_always_fails_has_no_verdict_either_way(tmp_path, arm):
    """A gain over a baseline that never ends is none; and what never ran through was not shown to be worse."""
    runs = make_runs(tmp_path, aiming_at(0.03), accuracy=GOOD, change=failing(arm, set(range(5))), **SMALL)
    one = load(runs).comparisons["oelm-freeze"]
    assert (one.verdict, one.n) == ("inconclusive", 0)
    assert f"5 of 5 seeds of {arm} failed" in str(one)


@pytest.mark.parametrize(("arm", "verdict"), [("oelm-freeze", "worse"), ("baseline", "invalid")])
def test_an_arm_that_never_learns_has_that_result_and_is_no_baseline(tmp_path, arm, verdict):
    runs = make_runs(tmp_path, aiming_at(0.03), accuracy=GOOD, **SMALL)
    collapse(runs, arm, range(5))
    one = load(runs).comparisons["oelm-freeze"]
    assert (one.verdict, one.n) == (verdict, 5)
    collapse(runs, OTHER[arm], (0,))
    assert load(runs).comparisons["oelm-freeze"].verdict == ("inconclusive" if verdict == "worse" else "invalid")


def test_a_failure_is_no_spread(tmp_path):
    """More seeds are not what is missing where one of them learned nothing."""
    runs = make_runs(tmp_path, aiming_at(0.04), accuracy=GOOD, **SMALL)
    usual = load(runs).design.spreads["oelm-freeze"]
    collapse(runs, "oelm-freeze", {2})
    results = load(runs)
    assert results.design.spreads["oelm-freeze"] < 2 * usual
    assert not [one for one in results.checks if (one.code, one.severity) == ("FEW-SEEDS", "warn")]


def test_failures_of_both_arms_in_one_seed_are_no_difference(tmp_path):
    def both(cell, record):
        return diverged(record) if cell.seed == 2 else record

    one = load(make_runs(tmp_path, aiming_at(0.03), accuracy=GOOD, change=both, **SMALL)).comparisons["oelm-freeze"]
    assert one.with_failures.n == 5
    assert one.with_failures.mean == pytest.approx(0.8 * one.estimate.mean)


def test_a_failed_loss_counts_as_the_first_step(tmp_path):
    arms = {"baseline": {"init": "keep", "freeze": "none"}, "lower": TREATED}
    study = text_study_of(arms=arms, compare={"baseline": "baseline", "metric": "loss", "min_effect": 0.01})
    runs = make_text_runs(tmp_path, study, perplexity={"lower": 9.0}, change=failing("lower", {0}))
    for log in runs.glob("baseline/*/steps.jsonl"):
        first, *rest = log.read_text().splitlines()
        log.write_text("\n".join([json.dumps({**json.loads(first), "loss": 6.5}), *rest, ""]))
        seal_files(log.parent)
    one = load(runs).comparisons["lower"]
    assert (one.verdict, one.survivors, one.worst) == ("inconclusive", "better", 6.5)
    for log in runs.glob("*/*/steps.jsonl"):
        log.unlink()
    one = load(runs).comparisons["lower"]
    assert (one.verdict, one.survivors) == ("inconclusive", "better"), "what it is worth is not known"
    assert math.isnan(one.worst)
    assert "failures counted as \u2013" in str(one)


def test_what_was_not_run_yet_is_no_failure_and_gives_no_verdict(tmp_path):
    def only(cell, record):
        return record if (cell.arm, cell.seed) != ("oelm-freeze", 4) else None

    results = load(make_runs(tmp_path, aiming_at(0.03), accuracy=GOOD, change=only, **SMALL))
    one = results.comparisons["oelm-freeze"]
    assert (one.verdict, one.n) == ("inconclusive", 0)
    assert not any(outcome.failed for outcome in one.outcomes)
    assert "test numbers are shown when the study is complete; missing cells: 1" in str(one)
    assert "研究全部完成后才显示" in translate(one.message).zh
    assert results.comparisons["freeze-only"].verdict == "inconclusive", "of the study, not all seeds are there"
    assert results.compare("oelm-freeze", metric="loss").verdict == "inconclusive", "nor on another metric"
    other = results.compare("oelm-freeze", metric="training_seconds")
    assert (other.verdict, "4 of 5 planned seeds are there" in str(other)) == ("inconclusive", True)
    assert results.compare("oelm-freeze", metric="trainable").verdict == "better", "a count is exact from the first"


GRID = (3e-5, 1e-4, 3e-4)


@pytest.mark.parametrize("diverge", [GRID, GRID[1:]])
def test_a_seed_that_diverged_at_every_point_of_the_grid_is_a_failure(tmp_path, diverge):
    def change(cell, record):
        if (cell.arm, cell.seed) != ("oelm-freeze", 2):
            return record
        if cell.point is None:  # never run, or not yet
            return None
        return diverged(record) if dict(cell.point)["optimizer.lr"] in diverge else record

    study = study_of(tune={"optimizer.lr": list(GRID)}, seeds=[0, 1, 2])
    results = load(make_runs(tmp_path, study, change=change, **SMALL))
    one, is_failure = results.comparisons["oelm-freeze"], diverge == GRID
    assert (one.verdict, one.n, results.sealed is None) == ("inconclusive", 2 if is_failure else 0, is_failure)
    assert list(one.outcomes[0].failed) == ([2] if is_failure else [])
    assert list(one.outcomes[0].not_run) == ([] if is_failure else [2])
    assert ("1 of 3 seeds of oelm-freeze failed (seed 2: diverged)" in str(one)) == is_failure
    (said,) = [str(found.message) for found in results.checks if found.code == "INCOMPLETE"]
    tuned = "could not be tuned, because oelm-freeze/tune/optimizer.lr=3e-05/seed-2: diverged"
    assert said.endswith(tuned if is_failure else "not run yet")


def test_counts_and_times_have_no_failures(tmp_path):
    runs = make_runs(tmp_path, accuracy=GOOD, change=failing("oelm-freeze", {1}), **SMALL)
    results = load(runs)
    for metric in ("trainable", "step_seconds", "peak_memory"):
        assert not any(outcome.failed for outcome in results.compare("oelm-freeze", metric=metric).outcomes)


# -- one family ------------------------------------------------------------------------------------------------------

FIVE = {"baseline": {"init": "keep", "freeze": "none"}, **dict.fromkeys("abcde", TREATED)}


def test_a_view_of_some_arms_is_no_smaller_family(tmp_path):
    accuracy = {"baseline": 0.85, "a": 0.95, "b": 0.857}
    results = load(make_runs(tmp_path, aiming_at(0.002, arms=FIVE), accuracy=accuracy, **SMALL))
    for arm in "ab":
        part = results.restricted(arms=["baseline", arm])
        assert part.comparisons == {arm: results.comparisons[arm]}
        assert part.comparisons[arm].family == 5
        assert part.compare(arm) == results.comparisons[arm]
    again = results.restricted(arms=["baseline", "a", "b"]).restricted(arms=["baseline", "a"])
    assert again.comparisons == {"a": results.comparisons["a"]}


def test_a_view_of_some_seeds_has_no_verdict(tmp_path):
    results = load(make_runs(tmp_path, aiming_at(0.03), accuracy=GOOD, **SMALL))
    assert results.comparisons["oelm-freeze"].verdict == "better"
    one = results.restricted(seeds=[0, 1, 2]).comparisons["oelm-freeze"]
    assert (one.verdict, one.n, one.family) == ("inconclusive", 3, 2)
    assert "3 of 5 planned seeds are there" in str(one)


def test_an_interval_without_zero_beside_no_verdict_is_explained():
    clear, nothing = [1.0, 1.2, 0.4, 1.4, 0.6], [0.5, -0.4, 0.1, -0.3, 0.2]
    family = {"a": clear, **{f"n{n}": nothing for n in range(9)}}
    one = corrected({name: replace(compared(row), family=10) for name, row in family.items()}, family=10)["a"]
    assert one.verdict == "inconclusive"
    assert not one.interval.contains(0)
    assert one.deciding.contains(0)
    assert one.deciding.level == pytest.approx(0.995)
    assert f"(99.5 % interval {one.deciding.low:+.4f} to" in str(one)
    low, high = one.interval.low, one.interval.high
    assert f"by itself its 95 % interval is {low:+.4f} to {high:+.4f}; as one of 10 comparisons (Holm)" in str(one)


def test_failures_of_one_arm_do_not_explain_another():
    """The survivors of one arm would leave the other a larger share of the 5 %."""
    failed = SeedOutcomes(arm="a", planned=(0, 1, 2, 3, 4), not_run=(), failed={4: verbatim("diverged")}, values={})
    survivors = [1.0, 1.1, 0.9, 1.0]
    failing = replace(compared(survivors), outcomes=(failed,), worst=-9.0, with_failures=from_seeds([*survivors, -9.0]))
    found = {"failing": failing, "other": compared([0.04, 0.03, 0.12, 0.01, 0.08])}
    judged = corrected({arm: replace(one, family=2) for arm, one in found.items()}, family=2)
    assert {one.verdict for one in judged.values()} == {"inconclusive"}
    assert "but not with failures counted as -9" in str(judged["failing"])
    assert "as one of 2 comparisons (Holm) it is not certain" in str(judged["other"])
    assert "fail" not in str(judged["other"])


def test_every_verdict_follows_from_the_interval_that_decides():
    random = np.random.default_rng(5)
    for _ in range(300):
        rows = random.normal(random.choice([0.0, 1.0, 2.0], size=(4, 1)), 1.0, size=(4, 5))
        family = {str(n): replace(compared(row, margin=3.0), family=4) for n, row in enumerate(rows)}
        for one in corrected(family, family=4).values():
            if one.verdict == "equivalent":
                assert one.deciding.inside(-3.0, 3.0)
            else:
                assert one.deciding.contains(0) == (one.verdict == "inconclusive")


def test_what_the_study_did_not_ask_is_exploratory(tmp_path, mixed):
    assert {one.exploratory for one in mixed.comparisons.values()} == {None}
    assert "exploratory" not in " ".join(map(str, mixed.comparisons.values()))
    for one in (mixed.compare("better", metric="loss"), mixed.compare("better", against="worse")):
        assert one.verdict == "better"
        assert one.family == 1
        assert str(one).endswith("(exploratory: the study did not set out to compare this)")
    rule = {"statement": "s", "estimand": "accuracy(oelm-freeze) - accuracy(baseline)", "rule": "above", "margin": 0.0}
    results = load(make_runs(tmp_path, study_of(hypotheses={"H": rule}), accuracy=GOOD, **SMALL))
    one = results.comparisons["oelm-freeze"]
    assert one.verdict == "better"
    assert str(one).endswith("(exploratory: the hypotheses are what this study set out to test)")
    said = "exploratory: the hypotheses are what this study set out to test."
    assert f"These verdicts are {said}" in str(results)
    assert f"This is {said}" in overall_verdict(results).text.en
    assert "exploratory" not in str(mixed) + overall_verdict(mixed).text.en
    assert "探索性" in translate(one.message).zh
    assert "exploratory" not in str(results.hypotheses[0])


# -- language models -------------------------------------------------------------------------------------------------


def test_a_lower_perplexity_is_better(tmp_path):
    arms = {"baseline": {"init": "keep", "freeze": "none"}, **dict.fromkeys(("lower", "higher", "same"), TREATED)}
    results = load(make_text_runs(tmp_path, text_study_of(arms=arms), perplexity={"lower": 9.0, "higher": 11.0}))
    assert {arm: one.verdict for arm, one in results.comparisons.items()} == {
        "lower": "better",
        "higher": "worse",
        "same": "equivalent",
    }
    one = results.comparisons["lower"]
    assert not one.higher_is_better
    shown = one.shown_interval()
    assert -0.12 < shown.low < shown.high < -0.08
    assert "perplexity -10." in str(one.message)
    assert (shown.low, shown.high) == pytest.approx((math.exp(one.interval.low) - 1, math.exp(one.interval.high) - 1))
    assert results.compare("lower", metric="step_seconds").higher_is_better is False
    assert not {issue.code for issue in results.checks} - {"FEW-SEEDS", "UNTUNED"}, (
        "a falling perplexity has not fallen below its best"
    )
