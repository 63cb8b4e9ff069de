"""Workers: several cells at once on this machine, each in a process of its own; one at a time, in this process."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence

from oelm.errors import Stopped
from oelm.launch.backends.base import LocalBackend
from oelm.launch.backends.child import Child, cell_command, child_status, report_exit, start_child
from oelm.launch.backends.inline import InlineBackend
from oelm.launch.backends.options import LocalOptions
from oelm.launch.study_run import CellQueue, StudyRun
from oelm.study.cells import Cell
from oelm.train.progress import Progress
from oelm.train.signals import catch_signals

_POLL = 0.25  # seconds


class WorkersBackend(LocalBackend):
    """With GPUs each worker has one to itself, without them each has its share of the cores."""

    name = "local"

    def __post_init__(self) -> None:
        LocalOptions.resolve(self.given)  # a cell that is run by name does not depend on cluster.yaml

    @property
    def options(self) -> LocalOptions:
        return LocalOptions.resolve(self.given, defaults=self.settings.local)

    def number(self, study_run: StudyRun) -> int:
        """Cells at once. A cell that is run by name has this process, and all that it sees, to itself."""
        if study_run.is_named and "workers" not in self.given:
            return 1
        return self.options.workers or max(1, len(visible_gpus()))

    def is_inline(self, study_run: StudyRun) -> bool:
        return self.number(study_run) == 1

    def devices(self, study_run: StudyRun) -> str:
        from oelm.train.device import describe_device

        number = self.number(study_run)
        if number == 1:
            return describe_device()
        each = [f"{name}={value}" for name, value in self.share(0, number).items()]
        return f"{describe_device()}; {number} workers, the first with {', '.join(each)}"

    def run(self, study_run: StudyRun, cells: Sequence[Cell], progress: Progress) -> None:
        number = self.number(study_run)
        if number == 1:
            InlineBackend().run(study_run, cells, progress)
        else:
            self._run_workers(study_run, cells, progress, number)

    def _run_workers(self, study_run: StudyRun, cells: Sequence[Cell], progress: Progress, number: int) -> None:
        queue, running = CellQueue(study_run, study_run.missing(cells), progress), dict[int, Child]()
        total = len(queue)
        with catch_signals() as stop:
            stop.at_once = False
            is_stopping = False
            try:
                while queue or running:
                    for slot in range(number):
                        if slot not in running and (cell := queue.next()) is not None:
                            words = cell_command(study_run, cell)
                            running[slot] = start_child(words, cell, env=self.share(slot, number))
                    if stop.signal is not None and not is_stopping:
                        is_stopping = True
                        queue.clear()
                        _signal_all(running, stop.signal)
                    for slot, child in list(running.items()):
                        child.listen(progress)
                        if child.process.poll() is not None:
                            del running[slot]
                            report_exit(study_run, child, progress, queue, is_stopping=is_stopping)
                    progress.on_status(
                        [child_status(study_run, child) for child in running.values()],
                        done=total - len(queue) - len(running),
                        of=total,
                    )
                    time.sleep(_POLL)
            except BaseException:
                _signal_all(running, signal.SIGTERM)
                raise
        if stop.signal is not None:
            raise Stopped("stopped; the cells that ran have written their checkpoints", signal=stop.signal)

    def share(self, slot: int, number: int) -> dict[str, str]:
        """What the process in a slot has of the machine, by its environment."""
        gpus = visible_gpus()
        if gpus:
            return {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]}
        return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // number))}


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that a child is given one by."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]


def _signal_all(running: dict[int, Child], number: int) -> None:
    for child in running.values():
        child.process.send_signal(number)
