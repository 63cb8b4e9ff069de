"""Hypotheses: what a study set out to show, judged by the rules that it wrote down.

`supported` if the estimand certainly keeps to the rule, `refuted` if it certainly does not, at 5 % and corrected by
Holm's method over the hypotheses of the study; a count is exact. Where a check blocks it, it is `invalid`.

A ratio of step times is judged by what `oelm bench` measured in turns, where it measured both arms: whole trainings on
a machine that others use measure the machine as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

from oelm.analysis.checks.registry import Issue
from oelm.analysis.evidence import arm_mean, ratio_estimate
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import Estimate, Interval, holm
from oelm.analysis.stats.timed_pairs import TimedPair, count_rounds, timed_pair
from oelm.analysis.verdicts import ALPHA, compare_arms, issues_of, with_lacks
from oelm.message import Message, MessageValue
from oelm.metrics import find_metric
from oelm.study.hypothesis import Estimand, Hypothesis

HypothesisStatus = Literal["supported", "refuted", "inconclusive", "invalid"]
_NO_MESSAGE = Message("measured-none")  # until it is judged together with the others


@dataclass(frozen=True, kw_only=True)
class JudgedHypothesis:
    """A hypothesis and what the records say of it."""

    hypothesis: Hypothesis
    status: HypothesisStatus
    value: float | None
    interval: Interval | None
    """95 %; none for a count, which is exact."""
    n: int
    """Seeds, or rounds if it was `timed`."""
    p_supported: float
    p_refuted: float
    issues: tuple[Issue, ...]
    message: Message
    """The status with its numbers; printed, it is a sentence."""
    lacks: tuple[str, ...] = ()
    """What is damaged and would have been used, by name."""
    timed: bool = False
    """Whether it is judged by the bench."""

    def __str__(self) -> str:
        return str(self.message)


def judge_hypotheses(results: Results) -> list[JudgedHypothesis]:
    """Every hypothesis of the study, corrected for how many there are."""
    found = [_judge(results, hypothesis) for hypothesis in results.study.hypotheses]
    # Those that could find something share the 5 %.
    random = {one.hypothesis.name: one for one in found if one.interval is not None and one.n > 1}
    random = {name: one for name, one in random.items() if one.status != "invalid"}
    supported = holm({name: one.p_supported for name, one in random.items()})
    refuted = holm({name: one.p_refuted for name, one in random.items()})
    return [
        _decided(replace(one, p_supported=supported[name], p_refuted=refuted[name]))
        if name in random
        else _decided(one)
        for one in found
        for name in [one.hypothesis.name]
    ]


def _judge(results: Results, hypothesis: Hypothesis) -> JudgedHypothesis:
    estimand = hypothesis.estimand
    if estimand.form == "ratio" and estimand.metric == "step_seconds" and estimand.against is not None:
        pair = timed_pair(results.bench, estimand.arm, estimand.against)
        if pair is not None:
            return _judge_timed(hypothesis, pair)
    by_seed = _estimand_values(results, hypothesis)
    values = list(by_seed.values())
    low, high = _bounds(hypothesis)
    against = estimand.against or estimand.arm
    issues = issues_of(results, estimand.arm, against, estimand.metric)
    counted = find_metric(estimand.metric).kind == "count"
    lacks = results.lacking((estimand.arm, against), estimand.metric)
    blank: dict[str, Any] = {"hypothesis": hypothesis, "issues": issues, "n": len(values), "message": _NO_MESSAGE}
    blank["lacks"] = lacks
    status: HypothesisStatus = "invalid" if any(found.severity == "invalid" for found in issues) else "inconclusive"
    if not values:
        return JudgedHypothesis(**blank, status=status, value=None, interval=None, p_supported=1.0, p_refuted=1.0)
    if counted and len(set(values)) == 1:
        true = low < values[0] < high
        return JudgedHypothesis(
            **blank,
            status=status,
            value=values[0],
            interval=None,
            p_supported=0.0 if true else 1.0,
            p_refuted=1.0 if true else 0.0,
        )
    estimate = _estimate(results, estimand, by_seed)
    supported, refuted = _p_values(hypothesis, estimate)
    interval = estimate.interval(1 - ALPHA)
    by_logarithm = _by_logarithm(estimand)
    if by_logarithm:
        interval = replace(interval, low=_exp(interval.low), high=_exp(interval.high))
    return JudgedHypothesis(
        **blank,
        status=status,
        value=_exp(estimate.mean) if by_logarithm else estimate.mean,
        interval=interval,
        p_supported=supported,
        p_refuted=refuted,
    )


def _estimate(results: Results, estimand: Estimand, by_seed: Mapping[int, float]) -> Estimate:
    """On the same evidence as the comparison of these arms: seeds, and examples where they were kept."""
    if estimand.against is None:
        found = arm_mean(results, estimand.arm, estimand.metric)
        assert found is not None
        return found.estimate
    if estimand.form == "difference":
        return compare_arms(results, estimand.arm, against=estimand.against, metric=estimand.metric).estimate
    return ratio_estimate(results, estimand.arm, estimand.against, estimand.metric, by_seed)


def _by_logarithm(estimand: Estimand) -> bool:
    """Twice as much and half as much are then equally far from 1."""
    return estimand.form == "ratio" or find_metric(estimand.metric).relative


def _judge_timed(hypothesis: Hypothesis, pair: TimedPair) -> JudgedHypothesis:
    """By what was measured in turns; the checks of records do not concern it."""
    supported, refuted = _p_values(hypothesis, pair.estimate) if pair.estimate is not None else (1.0, 1.0)
    return JudgedHypothesis(
        hypothesis=hypothesis,
        status="invalid" if pair.issues else "inconclusive",
        value=pair.ratio,
        interval=pair.interval,
        n=pair.rounds,
        p_supported=supported,
        p_refuted=refuted,
        issues=pair.issues,
        message=_NO_MESSAGE,
        timed=True,
    )


def _p_values(hypothesis: Hypothesis, estimate: Estimate) -> tuple[float, float]:
    """That it keeps to its rule, and that it does not; the estimate may be that of a logarithm."""
    if estimate.no_variation:
        return 1.0, 1.0
    low, high = _bounds(hypothesis)
    if _by_logarithm(hypothesis.estimand):
        low, high = _log(low), _log(high)
    inside = max(estimate.p_above(low), estimate.p_below(high))
    outside = min(estimate.p_below(low), estimate.p_above(high))
    sides = 1 if hypothesis.rule == "within" else 2  # two one-sided tests need no doubling
    return min(1.0, sides * inside), min(1.0, 2 * outside)


def _decided(one: JudgedHypothesis) -> JudgedHypothesis:
    """With the status that its p values give, and its message."""
    status: HypothesisStatus = one.status
    if status != "invalid":
        status = "supported" if one.p_supported < ALPHA else "refuted" if one.p_refuted < ALPHA else "inconclusive"
    blocked = dict.fromkeys(found.code for found in one.issues if found.severity == "invalid")
    message = Message(
        f"hypothesis-{status}",
        name=one.hypothesis.name,
        rule=str(one.hypothesis),
        margin=one.hypothesis.margin,
        measured=_measured(one),
        why=tuple(blocked),
    )
    return replace(one, status=status, message=with_lacks(message, one.lacks))


def _measured(one: JudgedHypothesis) -> Message:
    if one.value is None:
        return Message("measured-none")
    values: dict[str, MessageValue] = {"value": one.value}
    if one.timed:
        values["rounds"] = count_rounds(one.n)
    if one.interval is not None:
        values |= {"low": one.interval.low, "high": one.interval.high, "level": one.interval.level, "n": one.n}
        return Message("measured-timed" if one.timed else "measured-interval", **values)
    if one.timed:
        return Message("measured-timed-open", **values)
    return Message("measured-count" if one.value == round(one.value) else "measured-exact", **values)


def _estimand_values(results: Results, hypothesis: Hypothesis) -> dict[int, float]:
    """By seed."""
    estimand = hypothesis.estimand
    values = results.values(estimand.arm, estimand.metric) if estimand.arm in results.arms else {}
    if estimand.against is None:
        return values
    other = results.values(estimand.against, estimand.metric) if estimand.against in results.arms else {}
    shared = [seed for seed in values if seed in other]
    if estimand.form == "difference":
        return {seed: values[seed] - other[seed] for seed in shared}
    ratios = {seed: values[seed] / other[seed] for seed in shared if other[seed] > 0}
    return {seed: ratio for seed, ratio in ratios.items() if 0 < ratio < math.inf}


def _bounds(hypothesis: Hypothesis) -> tuple[float, float]:
    """Between which the estimand must lie."""
    if hypothesis.rule == "below":
        return -math.inf, hypothesis.margin
    if hypothesis.rule == "above":
        return hypothesis.margin, math.inf
    middle = 1.0 if hypothesis.estimand.form == "ratio" else 0.0
    return middle - hypothesis.margin, middle + hypothesis.margin


def _log(value: float) -> float:
    return math.log(value) if value > 0 else -math.inf


def _exp(value: float) -> float:
    return math.exp(value) if value < 700 else math.inf
