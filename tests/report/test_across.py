"""One report over several studies: the published tables, and what cannot be put into one."""

import hashlib
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from made_runs import make_runs, make_text_runs, study_of, text_study_of
from oelm.analysis.across_tables import tabulate_studies
from oelm.analysis.results import load
from oelm.cli.report import report
from oelm.errors import CellError, ReportError, StudyError
from oelm.format import DASH
from oelm.report.blocks import Table
from oelm.report.sections.across import build_across_content
from oelm.report.write import build_content

pytestmark = pytest.mark.slow

app = typer.Typer()
app.command()(report)
ARMS = {
    "baseline": {"init": "keep", "freeze": "none"},
    "oelm-freeze": {"init": "polar", "scale": "match", "freeze": "qk"},
}
EXAMPLES = 10_000  # so that two digits of a percentage are a whole number of answers


def run(*args):
    return CliRunner().invoke(app, [str(arg) for arg in args], catch_exceptions=True)


def study_on(task, name=None, arms=None, seeds=(0, 1, 2), **parts):
    recipe = study_of().to_dict()["recipe"]
    recipe["data"]["task"] = task
    return study_of(study=name or f"on-{task}", recipe=recipe, arms=arms or ARMS, seeds=list(seeds), **parts)


def published(root, task, baseline, treated, *, classes=2, times=None, seeds=3, examples=EXAMPLES):
    """Records of which the means are these: seeds are 0.2 points to either side of them, where there are several."""
    apart = [0.002 * (seed - (seeds - 1) / 2) for seed in range(seeds)]
    accuracy = {f"baseline/seed-{seed}": baseline + shift for seed, shift in enumerate(apart)}
    accuracy |= {f"oelm-freeze/seed-{seed}": treated - shift for seed, shift in enumerate(apart)}

    def timed(cell, record):
        seconds = dict(zip(ARMS, times, strict=True))[cell.arm] if times else 10.0
        return replace(record, seconds={**record.seconds, "training": seconds})

    study = study_on(task, seeds=range(seeds))
    options = {"spread": 0.0, "examples": examples, "steps": 5, "change": timed, "classes": classes}
    return load(make_runs(root, study, accuracy=accuracy, **options))


def table_of(studies, number=0, section="results"):
    """Of the report, as rows of text; verdicts and intervals are asked for by themselves."""
    content = build_across_content(tabulate_studies(studies), Path("/"))
    (found,) = (one for one in content.sections if one.name == section)
    table = [block for block in found.blocks if isinstance(block, Table)][number]
    titles = [column.title.en for column in table.columns]
    return [dict(zip(titles, (cell.text.en for cell in row.cells), strict=True)) for row in table.rows]


COLUMNS = ("Data set", "baseline", "oelm-freeze", "Gap (points)", "Relative gap", "Share of the baseline reached")


def shown(rows, *columns):
    return [tuple(row[column] for column in columns) for row in rows]


def test_the_published_table_of_bert(tmp_path):
    studies = [published(tmp_path, "sst2", 0.9312, 0.9128), published(tmp_path, "mnli", 0.8344, 0.8223, classes=3)]
    rows = table_of(studies)
    assert shown(rows, *COLUMNS)[:2] == [
        ("sst2", "93.12 %", "91.28 %", "-1.84", "-2.0 %", "98.0 %"),
        ("mnli", "83.44 %", "82.23 %", "-1.21", "-1.5 %", "98.5 %"),
    ]
    assert shown(rows, *COLUMNS)[2][-2:] == ("-1.7 %", "98.3 %")
    assert rows[-1]["Study"] == "mean"
    assert all(re.fullmatch(r"\[[-+]\d\.\d\d, [-+]\d\.\d\d\]", row["95 % interval"]) for row in rows)


GPT = [
    ("imdb", 0.7856, 0.8570, 2, (22 * 60 + 51, 22 * 60 + 1)),
    ("ag_news", 0.8705, 0.9274, 4, (79 * 60 + 12, 74 * 60 + 41)),
    ("xnli-en", 0.4639, 0.5799, 3, (192 * 60 + 59, 152 * 60 + 22)),
]


@pytest.fixture(scope="module")
def gpt(tmp_path_factory):
    root = tmp_path_factory.mktemp("gpt")
    return [
        published(root, task, baseline, treated, classes=classes, times=times)
        for task, baseline, treated, classes, times in GPT
    ]


def test_the_published_table_of_gpt_with_its_average(gpt):
    rows = table_of(gpt)
    assert shown(rows, *COLUMNS[:-1], "Training time") == [
        ("imdb", "78.56 %", "85.70 %", "+7.14", "+9.1 %", "-3.6 %"),
        ("ag_news", "87.05 %", "92.74 %", "+5.69", "+6.5 %", "-5.7 %"),
        ("xnli-en", "46.39 %", "57.99 %", "+11.60", "+25.0 %", "-21.0 %"),
        (DASH, DASH, DASH, "+8.14", "+13.5 %", "-10.1 %"),
    ]
    assert [row["Verdict"] for row in rows] == ["better"] * 4
    low, high = map(float, rows[-1]["95 % interval"].strip("[]").split(", "))
    assert low < 8.14 < high


def test_one_seed_as_published_gives_the_numbers_and_decides_nothing(tmp_path):
    made = [published(tmp_path, task, *values[:2], classes=values[2], seeds=1) for task, *values in GPT]
    rows = table_of(made)
    assert shown(rows, "Gap (points)", "95 % interval", "Verdict")[-1] == ("+8.14", DASH, "inconclusive")
    content = build_across_content(tabulate_studies(made), Path("/"))
    assert "on-imdb: 1 seed in common gives no interval" in str(content)


def test_interactions_between_tasks(gpt):
    rows = table_of(gpt, section="interactions")
    assert shown(rows, "Study A", "Study B", "What differs", "Gap in A", "Gap in B", "A against B") == [
        ("on-imdb", "on-ag_news", "data set", "+7.14", "+5.69", "+1.45"),
        ("on-imdb", "on-xnli-en", "data set", "+7.14", "+11.60", "-4.46"),
        ("on-ag_news", "on-xnli-en", "data set", "+5.69", "+11.60", "-5.91"),
    ]
    assert {row["Status"] for row in rows} == {DASH}


def test_an_arm_that_a_study_lacks_has_no_mean(tmp_path, gpt):
    arms = {**ARMS, "freeze-only": {"init": "keep", "freeze": "qk"}}
    other = load(make_runs(tmp_path, study_on("rotten_tomatoes", arms=arms), examples=500, steps=5))
    rows = table_of([gpt[0], other], number=1)
    assert "freeze-only" in rows[0]
    assert shown(rows, "freeze-only", "Gap (points)", "Verdict")[0] == (DASH, DASH, DASH)
    assert shown(rows, "Gap (points)", "95 % interval", "Verdict")[-1] == (DASH, DASH, "inconclusive")
    content = str(build_across_content(tabulate_studies([gpt[0], other]), Path("/")))
    assert "on-imdb has no accuracy(freeze-only) - accuracy(baseline)" in content
    assert len(table_of([gpt[0], other], section="interactions")) == 1, "of the arm that both have"


def test_one_name_for_two_treatments_is_said(tmp_path, gpt):
    arms = {**ARMS, "oelm-freeze": {"init": "orthogonal", "freeze": "qk"}}
    other = load(make_runs(tmp_path, study_on("rotten_tomatoes", arms=arms), examples=500, steps=5))
    content = str(build_across_content(tabulate_studies([gpt[0], other]), Path("/")))
    assert "oelm-freeze is not the same treatment in all studies" in content
    assert "not the same treatment" not in str(build_across_content(tabulate_studies(gpt), Path("/")))


def test_differences_too_small_to_matter_stay_so_on_average(tmp_path):
    made = []
    for task in ("sst2", "imdb"):
        study = study_on(task, compare={"baseline": "baseline", "metric": "accuracy", "min_effect": 0.03})
        made.append(load(make_runs(tmp_path, study, accuracy={"oelm-freeze": 0.895}, examples=2000, steps=5)))
    assert tabulate_studies(made).arms[0].verdict == "equivalent"
    without = study_on("ag_news", compare={"baseline": "baseline", "metric": "accuracy"})
    made.append(load(make_runs(tmp_path, without, accuracy={"oelm-freeze": 0.895}, examples=2000, steps=5)))
    assert tabulate_studies(made).arms[0].verdict in ("worse", "inconclusive"), "not all studies name a margin"


def test_perplexities(tmp_path):
    made = [
        load(make_text_runs(tmp_path, text_study_of(study=name), perplexity={"oelm-freeze": perplexity}))
        for name, perplexity in (("a", 11.0), ("b", 11.5))
    ]
    rows = table_of(made, number=1)
    assert "Gap (points)" not in rows[0], "perplexities differ by a share"
    shares = [float(row["Relative gap"].removesuffix(" %")) for row in rows]
    assert shares == pytest.approx([10.0, 15.0, 12.5], abs=0.2)
    assert rows[-1]["95 % interval"].startswith("[+1")
    assert rows[0]["Verdict"] == "worse"


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    root = tmp_path_factory.mktemp("runs")
    arms = {**study_of().to_dict()["arms"], "oelm-nofreeze": {"init": "polar", "scale": "match", "freeze": "none"}}
    for task in ("sst2", "imdb"):
        truth = {"oelm-freeze": 0.85, "freeze-only": 0.89}
        make_runs(root, study_on(task, arms=arms), accuracy=truth, examples=200, steps=5)
    return root


def test_one_report_over_several_folders(runs):
    result = run(runs / "on-sst2", runs / "on-imdb", "--format", "html,md,pdf")
    assert result.exit_code == 0, result.output
    assert "On average over 2 studies" in result.stdout
    page = (runs / "report.html").read_text()
    for words in (
        "Share of the baseline reached",
        "达到基线的比例",
        "Between studies",
        "研究之间",
        "on-sst2",
        "on-imdb",
    ):
        assert words in page
    assert page.count("<figure") == 2, "four corners of each"
    assert 'href="on-imdb"' in page
    below = re.findall(r"<tfoot>(.*?)</tfoot>", page, re.DOTALL)
    assert len(below) == 3, "of every arm"
    assert all("mean" in part and part.count("<tr") == 1 for part in below), "however the studies are sorted"
    text = (runs / "report.md").read_text()
    assert "| mean |" in text
    assert "oelm-freeze is worse than baseline" in text, "what the study itself says"
    assert (runs / "report.pdf").read_bytes().startswith(b"%PDF")
    assert {path.name for path in (runs / "report-figures").iterdir()} == {"corners-1.svg", "corners-2.svg"}
    assert not list(runs.glob("on-*/report*")), "their own reports are their own"


def test_claims_about_several_studies_are_in_the_report_over_them(tmp_path):
    """In that of one of them, a mean says which others it needs."""
    tasks = {"gpt-mini-imdb": "imdb", "gpt-mini-agnews": "ag_news"}
    made = [make_runs(tmp_path, study_on(task, name), examples=60, steps=5) for name, task in tasks.items()]
    studies = [load(folder) for folder in made]
    over_both = claims_in(build_across_content(tabulate_studies(studies), tmp_path))
    assert "the mean over gpt-mini-imdb, gpt-mini-agnews" in over_both["C11"]
    assert "needs the records of gpt-mini-imdb, gpt-mini-agnews together" in claims_in(build_content(studies[0]))["C11"]


def claims_in(content):
    (claims,) = [one for one in content.sections if one.name == "claims"]
    table = next(block for block in claims.blocks if isinstance(block, Table))
    return {row.cells[0].text.en: row.cells[3].text.en for row in table.rows}


def test_the_same_bytes_twice(runs, tmp_path):
    digests = []
    for name in ("one", "two"):
        out = tmp_path / name
        run(runs / "on-sst2", runs / "on-imdb", "--format", "html,md,pdf", "--out", out)
        files = sorted(path for path in out.rglob("*") if path.is_file())
        digests.append([(path.name, hashlib.sha256(path.read_bytes()).hexdigest()) for path in files])
    assert len(digests[0]) == 5
    assert digests[0] == digests[1]


def test_as_json(runs, tmp_path):
    result = run(runs / "on-sst2", runs / "on-imdb", "--json", "--out", tmp_path, "--lang", "zh")
    found = json.loads(result.stdout)
    assert found["studies"] == ["on-sst2", "on-imdb"]
    assert "2 项研究平均" in found["text"]
    arm = found["arms"][-1]
    gap = arm["gap"]
    assert gap["value"] == pytest.approx(sum(row["value"] for row in gap["studies"].values()) / 2)
    assert gap["interval"][0] < gap["value"] < gap["interval"][1]
    assert found["interactions"][0]["varied"] == "task"
    assert found["files"] == [str(tmp_path / "report.html")]


def test_a_folder_of_several_studies_brings_all_of_them(runs, tmp_path, gpt):
    result = run(runs, gpt[0].folder, "--json", "--out", tmp_path)
    assert isinstance(result.exception, StudyError), "it holds another study on imdb"
    assert "'on-imdb' is there twice" in str(result.exception)
    result = run(runs, gpt[1].folder, "--json", "--out", tmp_path)
    assert json.loads(result.stdout)["studies"] == ["on-imdb", "on-sst2", "on-ag_news"]


def test_what_cannot_be_put_together(runs, tmp_path):
    one = runs / "on-sst2"

    def refused(*args):
        result = run(*args, "--out", tmp_path / "out")
        assert not (tmp_path / "out").exists()
        return result.exception

    assert isinstance(refused(one, tmp_path / "nothing"), CellError)
    (tmp_path / "empty").mkdir()
    error = refused(one, tmp_path / "empty")
    assert isinstance(error, CellError)
    assert "there are no cells below" in str(error)
    assert "'on-sst2' is there twice" in str(refused(one, one))
    shutil.copytree(one, tmp_path / "copy" / "on-sst2")
    assert "'on-sst2' is there twice" in str(refused(one, tmp_path / "copy")), "a copy is the same study"
    text = make_text_runs(tmp_path, text_study_of(study="text", seeds=[0, 1]))
    error = refused(one, text)
    assert "studies with different metrics have no mean" in str(error)
    assert "text compares by perplexity" in str(error)
    compare = {"baseline": "freeze-only", "metric": "accuracy"}
    other = make_runs(tmp_path, study_of(study="other", seeds=[0, 1], compare=compare), examples=100, steps=5)
    assert "different baselines" in str(refused(one, other))
    error = run(one, runs / "on-imdb", "--out", one).exception
    assert isinstance(error, ReportError)
    assert "the folder of a study" in str(error)


def test_a_damaged_study_is_not_left_out(runs, tmp_path):
    shutil.copytree(runs, tmp_path / "runs")
    (tmp_path / "runs" / "on-imdb" / "study.json").write_text("{")
    result = run(tmp_path / "runs" / "on-sst2", tmp_path / "runs" / "on-imdb", "--out", tmp_path / "out")
    assert result.exception is not None
    assert "study.json" in str(result.exception)
    assert not (tmp_path / "out").exists()
