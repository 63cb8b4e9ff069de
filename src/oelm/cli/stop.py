"""`oelm stop`, `oelm resume` and `oelm fetch`: cells that run somewhere."""

import sys
import time
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.compare import JsonOption
from oelm.errors import CellError, OelmError, Stopped
from oelm.launch.jobs import Job, read_jobs
from oelm.records.store import FINISHED, RUNS, STUDY

_SECONDS = 0.5  # between two looks
RunsArgument = Annotated[Path, typer.Argument(help="A folder of runs, or of a study.")]
RunsOption = Annotated[Path, typer.Option(help="A folder of runs, or of a study.")]


def stop(
    cells: Annotated[list[str], typer.Argument(help="baseline/seed-0, its folder, or all.")],
    wait: Annotated[bool, typer.Option(help="Wait until they have written their checkpoints.")] = True,
    runs: RunsOption = RUNS,
) -> None:
    """Have cells write a checkpoint and stop, wherever they run; `oelm resume` has them go on."""
    from oelm.launch.standings import chosen
    from oelm.launch.stopping import ask_to_stop, running_among
    from oelm.records.standing import status_of

    meant = [one for one in chosen(runs, cells) if status_of(one.folder) not in FINISHED]
    if not meant:
        typer.echo("nothing to stop: all of it has come to its end")
        return
    before = running_among(meant)
    asked = ask_to_stop(meant)
    left = running_among(asked)
    ran = [one for one in asked if one in before or one in left]
    left = left if wait else []
    if left:
        sys.stderr.write(f"waiting for {len(left)} of them to write their checkpoints (Ctrl-C ends the waiting)\n")
    while left:
        time.sleep(_SECONDS)
        left = running_among(left)
    told = {"stopped": len(ran), "kept from starting": len(asked) - len(ran), "asked over ssh": len(meant) - len(asked)}
    shown = "; ".join(f"{what}: {number}" for what, number in told.items() if number)
    typer.echo(f"cells {shown}. Go on with: oelm resume {runs}")


def resume(
    runs: RunsArgument = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Go on with what is missing of every study below a folder, where and how it was started last."""
    from oelm.cli.compare import started
    from oelm.launch.launch import Launch
    from oelm.launch.standings import studies_below
    from oelm.launch.where import Where
    from oelm.study.load import load_study

    folders = [(folder, job) for folder in studies_below(runs) for job in _open_jobs(read_jobs(folder))]
    if not folders:
        raise CellError(f"nothing was started below {runs}", hint="oelm compare STUDY")
    code = 0
    for folder, job in folders:
        launch = Launch(
            study=load_study(folder / STUDY),
            where=Where(**job.options["where"]),
            out=folder.parent,
            arms=job.options["arms"],
            seeds=job.options["seeds"],
        )
        if not launch.job().cells:
            typer.echo(f"{folder}: nothing is missing")
            continue
        try:
            started(launch, as_json=as_json)
        except typer.Exit as end:  # some cells did not come to a good end; the other studies go on
            code = code or end.exit_code
        except Stopped:
            raise
        except OelmError as error:
            _say(f"{folder}: {error}")
            code = 2
    if code:
        raise typer.Exit(code)


def fetch(
    runs: RunsArgument = RUNS,
    models: Annotated[bool, typer.Option("--models", help="The trained models as well.")] = False,
) -> None:
    """Bring the records of studies that run over ssh back to this machine."""
    from oelm.launch import remote
    from oelm.launch.cluster import load_cluster
    from oelm.launch.standings import studies_below
    from oelm.launch.where import SSH

    found = [(folder, job) for folder in studies_below(runs) for job in read_jobs(folder) if job.on.startswith(SSH)]
    if not found:
        raise CellError(f"nothing below {runs} was started over ssh", hint="oelm compare STUDY --on ssh://user@host")
    code = 0
    for folder, job in {(folder, job.on): (folder, job) for folder, job in found}.values():
        try:
            number = remote.fetch(job, out=folder.parent, models=models, cluster=load_cluster(), told=_say)
        except OelmError as error:
            _say(f"{folder}: {error}")
            code = 2
            continue
        typer.echo(f"{folder}: {number} of {len(job.cells)} cells from {job.on}; then: oelm report {folder}")
    if code:
        raise typer.Exit(code)


def _open_jobs(jobs: list[Job]) -> list[Job]:
    """The last job of every cell, each once, the latest first."""
    later: set[str] = set()
    found = []
    for job in reversed(jobs):
        if not later.issuperset(job.cells):
            found.append(job)
        later.update(job.cells)
    return found


def _say(text: str) -> None:
    sys.stderr.write(text + "\n")
