"""Stopping: a file in its folder asks a cell to stop, wherever it runs; what waits in a queue is taken out of it."""

from __future__ import annotations

from collections.abc import Sequence

from oelm.errors import OelmError
from oelm.launch.cluster import load_cluster
from oelm.launch.jobs import Job, read_jobs
from oelm.launch.standings import Found
from oelm.launch.where import SLURM, SSH
from oelm.records.lease import STOP, holder_of
from oelm.records.store import writing


def ask_to_stop(meant: Sequence[Found]) -> list[Found]:
    """Ask cells to stop; those whose checkpoint can be waited for. A place that does not answer keeps none from it."""
    here, problems = [], []
    for study in dict.fromkeys(one.study for one in meant):
        jobs = read_jobs(study)
        mine = [one for one in meant if one.study == study]
        last = {one: next((job for job in reversed(jobs) if one.cell in job.cells), None) for one in mine}
        stay = [one for one in mine if not _is_remote(last[one])]
        for one in stay:
            with writing(one.folder):
                one.folder.mkdir(parents=True, exist_ok=True)
                (one.folder / STOP).touch()
        here += stay
        for job in jobs:
            try:
                if job.on == SLURM:
                    _in_queue(job, [one for one in stay if one.cell in job.cells])
                elif _is_remote(job) and (there := [one for one in mine if last[one] is job]):
                    _over_ssh(job, there)
            except OelmError as error:
                problems.append(error)
    if problems:
        raise problems[0]
    return here


def running_among(found: Sequence[Found]) -> list[Found]:
    return [one for one in found if (holder := holder_of(one.folder)) is not None and holder.is_alive]


def _is_remote(job: Job | None) -> bool:
    return job is not None and job.on.startswith(SSH)


def _over_ssh(job: Job, found: list[Found]) -> None:
    from oelm.launch import remote

    remote.stop(job, [one.cell for one in found], load_cluster())


def _in_queue(job: Job, found: list[Found]) -> None:
    """Those that run have been asked already, and write their checkpoints first."""
    from oelm.launch import slurm

    states = slurm.states(job)
    queued = [one.cell for one in found if one.cell in states and states[one.cell].state == "queued"]
    if queued:
        slurm.cancel(job, queued)
