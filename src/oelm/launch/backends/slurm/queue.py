"""Slurm: submit cells as arrays of tasks, ask where they stand, cancel them. All of it through Slurm's own commands."""

import os
import re
import shutil
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from oelm.errors import LaunchError
from oelm.launch.backends.slurm.commands import output_of, run_slurm, slurm_missing
from oelm.launch.backends.slurm.options import SlurmOptions
from oelm.launch.backends.slurm.script import Submission, overruling, render
from oelm.runs.files import write_text, writing
from oelm.runs.jobs import Job

_LARGEST_ARRAY = 1001  # where Slurm cannot be asked: what it comes with
_QUEUED = ("PENDING", "REQUEUED", "REQUEUE_FED", "REQUEUE_HOLD", "RESV_DEL_HOLD", "SPECIAL_EXIT")
_RUNNING = ("RUNNING", "COMPLETING", "CONFIGURING", "RESIZING", "SIGNALING", "STAGE_OUT", "STOPPED", "SUSPENDED")
_TASK = re.compile(r"[0-9]+_[0-9]+")
_FORGOTTEN = ("Invalid job id", "already complet")  # Slurm of a task that has ended


@dataclass(frozen=True, kw_only=True)
class SlurmTask:
    """What Slurm knows of a cell."""

    state: Literal["queued", "running"] | None = None
    """None if it has ended, or Slurm does not know it any more."""
    node: str | None = None
    reason: str | None = None
    """Why it waits (`Resources`), or how it ended, if not well (`TIMEOUT`)."""


@dataclass(frozen=True, kw_only=True)
class _Array:
    cells: Sequence[str]
    after: tuple[int, ...]
    """Which of the arrays before it must have ended."""


def submit(given: Submission, stages: Sequence[Sequence[str]]) -> dict[str, str]:
    """Put all cells into the queue, or none of them; returns the task of each.

    A stage starts when the one before it has ended.
    """
    if shutil.which("sbatch") is None:
        raise slurm_missing("sbatch")
    arrays = _arrays(stages, limited=given.options.array_limit is not None)
    scripts = [render(given, array.cells) for array in arrays]  # all of them before any is given to Slurm
    folder = given.workdir.absolute() / given.folder / "slurm"
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)  # Slurm would not, and the tasks would fail without a word
    new = folder / f"new-{os.getpid()}.sbatch"
    submitted: list[str] = []
    try:
        for array, script in zip(arrays, scripts, strict=True):
            write_text(new, script)
            after = [submitted[number] for number in array.after]
            submitted.append(_sbatch(new, after=after, without=overruling(script)))
            with writing(folder):
                new.replace(folder / f"{submitted[-1]}.sbatch")  # beside the output of its tasks
    except BaseException:
        new.unlink(missing_ok=True)
        _scancel(submitted, problem="Slurm took a part of the cells, and does not give it back")
        raise
    numbered = zip(submitted, arrays, strict=True)
    return {cell: f"{job}_{index}" for job, array in numbered for index, cell in enumerate(array.cells)}


def render_scripts(given: Submission, stages: Sequence[Sequence[str]]) -> list[str]:
    """The scripts that `submit` gives to Slurm, in this order; they can be rendered without Slurm."""
    return [render(given, array.cells) for array in _arrays(stages, limited=False)]


def tasks_of(job: Job) -> dict[str, str]:
    """By cell, the number of its task. What is none would be an option of a command, or part of a path."""
    for cell, task in job.facts.items():
        if not _TASK.fullmatch(task):
            raise LaunchError(f"{task!r} is not a task of Slurm", where=f"{cell}, in the job of {job.time}")
    return job.facts


def states(job: Job) -> dict[str, SlurmTask]:
    """What Slurm knows of each cell. Where there is no Slurm, nothing is known."""
    if not job.facts or shutil.which("squeue") is None:
        return {}
    try:
        found = _queue(job)
    except LaunchError as error:  # whoever looks at the records is not kept from it
        return {cell: SlurmTask(reason=str(error).splitlines()[0]) for cell in job.cells}
    missing = [task for task in tasks_of(job).values() if task not in found]
    if missing:
        found |= _accounted(missing)
    return {cell: found.get(task, SlurmTask()) for cell, task in job.facts.items()}


def cancel(job: Job, cells: Collection[str]) -> None:
    """Take these cells out of the queue. Those that run write their checkpoint first."""
    known = _queue(job)
    tasks = [
        task for cell, task in job.facts.items() if cell in cells and known.get(task, SlurmTask()).state is not None
    ]
    _scancel(tasks, problem="Slurm did not cancel the cells")


def _arrays(stages: Sequence[Sequence[str]], *, limited: bool) -> list[_Array]:
    """The cells of all stages, in as many arrays as Slurm needs for them. A limit is of one array: they take turns."""
    most, before = _largest_array(), range(0)
    arrays: list[_Array] = []
    for stage in filter(None, stages):
        first = len(arrays)
        for start in range(0, len(stage), most):
            after = (len(arrays) - 1,) if limited and start else tuple(before)
            arrays.append(_Array(cells=stage[start : start + most], after=after))
        before = range(first, len(arrays))
    return arrays


def _largest_array() -> int:
    if shutil.which("scontrol") is None:
        return _LARGEST_ARRAY
    found = re.search(r"^MaxArraySize\s*=\s*(\d+)", run_slurm("scontrol", "show", "config").stdout, flags=re.MULTILINE)
    most = int(found[1]) if found else _LARGEST_ARRAY
    if most == 0:
        raise LaunchError("this Slurm takes no arrays of tasks", why="its MaxArraySize is 0")
    return most


def _sbatch(file: Path, *, after: Sequence[str], without: Collection[str]) -> str:
    waits = [f"--dependency=afterany:{':'.join(after)}"] if after else []
    done = run_slurm("sbatch", "--parsable", *waits, str(file), without=without)
    number = done.stdout.strip().partition(";")[0]
    if done.returncode != 0 or not number.isdecimal():
        raise LaunchError("Slurm took none of the cells", why=output_of(done), hint=_hint(done.stderr))
    return number


def _hint(stderr: str) -> str:
    if "partition" in stderr.lower() and shutil.which("sinfo"):
        known = dict.fromkeys(run_slurm("sinfo", "-h", "-o", "%R").stdout.split())
        if known:
            return f"--partition with one of {', '.join(known)}"
    if any(words in stderr.lower() for words in ("configuration source", "unable to contact", "slurmctld")):
        return "a machine on which `sinfo` answers: Slurm is installed here, but there is none to talk to"
    changed = ", ".join(f"--{one.name}" for one in fields(SlurmOptions) if one.metadata.get("is_directive"))
    return f"--dry-run shows what sbatch is given; {changed} and --sbatch change it"


def _scancel(jobs: Sequence[str], *, problem: str) -> None:
    if not jobs:
        return
    done = run_slurm("scancel", *jobs)
    if done.returncode != 0 and not any(text in done.stderr for text in _FORGOTTEN):
        raise LaunchError(problem, why=output_of(done), hint=f"scancel {' '.join(jobs)}")


def _queue(job: Job) -> dict[str, SlurmTask]:
    """By task, those that Slurm knows: waiting, running, and for some minutes those that ended."""
    done = run_slurm("squeue", "-h", "-r", "-t", "all", "-j", _numbers(tasks_of(job).values()), "-o", "%i|%T|%N|%r")
    if done.returncode != 0 and _FORGOTTEN[0] not in done.stderr:
        raise LaunchError("Slurm does not say where the cells stand", why=output_of(done))
    rows = [line.split("|", 3) for line in done.stdout.splitlines()]
    return {row[0]: _task(row[1], node=row[2], reason=row[3]) for row in rows if len(row) == 4}


def _accounted(tasks: Iterable[str]) -> dict[str, SlurmTask]:
    """By task, those that Slurm keeps accounts of, if it keeps any."""
    if shutil.which("sacct") is None:
        return {}
    try:
        done = run_slurm("sacct", "-n", "-P", "-X", "-j", _numbers(tasks), "-o", "JobID,State,NodeList")
    except LaunchError:
        return {}
    rows = [line.split("|") for line in done.stdout.splitlines()] if done.returncode == 0 else []
    return {row[0]: _task(row[1].partition(" ")[0], node=row[2]) for row in rows if len(row) == 3}


def _task(state: str, *, node: str, reason: str = "None") -> SlurmTask:
    where = None if node in ("", "(null)", "None assigned") else node
    if state in _QUEUED:
        return SlurmTask(state="queued", reason=None if reason in ("", "None") else reason)
    if state in _RUNNING:
        return SlurmTask(state="running", node=where)
    return SlurmTask(node=where, reason=None if state == "COMPLETED" else state)


def _numbers(tasks: Iterable[str]) -> str:
    return ",".join(dict.fromkeys(task.partition("_")[0] for task in tasks))
