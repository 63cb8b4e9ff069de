"""Study run: which cells of a study are to run, what is missing of them, and the queue that hands them out."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oelm.analysis.tuning import read_best_point, trial_cost
from oelm.errors import CellError, StudyError, did_you_mean
from oelm.runs.files import write_text, writing
from oelm.runs.jobs import Job
from oelm.runs.layout import FINISHED, RUNS, STUDY
from oelm.runs.lease import STOP, holder_of
from oelm.runs.lock import lock_study, make_lock, read_lock
from oelm.runs.record import Record, read_record
from oelm.runs.status import read_state
from oelm.study.cells import (
    Cell,
    both_stages,
    compared_cells,
    is_nested,
    resolve_cell,
    trials_of,
    tuning_cells,
    tuning_seeds,
)
from oelm.study.plugins import consent_options
from oelm.study.study import Study
from oelm.train.progress import Progress

if TYPE_CHECKING:
    from oelm.launch.backends.base import Backend


@dataclass(frozen=True, kw_only=True)
class CellFilter:
    """Which cells of a study are meant. What is None does not matter."""

    arms: tuple[str, ...] | None = None
    seeds: tuple[int, ...] | None = None
    """A seed of the tuning means its grid."""
    cells: tuple[str, ...] | None = None
    """By name: exactly these, with no tuning before them."""

    def tuning(self, study: Study) -> list[Cell]:
        """The cells to tune with. Compared seeds that share their tuning need all of it."""
        seeds, study_seeds = self._seeds(study), both_stages(study).seeds
        if self.cells is None and not is_nested(study) and not set(seeds or ()).isdisjoint(study_seeds):
            seeds = None
        return [cell for cell in tuning_cells(both_stages(study)) if self._has(cell, seeds)]

    def compared(self, study: Study) -> list[Cell]:
        return [cell for cell in compared_cells(both_stages(study)) if self._has(cell, self._seeds(study))]

    def _seeds(self, study: Study) -> tuple[int, ...] | None:
        """Those of a second stage run only if they, or cells of theirs, are named."""
        if self.seeds is not None or self.cells is not None or not study.second_stage:
            return self.seeds
        return study.seeds

    def _has(self, cell: Cell, seeds: tuple[int, ...] | None) -> bool:
        return (
            (self.arms is None or cell.arm in self.arms)
            and (seeds is None or cell.seed in seeds)
            and (self.cells is None or str(cell) in self.cells)
        )

    def check(self, study: Study) -> None:
        """Refuse what the study does not have."""
        both = both_stages(study)
        seeds = tuple(dict.fromkeys((*both.seeds, *tuning_seeds(both))))
        cells = [str(cell) for cell in (*tuning_cells(both), *compared_cells(both))]
        _check_known("arm", self.arms, study.arms, hint=f"one of {', '.join(study.arms)}")
        _check_known("seed", self.seeds, seeds, hint=f"one of {', '.join(map(str, seeds))}, or --set seeds=[...]")
        _check_known("cell", self.cells, cells, hint="oelm plan STUDY")
        if not self.tuning(study) and not self.compared(study):
            raise StudyError("no cell of the study has all of this", hint="oelm plan STUDY")


def _check_known(what: str, given: Sequence[object] | None, known: Iterable[object], *, hint: str) -> None:
    if given is not None and not given:
        raise StudyError(f"no {what} is named", hint=hint)
    for value in given or ():
        if value not in known:
            raise StudyError(f"the study has no {what} {value!r}{did_you_mean(value, map(str, known))}", hint=hint)


@dataclass(frozen=True, kw_only=True)
class StudyRun:
    """A study that is about to run."""

    study: Study
    out: Path
    filter: CellFilter

    @property
    def folder(self) -> Path:
        return self.out / self.study.name

    @property
    def file(self) -> Path:
        """The study, for processes that run its cells, even if another version of it is started meanwhile."""
        text = json.dumps(self.study.to_dict(), sort_keys=True)
        return self.folder / f"study-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"

    @property
    def report_command(self) -> str:
        return f"oelm report {self.folder}{consent_options(self.study.plugins)}"

    @property
    def is_named(self) -> bool:
        """Whether the cells were named one by one."""
        return self.filter.cells is not None

    @property
    def tuning(self) -> list[Cell]:
        return self.filter.tuning(self.study)

    @property
    def compared(self) -> list[Cell]:
        return self.filter.compared(self.study)

    @property
    def cells(self) -> list[Cell]:
        """In the order they run."""
        return [*self.tuning, *self.compared]

    @property
    def arms(self) -> list[str]:
        meant = {cell.arm for cell in self.cells}
        return [arm for arm in self.study.arms if arm in meant]

    def missing(self, cells: Sequence[Cell]) -> list[Cell]:
        return [cell for cell in cells if read_state(self.folder / cell.folder) not in FINISHED]

    @property
    def stages(self) -> list[list[Cell]]:
        """Missing cells; those of a stage wait for the stage before."""
        return [stage for stage in (self.missing(self.tuning), self.missing(self.compared)) if stage]

    def job(self, backend: Backend) -> Job:
        """What is kept of a launch: enough to launch it again."""
        return Job(
            on=backend.on or backend.name,
            cells=tuple(str(cell) for stage in self.stages for cell in stage),
            arms=self.filter.arms,
            seeds=self.filter.seeds,
            named=self.filter.cells,
            given=dict(backend.given),
        )


def open_run(
    study: Study,
    *,
    out: str | Path = RUNS,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    cells: Sequence[str] | None = None,
) -> StudyRun:
    """What there is to run. A study that is not what was planned, and cells of another, are refused; nothing is
    written."""
    from oelm.train.preflight import check_against_lock, check_spec_unchanged

    chosen = CellFilter(
        arms=None if arms is None else tuple(arms),
        seeds=None if seeds is None else tuple(seeds),
        cells=None if cells is None else tuple(cells),
    )
    chosen.check(study)
    study_run = StudyRun(study=study, out=Path(out), filter=chosen)
    # By its cells first, which say most exactly what is another; all of it before any of it.
    lock = read_lock(study_run.folder, study.name) or make_lock(study)
    for cell in study_run.tuning if study.tune is not None else study_run.compared:
        check_spec_unchanged(resolve_cell(study, cell), study_run.folder, lock=lock.digest)
    check_against_lock(study, study_run.folder)
    return study_run


def write_study(study_run: StudyRun) -> None:
    with writing(study_run.folder):
        study_run.folder.mkdir(parents=True, exist_ok=True)
    for file in (study_run.file, study_run.folder / STUDY):
        write_text(file, json.dumps(study_run.study.to_dict(), indent=2) + "\n")


def clear_stop_requests(study_run: StudyRun) -> list[Path]:
    """Let cells that were stopped run again; returns the requests, which are gone."""
    requests = [study_run.folder / cell.folder / STOP for stage in study_run.stages for cell in stage]
    found = [request for request in requests if request.exists()]
    with writing(study_run.folder):
        for request in found:
            request.unlink(missing_ok=True)
    return found


def run_one_cell(study_run: StudyRun, cell: Cell, progress: Progress) -> Record:
    """Train one cell in this process. It is refused if it is not tuned yet, or if it was asked to stop.

    A compared cell of a nested tuning is the best of its trials once more: it goes on from where that one ended.
    """
    from oelm.train.cell import remove_checkpoints, train_cell
    from oelm.train.preflight import check_against_lock

    study, folder = study_run.study, study_run.folder
    lock_study(folder, study)
    lock = check_against_lock(study, folder).digest  # that of whoever was first
    tuned = read_best_point(study, cell, folder) if study.tune is not None and cell.point is None else None
    if stop_requested(folder / cell.folder) and read_state(folder / cell.folder) not in FINISHED:
        raise CellError(f"{cell} was asked to stop", where=str(folder / cell.folder), hint="oelm resume")
    spec = resolve_cell(study, cell, tuned)
    if not is_nested(study):
        return train_cell(spec, root=folder, lock=lock, progress=progress)
    trial = None if tuned is None else folder / replace(cell, point=tuned).folder
    record = train_cell(spec, root=folder, lock=lock, progress=progress, trial=trial, keep_checkpoint=tuned is None)
    for spent in _spent_trials(study, cell, folder):
        remove_checkpoints(folder / spent.folder)
    return record


def _spent_trials(study: Study, cell: Cell, folder: Path) -> list[Cell]:
    """Trials of an arm and a seed that nothing goes on from any more: all but the best that is done so far, and when
    the compared cell is done, that one too."""
    compared = replace(cell, point=None)
    found = {trial: read_record(folder / trial.folder) for (trial,) in trials_of(study, compared).values()}
    costs = {trial: trial_cost(record, study.compare) for trial, record in found.items() if record is not None}
    if read_state(folder / compared.folder) in FINISHED:
        return list(costs)
    best = min(costs, key=lambda trial: costs[trial], default=None)
    return [trial for trial in costs if trial != best]


def stop_requested(folder: Path) -> bool:
    """Whether a cell was asked to stop, and not resumed since."""
    return (folder / STOP).exists()


def stop_message(cell: Cell) -> str:
    return f"{cell} was asked to stop, and has; `oelm resume` continues it"


class CellQueue:
    """Cells that are still to run. Those that others work on come last, and if those finish them, not at all."""

    def __init__(self, study_run: StudyRun, cells: Sequence[Cell], progress: Progress, *, include_leased: bool = False):
        self._study_run, self._cells, self._progress = study_run, list(cells), progress
        self._include_leased, self._has_said = include_leased, False

    def __len__(self) -> int:
        return len(self._cells)

    def requeue(self, cell: Cell) -> None:
        self._cells.append(cell)

    def clear(self) -> None:
        self._cells.clear()

    def next(self) -> Cell | None:
        """Take the next one that is free. A cell that was asked to stop is dropped."""
        leased = []
        for cell in list(self._cells):
            folder = self._study_run.folder / cell.folder
            holder = holder_of(folder)
            if stop_requested(folder) and read_state(folder) not in FINISHED:
                self._cells.remove(cell)
            elif holder is not None and holder.is_alive and not self._include_leased:
                leased.append(f"{cell} ({holder})")
            else:
                self._cells.remove(cell)
                return cell
        if leased and not self._has_said:
            self._progress.on_message(f"waiting for cells that others run: {', '.join(leased)}")
            self._has_said = True
        return None
