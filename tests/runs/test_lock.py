"""Lock: what was planned is written once, whole, by whoever comes first; what departs from it is told by its path."""

import errno
import json
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from made_runs import edit_sealed, study_of
from oelm.errors import CellError
from oelm.runs.layout import LOCK
from oelm.runs.lock import LOCK_FILE, LockChanges, find_changes, lock_study, make_lock, read_lock
from oelm.study.overrides import apply_overrides

COMPARE = {"baseline": "baseline", "metric": "accuracy"}
LESS = {"optimizer.lr": [3e-5, 1e-4]}
TUNE = {"optimizer.lr": [3e-5, 1e-4, 3e-4]}
HYPOTHESIS = {
    "statement": "Free",
    "estimand": "accuracy(freeze-only) - accuracy(baseline)",
    "rule": "above",
    "margin": -0.01,
}
STUDY = study_of(tune=TUNE, second_stage=[5, 6], hypotheses={"h": HYPOTHESIS})


def with_recipe(**overrides):
    return replace(STUDY, recipe=apply_overrides(STUDY.recipe, {k.replace("__", "."): v for k, v in overrides.items()}))


def test_the_first_plan_stays(tmp_path):
    assert read_lock(tmp_path / "made", "made") is None
    first = lock_study(tmp_path / "made", STUDY)
    written = (tmp_path / "made" / LOCK).read_bytes()
    assert lock_study(tmp_path / "made", replace(STUDY, seeds=(7,))) == first == make_lock(STUDY)
    assert (tmp_path / "made" / LOCK).read_bytes() == written
    assert [path.name for path in (tmp_path / "made").iterdir()] == [LOCK], "nothing is left beside it"
    assert read_lock(tmp_path / "made", "made").digest == make_lock(STUDY).digest


def test_a_setting_that_a_later_version_adds_changes_nothing(tmp_path):
    """A lock of the time before there was `data.limit`, and one that uses it."""
    planned = lock_study(tmp_path, STUDY)

    def forget(lock):
        del lock["recipe"]["data"]["limit"]

    edit_sealed(tmp_path / LOCK, forget)
    assert read_lock(tmp_path, "made").digest == planned.digest
    assert make_lock(with_recipe(data__limit__examples=100)).digest != planned.digest


@pytest.mark.parametrize("links", [True, False])
def test_of_many_who_come_at_once_one_is_first(tmp_path, monkeypatch, links):
    if not links:

        def refuse(self, target):
            raise OSError(errno.EPERM, "no links here")

        monkeypatch.setattr(Path, "hardlink_to", refuse)
    meet, found = threading.Barrier(6), []

    def plan(number):
        meet.wait()
        # Where there are no links, all must plan the same to be sure of it.
        found.append(lock_study(tmp_path, replace(STUDY, seeds=(number if links else 0,))))

    threads = [threading.Thread(target=plan, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [read_lock(tmp_path, "made")] * 6
    assert [path.name for path in tmp_path.iterdir()] == [LOCK]


def test_words_and_what_has_no_effect_are_not_planned():
    words = replace(STUDY, notes=("new",), compare=replace(STUDY.compare, because="of this"))
    moved = with_recipe(data__path="elsewhere", checkpoint__every=7, parallel="fsdp")
    for other in (words, moved):
        assert make_lock(other).digest == make_lock(STUDY).digest
        assert find_changes(make_lock(STUDY), other) == LockChanges()


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(""),
        lambda path: path.write_text(path.read_text()[:200]),
        lambda path: path.write_text(path.read_text().replace('"min_effect": 0.02', '"min_effect": 0.01')),
        lambda path: edit_sealed(path, lambda data: data.update(format=99)),
        lambda path: edit_sealed(path, lambda data: data.update(seeds="all")),
        lambda path: edit_sealed(path, lambda data: data.update(study="another")),
    ],
    ids=["empty", "half", "digit", "format", "type", "another study"],
)
def test_a_lock_that_is_none_is_one_message(tmp_path, damage):
    lock_study(tmp_path, STUDY)
    damage(tmp_path / LOCK)
    with pytest.raises(CellError, match=r"lock\.json (is damaged|has format|is of another study)(?s:.*)  try    "):
        read_lock(tmp_path, "made")


@pytest.mark.parametrize(
    ("parts", "path", "was", "now", "about"),
    [
        ({"compare": COMPARE | {"min_effect": 0.01}}, "compare.min_effect", "0.02", "0.01", ""),
        ({"compare": COMPARE}, "compare.min_effect", "0.02", "None", ""),
        ({"tune": LESS}, "tune.grid.optimizer.lr", str(TUNE["optimizer.lr"]), "[3e-05, 0.0001]", ""),
        ({"tune": None}, "tune", "planned", "missing", ""),
        ({"seeds": [0, 1, 2, 3]}, "seeds", "[0, 1, 2, 3, 4]", "[0, 1, 2, 3]", ""),
        ({"second_stage": []}, "second_stage", "[5, 6]", "[]", ""),
        ({"seeds": [0, 1, 2, 3, 4, 5, 6], "second_stage": []}, "second_stage", "[5, 6]", "[]", ""),
        ({"hypotheses": {"h": HYPOTHESIS | {"margin": -0.02}}}, "hypotheses.h.margin", "-0.01", "-0.02", "h"),
        ({"hypotheses": {"h": HYPOTHESIS | {"statement": "x"}}}, "hypotheses.h.statement", "'Free'", "'x'", "h"),
        ({"hypotheses": {}}, "hypotheses.h", "planned", "missing", "h"),
    ],
)  # fmt: skip
def test_what_has_changed_is_told_with_what_it_was(parts, path, was, now, about):
    usual = {"tune": TUNE, "second_stage": [5, 6], "hypotheses": {"h": HYPOTHESIS}}
    found = find_changes(make_lock(STUDY), study_of(**(usual | parts)))
    assert [(one.path, one.was, one.now) for one in found.changed] == [(path, was, now)]
    assert {one.hypothesis or one.arm or "" for one in found.changed} == {about}
    assert found.added == ()


def test_arms_that_are_another_or_gone():
    arms = {name: dict(arm.treatment.to_dict()) for name, arm in STUDY.arms.items() if name != "oelm-freeze"}
    arms["freeze-only"]["freeze"] = "q"
    now = study_of(arms=arms, tune=TUNE, second_stage=[5, 6], hypotheses={"h": HYPOTHESIS})
    assert [(one.arm, str(one)) for one in find_changes(make_lock(STUDY), now).changed] == [
        ("freeze-only", "arms.freeze-only.treatment.freeze: was 'qk', is 'q'"),
        ("oelm-freeze", "arms.oelm-freeze: was planned, is missing"),
    ]


def test_a_recipe_that_is_another():
    (change,) = find_changes(make_lock(STUDY), with_recipe(optimizer__lr=1e-3)).changed
    assert str(change) == "recipe.optimizer.lr: was 0.0001, is 0.001"


def test_a_model_that_lies_elsewhere_on_another_machine_is_the_same():
    """As `--on ssh://` moves what it copies."""
    here, there = with_recipe(model__name="models/small"), with_recipe(model__name="/lab/data/small-0123456789ab")
    assert find_changes(make_lock(there), here) == LockChanges()
    for other in ("/lab/data/large-0123456789ab", "group/small"):
        (change,) = find_changes(make_lock(with_recipe(model__name=other)), here).changed
        assert change.path == "recipe.model.name"


def test_what_was_added():
    arms = {name: arm.treatment.to_dict() for name, arm in STUDY.arms.items()} | {"new": {"freeze": "k"}}
    parts = {"seeds": [0, 1, 2, 3, 4, 8], "hypotheses": {"h": HYPOTHESIS, "late": HYPOTHESIS}}
    found = find_changes(make_lock(STUDY), study_of(arms=arms, tune=TUNE, second_stage=[5, 6, 9], **parts))
    assert found == LockChanges(arms=("new",), seeds=(8, 9), hypotheses=("late",))
    assert found.added == ("arm new", "seed 8", "seed 9", "hypothesis late")


def test_it_is_plain_to_read(tmp_path):
    lock_study(tmp_path, STUDY)
    data = json.loads((tmp_path / LOCK).read_text())
    assert data["format"] == LOCK_FILE.format
    assert data["compare"] == {"baseline": "baseline", "metric": "accuracy", "min_effect": 0.02, "because": None}
    assert (data["seeds"], data["second_stage"]) == ([0, 1, 2, 3, 4], [5, 6])
    assert [one["name"] for one in data["hypotheses"]] == ["h"]
