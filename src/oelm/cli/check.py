"""`oelm check`: what is wrong with a comparison, before anything is run and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oelm.cli.compare import JsonOption, SetOption
from oelm.errors import OelmError, StudyError
from oelm.study.load import load_study

if TYPE_CHECKING:
    from oelm.analysis.flags import Flag


def check(
    what: Annotated[str, typer.Argument(help="A study file, the name of a shipped study, or a folder of runs.")],
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look for what would make a comparison unfair. Exit code 1 if something makes it invalid."""
    from oelm.analysis.flags import flag_as_dict, flags_shown

    if _is_folder(what):
        if overrides:
            raise StudyError("--set changes a study, and these are records", hint=f"oelm check {what}")
        found, damaged = _of_runs(what)
    else:
        from oelm.analysis.checks import check_study

        study = load_study(what, overrides or ())
        found, damaged = {study.name: check_study(study)}, []
    if as_json:
        typer.echo(
            json.dumps({name: [flag_as_dict(flag) for flag in flags] for name, flags in found.items()}, indent=2)
        )
    else:
        for name, flags in found.items():
            typer.echo("\n".join([f"{name}:", *(f"  {line}" for line in flags_shown(flags) or ["no check fires"])]))
    if damaged:
        raise damaged[0]  # the others have been shown
    if any(flag.severity == "invalid" for flags in found.values() for flag in flags):
        raise typer.Exit(1)


def _is_folder(what: str) -> bool:
    try:
        return Path(what).is_dir()
    except (OSError, ValueError):  # no name that a file could have
        return False


def _of_runs(runs: str) -> tuple[dict[str, list[Flag]], list[OelmError]]:
    """By study; one that cannot be read does not hide the others."""
    from oelm.analysis.results import read_results, study_folders

    found: dict[str, list[Flag]] = {}
    damaged = []
    for folder in study_folders(runs):
        try:
            found[str(folder)] = read_results(folder).checks
        except OelmError as error:
            damaged.append(error)
    if not found:
        raise damaged[0]
    return found, damaged
