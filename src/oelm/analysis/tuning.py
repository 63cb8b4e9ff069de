"""Tuning: which point of the grid a cell takes, by the records of its trials, and what else they say.

Who reads recomputes the choice. The rest is how well the best of k does, and how an arm answers to a setting.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from oelm.analysis.stats.estimate import from_seeds
from oelm.errors import StudyError
from oelm.metrics import Direction
from oelm.runs.record import Record, read_record
from oelm.study.cells import Cell, Point, compared_cells, trials_of
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


def missing_cells(
    study: Study, there: Collection[str], damaged: Collection[str], best: Callable[[Cell], Point]
) -> tuple[Cell, ...]:
    """Cells of a study that have not come to an end: without a record, and still to be tuned or trained. While one that
    was planned is among them, no test number is shown.

    By their names, `there` are the cells and trials with a record that can be read, `damaged` those with another.
    `best` is the point that a cell takes.
    """

    def came_to_nothing(cell: Cell) -> bool:
        trials = [str(trial) for some in trials_of(study, cell).values() for trial in some]
        if not trials or not all(trial in there for trial in trials):
            return False
        try:
            best(cell)
        except StudyError:
            return True
        return False

    waiting = [cell for cell in compared_cells(study) if str(cell) not in there and str(cell) not in damaged]
    return tuple(cell for cell in waiting if not came_to_nothing(cell))


def trial_cost(record: Record, compare: Compare) -> float:
    """The smaller, the better; infinite of a trial that has come to nothing."""
    last = record.last_evaluation.get(compare.metric, math.inf)
    if record.status != "done" or not math.isfinite(last):
        return math.inf
    return -last if compare.direction == "higher" else last


@dataclass(frozen=True, kw_only=True)
class Response:
    """How an arm did at one value of a setting."""

    value: float
    mean: float
    low: float
    high: float
    """The t interval over seeds; infinite from one seed."""
    n: int


def expected_best(values: Sequence[float], k: int, *, better: Direction) -> float:
    """What the best of `k` trials is expected to give, from n >= k trials that were made.

    The mean over all choices of k of the n, without replacement: the j-th worst is the best of C(j - 1, k - 1) of them.
    It is unbiased for k fresh trials. With replacement (Dodge et al. 2019) the same trial is drawn twice, which makes k
    trials look like fewer, and most so for k near n. A trial that diverged (NaN) was a trial, and is worse than all.
    """
    n = len(values)
    if not 1 <= k <= n:
        raise ValueError(f"the best of {k} out of {n} trials")
    sign = 1.0 if better == "higher" else -1.0
    ordered = sorted(-math.inf if math.isnan(value) else sign * value for value in values)
    # The first k - 1 are never the best of k; leaving them out also keeps 0 x inf away.
    return sign * sum(math.comb(rank, k - 1) / math.comb(n, k) * ordered[rank] for rank in range(k - 1, n))


def best_of_k_curve(values: Sequence[float], *, better: Direction) -> list[float]:
    """The expected best of k = 1, ..., n trials: arms are compared at the same k."""
    return [expected_best(values, k, better=better) for k in range(1, len(values) + 1)]


def response(points: Mapping[float, Sequence[float]], *, level: float = 0.95) -> list[Response]:
    """How an arm answers to a setting: from what each of its values gave, seed by seed; in order of the setting."""
    curve = []
    for value in sorted(points):
        estimate = from_seeds(points[value])
        interval = estimate.interval(level)
        curve.append(Response(value=value, mean=estimate.mean, low=interval.low, high=interval.high, n=estimate.n))
    return curve
