"""Progress: who hears what happens in cells. `Progress` is silent; `LineProgress` writes lines for pipes and logs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from oelm.errors import OelmError
from oelm.format import escape_controls, format_duration
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
    """A line where something happened, to whatever takes lines."""

    def __init__(self, number_of_cells: int, write: Callable[[str], None]):
        self.times = CellTimer(number_of_cells)
        self._to = write
        self._cell: Cell | None = None
        self._shown = set[str]()
        self._last = time.monotonic()

    def _write(self, text: str) -> None:
        self._last = time.monotonic()
        self._to(text)

    def on_message(self, text: str) -> None:
        self._write(text)

    def on_prepare(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self._last > QUIET:
            self._write(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    def on_cell_start(self, cell: Cell, *, step: int, total: int) -> None:
        self._cell = cell
        self.times.begins(step, total)
        self._write(f"[{self.times.done + 1}/{self.times.cells}] {cell}: {total:,} steps")

    def on_evaluation_end(self, step: int, metrics: dict[str, float]) -> None:
        left, study = self.times.left_of_cell(step), self.times.left_of_study(step)
        eta = (
            f"; {format_duration(left)} left, {format_duration(study)} for the study"
            if left is not None and study
            else ""
        )
        self._write(f"  {self._cell} step {step:,}: validation {format_metrics(metrics)}{eta}")

    def on_cell_end(self, cell: Cell, *, status: str, seconds: float | None = None) -> None:
        self._write(f"  {cell}: {status} in {self.times.ends(seconds, status=status)}")

    def on_status(self, running: Sequence[CellStatus], *, done: int, of: int) -> None:
        for one in running:
            if one.cell not in self._shown:
                self._shown.add(one.cell)
                self._write(f"[{len(self._shown)}/{self.times.cells}] {one.cell} starts")
        if time.monotonic() - self._last > _MINUTE:
            each = (f"{one.cell} at {one.step:,}" + (f" of {one.steps:,}" if one.steps else "") for one in running)
            self._write(f"{done} of {of} cells are finished; {', '.join(each)}")


class Tee(Progress):
    """Passes everything on to two others."""

    def __init__(self, one: Progress, other: Progress):
        self._both = (one, other)

    def on_message(self, text: str) -> None:
        for progress in self._both:
            progress.on_message(text)

    def on_prepare(self, what: str, done: int, total: int) -> None:
        for progress in self._both:
            progress.on_prepare(what, done, total)

    def on_cell_start(self, cell: Cell, *, step: int, total: int) -> None:
        for progress in self._both:
            progress.on_cell_start(cell, step=step, total=total)

    def on_step(self, step: int, *, loss: float) -> None:
        for progress in self._both:
            progress.on_step(step, loss=loss)

    def on_evaluate(self, what: str, done: int, total: int) -> None:
        for progress in self._both:
            progress.on_evaluate(what, done, total)

    def on_evaluation_end(self, step: int, metrics: dict[str, float]) -> None:
        for progress in self._both:
            progress.on_evaluation_end(step, metrics)

    def on_cell_end(self, cell: Cell, *, status: str, seconds: float | None = None) -> None:
        for progress in self._both:
            progress.on_cell_end(cell, status=status, seconds=seconds)


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
            yield Tee(progress, LineProgress(1, write))
        except OelmError as error:
            write(f"{type(error).__name__}: {error}")
            raise


def format_metrics(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
