"""`oelm report`."""

import json

import pytest
import typer
from typer.testing import CliRunner

from made_runs import make_runs, study_of
from oelm.cli.report import report
from oelm.errors import CellError, DiskError, ReportError

pytestmark = pytest.mark.slow

app = typer.Typer()
app.command()(report)


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=True)


@pytest.fixture
def runs(tmp_path):
    for name in ("one", "two"):
        make_runs(tmp_path, study_of(study=name, seeds=[0, 1]), examples=200)
    return tmp_path


@pytest.mark.usefixtures("undrawn")
def test_one_report_a_study(runs):
    result = run(runs)
    assert result.exit_code == 0, result.output
    for name in ("one", "two"):
        assert (runs / name / "report.html").is_file()
        assert str(runs / name / "report.html") in result.stdout
    assert result.stdout.count("Against baseline in accuracy") == 2


def test_formats_languages_and_another_folder(runs, tmp_path):
    out = tmp_path / "out"
    result = run(runs / "one", "--format", "html, md,pdf", "--lang", "zh", "--out", out, "--json")
    assert result.exit_code == 0, result.output
    (made,) = json.loads(result.stdout)
    assert made["study"] == "one"
    assert "与 baseline 相比" in made["text"]
    assert made["verdict"] in ("better", "worse", "equivalent", "inconclusive", "invalid", "mixed")
    assert {"arm", "verdict", "estimate", "interval", "p_differs", "n", "margin"} <= made["comparisons"][0].keys()
    assert {path.name for path in out.iterdir()} == {"report.html", "report.zh.md", "report.zh.pdf", "report-figures"}
    assert [*map(str, (out / "report.html", out / "report.zh.md", out / "report.zh.pdf"))] == made["files"]
    assert not list((runs / "one").glob("report*"))


@pytest.mark.usefixtures("undrawn")
def test_several_studies_elsewhere_do_not_overwrite_each_other(runs, tmp_path):
    assert run(runs, "--out", tmp_path / "out").exit_code == 0
    assert {path.parent.name for path in (tmp_path / "out").rglob("report.html")} == {"one", "two"}


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--format", "hmtl"], "unknown report format 'hmtl'; did you mean 'html'"),
        (["--format", ","], "no report format is given"),
        (["--lang", "zhh"], "language 'zhh'; did you mean 'zh'"),
    ],
)
def test_bad_choices_are_refused_before_anything_is_read(tmp_path, args, says):
    result = run(tmp_path / "not there", *args)
    assert isinstance(result.exception, ReportError)
    assert says in str(result.exception)


def test_nothing_to_report(tmp_path):
    assert isinstance(run(tmp_path / "not there").exception, CellError)
    assert isinstance(run(tmp_path).exception, CellError)


@pytest.mark.usefixtures("undrawn")
def test_a_file_in_the_way(runs, tmp_path):
    (tmp_path / "file").write_text("")
    assert isinstance(run(runs / "one", "--out", tmp_path / "file").exception, DiskError)
