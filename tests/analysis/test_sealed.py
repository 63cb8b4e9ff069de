"""Sealed test numbers: nothing shows one before every planned cell has come to its end, and then everything does."""

import json
import shutil
from dataclasses import replace

import pytest
import yaml
from typer.testing import CliRunner

from made_runs import make_runs, score, study_of
from oelm.analysis.results import load
from oelm.analysis.text_table import results_as_dict
from oelm.cli.main import app
from oelm.report.render.markdown import figure_files, render_markdown
from oelm.report.write import build_content
from oelm.runs.record import Failure
from oelm.study.cells import Cell

pytestmark = pytest.mark.slow

# Of no validation split, and nothing that is computed from something else looks like it.
TEST = {"accuracy": 0.7351, "macro_f1": 0.7352, "loss": 1.7353}
DIGITS = ("7351", "7352", "7353", "73.5")
HYPOTHESES = {
    "value": {"statement": "Much", "estimand": "accuracy(freeze-only)", "rule": "above", "margin": 0.5},
    "count": {"statement": "Less", "estimand": "trainable(freeze-only)", "rule": "below", "margin": 22e6},
}
STUDY = study_of(seeds=[0, 1], hypotheses=HYPOTHESES)
LAST = Cell(arm="oelm-freeze", seed=1)
SMALL = {"examples": 60, "steps": 10}
SAYS = "test numbers are shown when the study is complete; missing cells: 1"


def made(folder, last, study=STUDY):
    """A study of which the last cell became this; `last` makes it from a record that is done."""

    def change(cell, record):
        record = score(record, **TEST) if cell.point is None else record
        return last(record) if cell == LAST else record

    return make_runs(folder, study, change=change, **SMALL)


@pytest.fixture(scope="module")
def partial(tmp_path_factory):
    return made(tmp_path_factory.mktemp("partial"), lambda record: None)


@pytest.fixture(scope="module")
def complete(tmp_path_factory):
    return made(tmp_path_factory.mktemp("complete"), lambda record: record)


def report_of(results):
    content = build_content(results)
    return render_markdown(content, lang="en", records=".") + "".join(
        svg or "" for svg in figure_files(content, lang="en").values()
    )


def sentences(results):
    found = [*results.comparisons.values(), *results.hypotheses, *(one.message for one in results.checks)]
    return "\n".join(map(str, found)) + repr(results.compare("freeze-only", metric="loss"))


SHOWN = {
    "printed": str,
    "table": lambda results: results.table().to_string() + results._repr_html_(),
    "json": lambda results: json.dumps(results_as_dict(results)),
    "sentences": sentences,
    "report": report_of,
    "part": lambda results: str(results.restricted(arms=["baseline", "freeze-only"], seeds=[0])),
}


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
def test_nothing_shows_a_test_number_before_the_end(partial, show):
    shown = show(load(partial))
    assert not [digits for digits in DIGITS if digits in shown]


@pytest.mark.parametrize("show", SHOWN.values(), ids=SHOWN)
def test_and_everything_does_afterwards(complete, show):
    assert any(digits in show(load(complete)) for digits in DIGITS)


def test_what_there_is_instead(partial, complete):
    results = load(partial)
    assert results.missing == (LAST,)
    assert results.values("baseline", "accuracy") == {}
    assert results.mean("baseline", "accuracy") is None
    assert results.predictions(Cell(arm="baseline", seed=0)) is None
    assert all(record.test == {} for record in results.records.values())
    assert results.values("baseline", "trainable") != {}, "what is no test number is there"
    assert "accuracy (validation)" in results.table().columns
    assert {one.verdict for one in results.comparisons.values()} == {"inconclusive"}
    assert [one.status for one in results.hypotheses] == ["inconclusive", "supported"]
    assert SAYS in str(results.comparisons["freeze-only"])
    assert SAYS in str(results.hypotheses[0])
    lines = str(results).splitlines()
    assert lines[2] == SAYS
    assert "accuracy, validation" in lines[4]
    assert build_content(results).verdict.text.en == SAYS
    data = results_as_dict(results)
    assert (data["sealed"]["values"], data["arms"]["baseline"]["final"]) == ({"number": 1}, {})
    assert list(data["arms"]["baseline"]["validation"]) == [0, 1]
    assert not [one for one in results.checks if "no finite" in str(one.message)]
    whole = load(complete)
    assert (whole.sealed, results_as_dict(whole)["sealed"]) == (None, None)
    assert SAYS.split(";")[0] not in str(whole)


@pytest.mark.parametrize(
    "last",
    [
        lambda record: replace(record, status="diverged", test={}, error=Failure(what="inf", traceback=None)),
        lambda record: replace(record, status="failed", test={}, error=Failure(what="no luck", traceback="")),
        lambda record: replace(record, status="audit-failed", test={}, error=Failure(what="moved", traceback="")),
    ],
    ids=["diverged", "failed", "audit failed"],
)
def test_a_cell_that_ended_badly_has_ended(tmp_path, last):
    results = load(made(tmp_path, last))
    assert results.sealed is None
    assert results.values("baseline", "accuracy") == {0: TEST["accuracy"], 1: TEST["accuracy"]}


def test_a_damaged_record_is_of_a_cell_that_has_ended(complete, tmp_path):
    folder = shutil.copytree(complete, tmp_path / "made")
    (folder / LAST.folder / "record.json").write_text("{")
    assert load(folder).sealed is None


def test_a_cell_whose_tuning_came_to_nothing_is_not_waited_for(tmp_path):
    study = study_of(seeds=[0, 1], tune={"optimizer.lr": [1e-4, 1e-3]})

    def change(cell, record):
        if (cell.arm, cell.seed) != (LAST.arm, LAST.seed):
            return record
        return None if cell.point is None else replace(record, status="failed", error=Failure(what="x", traceback=""))

    folder = make_runs(tmp_path, study, change=change, **SMALL)
    assert load(folder).sealed is None
    assert says_of(folder) == ("", {False}), "nor by who asks for the state of the cells"


def says_of(folder):
    """What `oelm status` says of test numbers, and for programs."""
    shown = CliRunner().invoke(app, ["status", str(folder)]).stdout
    data = json.loads(CliRunner().invoke(app, ["status", str(folder), "--json"]).stdout)
    said = [line for line in shown.splitlines() if "test numbers" in line]
    return "; ".join(said), {row["sealed"] for row in data}


def test_the_state_of_the_cells_is_asked_of_the_plan(partial, complete, tmp_path):
    assert says_of(partial) == (SAYS, {True})
    assert says_of(complete) == ("", {False})
    damaged = shutil.copytree(complete, tmp_path / "damaged")
    (damaged / LAST.folder / "record.json").write_text("{")
    assert says_of(damaged) == ("", {False})
    for within in ("baseline", "baseline/seed-0"):  # a part of the study does not know less than the whole
        assert says_of(partial / within) == (SAYS, {True})
        assert says_of(complete / within) == ("", {False})
        assert says_of(damaged / within) == ("", {False})
    for one in (partial, complete):
        shutil.copytree(one, tmp_path / "two" / one.parent.name)
    assert says_of(tmp_path / "two")[0] == f"{partial.parent.name}: {SAYS}"
    for number, one in enumerate((partial, complete)):  # two runs of one study
        shutil.copytree(one, tmp_path / "again" / str(number) / "made")
    assert says_of(tmp_path / "again") == (SAYS, {True})


def test_added_cells_are_not_waited_for(complete, tmp_path):
    folder = shutil.copytree(complete, tmp_path / "made")
    data = json.loads((folder / "study.json").read_text())
    (folder / "study.json").write_text(json.dumps(data | {"seeds": [0, 1, 2]}))
    assert load(folder).sealed is None
    assert says_of(folder) == ("", {False})
    (folder / "study.json").write_text(json.dumps(data | {"seeds": [0]}))
    shutil.rmtree(folder / LAST.folder)
    assert load(folder).sealed is not None, "nor does what was taken away complete it"
    assert says_of(folder) == (SAYS, {True})


def test_the_commands(partial, complete):
    for words in (["status", str(partial)], ["check", str(partial)], ["report", str(partial), "--format", "md"]):
        shown = CliRunner().invoke(app, words).stdout
        assert not [digits for digits in DIGITS if digits in shown]
        assert (SAYS in shown) == (words[0] != "check"), "a check shows no numbers of arms anyway"
    assert SAYS.split(";")[0] not in CliRunner().invoke(app, ["status", str(complete)]).stdout


def test_a_report_over_several_studies(partial, tmp_path):
    other = made(tmp_path, lambda record: None, replace(STUDY, name="other"))
    words = ["report", str(partial), str(other), "--format", "md", "--out", str(tmp_path / "both")]
    assert CliRunner().invoke(app, words).exit_code == 0
    shown = (tmp_path / "both" / "report.md").read_text()
    assert SAYS in shown
    assert not [digits for digits in DIGITS if digits in shown]


@pytest.mark.parametrize("more", [[], ["--json"]])
def test_one_cell_shows_the_validation_split(complete, tmp_path, more):
    """Also where the study is complete: who looks at one cell has not asked for the study."""
    (tmp_path / "made.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(STUDY.to_dict()))))
    words = ["run", str(tmp_path / "made.yaml"), "--out", str(complete.parent), "--arm", "baseline", "--seed", "0"]
    shown = CliRunner().invoke(app, [*words, *more])
    assert shown.exit_code == 0, shown.output
    assert "validation" in shown.stdout
    assert not [digits for digits in DIGITS if digits in shown.stdout]
