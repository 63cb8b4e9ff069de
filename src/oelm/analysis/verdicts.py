"""Verdicts: what the records support about two arms.

The rules, all at 5 %: `equivalent` if two one-sided tests put the difference inside the smallest effect of
interest; else `better` or `worse` if a paired test finds a difference; else `inconclusive`. Where a check blocks the
comparison, it is `invalid`, whatever the numbers. Tests over several arms are corrected by Holm's method.
"""

from __future__ import annotations

import math
import operator
import statistics
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Literal, overload

from oelm.analysis.checks.design import check_results
from oelm.analysis.checks.registry import Issue
from oelm.analysis.evidence import by_example, judged_values, kept_predictions, same_examples, with_examples
from oelm.analysis.results import Results
from oelm.analysis.stats.crossed import Crossed, McNemar, crossed, example_bootstrap, mcnemar
from oelm.analysis.stats.estimate import Estimate, Interval, VarianceSource, bca_interval, from_seeds, holm
from oelm.analysis.stats.power import detectable, seeds_needed
from oelm.message import Message, MessageValue
from oelm.metrics import find_metric, is_higher_better
from oelm.runs.record import Which

Verdict = Literal["better", "worse", "equivalent", "inconclusive", "invalid"]

ALPHA = 0.05
# Standard errors that a true difference must have to be found with 80 % power, where chance is in the examples.
_BY_EXAMPLES = 2.8
_NOTHING = Estimate(mean=math.nan, seeds=VarianceSource(se=math.inf, df=0))
# What can be wrong with a count, with memory, with a time. Quality is another matter, and these are none of its.
_COUNT_CHECKS = ("AUDIT-FAILED", "COUNT-MISSES-BUFFERS", "BASELINE-TREATED")
_MEMORY_CHECKS = ("AUDIT-FAILED", "SETTING-DIFFERS")
TIME_CHECKS = (*_MEMORY_CHECKS, "FIXED-ORDER", "SPEEDUP-ABOVE-CEILING", "TIME-ARITHMETIC", "PADDING-TIMED")


@dataclass(frozen=True, kw_only=True, repr=False)
class Comparison:
    """One arm with another on one metric. Differences are `arm - against`, paired by seed.

    Those of perplexities are of their logarithms, so it is the comparison of the losses; `shown` makes them shares.
    """

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
    over_examples: Interval | None
    """95 %, by bootstrap over the examples alone: for these very seeds."""
    mcnemar: dict[int, McNemar]
    """By seed, for accuracies."""
    margin: float | None
    """The smallest effect of interest."""
    p_differs: float
    p_equivalent: float | None
    detectable: float
    """The smallest true difference that these seeds find with 80 % power."""
    seeds_needed: int | None
    """Seeds to find one of the margin with 80 % power."""
    issues: tuple[Issue, ...]
    lacks: tuple[str, ...] = ()
    """What is damaged and would have been used, by name."""
    verdict: Verdict
    message: Message
    """The verdict with its numbers; printed, it is a sentence."""

    @property
    def n(self) -> int:
        return len(self.differences)

    @overload
    def shown(self, difference: float) -> float: ...
    @overload
    def shown(self, difference: float | None) -> float | None: ...
    def shown(self, difference: float | None) -> float | None:
        """A difference, margin or end of an interval as it is said: of perplexities, the relative change."""
        return find_metric(self.metric).effect(difference) if difference is not None else None

    def shown_interval(self, interval: Interval | None = None) -> Interval:
        """Of this comparison, unless it is another of its intervals."""
        of = interval or self.interval
        return replace(of, low=self.shown(of.low), high=self.shown(of.high))

    @property
    def exact(self) -> bool:
        """Whether it is a count, or memory to the byte, the same in every seed: it needs no interval."""
        return find_metric(self.metric).kind in ("count", "memory") and len(set(self.differences.values())) == 1

    def __str__(self) -> str:
        return str(self.message)

    def __repr__(self) -> str:
        return f"<Comparison: {self}>"

    def _repr_html_(self) -> str:
        import pandas as pd

        shown = self.shown_interval()
        rows = {"verdict": self.verdict, "mean difference": self.shown(self.estimate.mean), "low": shown.low}
        rows |= {"high": shown.high, "n": self.n, "p": self.p_differs}
        named = pd.DataFrame({f"{self.arm} - {self.against}, {self.metric}": rows})
        html: str = named.to_html()
        return html


def comparisons(results: Results) -> dict[str, Comparison]:
    """Every arm against the study's baseline on its primary metric, corrected for how many there are."""
    compare = results.study.compare
    against = results.study.compare.baseline
    if against not in results.arms:
        return {}
    found = {
        arm: compare_arms(results, arm, against=against, metric=compare.metric)
        for arm in results.arms
        if arm != against
    }
    planned = sum(name not in found and name != against for name in results.study.arms)
    return corrected(found, more=planned)


def corrected(found: Mapping[str, Comparison], *, more: int = 0) -> dict[str, Comparison]:
    """Comparisons that are made together, judged together: those that could find something share the 5 %.

    `more` are planned and not there yet: looking at a part of a study first must not make it easier to find something.
    """
    valid = {arm: one for arm, one in found.items() if one.verdict != "invalid" and one.n > 1}
    absent = {f"({number})": 1.0 for number in range(more)}  # no arm has such a name
    differs = holm({**{arm: one.p_differs for arm, one in valid.items()}, **absent})
    equal = holm({**{arm: one.p_equivalent for arm, one in valid.items() if one.p_equivalent is not None}, **absent})
    judged = {
        arm: _judged(replace(one, p_differs=differs[arm], p_equivalent=equal.get(arm))) for arm, one in valid.items()
    }
    return {arm: judged.get(arm, one) for arm, one in found.items()}


def in_terms_of(one: Comparison, metric: str) -> Comparison | None:
    """The same comparison by the name of another metric that asks the same; None if that is another question."""
    return _judged(replace(one, metric=metric)) if _same_question(metric, one.metric) else None


def _same_question(metric: str, other: str) -> bool:
    """A perplexity is judged as the loss that it is the power of."""
    return {metric, other} == {"loss", "perplexity"}


def compare_arms(results: Results, arm: str, *, against: str, metric: str, model: Which = "final") -> Comparison:
    """Two arms on any metric, by itself."""
    one, other = (judged_values(results, name, metric, model=model) for name in (arm, against))
    differences = {seed: one[seed] - other[seed] for seed in one if seed in other}
    compare = results.study.compare
    margin = compare.margin if metric == compare.metric or _same_question(metric, compare.metric) else None
    over_seeds = from_seeds(list(differences.values())) if differences else _NOTHING
    examples = by_example(results, (arm, against), metric, model, differences, operator.sub)
    both = crossed(*examples) if examples is not None else None
    estimate = with_examples(over_seeds, both)
    spread = statistics.stdev(differences.values()) if len(differences) > 1 else math.nan
    issues = issues_of(results, arm, against, metric)
    return _judged(
        Comparison(
            arm=arm,
            against=against,
            metric=metric,
            higher_is_better=is_higher_better(metric),
            differences=differences,
            estimate=estimate,
            interval=estimate.interval(1 - ALPHA),
            over_seeds=over_seeds.interval(1 - ALPHA),
            bootstrap=bca_interval(list(differences.values()), level=1 - ALPHA) if differences else None,
            examples=both,
            over_examples=example_bootstrap(*examples, level=1 - ALPHA) if examples is not None else None,
            mcnemar=_mcnemar(results, arm, against, model, differences) if metric == "accuracy" else {},
            margin=margin,
            p_differs=estimate.p_differs(0.0),
            p_equivalent=estimate.p_within(margin) if margin is not None else None,
            detectable=_detectable(len(differences), spread, estimate),
            seeds_needed=_seeds_needed(margin, spread, estimate),
            issues=issues,
            lacks=results.lacking((arm, against), metric),
            verdict="inconclusive",
            message=Message("verdict-none"),
        )
    )


def _detectable(n: int, spread: float, estimate: Estimate) -> float:
    return math.hypot(detectable(n, spread=spread), _BY_EXAMPLES * _example_error(estimate)) if spread > 0 else math.inf


def _seeds_needed(margin: float | None, spread: float, estimate: Estimate) -> int | None:
    """None where no number of seeds would do: the examples alone leave more open than the margin."""
    error = _BY_EXAMPLES * _example_error(estimate)
    if margin is None or not spread > 0 or error >= margin:
        return None
    return seeds_needed(math.sqrt(margin**2 - error**2), spread=spread)


def _example_error(estimate: Estimate) -> float:
    return estimate.examples.se if estimate.examples is not None else 0.0


def issues_of(results: Results, arm: str, against: str, metric: str) -> tuple[Issue, ...]:
    """What the checks say of this comparison. Counts, memory and times have faults of their own, and no others."""
    own = any({arm, against} == set(pair) for pair in results.compared)
    found = results.checks_of_records if own or arm == against else check_results(results, pair=(arm, against))
    about = [one for one in found if one.applies_to(arm, against)]
    kind = find_metric(metric).kind
    if kind == "count":
        return tuple(one for one in about if one.code in _COUNT_CHECKS)
    if kind == "memory":
        return tuple(_blocking(one) for one in about if one.code in _MEMORY_CHECKS)
    if kind == "time":
        return tuple(_blocking(one) for one in about if one.code in TIME_CHECKS)
    return tuple(about)


def _blocking(issue: Issue) -> Issue:
    """Another machine, or an order that never changes, is worth a word beside an accuracy, and blocks a time."""
    return issue if issue.code in ("PADDING-TIMED", "AUDIT-FAILED") else replace(issue, severity="invalid")


def _mcnemar(results: Results, arm: str, against: str, model: Which, seeds: Collection[int]) -> dict[int, McNemar]:
    """By seed, where both arms kept the same examples."""
    tests = {}
    for seed in seeds:
        one, other = (kept_predictions(results, name, seed, model) for name in (arm, against))
        if one is None or other is None or not same_examples(one, other):
            continue
        left, right = one.scores("accuracy"), other.scores("accuracy")
        if left is not None and right is not None:
            tests[seed] = mcnemar(left > 0, right > 0)
    return tests


def _judged(one: Comparison) -> Comparison:
    """With the verdict and its message."""
    verdict, why = _verdict(one)
    # Equivalence at 5 % is two tests at 5 % each: it is the 90 % interval that lies inside the margin.
    interval = one.estimate.interval(1 - 2 * ALPHA) if verdict == "equivalent" else one.interval
    message = Message(
        _special_key(one, verdict) or f"verdict-{verdict}",
        arm=one.arm,
        against=one.against,
        metric=one.metric,
        n=one.n,
        mean=one.shown(one.estimate.mean),
        low=one.shown(interval.low),
        high=one.shown(interval.high),
        level=interval.level,
        margin=one.shown(one.margin),
        why=why,
    )
    said = _with_warning(message, one) if verdict != "invalid" else message
    return replace(one, verdict=verdict, message=with_lacks(said, one.lacks))


def _with_warning(verdict: Message, one: Comparison) -> Message:
    """A verdict that says which of the two is not known to do better than a model without attention."""
    weak = [found for found in one.issues if (found.code, found.severity) == ("BELOW-SIMPLE-BASELINE", "warn")]
    arms = tuple(arm for arm in (one.against, one.arm) if any(arm in found.arms for found in weak))
    return Message("verdict-below-simple", verdict=verdict, arms=arms) if arms else verdict


def with_lacks(verdict: Message, lacks: tuple[str, ...]) -> Message:
    """A verdict that says what it had to do without."""
    return Message("verdict-lacking", verdict=verdict, files=lacks) if lacks else verdict


def _special_key(one: Comparison, verdict: Verdict) -> str | None:
    """The key of the message for what has no interval."""
    if not one.differences:
        return "verdict-none" if verdict != "invalid" else "verdict-invalid-none"
    if one.exact and verdict != "invalid":
        return "verdict-same" if verdict == "equivalent" else "verdict-exact"
    if verdict == "inconclusive" and (one.n < 2 or one.estimate.no_variation):
        return "verdict-open"
    return None


def _verdict(one: Comparison) -> tuple[Verdict, MessageValue]:
    """And why, where it does not follow from the numbers themselves."""
    blocked = [found for found in one.issues if found.severity == "invalid"]
    if blocked:
        return "invalid", tuple(dict.fromkeys(found.code for found in blocked))
    if one.exact:
        return ("equivalent" if one.estimate.mean == 0 else _direction(one)), None
    if one.n < 2:
        return "inconclusive", Message("why-one-seed", n=one.n)
    if one.estimate.no_variation:
        return "inconclusive", Message("why-no-variation")
    if one.p_equivalent is not None and one.p_equivalent < ALPHA:
        return "equivalent", None
    if one.p_differs < ALPHA:
        return _direction(one), None
    if not one.interval.contains(0):
        return "inconclusive", Message("why-corrected", p=one.p_differs)
    if one.margin is None:
        return "inconclusive", Message("why-no-margin")
    if one.seeds_needed is not None and one.seeds_needed > one.n:
        return "inconclusive", Message("why-more-seeds", number=one.seeds_needed, margin=one.shown(one.margin))
    by_examples = _BY_EXAMPLES * _example_error(one.estimate)
    if one.seeds_needed is None and by_examples >= one.margin:
        key = "why-more-examples" if by_examples > one.detectable / math.sqrt(2) else "why-more-of-both"
        return "inconclusive", Message(key, smallest=one.shown(one.detectable), margin=one.shown(one.margin))
    return "inconclusive", Message("why-too-wide", smallest=one.shown(one.detectable))


def _direction(one: Comparison) -> Verdict:
    return "better" if (one.estimate.mean > 0) == one.higher_is_better else "worse"
