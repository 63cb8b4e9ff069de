"""Workers: several cells at once on this machine, each in a process of its own; one at a time, in this process."""

import os
import time
from collections.abc import Sequence

from oelm.errors import Stopped
from oelm.launch.backends.base import LocalBackend
from oelm.launch.backends.child import Child, cell_command, run_children, start_child
from oelm.launch.backends.options import LocalOptions
from oelm.launch.study_run import CellQueue, StudyRun, run_one_cell, stop_message, stop_requested
from oelm.runs.lease import LeaseHeld
from oelm.study.cells import Cell
from oelm.train.progress import Progress

_POLL = 0.5  # seconds between two looks at cells that others run


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
            _run_inline(study_run, cells, progress)
            return

        def start(slot: int, cell: Cell) -> Child:
            return start_child(cell_command(study_run, cell), cell, env=self.share(slot, number))

        run_children(
            study_run,
            CellQueue(study_run, study_run.missing(cells), progress),
            progress,
            slots=number,
            start=start,
            stopped="stopped; the cells that ran have written their checkpoints",
        )

    def share(self, slot: int, number: int) -> dict[str, str]:
        """What the process in a slot has of the machine, by its environment."""
        gpus = visible_gpus()
        if gpus:
            return {"CUDA_VISIBLE_DEVICES": gpus[slot % len(gpus)]}
        return {"OMP_NUM_THREADS": str(max(1, len(os.sched_getaffinity(0)) // number))}


class InlineBackend(WorkersBackend):
    """One cell after the other in this process, whatever cluster.yaml says."""

    def number(self, study_run: StudyRun) -> int:
        return 1


def _run_inline(study_run: StudyRun, cells: Sequence[Cell], progress: Progress) -> None:
    queue = CellQueue(study_run, cells, progress)
    while queue:
        cell = queue.next()
        if cell is None:
            time.sleep(_POLL)
            continue
        try:
            run_one_cell(study_run, cell, progress)
        except LeaseHeld:  # somebody was quicker
            queue.requeue(cell)
        except Stopped:
            if not stop_requested(study_run.folder / cell.folder):
                raise
            progress.on_message(stop_message(cell))


def visible_gpus() -> list[str]:
    """The GPUs that this process may use, by the names that a child is given one by."""
    import torch

    named = os.environ.get("CUDA_VISIBLE_DEVICES")
    if not torch.cuda.is_available():
        return []
    return named.split(",") if named else [str(number) for number in range(torch.cuda.device_count())]
