"""steps.jsonl: the log of a cell's training, a line a step."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge
from numpy.typing import NDArray
from pydantic import TypeAdapter, ValidationError

from oelm.errors import CellError
from oelm.facts import Amount, Count
from oelm.metrics import ROUNDING
from oelm.runs.files import FileDigest, first_problem, read_regular, read_unchanged
from oelm.runs.layout import STEPS

_LINE_BYTES = 400  # of a step at most
_AT_ONCE = 500  # lines that are parsed together: what they become stays in the cache of a processor


@dataclass(frozen=True, kw_only=True)
class Step:
    """A line of the file."""

    step: Annotated[Count, Ge(1)]
    """From 1 on."""
    loss: float
    """Before the update of this step; not finite in the last steps of a cell that diverged."""
    lr: Amount
    """Learning rate, as the optimizer had it."""
    grad_norm: float
    """Before clipping; not finite where fp16 has overflowed, and the step was left out."""
    seconds: Amount
    """From the start of this step to that of the next."""


_COLUMNS = tuple(Step.__annotations__)
_STEP: TypeAdapter[Step] = TypeAdapter(Step)
_SOME: TypeAdapter[list[Step]] = TypeAdapter(list[Step])


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

    @cached_property
    def step_seconds(self) -> float | None:
        """The usual time of a step: the median, without the first tenth, in which a machine warms up."""
        rest = self.seconds[len(self) // 10 :]
        return float(np.median(rest)) if len(rest) else None

    @property
    def all_seconds(self) -> float:
        return float(self.seconds.sum())


def read_steps(folder: Path, digest: FileDigest | None) -> Steps:
    """The log of a cell with a record, which has the digest; none was written without one. It is whole, or damaged."""
    path = folder / STEPS
    lines = read_unchanged(path, digest).splitlines() if digest is not None else []
    parts = []
    try:
        for start in range(0, len(lines), _AT_ONCE):
            some = b"[" + b",".join(lines[start : start + _AT_ONCE]) + b"]"
            parts.append(_as_array(_SOME.validate_json(some, strict=True, extra="forbid")))
    except ValidationError as error:
        why = f"after line {start}, {first_problem(error)}" if start else first_problem(error)
        raise CellError(f"{path} is damaged", why=why) from error
    if sum(map(len, parts)) != len(lines):
        raise CellError(f"{path} is damaged", why="a line is blank")
    table = np.concatenate(parts) if parts else np.empty((0, len(_COLUMNS)))
    found = Steps(**dict(zip(_COLUMNS, table.T, strict=True)))
    if not np.array_equal(found.step, np.arange(1, len(found) + 1)):
        raise CellError(f"{path} is damaged", why="its steps are not 1, 2, 3 and so on")
    if (found.loss < -ROUNDING).any() or (found.grad_norm < 0).any():
        raise CellError(f"{path} is damaged", why="a loss or the length of a gradient is below 0")
    return found


def _as_array(steps: list[Step]) -> NDArray[np.float64]:
    numbers = chain.from_iterable(map(dict.values, map(vars, steps)))
    return np.fromiter(numbers, np.float64, len(steps) * len(_COLUMNS)).reshape(-1, len(_COLUMNS))


def read_written_steps(folder: Path) -> list[Step]:
    """The steps of a cell that may still run: what was not written whole, or holds something else, is passed over."""
    lines = (read_regular(folder / STEPS) or b"").splitlines()
    return [step for line in lines if (step := parse_step(line)) is not None]


def read_last_steps(folder: Path, number: int) -> list[Step]:
    """The last of them, oldest first, without reading all."""
    lines = (read_regular(folder / STEPS, start=-number * _LINE_BYTES) or b"").splitlines()[-number:]
    return [step for line in lines if (step := parse_step(line)) is not None]
