"""Workers: several cells at once on this machine, each in a process of its own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from oelm.errors import LaunchError, Stopped
from oelm.launch.compare import Begun, Waiting, asked_to_stop, is_to_stop
from oelm.records.lease import holder_of
from oelm.records.standing import Standing, standing_of, status_of
from oelm.records.store import FINISHED
from oelm.study.plan import Cell
from oelm.train.signals import listening
from oelm.train.watch import Watch

_LOOK = 0.25  # seconds
_OURS = re.compile(r"[A-Z]\w*(Error|Failed|Held|Layout|Lost): ")
_SHOWN = 3  # last lines of a process that ended without a record


@dataclass(frozen=True, kw_only=True)
class Child:
    """A process that runs a cell."""

    cell: Cell
    process: subprocess.Popen[bytes]
    told: IO[bytes]
    """What it wrote to its standard error."""
    began: float = field(default_factory=time.monotonic)

    def lines(self) -> list[str]:
        self.told.seek(0)
        return self.told.read().decode(errors="replace").strip().splitlines()

    def stopped(self) -> str | None:
        """Where it stopped because it was asked to, in its own words."""
        return next((line for line in self.lines() if line.startswith("stopped at ")), None)

    def last_words(self) -> str:
        lines = self.lines()
        # Under torchrun, what we said comes before what it says about it.
        ours = next((number for number, line in enumerate(lines) if _OURS.match(line)), None)
        some = lines[-_SHOWN:] if ours is None else lines[ours : ours + _SHOWN]
        return " ".join(line.strip() for line in some)


@dataclass(frozen=True, kw_only=True)
class Workers:
    """Runs so many cells at once: with GPUs each has one to itself, without them each has its share of the cores."""

    number: int

    def __post_init__(self) -> None:
        if self.number < 1:
            raise LaunchError(f"{self.number} workers cannot run anything", hint="--workers 2")

    def __call__(self, begun: Begun, some: Sequence[Cell], watch: Watch) -> None:
        waiting, running = Waiting(begun, begun.missing(some), watch), dict[int, Child]()
        total = len(waiting)
        with listening() as stop:
            stop.at_once = False
            asked = False
            try:
                while waiting or running:
                    for slot in range(self.number):
                        if slot not in running and (cell := waiting.next()) is not None:
                            running[slot] = self._start(begun, cell, slot)
                    if stop.signal is not None and not asked:
                        asked = True
                        waiting.clear()
                        _ask(running, stop.signal)
                    for slot, child in list(running.items()):
                        if child.process.poll() is not None:
                            del running[slot]
                            with child.told:
                                tell(begun, child, watch, waiting, asked=asked)
                    watch.shows(
                        [standing(begun, child) for child in running.values()],
                        done=total - len(waiting) - len(running),
                        of=total,
                    )
                    time.sleep(_LOOK)
            except BaseException:
                _ask(running, signal.SIGTERM)
                raise
        if stop.signal is not None:
            raise Stopped("stopped; the cells that ran have written their checkpoints", signal=stop.signal)

    def _start(self, begun: Begun, cell: Cell, slot: int) -> Child:
        told = tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(
            cell_command(begun.file, str(cell), out=begun.out),
            env={**os.environ, **self.share(slot)},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=told,
            start_new_session=True,  # a Ctrl-C is for us, and we pass it on once
        )
        return Child(cell=cell, process=process, told=told)

    def share(self, slot: int) -> dict[str, str]:
        """What the process in a slot has of the machine, by its environment."""
        gpus = visible_gpus()
        if gpus:
            return {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]}
        return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // self.number))}


def cell_command(study: Path, cell: str, *, out: Path) -> list[str]:
    """What runs a cell. Without -P, a folder `oelm` where it is started would be taken for ours."""
    return [sys.executable, "-P", *cell_words(study, cell, out=out)]


def cell_words(study: Path, cell: str, *, out: Path) -> list[str]:
    return ["-m", "oelm", "train", str(study), "--cell", cell, "--out", str(out)]


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that a child is given one by."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def standing(begun: Begun, child: Child) -> Standing:
    return standing_of(begun.folder / child.cell.folder, study=begun.study.name, cell=str(child.cell))


def _ask(running: dict[int, Child], number: int) -> None:
    for child in running.values():
        child.process.send_signal(number)


def tell(begun: Begun, child: Child, watch: Watch, waiting: Waiting, *, asked: bool) -> None:
    """What became of a cell: its record says it, or nothing does. One that somebody else took first waits again.

    `asked` is whether we have asked it to stop.
    """
    folder = begun.folder / child.cell.folder
    status, holder = status_of(folder), holder_of(folder)
    if holder is not None and holder.is_alive:
        waiting.put_back(child.cell)
    elif status in (*FINISHED, "failed"):
        watch.ends(child.cell, status=status, seconds=time.monotonic() - child.began)
    elif is_to_stop(folder):
        watch.says(asked_to_stop(child.cell))
    elif asked:
        watch.says(f"{child.cell} {child.stopped() or 'stopped before it began'}")
    else:
        code = child.process.returncode
        ended = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        watch.says(f"{child.cell} {ended} and has no record: {child.last_words() or 'it said nothing'}")
