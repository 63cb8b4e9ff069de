"""Tuning: which point of its grid an arm takes."""

import math
from pathlib import Path

from oelm.errors import StudyError
from oelm.records.record import read_record
from oelm.study.plan import Cell, Point, points
from oelm.study.study import Study


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
