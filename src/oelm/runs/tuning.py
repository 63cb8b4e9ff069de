"""Tuning: which point of the grid a cell takes, from the records of its trials. Who reads recomputes it."""

import math
from collections.abc import Mapping
from pathlib import Path

from oelm.errors import StudyError
from oelm.runs.record import Record, read_record
from oelm.study.cells import Cell, Point, trials_of
from oelm.study.study import Compare, Study


def read_best_point(study: Study, cell: Cell, folder: Path) -> Point:
    """The point that a compared cell takes, by what is in the folder of the study."""
    trials = [trial for some in trials_of(study, cell).values() for trial in some]
    found = {trial: read_record(folder / trial.folder) for trial in trials}
    return best_point(study, cell, {trial: record for trial, record in found.items() if record is not None})


def best_point(study: Study, cell: Cell, records: Mapping[Cell, Record]) -> Point:
    """The point with the best mean on the validation split, over its trials, at the last step."""
    costs = {}
    for point, trials in trials_of(study, cell).items():
        for trial in trials:
            if trial not in records:
                raise StudyError(
                    f"{cell} is not tuned yet: {trial} is not done",
                    hint=f"oelm run STUDY, or first: oelm run STUDY --cell '{trial}'",
                )
            record = records[trial]
            if record.status in ("failed", "audit-failed"):
                why = record.error.first_line if record.error is not None else "no reason is given"
                raise StudyError(f"the tuning of {cell} failed: {trial} is {record.status}: {why}")
        costs[point] = sum(trial_cost(records[trial], study.compare) for trial in trials) / len(trials)
    best = min(costs, key=lambda point: costs[point])
    if math.isinf(costs[best]):
        raise StudyError(f"{cell} has no point of the grid at which all its trials came to their end")
    return best


def trial_cost(record: Record, compare: Compare) -> float:
    """The smaller, the better; infinite of a trial that has come to nothing."""
    last = record.last_evaluation.get(compare.metric, math.inf)
    if record.status != "done" or not math.isfinite(last):
        return math.inf
    return -last if compare.direction == "higher" else last
