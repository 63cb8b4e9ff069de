"""Lines: the progress of cells as lines of text, for pipes and logs."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from oelm.errors import OelmError
from oelm.records.standing import Standing
from oelm.records.store import writing
from oelm.study.plan import Cell
from oelm.times import duration
from oelm.train.watch import Watch

QUIET = 5.0  # seconds without a line before preparations are mentioned
_MINUTE = 60.0


class Times:
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
        return duration(took)

    def left_of_cell(self, step: int) -> float | None:
        passed, steps = time.monotonic() - self.began, step - self.first
        return passed / steps * (self.total - step) if steps > 0 else None

    def left_of_study(self, step: int) -> float | None:
        left = self.left_of_cell(step)
        if left is None:
            return None
        cell = self.cell_seconds or (time.monotonic() - self.began) / (step - self.first) * self.total
        return left + cell * (self.cells - self.done - 1)


class Lines(Watch):
    """A line where something happened, to whatever takes lines."""

    def __init__(self, number_of_cells: int, write: Callable[[str], None]):
        self.times = Times(number_of_cells)
        self._to = write
        self._cell: Cell | None = None
        self._shown = set[str]()
        self._last = time.monotonic()

    def _write(self, text: str) -> None:
        self._last = time.monotonic()
        self._to(text)

    def says(self, text: str) -> None:
        self._write(text)

    def prepares(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self._last > QUIET:
            self._write(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    def begins(self, cell: Cell, *, step: int, total: int) -> None:
        self._cell = cell
        self.times.begins(step, total)
        self._write(f"[{self.times.done + 1}/{self.times.cells}] {cell}: {total:,} steps")

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        left, study = self.times.left_of_cell(step), self.times.left_of_study(step)
        eta = f"; {duration(left)} left, {duration(study)} for the study" if left is not None and study else ""
        self._write(f"  {self._cell} step {step:,}: select {brief(metrics)}{eta}")

    def ends(self, cell: Cell, *, status: str, seconds: float | None = None) -> None:
        self._write(f"  {cell}: {status} in {self.times.ends(seconds, status=status)}")

    def shows(self, running: Sequence[Standing], *, done: int, of: int) -> None:
        for one in running:
            if one.cell not in self._shown:
                self._shown.add(one.cell)
                self._write(f"[{len(self._shown)}/{self.times.cells}] {one.cell} starts")
        if time.monotonic() - self._last > _MINUTE:
            each = (f"{one.cell} at {one.step:,}" + (f" of {one.steps:,}" if one.steps else "") for one in running)
            self._write(f"{done} of {of} cells are finished; {', '.join(each)}")


class Both(Watch):
    """What happens is told to two."""

    def __init__(self, one: Watch, other: Watch):
        self._both = (one, other)

    def says(self, text: str) -> None:
        for watch in self._both:
            watch.says(text)

    def prepares(self, what: str, done: int, total: int) -> None:
        for watch in self._both:
            watch.prepares(what, done, total)

    def begins(self, cell: Cell, *, step: int, total: int) -> None:
        for watch in self._both:
            watch.begins(cell, step=step, total=total)

    def stepped(self, step: int, *, loss: float) -> None:
        for watch in self._both:
            watch.stepped(step, loss=loss)

    def evaluates(self, what: str, done: int, total: int) -> None:
        for watch in self._both:
            watch.evaluates(what, done, total)

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        for watch in self._both:
            watch.evaluated(step, metrics)

    def ends(self, cell: Cell, *, status: str, seconds: float | None = None) -> None:
        for watch in self._both:
            watch.ends(cell, status=status, seconds=seconds)


@contextmanager
def logged(watch: Watch, path: Path) -> Iterator[Watch]:
    """A watch that also keeps a log of a cell, whoever runs it and wherever."""
    with writing(path.parent):
        file = path.open("a", encoding="utf-8")
    who = f"{socket.gethostname()} {os.getpid()}"

    def write(text: str) -> None:
        stamp = time.strftime("%Y-%m-%d %H:%M:%S")
        with suppress(OSError):  # a full disk is for those to find who have something to lose
            file.write("".join(f"{stamp} {who}  {line}\n" for line in text.splitlines()))
            file.flush()

    with file:
        try:
            yield Both(watch, Lines(1, write))
        except OelmError as error:
            write(f"{type(error).__name__}: {error}")
            raise


def brief(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
