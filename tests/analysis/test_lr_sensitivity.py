"""LR sensitivity: from the trials of a study, diverged ones among them."""

from dataclasses import replace
from statistics import fmean

import pytest

from made_runs import make_runs, replace_at, study_of
from oelm.analysis.across import mean_over_studies
from oelm.analysis.lr_sensitivity import lr_sensitivity
from oelm.analysis.results import load
from oelm.errors import StudyError
from oelm.study.hypothesis import parse_estimand

RATES = (1e-5, 1e-4, 1e-3)
TUNED = {"tune": {"optimizer.lr": list(RATES)}, "seeds": [0, 1, 2]}
ARMS = ("baseline", "freeze-only", "oelm-freeze")
STATEMENT = {"statement": "freezing makes training less sensitive", "rule": "below", "margin": 0.0}
ESTIMAND = "lr_sensitivity(freeze-only) - lr_sensitivity(baseline)"
HYPOTHESES = {"robust": {**STATEMENT, "estimand": ESTIMAND}}


def test_the_formula():
    assert lr_sensitivity([0.5, 0.3, 0.7], at_init=1.0) == pytest.approx(0.5 - 0.3)
    assert lr_sensitivity([0.5, 0.3, 5.0], at_init=1.0) == pytest.approx(0.6 - 0.3), "no worse than not learning at all"
    assert lr_sensitivity([0.5, 0.3, float("inf")], at_init=1.0) == pytest.approx(0.3), "a trial that diverged"
    assert lr_sensitivity([0.5, 0.5, 0.5], at_init=1.0) == 0
    assert lr_sensitivity([2.0, float("inf")], at_init=1.0) is None, "nothing learned, and so nothing best"


def with_losses(losses, *, diverged=()):
    """`losses` by arm, one a learning rate; a little apart from seed to seed, as trainings are."""

    def change(cell, record):
        if cell.point is None:
            return record
        number = RATES.index(dict(cell.point)["optimizer.lr"])
        shift = 0.01 * cell.seed * (1 + number) * (1 + ARMS.index(cell.arm))
        metrics = {**record.last_evaluation, "loss": losses[cell.arm][number] + shift}
        last = replace(record.evaluations[-1], metrics=metrics)
        record = replace(record, evaluations=(*record.evaluations[:-1], last))
        return replace(record, status="diverged") if (cell.arm, cell.seed, number) in diverged else record

    return change


STEEP, FLAT = (0.6, 0.2, 0.5), (0.30, 0.28, 0.30)
LOSSES = {"baseline": STEEP, "freeze-only": FLAT, "oelm-freeze": FLAT}


def made(root, change, **parts):
    study = study_of(**{**TUNED, **parts})
    best = dict.fromkeys(ARMS, 1)
    return load(make_runs(root, study, examples=100, steps=10, change=change, best=best, second_stage=True))


def first_loss(results, arm, seed):
    return fmean(results.steps(cell).loss[0] for cell in results.tuning if (cell.arm, cell.seed) == (arm, seed))


def test_from_the_trials_of_every_seed(tmp_path):
    results = made(tmp_path, with_losses(LOSSES, diverged={("baseline", 1, 2)}), hypotheses=HYPOTHESES)
    found = results.values("baseline", "lr_sensitivity")
    assert list(found) == [0, 1, 2]
    at_init = first_loss(results, "baseline", 1)
    assert found[0] == pytest.approx(fmean([min(loss, first_loss(results, "baseline", 0)) for loss in STEEP]) - 0.2)
    reached = [min(0.61, at_init), 0.22, at_init]
    assert found[1] == pytest.approx(fmean(reached) - 0.22), "diverged: as if nothing had been learned"
    one = results.compare("freeze-only", metric="lr_sensitivity")
    assert one.verdict == "better"
    assert not one.higher_is_better
    assert one.exploratory is not None
    assert results.hypotheses[0].status == "supported"
    assert results.hypotheses[0].value == pytest.approx(one.estimate.mean)
    assert list(results.table()["lr_sensitivity"].dropna()) == pytest.approx(
        [results.values(cell.arm, "lr_sensitivity")[cell.seed] for cell in results.records]
    )
    assert "freeze-only: LR sensitivity 0.0" in str(results)


def test_a_failing_baseline_does_not_block_it(tmp_path):
    """Which it is the estimand for: differences of quality say nothing then."""

    def change(cell, record):
        record = with_losses(LOSSES)(cell, record)
        poor = cell.arm == "baseline" and cell.point is None
        return replace_at(record, "test.final.splits.validation.accuracy", 0.5) if poor else record

    results = made(tmp_path, change)
    assert results.compare("freeze-only").verdict == "invalid"
    assert results.compare("freeze-only", metric="lr_sensitivity").verdict == "better"


def test_what_can_be_wrong_with_it_blocks_it(tmp_path):
    def change(cell, record):
        record = with_losses(LOSSES)(cell, record)
        return replace_at(record, "batches", "others") if cell.arm == "baseline" and cell.point is None else record

    results = made(tmp_path, change)
    assert results.compare("freeze-only", metric="lr_sensitivity").verdict == "invalid"


def test_a_missing_trial_leaves_it_open(tmp_path):
    def change(cell, record):
        missing = cell.arm == "baseline" and cell.seed == 2 and cell.point == (("optimizer.lr", RATES[0]),)
        return None if missing else with_losses(LOSSES)(cell, record)

    results = made(tmp_path, change)
    assert list(results.values("baseline", "lr_sensitivity")) == [0, 1]
    one = results.compare("oelm-freeze", against="freeze-only", metric="lr_sensitivity")
    assert one.n == 3, "of arms with all their trials"
    outcomes = results.compare("freeze-only", metric="lr_sensitivity").outcomes
    assert [outcome.not_run for outcome in outcomes] == [(), (2,)]


def test_an_arm_that_learns_at_no_rate_has_none(tmp_path):
    results = made(tmp_path, with_losses({**LOSSES, "baseline": (9.0, 9.0, 9.0)}))
    assert results.values("baseline", "lr_sensitivity") == {}
    one = results.compare("freeze-only", metric="lr_sensitivity")
    assert one.verdict != "worse", "failing everywhere is not robust"
    assert set(one.outcomes[1].failed) == {0, 1, 2}


def test_of_seeds_of_a_second_stage(tmp_path):
    results = made(tmp_path, with_losses(LOSSES), hypotheses=HYPOTHESES, second_stage=[3, 4])
    assert list(results.values("baseline", "lr_sensitivity")) == [0, 1, 2, 3, 4]
    one = results.compare("freeze-only", metric="lr_sensitivity")
    assert (one.n, [outcome.failed for outcome in one.outcomes]) == (5, [{}, {}])


def test_of_seeds_that_share_their_tuning(tmp_path):
    tune = {"optimizer.lr": list(RATES), "seeds": [7, 8, 9]}
    results = made(tmp_path, with_losses(LOSSES), tune=tune)
    assert list(results.values("baseline", "lr_sensitivity")) == [7, 8, 9]
    assert results.compare("freeze-only", metric="lr_sensitivity").n == 3
    assert results.table()["lr_sensitivity"].isna().all(), "no compared cell has one of its own"


def test_over_studies(tmp_path):
    both = [made(tmp_path, with_losses(LOSSES), study=name) for name in ("a", "b")]
    found = mean_over_studies(both, parse_estimand(ESTIMAND))
    assert found.status == "estimated"
    assert found.value == pytest.approx(both[0].compare("freeze-only", metric="lr_sensitivity").estimate.mean)


def test_without_a_tuned_learning_rate_there_is_none(tmp_path):
    results = load(make_runs(tmp_path, study_of(seeds=[0, 1]), examples=100, steps=10))
    with pytest.raises(StudyError, match="no lr_sensitivity") as caught:
        results.compare("freeze-only", metric="lr_sensitivity")
    assert "did not tune the learning rate" in str(caught.value)
    assert "lr_sensitivity" not in results.table()
    with pytest.raises(StudyError, match=r"hypotheses\.robust\.estimand.*unless optimizer\.lr is tuned"):
        study_of(hypotheses=HYPOTHESES)
    study_of(hypotheses=HYPOTHESES, **TUNED)
