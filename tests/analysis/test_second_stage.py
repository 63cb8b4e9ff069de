"""A planned second stage: each look has half of the 5 %; what the first has decided stays, all seeds judge the rest."""

import json
import shutil
from dataclasses import replace

import pytest

from made_runs import make_runs, seal_files, study_of
from oelm.analysis.checks.design import check_study
from oelm.analysis.design import planned_design
from oelm.analysis.estimands import measure_estimand
from oelm.analysis.results import load
from oelm.analysis.stats.power import decidable
from oelm.analysis.verdicts import compare_arms
from oelm.errors import StudyError
from oelm.launch.study_run import open_run
from oelm.runs.lock import lock_study
from oelm.study.cells import Cell
from oelm.text.messages import translate

HYPOTHESES = {
    "early": {
        "statement": "It costs a point at most",
        "estimand": "accuracy(freeze-only) - accuracy(baseline)",
        "rule": "above",
        "margin": -0.01,
    },
    "late": {
        "statement": "It gains",
        "estimand": "accuracy(oelm-freeze) - accuracy(baseline)",
        "rule": "above",
        "margin": 0,
    },
}
COMPARE = {"baseline": "baseline", "metric": "accuracy", "min_effect": 0.004}
PLANNED = study_of(second_stage=[5, 6, 7, 8, 9], hypotheses=HYPOTHESES, compare=COMPARE)
# One arm that is clearly worse, and one whose small gain five seeds do not show.
RUNS = {"examples": 1000, "steps": 10, "accuracy": {"baseline": 0.85, "freeze-only": 0.75, "oelm-freeze": 0.862}}
RUNS |= {"spread": 0.005}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    return load(make_runs(tmp_path_factory.mktemp("first"), PLANNED, **RUNS))


@pytest.fixture(scope="module")
def second(tmp_path_factory):
    return load(make_runs(tmp_path_factory.mktemp("second"), PLANNED, second_stage=True, **RUNS))


def test_the_first_stage_has_half_of_the_level(first):
    assert first.sealed is None, "nobody waits for what may never run"
    one, other = first.comparisons["freeze-only"], first.comparisons["oelm-freeze"]
    assert (one.verdict, one.n, one.alpha) == ("worse", 5, 0.025)
    assert one.deciding == one.estimate.interval(1 - 0.025 / 2), "of two comparisons"
    assert "98.75 % interval" in str(one)
    assert "corrected for 2 comparisons and two stages" in str(one)
    assert (other.verdict, other.n) == ("inconclusive", 5)
    assert "the planned second stage may decide (0 of its 5 seeds are there): oelm run STUDY --second-stage" in str(
        other
    )
    assert "第二阶段" in translate(other.message).zh
    alone = load(make_runs(first.folder.parent / "alone", study_of(hypotheses=HYPOTHESES, compare=COMPARE), **RUNS))
    assert alone.comparisons["oelm-freeze"].verdict == "better", "at the whole level, and with no other look"
    assert "at the 2.5 % that each of two stages has" in str(other)
    assert alone.comparisons["oelm-freeze"].detectable < other.detectable, "power follows"
    assert alone.comparisons["oelm-freeze"].seeds_needed < other.seeds_needed
    assert alone.comparisons["oelm-freeze"].pending is None


def test_the_second_stage_decides_what_the_first_left_open(first, second):
    assert second.comparisons["freeze-only"].differences == first.comparisons["freeze-only"].differences, "stays so"
    one = second.comparisons["oelm-freeze"]
    assert (one.verdict, one.n, one.alpha) == ("better", 10, 0.025)
    assert [(judged.status, judged.n) for judged in first.hypotheses] == [("refuted", 5), ("inconclusive", 5)]
    assert [(judged.status, judged.n) for judged in second.hypotheses] == [("refuted", 5), ("supported", 10)]
    assert "the planned second stage may decide" in str(first.hypotheses[1])
    assert second.mean("oelm-freeze", "accuracy").n == 10
    assert not [issue for issue in second.checks if issue.code == "CHANGED-AFTER-START"]


def test_half_of_a_second_stage_decides_nothing_and_shows_nothing(tmp_path):
    """And an arm that is decided does not need one."""

    def change(cell, record):
        skipped = cell.arm == "freeze-only" and cell.seed > 4
        return None if skipped or cell == Cell(arm="oelm-freeze", seed=9) else record

    results = load(make_runs(tmp_path, PLANNED, second_stage=True, change=change, **RUNS))
    one = results.comparisons["oelm-freeze"]
    assert (one.verdict, one.n) == ("inconclusive", 5)
    assert "4 of its 5 seeds are there" in str(one)
    assert sorted(results.values("oelm-freeze", "accuracy")) == [0, 1, 2, 3, 4], "sealed until it is complete"
    assert sorted(results.values("baseline", "accuracy")) == [0, 1, 2, 3, 4], "of no comparison, one side alone"
    assert results.records[Cell(arm="oelm-freeze", seed=5)].test == {}
    assert not [issue for issue in results.checks if "no finite" in str(issue.message)]


def test_a_second_stage_opens_when_both_sides_are_complete(tmp_path):
    """An arm whose seeds are all there waits for the baseline, and another that is open keeps neither back."""
    absent = {Cell(arm="baseline", seed=9), Cell(arm="freeze-only", seed=9)}

    def lacking(cells):
        return make_runs(
            tmp_path, PLANNED, second_stage=True, change=lambda cell, record: None if cell in cells else record, **RUNS
        )

    results = load(lacking(absent))
    assert results.second_stage == ()
    for arm in results.arms:
        assert sorted(results.values(arm, "accuracy")) == [0, 1, 2, 3, 4]
    results = load(lacking({Cell(arm="freeze-only", seed=9)}))
    assert results.second_stage == ("baseline", "oelm-freeze")
    assert {arm: len(results.values(arm, "accuracy")) for arm in results.arms} == {
        "baseline": 10,
        "freeze-only": 5,
        "oelm-freeze": 10,
    }


def test_an_arm_that_was_added_has_a_second_stage_too(tmp_path):
    """It decides nothing, and is shown."""
    arms = {name: arm for name, arm in PLANNED.arms.items() if name != "oelm-freeze"}
    lock_study(tmp_path / PLANNED.name, replace(PLANNED, arms=arms, hypotheses=PLANNED.hypotheses[:1]))
    folder = make_runs(tmp_path, PLANNED, second_stage=True, **RUNS)
    results = load(folder)
    assert results.changes.arms == ("oelm-freeze",)
    assert len(results.values("oelm-freeze", "accuracy")) == results.comparisons["oelm-freeze"].n == 10
    shutil.rmtree(folder / "oelm-freeze" / "seed-9")
    assert len(load(folder).values("oelm-freeze", "accuracy")) == 5, "when it is complete"
    assert len(load(folder).values("freeze-only", "accuracy")) == 10, "nobody waits for it"


def test_a_hypothesis_about_two_arms_waits_for_the_second_stage_of_the_baseline(tmp_path):
    about = {"statement": "Alike", "estimand": "accuracy(oelm-freeze) - accuracy(freeze-only)", "rule": "within"}
    study = study_of(second_stage=[5, 6], hypotheses={"H": {**about, "margin": 0.001}}, compare=COMPARE)
    folder = make_runs(tmp_path, study, second_stage=True, examples=100, steps=10)
    (judged,) = load(folder).hypotheses
    assert (judged.n, judged.pending) == (7, None)
    shutil.rmtree(folder / "baseline" / "seed-6")
    (judged,) = load(folder).hypotheses
    assert judged.n == 5
    assert "the planned second stage may decide (2 of its 2 seeds are there)" in str(judged)


def test_what_a_failure_counts_as_at_the_first_stage_does_not_change_by_what_ran_later(tmp_path):
    """Of losses, it is the largest that was seen: by the seeds of that look."""
    rule = {"statement": "It costs little", "estimand": "loss(freeze-only) - loss(baseline)", "rule": "below"}
    compare = {"baseline": "baseline", "metric": "loss", "min_effect": 0.01}
    study = study_of(second_stage=[5, 6], compare=compare, hypotheses={"H": {**rule, "margin": 0.1}})

    def change(cell, record):
        failed = cell == Cell(arm="freeze-only", seed=1)
        return replace(record, status="diverged", test={}) if failed else record

    folder = make_runs(tmp_path, study, second_stage=True, change=change, examples=100, steps=10)
    late = folder / "baseline" / "seed-6"
    first, *rest = (late / "steps.jsonl").read_text().splitlines()
    (late / "steps.jsonl").write_text("\n".join([json.dumps({**json.loads(first), "loss": 77.0}), *rest, ""]))
    seal_files(late)
    results = load(folder)
    for seeds, is_late in ((study.seeds, False), ((*study.seeds, 5, 6), True)):
        one = compare_arms(results, "freeze-only", against="baseline", metric="loss", seeds=seeds)
        other = measure_estimand(results, study.hypotheses[0].estimand, seeds=seeds)
        assert (one.worst == other.worst == 77) == is_late


def test_what_a_study_can_decide_is_told_for_both_stages():
    plain, staged = study_of(), study_of(seeds=[0, 1, 2], second_stage=[3, 4])
    assert (planned_design(plain).alpha, planned_design(staged).alpha) == (0.05, 0.025)
    (test,) = planned_design(staged).tests
    assert (test.seeds, test.alpha) == (5, 0.025)
    assert decidable(5, alpha=0.0125) > decidable(5, alpha=0.025)
    tight = {"baseline": "baseline", "metric": "accuracy", "min_effect": 0.004}
    found = [one for one in check_study(study_of(second_stage=[5], compare=tight)) if one.code == "UNDECIDABLE"]
    assert "6 seeds" in str(found[0].message)
    assert "share the 2.5 %" in str(found[0].message)


def test_its_cells_run_only_if_they_are_asked_for(tmp_path):
    study = study_of(seeds=[0, 1], second_stage=[2], tune={"optimizer.lr": [1e-4, 1e-3]})

    def seeds(**chosen):
        study_run = open_run(study, out=tmp_path, **chosen)
        return sorted({cell.seed for cell in study_run.tuning}), sorted({cell.seed for cell in study_run.compared})

    assert seeds() == ([0, 1], [0, 1])
    assert seeds(arms=["baseline"]) == ([0, 1], [0, 1])
    assert seeds(seeds=[0, 1, 2]) == ([0, 1, 2], [0, 1, 2])
    assert seeds(seeds=[2]) == ([2], [2])
    assert seeds(cells=["baseline/seed-2"]) == ([], [2]), "as a process that is given one cell"


@pytest.mark.parametrize("stage", [[0], [5, 5], ["x"], 7])
def test_a_second_stage_has_seeds_of_its_own(stage):
    with pytest.raises(StudyError, match="second_stage"):
        study_of(second_stage=stage)


def test_the_option(tmp_path):
    from oelm.cli.run import _with_second_stage

    assert _with_second_stage(PLANNED, None) == list(range(10))
    assert _with_second_stage(PLANNED, [5]) == [5, 6, 7, 8, 9]
    with pytest.raises(StudyError, match="has no second stage"):
        _with_second_stage(study_of(), None)
