"""Which cells of a study are meant: by arm, by seed, by name."""

import pytest

import tiny_study
from oelm.errors import StudyError
from oelm.launch.study_run import open_run
from oelm.study.load import study_from_dict

GRID = ["optimizer.lr=0.001", "optimizer.lr=0.003"]


@pytest.fixture
def pick(tmp_path):
    """The names of the cells that are picked, in the order they run."""
    content = tiny_study.study(tmp_path / "data")
    content["tune"] = {"optimizer.lr": [1e-3, 3e-3], "seeds": [100, 101, 102]}
    study = study_from_dict(content)

    def call(**chosen):
        study_run = open_run(study, out=tmp_path / "runs", **chosen)
        assert study_run.cells == [*study_run.tuning, *study_run.compared]
        return [str(cell) for cell in study_run.tuning], [str(cell) for cell in study_run.compared]

    return call


def test_everything_by_default(pick):
    tuning, compared = pick()
    assert (len(tuning), len(compared)) == (2 * 2 * 3, 4)


def test_a_compared_seed_needs_the_tuning_of_its_arm(pick):
    tuning, compared = pick(arms=["baseline"], seeds=[1])
    assert compared == ["baseline/seed-1"]
    assert tuning == [f"baseline/tune/{point}/seed-{seed}" for seed in (100, 101, 102) for point in GRID]


def test_a_seed_of_the_tuning_is_its_grid(pick):
    assert pick(arms=["baseline"], seeds=[100]) == ([f"baseline/tune/{point}/seed-100" for point in GRID], [])


def test_a_seed_that_tunes_itself_needs_its_own_grid_alone(tmp_path):
    content = tiny_study.study(tmp_path / "data") | {"tune": {"optimizer.lr": [1e-3, 3e-3]}}
    study_run = open_run(study_from_dict(content), out=tmp_path / "runs", arms=["baseline"], seeds=[1])
    assert [str(cell) for cell in study_run.tuning] == [f"baseline/tune/{point}/seed-1" for point in GRID]
    assert [str(cell) for cell in study_run.compared] == ["baseline/seed-1"]


def test_a_cell_that_is_named_runs_alone(pick):
    assert pick(cells=["baseline/seed-0"]) == ([], ["baseline/seed-0"])
    assert pick(cells=["baseline/seed-0", "oelm-freeze/seed-1"], arms=["baseline"]) == ([], ["baseline/seed-0"])
    point = f"baseline/tune/{GRID[0]}/seed-100"
    assert pick(cells=[point]) == ([point], [])


@pytest.mark.parametrize(
    ("chosen", "message"),
    [
        ({"arms": ["baselin"]}, "the study has no arm 'baselin'; did you mean 'baseline'?"),
        ({"arms": []}, "no arm is named"),
        ({"seeds": [7]}, "the study has no seed 7"),
        ({"cells": ["baseline/seed-7"]}, "the study has no cell 'baseline/seed-7'; did you mean 'baseline/seed-"),
        ({"cells": ["baseline/seed-0"], "seeds": [1]}, "no cell of the study has all of this"),
    ],
)
def test_what_the_study_does_not_have_is_one_message(pick, chosen, message):
    with pytest.raises(StudyError) as caught:
        pick(**chosen)
    assert message in str(caught.value)
    assert "  try    " in str(caught.value)
