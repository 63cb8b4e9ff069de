"""LEAKAGE: what the records counted in two splits, by how much it may change."""

import pytest

import oelm
from made_runs import make_runs, make_text_runs, replace_at, study_of
from oelm.facts import Overlap

pytestmark = pytest.mark.slow


def leaked(results):
    return [issue for issue in results.checks if issue.code == "LEAKAGE"]


def runs_with(folder, overlap, *, arm=None, study=None):
    def change(cell, record):
        return replace_at(record, "start.data.overlap", (overlap,)) if arm in (None, cell.arm) else record

    return oelm.load(make_runs(folder, study, change=change))


def overlap(**numbers):
    usual = {"split": "test-validation", "other": "train", "texts": 2000, "exact": 0, "near": 0, "dropped": 0}
    return Overlap(**{**usual, **numbers})


@pytest.mark.parametrize(
    ("found", "severity"),
    [
        ({"exact": 40}, "invalid"),  # 2 points, the smallest effect of interest
        ({"exact": 39}, "warn"),
        ({"near": 1500}, "warn"),
        ({"exact": 1900, "near": 20, "dropped": 1910}, "note"),
        ({"split": "validation", "exact": 1500, "texts": 1000}, "warn"),
        ({"split": "validation", "near": 9, "texts": 1000}, "note"),
        ({"other": "validation", "exact": 20}, "warn"),
        ({"other": "validation", "exact": 1}, "note"),
    ],
)
def test_how_bad_it_is(tmp_path, found, severity):
    results = runs_with(tmp_path, overlap(**found))
    (one,) = leaked(results)
    assert (one.severity, one.where, one.arms) == (severity, "", ())
    verdicts = {comparison.verdict for comparison in results.comparisons.values()}
    assert (verdicts == {"invalid"}) == (severity == "invalid")


def test_nothing_in_common_is_nothing_to_say(tmp_path):
    assert leaked(runs_with(tmp_path, overlap())) == []


def test_the_numbers_are_said(tmp_path):
    (kept,) = leaked(runs_with(tmp_path / "kept", overlap(texts=7600, exact=7376, near=12)))
    assert "7376 of 7600 texts of validation are also in train, and 12 more nearly" in str(kept.message)
    (dropped,) = leaked(runs_with(tmp_path / "dropped", overlap(texts=7600, exact=7376, near=12, dropped=7400)))
    assert "7400 texts of train were dropped" in str(dropped.message)


def test_of_one_arm_alone(tmp_path):
    """An arm may have data of its own."""
    (one,) = leaked(runs_with(tmp_path, overlap(exact=100), arm="freeze-only"))
    assert (one.where, one.arms, one.severity) == ("freeze-only", ("freeze-only",), "invalid")


def test_without_a_smallest_effect_it_is_one_in_a_hundred(tmp_path):
    study = study_of(compare={"baseline": "baseline", "metric": "accuracy"})
    (some,) = leaked(runs_with(tmp_path / "a", overlap(exact=19), study=study))
    (many,) = leaked(runs_with(tmp_path / "b", overlap(exact=20), study=study))
    assert (some.severity, many.severity) == ("warn", "invalid")


def test_of_language_models_too(tmp_path):
    def change(cell, record):
        return replace_at(record, "start.data.overlap", (overlap(texts=100, exact=1),))

    (one,) = leaked(oelm.load(make_text_runs(tmp_path, change=change)))
    assert one.severity == "invalid"
