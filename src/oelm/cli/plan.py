"""`oelm plan`: what a study would do, and how long it would take."""

import json
from contextlib import nullcontext
from typing import Annotated

import typer

from oelm.cli.echo import echo
from oelm.cli.options import JsonOption, OutOption, SetOption, StudyArgument
from oelm.cli.quiet import quiet_loading
from oelm.runs.layout import RUNS
from oelm.runs.lock import lock_study
from oelm.study.load import load_study


def plan(
    study: StudyArgument,
    overrides: SetOption = None,
    out: OutOption = RUNS,
    lock: Annotated[bool, typer.Option("--lock", help="Lock it now: write lock.json, before the first cell")] = False,
    measure: Annotated[bool, typer.Option(help="Time a few steps for the estimate")] = True,
    as_json: JsonOption = False,
) -> None:
    """Show the cells, arm differences, counts and estimated time of a study

    Exit code: 0 planned, 2 not to be run here yet: data are missing, or an arm does not fit
    """
    from oelm.cli.progress import show_progress
    from oelm.launch.plan import plan as make

    loaded = load_study(study, overrides or ())
    if lock:
        from oelm.train.preflight import check_against_lock

        lock_study(out / loaded.name, loaded)
        check_against_lock(loaded, out / loaded.name)  # there may be another
    with quiet_loading() if measure else nullcontext(), show_progress(1) as progress:
        planned = make(loaded, out=out, measure=measure, progress=progress)
    echo(json.dumps(planned.to_dict(), indent=2) if as_json else str(planned))
    if planned.refused is not None:
        raise typer.Exit(2)
