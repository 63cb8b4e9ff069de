"""Launched: the launches that the user made or trusts, in a file of their own outside of any run folder.

What a run folder says is data: whoever wrote its jobs.jsonl could name any host, program or job of a queue there. So a
job is asked about, stopped, fetched or resumed only if its line is noted here. By its hash: a folder may be moved.
"""

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

from oelm.errors import CellError, LaunchError
from oelm.launch.backends.cluster import Cluster, load_cluster
from oelm.runs.files import FileType, read_regular
from oelm.runs.jobs import JOB_LINE, Job


@dataclass(frozen=True, kw_only=True)
class Launched:
    """A launch: a line of the file."""

    job: str
    """SHA-256 of its line in jobs.jsonl."""
    folder: str
    """Of the study, where it was then."""
    programs: dict[str, str]
    """What cluster.yaml had run with it, by field."""
    time: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))
    """When it was noted."""


LAUNCHED_LINE = FileType("launched.jsonl", Launched, format=1)


class NotLaunchedHere(LaunchError):
    """A run folder names something to be asked or run that the user has not."""


def launched_file() -> Path:
    state = Path(os.environ.get("XDG_STATE_HOME") or "")  # a relative one would be in whatever folder we are
    try:
        state = state if state.is_absolute() else Path.home() / ".local" / "state"
    except RuntimeError as error:
        raise LaunchError("there is no home folder to note launches in", hint="XDG_STATE_HOME names another") from error
    return state / "oelm" / LAUNCHED_LINE.name


def note_launch(folder: Path, job: Job, cluster: Cluster) -> None:
    """Note a job as one of the user's, and what cluster.yaml names for it. Raises an OSError where that cannot be."""
    note = Launched(job=_hash(job), folder=str(folder.absolute()), programs=dict(cluster.programs))
    file = launched_file()
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        # In one piece, and on a line of its own even if the one before was not written to its end.
        os.write(descriptor, f"\n{LAUNCHED_LINE.dumps(note, indent=None)}".encode())
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_launched(job: Job) -> bool:
    return _hash(job) in {note.job for note in _notes()}


def check_launched(job: Job) -> None:
    """Refuse a job that is not noted."""
    if not is_launched(job):
        raise NotLaunchedHere(
            f"{job.on} was not asked: the job of {job.time} was not launched from here",
            why="what a run folder says is data, and this could be any host, program or job",
            hint="if you trust the folder: the same command with --trust",
        )


def check_programs(job: Job, cluster: Cluster) -> None:
    """Refuse to ask about a job with a cluster.yaml that would run what no launch of the user has."""
    new = _new_programs(cluster)
    if new:
        raise NotLaunchedHere(
            f"{job.on} was not asked: cluster.yaml names what nothing was launched with from here",
            where=str(Path("cluster.yaml").absolute()),
            why=", ".join(f"{name}: {value}" for name, value in new.items()),
            hint="if you trust the file: the same command with --trust",
        )


def trust_jobs(folder: Path, jobs: Sequence[Job], cluster: Cluster) -> list[str]:
    """Note those jobs of a folder that are not noted yet; returns a line for each, and for what comes with it."""
    lines = []
    for job in jobs:
        new = _new_programs(cluster)
        if is_launched(job) and not new:
            continue
        note_launch(folder, job, cluster)
        lines.append(f"{folder}: trusted from now on: {job.on}{_listed(job.facts)}")
        if new:
            lines.append(f"cluster.yaml: trusted from now on:{_listed(new)}")
    return lines


def _new_programs(cluster: Cluster) -> dict[str, str]:
    """What a cluster.yaml has run that is neither in the user's own one nor noted with a launch."""
    known = {*load_cluster(project=None).programs.items()}
    known |= {program for note in _notes() for program in note.programs.items()}
    return dict(cluster.programs.items() - known)


def _listed(facts: Mapping[str, str]) -> str:
    shown = [f" {name}={value}" for name, value in facts.items()]
    return ",".join([*shown[:6], *([f" and {len(shown) - 6} more"] if len(shown) > 6 else [])])


def _hash(job: Job) -> str:
    return hashlib.sha256(JOB_LINE.dumps(job, indent=None).encode()).hexdigest()


def _notes() -> tuple[Launched, ...]:
    try:
        file = launched_file()
    except LaunchError:  # there is no home
        return ()
    try:
        stat = file.stat()
    except OSError:  # nothing was ever noted, or it cannot be read, and that is said
        return _read(file, 0, 0)
    return _read(file, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=1)
def _read(file: Path, changed: int, size: int) -> tuple[Launched, ...]:
    """A line that cannot be read is not noted, and so not trusted."""
    found = []
    for line in (read_regular(file) or b"").splitlines():
        try:
            found.append(LAUNCHED_LINE.parse(line, where=file))
        except CellError:
            continue
    return tuple(found)
