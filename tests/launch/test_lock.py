"""The lock, as launches and plans keep to it: the first cell writes it, and a study that is another is refused."""

import json
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from made_runs import make_runs, study_of
from oelm.cli.main import app
from oelm.errors import CellError, StudyError
from oelm.launch.study_run import open_run, run_one_cell
from oelm.runs.lock import lock_study, make_lock, read_lock
from oelm.study.cells import Cell
from oelm.study.load import load_study
from oelm.train.progress import Progress

SMALL = {"examples": 60, "steps": 10}
HYPOTHESIS = {
    "statement": "Freezing costs a point at most",
    "estimand": "accuracy(freeze-only) - accuracy(baseline)",
    "rule": "above",
    "margin": -0.01,
}
STUDY = study_of(seeds=[0, 1], hypotheses={"one": HYPOTHESIS})


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The study file, and its finished cells beside it."""
    folder = tmp_path_factory.mktemp("locked")
    make_runs(folder, STUDY, **SMALL)
    (folder / "made.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(STUDY.to_dict()))))
    return folder


def oelm(made, command, *words):
    return CliRunner().invoke(app, [command, str(made / "made.yaml"), "--out", str(made), *words])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("hypotheses.one.margin=-0.2", "hypotheses.one.margin: was -0.01, is -0.2"),
        ("seeds=[0]", "seeds: was [0, 1], is [0]"),
        ("tune={optimizer.lr: [1e-4, 1e-3]}", "tune.grid.optimizer.lr: was None, is [0.0001, 0.001]"),
    ],
)
def test_a_study_that_is_another_is_refused_with_what_it_was(made, change, says):
    before = (made / "made/study.json").read_bytes()
    with pytest.raises(StudyError, match="CHANGED-AFTER-START") as refused:
        open_run(load_study(made / "made.yaml", [change]), out=made)
    assert says in str(refused.value)
    assert "  try    another --out" in str(refused.value)
    assert (made / "made/study.json").read_bytes() == before, "what was planned is still what is read"


def test_what_is_added_runs_and_is_said_to_be_exploratory(made, tmp_path):
    runs = make_runs(tmp_path, STUDY, **SMALL)
    late = json.dumps(HYPOTHESIS)
    said = CliRunner().invoke(
        app, ["run", str(made / "made.yaml"), "--out", str(tmp_path), "--set", f"hypotheses.late={late}"]
    )
    assert said.exit_code == 0, said.output
    assert "added after the first cell was started, and so exploratory: hypothesis late" in said.stderr
    assert "CHANGED-AFTER-START" in said.stdout.splitlines()[2]
    assert read_lock(runs, "made") == make_lock(STUDY)


@pytest.mark.parametrize("text", ["", "{", "half"])
def test_a_damaged_lock_is_one_message_and_nothing_is_written(tmp_path, text):
    runs = make_runs(tmp_path, STUDY, **SMALL)
    whole = (runs / "lock.json").read_text()
    (runs / "lock.json").write_text(whole[:400] if text == "half" else text)
    before = {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()}
    with pytest.raises(CellError, match=r"lock\.json is damaged(?s:.*)  try    move it away"):
        open_run(STUDY, out=tmp_path)
    assert {path: path.read_bytes() for path in runs.rglob("*") if path.is_file()} == before
    (runs / "lock.json").unlink()
    assert open_run(STUDY, out=tmp_path).stages == [], "with the study as it was, it is no loss"


def test_a_lost_lock_is_no_way_to_another_plan(tmp_path):
    (make_runs(tmp_path, STUDY, **SMALL) / "lock.json").unlink()
    with pytest.raises(StudyError, match="baseline/seed-0 was started under another lock"):
        open_run(study_of(seeds=[0, 1, 2], hypotheses={"one": HYPOTHESIS}), out=tmp_path)


def test_who_comes_second_is_held_to_the_plan_of_the_first(tmp_path):
    """Two launches of two versions of a study, of which neither had seen the other."""
    study_run = open_run(study_of(seeds=[0, 1]), out=tmp_path)
    lock_study(tmp_path / "made", STUDY)
    with pytest.raises(StudyError, match=r"hypotheses\.one: was planned, is missing"):
        run_one_cell(study_run, Cell(arm="baseline", seed=0), Progress())
    assert [path.name for path in Path(tmp_path / "made").iterdir()] == ["lock.json"]


def test_a_plan_shows_what_will_be_locked(made, tmp_path):
    plain = CliRunner().invoke(app, ["plan", str(made / "made.yaml"), "--out", str(tmp_path), "--no-measure"])
    lines = plain.stdout.splitlines()
    first = lines.index("what the first cell will lock")
    shown = {line[:16].strip(): line[16:].strip() for line in lines[first + 1 : first + 8]}
    assert shown == {
        "arms": "baseline, freeze-only, oelm-freeze",
        "seeds": "0, 1",
        "metric": "accuracy against baseline, smallest effect of interest 0.02",
        "tests": "1 (hypotheses), which share the 5 %",
        "grid": "none",
        "hypothesis one": "accuracy(freeze-only) - accuracy(baseline) > -0.01",
        "sha256": make_lock(STUDY).digest,
    }
    assert "power is" not in plain.stdout


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["compare.metric=loss"], None),
        (["compare.metric=loss", "hypotheses={}"], "loss"),
        (["hypotheses.one.estimand=loss(freeze-only) / loss(baseline)"], "one"),
    ],
)
def test_a_plan_says_of_which_tests_it_knows_no_power(made, tmp_path, changes, said):
    words = ["plan", str(made / "made.yaml"), "--out", str(tmp_path), "--no-measure"]
    shown = CliRunner().invoke(app, [*words, *(word for change in changes for word in ("--set", change))]).stdout
    found = [line.partition(":")[0] for line in shown.splitlines() if line.startswith("power")]
    assert found == ([f"power is not foretold for {said}"] if said else []), shown


def test_a_plan_that_cannot_run_yet_is_shown_and_says_so(made, tmp_path):
    """As if only the time were missing, it said "no estimate of the time: ..." where `oelm run` would refuse."""
    words = ["plan", str(made / "made.yaml"), "--out", str(tmp_path), "--set", "recipe.data.path=nowhere"]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 2
    assert "baseline/seed-0" in shown.stdout
    assert "\nthis cannot run here yet: nowhere does not exist\n" in shown.stdout
    assert "estimate" not in shown.stdout
    unmeasured = CliRunner().invoke(app, [*words, "--no-measure"])
    assert (unmeasured.exit_code, "cannot run" in unmeasured.stdout) == (0, False)


def test_a_plan_shows_what_was_locked_and_how_the_study_departs_from_it(made):
    changed = oelm(made, "plan", "--no-measure", "--set", "seeds=[1, 2]").stdout
    assert "what was locked when the first cell was started" in changed
    assert "added since, and so exploratory: seed 2" in changed
    assert "CHANGED-AFTER-START seeds: was [0, 1], is [1, 2]" in changed
    data = json.loads(oelm(made, "plan", "--no-measure", "--json").stdout)
    assert (data["is_locked"], data["lock"]["sha256"], data["lock"]["tests"]) == (True, make_lock(STUDY).digest, 1)
    assert data["changes"] == {"arms": [], "seeds": [], "hypotheses": [], "changed": []}
