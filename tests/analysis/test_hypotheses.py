"""Hypotheses of a study, judged by their own rules from records whose truth is known."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from made_bench import between, edited, ratio, write_bench
from made_runs import (
    TRAINABLE,
    launch,
    make_runs,
    make_text_runs,
    replace_at,
    score,
    seal_files,
    study_of,
    text_study_of,
)
from oelm.analysis.results import load
from oelm.analysis.stats.estimate import from_seeds, holm
from oelm.facts import Counts
from oelm.study.load import load_study
from oelm.text.messages import translate

pytestmark = pytest.mark.slow

SMALL = {"examples": 300, "steps": 20}
ARMS = {
    "baseline": {"init": "keep", "freeze": "none"},
    "oelm-nofreeze": {"init": "orthogonal", "scale": "unit", "freeze": "none"},
    "oelm-freeze": {"init": "orthogonal", "scale": "unit", "freeze": "qk"},
    "oelm-global": {"init": "orthogonal-global", "scale": "unit", "freeze": "qk"},
}


def hypothesis(estimand, rule, margin):
    return {"statement": "a statement", "estimand": estimand, "rule": rule, "margin": margin}


def statuses(results):
    return {one.hypothesis.name: one.status for one in results.hypotheses}


# -- differences -----------------------------------------------------------------------------------------------------

DIFFERENCE = "accuracy(oelm-freeze) - accuracy(baseline)"
RULES = {
    "gains": hypothesis(DIFFERENCE, "above", 0.05),
    "loses": hypothesis(DIFFERENCE, "below", 0.0),
    "costs little": hypothesis(DIFFERENCE, "above", -0.05),
    "the same": hypothesis(DIFFERENCE, "within", 0.05),
}


@pytest.mark.parametrize(
    ("accuracy", "expected"),
    [
        (0.95, ("supported", "refuted", "supported", "refuted")),
        (0.803, ("refuted", "inconclusive", "supported", "supported")),
        (0.65, ("refuted", "supported", "refuted", "refuted")),
    ],
)
def test_every_rule_on_a_difference(tmp_path, accuracy, expected):
    study = study_of(hypotheses=RULES)
    results = load(make_runs(tmp_path, study, accuracy={"baseline": 0.8, "oelm-freeze": accuracy}, **SMALL))
    assert tuple(statuses(results).values()) == expected
    for one in results.hypotheses:
        assert one.value == pytest.approx(results.comparisons["oelm-freeze"].estimate.mean)
        assert one.interval == results.comparisons["oelm-freeze"].interval, "on the same evidence as the comparison"
        assert one.n == 5
        assert one.status in str(one.message)
        assert str(one.hypothesis) in str(one.message)
        assert str(one) in str(results)


def test_a_value_of_one_arm(tmp_path):
    hypotheses = {
        "high": hypothesis("accuracy(oelm-freeze)", "above", 0.7),
        "higher": hypothesis("accuracy(oelm-freeze)", "above", 0.9),
        "low": hypothesis("loss(oelm-freeze)", "below", 0.01),
    }
    study = study_of(hypotheses=hypotheses)
    results = load(make_runs(tmp_path, study, accuracy={"oelm-freeze": 0.8}, **SMALL))
    assert statuses(results) == {"high": "supported", "higher": "refuted", "low": "refuted"}


def test_one_seed_and_no_variation_decide_nothing(tmp_path):
    study = study_of(seeds=[0], hypotheses=RULES)
    results = load(make_runs(tmp_path, study, accuracy={"oelm-freeze": 0.99, "baseline": 0.7}, **SMALL))
    assert set(statuses(results).values()) == {"inconclusive"}
    assert results.hypotheses[0].n == 1


def test_several_hypotheses_share_the_five_percent(tmp_path):
    """Every p is Holm's: the family is all that seeds decide, and counts are not in it."""
    many = {f"H{n}": hypothesis(DIFFERENCE, "above", margin) for n, margin in enumerate((0.0, 0.002, 0.004, 0.006))}
    count = {"count": hypothesis("trainable(oelm-freeze)", "below", 22e6)}
    runs = make_runs(tmp_path, study_of(hypotheses=many | count), accuracy={"oelm-freeze": 0.92}, **SMALL)
    for path in runs.rglob("predictions.parquet"):
        path.unlink()  # so that the seeds alone decide
    results = load(runs)
    estimate = from_seeds(list(results.comparisons["oelm-freeze"].differences.values()))
    alone = {f"H{n}": min(1.0, 2 * estimate.p_above(margin)) for n, margin in enumerate((0.0, 0.002, 0.004, 0.006))}
    found = {one.hypothesis.name: one.p_supported for one in results.hypotheses if one.hypothesis.name != "count"}
    assert found == pytest.approx(holm(alone))
    assert found["H0"] == pytest.approx(4 * alone["H0"])
    assert statuses(results)["count"] == "supported"


@pytest.mark.parametrize("accuracy", [0.80, 0.885, 0.895, 0.9, 0.905, 0.92])
def test_a_status_follows_from_the_interval_that_decides(tmp_path, accuracy):
    """It lies where the rule wants it, or nowhere near, or across the margin: for every rule, in a family of four."""
    rules = {"above": -0.01, "below": 0.01, "within": 0.01, "more": 0.0}
    hypotheses = {
        name: hypothesis(DIFFERENCE, "above" if name == "more" else name, margin) for name, margin in rules.items()
    }
    results = load(make_runs(tmp_path, study_of(hypotheses=hypotheses), accuracy={"oelm-freeze": accuracy}, **SMALL))
    for one in results.hypotheses:
        low, high = {"above": (-0.01, math.inf), "below": (-math.inf, 0.01), "within": (-0.01, 0.01)}.get(
            one.hypothesis.name, (0, math.inf)
        )
        inside = low < one.deciding.low and one.deciding.high < high
        outside = one.deciding.high < low or high < one.deciding.low
        assert (one.status == "supported", one.status == "refuted") == (inside, outside)
        assert one.remark is None
        assert f"({100 * one.deciding.level:.4g} % interval {one.deciding.low:.4g} to " in str(one)


def test_with_no_effect_a_gain_is_rarely_supported():
    """By the arithmetic of `above`: twice the one-sided p, so 2.5 % for either direction."""
    number = 3000
    random = np.random.default_rng(1)
    for n in (2, 3, 5):
        p = [2 * from_seeds(random.standard_normal(n)).p_above(0.0) for _ in range(number // 3)]
        rate = float(np.mean(np.array(p) < 0.05))
        assert rate <= 0.025 + 4 * math.sqrt(0.025 * 0.975 / (number // 3))


# -- what is invalid, or not there -----------------------------------------------------------------------------------


def test_a_hypothesis_about_arms_that_were_not_run(tmp_path):
    hypotheses = {
        **RULES,
        "other": hypothesis("accuracy(freeze-only) - accuracy(baseline)", "above", 0),
        "pair": hypothesis("accuracy(oelm-freeze) / accuracy(freeze-only)", "above", 0),
        "count": hypothesis("trainable(oelm-freeze)", "below", 1e9),
    }

    def only(cell, record):
        return record if cell.arm != "oelm-freeze" else None

    study = study_of(seeds=[0, 1, 2], hypotheses=hypotheses)
    results = load(make_runs(tmp_path, study, change=only, **SMALL))
    told = {one.hypothesis.name: one for one in results.hypotheses}
    for name, one in told.items():
        assert (one.status, one.value, one.interval, one.n) == ("inconclusive", None, None, 0)
        says, zh = ("no results yet", "尚无结果") if name == "count" else ("when the study is complete", "尚缺单元")
        assert says in str(one.message)
        assert zh in translate(one.message).zh


def test_what_blocks_a_comparison_blocks_its_hypothesis(tmp_path):
    def unpaired(cell, record):
        if cell.arm != "oelm-freeze":
            return record
        return replace_at(record, "start.weights", "others")

    hypotheses = {
        "blocked": RULES["gains"],
        "free": hypothesis("accuracy(freeze-only) - accuracy(baseline)", "within", 0.1),
        "count": hypothesis("trainable(oelm-freeze) / trainable(baseline)", "below", 0.95),
    }
    study = study_of(hypotheses=hypotheses)
    results = load(make_runs(tmp_path, study, accuracy={"oelm-freeze": 0.99}, change=unpaired, **SMALL))
    assert statuses(results) == {"blocked": "invalid", "free": "supported", "count": "supported"}
    assert "cannot be judged (UNPAIRED)" in str(results.hypotheses[0].message)


def test_a_hypothesis_between_treated_arms_is_held_to_their_own_differences(tmp_path):
    arms = {
        "baseline": {"init": "keep", "freeze": "none"},
        "one": {"init": "keep", "freeze": "qk"},
        "other": {"init": "keep", "freeze": "qk", "overrides": {"batch.size": 64}},
    }
    hypotheses = {"H": hypothesis("accuracy(one) - accuracy(other)", "above", 0.1)}
    results = load(make_runs(tmp_path, study_of(arms=arms, seeds=[0, 1, 2], hypotheses=hypotheses), **SMALL))
    assert statuses(results) == {"H": "invalid"}
    assert {issue.arms for issue in results.hypotheses[0].issues if issue.severity == "invalid"} == {("one", "other")}
    assert results.comparisons["one"].verdict != "invalid"


# -- seeds that failed, and those that are not there -----------------------------------------------------------------


def without(arm, seed, *, status=None):
    def change(cell, record):
        if (cell.arm, cell.seed) != (arm, seed):
            return record
        return replace(record, status=status) if status else None

    return change


VALUE = {"high": hypothesis("accuracy(oelm-freeze)", "above", 0.7)}
RATIO = {"ratio": hypothesis("accuracy(oelm-freeze) / accuracy(baseline)", "above", 0.9)}


@pytest.mark.parametrize("rules", [RULES, VALUE, RATIO])
@pytest.mark.parametrize("arm", ["oelm-freeze", "baseline"])
def test_no_hypothesis_rests_on_survivors(tmp_path, rules, arm):
    accuracy = {"baseline": 0.8, "oelm-freeze": 0.95}
    study = study_of(hypotheses=rules)
    clean = load(make_runs(tmp_path / "clean", study, accuracy=accuracy, **SMALL)).hypotheses
    assert "inconclusive" not in {one.status for one in clean}
    change = without(arm, 2, status="diverged")
    found = load(make_runs(tmp_path, study, accuracy=accuracy, change=change, **SMALL)).hypotheses
    if arm == "baseline" and rules is VALUE:  # it is not about that arm
        assert [one.status for one in found] == [one.status for one in clean]
        return
    for one, before in zip(found, clean, strict=True):
        assert (one.status, one.survivors, one.n, one.worst) == ("inconclusive", before.status, 4, 0.0)
        assert f"the other 4 seeds alone would say {before.status}, but not with failures counted as 0" in str(one)
        assert f"1 of 5 seeds of {arm} failed (seed 2: diverged)" in str(one)
        assert "失败" in translate(one.message).zh


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (hypothesis(DIFFERENCE, "below", -0.05),
         hypothesis("accuracy(baseline) - accuracy(oelm-freeze)", "above", 0.05)),
        (hypothesis("perplexity(oelm-freeze) / perplexity(baseline)", "above", 1.1),
         hypothesis("perplexity(baseline) / perplexity(oelm-freeze)", "below", 1 / 1.1)),
    ],
)  # fmt: skip
def test_failures_of_the_arm_that_loses_add_to_it_whichever_is_named_first(tmp_path, first, second):
    """One statement in two forms has one status; failures of the baseline still speak for nobody."""
    rules = {"first": first, "second": second}
    is_text = "perplexity" in first["estimand"]
    study = text_study_of(hypotheses=rules) if is_text else study_of(hypotheses=rules)

    def judged(arm):
        change = without(arm, 2, status="diverged")
        if is_text:
            perplexity = {"baseline": 10.0, "oelm-freeze": 13.0}
            runs = make_text_runs(tmp_path / arm, study, perplexity=perplexity, change=change)
        else:
            accuracy = {"baseline": 0.9, "oelm-freeze": 0.7}
            runs = make_runs(tmp_path / arm, study, accuracy=accuracy, change=change, **SMALL)
        return load(runs).hypotheses

    for one in judged("oelm-freeze"):
        assert (one.status, one.n) == ("supported", 4)
        assert str(one).endswith("failures could only add to it")
    assert [one.status for one in judged("baseline")] == ["inconclusive", "inconclusive"]


def test_before_all_seeds_are_there_nothing_is_supported(tmp_path):
    accuracy = {"baseline": 0.8, "oelm-freeze": 0.95}
    study = study_of(hypotheses=RULES)
    found = load(make_runs(tmp_path, study, accuracy=accuracy, change=without("baseline", 0), **SMALL)).hypotheses
    assert {one.status for one in found} == {"inconclusive"}
    assert all("when the study is complete; missing cells: 1" in str(one) for one in found)


def test_no_ratio_rests_on_the_seeds_that_have_one(tmp_path):
    """Of nothing there is none: an arm that finds nothing in two seeds must not be judged by the others."""
    rule = {"ratio": hypothesis("f1(oelm-freeze) / f1(baseline)", "above", 0.9)}
    study = study_of(hypotheses=rule, compare={"baseline": "baseline", "metric": "f1"})

    def with_f1(nothing):
        def change(cell, record):
            is_nothing = cell.arm == "oelm-freeze" and cell.seed in nothing
            return score(record, f1=0.0 if is_nothing else 0.9 + 0.001 * cell.seed * (cell.arm == "baseline"))

        return change

    (clean,) = load(make_runs(tmp_path / "clean", study, change=with_f1(()), **SMALL)).hypotheses
    (one,) = load(make_runs(tmp_path, study, change=with_f1((1, 3)), **SMALL)).hypotheses
    assert (clean.status, clean.n, one.status, one.n) == ("supported", 5, "inconclusive", 3)
    assert "2 of 5 seeds have no ratio" in str(one)
    assert "没有比值" in translate(one.message).zh


def test_a_view_has_no_family_of_its_own(tmp_path):
    pair = {"pair": hypothesis("accuracy(freeze-only) - accuracy(baseline)", "above", -0.1)}
    results = load(make_runs(tmp_path, study_of(hypotheses=RULES | pair), **SMALL))
    part = results.restricted(arms=["baseline", "freeze-only"]).hypotheses
    assert part == [one for one in results.hypotheses if one.hypothesis.name == "pair"]
    assert part[0].family == 5


def test_certain_by_itself_and_not_among_others_is_said(tmp_path):
    """The margin is at the end of its 95 % interval."""
    low = load(make_runs(tmp_path / "look", study_of(), **SMALL)).comparisons["oelm-freeze"].interval.low
    just = {"H": hypothesis(DIFFERENCE, "above", low - 1e-6)}
    other = {"other": hypothesis("accuracy(freeze-only) - accuracy(baseline)", "above", 0.0)}
    (alone,) = load(make_runs(tmp_path / "alone", study_of(hypotheses=just), **SMALL)).hypotheses
    among = load(make_runs(tmp_path / "among", study_of(hypotheses=just | other), **SMALL)).hypotheses[0]
    assert (alone.status, among.status) == ("supported", "inconclusive")
    assert "certain by itself, and not as one of 2 hypotheses (Holm)" in str(among)
    assert "by itself" not in str(alone)
    easy = {"other": hypothesis("accuracy(freeze-only) - accuracy(baseline)", "above", -0.5)}
    change, study = without("freeze-only", 2, status="diverged"), study_of(hypotheses=just | easy)
    among, failing = load(make_runs(tmp_path / "failing", study, change=change, **SMALL)).hypotheses
    assert "not with failures" in str(failing)
    assert "certain by itself, and not as one of 2 hypotheses (Holm)" in str(among), "of the other"


# -- those of the predecessor ----------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def shipped(tmp_path_factory):
    """The hypotheses of a shipped study, on records of another size with a known truth."""
    raw = load_study("gpt-tinystories-fair").to_dict()["hypotheses"]
    study = text_study_of(arms=ARMS, hypotheses=raw)
    perplexity = {"baseline": 10.0, "oelm-nofreeze": 10.0, "oelm-freeze": 10.1, "oelm-global": 12.0}
    runs = make_text_runs(tmp_path_factory.mktemp("shipped"), study, perplexity=perplexity)
    for (
        seed
    ) in study.seeds:  # steps of these runs take the same share of the baseline's in every seed; real ones do not
        log = runs / "oelm-freeze" / f"seed-{seed}" / "steps.jsonl"
        rows = [json.loads(line) for line in log.read_text().splitlines()]
        log.write_text("\n".join(json.dumps({**row, "seconds": row["seconds"] * (1 + 0.002 * seed)}) for row in rows))
        seal_files(log.parent)
    return load(runs)


def test_h1_is_judged_by_both_of_its_rules(shipped):
    """92.2 % are left, which is not 87.5 %; and 1.8 million were taken out, which is not 3 million."""
    told = {one.hypothesis.name: one for one in shipped.hypotheses}
    share, count = told["H1-share"], told["H1-count"]
    assert share.status == count.status == "refuted"
    assert share.value == TRAINABLE["qk"] / TRAINABLE["none"]
    assert count.value == TRAINABLE["none"] - TRAINABLE["qk"] == 1_774_080
    assert share.interval is None
    assert count.interval is None
    assert "measured 0.9219" in str(share.message)
    assert "measured 1,774,080" in str(count.message), "a count is said to the last one"


def test_the_two_rules_of_h1_may_contradict_each_other(tmp_path):
    raw = load_study("gpt-tinystories-fair").to_dict()["hypotheses"]
    two = {name: raw[name] for name in ("H1-share", "H1-count")}

    def large(cell, record):
        frozen = 3_145_728 if cell.arm == "oelm-freeze" else 0
        counts = Counts(total=44_900_000, trainable=44_900_000 - frozen, buffers=0, qk=3_145_728)
        return replace(record, counts=counts)

    results = load(make_text_runs(tmp_path, text_study_of(arms=ARMS, seeds=[0], hypotheses=two), change=large))
    assert statuses(results) == {"H1-share": "refuted", "H1-count": "supported"}, "as it was published, from one seed"


def test_ratios_are_judged_by_their_logarithms(shipped):
    told = {one.hypothesis.name: one for one in shipped.hypotheses}
    assert told["H2"].status == "supported"
    assert told["H2"].value == pytest.approx(1.01, abs=0.003)
    assert told["H2"].interval.low < 1.01 < told["H2"].interval.high
    assert told["H4"].status == "supported"
    assert told["H3"].status == "supported", "steps of the frozen arm were made 5 % faster"
    assert told["H3"].value == pytest.approx(0.95, abs=0.01)
    assert told["RQ3"].status == "refuted"
    assert told["RQ3"].value == pytest.approx(10.1 / 12, abs=0.01)
    ratios = [a / b for a, b in zip(
        shipped.values("oelm-freeze", "perplexity").values(),
        shipped.values("oelm-global", "perplexity").values(),
        strict=True,
    )]  # fmt: skip
    assert told["RQ3"].value == pytest.approx(math.exp(np.mean(np.log(ratios))))


def test_a_ratio_and_its_inverse_agree(tmp_path):
    """Twice as much and half as much are equally far from 1."""
    hypotheses = {
        "there": hypothesis("perplexity(oelm-freeze) / perplexity(baseline)", "below", 0.5),
        "back": hypothesis("perplexity(baseline) / perplexity(oelm-freeze)", "above", 2.0),
    }
    study = text_study_of(arms=ARMS, seeds=[0, 1, 2], hypotheses=hypotheses)
    there, back = load(make_text_runs(tmp_path, study, perplexity={"oelm-freeze": 5.1}, spread=0.05)).hypotheses
    assert there.p_supported == pytest.approx(back.p_supported)
    assert there.interval.low == pytest.approx(1 / back.interval.high)


def test_counts_that_vary_are_no_counts(tmp_path):
    """Then they are estimated like anything else."""

    def varying(cell, record):
        return replace_at(record, "counts.trainable", 20_000_000 + 1000 * cell.seed)

    study = study_of(seeds=[0, 1, 2], hypotheses={"H": hypothesis("trainable(oelm-freeze)", "below", 20_000_500)})
    one = load(make_runs(tmp_path, study, change=varying, **SMALL)).hypotheses[0]
    assert one.interval is not None
    assert one.status == "inconclusive"


# -- times that were measured in turns -------------------------------------------------------------------------------

FASTER = "step_seconds(oelm-freeze) / step_seconds(baseline)"


def timed(tmp_path, told, hypotheses, *, study=None, **parts):
    study = study or study_of(seeds=[0, 1, 2], hypotheses=hypotheses)
    folder = make_runs(tmp_path, study, **SMALL)
    return load(write_bench(folder, study, told, **parts))


@pytest.mark.parametrize(
    ("told", "status"),
    [
        (ratio(0.95, half=0.01), "supported"),
        (ratio(0.95, half=0.10), "inconclusive"),
        (ratio(1.00, half=0.01), "inconclusive"),
        (ratio(1.05, half=0.01), "refuted"),
        (ratio(0.95, rounds=3), "inconclusive"),
    ],
)
def test_step_times_are_judged_by_the_bench(tmp_path, told, status):
    """The records of these runs say 0.95 in every seed; the bench says something else, and is believed."""
    (one,) = timed(tmp_path, {"oelm-freeze": told}, {"H3": hypothesis(FASTER, "below", 1.0)}).hypotheses
    assert (one.status, one.timed, one.value, one.n) == (status, True, told.median, told.rounds)
    assert "in turns by oelm bench" in str(one.message)
    assert "由 oelm bench 轮流测得" in translate(one.message).zh
    assert f"{told.rounds} rounds" in str(one.message)
    assert "seeds" not in str(one.message)
    if told.rounds < 6:
        assert one.interval is None
    else:
        assert (one.interval.low, one.interval.high) == pytest.approx((told.low, told.high), rel=1e-6)


@pytest.mark.parametrize(
    ("rule", "margin", "told", "status"),
    [
        ("within", 0.03, ratio(1.0, half=0.01), "supported"),
        ("within", 0.03, ratio(1.0, half=0.05), "inconclusive"),
        ("within", 0.03, ratio(0.94, half=0.01), "refuted"),
        ("above", 0.93, ratio(0.95, half=0.01), "supported"),
        ("below", 0.93, ratio(0.95, half=0.01), "refuted"),
    ],
)
def test_every_rule_on_times(tmp_path, rule, margin, told, status):
    results = timed(tmp_path, {"oelm-freeze": told}, {"H": hypothesis(FASTER, rule, margin)})
    assert statuses(results) == {"H": status}


def test_without_a_bench_of_both_arms_the_records_judge(tmp_path):
    hypotheses = {
        "timed": hypothesis(FASTER, "below", 1.0),
        "not timed": hypothesis("step_seconds(freeze-only) / step_seconds(baseline)", "below", 1.0),
        "a difference": hypothesis("step_seconds(oelm-freeze) - step_seconds(baseline)", "below", 0.0),
        "whole": hypothesis("training_seconds(oelm-freeze) / training_seconds(baseline)", "below", 1.0),
    }
    results = timed(tmp_path, {"oelm-freeze": 0.95}, hypotheses)
    assert {one.hypothesis.name: one.timed for one in results.hypotheses} == {
        "timed": True,
        "not timed": False,
        "a difference": False,
        "whole": False,
    }


@pytest.mark.parametrize(("nofreeze", "status"), [(1.0, "supported"), (0.952, "inconclusive")])
def test_h3_of_the_shipped_studies_is_between_two_arms_of_the_bench(tmp_path, nofreeze, status):
    """Both were measured against the baseline, and 0.95 is faster than it in either case."""
    raw = load_study("gpt-tinystories-fair").to_dict()["hypotheses"]
    study = text_study_of(arms=ARMS, seeds=[0, 1], hypotheses={"H3": raw["H3"]})
    folder = make_text_runs(tmp_path, study)
    told = {"oelm-freeze": 0.95, "oelm-nofreeze": nofreeze}
    write_bench(folder, study, told)
    if nofreeze < 1:  # it freezes nothing; its own speed-up is not what is asked here
        edited(folder, lambda data: data["arms"]["oelm-nofreeze"].update(at_most=0.08))
    (one,) = load(folder).hypotheses
    assert (one.status, one.timed) == (status, True)
    assert one.value == pytest.approx(0.95 / nofreeze)


@pytest.mark.parametrize(("told", "status"), [(0.985, "supported"), (1.0, "inconclusive"), (1.015, "refuted")])
def test_the_ratio_that_was_taken_of_both_arms_judges(tmp_path, told, status):
    """Their ratios to the baseline divide to 0.98, with an interval that holds 1."""
    rule = hypothesis("step_seconds(oelm-freeze) / step_seconds(freeze-only)", "below", 1.0)
    study = study_of(seeds=[0, 1, 2], hypotheses={"H3": rule})
    folder = make_runs(tmp_path, study, **SMALL)
    arms = {"oelm-freeze": ratio(0.95, half=0.03), "freeze-only": ratio(0.95 / 0.98, half=0.03)}
    (divided,) = load(write_bench(folder, study, arms)).hypotheses
    assert divided.status == "inconclusive"
    pairs = [between("oelm-freeze", "freeze-only", ratio(told, half=0.01, rounds=40))]
    (one,) = load(write_bench(folder, study, arms, pairs=pairs)).hypotheses
    assert (one.status, one.value, one.n, one.timed) == (status, told, 40, True)


def test_of_few_rounds_a_corrected_p_value_is_that_of_t(tmp_path):
    """By the normal distribution it would be 0.013 and, among three, supported."""
    rules = {"H3": hypothesis(FASTER, "below", 1.0)}
    rules |= {f"H{n}": hypothesis(DIFFERENCE, "above", 0.0) for n in (4, 5)}
    few = ratio(0.96, half=math.expm1(0.0322), rounds=6)
    one = timed(tmp_path / "few", {"oelm-freeze": few}, rules).hypotheses[0]
    assert one.p_supported == pytest.approx(3 * 2 * t.sf(-math.log(0.96) / 0.0322 * t.ppf(0.975, 5), 5))
    assert one.status == "inconclusive"
    many = replace(few, rounds=10_000)
    assert timed(tmp_path / "many", {"oelm-freeze": many}, rules).hypotheses[0].status == "supported"


def test_one_round_is_one(tmp_path):
    (one,) = timed(
        tmp_path, {"oelm-freeze": ratio(0.95, rounds=1)}, {"H3": hypothesis(FASTER, "below", 1.0)}
    ).hypotheses
    assert "oelm bench, 1 round: too few" in str(one.message)


def test_faster_than_freezing_can_make_it_is_no_support(tmp_path):
    hypotheses = {"H3": hypothesis(FASTER, "below", 1.0), "cost": RULES["costs little"]}
    results = timed(tmp_path, {"oelm-freeze": 0.7}, hypotheses)
    found = {one.hypothesis.name: one for one in results.hypotheses}
    assert found["H3"].status == "invalid"
    assert "cannot be judged (SPEEDUP-ABOVE-CEILING)" in str(found["H3"].message)
    assert found["cost"].status == "supported", "an accuracy is not timed"


def test_what_is_wrong_with_the_times_of_records_does_not_concern_the_bench(tmp_path):
    """One arm always first, on another machine: it blocks their times."""

    def in_order(cell, record):
        hour = 1 if cell.arm == "baseline" else 2
        launches = (launch(time=f"2026-11-{cell.seed + 1:02}T0{hour}:00:00+0000"),)
        return replace_at(replace(record, launches=launches), "provenance.threads", 1 if cell.arm == "baseline" else 2)

    study = study_of(seeds=[0, 1, 2], hypotheses={"H3": hypothesis(FASTER, "below", 1.0)})
    folder = make_runs(tmp_path, study, change=in_order, **SMALL)
    assert statuses(load(folder)) == {"H3": "invalid"}
    assert statuses(load(write_bench(folder, study, {"oelm-freeze": 0.95}))) == {"H3": "supported"}


def test_times_share_the_five_percent_with_the_others(tmp_path):
    """Certain by itself, and not among three: with them, its p is three times as large."""
    told = {"oelm-freeze": replace(ratio(0.98), low=0.965, high=0.999)}
    alone = {"H3": hypothesis(FASTER, "below", 1.0)}
    among = alone | {f"H{n}": hypothesis(DIFFERENCE, "above", 0.0) for n in (4, 5)}
    (one,) = timed(tmp_path / "alone", told, alone).hypotheses
    both = timed(tmp_path / "among", told, among).hypotheses[0]
    assert one.status == "supported"
    assert both.p_supported == pytest.approx(3 * one.p_supported)
    assert both.status == "inconclusive"
