"""steps.jsonl: the log of a cell's training, a line a step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from oelm.runs.layout import STEPS

_LINE_BYTES = 400  # of a step at most


@dataclass(frozen=True, kw_only=True)
class Step:
    """A line of the file."""

    step: int
    """From 1 on."""
    loss: float
    """Before the update of this step."""
    lr: float
    """Learning rate, as the optimizer had it."""
    grad_norm: float
    """Before clipping."""
    seconds: float
    """From the start of this step to that of the next."""


_COLUMNS = tuple(Step.__annotations__)
_STEP: TypeAdapter[Step] = TypeAdapter(Step)


def format_step(step: Step) -> str:
    return json.dumps(asdict(step)) + "\n"


def parse_step(line: bytes) -> Step | None:
    """A line of the file; None of one that was not written to its end, or holds something else."""
    try:
        return _STEP.validate_json(line, strict=True, extra="forbid")
    except ValidationError:
        return None


@dataclass(frozen=True, kw_only=True)
class Steps:
    """The whole log, an entry a step. Times are in seconds."""

    step: NDArray[np.float64]
    loss: NDArray[np.float64]
    lr: NDArray[np.float64]
    grad_norm: NDArray[np.float64]
    seconds: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.step)

    @property
    def step_seconds(self) -> float | None:
        """The usual time of a step: the median, without the first tenth, in which a machine warms up."""
        rest = self.seconds[len(self) // 10 :]
        with np.errstate(all="ignore"):  # a damaged log may hold anything
            return float(np.median(rest)) if len(rest) else None

    @property
    def all_seconds(self) -> float:
        with np.errstate(all="ignore"):
            return float(self.seconds.sum())


def read_steps(folder: Path) -> Steps:
    """The log of a cell. A line that was not written whole, or holds something else, is passed over."""
    path = folder / STEPS
    try:
        columns = _read_fast(path)
    except (OSError, ValueError, LookupError, TypeError, RuntimeError):  # Arrow's are among them; it reads no NaN
        columns = _read_lines(path)
    return Steps(**columns)


def read_last_steps(folder: Path, number: int) -> list[Step]:
    """The last steps of a cell that were written whole, oldest first, without reading all of them."""
    try:
        with (folder / STEPS).open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - number * _LINE_BYTES))
            lines = file.read().splitlines()[-number:]
    except OSError:
        return []
    return [step for line in lines if (step := parse_step(line)) is not None]


def _read_fast(path: Path) -> dict[str, NDArray[np.float64]]:
    from pyarrow import json as arrow

    table = arrow.read_json(str(path))
    if any(table[name].null_count for name in _COLUMNS):
        raise ValueError("something is missing in a line")
    return {name: table[name].to_numpy().astype(np.float64) for name in _COLUMNS}


def _read_lines(path: Path) -> dict[str, NDArray[np.float64]]:
    try:
        lines = path.read_bytes().splitlines()
    except OSError:
        lines = []
    steps = [step for line in lines if (step := parse_step(line)) is not None]
    return {name: np.array([getattr(step, name) for step in steps], dtype=np.float64) for name in _COLUMNS}
