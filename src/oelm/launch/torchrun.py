"""Torchrun: one cell over several processes, on this machine or, with an agent on each, on several.

The processes find each other through a file in the folder of the cell, which all of them see anyway; so nothing of
torchrun's listens on a socket. What they tell each other goes over the given interface, loopback by default.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass

from oelm.errors import LaunchError, Stopped
from oelm.launch.compare import Begun, Waiting
from oelm.launch.workers import Child, cell_words, standing, tell
from oelm.study.plan import Cell
from oelm.train.ranks import STORE
from oelm.train.signals import Stop, listening
from oelm.train.watch import Watch

_LOOK = 0.25  # seconds


@dataclass(frozen=True, kw_only=True)
class Torchrun:
    """Runs one cell after the other, each over `nproc` processes on `nnodes` machines."""

    nproc: int
    nnodes: int = 1
    meeting: str | None = None
    """With several machines: a name that the agents of one launch share."""
    interface: str = "lo"

    def __post_init__(self) -> None:
        if self.nproc < 1 or self.nnodes < 1:
            raise LaunchError("a cell needs at least one process", hint="--nproc 2")
        if self.meeting is not None and not re.fullmatch(r"[\w.-]{1,100}", self.meeting):
            raise LaunchError(f"{self.meeting!r} is no name to meet by", hint="letters, digits, '.', '_' or '-'")
        if self.nnodes > 1 and self.meeting is None:
            raise LaunchError(
                f"{self.nnodes} agents need a name to meet by", hint="the same --meeting NAME for each of them"
            )

    def __call__(self, begun: Begun, some: Sequence[Cell], watch: Watch) -> None:
        # Agents of one launch go through the same cells at the same time: what is held is held by one of them.
        together = self.nnodes > 1
        waiting = Waiting(begun, begun.missing(some), watch, even_held=together)
        total = len(waiting)
        with listening() as stop:
            stop.at_once = False
            while waiting and stop.signal is None:
                cell = waiting.next()
                if cell is None:
                    time.sleep(_LOOK)
                    continue
                child = self._start(begun, cell)
                _follow(begun, child, stop, watch, done=total - len(waiting) - 1, of=total)
                with child.told:  # by the record: processes may fall over at their exit, with all work done
                    tell(begun, child, watch, waiting, asked=stop.signal is not None)
                if not together:  # elsewhere others may still look at them; they go with the next lease
                    for file in (begun.folder / cell.folder).glob(".store-*"):
                        file.unlink(missing_ok=True)
        if stop.signal is not None:
            raise Stopped("stopped; `oelm logs` says at which step", signal=stop.signal)

    def _start(self, begun: Begun, cell: Cell) -> Child:
        folder = begun.folder / cell.folder
        folder.mkdir(parents=True, exist_ok=True)
        meeting = self.meeting or secrets.token_hex(4)
        store = (folder / f".store-{meeting}").absolute()
        if store.exists():  # it is made when all agents have met
            raise LaunchError(
                f"the meeting '{meeting}' was held already",
                where=str(folder),
                hint="the same command on every machine, with a new --meeting",
            )
        told = tempfile.TemporaryFile()  # noqa: SIM115
        process = subprocess.Popen(
            [*self.command(store=str(store), meeting=meeting), *cell_words(begun.file, str(cell), out=begun.out)],
            env={**os.environ, **self.environment(str(store))},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=told,
            start_new_session=True,
        )
        return Child(cell=cell, process=process, told=told)

    def command(self, *, store: str, meeting: str) -> list[str]:
        words = [sys.executable, "-P", "-m", "torch.distributed.run"]
        words += [f"--nnodes={self.nnodes}", f"--nproc-per-node={self.nproc}", "--max-restarts=0"]
        words += ["--rdzv-backend=c10d", f"--rdzv-endpoint={store}.agents", "--rdzv-conf=store_type=file"]
        words += ["--local-addr=127.0.0.1"] if self.interface == "lo" else []
        return [*words, f"--rdzv-id={meeting}"]

    def environment(self, store: str) -> dict[str, str]:
        threads = max(1, len(os.sched_getaffinity(0)) // self.nproc)
        return {
            STORE: store,
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",  # it would listen on every interface
            "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "600",  # seconds for a checkpoint; else it has 30
            "GLOO_SOCKET_IFNAME": self.interface,
            "NCCL_SOCKET_IFNAME": self.interface,
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads)),
        }


def _follow(begun: Begun, child: Child, stop: Stop, watch: Watch, *, done: int, of: int) -> None:
    """Until the processes have ended, by themselves or because they were asked to."""
    asked = False
    while child.process.poll() is None:
        if stop.signal is not None and not asked:
            asked = True
            child.process.send_signal(signal.SIGTERM)  # torchrun passes it on to all
        watch.shows([standing(begun, child)], done=done, of=of)
        time.sleep(_LOOK)
