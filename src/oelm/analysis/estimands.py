"""Estimands: what the records of a study say of one quantity, before anything is tested.

Seeds that failed count as in verdicts. A ratio of step times is taken from what `oelm bench` measured in turns, where
it measured both arms: whole trainings on a machine that others use measure the machine as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from oelm.analysis.checks.registry import Issue
from oelm.analysis.evidence import (
    SeedOutcomes,
    arm_mean,
    difference_estimate,
    pull_of,
    ratio_estimate,
    seed_outcomes,
    worst_value,
)
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import BothWays, Estimate, Interval, from_seeds
from oelm.analysis.stats.power import ALPHA
from oelm.analysis.stats.timed_pairs import timed_pair
from oelm.analysis.verdicts import NOTHING, is_quality, issues_of
from oelm.message import Message
from oelm.metrics import find_metric
from oelm.study.hypothesis import Estimand, Rule


@dataclass(frozen=True, kw_only=True)
class MeasuredEstimand:
    """An estimand as the records of one study have it."""

    estimand: Estimand
    value: float | None
    """None where no seed has one."""
    interval: Interval | None
    """95 %, by itself; none for a count, which is exact."""
    n: int
    """Seeds, or rounds if it was `timed`."""
    issues: tuple[Issue, ...]
    num_undefined: int = 0
    """Seeds in which there is no ratio, since a value is 0 or below. Those that have one decide nothing alone."""
    estimate: Estimate | None = None
    """Of the seeds that did not fail; of the logarithm where that is what is judged."""
    with_failures: Estimate | None = None
    """With every failure at the worst value, if there is one."""
    pull: int = 0
    """Where failures move it, if only one arm has any: -1 down, 1 up."""
    lacks: tuple[str, ...] = ()
    """What is damaged and would have been used, by name."""
    timed: bool = False
    """Whether it is from the bench."""
    outcomes: tuple[SeedOutcomes, ...] = ()
    """How the planned seeds of its arms ended."""
    worst: float | None = None
    """What a failure counts as, if there is one."""
    sealed: Message | None = None
    """Why there are no numbers yet, where the study is not complete."""

    @property
    def exact(self) -> bool:
        """Whether it is a count, the same in all seeds: it needs no test."""
        return self.value is not None and self.estimate is None and not self.timed

    @property
    def blocked_by(self) -> tuple[str, ...]:
        """Codes of the checks that block it."""
        return tuple(dict.fromkeys(found.code for found in self.issues if found.severity == "invalid"))

    @property
    def not_run(self) -> tuple[int, ...]:
        """Planned seeds that some arm has not run yet."""
        return tuple(sorted({seed for outcome in self.outcomes for seed in outcome.not_run}))


def measure_estimand(results: Results, estimand: Estimand, *, seeds: tuple[int, ...] | None = None) -> MeasuredEstimand:
    """What the records say of an estimand, by all planned seeds that are there, or these."""
    if estimand.form == "ratio" and estimand.metric == "step_seconds" and estimand.against is not None:
        pair = timed_pair((results.whole or results).bench, estimand.arm, estimand.against)
        if pair is not None:
            return MeasuredEstimand(
                estimand=estimand,
                value=pair.ratio,
                interval=pair.interval,
                n=pair.rounds,
                issues=pair.issues,
                estimate=pair.estimate,
                timed=True,
            )
    return _from_records(results, estimand, results.counted(*arms_of(estimand)) if seeds is None else seeds)


def _from_records(results: Results, estimand: Estimand, seeds: tuple[int, ...]) -> MeasuredEstimand:
    arms = arms_of(estimand)
    outcomes = tuple(seed_outcomes(results, arm, estimand.metric, seeds=seeds) for arm in arms)
    found = _by_seed(estimand, [one.values for one in outcomes])
    by_seed = {seed: value for seed, value in found.items() if _is_defined(estimand, value)}
    values = list(by_seed.values())
    blank = MeasuredEstimand(
        estimand=estimand,
        value=None,
        interval=None,
        n=len(values),
        issues=issues_of(results, arms[0], arms[-1], estimand.metric),
        num_undefined=len(found) - len(values),
        lacks=results.lacking(arms, estimand.metric),
        outcomes=outcomes,
        sealed=results.sealed if is_quality(estimand.metric) else None,
    )
    if not values:
        return blank
    if find_metric(estimand.metric).kind == "count" and len(set(values)) == 1:
        return replace(blank, value=values[0])
    estimate = _estimate(results, estimand, by_seed)
    measured = replace(
        blank,
        value=exp_or_inf(estimate.mean) if by_logarithm(estimand) else estimate.mean,
        interval=shown_interval(estimand, estimate.interval(1 - ALPHA)),
        estimate=estimate,
    )
    if not any(one.failed for one in outcomes):
        return measured
    worst = worst_value(results, estimand.metric, outcomes[0].planned)
    at_worst = _by_seed(estimand, [one.counted(worst) for one in outcomes])
    return replace(
        measured,
        with_failures=_over_seeds(estimand, list(at_worst.values()), like=estimate),
        pull=pull_of(results, outcomes, estimand.metric),
        worst=find_metric(estimand.metric).level(worst),
    )


def arms_of(estimand: Estimand) -> tuple[str, ...]:
    return (estimand.arm,) if estimand.against is None else (estimand.arm, estimand.against)


def by_logarithm(estimand: Estimand) -> bool:
    """Twice as much and half as much are then equally far from 1."""
    return estimand.form == "ratio" or find_metric(estimand.metric).relative


def shown_interval(estimand: Estimand, interval: Interval) -> Interval:
    """Of its estimate, in the unit of the estimand."""
    if not by_logarithm(estimand):
        return interval
    return replace(interval, low=exp_or_inf(interval.low), high=exp_or_inf(interval.high))


def p_values(
    estimate: Estimate | BothWays, rule: Rule, margin: float, *, middle: float = 0.0, is_logarithm: bool = False
) -> tuple[float, float]:
    """That what is estimated keeps to a rule, and that it does not; `middle` is no difference, for `within`."""
    if estimate.no_variation:
        return 1.0, 1.0
    low, high = bounds(rule, margin, middle=middle)
    if is_logarithm:
        low, high = _log(low), _log(high)
    inside = max(estimate.p_above(low), estimate.p_below(high))
    outside = min(estimate.p_below(low), estimate.p_above(high))
    sides = 1 if rule == "within" else 2  # two one-sided tests need no doubling
    return min(1.0, sides * inside), min(1.0, 2 * outside)


def bounds(rule: Rule, margin: float, *, middle: float = 0.0) -> tuple[float, float]:
    """Between which the estimand must lie."""
    if rule == "below":
        return -math.inf, margin
    if rule == "above":
        return margin, math.inf
    return middle - margin, middle + margin


def _estimate(results: Results, estimand: Estimand, by_seed: Mapping[int, float]) -> Estimate:
    """On the same evidence as the comparison of these arms: seeds, and examples where they were kept."""
    if estimand.against is None:
        found = arm_mean(results, estimand.arm, estimand.metric, seeds=by_seed)
        assert found is not None
        return found.estimate
    if estimand.form == "difference":
        return difference_estimate(results, estimand.arm, estimand.against, estimand.metric, by_seed)
    return ratio_estimate(results, estimand.arm, estimand.against, estimand.metric, by_seed)


def _over_seeds(estimand: Estimand, values: list[float], *, like: Estimate) -> Estimate:
    """Of other values by seed, with what the examples leave open in another estimate."""
    if by_logarithm(estimand):
        values = [_log(value) for value in values]
    if not values or not all(map(math.isfinite, values)):
        return NOTHING
    return replace(from_seeds(values), examples=like.examples)


def _by_seed(estimand: Estimand, judged: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """From those of its arms on the scale on which the metric is judged."""
    level = find_metric(estimand.metric).level
    values = [{seed: level(value) for seed, value in one.items()} for one in judged]
    if len(values) == 1:
        return values[0]
    one, other = values
    shared = [seed for seed in one if seed in other]
    if estimand.form == "difference":
        return {seed: one[seed] - other[seed] for seed in shared}
    return {seed: one[seed] / other[seed] if other[seed] > 0 else math.inf for seed in shared}


def _is_defined(estimand: Estimand, value: float) -> bool:
    """Whether a ratio is one: of nothing, or to nothing, there is none."""
    return estimand.form != "ratio" or 0 < value < math.inf


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def exp_or_inf(value: float) -> float:
    """Of a logarithm; infinite beyond what a float holds."""
    return math.exp(value) if value < 700 else math.inf
