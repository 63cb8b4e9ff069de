"""The documentation is true: its Python runs, and the README shows the examples as they are."""

import ast
import copy
import re
import runpy
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from made_runs import make_runs
from oelm import metrics
from oelm.cli.main import COMMANDS, app
from oelm.data.tables import find_labels
from oelm.data.tasks import TASKS
from oelm.heads import audit, layouts
from oelm.study.data_task import source_of
from oelm.study.load import load_study
from oelm.study.optimizers import OPTIMIZERS
from oelm.treatment import Treatment

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "evidence" / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
CHINESE = ROOT / "README.zh-CN.md"
EXAMPLES = ["library", "trainer", "reading"]

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def _blocks(page: Path) -> Iterator[tuple[int, str, str]]:
    """(first line, language, text) of every fenced block."""
    text = page.read_text(encoding="utf-8")
    for fence in _FENCE.finditer(text):
        yield text.count("\n", 0, fence.start(2)) + 1, fence[1], fence[2]


def _make_runs(place: Path) -> None:
    """What the quickstart would leave behind, for pages that read it."""
    make_runs(place / "runs", load_study("quickstart"))


@pytest.fixture
def own_tables() -> Iterator[None]:
    """What a page registers is forgotten after it: other tests may need it to be unknown."""
    tables: list[dict[str, Any]] = [layouts._layouts, layouts.ARRANGEMENTS, TASKS, metrics._METRICS, OPTIMIZERS]
    before = [{name: copy.copy(row) for name, row in table.items()} for table in tables]
    yield
    for table, known in zip(tables, before, strict=True):
        table.clear()
        table.update(known)


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_python_blocks_run(
    page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own_tables: None, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if "oelm.load(" in page.read_text(encoding="utf-8"):
        _make_runs(tmp_path)
    namespace: dict[str, object] = {"__name__": f"docs_{page.stem}"}
    for line, language, text in _blocks(page):
        if language == "python":
            # Empty lines in front, so that a traceback shows the line of the page.
            exec(compile("\n" * (line - 1) + text, str(page), "exec"), namespace)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_block_says_what_it_is(page: Path) -> None:
    assert {language for _, language, _ in _blocks(page)} <= {"python", "text", "console"}


@pytest.mark.parametrize("page", [*PAGES, CHINESE], ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        linked = page.parent / target if target else page
        assert linked.is_file(), target
        headings = re.findall(r"^#+ (.*)$", linked.read_text(encoding="utf-8"), re.MULTILINE)
        anchors = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in anchors, f"{target}#{anchor}"


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md"], ids=lambda page: page.name)
def test_pages_import_only_what_is_public(page: Path) -> None:
    """What users copy holds as long as the public names do."""
    for _, language, text in _blocks(page):
        if language == "python":
            assert not _inner_imports(text)


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples_import_only_what_is_public(name: str) -> None:
    assert not _inner_imports((ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8"))


def _inner_imports(code: str) -> set[str]:
    nodes = list(ast.walk(ast.parse(code)))
    found = {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)}
    found |= {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    return {name for name in found if re.match(r"oelm\.(?!models\b)", name)}


@pytest.mark.parametrize("page", [*PAGES, CHINESE], ids=lambda page: page.name)
def test_commands_and_their_options_are_there(page: Path) -> None:
    shown = "\n".join(text for _, language, text in _blocks(page) if language == "console")
    for name, rest in re.findall(r"^\$ oelm (\w+)([^#\n]*)", shown, re.MULTILINE):
        assert name in COMMANDS
        words = rest.split()
        command = typer.main.get_command(app).get_command(None, name)
        command = getattr(command, "commands", {}).get(words[0] if words else "", command)
        known = {flag for param in command.params for flag in (*param.opts, *param.secondary_opts)}
        assert {word for word in words if re.match(r"--?[a-z]", word)} <= known, name


def test_the_study_that_is_shown_is_one(tmp_path: Path) -> None:
    blocks = [text for _, language, text in _blocks(ROOT / "docs" / "studies.md") if language == "text"]
    study, hypotheses, stages, rows, own, arms, transfer = (text for text in blocks if not text.startswith("model:"))
    second_stage = stages.splitlines(keepends=True)[-1]
    file = tmp_path / "shown.yaml"
    file.write_text(study + hypotheses + second_stage, encoding="utf-8")
    shown = load_study(str(file))
    assert shown.hypotheses
    assert shown.second_stage
    file.write_text(study.partition("arms:")[0] + arms + study[study.index("tune:") :], encoding="utf-8")
    assert {"lora", "bitfit", "linear-probe"} < load_study(str(file)).arms.keys()
    (tmp_path / "reviews.csv").write_text(rows, encoding="utf-8")
    file.write_text(own.replace("reviews.csv", str(tmp_path / "reviews.csv")), encoding="utf-8")
    assert find_labels(source_of(load_study(str(file)).recipe.data)).task.labels == ("bad", "good", "so-so")
    name, after_data = study.partition("recipe:")[0], study[study.index("  budget:") : study.index("arms:")]
    recipe, arms = transfer[: transfer.index("arms:")], transfer[transfer.index("arms:") :]
    file.write_text(name + recipe + after_data + arms + study[study.index("tune:") :], encoding="utf-8")
    assert load_study(str(file)).recipe.model.from_ == "runs/gpt-mini-pretrain"


def test_parts_of_studies_that_are_shown_fit_one(tmp_path: Path) -> None:
    """Model, data and metric of every kind of task."""
    blocks = [text for _, language, text in _blocks(ROOT / "docs" / "studies.md") if language == "text"]
    whole, parts = yaml.safe_load(blocks[0]), [yaml.safe_load(text) for text in blocks if text.startswith("model:")]
    assert parts
    for part in parts:
        recipe = {**whole["recipe"], "model": part["model"], "data": part["data"]}
        study = {**whole, "recipe": recipe, "compare": whole["compare"] | part["compare"]}
        (tmp_path / "shown.yaml").write_text(yaml.safe_dump(study), encoding="utf-8")
        assert load_study(str(tmp_path / "shown.yaml")).compare.metric == part["compare"]["metric"]


@pytest.mark.parametrize("name", EXAMPLES)
def test_readme_shows_the_example(name: str) -> None:
    shown = [text for _, language, text in _blocks(ROOT / "README.md") if language == "python"]
    assert (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8") in shown


@pytest.mark.slow
@pytest.mark.parametrize("name", EXAMPLES)
def test_example_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    if name == "reading":
        _make_runs(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        runpy.run_path(str(ROOT / "examples" / f"{name}.py"), run_name="__main__")
    assert ("oelm-frames" if name == "reading" else "audit passed") in capsys.readouterr().out
    assert sorted(tmp_path.rglob("*")) == before, "an example leaves nothing behind"


@pytest.mark.parametrize(
    "part",
    [
        pytest.param(r"(?s:^```.*?^```$)", id="blocks"),
        pytest.param(r"^#+(?= )", id="headings"),
        pytest.param(r"^\|", id="rows"),
        pytest.param(r"^- ", id="bullets"),
        pytest.param(r"\]\((?!README)[^)]*\)", id="links"),
        pytest.param(r"(?<!`)`[^`\n]+`(?!`)", id="names"),
    ],
)
def test_the_chinese_readme_says_the_same(part: str) -> None:
    """The same code, links and names, and as many headings, rows and bullets."""
    english, chinese = (
        sorted(re.findall(part, page.read_text(encoding="utf-8"), re.MULTILINE))
        for page in (ROOT / "README.md", CHINESE)
    )
    assert english
    assert chinese == english


def test_each_readme_leads_to_the_other() -> None:
    assert "(README.zh-CN.md)" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert "(README.md)" in CHINESE.read_text(encoding="utf-8")


def test_every_finding_is_explained() -> None:
    source = Path(audit.__file__).read_text(encoding="utf-8")
    codes = set(re.findall(r'"([A-Z]+(?:-[A-Z]+)+)"', source))
    page = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
    assert codes
    assert not {code for code in codes if f"`{code}`" not in page}


def test_every_arrangement_and_field_is_explained() -> None:
    page = (ROOT / "docs" / "layouts.md").read_text(encoding="utf-8")
    assert not {name for name in layouts.ARRANGEMENTS if f"| `{name}` |" not in page}
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert not {name for name in Treatment.__dataclass_fields__ if f"| `{name}` |" not in readme}


def test_every_optimizer_and_its_options_are_explained() -> None:
    page = (ROOT / "docs" / "studies.md").read_text(encoding="utf-8")
    for name, entry in OPTIMIZERS.items():
        row = next(line for line in page.splitlines() if line.startswith(f"| `{name}` |"))
        assert set(re.findall(r"`(\w+): ", row)) == {field.name for field in fields(entry.options)}, name
