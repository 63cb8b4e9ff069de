"""Inline: one cell after the other, in this process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from oelm.errors import Stopped
from oelm.launch.backends.base import LocalBackend
from oelm.launch.backends.options import LocalOptions
from oelm.launch.study_run import CellQueue, StudyRun, run_one_cell, stop_message, stop_requested
from oelm.runs.lease import LeaseHeld
from oelm.study.cells import Cell
from oelm.train.progress import Progress

_POLL = 0.5  # seconds between two looks at cells that others run


class InlineBackend(LocalBackend):
    name = "local"

    @property
    def options(self) -> LocalOptions:
        return LocalOptions()

    def is_inline(self, study_run: StudyRun) -> bool:
        return True

    def devices(self, study_run: StudyRun) -> str:
        from oelm.train.device import describe_device

        return describe_device()

    def run(self, study_run: StudyRun, cells: Sequence[Cell], progress: Progress) -> None:
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
