"""Progress of cells on a terminal: bars with the time left; in a pipe or a log, a line where something happened."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.status import Status

from oelm.study.plan import Cell
from oelm.times import duration
from oelm.train.watch import Watch

_QUIET = 5.0  # seconds without a line before preparations are mentioned in a log


@contextmanager
def progress(number_of_cells: int) -> Iterator[Watch]:
    """A watch for as many cells; everything goes to the standard error, so that results can be piped."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield Lines(number_of_cells)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bars:
        yield Bars(bars, number_of_cells)


@contextmanager
def timing(budget: float) -> Iterator[Watch]:
    """A watch for rounds of timing, which take `budget` seconds at most."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield Rounds(budget, None)
        return
    with console.status("preparing") as status:
        yield Rounds(budget, status)


class Rounds(Watch):
    """On a terminal one line that changes; in a log, a line now and then."""

    def __init__(self, budget: float, status: Status | None):
        self._budget, self._status = budget, status
        self._began: float | None = None
        self._last = time.monotonic()

    def says(self, text: str) -> None:
        self._write(text)

    def prepares(self, what: str, done: int, total: int) -> None:
        self._tell(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    def stepped(self, step: int, *, loss: float) -> None:
        self._began = self._began or time.monotonic()
        left = max(0.0, self._budget - (time.monotonic() - self._began))
        rounds = "1 round" if step == 1 else f"{step} rounds"
        self._tell(f"{rounds}; at most {duration(left)} more")

    def _tell(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
        elif time.monotonic() - self._last > _QUIET:
            self._write(text)

    def _write(self, text: str) -> None:
        self._last = time.monotonic()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()


class Times:
    """How long cells take, to tell how long the rest will."""

    def __init__(self, number_of_cells: int):
        self.cells, self.done, self.cell_seconds = number_of_cells, 0, 0.0
        self.began = time.monotonic()
        self.first, self.total = 0, 1

    def begins(self, step: int, total: int) -> None:
        self.began, self.first, self.total = time.monotonic(), step, total

    def ends(self, *, whole: bool) -> None:
        self.done += 1
        if whole:
            self.cell_seconds = time.monotonic() - self.began

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
    def __init__(self, number_of_cells: int):
        self.times = Times(number_of_cells)
        self._cell: Cell | None = None
        self._last = time.monotonic()

    def _write(self, text: str) -> None:
        self._last = time.monotonic()
        sys.stderr.write(text + "\n")
        sys.stderr.flush()

    def says(self, text: str) -> None:
        self._write(text)

    def prepares(self, what: str, done: int, total: int) -> None:
        if time.monotonic() - self._last > _QUIET:
            self._write(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    def begins(self, cell: Cell, *, step: int, total: int) -> None:
        self._cell = cell
        self.times.begins(step, total)
        self._write(f"[{self.times.done + 1}/{self.times.cells}] {cell}: {total:,} steps")

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        left, study = self.times.left_of_cell(step), self.times.left_of_study(step)
        eta = f"; {duration(left)} left, {duration(study)} for the study" if left is not None and study else ""
        self._write(f"  {self._cell} step {step:,}: select {_brief(metrics)}{eta}")

    def ends(self, cell: Cell, *, status: str) -> None:
        self._write(f"  {cell}: {status} in {duration(time.monotonic() - self.times.began)}")
        self.times.ends(whole=self.times.first == 0 and status == "done")


class Bars(Watch):
    def __init__(self, bars: Progress, number_of_cells: int):
        self.bars = bars
        self.times = Times(number_of_cells)
        self._study = bars.add_task("study", total=number_of_cells, note="")
        self._cell: TaskID | None = None
        self._side: TaskID | None = None
        self._step = 0

    def says(self, text: str) -> None:
        self.bars.console.print(text)

    def prepares(self, what: str, done: int, total: int) -> None:
        self._aside(what, done, total)

    def begins(self, cell: Cell, *, step: int, total: int) -> None:
        self.times.begins(step, total)
        self._clear()
        self._cell = self.bars.add_task(str(cell), total=total, completed=step, note="")

    def stepped(self, step: int, *, loss: float) -> None:
        assert self._cell is not None
        self.bars.update(self._cell, completed=step, note=f"loss {loss:.3f}")
        left = self.times.left_of_study(step)
        self.bars.update(self._study, note="" if left is None else f"about {duration(left)} left")

    def evaluates(self, what: str, done: int, total: int) -> None:
        self._aside(f"measuring on {what}", done, total)

    def evaluated(self, step: int, metrics: dict[str, float]) -> None:
        self.bars.console.print(f"  step {step:,}: select {_brief(metrics)}")

    def ends(self, cell: Cell, *, status: str) -> None:
        self.bars.console.print(f"{cell}: {status} in {duration(time.monotonic() - self.times.began)}")
        self.times.ends(whole=self.times.first == 0 and status == "done")
        self._clear()
        self.bars.update(self._study, completed=self.times.done)

    def _aside(self, what: str, done: int, total: int) -> None:
        if self._side is None:
            self._side = self.bars.add_task(what, total=total or None, note="")
        self.bars.update(self._side, description=what, completed=done, total=total or None)
        if total and done >= total:
            self.bars.remove_task(self._side)
            self._side = None

    def _clear(self) -> None:
        for task in (self._cell, self._side):
            if task is not None:
                self.bars.remove_task(task)
        self._cell = self._side = None


def _brief(metrics: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
