"""Compare: run what is missing of a study, somewhere, and read all of it."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oelm.analysis.results import AllLeftOut, LeftOut, Results, read_results
from oelm.errors import CellError, OelmError, Stopped, StudyError, did_you_mean
from oelm.launch.jobs import Job, keep_job
from oelm.launch.tuning import best_point
from oelm.records.lease import STOP, Held, holder_of
from oelm.records.record import Record, read_record
from oelm.records.standing import status_of
from oelm.records.store import FINISHED, RUNS, STUDY, write_json, writing
from oelm.study.plan import Cell, Point, cells, points, resolve, restricted, tuning_cells
from oelm.study.study import Study
from oelm.train.watch import Watch
from oelm.words.text import plain

_LOOK = 0.5  # seconds between two looks at cells that others work on


@dataclass(frozen=True, kw_only=True)
class Begun:
    """A study that is about to run."""

    study: Study
    part: Study
    """With the arms and seeds that were asked for."""
    out: Path

    @property
    def folder(self) -> Path:
        return self.out / self.study.name

    @property
    def file(self) -> Path:
        """The study with everything in it, for processes that run its cells, also if another is begun meanwhile."""
        text = json.dumps(self.study.to_dict(), sort_keys=True)
        return self.folder / f"study-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"

    def missing(self, some: Sequence[Cell]) -> list[Cell]:
        return [cell for cell in some if status_of(self.folder / cell.folder) not in FINISHED]

    @property
    def stages(self) -> list[list[Cell]]:
        """Missing cells; those of a stage wait for the stage before."""
        return [stage for stage in (self.missing(tuning_cells(self.part)), self.missing(cells(self.part))) if stage]


Runner = Callable[[Begun, Sequence[Cell], Watch], None]
"""Brings cells as far as they come, and says of those that do not come to their end why."""


def looked_at(
    study: Study, *, out: str | Path = RUNS, arms: list[str] | None = None, seeds: list[int] | None = None
) -> Begun:
    """What there is to run. That what is there belongs to the study is checked, and nothing is written."""
    from oelm.train.checks import check_makings

    begun = Begun(study=study, part=restricted(study, arms=_known(arms, study), seeds=seeds), out=Path(out))
    for cell in tuning_cells(begun.part):  # all of it before any of it
        check_makings(resolve(study, cell), begun.folder)
    if study.tune is None:
        for cell in cells(begun.part):
            check_makings(resolve(study, cell), begun.folder)
    return begun


def begin(begun: Begun) -> None:
    """Put the study there."""
    with writing(begun.folder):
        begun.folder.mkdir(parents=True, exist_ok=True)
    for file in (begun.file, begun.folder / STUDY):
        write_json(file, begun.study.to_dict())


def release(begun: Begun) -> list[Path]:
    """Let cells that were stopped run again; what asked them to stop, and is gone."""
    stops = [begun.folder / cell.folder / STOP for stage in begun.stages for cell in stage]
    there = [stop for stop in stops if stop.exists()]
    with writing(begun.folder):
        for stop in there:
            stop.unlink(missing_ok=True)
    return there


def compare(
    study: Study,
    *,
    out: str | Path = RUNS,
    arms: list[str] | None = None,
    seeds: list[int] | None = None,
    watch: Watch | None = None,
    runner: Runner | None = None,
    job: Job | None = None,
) -> Results:
    """Run what is missing of a study, first its tuning, if it has one, then its cells; and read all of it.

    `job` is what to keep of how it was asked for, for `oelm resume`.
    """
    from oelm.train.checks import check_arms

    watch, runner = watch or Watch(), runner or in_this_process
    begun = looked_at(study, out=out, arms=arms, seeds=seeds)
    part, ran = begun.part, bool(begun.stages)
    if ran:
        check_arms([resolve(study, Cell(arm=arm, seed=part.seeds[0])) for arm in part.arms], watch=watch)
    begin(begun)
    release(begun)
    if job is not None and job.cells:
        keep_job(begun.folder, job)
    runner(begun, tuning_cells(part), watch)
    tuned, untuned = {}, []
    for arm in part.arms if study.tune else ():
        try:
            tuned[arm] = best_point(study, arm, begun.folder)
        except StudyError as error:
            untuned.append(LeftOut(where=arm, why=plain(str(error).splitlines()[0])))
    left_out = {one.where for one in untuned}
    runner(begun, [cell for cell in cells(part) if cell.arm not in left_out], watch)
    read = read_results(begun.folder)
    if ran:  # else whoever only reads would wait for data that may be far away
        _keep_floors(read, tuned, watch)
    shown = read.restricted(arms=list(part.arms), seeds=list(part.seeds))
    return replace(shown, left_out=AllLeftOut((*untuned, *read.left_out)))


def in_this_process(begun: Begun, some: Sequence[Cell], watch: Watch) -> None:
    """One cell after the other."""
    waiting = Waiting(begun, some, watch)
    while waiting:
        cell = waiting.next()
        if cell is None:
            time.sleep(_LOOK)
            continue
        try:
            run_named(begun.study, str(cell), out=begun.out, watch=watch)
        except Held:  # somebody was quicker
            waiting.put_back(cell)
        except Stopped:
            if not is_to_stop(begun.folder / cell.folder):
                raise
            watch.says(asked_to_stop(cell))


class Waiting:
    """Cells that are still to run. Those that others work on come last, and if those finish them, not at all."""

    def __init__(self, begun: Begun, some: Sequence[Cell], watch: Watch, *, even_held: bool = False):
        self._begun, self._cells, self._watch = begun, list(some), watch
        self._even_held, self._told = even_held, False

    def __len__(self) -> int:
        return len(self._cells)

    def put_back(self, cell: Cell) -> None:
        self._cells.append(cell)

    def clear(self) -> None:
        self._cells.clear()

    def next(self) -> Cell | None:
        """Take the next one that is free. A cell that was asked to stop is left out."""
        held = []
        for cell in list(self._cells):
            folder = self._begun.folder / cell.folder
            holder = holder_of(folder)
            if is_to_stop(folder) and status_of(folder) not in FINISHED:
                self._cells.remove(cell)
            elif holder is not None and holder.is_alive and not self._even_held:
                held.append(f"{cell} ({holder})")
            else:
                self._cells.remove(cell)
                return cell
        if held and not self._told:
            self._watch.says(f"waiting for what others work on: {', '.join(held)}")
            self._told = True
        return None


def asked_to_stop(cell: Cell) -> str:
    return f"{cell} was asked to stop, and has; `oelm resume` goes on with it"


def is_to_stop(folder: Path) -> bool:
    """Whether a cell was asked to stop, and not to go on since."""
    return (folder / STOP).exists()


def _keep_floors(results: Results, tuned: dict[str, Point], watch: Watch) -> None:
    """What a model without attention reaches on the same rows, where it is not known yet."""
    from oelm.analysis.floors import floor_for, floors_in, keep_floor

    for cell, record in results.records.items():
        if record.status != "done" or floor_for(record, floors_in(results.folder)) is not None:
            continue
        from oelm.train.preparation import prepared_for, reading_for

        watch.prepares("training a model of word counts to compare with", 0, 0)
        recipe = resolve(results.study, cell, tuned.get(cell.arm)).recipe
        try:
            keep_floor(results.folder, prepared_for(recipe, watch), reading_for(recipe))
        except OelmError as error:  # the cells are done, and that is what counts
            watch.says(f"there is no floor to compare with: {str(error).splitlines()[0]}")
            return


def run_named(study: Study, name: str, *, out: str | Path = RUNS, watch: Watch | None = None) -> Record:
    """Run the cell of that name: `baseline/seed-0`."""
    from oelm.train.cell import run

    known = {str(cell): cell for cell in (*tuning_cells(study), *cells(study))}
    if name not in known:
        raise StudyError(f"the study has no cell '{name}'{did_you_mean(name, known)}", hint="oelm plan STUDY")
    cell, folder = known[name], Path(out) / study.name
    tuned = best_point(study, cell.arm, folder) if study.tune is not None and cell.point is None else None
    if is_to_stop(folder / cell.folder) and status_of(folder / cell.folder) not in FINISHED:
        raise CellError(f"{name} was asked to stop", where=str(folder / cell.folder), hint="oelm resume")
    return run(resolve(study, cell, tuned), root=folder, watch=watch or Watch())


def run_cell(study: Study, *, arm: str, seed: int, out: str | Path = RUNS, watch: Watch | None = None) -> Record:
    """Run one cell. A seed of the tuning runs all points of the grid, and returns the record of the best."""
    _known([arm], study)
    if study.tune is not None and seed in study.tune.seeds:
        for point in points(study):
            run_named(study, str(Cell(arm=arm, seed=seed, point=point)), out=out, watch=watch)
        folder = Path(out) / study.name
        best = Cell(arm=arm, seed=seed, point=best_point(study, arm, folder, seeds=(seed,)))
        record = read_record(folder / best.folder)
        assert record is not None
        return record
    if seed not in study.seeds:
        raise StudyError(
            f"seed {seed} is not one of the study's",
            hint=f"one of {', '.join(map(str, study.seeds))}, or --set seeds=[...]",
        )
    return run_named(study, str(Cell(arm=arm, seed=seed)), out=out, watch=watch)


def _known(arms: list[str] | None, study: Study) -> list[str] | None:
    if arms is not None and not arms:
        raise StudyError("no arm is named", hint=f"some of {', '.join(study.arms)}")
    for name in arms or ():
        if name not in study.arms:
            raise StudyError(f"the study has no arm '{name}'", hint=f"one of {', '.join(study.arms)}")
    return arms
