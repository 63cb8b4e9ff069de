"""`oelm report`: the records of a study as a page, as Markdown and as a PDF."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from oelm.cli.compare import JsonOption
from oelm.errors import OelmError
from oelm.records.store import RUNS
from oelm.words.text import Lang, say


def report(
    runs: Annotated[Path, typer.Argument(help="The folder of a study, or one that holds several.")] = RUNS,
    formats: Annotated[str, typer.Option("--format", help="Any of html, md and pdf: html,pdf.")] = "html",
    lang: Annotated[str, typer.Option(help="en or zh. The page has both, and opens in this one.")] = "en",
    out: Annotated[Path | None, typer.Option(help="Where to write; into the study's folder by default.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make the report of every study below a folder."""
    from oelm.analysis.results import study_folders
    from oelm.report.write import Format, check_choices

    chosen = [part.strip() for part in formats.split(",") if part.strip()]
    check_choices(chosen, lang)
    folders = study_folders(runs)
    made, damaged = [], []
    for folder in folders:
        target = out / folder.relative_to(runs) if out is not None and len(folders) > 1 else out
        try:
            with _saying(say("report-making", study=folder.name)[cast(Lang, lang)]):
                made.append(_report(folder, cast(list[Format], chosen), cast(Lang, lang), target))
        except OelmError as error:  # one study that cannot be read does not hide the others
            damaged.append(error)
            continue
        if not as_json:
            typer.echo("\n".join([*made[-1]["files"], made[-1]["verdict"]]))
    if as_json:
        typer.echo(json.dumps(made, indent=2, ensure_ascii=False))
    if damaged:
        raise damaged[0]


def _report(folder: Path, formats: list[Any], lang: Lang, out: Path | None) -> dict[str, Any]:
    from oelm.analysis.results import read_results
    from oelm.report.content import content_of
    from oelm.report.write import write_content

    content = content_of(read_results(folder))
    files = write_content(content, folder, formats=formats, lang=lang, out=out)
    return {
        "study": content.study,
        "verdict": content.verdict.text[lang],
        "kind": content.verdict.kind,
        "files": [str(path) for path in files],
    }


@contextmanager
def _saying(text: str) -> Iterator[None]:
    """Say what is going on: while it goes on on a terminal, as one line in a log."""
    from rich.console import Console

    console = Console(stderr=True, highlight=False)
    if console.is_terminal:
        with console.status(text):
            yield
    else:
        sys.stderr.write(f"{text}\n")
        sys.stderr.flush()
        yield
