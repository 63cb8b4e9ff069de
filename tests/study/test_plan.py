"""Plan: which cells a study has, in which order, and what each is made with."""

import json
from dataclasses import asdict, replace

import pytest

from oelm.errors import StudyError
from oelm.study.cells import (
    Cell,
    compared_cells,
    describe_changes,
    differences,
    grid_points,
    is_nested,
    resolve_cell,
    restrict_study,
    trials_of,
    tuning_cells,
)
from oelm.study.load import study_from_dict

STUDY = {
    "study": "small",
    "version": 1,
    "recipe": {
        "model": {"name": "minilm-l6"},
        "data": {"task": "sst2", "validation": 1000},
        "budget": {"epochs": 3},
        "optimizer": {"lr": 1e-4},
    },
    "arms": {
        "a": {},
        "b": {"freeze": "qk"},
        "c": {"freeze": "qk", "overrides": {"schedule.warmup": 0.1}},
    },
    "seeds": [3, 4, 5],
    "tune": {"optimizer.lr": [1e-4, 3e-4], "batch.size": [8, 16], "seeds": [100, 101, 102]},
    "compare": {"baseline": "a", "metric": "accuracy"},
}


@pytest.fixture
def study():
    return study_from_dict(STUDY)


def test_every_second_seed_takes_the_arms_in_reverse(study):
    assert [str(cell) for cell in compared_cells(study)] == [
        *("a/seed-3", "b/seed-3", "c/seed-3"),
        *("c/seed-4", "b/seed-4", "a/seed-4"),
        *("a/seed-5", "b/seed-5", "c/seed-5"),
    ]


def test_every_arm_is_tuned_on_the_same_grid(study):
    tuning = tuning_cells(study)
    assert len(grid_points(study)) == 4
    assert len(tuning) == len(set(map(str, tuning))) == 36
    assert {cell.seed for cell in tuning} == {100, 101, 102}
    assert str(tuning[0]) == "a/tune/optimizer.lr=0.0001,batch.size=8/seed-100"
    for arm in study.arms:
        assert {cell.point for cell in tuning if cell.arm == arm} == set(grid_points(study))


def test_every_compared_seed_tunes_itself_by_default(study):
    grid = {path: values for path, values in STUDY["tune"].items() if path != "seeds"}
    nested = study_from_dict(STUDY | {"tune": grid})
    assert [is_nested(nested), is_nested(study)] == [True, False]
    assert {cell.seed for cell in tuning_cells(nested)} == set(nested.seeds)
    cell = compared_cells(nested)[0]
    assert trials_of(nested, cell) == {point: [replace(cell, point=point)] for point in grid_points(nested)}
    assert [len(trials) for trials in trials_of(study, cell).values()] == [3, 3, 3, 3]
    assert study_from_dict(nested.to_dict()) == nested


def test_a_study_without_tuning(study):
    plain = study_from_dict(STUDY | {"tune": None})
    assert (grid_points(plain), tuning_cells(plain)) == ([], [])


def test_a_cell_is_made_with_changes_and_tuned_settings(study):
    first = tuning_cells(study)[-1]
    made = resolve_cell(study, first)
    assert (made.recipe.optimizer.lr, made.recipe.batch.size) == (3e-4, 16)
    tuned = resolve_cell(study, Cell(arm="c", seed=3), tuned=(("batch.size", 8),))
    assert (tuned.recipe.batch.size, tuned.recipe.schedule.warmup, tuned.recipe.optimizer.lr) == (8, 0.1, 1e-4)
    assert resolve_cell(study, Cell(arm="b", seed=3)).recipe == study.recipe
    assert made.tuning == dict(first.point)


def test_a_part_of_a_study(study):
    part = restrict_study(study, arms=["c", "a"], seeds=[4])
    assert [str(cell) for cell in compared_cells(part)] == ["a/seed-4", "c/seed-4"]
    assert restrict_study(study) == study


def test_differences_are_all_that_differs(study):
    assert differences(study) == {
        "freeze": {"a": "none", "b": "qk", "c": "qk"},
        "schedule.warmup": {"a": 0.0, "b": 0.0, "c": 0.1},
    }


def test_with_an_adapter_an_arm_does_not_train_all():
    arms = {"a": {}, "b": {"adapter": {"kind": "lora"}}, "c": {"trains": "head"}}
    found = differences(study_from_dict({**STUDY, "arms": arms}))
    assert found["trains"] == {"a": "all", "b": "adapter", "c": "head"}


def test_what_changed_since_a_cell_was_started(study):
    cell = Cell(arm="c", seed=3)
    before = asdict(resolve_cell(study, cell))
    assert describe_changes(before, asdict(resolve_cell(study, cell))) == []

    def with_recipe(**parts):
        raw = json.loads(json.dumps(STUDY))
        for name, fields in parts.items():
            raw["recipe"][name] = raw["recipe"].get(name, {}) | fields
        return asdict(resolve_cell(study_from_dict(raw), cell))

    assert describe_changes(before, with_recipe(checkpoint={"every": 7}, data={"path": "elsewhere"})) == []
    assert describe_changes(before, with_recipe(optimizer={"lr": 2e-4})) == [
        "recipe.optimizer.lr: was 0.0001, is 0.0002"
    ]
    changed = describe_changes(before, with_recipe(data={"tokenizer": {"name": "x"}}))
    assert "recipe.data.tokenizer.name: was None, is 'x'" in changed


def test_a_point_that_makes_no_recipe_is_refused(study):
    with pytest.raises(StudyError, match=r"recipe\.batch\.size"):
        resolve_cell(study, Cell(arm="a", seed=1), tuned=(("batch.size", 0),))
