"""Tuning: which point of its grid an arm takes."""

import math
from pathlib import Path

from oelm.errors import StudyError
from oelm.runs.record import read_record
from oelm.study.cells import Cell, Point, grid_points
from oelm.study.study import Study


def best_point(study: Study, arm: str, folder: Path, *, seeds: tuple[int, ...] | None = None) -> Point:
    """The point with the best mean on the validation split, over the tuning seeds, at the last step."""
    assert study.tune is not None
    compare = study.compare
    sign = -1.0 if compare.direction == "higher" else 1.0
    scores = {}
    for point in grid_points(study):
        values = []
        for seed in seeds or study.tune.seeds:
            cell = Cell(arm=arm, seed=seed, point=point)
            record = read_record(folder / cell.folder)
            if record is None:
                raise StudyError(
                    f"arm '{arm}' is not tuned yet: {cell} is not done",
                    hint=f"oelm run STUDY, or first: oelm run STUDY --arm {arm} --seed {seed}",
                )
            if record.status in ("failed", "audit-failed"):
                why = record.error.first_line if record.error is not None else "no reason is given"
                raise StudyError(f"its tuning cell {cell} is {record.status}: {why}")
            last = record.last_evaluation.get(compare.metric, math.inf)
            good = record.status == "done" and math.isfinite(last)
            values.append(sign * last if good else math.inf)
        scores[point] = sum(values) / len(values)
    best = min(scores, key=lambda point: scores[point])
    if math.isinf(scores[best]):
        raise StudyError(f"arm '{arm}' has no point of the grid at which all tuning cells came to their end")
    return best
