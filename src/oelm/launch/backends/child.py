"""Children: processes that run one cell each for us."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from oelm.errors import Stopped
from oelm.launch.backends.events import EVENTS_VARIABLE, CellFailed, CellStopped, Event, EventReader, LogLine
from oelm.launch.study_run import CellQueue, StudyRun, stop_message, stop_requested
from oelm.runs.layout import ENDED
from oelm.runs.lease import holder_of
from oelm.runs.status import CellStatus, read_state, read_status
from oelm.study.cells import Cell
from oelm.train.progress import Progress
from oelm.train.signals import catch_signals

_POLL = 0.25  # seconds
_SHOWN = 3  # last lines of a process that ended without an event


@dataclass(frozen=True, kw_only=True)
class Child:
    cell: Cell
    process: subprocess.Popen[bytes]
    stderr: IO[bytes]
    events_file: Path
    reader: EventReader
    events: list[Event] = field(default_factory=list)
    """All of them so far."""
    began: float = field(default_factory=time.monotonic)

    def listen(self, progress: Progress) -> None:
        """Hear what it has to say, and pass on what is worth a line."""
        for event in self.reader.read():
            self.events.append(event)
            if isinstance(event, LogLine):
                name = str(self.cell)
                progress.on_message(event.text if event.text.startswith(name) else f"{name}: {event.text}")

    def close(self) -> None:
        self.stderr.close()
        self.events_file.unlink(missing_ok=True)

    def why_ended(self) -> str:
        """Why it left no record: its own event, or the last lines that it printed."""
        failed = next((event for event in self.events if isinstance(event, CellFailed)), None)
        if failed is not None:
            lines = failed.what.splitlines()[:_SHOWN]
        else:
            self.stderr.seek(0)
            lines = self.stderr.read().decode(errors="replace").strip().splitlines()[-_SHOWN:]
        return " ".join(line.strip() for line in lines) or "no output"

    def where_stopped(self) -> str:
        stopped = next((event for event in self.events if isinstance(event, CellStopped)), None)
        if stopped is None or stopped.step is None:
            return "stopped before its first step"
        return f"stopped at step {stopped.step} of {stopped.total}"


def start_child(words: Sequence[str], cell: Cell, *, env: Mapping[str, str]) -> Child:
    descriptor, name = tempfile.mkstemp(prefix="oelm-events-")
    os.close(descriptor)
    stderr = tempfile.TemporaryFile()  # noqa: SIM115
    try:
        process = subprocess.Popen(
            words,
            env={**os.environ, **env, EVENTS_VARIABLE: name},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            process_group=0,  # a Ctrl-C is for us, and we pass it on once; the priority of our session is theirs too
        )
    except BaseException:
        stderr.close()
        Path(name).unlink(missing_ok=True)
        raise
    path = Path(name)
    return Child(cell=cell, process=process, stderr=stderr, events_file=path, reader=EventReader(path))


def cell_command(study_run: StudyRun, cell: Cell) -> list[str]:
    """Runs a cell. Without -P, a folder `oelm` in the current one would be taken for ours."""
    return [sys.executable, "-P", *cell_arguments(study_run, cell)]


def cell_arguments(study_run: StudyRun, cell: Cell) -> list[str]:
    return ["-m", "oelm", "run", str(study_run.file), "--cell", str(cell), "--out", str(study_run.out)]


def run_children(
    study_run: StudyRun,
    queue: CellQueue,
    progress: Progress,
    *,
    slots: int,
    start: Callable[[int, Cell], Child],
    ended: Callable[[Cell], None] = lambda cell: None,
    stopped: str,
) -> None:
    """Run the cells of a queue, one in every slot, until all have ended, by themselves or because they were asked to.

    `start` starts a cell in a slot, and `ended` hears when it is over. Of a stop, `stopped` is what is said.
    """
    total, running = len(queue), dict[int, Child]()
    with catch_signals() as stop:
        stop.at_once = False
        is_stopping = False
        try:
            while queue or running:
                if stop.signal is not None:
                    queue.clear()
                    if not is_stopping:
                        _stop_all(running)
                    is_stopping = True
                for slot in range(slots):
                    if slot not in running and (cell := queue.next()) is not None:
                        running[slot] = start(slot, cell)
                for slot, child in list(running.items()):
                    child.listen(progress)
                    if child.process.poll() is not None:
                        del running[slot]
                        # By the record: processes may fall over at their exit, with all work done.
                        _report_exit(study_run, child, progress, queue, is_stopping=is_stopping)
                        ended(child.cell)
                status = [_status(study_run, child) for child in running.values()]
                progress.on_status(status, done=total - len(queue) - len(running), of=total)
                time.sleep(_POLL)
        except BaseException:
            _stop_all(running)
            raise
    if stop.signal is not None:
        raise Stopped(stopped, signal=stop.signal)


def _status(study_run: StudyRun, child: Child) -> CellStatus:
    return read_status(study_run.folder / child.cell.folder, study=study_run.study.name, cell=str(child.cell))


def _stop_all(running: Mapping[int, Child]) -> None:
    for child in running.values():
        child.process.send_signal(signal.SIGTERM)  # torchrun passes it on to all of its own


def _report_exit(study_run: StudyRun, child: Child, progress: Progress, queue: CellQueue, *, is_stopping: bool) -> None:
    """What became of a cell: its record says it, or the child did. One that another process has is queued again.

    `is_stopping` is whether we have asked it to stop.
    """
    child.listen(progress)
    folder = study_run.folder / child.cell.folder
    status, holder = read_state(folder), holder_of(folder)
    if holder is not None and holder.is_alive:
        queue.requeue(child.cell)
    elif status in ENDED:
        progress.on_cell_end(child.cell, status=status, seconds=time.monotonic() - child.began)
    elif stop_requested(folder):
        progress.on_message(stop_message(child.cell))
    elif is_stopping:
        progress.on_message(f"{child.cell} {child.where_stopped()}")
    else:
        code = child.process.returncode
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        progress.on_message(f"{child.cell} {ended} and has no record: {child.why_ended()}")
    child.close()
