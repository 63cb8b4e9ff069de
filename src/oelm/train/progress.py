"""Progress: who hears what happens in cells. `Progress` is silent; `LineProgress` writes lines for pipes and logs."""

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from oelm.errors import OelmError
from oelm.format import escape_controls, format_count, format_duration
from oelm.runs.files import open_to_append
from oelm.runs.status import CellStatus
from oelm.study.cells import Cell

QUIET = 5.0  # seconds without a line before preparations are mentioned
_MINUTE = 60.0


class Progress:
    def on_message(self, text: str) -> None:
        """Something worth a line."""

    def on_prepare(self, what: str, done: int, total: int) -> None:
        """Tokenizing, for example; a `total` of 0 is not known."""

    def on_cell_start(self, cell: Cell, *, step: int, total: int) -> None:
        """A cell starts or resumes, with `step` of `total` steps done."""

    def on_step(self, step: int, *, loss: float) -> None:
        pass

    def on_evaluate(self, what: str, done: int, total: int) -> None:
        pass

    def on_evaluation_end(self, step: int, metrics: dict[str, float]) -> None:
        pass

    def on_cell_end(self, cell: Cell, *, status: str, seconds: float | None = None) -> None:
        """After so many seconds, of a cell that was not started here."""

    def on_status(self, running: Sequence[CellStatus], *, done: int, of: int) -> None:
        """Where the cells stand that run in other processes; `done` cells `of` so many are finished."""


class MessageProgress(Progress):
    """Passes on what is worth a line, and nothing else."""

    def __init__(self, write: Callable[[str], None]):
        self._write = write

    def on_message(self, text: str) -> None:
        self._write(text)


class CellTimer:
    """How long cells take, to tell how long the rest will."""

    def __init__(self, number_of_cells: int):
        self.cells, self.done, self.cell_seconds = number_of_cells, 0, 0.0
        self.began = time.monotonic()
        self.first, self.total = 0, 1

    def begins(self, step: int, total: int) -> None:
        self.began, self.first, self.total = time.monotonic(), step, total

    def ends(self, seconds: float | None, *, status: str) -> str:
        """How long it took, in words."""
        took = time.monotonic() - self.began if seconds is None else seconds
        self.done += 1
        if status == "done" and self.first == 0:  # all of it
            self.cell_seconds = took
        return format_duration(took)

    def left_of_cell(self, step: int) -> float | None:
        passed, steps = time.monotonic() - self.began, step - self.first
        return passed / steps * (self.total - step) if steps > 0 else None

    def left_of_study(self, step: int) -> float | None:
        left = self.left_of_cell(step)
        if left is None:
            return None
        cell = self.cell_seconds or (time.monotonic() - self.began) / (step - self.first) * self.total
        return left + cell * (self.cells - self.done - 1)


class LineProgress(Progress):
    """A line where something happened, to whatever takes lines. The log of a cell knows of no other cells (None)."""

    def __init__(self, number_of_cells: int | None, write: Callable[[str], None]):
        self.times = CellTimer(number_of_cells or 1)
        self._is_of_study = number_of_cells is not None
        self._write = write
        self._cell: Cell | None = None
        self._shown = set[str]()
        self._last = time.monotonic()

    def on_message(self, text: str) -> None:
        self._last = time.monotonic()
        self._write(text)

    def on_prepare(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self._last > QUIET:
            self.on_message(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    def on_cell_start(self, cell: Cell, *, step: int, total: int) -> None:
        self._cell = cell
        self.times.begins(step, total)
        place = f"[{self.times.done + 1}/{self.times.cells}] " if self._is_of_study else ""
        self.on_message(f"{place}{cell}: {format_count(total, 'step')}")

    def on_evaluation_end(self, step: int, metrics: dict[str, float]) -> None:
        left, study = self.times.left_of_cell(step), self.times.left_of_study(step)
        eta = f"; {format_duration(left)} left" if left is not None and study else ""
        eta += f", {format_duration(study)} for the study" if eta and study and self._is_of_study else ""
        self.on_message(f"  {self._cell} step {step:,}: validation {format_metrics(metrics)}{eta}")

    def on_cell_end(self, cell: Cell, *, status: str, seconds: float | None = None) -> None:
        self.on_message(f"  {cell}: {status} in {self.times.ends(seconds, status=status)}")

    def on_status(self, running: Sequence[CellStatus], *, done: int, of: int) -> None:
        for one in running:
            if one.cell not in self._shown:
                self._shown.add(one.cell)
                self.on_message(f"[{len(self._shown)}/{self.times.cells}] {one.cell} starts")
        if time.monotonic() - self._last > _MINUTE:
            each = (f"{one.cell} at {one.step:,}" + (f" of {one.steps:,}" if one.steps else "") for one in running)
            self.on_message(f"{done} of {of} cells are finished; {', '.join(each)}")


class Tee(Progress):
    """Passes everything on to others."""

    def __init__(self, *others: Progress):
        for event in filter(lambda name: name.startswith("on_"), dir(Progress)):
            setattr(self, event, partial(_tell, [getattr(one, event) for one in others]))


def _tell(listeners: Sequence[Callable[..., None]], /, *args: Any, **values: Any) -> None:
    for listener in listeners:
        listener(*args, **values)


@contextmanager
def log_to_file(progress: Progress, path: Path) -> Iterator[Progress]:
    """A progress that also keeps a log of a cell, whoever runs it and wherever."""
    file = open_to_append(path)
    who = f"{socket.gethostname()} {os.getpid()}"

    def write(text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with suppress(OSError):  # a full disk is for those to find who have something to lose
            file.write("".join(f"{stamp} {who}  {line}\n" for line in escape_controls(text).splitlines()))
            file.flush()

    with file:
        try:
            yield Tee(progress, LineProgress(None, write))
        except OelmError as error:
            write(f"{type(error).__name__}: {error}")
            raise


def format_metrics(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
