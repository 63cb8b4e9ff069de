"""What was planned counts: what was added later is exploratory, what is another now blocks the verdicts it touches."""

import json
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from made_runs import edit_sealed, make_runs, replace_at, study_of
from oelm.analysis.results import load
from oelm.analysis.text_table import results_as_dict
from oelm.cli.main import app
from oelm.errors import OelmError
from oelm.report.sections.summary import overall_verdict
from oelm.report.write import build_content
from oelm.runs.lock import LOCK_FILE, lock_study, make_lock
from oelm.study.cells import Cell
from oelm.study.load import study_from_dict

pytestmark = pytest.mark.slow

CODE = "CHANGED-AFTER-START"
SMALL = {"examples": 400, "steps": 10, "accuracy": {"baseline": 0.9, "freeze-only": 0.82, "oelm-freeze": 0.9}}
HYPOTHESIS = {
    "statement": "Freezing costs a point at most",
    "estimand": "accuracy(freeze-only) - accuracy(baseline)",
    "rule": "above",
    "margin": -0.01,
}
NEW_ARM = {"init": "keep", "freeze": "q"}


@pytest.fixture(scope="session")
def pristine(tmp_path_factory):
    """Of one arm that is worse, and one that is not, with nothing changed."""
    return make_runs(tmp_path_factory.mktemp("planned"), **SMALL)


@pytest.fixture(scope="session")
def with_hypotheses(tmp_path_factory):
    hypotheses = {"one": HYPOTHESIS, "two": HYPOTHESIS | {"margin": -0.5}}
    return make_runs(tmp_path_factory.mktemp("hypotheses"), study_of(hypotheses=hypotheses), **SMALL)


@pytest.fixture
def copied(tmp_path):
    return lambda folder: Path(shutil.copytree(folder, tmp_path / "made"))


def edit_study(folder, change):
    data = json.loads((folder / "study.json").read_text())
    change(data)
    (folder / "study.json").write_text(json.dumps(data))
    return folder


def changed(results):
    return [one for one in results.checks if one.code == CODE]


def verdicts(results):
    return {arm: one.verdict for arm, one in results.comparisons.items()}


def judged(results):
    """Every verdict with all that it rests on, but for what the checks say beside it."""
    return {arm: replace(one, issues=()) for arm, one in results.comparisons.items()}


def test_nothing_is_said_of_a_study_as_it_was_planned(pristine):
    results = load(pristine)
    assert changed(results) == []
    assert results.planned == results.study
    assert verdicts(results) == {"freeze-only": "worse", "oelm-freeze": "equivalent"}
    assert not any(one.exploratory for one in results.comparisons.values())
    assert CODE not in str(results)


# -- changed ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda data: data["compare"].update(min_effect=0.2), "compare.min_effect: was 0.02"),
        (lambda data: data["compare"].update(metric="loss"), "compare.metric: was 'accuracy'"),
        (lambda data: data["compare"].update(baseline="freeze-only"), "compare.baseline: was 'baseline'"),
        (lambda data: data["recipe"]["optimizer"].update(lr=0.5), "recipe.optimizer.lr: was 0.0001"),
        (lambda data: data.update(tune={"optimizer.lr": [1e-4, 1e-3]}), "tune.grid.optimizer.lr: was None"),
        (lambda data: data.update(seeds=[0, 1, 2]), "seeds: was [0, 1, 2, 3, 4]"),
    ],
)
def test_what_touches_all_blocks_all_and_the_plan_stays(pristine, copied, change, says):
    whole, results = load(pristine), load(edit_study(copied(pristine), change))
    assert verdicts(results) == {"freeze-only": "invalid", "oelm-freeze": "invalid"}
    assert (results.study.seeds, results.study.compare) == (whole.study.seeds, whole.study.compare)
    assert results.values("freeze-only", "accuracy") == whole.values("freeze-only", "accuracy"), "nothing is lost"
    (found,) = changed(results)
    assert says.replace(": was ", " was ") in f"{found.where} {found.message}"
    assert str(results).splitlines()[2].split()[:2] == ["invalid", CODE], "above the table"


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda data: data["arms"].pop("freeze-only"), "arms.freeze-only"),
        (lambda data: data["arms"]["freeze-only"].update(freeze="q"), "arms.freeze-only.treatment.freeze"),
        (
            lambda data: data["arms"]["freeze-only"].update(overrides={"max_grad_norm": 2.0}),
            "arms.freeze-only.overrides.max_grad_norm",
        ),
    ],
)
def test_what_touches_an_arm_blocks_that_arm(pristine, copied, change, path):
    results = load(edit_study(copied(pristine), change))
    assert verdicts(results)["freeze-only"] == "invalid"
    assert str(results.comparisons["oelm-freeze"]) == str(load(pristine).comparisons["oelm-freeze"]), (
        "of the same family"
    )
    assert path in {place for one in changed(results) for place in one.places}


@pytest.mark.parametrize(
    "change",
    [
        lambda data: data["hypotheses"]["one"].update(margin=-0.2),
        lambda data: data["hypotheses"]["one"].update(rule="below"),
        lambda data: data["hypotheses"].pop("one"),
    ],
)
def test_what_touches_a_hypothesis_blocks_that_hypothesis(with_hypotheses, copied, change):
    whole, results = load(with_hypotheses), load(edit_study(copied(with_hypotheses), change))
    assert [one.status for one in whole.hypotheses] == ["refuted", "supported"]
    assert [one.status for one in results.hypotheses] == ["invalid", "supported"]
    assert results.hypotheses[0].hypothesis == whole.hypotheses[0].hypothesis, "judged as it was planned"
    assert CODE in str(results.hypotheses[0])
    assert verdicts(results) == verdicts(whole), "no comparison hangs on it"


def test_it_is_first_in_the_report_and_in_check(pristine, copied):
    folder = edit_study(copied(pristine), lambda data: data["compare"].update(min_effect=0.2))
    question = build_content(load(folder)).sections[0]
    assert "compare.min_effect" in question.blocks[0].items[0].en
    assert question.blocks[0].items[0].zh
    checked = CliRunner().invoke(app, ["check", str(folder)])
    assert (checked.exit_code, checked.stdout.splitlines()[1].split()[:2]) == (1, ["invalid", CODE])


# -- added -----------------------------------------------------------------------------------------------------------


def test_an_arm_that_was_added_is_exploratory_and_in_no_family(pristine, copied):
    before, folder = load(pristine), copied(pristine)
    arms = {name: arm.treatment.to_dict() for name, arm in before.study.arms.items()} | {"new": NEW_ARM}
    _, new = make_runs(folder.parent / "more", study_of(arms=arms), **SMALL), folder / "new"
    shutil.copytree(folder.parent / "more" / "made" / "new", new)
    digest = before.lock.digest
    for name in ("cell.json", "record.json"):
        for path in new.rglob(name):
            edit_sealed(path, lambda data: data["start"].update(lock=digest))
    results = load(edit_study(folder, lambda data: data["arms"].update(new=NEW_ARM)))
    assert results.planned == before.study
    assert {arm: judged(results)[arm] for arm in before.comparisons} == judged(before)
    added = results.comparisons["new"]
    assert (added.family, added.exploratory.key) == (1, "exploratory-added")
    assert results_as_dict(results)["arms"]["new"]["comparison"]["exploratory"] is True
    assert "\nExploratory for new: it was added after the first cell was started.\n" in str(results), "and no other"
    assert "Exploratory for new: it was added" in overall_verdict(results).text.en
    (note,) = changed(results)
    assert (note.severity, str(note.message)) == (
        "note",
        "added after the first cell was started, and so exploratory: arms new",
    )


def test_seeds_that_were_added_are_in_no_verdict(tmp_path):
    """Identical arms would be found different in 10 to 17 % of studies by adding seeds until they are."""
    more = make_runs(tmp_path, study_of(seeds=[0, 1, 2, 3, 4, 5, 6]), **SMALL)
    digest = make_lock(study_of()).digest
    (more / "lock.json").unlink()
    lock_study(more, study_of())
    for name in ("cell.json", "record.json"):
        for path in more.rglob(name):
            edit_sealed(path, lambda data: data["start"].update(lock=digest))
    results, before = load(more), load(make_runs(tmp_path / "before", **SMALL))
    assert sorted(results.values("baseline", "accuracy")) == [0, 1, 2, 3, 4, 5, 6]
    assert judged(results) == judged(before)
    assert results.mean("freeze-only", "accuracy") == before.mean("freeze-only", "accuracy")
    (note,) = changed(results)
    assert "seeds 5, 6 (in no verdict)" in str(note.message)
    row = next(line for line in str(results).splitlines() if line.startswith("freeze-only "))
    assert row in str(before), "as many seeds as its mean is of"
    assert build_content(results).sections, "differences on all metrics are of the planned seeds too"


def test_an_arm_of_which_only_an_added_seed_has_a_number_is_not_drawn(tmp_path):
    def change(cell, record):
        failed = cell.arm == "freeze-only" and cell.seed < 2
        return replace(record, status="diverged", test={}) if failed else record

    make_runs(tmp_path, study_of(seeds=[0, 1]), change=change, **SMALL)
    results = load(make_runs(tmp_path, study_of(seeds=[0, 1, 2]), change=change, **SMALL))
    assert (list(results.values("freeze-only", "accuracy")), results.mean("freeze-only", "accuracy")) == ([2], None)
    content = build_content(results)
    assert "2 seeds each" in str(content.sections[0].blocks), "as planned"


def test_a_hypothesis_that_was_added_is_exploratory(with_hypotheses, pristine, copied):
    late = HYPOTHESIS | {"estimand": "accuracy(oelm-freeze) - accuracy(baseline)", "margin": -0.1}
    results = load(edit_study(copied(with_hypotheses), lambda data: data["hypotheses"].update(late=late)))
    assert [str(one) for one in results.hypotheses[:2]] == [str(one) for one in load(with_hypotheses).hypotheses]
    added = results.hypotheses[2]
    assert (added.status, added.family, added.exploratory.key) == ("supported", 1, "exploratory-added")
    assert "exploratory: it was added after the first cell was started" in str(added)


def test_hypotheses_after_the_fact_make_the_comparisons_no_less_confirmatory(pristine, copied):
    results = load(edit_study(copied(pristine), lambda data: data.update(hypotheses={"late": HYPOTHESIS})))
    assert not any(one.exploratory for one in results.comparisons.values())
    assert [one.exploratory.key for one in results.hypotheses] == ["exploratory-added"]


# -- the lock itself, and the cells ----------------------------------------------------------------------------------


def test_a_lock_that_was_edited_disagrees_with_the_cells(pristine, copied):
    """Also where checksum and study were made to fit."""
    folder = edit_study(copied(pristine), lambda data: data["compare"].update(min_effect=0.2))
    edit_sealed(folder / "lock.json", lambda data: data["compare"].update(min_effect=0.2))
    results = load(folder)
    assert verdicts(results) == {"freeze-only": "invalid", "oelm-freeze": "invalid"}
    (found,) = changed(results)
    assert (found.message.key, found.arms) == ("other-lock", ("baseline", "freeze-only", "oelm-freeze"))


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_text(path.read_text()[:300]),
        lambda path: path.unlink(),
        lambda path: edit_sealed(path, lambda data: data.update(study="another")),
        lambda path: edit_sealed(path, lambda data: data["compare"].update(baseline="nobody")),
    ],
    ids=["half", "gone", "another", "senseless"],
)
def test_a_lock_that_is_lost_loses_nothing_where_the_study_is_what_the_cells_name(pristine, copied, damage):
    folder = copied(pristine)
    damage(folder / "lock.json")
    results = load(folder)
    assert verdicts(results) == verdicts(load(pristine))
    assert [out.where for out in results.excluded] == ["lock.json"]
    assert "lock.json" in {place for one in results.checks if one.code == "INCOMPLETE" for place in one.places}
    edit_study(folder, lambda data: data["compare"].update(min_effect=0.2))
    assert verdicts(load(folder)) == {"freeze-only": "invalid", "oelm-freeze": "invalid"}, "and is no way around it"


def test_a_damaged_lock_without_a_study_is_one_error(pristine, copied):
    folder = copied(pristine)
    (folder / "study.json").unlink()
    (folder / "lock.json").write_text("{")
    with pytest.raises(OelmError, match=r"lock\.json is damaged"):
        load(folder)
    assert CliRunner().invoke(app, ["check", str(folder)]).exit_code != 0


@pytest.mark.parametrize("other", ["", "0" * 64])
def test_a_cell_of_another_plan_or_of_none(tmp_path, other):
    def change(cell, record):
        return replace_at(record, "start.lock", other) if cell == Cell(arm="oelm-freeze", seed=1) else record

    results = load(make_runs(tmp_path, change=change, **SMALL))
    assert verdicts(results) == {"freeze-only": "worse", "oelm-freeze": "invalid"}
    assert str(changed(results)[0].message).startswith("1 of its cells were started under another lock")


def test_a_record_that_names_another_plan_than_its_cell_is_damaged(pristine, copied):
    folder = copied(pristine)
    edit_sealed(folder / "baseline/seed-0/record.json", lambda data: data["start"].update(lock="0" * 64))
    assert "names another lock" in {out.where: str(out.why) for out in load(folder).excluded}["baseline/seed-0"]


def test_the_plan_is_the_one_in_the_file(pristine):
    lock = LOCK_FILE.read(pristine)
    assert asdict(lock) == asdict(make_lock(study_from_dict(json.loads((pristine / "study.json").read_text()))))
    assert {record.start.lock for record in load(pristine).records.values()} == {lock.digest}
