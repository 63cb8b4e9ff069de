"""`oelm logs`: what happened in a cell, wherever it ran."""

import time
from pathlib import Path
from typing import Annotated

import typer

from oelm.errors import CellError
from oelm.launch.jobs import Job, read_jobs
from oelm.launch.where import SLURM, SSH
from oelm.records.standing import status_of
from oelm.records.store import FINISHED, LOG, RUNS

_SECONDS = 0.5  # between two looks


def logs(
    cell: Annotated[str, typer.Argument(help="baseline/seed-0, or its folder.")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on while the cell does.")] = False,
    runs: Annotated[Path, typer.Option(help="A folder of runs, or of a study.")] = RUNS,
) -> None:
    """Show what happened in a cell; with -f also what happens next."""
    from oelm.launch.standings import chosen

    found = chosen(runs, [cell])[0]
    job = _job_of(found.study, found.cell)
    if job is not None and job.on.startswith(SSH) and status_of(found.folder) not in FINISHED:
        from oelm.launch import remote
        from oelm.launch.cluster import load_cluster

        raise typer.Exit(remote.show_log(job, found.cell, follow=follow, cluster=load_cluster()))
    paths = [found.folder / LOG, *_of_slurm(found.study, found.cell)]
    if not follow and not any(path.exists() for path in paths):
        raise CellError(f"{found.name} has no log yet", hint=f"oelm status {found.study}, or: oelm logs {cell} -f")
    if follow and not paths[0].exists():
        for path in paths[1:]:  # why it could not begin
            _show(path, found.folder, follow=False)
    for path in paths if not follow else paths[:1]:
        _show(path, found.folder, follow=follow)


def _job_of(study: Path, cell: str) -> Job | None:
    """Where a cell was started last."""
    return next((job for job in reversed(read_jobs(study)) if cell in job.cells), None)


def _of_slurm(study: Path, cell: str) -> list[Path]:
    """What the batch script of the cell has said, which is more than the cell did only if it could not begin."""
    job = _job_of(study, cell)
    task = job.facts.get(cell) if job is not None and job.on == SLURM else None
    path = study / "slurm" / f"{task}.out"
    return [path] if task and path.exists() and path.stat().st_size else []


def _show(path: Path, folder: Path, *, follow: bool) -> None:
    from oelm.records.lease import holder_of

    place = 0
    while True:
        holder = holder_of(folder)
        over = not follow or (path.exists() and not (holder is not None and holder.is_alive))
        if path.exists():
            with path.open("rb") as file:
                file.seek(place)
                text = file.read()
                place += len(text)
            if text:
                typer.echo(text.decode(errors="replace"), nl=False)
        if over and (not follow or status_of(folder) != "waiting"):
            return
        time.sleep(_SECONDS)
