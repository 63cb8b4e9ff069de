"""Hypotheses: what a study set out to show, judged by the rules that it wrote down.

`supported` if the estimand certainly keeps to the rule, `refuted` if it certainly does not, at 5 % and corrected by
Holm's method over the hypotheses of the study; a count is exact. Where a check blocks it, it is `invalid`.

A ratio of step times is judged by what `oelm bench` measured in turns, where it measured both arms: whole trainings on
a machine that others use measure the machine as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from oelm.analysis.flags import Flag
from oelm.analysis.paired import Estimate, Interval, from_seeds, holm
from oelm.analysis.results import Results
from oelm.analysis.timed import TimedPair, rounds_told, timed_pair
from oelm.analysis.verdicts import ALPHA, COUNTED, compare, flags_of
from oelm.study.hypothesis import Hypothesis
from oelm.words.text import Text, plain, say

Standing = Literal["supported", "refuted", "undecided", "invalid"]


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A hypothesis and what the records say of it."""

    hypothesis: Hypothesis
    standing: Standing
    value: float | None
    interval: Interval | None
    """95 %; none for a count, which is exact."""
    n: int
    """Seeds, or rounds if it was `timed`."""
    p_supported: float
    p_refuted: float
    flags: tuple[Flag, ...]
    sentence: Text
    timed: bool = False
    """Whether it is judged by the bench."""

    def __str__(self) -> str:
        return self.sentence.en


def judge_hypotheses(results: Results) -> list[Judged]:
    """Every hypothesis of the study, corrected for how many there are."""
    found = [_judge(results, hypothesis) for hypothesis in results.study.hypotheses]
    # Those that could find something share the 5 %.
    random = {one.hypothesis.name: one for one in found if one.interval is not None and one.n > 1}
    random = {name: one for name, one in random.items() if one.standing != "invalid"}
    supported = holm({name: one.p_supported for name, one in random.items()})
    refuted = holm({name: one.p_refuted for name, one in random.items()})
    return [
        _decided(replace(one, p_supported=supported[name], p_refuted=refuted[name]))
        if name in random
        else _decided(one)
        for one in found
        for name in [one.hypothesis.name]
    ]


def _judge(results: Results, hypothesis: Hypothesis) -> Judged:
    estimand = hypothesis.estimand
    if estimand.form == "ratio" and estimand.metric == "step_seconds" and estimand.against is not None:
        pair = timed_pair(results.bench, estimand.arm, estimand.against)
        if pair is not None:
            return _judge_timed(hypothesis, pair)
    by_seed = _estimand_values(results, hypothesis)
    values = list(by_seed.values())
    ratio = estimand.form == "ratio"
    low, high = _bounds(hypothesis)
    against = estimand.against or estimand.arm
    flags = flags_of(results, estimand.arm, against, estimand.metric)
    counted = estimand.metric in COUNTED
    blank: dict[str, Any] = {"hypothesis": hypothesis, "flags": flags, "n": len(values), "sentence": plain("")}
    standing: Standing = "invalid" if any(found.severity == "invalid" for found in flags) else "undecided"
    if not values:
        return Judged(**blank, standing=standing, value=None, interval=None, p_supported=1.0, p_refuted=1.0)
    if counted and len(set(values)) == 1:
        true = low < values[0] < high
        return Judged(
            **blank,
            standing=standing,
            value=values[0],
            interval=None,
            p_supported=0.0 if true else 1.0,
            p_refuted=1.0 if true else 0.0,
        )
    # A ratio is estimated by its logarithm: twice as much and half as much are then equally far from 1.
    estimate = from_seeds([math.log(value) for value in values] if ratio else values)
    if estimand.form == "difference":  # on the same evidence as the comparison of these arms
        estimate = compare(results, estimand.arm, against=against, metric=estimand.metric).estimate
    supported, refuted = _p_values(hypothesis, estimate)
    interval = estimate.interval(1 - ALPHA)
    if ratio:
        interval = Interval(low=_exp(interval.low), high=_exp(interval.high), level=interval.level)
    return Judged(
        **blank,
        standing=standing,
        value=_exp(estimate.mean) if ratio else estimate.mean,
        interval=interval,
        p_supported=supported,
        p_refuted=refuted,
    )


def _judge_timed(hypothesis: Hypothesis, pair: TimedPair) -> Judged:
    """By what was measured in turns; the checks of records do not concern it."""
    supported, refuted = _p_values(hypothesis, pair.estimate) if pair.estimate is not None else (1.0, 1.0)
    return Judged(
        hypothesis=hypothesis,
        standing="invalid" if pair.flags else "undecided",
        value=pair.ratio,
        interval=pair.interval,
        n=pair.rounds,
        p_supported=supported,
        p_refuted=refuted,
        flags=pair.flags,
        sentence=plain(""),
        timed=True,
    )


def _p_values(hypothesis: Hypothesis, estimate: Estimate) -> tuple[float, float]:
    """That it keeps to its rule, and that it does not; of a ratio, the estimate is that of its logarithm."""
    if estimate.no_variation:
        return 1.0, 1.0
    low, high = _bounds(hypothesis)
    if hypothesis.estimand.form == "ratio":
        low, high = _log(low), _log(high)
    inside = max(estimate.p_above(low), estimate.p_below(high))
    outside = min(estimate.p_below(low), estimate.p_above(high))
    sides = 1 if hypothesis.rule == "within" else 2  # two one-sided tests need no doubling
    return min(1.0, sides * inside), min(1.0, 2 * outside)


def _decided(one: Judged) -> Judged:
    standing: Standing = one.standing
    if standing != "invalid":
        standing = "supported" if one.p_supported < ALPHA else "refuted" if one.p_refuted < ALPHA else "undecided"
    blocked = dict.fromkeys(found.code for found in one.flags if found.severity == "invalid")
    told = say("standing-none") if one.value is None else plain(_exact(one.value))
    if one.interval is not None:
        key = "standing-timed" if one.timed else "standing-interval"
        numbers = {"value": one.value, "low": one.interval.low, "high": one.interval.high}
        told = say(key, **numbers, n=one.n, rounds=rounds_told(one.n))
    elif one.timed:
        told = say("standing-timed-open", value=one.value, rounds=rounds_told(one.n))
    sentence = say(
        f"standing-{standing}",
        name=one.hypothesis.name,
        rule=str(one.hypothesis),
        told=told,
        why=", ".join(blocked),
    )
    return replace(one, standing=standing, sentence=sentence)


def _exact(value: float) -> str:
    return f"{value:,.0f}" if value == round(value) else f"{value:.4g}"


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
