"""Progress of cells on a terminal: bars with the time left; in a pipe or a log, a line where something happened."""

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.status import Status

from oelm.cli.echo import plain_text, warn
from oelm.format import escape_controls, format_duration
from oelm.launch.backends.events import events_file, report_to_parent
from oelm.runs.status import CellStatus
from oelm.study.cells import Cell
from oelm.train.progress import QUIET, CellTimer, LineProgress, Progress, format_metrics


@contextmanager
def show_progress(number_of_cells: int) -> Iterator[Progress]:
    """A progress for as many cells. It goes to the parent that started this process for a cell, or to the standard
    error, so that results can be piped."""
    parent = events_file()
    if parent is not None:
        with report_to_parent(parent) as progress:
            yield progress
        return
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield LineProgress(number_of_cells, warn)
        return
    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}", markup=False),
        TimeRemainingColumn(),
    )
    with RichProgress(*columns, console=console, transient=True) as bars:
        yield BarProgress(bars, number_of_cells)


@contextmanager
def timing(budget: float) -> Iterator[Progress]:
    """A progress for rounds of timing, which take `budget` seconds at most."""
    console = Console(stderr=True, highlight=False)
    if not console.is_terminal:
        yield Rounds(budget, None)
        return
    with console.status("preparing") as status:
        yield Rounds(budget, status)


class Rounds(Progress):
    """On a terminal one line that changes; in a log, a line now and then."""

    def __init__(self, budget: float, status: Status | None):
        self._budget, self._status = budget, status
        self._began: float | None = None
        self._last = time.monotonic()

    def on_message(self, text: str) -> None:
        self._last = time.monotonic()
        warn(text)

    def on_prepare(self, what: str, done: int, total: int) -> None:
        self._tell(f"{what}: {done:,}" + (f" of {total:,}" if total else ""))

    def on_step(self, step: int, *, loss: float) -> None:
        self._began = self._began or time.monotonic()
        left = max(0.0, self._budget - (time.monotonic() - self._began))
        rounds = "1 round" if step == 1 else f"{step} rounds"
        self._tell(f"{rounds}; at most {format_duration(left)} more")

    def _tell(self, text: str) -> None:
        if self._status is not None:
            self._status.update(plain_text(text))
        elif time.monotonic() - self._last > QUIET:
            self.on_message(text)


class BarProgress(Progress):
    def __init__(self, bars: RichProgress, number_of_cells: int):
        self.bars = bars
        self.times = CellTimer(number_of_cells)
        self._study = bars.add_task("study", total=number_of_cells, note="")
        self._cell: TaskID | None = None
        self._side: TaskID | None = None
        self._cells: dict[str, TaskID] = {}
        """Those that run in processes of their own."""

    def on_message(self, text: str) -> None:
        self.bars.console.print(plain_text(text))

    def on_prepare(self, what: str, done: int, total: int) -> None:
        what = escape_controls(what)
        if self._side is None:
            self._side = self.bars.add_task(what, total=total or None, note="")
        self.bars.update(self._side, description=what, completed=done, total=total or None)
        if total and done >= total:
            self.bars.remove_task(self._side)
            self._side = None

    def on_cell_start(self, cell: Cell, *, step: int, total: int) -> None:
        self.times.begins(step, total)
        self._clear()
        self._cell = self.bars.add_task(escape_controls(str(cell)), total=total, completed=step, note="")

    def on_step(self, step: int, *, loss: float) -> None:
        assert self._cell is not None
        self.bars.update(self._cell, completed=step, note=f"loss {loss:.3f}")
        left = self.times.left_of_study(step)
        self.bars.update(self._study, note="" if left is None else f"about {format_duration(left)} left")

    def on_evaluate(self, what: str, done: int, total: int) -> None:
        self.on_prepare(f"measuring on {what}", done, total)

    def on_evaluation_end(self, step: int, metrics: dict[str, float]) -> None:
        self.on_message(f"  step {step:,}: validation {format_metrics(metrics)}")

    def on_cell_end(self, cell: Cell, *, status: str, seconds: float | None = None) -> None:
        self.on_message(f"{cell}: {status} in {self.times.ends(seconds, status=status)}")
        self._clear()
        self.bars.update(self._study, completed=self.times.done)

    def on_status(self, running: Sequence[CellStatus], *, done: int, of: int) -> None:
        for gone in set(self._cells) - {one.cell for one in running}:
            self.bars.remove_task(self._cells.pop(gone))
        for one in running:
            if one.cell not in self._cells:
                self._cells[one.cell] = self.bars.add_task(escape_controls(one.cell), total=None, note="")
            note = "preparing" if one.loss is None else f"loss {one.loss:.3f}"
            self.bars.update(self._cells[one.cell], completed=one.step, total=one.steps, note=note)
        self.bars.update(self._study, completed=done, total=of)

    def _clear(self) -> None:
        for task in (self._cell, self._side):
            if task is not None:
                self.bars.remove_task(task)
        self._cell = self._side = None
