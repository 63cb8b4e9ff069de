"""`oelm check`: what is wrong with a comparison, before anything is run and after."""

import json
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.compare import JsonOption, SetOption
from oelm.study.load import load_study


def check(
    what: Annotated[str, typer.Argument(help="A study file, the name of a shipped study, or a folder of runs.")],
    overrides: SetOption = None,
    as_json: JsonOption = False,
) -> None:
    """Look for what would make a comparison unfair. Exit code 1 if something makes it invalid."""
    from oelm.analysis.checks import check_study
    from oelm.analysis.flags import Flag, flag_as_dict, flags_shown
    from oelm.analysis.results import read_results, study_folders

    found: dict[str, list[Flag]] = {}
    if Path(what).is_dir():
        for folder in study_folders(what):
            found[str(folder)] = read_results(folder).checks
    else:
        study = load_study(what, overrides or ())
        found[study.name] = check_study(study)
    if as_json:
        typer.echo(
            json.dumps({name: [flag_as_dict(flag) for flag in flags] for name, flags in found.items()}, indent=2)
        )
    else:
        for name, flags in found.items():
            typer.echo("\n".join([f"{name}:", *(f"  {line}" for line in flags_shown(flags) or ["no check fires"])]))
    if any(flag.severity == "invalid" for flags in found.values() for flag in flags):
        raise typer.Exit(1)
