"""Checks of the tuning: whether every compared cell was made with what did best, by the records of its trials."""

from __future__ import annotations

import math
from collections.abc import Iterator

from oelm.analysis.checks.registry import Issue, issue
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import from_seeds
from oelm.analysis.tuning import best_point, trial_cost
from oelm.errors import StudyError
from oelm.message import Message, verbatim
from oelm.study.cells import Cell, Point, flatten, is_nested, point_name, trials_of

_LEVEL = 0.95


def check_tuning(results: Results) -> Iterator[Issue]:
    if results.study.tune is None:
        return
    for arm in results.arms:
        yield from _choices(results, arm)
        if not is_nested(results.study):
            yield from _noise(results, arm)


def _choices(results: Results, arm: str) -> Iterator[Issue]:
    """One issue a reason, with all its seeds."""
    wrong: dict[Message, list[int]] = {}
    unknown: Message | None = None  # of several, the first
    for seed, record in results.of(arm).items():
        try:
            best = best_point(results.study, Cell(arm=arm, seed=seed), results.tuning)
        except StudyError as error:
            unknown = unknown or Message("choice-unknown", why=verbatim(str(error).splitlines()[0]))
            wrong.setdefault(unknown, []).append(seed)
            continue
        settings = flatten(record.spec.recipe.to_dict())
        used: Point = tuple((path, settings.get(path)) for path, _ in best)  # type: ignore[misc]
        if used != best:
            found = Message("choice-not-best", used=point_name(used), best=point_name(best))
            wrong.setdefault(found, []).append(seed)
    for why, seeds in wrong.items():
        yield issue("TUNING-UNEQUAL", where=arm, arms=(arm,), key="tuning-choice", seeds=tuple(seeds), why=why)


def _noise(results: Results, arm: str) -> Iterator[Issue]:
    """A choice that all compared seeds share, between points that the tuning seeds cannot tell apart."""
    trials = trials_of(results.study, Cell(arm=arm, seed=results.study.seeds[0]))
    costs = {
        point: [trial_cost(results.tuning[trial], results.study.compare) for trial in some]
        for point, some in trials.items()
        if all(trial in results.tuning for trial in some)
    }
    ranked = sorted((point for point in costs if math.isfinite(sum(costs[point]))), key=lambda point: sum(costs[point]))
    if len(ranked) < 2:
        return
    best, second = ranked[:2]
    apart = [worse - better for worse, better in zip(costs[second], costs[best], strict=True)]
    estimate = from_seeds(apart)
    if estimate.interval(_LEVEL).low <= 0:
        yield issue(
            "TUNING-NOISE",
            where=arm,
            arms=(arm,),
            best=point_name(best),
            second=point_name(second),
            apart=estimate.mean,
            n=len(apart),
        )
