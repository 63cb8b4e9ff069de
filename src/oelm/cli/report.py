"""`oelm report`: the records of a study as a page, as Markdown and as a PDF."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

import typer

from oelm.cli.echo import echo, plain_text, warn
from oelm.cli.options import JsonOption
from oelm.errors import OelmError, ReportError
from oelm.message import Lang
from oelm.runs.layout import RUNS, find_started_studies
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
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Folder of runs, or of a study; of several, one report over all [default: runs]"),
    ] = None,
    formats: Annotated[str, typer.Option("--format", help="Any of html, md, pdf, e.g. html,pdf")] = "html",
    lang: Annotated[str, typer.Option(help="Language to open in, en or zh")] = "en",
    out: Annotated[
        Path | None, typer.Option(help="Folder to write to [default: the study's, or the one above all]")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Write the report of every study below a folder, or one over several"""
    from oelm.report.write import check_choices

    chosen = [part.strip() for part in formats.split(",") if part.strip()]
    check_choices(chosen, lang)
    if runs is not None and len(runs) > 1:
        _report_across(runs, cast("list[Format]", chosen), cast(Lang, lang), out, as_json=as_json)
        return
    root = runs[0] if runs else RUNS
    folders = find_started_studies(root)
    made, damaged = [], []
    for folder in folders:
        target = out / folder.relative_to(root) if out is not None and len(folders) > 1 else out
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


def _report_across(runs: list[Path], formats: list[Format], lang: Lang, out: Path | None, *, as_json: bool) -> None:
    """One report over all studies of these folders. Without one of them it would be another, so none may be damaged."""
    from oelm.analysis.across_tables import tables_as_dict, tabulate_studies
    from oelm.analysis.results import read_results
    from oelm.report.sections.across import build_across_content
    from oelm.report.write import write_content

    folders = [folder for root in runs for folder in find_started_studies(root)]
    above = out or Path(os.path.commonpath([folder.absolute().parent for folder in folders]))
    if above.resolve() in [folder.resolve() for folder in folders]:
        raise ReportError(f"{above} is the folder of a study, and its own report is there", hint="--out FOLDER")
    with _status(say("report-making", study=", ".join(folder.name for folder in folders))[lang]):
        tables = tabulate_studies([read_results(folder) for folder in folders])
        content = build_across_content(tables, above)
        files = [str(path) for path in write_content(content, above, formats=formats, lang=lang)]
    if as_json:
        verdict = {"verdict": content.verdict.kind, "text": content.verdict.text[lang]}
        echo(json.dumps({**tables_as_dict(tables), **verdict, "files": files}, indent=2, ensure_ascii=False))
    else:
        echo("\n".join([*files, content.verdict.text[lang]]))


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
