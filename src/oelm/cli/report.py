"""`oelm report`: the records of a study as a page, as Markdown and as a PDF."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from oelm.cli.echo import echo, plain_text, warn
from oelm.cli.options import JsonOption
from oelm.errors import OelmError
from oelm.message import Lang
from oelm.runs.layout import RUNS
from oelm.text.messages import say

if TYPE_CHECKING:
    from oelm.report.write import Format


@dataclass(frozen=True, kw_only=True)
class _WrittenReport:
    """What `--json` prints of a study."""

    study: str
    verdict: str
    text: str
    comparisons: Sequence[Mapping[str, object]]
    files: Sequence[str]


def report(
    runs: Annotated[Path, typer.Argument(help="Folder of runs, or of a study")] = RUNS,
    formats: Annotated[str, typer.Option("--format", help="Any of html, md, pdf, e.g. html,pdf")] = "html",
    lang: Annotated[str, typer.Option(help="Language to open in, en or zh")] = "en",
    out: Annotated[Path | None, typer.Option(help="Folder to write to [default: the study's]")] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of every study below a folder"""
    from oelm.report.write import check_choices
    from oelm.runs.layout import find_started_studies

    chosen = [part.strip() for part in formats.split(",") if part.strip()]
    check_choices(chosen, lang)
    folders = find_started_studies(runs)
    made, damaged = [], []
    for folder in folders:
        target = out / folder.relative_to(runs) if out is not None and len(folders) > 1 else out
        try:
            with _status(say("report-making", study=folder.name)[cast(Lang, lang)]):
                made.append(_report(folder, cast("list[Format]", chosen), cast(Lang, lang), target))
        except OelmError as error:  # one study that cannot be read does not hide the others
            damaged.append(error)
            continue
        if not as_json:
            echo("\n".join([*made[-1].files, made[-1].text]))
    if as_json:
        echo(json.dumps([asdict(one) for one in made], indent=2, ensure_ascii=False))
    if damaged:
        raise damaged[0]


def _report(folder: Path, formats: list[Format], lang: Lang, out: Path | None) -> _WrittenReport:
    from oelm.analysis.results import read_results
    from oelm.analysis.text_table import comparison_as_dict
    from oelm.report.write import build_content, write_content

    results = read_results(folder)
    content = build_content(results)
    files = write_content(content, folder, formats=formats, lang=lang, out=out)
    return _WrittenReport(
        study=content.study,
        verdict=content.verdict.kind,
        text=content.verdict.text[lang],
        comparisons=[comparison_as_dict(one) for one in results.comparisons.values()],
        files=[str(path) for path in files],
    )


@contextmanager
def _status(text: str) -> Iterator[None]:
    """A status line on a terminal, one line in a log."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(plain_text(text)):
            yield
    else:
        warn(text)
        yield
