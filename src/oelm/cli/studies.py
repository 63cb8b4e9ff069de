"""`oelm studies`: the studies that come with oelm."""

import json
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.echo import echo
from oelm.cli.options import JsonOption
from oelm.errors import StudyError, did_you_mean
from oelm.runs.files import writing
from oelm.study.shipped import question_of, shipped_studies

studies_app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    help="List, show or copy shipped studies",
)
Name = Annotated[str, typer.Argument(help="Name of a shipped study")]


@studies_app.command("ls")
def list_studies(as_json: JsonOption = False) -> None:
    """List shipped studies and their questions"""
    found = {name: question_of(path) for name, path in shipped_studies().items()}
    if as_json:
        echo(json.dumps(found, indent=2))
        return
    width = max(map(len, found), default=0)
    for name, question in found.items():
        echo(f"{name:<{width}}  {question}")


@studies_app.command("show")
def show_study(name: Name) -> None:
    """Print a shipped study"""
    echo(_file(name).read_text(encoding="utf-8"), nl=False)


@studies_app.command("cp")
def copy_study(
    name: Name,
    to: Annotated[Path | None, typer.Argument(help="File or folder [default: current folder]")] = None,
) -> None:
    """Copy a shipped study, to change it"""
    file = _file(name)
    target = to or Path()
    target = target / file.name if target.is_dir() else target
    if target.exists():
        raise StudyError(f"{target} is there already", hint="another name: oelm studies cp NAME FILE")
    with writing(target.parent):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(file.read_text(encoding="utf-8"), encoding="utf-8")
    echo(f"{target}\nnow change it, its name under `study:` above all, and: oelm plan {target}")


def _file(name: str) -> Path:
    found = shipped_studies()
    if name not in found:
        raise StudyError(f"no study named '{name}' comes with oelm{did_you_mean(name, found)}", hint="oelm studies ls")
    return found[name]
