"""Change: what would make a verdict another one: a check that blocks it, what failed, seeds, examples, a margin.

It is said of a study as a whole, each cause once, with all the arms and hypotheses that it is about.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from oelm.analysis.checks.registry import Issue
from oelm.analysis.evidence import SeedOutcomes
from oelm.analysis.hypotheses import JudgedHypothesis
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import Estimate
from oelm.analysis.stats.power import seeds_needed
from oelm.analysis.verdicts import Comparison, describe_failures
from oelm.message import Message, merge_messages
from oelm.metrics import find_metric

# What is open before what is decided.
_ORDER = (
    "change-stage",
    "change-more-seeds",
    "change-seeds",
    "change-examples",
    "change-luck",
    "change-excluded",
    "change-rounds",
    "change-no-margin",
    "change-may-not-matter",
    "change-margin",
    "change-settled",
)


@dataclass(frozen=True, kw_only=True)
class Change:
    about: tuple[str, ...]
    """Arms and hypotheses; none where it is about all of them."""
    message: Message

    def to_dict(self) -> dict[str, object]:
        return {"about": list(self.about), **self.message.to_dict(), "text": str(self.message)}


def what_would_change(results: Results) -> list[Change]:
    """Of the hypotheses, and of every arm against the baseline; what weighs most first."""
    judged: list[tuple[str, Comparison | JudgedHypothesis]] = [
        *((one.hypothesis.name, one) for one in results.hypotheses),
        *((one.arm, one) for one in results.comparisons.values()),
    ]
    outcomes = {outcome.arm: outcome for _, one in judged for outcome in one.outcomes}
    return [
        *_blocking((name, one.issues) for name, one in judged),
        *_missing(outcomes.values()),
        *_failed(outcomes.values()),
        *_by_key((name, _open_or_decided(one, results)) for name, one in judged),
        *_warnings(one.issues for _, one in judged),
    ]


def _blocking(judged: Iterable[tuple[str, Sequence[Issue]]]) -> Iterator[Change]:
    about: dict[Message, list[str]] = {}
    for name, issues in judged:
        for found in issues:
            if found.severity == "invalid":
                about.setdefault(_blocked_by(found), []).append(name)
    for message, names in about.items():
        yield Change(about=tuple(dict.fromkeys(names)), message=message)


def _blocked_by(found: Issue) -> Message:
    """With the place, where that is none of the arms: of what was changed, it is what."""
    places = tuple(place for place in found.places if place not in found.arms)
    if not places:
        return Message("change-blocked", code=found.code, what=found.message)
    return Message("change-blocked-at", code=found.code, places=places, what=found.message)


def _missing(outcomes: Iterable[SeedOutcomes]) -> Iterator[Change]:
    about: dict[tuple[int, ...], list[str]] = {}
    for one in outcomes:
        if one.not_run:
            about.setdefault(one.not_run, []).append(one.arm)
    for seeds, arms in about.items():
        yield Change(about=tuple(arms), message=Message("change-run", seeds=seeds))


def _failed(outcomes: Iterable[SeedOutcomes]) -> Iterator[Change]:
    for one in outcomes:
        for failed in describe_failures([one]):
            yield Change(about=(one.arm,), message=Message("change-failed", failed=failed))


def _warnings(judged: Iterable[Sequence[Issue]]) -> Iterator[Change]:
    """By their codes alone: the checks have the sentences, and the arms."""
    codes = dict.fromkeys(found.code for issues in judged for found in issues if found.severity == "warn")
    if codes:
        yield Change(about=(), message=Message("change-warned", codes=tuple(codes)))


def _by_key(found: Iterable[tuple[str, Iterable[Message]]]) -> Iterator[Change]:
    """What is said of several in the same words, once."""
    alike: dict[str, list[tuple[str, Message]]] = {}
    for name, messages in found:
        for message in messages:
            alike.setdefault(message.key, []).append((name, message))
    for _, same in sorted(alike.items(), key=lambda item: _ORDER.index(item[0])):
        names, messages = zip(*same, strict=True)
        yield Change(about=tuple(dict.fromkeys(names)), message=merge_messages(messages))


def _open_or_decided(one: Comparison | JudgedHypothesis, results: Results) -> Iterator[Message]:
    if isinstance(one, JudgedHypothesis):
        return _of_hypothesis(one, results)
    return _of_comparison(one)


def _of_comparison(one: Comparison) -> Iterator[Message]:
    if one.verdict == "invalid" or one.exact or not one.differences or _is_incomplete(one.outcomes):
        return
    margin = one.shown(one.margin)
    if one.pending is not None:
        yield Message("change-stage", what=one.pending)
    elif one.verdict == "inconclusive":
        if one.n < 2 or one.estimate.no_variation:
            yield Message("change-more-seeds")
        elif one.margin is None:
            yield Message("change-no-margin")
        else:
            alpha = one.alpha / one.family
            yield from _needed(one.estimate, one.margin, alpha=alpha, shown=one.shown(one.margin))
            widest = one.estimate.interval(1 - 2 * alpha)
            yield Message("change-excluded", beyond=_furthest(one, widest.low, widest.high), margin=margin)
    elif one.verdict == "equivalent":
        yield Message("change-margin", margin=margin, least=_furthest(one, one.deciding.low, one.deciding.high))
    elif one.margin is not None:
        least = one.shown(min(abs(one.deciding.low), abs(one.deciding.high)))
        key = "change-settled" if least > one.shown(one.margin) else "change-may-not-matter"
        yield Message(key, least=least, margin=margin)
    else:
        yield Message("change-no-margin")


def _is_incomplete(outcomes: Iterable[SeedOutcomes]) -> bool:
    """Then what is missing comes first."""
    return any(one.not_run for one in outcomes)


def _furthest(one: Comparison, low: float, high: float) -> float:
    """The largest difference that these do not exclude."""
    return one.shown(max(abs(low), abs(high)))


def _of_hypothesis(one: JudgedHypothesis, results: Results) -> Iterator[Message]:
    if one.status != "inconclusive" or one.estimate is None or _is_incomplete(one.outcomes):
        return
    if one.pending is not None:
        yield Message("change-stage", what=one.pending)
        return
    if one.timed:
        yield Message("change-rounds", study=results.study.name)
        return
    if one.n < 2 or one.estimate.no_variation:
        yield Message("change-more-seeds")
        return
    distance = _distance(one, results)
    if distance is not None:
        margin, shown = distance
        yield from _needed(one.estimate, margin, alpha=one.alpha / one.family, shown=shown)


def _distance(one: JudgedHypothesis, results: Results) -> tuple[float, float] | None:
    """From no difference to the margin, on the scale of the estimate and as it is said: of a ratio, relative.

    Of a rule about no difference, what matters in this study, if that is said of its metric.
    """
    estimand, compare = one.hypothesis.estimand, results.study.compare
    is_ratio, is_relative = estimand.form == "ratio", find_metric(estimand.metric).relative
    said = one.hypothesis.margin - (1.0 if is_ratio and one.hypothesis.rule != "within" else 0.0)
    if estimand.form == "value" or (is_ratio and said <= -1):
        return None
    if said == 0:
        if compare.margin is None or estimand.metric != compare.metric or is_ratio != is_relative:
            return None
        return compare.margin, compare.min_effect or 0.0
    return abs(math.log1p(said) if is_ratio else said), abs(said)


def _needed(estimate: Estimate, margin: float, *, alpha: float, shown: float) -> Iterator[Message]:
    """How many seeds would decide on a margin, with 80 % power; or that only more examples would."""
    spread = estimate.seeds.se * math.sqrt(estimate.n)
    example_se = estimate.examples.se if estimate.examples is not None else 0.0
    number = seeds_needed(margin, spread=spread, example_se=example_se, alpha=alpha)
    if number is not None and number > estimate.n:
        yield Message("change-seeds", number=number, margin=shown)
    elif number is None and seeds_needed(margin, spread=spread, alpha=alpha) is not None:
        yield Message("change-examples", margin=shown)
    else:
        yield Message("change-luck", margin=shown, n=estimate.n)
