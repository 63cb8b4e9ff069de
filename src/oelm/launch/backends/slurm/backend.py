"""Slurm as a backend: one task to a cell."""

from collections.abc import Callable, Sequence
from pathlib import Path

from oelm.launch.backends.base import RemoteBackend
from oelm.launch.backends.slurm.options import SlurmOptions
from oelm.launch.backends.slurm.queue import SlurmTask, cancel, render_scripts, states, submit, tasks_of
from oelm.launch.backends.slurm.script import Submission
from oelm.launch.study_run import StudyRun
from oelm.runs.jobs import Job
from oelm.runs.status import CellStatus
from oelm.study.plugins import plugin_arguments


class SlurmBackend(RemoteBackend):
    name = "slurm"

    @property
    def options(self) -> SlurmOptions:
        return SlurmOptions.resolve(self.given, defaults=self.settings.slurm)

    def submit(self, study_run: StudyRun, *, log: Callable[[str], None]) -> dict[str, str]:
        return submit(self._submission(study_run), _stages(study_run))

    def render(self, study_run: StudyRun) -> list[str]:
        return render_scripts(self._submission(study_run), _stages(study_run))

    def status(self, job: Job) -> dict[str, CellStatus]:
        return {cell: _status(cell, task) for cell, task in states(job).items() if task.state is not None}

    def stop(self, job: Job, cells: Sequence[str]) -> None:
        """Those that run have been asked already, and write their checkpoints first."""
        known = states(job)
        queued = [cell for cell in cells if cell in known and known[cell].state == "queued"]
        if queued:
            cancel(job, queued)

    def logs(self, job: Job, *, study: Path, cell: str) -> list[Path]:
        """What the batch script has written is more than the cell has only if the cell could not begin."""
        path = study / "slurm" / f"{tasks_of(job).get(cell)}.out"
        return [*super().logs(job, study=study, cell=cell), *([path] if path.exists() and path.stat().st_size else [])]

    def _submission(self, study_run: StudyRun) -> Submission:
        return Submission(
            name=study_run.study.name,
            study=study_run.file.absolute(),
            out=study_run.out.absolute(),
            folder=study_run.folder.absolute(),
            options=self.options,
            cluster=self.settings,
            workdir=Path.cwd(),
            plugins=tuple(plugin_arguments(study_run.study.plugins)),
        )


def _stages(study_run: StudyRun) -> list[list[str]]:
    return [[str(cell) for cell in stage] for stage in study_run.stages]


def _status(cell: str, task: SlurmTask) -> CellStatus:
    where = f"slurm {task.node}" if task.node else f"slurm ({task.reason})" if task.reason else "slurm"
    return CellStatus(
        study="",
        cell=cell,
        where=where,
        state="queued" if task.state == "queued" else "running",
        step=0,
        steps=None,
        eta=None,
        loss=None,
        result="",
    )
