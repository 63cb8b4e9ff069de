"""Job: what was launched, where and with which options, so that it can be asked about, stopped and resumed."""

import json
import os
import time
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from oelm.errors import CellError
from oelm.runs.layout import writing

_JOBS = "jobs.jsonl"  # in the folder of the study, a line a launch


@dataclass(frozen=True, kw_only=True)
class Job:
    on: str
    """`local`, `torchrun`, `slurm` or `ssh://...`."""
    cells: tuple[str, ...]
    """By name, in the order they run."""
    options: dict[str, Any] = field(default_factory=dict)
    """What it was launched with beside the study, as plain as JSON: enough to launch it again."""
    facts: dict[str, Any] = field(default_factory=dict)
    """What the backend answered, as plain JSON: job ids, folders."""
    time: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%S%z"))


def append_job(folder: Path, job: Job) -> None:
    """Add a job to the folder of its study."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / _JOBS).open("a", encoding="utf-8") as file:
            # On a line of its own, even if the one before was not written to its end.
            file.write("\n" + json.dumps(asdict(job)) + "\n")
            file.flush()
            os.fsync(file.fileno())


def read_jobs(folder: Path) -> list[Job]:
    """The jobs of a study, oldest first."""
    try:
        lines = (folder / _JOBS).read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        with suppress(ValueError):  # not written whole
            found.append(json.loads(line))
    try:
        return [Job(**{**row, "cells": tuple(row["cells"])}) for row in found]
    except (ValueError, TypeError, LookupError) as error:
        raise CellError(
            f"{folder / _JOBS} is damaged",
            why=f"{type(error).__name__}: {str(error)[:200]}",
            hint="move it away: the records do not need it",
        ) from error
