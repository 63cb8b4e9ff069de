"""`oelm stop`, `oelm resume` and `oelm fetch`: cells that run somewhere."""

import time
from typing import Annotated

import typer

from oelm.cli.echo import echo, warn
from oelm.cli.options import JsonOption, RunsArgument, RunsOption, TrustOption, trust_if
from oelm.errors import CellError, OelmError, Stopped
from oelm.runs.jobs import Job, read_jobs
from oelm.runs.layout import FINISHED, RUNS, STUDY, find_study_folders

_SECONDS = 0.5  # between two looks


def stop(
    cells: Annotated[list[str], typer.Argument(help="Cells, e.g. baseline/seed-0, their folders, or all")],
    wait: Annotated[bool, typer.Option(help="Wait for the checkpoints")] = True,
    runs: RunsOption = RUNS,
    trust: TrustOption = False,
) -> None:
    """Checkpoint and stop cells, wherever they run"""
    from oelm.launch.backends.dispatch import filter_running, request_stop, select_cells
    from oelm.runs.status import read_state

    trust_if(trust, runs)
    meant = [one for one in select_cells(runs, cells) if read_state(one.folder) not in FINISHED]
    if not meant:
        echo("nothing to stop: all cells are finished")
        return
    before = filter_running(meant)
    asked = request_stop(meant)
    left = filter_running(asked)
    ran = [one for one in asked if one in before or one in left]
    left = left if wait else []
    if left:
        warn(f"waiting for {len(left)} of them to write their checkpoints (Ctrl-C to stop waiting)")
    while left:
        time.sleep(_SECONDS)
        left = filter_running(left)
    counts = {
        "stopped": len(ran),
        "kept from starting": len(asked) - len(ran),
        "asked over ssh": len(meant) - len(asked),
    }
    summary = "; ".join(f"{what}: {number}" for what, number in counts.items() if number)
    echo(f"cells {summary}. To resume: oelm resume {runs}")


def resume(
    runs: RunsArgument = RUNS,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Resume what is missing, where it last ran"""
    from oelm.cli.run import launch
    from oelm.launch.backends.registry import backend_of
    from oelm.launch.study_run import open_run
    from oelm.study.load import load_study

    trust_if(trust, runs)
    folders = [(folder, job) for folder in find_study_folders(runs) for job in _open_jobs(read_jobs(folder))]
    if not folders:
        raise CellError(f"nothing was started below {runs}", hint="oelm run STUDY")
    code = 0
    for folder, job in folders:
        try:
            backend = backend_of(job)
            study = load_study(folder / STUDY)
            study_run = open_run(study, out=folder.parent, arms=job.arms, seeds=job.seeds, cells=job.named)
            if not study_run.stages:
                echo(f"{folder}: nothing is missing")
                continue
            launch(study_run, backend, as_json=as_json)
        except typer.Exit as end:  # some cells did not end well; the other studies are not affected
            code = code or end.exit_code
        except Stopped:
            raise
        except OelmError as error:
            warn(f"{folder}: {error}")
            code = 2
    if code:
        raise typer.Exit(code)


def fetch(
    runs: RunsArgument = RUNS,
    models: Annotated[bool, typer.Option("--models", help="Also the trained models")] = False,
    trust: TrustOption = False,
) -> None:
    """Copy records from ssh hosts to this machine"""
    from oelm.launch.backends.registry import backend_class, backend_of

    trust_if(trust, runs)
    jobs = [(folder, job) for folder in find_study_folders(runs) for job in read_jobs(folder)]
    found = {(folder, job.on): job for folder, job in jobs if not backend_class(job.on).shares_folder}
    if not found:
        raise CellError(f"nothing below {runs} was started over ssh", hint="oelm run STUDY --on ssh://user@host")
    code = 0
    for (folder, on), job in found.items():
        try:
            number = backend_of(job).fetch(job, study=folder, models=models, log=warn)
        except OelmError as error:
            warn(f"{folder}: {error}")
            code = 2
            continue
        echo(f"{folder}: {number} of {len(job.cells)} cells from {on}; then: oelm report {folder}")
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
