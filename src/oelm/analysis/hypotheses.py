"""Hypotheses: what a study set out to show, judged by the rules that it wrote down.

`supported` if the estimand certainly keeps to the rule, `refuted` if it certainly does not, at 5 % and corrected by
Holm's method over all hypotheses of the study but counts, which are exact: they are its confirmatory tests. Where a
check blocks it, it is `invalid`. Seeds that failed count as in verdicts.

A ratio of step times is judged by what `oelm bench` measured in turns, where it measured both arms: whole trainings on
a machine that others use measure the machine as well.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from oelm.analysis.checks.registry import Issue
from oelm.analysis.evidence import arm_mean, ratio_estimate
from oelm.analysis.failures import SeedOutcomes, seed_outcomes, worst_value
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import Estimate, Interval, from_seeds, holm
from oelm.analysis.stats.power import ALPHA
from oelm.analysis.stats.timed_pairs import TimedPair, count_rounds, timed_pair
from oelm.analysis.verdicts import NOTHING, compare_arms, describe_failures, issues_of, with_lacks
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
    """95 %, by itself; none for a count, which is exact."""
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
    outcomes: tuple[SeedOutcomes, ...] = ()
    """How the planned seeds of its arms ended."""
    worst: float | None = None
    """What a failure counts as, if there is one."""
    survivors: HypothesisStatus = "inconclusive"
    """What the seeds that did not fail would say alone; not to be relied on where some did."""
    survivors_p: tuple[float, float] = (1.0, 1.0)
    """Theirs: that it is supported, that it is refuted."""
    family: int = 1
    """How many tests share the 5 %."""

    def __str__(self) -> str:
        return str(self.message)


def judge_hypotheses(results: Results) -> list[JudgedHypothesis]:
    """Every hypothesis of the study, corrected for how many there are; of a part of the results, those about it."""
    whole = results.whole
    if whole is not None and results.study.seeds == whole.study.seeds:
        return [one for one in whole.hypotheses if {*_arms(one.hypothesis)} <= set(results.study.arms)]
    found = {hypothesis.name: measure_hypothesis(results, hypothesis) for hypothesis in results.planned.hypotheses}
    return list(judge_family(found).values())


def judge_family(found: Mapping[str, JudgedHypothesis]) -> dict[str, JudgedHypothesis]:
    """Those that share the 5 %, with their status and message."""
    # What cannot find anything still counts: a family does not get smaller by what happens to its members.
    tested = {name: one for name, one in found.items() if not _is_count(one)}
    supported = holm({name: _open_p(one, one.p_supported) for name, one in tested.items()})
    refuted = holm({name: _open_p(one, one.p_refuted) for name, one in tested.items()})
    alone = holm({name: _open_p(one, one.survivors_p[0]) for name, one in tested.items()})
    alone_refuted = holm({name: _open_p(one, one.survivors_p[1]) for name, one in tested.items()})
    judged = {
        name: replace(
            one,
            p_supported=supported[name],
            p_refuted=refuted[name],
            survivors=_status(alone[name], alone_refuted[name]),
            family=len(tested),
        )
        for name, one in tested.items()
    }
    return {name: _decided(judged.get(name, one)) for name, one in found.items()}


def _is_count(one: JudgedHypothesis) -> bool:
    """Whether it is exact, and needs no test."""
    return find_metric(one.hypothesis.estimand.metric).kind == "count" and one.interval is None


def _open_p(one: JudgedHypothesis, p: float) -> float:
    return 1.0 if one.status == "invalid" else p


def _status(p_supported: float, p_refuted: float) -> HypothesisStatus:
    return "supported" if p_supported < ALPHA else "refuted" if p_refuted < ALPHA else "inconclusive"


def _arms(hypothesis: Hypothesis) -> tuple[str, ...]:
    estimand = hypothesis.estimand
    return (estimand.arm,) if estimand.against is None else (estimand.arm, estimand.against)


def measure_hypothesis(results: Results, hypothesis: Hypothesis) -> JudgedHypothesis:
    """By itself, and not decided yet, as that depends on what else is tested."""
    estimand = hypothesis.estimand
    if estimand.form == "ratio" and estimand.metric == "step_seconds" and estimand.against is not None:
        pair = timed_pair((results.whole or results).bench, estimand.arm, estimand.against)
        if pair is not None:
            return _judge_timed(hypothesis, pair)
    outcomes = tuple(seed_outcomes(results, arm, estimand.metric) for arm in _arms(hypothesis))
    found = _estimand_values(hypothesis, [one.values for one in outcomes])
    by_seed = {seed: value for seed, value in found.items() if _is_defined(hypothesis, value)}
    values = list(by_seed.values())
    low, high = _bounds(hypothesis)
    against = estimand.against or estimand.arm
    issues = issues_of(results, estimand.arm, against, estimand.metric)
    status: HypothesisStatus = "invalid" if any(found.severity == "invalid" for found in issues) else "inconclusive"
    blank: dict[str, Any] = {"hypothesis": hypothesis, "issues": issues, "n": len(values), "message": _NO_MESSAGE}
    blank |= {"status": status, "outcomes": outcomes, "lacks": results.lacking(_arms(hypothesis), estimand.metric)}
    if not values:
        return JudgedHypothesis(**blank, value=None, interval=None, p_supported=1.0, p_refuted=1.0)
    if find_metric(estimand.metric).kind == "count" and len(set(values)) == 1:
        true = low < values[0] < high
        p_values = (0.0, 1.0) if true else (1.0, 0.0)
        return JudgedHypothesis(**blank, value=values[0], interval=None, p_supported=p_values[0], p_refuted=p_values[1])
    worst = worst_value(results, estimand.metric) if any(one.failed for one in outcomes) else None
    estimate = _estimate(results, estimand, by_seed)
    counted = None
    if worst is not None:
        at_worst = _estimand_values(hypothesis, [one.counted(worst) for one in outcomes])
        counted = _over_seeds(estimand, list(at_worst.values()), like=estimate)
    alone = _p_values(hypothesis, estimate)
    both = alone
    if counted is not None:  # it must hold both ways
        also = _p_values(hypothesis, counted)
        both = (max(alone[0], also[0]), max(alone[1], also[1]))
    if any(one.not_run for one in outcomes):
        both = (1.0, 1.0)
    interval = estimate.interval(1 - ALPHA)
    if is_logarithm := _by_logarithm(estimand):
        interval = replace(interval, low=_exp(interval.low), high=_exp(interval.high))
    return JudgedHypothesis(
        **blank,
        value=_exp(estimate.mean) if is_logarithm else estimate.mean,
        interval=interval,
        p_supported=both[0],
        p_refuted=both[1],
        survivors_p=alone,
        worst=find_metric(estimand.metric).level(worst) if worst is not None else None,
    )


def _estimate(results: Results, estimand: Estimand, by_seed: Mapping[int, float]) -> Estimate:
    """On the same evidence as the comparison of these arms: seeds, and examples where they were kept."""
    if estimand.against is None:
        found = arm_mean(results, estimand.arm, estimand.metric, seeds=by_seed)
        assert found is not None
        return found.estimate
    if estimand.form == "difference":
        return compare_arms(results, estimand.arm, against=estimand.against, metric=estimand.metric).estimate
    return ratio_estimate(results, estimand.arm, estimand.against, estimand.metric, by_seed)


def _over_seeds(estimand: Estimand, values: list[float], *, like: Estimate) -> Estimate:
    """Of other values by seed, with what the examples leave open in another estimate."""
    if _by_logarithm(estimand):
        values = [_log(value) for value in values]
    if not values or not all(map(math.isfinite, values)):
        return NOTHING
    return replace(from_seeds(values), examples=like.examples)


def _by_logarithm(estimand: Estimand) -> bool:
    """Twice as much and half as much are then equally far from 1."""
    return estimand.form == "ratio" or find_metric(estimand.metric).relative


def _is_defined(hypothesis: Hypothesis, value: float) -> bool:
    """Whether a ratio is one: of nothing, or to nothing, there is none."""
    return hypothesis.estimand.form != "ratio" or 0 < value < math.inf


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
        survivors_p=(supported, refuted),
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
    status = one.status if one.status == "invalid" else _status(one.p_supported, one.p_refuted)
    blocked = dict.fromkeys(found.code for found in one.issues if found.severity == "invalid")
    message = Message(
        f"hypothesis-{status}",
        name=one.hypothesis.name,
        rule=str(one.hypothesis),
        margin=one.hypothesis.margin,
        measured=_measured(one),
        why=tuple(blocked),
    )
    one = replace(one, status=status)
    return replace(one, message=with_lacks(_with_words(one, message), one.lacks))


def _with_words(one: JudgedHypothesis, message: Message) -> Message:
    """What a status does not follow from its interval for, and which seeds failed."""
    not_run = {seed for outcome in one.outcomes for seed in outcome.not_run}
    failed = describe_failures(one.outcomes)
    if one.status == "inconclusive" and one.value is not None:
        planned = one.outcomes[0].planned if one.outcomes else ()
        if not_run:
            why = Message("why-incomplete", n=len(planned) - len(not_run), number=len(planned))
            message = Message("hypothesis-open", status=message, why=why)
        elif one.survivors != "inconclusive":
            alone = Message(f"hypothesis-word-{one.survivors}")
            why = Message("why-failures", n=one.n, alone=alone, worst=one.worst)
            message = Message("hypothesis-open", status=message, why=why)
        elif one.family > 1 and _status(*one.survivors_p) != "inconclusive":
            message = Message("hypothesis-open", status=message, why=Message("why-family", family=one.family))
    if not failed:
        return message
    if one.status in ("supported", "refuted"):
        return Message("verdict-despite-failures", verdict=message, failed=failed, worst=one.worst)
    return Message("verdict-with-failures", verdict=message, failed=failed)


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


def _estimand_values(hypothesis: Hypothesis, judged: Sequence[Mapping[int, float]]) -> dict[int, float]:
    """By seed, from those of its arms on the scale on which the metric is judged."""
    level = find_metric(hypothesis.estimand.metric).level
    values = [{seed: level(value) for seed, value in one.items()} for one in judged]
    if len(values) == 1:
        return values[0]
    one, other = values
    shared = [seed for seed in one if seed in other]
    if hypothesis.estimand.form == "difference":
        return {seed: one[seed] - other[seed] for seed in shared}
    return {seed: one[seed] / other[seed] if other[seed] > 0 else math.inf for seed in shared}


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
