"""Evidence: what an arm reaches, or two arms differ by, over seeds and, where they were kept, over examples.

Everything is on the scale on which the metric is judged: of a perplexity, its logarithm, which is the loss.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.results import LARGEST, Results
from oelm.analysis.stats.crossed import Crossed, crossed
from oelm.analysis.stats.estimate import Estimate, Interval, from_seeds
from oelm.errors import CellError
from oelm.metrics import find_metric
from oelm.runs.predictions import Predictions
from oelm.runs.record import Which
from oelm.study.cells import Cell


@dataclass(frozen=True, kw_only=True)
class ArmMean:
    """What an arm reaches by itself."""

    mean: float
    """In the unit of the metric; of perplexities the geometric mean, which is that of their losses."""
    interval: Interval
    """95 %: what other seeds, judged on other examples, would give."""
    estimate: Estimate
    """On the scale on which the metric is judged."""

    @property
    def n(self) -> int:
        """How many seeds."""
        return self.estimate.n


def arm_mean(
    results: Results, arm: str, metric: str, *, model: Which = "final", seeds: Collection[int] | None = None
) -> ArmMean | None:
    """Over all seeds, or these; None where none has a value."""
    judged = judged_values(results, arm, metric, model=model)
    judged = {seed: value for seed, value in judged.items() if seeds is None or seed in seeds}
    if not judged:
        return None
    examples = by_example(results, (arm,), metric, model, judged, lambda scores: scores)
    estimate = with_examples(from_seeds(list(judged.values())), crossed(*examples) if examples is not None else None)
    interval, level = estimate.interval(), find_metric(metric).level
    return ArmMean(
        mean=level(estimate.mean),
        interval=Interval(low=level(interval.low), high=level(interval.high), level=interval.level),
        estimate=estimate,
    )


def difference_estimate(results: Results, arm: str, against: str, metric: str, seeds: Collection[int]) -> Estimate:
    """Of two arms over these seeds, on the scale on which the metric is judged."""
    one, other = (judged_values(results, name, metric) for name in (arm, against))
    examples = by_example(results, (arm, against), metric, "final", seeds, operator.sub)
    over_seeds = from_seeds([one[seed] - other[seed] for seed in seeds])
    return with_examples(over_seeds, crossed(*examples) if examples is not None else None)


def ratio_estimate(results: Results, arm: str, against: str, metric: str, ratios: Mapping[int, float]) -> Estimate:
    """Of the logarithm of the ratio of two arms, whose ratios by seed are known."""
    if find_metric(metric).relative:
        combine = operator.sub
    else:  # by how much an example moves the logarithm of either mean
        one, other = (fmean(results.values(name, metric)[seed] for seed in ratios) for name in (arm, against))
        combine = partial(_relative_difference, one=one, other=other)
    examples = by_example(results, (arm, against), metric, "final", ratios, combine)
    over_seeds = from_seeds([math.log(ratio) for ratio in ratios.values()])
    return with_examples(over_seeds, crossed(*examples) if examples is not None else None)


def _relative_difference(
    left: NDArray[np.float64], right: NDArray[np.float64], *, one: float, other: float
) -> NDArray[np.float64]:
    return left / one - right / other


def judged_values(results: Results, arm: str, metric: str, *, model: Which = "final") -> dict[int, float]:
    """Of an arm by seed."""
    values = results.values(arm, metric, model=model) if arm in results.arms else {}
    return {seed: find_metric(metric).judged(value) for seed, value in values.items()}


def with_examples(over_seeds: Estimate, both: Crossed | None) -> Estimate:
    """The same mean, of all seeds, with what the examples leave open, as far as they were kept."""
    return over_seeds if both is None else replace(over_seeds, examples=both.estimate.examples)


def by_example(
    results: Results,
    arms: tuple[str, ...],
    metric: str,
    model: Which,
    seeds: Collection[int],
    combine: Callable[..., NDArray[np.float64]],
) -> tuple[NDArray[np.float64], NDArray[np.int64] | None] | None:
    """What `combine` makes of the arms' scores (seeds, examples), and the weights of the examples, if they have any.

    Over the seeds in which all arms kept the same examples; None where these are fewer than two, or the examples are.
    """
    rows, kept = [], None
    for seed in seeds if metric in ("accuracy", "loss", "perplexity") else ():
        of_arms = [kept_predictions(results, arm, seed, model) for arm in arms]
        scores = [one.scores(metric) if one is not None else None for one in of_arms]
        if any(score is None or not (np.abs(score) <= LARGEST).all() for score in scores):
            continue
        kept = kept or of_arms[0]
        assert kept is not None
        if all(one is not None and same_examples(one, kept) for one in of_arms):
            rows.append(combine(*scores))
    if kept is None or len(rows) < 2 or len(kept.row) < 2:
        return None
    return np.stack(rows), kept.tokens


def same_examples(one: Predictions, other: Predictions) -> bool:
    if (one.tokens is None) != (other.tokens is None) or not np.array_equal(one.row, other.row):
        return False
    return one.tokens is None or np.array_equal(one.tokens, other.tokens)  # type: ignore[arg-type]


def kept_predictions(results: Results, arm: str, seed: int, model: Which) -> Predictions | None:
    try:
        return results.predictions(Cell(arm=arm, seed=seed), model=model)
    except CellError:  # said by the checks
        return None
