"""Across studies: the mean of an estimand over several, and how much it differs between two (an interaction).

The studies are those that were named, and no sample of others: their mean is that of these data sets, and its interval
is about other seeds and other examples of each. Seeds of different studies are independent; so are test examples,
unless studies share a task: then what is chance in one may be the same chance in the other, and their standard errors
are added up as they are. One part that is blocked, or cannot be known, makes the whole so.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal

from oelm.analysis.checks.registry import Issue
from oelm.analysis.estimands import MeasuredEstimand, bounds, exp_or_inf, measure_estimand, p_values
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import BothWays, Estimate, Interval, VarianceSource, both_ways, weighted_sum
from oelm.analysis.stats.power import ALPHA
from oelm.errors import StudyError
from oelm.message import Message
from oelm.metrics import find_metric
from oelm.study.hypothesis import Estimand, Rule

CombinedStatus = Literal["estimated", "inconclusive", "invalid"]


@dataclass(frozen=True, kw_only=True)
class Part:
    """What one study adds, with its weight in the whole."""

    study: str
    task: str
    weight: float
    measured: MeasuredEstimand

    @property
    def value(self) -> float | None:
        return self.measured.value

    @property
    def why(self) -> Message | None:
        """What leaves it open, if something does."""
        found = self.measured
        if found.blocked_by:
            return Message("part-invalid", study=self.study, codes=found.blocked_by)
        if found.sealed is not None:
            return Message("part-open", study=self.study, why=found.sealed)
        if found.value is None:
            return Message("part-none", study=self.study, estimand=str(found.estimand))
        reason = None
        if found.not_run:
            planned = len(found.outcomes[0].planned)
            reason = Message("why-incomplete", n=planned - len(found.not_run), number=planned)
        elif found.num_undefined:
            reason = Message("why-no-ratio", number=found.num_undefined, n=found.n + found.num_undefined)
        elif not found.exact and (found.estimate is None or math.isinf(found.estimate.se)):
            reason = Message("why-one-seed", n=found.n)
        elif found.estimate is not None and found.estimate.no_variation:
            reason = Message("why-no-variation")
        return Message("part-open", study=self.study, why=reason) if reason is not None else None


@dataclass(frozen=True, kw_only=True)
class Combined:
    """An estimand over several studies."""

    estimand: Estimand
    parts: tuple[Part, ...]
    """In the order in which the studies were named."""
    status: CombinedStatus
    why: tuple[Message, ...]
    """What makes it `invalid` or `inconclusive`, study by study."""
    value: float | None
    """A difference, a ratio, or of an interaction the difference of two; of perplexities always a ratio.
    None where a part has none."""
    interval: Interval | None
    """95 %, by itself; none for counts, which are exact."""
    estimate: Estimate | None
    """On the scale on which it is combined: of perplexities the logarithm, else as it is shown."""
    with_failures: Estimate | None
    """With every failed seed at the worst value, if there is one."""
    pull: int = 0
    """Where failures move it, if that is one way in all studies that have any: -1 down, 1 up."""
    middle: float
    """What no difference is."""

    @property
    def tested(self) -> Estimate | BothWays | None:
        """Both ways to count failures, where there are any; None of counts, and where there is nothing to test."""
        if self.status != "estimated" or self.estimate is None:
            return None
        return both_ways(self.estimate, self.with_failures, self.pull)

    @property
    def issues(self) -> tuple[Issue, ...]:
        """What the checks found in the parts."""
        return tuple(dict.fromkeys(found for part in self.parts for found in part.measured.issues))

    def test(self, rule: Rule, margin: float) -> tuple[float, float]:
        """P values that it keeps to the rule, and that it does not: with failures both ways, as in hypotheses."""
        if self.status != "estimated":
            return 1.0, 1.0
        if self.tested is None:  # counts
            low, high = bounds(rule, margin, middle=self.middle)
            return (0.0, 1.0) if self.value is not None and low < self.value < high else (1.0, 0.0)
        is_logarithm = find_metric(self.estimand.metric).relative
        return p_values(self.tested, rule, margin, middle=self.middle, is_logarithm=is_logarithm)


def mean_over_studies(studies: Sequence[Results], estimand: Estimand) -> Combined:
    """The mean of an estimand over these studies, each with the same weight.

    Of ratios it is the arithmetic mean, as tables print it, with the standard errors of their logarithms carried over
    (delta method); of perplexities the geometric mean, which is that of their losses.
    """
    check_different(studies)
    is_ratio = estimand.form == "ratio" or find_metric(estimand.metric).relative
    return _combine(studies, [1 / len(studies)] * len(studies), estimand, middle=1.0 if is_ratio else 0.0)


def interaction(one: Results, other: Results, estimand: Estimand) -> Combined:
    """How much more it is in the first study: a difference of differences; of perplexities, a ratio of ratios."""
    check_different([one, other])
    return _combine([one, other], [1.0, -1.0], estimand, middle=1.0 if find_metric(estimand.metric).relative else 0.0)


def check_different(studies: Sequence[Results]) -> None:
    """A study that comes twice would count twice."""
    if len(studies) < 2:
        raise StudyError("one study is not several", hint="name the run folders of two studies or more")
    for one, other in combinations(studies, 2):
        if one.study.name == other.study.name:
            raise StudyError(
                f"study '{one.study.name}' is there twice",
                where=f"{one.folder}, {other.folder}",
                why="it would count twice in every mean",
                hint="name every study once",
            )


def _combine(studies: Sequence[Results], weights: Sequence[float], estimand: Estimand, *, middle: float) -> Combined:
    parts = tuple(
        Part(
            study=results.study.name,
            task=results.study.recipe.data.task,
            weight=weight,
            measured=measure_estimand(results, estimand),
        )
        for results, weight in zip(studies, weights, strict=True)
    )
    why = tuple(part.why for part in parts if part.why is not None)
    is_blocked = any(part.measured.blocked_by for part in parts)
    status: CombinedStatus = "invalid" if is_blocked else "inconclusive" if why else "estimated"
    combined = Combined(
        estimand=estimand,
        parts=parts,
        status=status,
        why=why,
        value=None,
        interval=None,
        estimate=None,
        with_failures=None,
        middle=middle,
    )
    values = [part.value for part in parts if part.value is not None]
    if len(values) < len(parts):
        return combined
    if all(part.measured.exact for part in parts):
        return replace(combined, value=sum(weight * value for weight, value in zip(weights, values, strict=True)))
    level = find_metric(estimand.metric).level
    estimate = _weighted([(part, part.measured.estimate) for part in parts])
    interval = estimate.interval(1 - ALPHA)
    failing = [part for part in parts if part.measured.with_failures is not None]
    pulls = {part.measured.pull * int(math.copysign(1, part.weight)) for part in failing}
    counted = [(part, part.measured.with_failures or part.measured.estimate) for part in parts]
    return replace(
        combined,
        value=level(estimate.mean),
        interval=replace(interval, low=level(interval.low), high=level(interval.high)),
        estimate=estimate,
        with_failures=_weighted(counted) if failing else None,
        pull=pulls.pop() if len(pulls) == 1 else 0,
    )


def _weighted(found: Sequence[tuple[Part, Estimate | None]]) -> Estimate:
    return weighted_sum([(part.weight, _on_scale(part.measured, estimate), part.task) for part, estimate in found])


def _on_scale(measured: MeasuredEstimand, estimate: Estimate | None) -> Estimate:
    """On the scale on which studies are combined; of a count that is the same in all seeds, without any chance."""
    if estimate is None:
        value = measured.value if measured.value is not None else math.nan
        se = 0.0 if measured.exact else math.inf
        return Estimate(mean=value, seeds=VarianceSource(se=se, df=max(1, measured.n - 1)))
    estimand = measured.estimand
    if estimand.form != "ratio" or find_metric(estimand.metric).relative:
        return estimate
    ratio = exp_or_inf(estimate.mean)
    if math.isinf(estimate.se) or math.isinf(ratio):
        return Estimate(mean=ratio, seeds=replace(estimate.seeds, se=math.inf))
    examples = replace(estimate.examples, se=ratio * estimate.examples.se) if estimate.examples is not None else None
    return Estimate(mean=ratio, seeds=replace(estimate.seeds, se=ratio * estimate.seeds.se), examples=examples)
