"""`oelm studies`: the studies that come with oelm."""

import json
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.compare import JsonOption
from oelm.errors import StudyError, did_you_mean
from oelm.records.store import writing
from oelm.study.shipped import question_of, shipped_studies

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="The studies that come with oelm: list, show, copy.",
)
Name = Annotated[str, typer.Argument(help="The name of a shipped study.")]


@app.command()
def ls(as_json: JsonOption = False) -> None:
    """List the shipped studies and what they ask."""
    found = {name: question_of(path) for name, path in shipped_studies().items()}
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    width = max(map(len, found), default=0)
    for name, question in found.items():
        typer.echo(f"{name:<{width}}  {question}")


@app.command()
def show(name: Name) -> None:
    """Print a shipped study."""
    typer.echo(_file(name).read_text(encoding="utf-8"), nl=False)


@app.command()
def cp(
    name: Name,
    to: Annotated[Path | None, typer.Argument(help="A file or folder; the current folder by default.")] = None,
) -> None:
    """Copy a shipped study, to make it your own."""
    file = _file(name)
    target = to or Path()
    target = target / file.name if target.is_dir() else target
    if target.exists():
        raise StudyError(f"{target} is there already", hint="another name: oelm studies cp NAME FILE")
    with writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    typer.echo(f"{target}\nnow change it, its name under `study:` above all, and: oelm plan {target}")


def _file(name: str) -> Path:
    found = shipped_studies()
    if name not in found:
        raise StudyError(f"no study named '{name}' comes with oelm{did_you_mean(name, found)}", hint="oelm studies ls")
    return found[name]
