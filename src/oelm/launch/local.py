"""Run the cells of a study in this process, one after the other."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

from oelm.analysis.results import AllLeftOut, LeftOut, Results, read_results
from oelm.errors import OelmError, StudyError
from oelm.records.record import Record, read_record
from oelm.records.store import FINISHED, RUNS, STUDY, status_of, write_json, writing
from oelm.study.plan import Cell, Point, cells, points, resolve, restricted, tuning_cells
from oelm.study.study import Study
from oelm.train.watch import Watch
from oelm.words.text import plain


def compare(
    study: Study,
    *,
    out: str | Path = RUNS,
    arms: list[str] | None = None,
    seeds: list[int] | None = None,
    watch: Watch | None = None,
) -> Results:
    """Run what is missing of a study, first its tuning, if it has one, then its cells; and read all of it."""
    from oelm.train.cell import run
    from oelm.train.checks import check_arms, check_makings

    part = restricted(study, arms=_known(arms, study), seeds=seeds)
    folder, watch = Path(out) / study.name, watch or Watch()
    for cell in tuning_cells(part):  # all of it before any of it
        check_makings(resolve(study, cell), folder)
    if study.tune is None:
        for cell in cells(part):
            check_makings(resolve(study, cell), folder)
    missing = [cell for cell in (*tuning_cells(part), *cells(part)) if status_of(folder / cell.folder) not in FINISHED]
    if missing:
        check_arms([resolve(study, Cell(arm=arm, seed=part.seeds[0])) for arm in part.arms], watch=watch)
    _write_study(study, folder)
    for cell in tuning_cells(part):
        run(resolve(study, cell), root=folder, watch=watch)
    tuned, untuned = {}, []
    for arm in part.arms if study.tune else ():
        try:
            tuned[arm] = best_point(study, arm, folder)
        except StudyError as error:
            untuned.append(LeftOut(where=arm, why=plain(str(error).splitlines()[0])))
    for cell in cells(part):
        if not any(out.where == cell.arm for out in untuned):
            run(resolve(study, cell, tuned.get(cell.arm)), root=folder, watch=watch)
    read = read_results(folder)
    if missing:  # else whoever only reads would wait for data that may be far away
        _keep_floors(read, tuned, watch)
    shown = read.restricted(arms=list(part.arms), seeds=list(part.seeds))
    return replace(shown, left_out=AllLeftOut((*untuned, *read.left_out)))


def _write_study(study: Study, folder: Path) -> None:
    """What the cells of a folder are compared by, for whoever reads them later."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / STUDY, study.to_dict())


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


def run_cell(study: Study, *, arm: str, seed: int, out: str | Path = RUNS, watch: Watch | None = None) -> Record:
    """Run one cell. A seed of the tuning runs all points of the grid, and returns the record of the best."""
    from oelm.train.cell import run

    _known([arm], study)
    folder, watch = Path(out) / study.name, watch or Watch()
    if study.tune is not None and seed in study.tune.seeds:
        for point in points(study):
            cell = Cell(arm=arm, seed=seed, point=point)
            run(resolve(study, cell), root=folder, watch=watch)
        best = Cell(arm=arm, seed=seed, point=best_point(study, arm, folder, seeds=(seed,)))
        record = read_record(folder / best.folder)
        assert record is not None
        return record
    if seed not in study.seeds:
        raise StudyError(
            f"seed {seed} is not one of the study's",
            hint=f"one of {', '.join(map(str, study.seeds))}, or --set seeds=[...]",
        )
    cell = Cell(arm=arm, seed=seed)
    tuned = best_point(study, arm, folder) if study.tune else None
    return run(resolve(study, cell, tuned), root=folder, watch=watch)


def best_point(study: Study, arm: str, folder: Path, *, seeds: tuple[int, ...] | None = None) -> Point:
    """The point with the best mean on the selection split, over the tuning seeds, at the last step."""
    assert study.tune is not None
    primary = study.compare.primary
    sign = -1.0 if primary.better == "higher" else 1.0
    scores = {}
    for point in points(study):
        values = []
        for seed in seeds or study.tune.seeds:
            cell = Cell(arm=arm, seed=seed, point=point)
            record = read_record(folder / cell.folder)
            if record is None:
                raise StudyError(
                    f"arm '{arm}' is not tuned yet: {cell} is not done",
                    hint=f"oelm compare, or first: oelm train STUDY --arm {arm} --seed {seed}",
                )
            if record.status in ("failed", "audit-failed"):
                why = str((record.error or {}).get("what")).splitlines()[0]
                raise StudyError(f"its tuning cell {cell} is {record.status}: {why}")
            last = record.evaluations[-1].get(primary.metric, math.inf) if record.evaluations else math.inf
            good = record.status == "done" and math.isfinite(last)
            values.append(sign * last if good else math.inf)
        scores[point] = sum(values) / len(values)
    best = min(scores, key=lambda point: scores[point])
    if math.isinf(scores[best]):
        raise StudyError(f"arm '{arm}' has no point of the grid at which all tuning cells came to their end")
    return best


def _known(arms: list[str] | None, study: Study) -> list[str] | None:
    if arms is not None and not arms:
        raise StudyError("no arm is named", hint=f"some of {', '.join(study.arms)}")
    for name in arms or ():
        if name not in study.arms:
            raise StudyError(f"the study has no arm '{name}'", hint=f"one of {', '.join(study.arms)}")
    return arms
