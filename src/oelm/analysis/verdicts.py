"""Verdicts: what the records support about two arms, and about the hypotheses of a study.

The rules, all at 5 %: `equivalent` if two one-sided tests put the difference inside what the study calls
uninteresting; else `better` or `worse` if a paired test finds a difference; else `undecided`. Where a check blocks the
comparison, it is `invalid`, whatever the numbers. Tests over several arms or hypotheses are corrected by Holm's method.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from oelm.analysis.checks import check_results
from oelm.analysis.design import hypothesis_pairs
from oelm.analysis.examples import Crossed, McNemar, crossed, mcnemar
from oelm.analysis.flags import Flag
from oelm.analysis.paired import Estimate, Interval, Source, bca_interval, from_seeds, holm
from oelm.analysis.power import detectable, seeds_needed
from oelm.analysis.predictions import Predictions, read_predictions
from oelm.analysis.results import Results
from oelm.errors import CellError
from oelm.study.hypothesis import Hypothesis
from oelm.study.plan import Cell
from oelm.words.text import Text, plain, say

Verdict = Literal["better", "worse", "equivalent", "undecided", "invalid"]
Standing = Literal["supported", "refuted", "undecided", "invalid"]

ALPHA = 0.05
LOWER_IS_BETTER = ("loss", "perplexity", "step_seconds", "training_seconds", "peak_memory", "trainable")
_COUNTED = ("trainable", "frozen", "total")  # exact: they have no interval
_NOTHING = Estimate(mean=math.nan, seeds=Source(se=math.inf, df=0))
# What can be wrong with a count.
_COUNT_CHECKS = ("AUDIT-FAILED", "COUNT-MISSES-BUFFERS", "BASELINE-TREATED")


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One arm with another on one metric. Differences are `arm - against`, paired by seed."""

    arm: str
    against: str
    metric: str
    higher_is_better: bool
    differences: dict[int, float]
    """By seed."""
    estimate: Estimate
    """What the verdict rests on: over seeds and examples where examples were kept, else over seeds."""
    interval: Interval
    """95 %, of the estimate."""
    over_seeds: Interval
    """95 %, by t over the seeds alone: for these very examples."""
    bootstrap: Interval | None
    """95 %, BCa over the seeds; undefined for very few."""
    examples: Crossed | None
    """Both sources of variation, where examples were kept."""
    mcnemar: dict[int, McNemar]
    """By seed, for accuracies."""
    margin: float | None
    """A smaller difference is not interesting."""
    p_differs: float
    p_equivalent: float | None
    detectable: float
    """The smallest true difference that these seeds would find 8 times in 10."""
    seeds_needed: int | None
    """Seeds to find one of the margin, 8 times in 10."""
    flags: tuple[Flag, ...]
    verdict: Verdict
    sentence: Text

    @property
    def n(self) -> int:
        return len(self.differences)

    @property
    def counted(self) -> bool:
        """Whether it is a count, the same in every seed: exact, and in no need of an interval."""
        return self.metric in _COUNTED and len(set(self.differences.values())) == 1

    def __str__(self) -> str:
        return self.sentence.en

    def _repr_html_(self) -> str:
        import pandas as pd

        rows = {"verdict": self.verdict, "mean difference": self.estimate.mean, "low": self.interval.low}
        rows |= {"high": self.interval.high, "n": self.n, "p": self.p_differs}
        named = pd.DataFrame({f"{self.arm} - {self.against}, {self.metric}": rows})
        html: str = named.to_html()
        return html


def comparisons(results: Results) -> dict[str, Comparison]:
    """Every arm against the study's baseline on its primary metric, corrected for how many there are."""
    primary = results.study.compare.primary
    against = results.study.compare.against
    if against not in results.arms:
        return {}
    found = {
        arm: compare(results, arm, against=against, metric=primary.metric) for arm in results.arms if arm != against
    }
    return corrected(found)


def corrected(found: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """Comparisons that are made together, judged together: those that could find something share the 5 %."""
    valid = {arm: one for arm, one in found.items() if one.verdict != "invalid" and one.n > 1}
    differs = holm({arm: one.p_differs for arm, one in valid.items()})
    equal = holm({arm: one.p_equivalent for arm, one in valid.items() if one.p_equivalent is not None})
    judged = {
        arm: _judged(replace(one, p_differs=differs[arm], p_equivalent=equal.get(arm))) for arm, one in valid.items()
    }
    return {arm: judged.get(arm, one) for arm, one in found.items()}


def compare(results: Results, arm: str, *, against: str, metric: str, model: str = "final") -> Comparison:
    """Two arms on any metric, by itself."""
    one, other = (results.values(name, metric, model=model) for name in (arm, against))
    differences = {seed: one[seed] - other[seed] for seed in one if seed in other}
    primary = results.study.compare.primary
    margin = primary.smallest_interesting if metric == primary.metric else None
    over_seeds = from_seeds(list(differences.values())) if differences else _NOTHING
    estimate = over_seeds
    both, tests = _over_examples(results, arm, against, metric, model, list(differences))
    if both is not None:
        estimate = both.estimate
    spread = statistics.stdev(differences.values()) if len(differences) > 1 else math.nan
    flags = _flags(results, arm, against, metric)
    return _judged(
        Comparison(
            arm=arm,
            against=against,
            metric=metric,
            higher_is_better=metric not in LOWER_IS_BETTER,
            differences=differences,
            estimate=estimate,
            interval=estimate.interval(1 - ALPHA),
            over_seeds=over_seeds.interval(1 - ALPHA),
            bootstrap=bca_interval(list(differences.values()), level=1 - ALPHA) if differences else None,
            examples=both,
            mcnemar=tests,
            margin=margin,
            p_differs=estimate.p_differs(0.0),
            p_equivalent=estimate.p_within(margin) if margin is not None else None,
            detectable=detectable(len(differences), spread=spread) if spread > 0 else math.inf,
            seeds_needed=seeds_needed(margin, spread=spread) if margin is not None and spread > 0 else None,
            flags=flags,
            verdict="undecided",
            sentence=plain(""),
        )
    )


def _flags(results: Results, arm: str, against: str, metric: str) -> tuple[Flag, ...]:
    """What the checks say of this comparison; of a count, only what could be wrong with a count."""
    own = against == results.study.compare.against or (arm, against) in hypothesis_pairs(results.study)
    found = results.checks if own or arm == against else check_results(results, pair=(arm, against))
    about = [one for one in found if one.touches(arm, against)]
    return tuple(one for one in about if metric not in _COUNTED or one.code in _COUNT_CHECKS)


def _over_examples(
    results: Results, arm: str, against: str, metric: str, model: str, seeds: list[int]
) -> tuple[Crossed | None, dict[int, McNemar]]:
    """Differences example by example, where both arms kept them for the same examples in every seed."""
    if metric not in ("accuracy", "loss") or not seeds:
        return None, {}
    rows, tests = [], {}
    for seed in seeds:
        pair = [_kept(results, name, seed, model) for name in (arm, against)]
        one, other = pair
        if one is None or other is None or not np.array_equal(one.row, other.row):
            return None, {}
        left, right = one.scores(metric), other.scores(metric)
        if left is None or right is None:
            return None, {}
        if metric == "accuracy":
            tests[seed] = mcnemar(left > 0, right > 0)
        if not (np.isfinite(left).all() and np.isfinite(right).all()):
            return None, {}
        rows.append(left - right)
    if len({len(row) for row in rows}) != 1 or len(rows) < 2 or len(rows[0]) < 2:
        return None, tests
    return crossed(np.stack(rows)), tests


def _kept(results: Results, arm: str, seed: int, model: str) -> Predictions | None:
    try:
        return read_predictions(results.folder / Cell(arm=arm, seed=seed).folder, model=model)
    except CellError:  # said by the checks
        return None


def _judged(one: Comparison) -> Comparison:
    """With the verdict and the sentence that says it."""
    verdict, why = _verdict(one)
    values: dict[str, Any] = {"arm": one.arm, "against": one.against, "metric": one.metric, "n": one.n}
    values |= {"mean": one.estimate.mean, "low": one.interval.low, "high": one.interval.high}
    values |= {"margin": one.margin, "why": why}
    key = f"verdict-{verdict}" if one.differences or verdict == "invalid" else "verdict-none"
    if one.counted and verdict in ("better", "worse"):
        key = "verdict-counted"
    return replace(one, verdict=verdict, sentence=say(key, **values))


def _verdict(one: Comparison) -> tuple[Verdict, Text]:
    blocked = [found for found in one.flags if found.severity == "invalid"]
    if blocked:
        return "invalid", plain(", ".join(dict.fromkeys(found.code for found in blocked)))
    if one.counted and one.estimate.mean != 0:
        return ("better" if (one.estimate.mean > 0) == one.higher_is_better else "worse"), plain("")
    if one.n < 2:
        return "undecided", say("why-one-seed", n=one.n)
    if one.estimate.no_variation:
        return "undecided", say("why-no-variation")
    if one.p_equivalent is not None and one.p_equivalent < ALPHA:
        return "equivalent", plain("")
    if one.p_differs < ALPHA:
        return ("better" if (one.estimate.mean > 0) == one.higher_is_better else "worse"), plain("")
    if not one.interval.contains(0):
        return "undecided", say("why-corrected", p=one.p_differs)
    if one.margin is None:
        return "undecided", say("why-no-margin")
    if one.seeds_needed is None:
        return "undecided", say("why-too-wide")
    return "undecided", say("why-more-seeds", number=max(one.seeds_needed, one.n + 1), margin=one.margin)


@dataclass(frozen=True, kw_only=True)
class Judged:
    """A hypothesis and what the records say of it."""

    hypothesis: Hypothesis
    standing: Standing
    value: float | None
    interval: Interval | None
    """95 %; none for a count, which is exact."""
    n: int
    p_supported: float
    p_refuted: float
    flags: tuple[Flag, ...]
    sentence: Text

    def __str__(self) -> str:
        return self.sentence.en


def judge_hypotheses(results: Results) -> list[Judged]:
    """Every hypothesis of the study, corrected for how many there are."""
    found = [_judge(results, hypothesis) for hypothesis in results.study.hypotheses]
    random = {one.hypothesis.name: one for one in found if one.interval is not None and one.standing != "invalid"}
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
    by_seed = _estimand_values(results, hypothesis)
    values = list(by_seed.values())
    ratio = estimand.form == "ratio"
    low, high = _bounds(hypothesis)
    against = estimand.against or estimand.arm
    flags = _flags(results, estimand.arm, against, estimand.metric)
    counted = estimand.metric in _COUNTED
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
        both, _ = _over_examples(results, estimand.arm, against, estimand.metric, "final", list(by_seed))
        estimate = estimate if both is None else both.estimate
    lower, upper = (_log(low), _log(high)) if ratio else (low, high)
    inside = max(estimate.p_above(lower), estimate.p_below(upper))
    outside = min(estimate.p_below(lower), estimate.p_above(upper))
    interval = estimate.interval(1 - ALPHA)
    if ratio:
        interval = Interval(low=_exp(interval.low), high=_exp(interval.high), level=interval.level)
    sides = 1 if hypothesis.rule == "within" else 2  # two one-sided tests need no doubling
    return Judged(
        **blank,
        standing=standing,
        value=_exp(estimate.mean) if ratio else estimate.mean,
        interval=interval,
        p_supported=1.0 if estimate.no_variation else min(1.0, sides * inside),
        p_refuted=1.0 if estimate.no_variation else min(1.0, 2 * outside),
    )


def _decided(one: Judged) -> Judged:
    standing: Standing = one.standing
    if standing != "invalid":
        standing = "supported" if one.p_supported < ALPHA else "refuted" if one.p_refuted < ALPHA else "undecided"
    blocked = dict.fromkeys(found.code for found in one.flags if found.severity == "invalid")
    told = say("standing-none") if one.value is None else plain(_exact(one.value))
    if one.interval is not None:
        told = say("standing-interval", value=one.value, low=one.interval.low, high=one.interval.high, n=one.n)
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
