"""Steps: the log of a cell's training, as columns."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from oelm.runs.layout import STEPS

_COLUMNS = ("step", "loss", "lr", "grad_norm", "seconds")


@dataclass(frozen=True, kw_only=True)
class Steps:
    """One entry a step. Times are in seconds."""

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


def _read_fast(path: Path) -> dict[str, NDArray[np.float64]]:
    from pyarrow import json as arrow

    table = arrow.read_json(str(path))
    if any(table[name].null_count for name in _COLUMNS):
        raise ValueError("something is missing in a line")
    return {name: table[name].to_numpy().astype(np.float64) for name in _COLUMNS}


def _read_lines(path: Path) -> dict[str, NDArray[np.float64]]:
    rows = []
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            for line in file:
                try:
                    row = json.loads(line)
                    rows.append([float(row[name]) for name in _COLUMNS])
                except (ValueError, LookupError, TypeError, OverflowError, RecursionError):
                    continue
    except OSError:
        pass
    table = np.array(rows, dtype=np.float64).reshape(-1, len(_COLUMNS))
    return {name: table[:, number] for number, name in enumerate(_COLUMNS)}
