"""Tuning: what a grid of trials says: the best of k, how an arm answers to a setting, LR sensitivity, edges."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from oelm.metrics import Direction


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
    from oelm.analysis.stats.estimate import from_seeds  # here, so that a check for edges needs no numpy

    curve = []
    for value in sorted(points):
        estimate = from_seeds(points[value])
        interval = estimate.interval(level)
        curve.append(Response(value=value, mean=estimate.mean, low=interval.low, high=interval.high, n=estimate.n))
    return curve


def lr_sensitivity(losses: Sequence[float], *, at_init: float) -> float | None:
    """How much is lost on average by a learning rate of the grid that is not the best one (Wortsman et al. 2023).

    The mean of min(loss, loss at initialization) minus the best loss, in nats. A trial that diverged (infinite) learned
    nothing, and counts as the loss at initialization. None where no trial learned anything: there is no best then, and
    a training that fails everywhere alike would seem to be the least sensitive of all.
    """
    reached = [loss if loss < at_init else at_init for loss in losses]
    best = min(reached)
    return sum(reached) / len(reached) - best if best < at_init else None


def at_edge(chosen: float, grid: Sequence[float]) -> Literal["lowest", "highest"] | None:
    """At which edge of what was tried the choice lies: a better value may be beyond. One or two values are all edge."""
    if chosen <= min(grid):
        return "lowest"
    return "highest" if chosen >= max(grid) else None
