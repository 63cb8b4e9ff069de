"""`oelm plan`: what a study would do, and how long it would take."""

import json
from typing import Annotated

import typer

from oelm.cli.compare import JsonOption, OutOption, SetOption, StudyArgument
from oelm.cli.quiet import quiet_loading
from oelm.records.store import RUNS
from oelm.study.load import load_study


def plan(
    study: StudyArgument,
    overrides: SetOption = None,
    out: OutOption = RUNS,
    measure: Annotated[bool, typer.Option(help="Do a few steps to tell how long it takes.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Show the cells of a study in their order, what differs between its arms, what is done, and the time left."""
    from oelm.cli.progress import progress
    from oelm.launch.plan import plan as make

    loaded = load_study(study, overrides or ())
    with quiet_loading(), progress(1) as watch:
        planned = make(loaded, out=out, measure=measure, watch=watch)
    typer.echo(json.dumps(planned.to_dict(), indent=2) if as_json else str(planned))
