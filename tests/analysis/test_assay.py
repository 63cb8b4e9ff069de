"""Whether a study could have found a difference: arms that come out alike, examples that are few or of one class."""

import numpy as np
import pytest

from made_runs import keep_predictions, make_runs, study_of, write_floor
from oelm.analysis.results import load
from oelm.runs.predictions import Predictions

pytestmark = pytest.mark.slow

ALIKE = {
    "statement": "It costs at most a point",
    "estimand": "accuracy(freeze-only) - accuracy(baseline)",
    "rule": "above",
    "margin": -0.02,
}
FEWER = {**ALIKE, "estimand": "trainable(freeze-only) / trainable(baseline)", "rule": "below", "margin": 1.1}


def found(results, code):
    return [one for one in results.checks if one.code == code]


@pytest.mark.parametrize(
    ("accuracy", "arms"),
    [
        ({}, ("freeze-only", "baseline", "oelm-freeze")),
        ({"oelm-freeze": 0.8}, None),  # the task can tell
        ({"oelm-freeze": 0.95}, ("freeze-only", "baseline")),  # that more is possible does not say that less is
        ({"oelm-freeze": 0.886}, ("freeze-only", "baseline")),  # worse, and by less than what would matter
        ({"oelm-freeze": 0.5}, None),  # nothing tells better than one that cannot learn the task at all
        ({"freeze-only": 0.8, "oelm-freeze": 0.8}, None),
    ],
)
def test_arms_that_are_alike_where_none_is_worse(tmp_path, accuracy, arms):
    results = load(make_runs(tmp_path, accuracy=accuracy))
    is_worse = any(value < 0.9 for value in accuracy.values())
    assert ("worse" in {one.verdict for one in results.comparisons.values()}) == is_worse
    assert [(one.severity, one.arms) for one in found(results, "NO-ASSAY")] == ([("note", arms)] if arms else [])
    assert all(one.verdict != "invalid" for one in results.comparisons.values())


def test_an_arm_that_is_not_shown_can_tell_as_well(tmp_path):
    part = load(make_runs(tmp_path, accuracy={"oelm-freeze": 0.8})).restricted(arms=["baseline", "freeze-only"])
    assert part.comparisons["freeze-only"].verdict == "equivalent"
    assert found(part, "NO-ASSAY") == []


@pytest.mark.parametrize(
    ("hypothesis", "fires"),
    [
        (ALIKE, True),
        ({**ALIKE, "rule": "within", "margin": 0.02}, True),
        ({**ALIKE, "rule": "above", "margin": -0.0001}, False),  # not shown
        ({**ALIKE, "estimand": "accuracy(freeze-only) / accuracy(baseline)", "margin": 0.98}, True),
        (FEWER, False),  # no question of quality
    ],
)
def test_a_hypothesis_that_no_difference_would_fulfill(tmp_path, hypothesis, fires):
    compare = {"baseline": "baseline", "metric": "accuracy"}  # without a margin nothing is equivalent
    study = study_of(hypotheses={"h": hypothesis}, compare=compare)
    issues = found(load(make_runs(tmp_path, study)), "NO-ASSAY")
    assert [one.arms for one in issues] == ([("freeze-only", "baseline")] if fires else [])


def test_a_difference_that_is_shown_needs_no_other(tmp_path):
    better = {**ALIKE, "rule": "above", "margin": 0.0}
    study = study_of(hypotheses={"h": better}, compare={"baseline": "baseline", "metric": "accuracy"})
    results = load(make_runs(tmp_path, study, accuracy={"freeze-only": 0.95, "oelm-freeze": 0.95}))
    assert results.hypotheses[0].status == "supported"
    assert found(results, "NO-ASSAY") == []


@pytest.mark.parametrize(
    ("examples", "min_effect", "told"),
    [
        (
            20,
            0.1,
            "one answer is 0.050, and chance in the examples alone moves a share by up to 0.22",
        ),
        (100, 0.02, None),
        (100, 0.005, "one answer is 0.010"),  # more than what would matter
        (400, 0.005, None),
    ],
)
def test_few_examples(tmp_path, examples, min_effect, told):
    compare = {"baseline": "baseline", "metric": "accuracy", "min_effect": min_effect}
    results = load(make_runs(tmp_path, study_of(seeds=[0, 1], compare=compare), examples=examples, steps=10))
    issues = found(results, "FEW-EXAMPLES")
    assert [(one.severity, one.arms) for one in issues] == ([("note", ())] if told else [])
    assert all(told in str(one.message) for one in issues)


@pytest.mark.parametrize(
    ("share", "metric", "told"),
    [
        (0.97, "accuracy", "97.0% of 2000 test examples are of one class"),
        (0.97, "macro_f1", None),
        (0.79, "accuracy", None),
    ],
)
def test_one_class_that_is_most_of_the_examples(tmp_path, share, metric, told):
    compare = {"baseline": "baseline", "metric": metric}
    runs = make_runs(tmp_path, study_of(seeds=[0, 1], compare=compare), steps=10)
    labels = (np.arange(2000) >= 2000 * share).astype(np.int64)
    kept = Predictions(row=np.arange(2000), label=labels, prediction=labels, loss=np.zeros(2000))
    for record in runs.glob("*/seed-*/record.json"):
        keep_predictions(record.parent, kept)
    issues = found(load(runs), "IMBALANCED")
    assert [one.severity for one in issues] == (["note"] if told else [])
    assert all(told in str(one.message) and "compare macro_f1, matthews" in str(one.message) for one in issues)


def test_without_predictions_the_simple_baseline_knows_the_classes(tmp_path):
    runs = make_runs(tmp_path, study_of(seeds=[0, 1]), steps=10)
    for file in runs.glob("*/seed-*/predictions.parquet"):
        file.unlink()
    assert found(load(runs), "IMBALANCED") == []
    write_floor(runs, accuracy=0.3, majority=0.9)
    assert "90.0% of 2000" in str(found(load(runs), "IMBALANCED")[0].message)
