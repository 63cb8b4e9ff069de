"""jobs.jsonl: what was launched, where and with which options, so that it can be asked about, stopped and resumed."""

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from oelm.errors import CellError
from oelm.runs.files import FileType, open_to_append, read_regular, writing
from oelm.runs.layout import JOBS
from oelm.study.study import Value

OptionValue = Value | list[str] | dict[str, Value]


@dataclass(frozen=True, kw_only=True)
class Job:
    """A launch: a line of the file."""

    on: str
    """`local`, `torchrun`, `slurm` or `ssh://...`."""
    cells: tuple[str, ...]
    """By name, in the order they run."""
    arms: tuple[str, ...] | None = None
    """Of the cells that were asked for; None of all."""
    seeds: tuple[int, ...] | None = None
    """Of the cells that were asked for; None of all."""
    named: tuple[str, ...] | None = None
    """Cells that were asked for by name."""
    given: dict[str, OptionValue] = field(default_factory=dict)
    """Options of the backend that were given: with these, it is launched again."""
    facts: dict[str, str] = field(default_factory=dict)
    """What the backend answered: job ids, folders."""
    time: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))
    """When it was launched."""

    def __post_init__(self) -> None:
        for name in (*self.cells, *(self.named or ())):
            if PurePosixPath(name).is_absolute() or name.startswith("-") or ".." in PurePosixPath(name).parts:
                raise CellError(f"{name!r} is not the name of a cell")


JOB_LINE = FileType(JOBS, Job, format=1, hint="move it away: the records do not need it")


def append_job(folder: Path, job: Job) -> None:
    """Add a job to the folder of its study."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with open_to_append(folder / JOBS) as file:
            # On a line of its own, even if the one before was not written to its end.
            file.write("\n" + JOB_LINE.dumps(job, indent=None))
            file.flush()
            os.fsync(file.fileno())


def read_jobs(folder: Path) -> list[Job]:
    """The jobs of a study, oldest first."""
    path = folder / JOBS
    lines = (read_regular(path, hint=JOB_LINE.hint) or b"").splitlines()
    return [JOB_LINE.parse(line, where=path) for line in lines if _is_whole(line)]


def _is_whole(line: bytes) -> bool:
    """Not so of a line that was not written to its end, which is passed over."""
    try:
        json.loads(line)
    except json.JSONDecodeError:
        return False
    except (ValueError, RecursionError):  # whole, and nothing of ours
        return True
    return True
