"""`oelm check`: what is wrong with a comparison, before anything is run and after."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oelm.cli.echo import echo
from oelm.cli.options import JsonOption, SetOption
from oelm.errors import OelmError, StudyError
from oelm.study.load import load_study

if TYPE_CHECKING:
    from oelm.analysis.checks.registry import Issue


def check(
    what: Annotated[str, typer.Argument(help="Study file, name of a shipped study, or folder of runs")],
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Find what makes a comparison unfair, in a study or its records

    Exit code: 0 nothing invalid, 1 something invalid, 2 could not be checked
    """
    from oelm.analysis.checks.registry import format_issues

    if _is_folder(what):
        if overrides:
            raise StudyError("--set changes a study, and these are records", hint=f"oelm check {what}")
        found, damaged = _of_runs(what)
    else:
        from oelm.analysis.checks.design import check_study

        study = load_study(what, overrides or ())
        found, damaged = {study.name: check_study(study)}, []
    if as_json:
        data = {name: [issue.to_dict() for issue in issues] for name, issues in found.items()}
        echo(json.dumps(data, indent=2))
    else:
        for name, issues in found.items():
            echo("\n".join([f"{name}:", *(f"  {line}" for line in format_issues(issues) or ["no check fires"])]))
    if damaged:
        raise damaged[0]  # the others have been printed
    if any(issue.severity == "invalid" for issues in found.values() for issue in issues):
        raise typer.Exit(1)


def _is_folder(what: str) -> bool:
    try:
        return Path(what).is_dir()
    except (OSError, ValueError):  # not the name of a file
        return False


def _of_runs(runs: str) -> tuple[dict[str, list[Issue]], list[OelmError]]:
    """By study; one that cannot be read does not hide the others."""
    from oelm.analysis.results import read_results, without_collecting
    from oelm.runs.layout import find_started_studies

    found: dict[str, list[Issue]] = {}
    damaged = []
    for folder in find_started_studies(runs):
        try:
            with without_collecting():
                found[str(folder)] = read_results(folder).checks
        except OelmError as error:
            damaged.append(error)
    if not found:
        raise damaged[0]
    return found, damaged
