"""Hypotheses: what a study set out to show, judged by the rules that it wrote down.

`supported` if the estimand certainly keeps to the rule, `refuted` if it certainly does not, at 5 % and corrected by
Holm's method over all hypotheses of the study but counts, which are exact: they are its confirmatory tests. Where a
check blocks it, it is `invalid`. Seeds that failed count as in verdicts. What is measured is in `estimands`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from oelm.analysis.checks.lock import changed_hypothesis
from oelm.analysis.checks.registry import Issue
from oelm.analysis.design import alpha_of
from oelm.analysis.estimands import (
    MeasuredEstimand,
    arms_of,
    bounds,
    by_logarithm,
    measure_estimand,
    p_values,
    shown_interval,
)
from oelm.analysis.evidence import SeedOutcomes
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import BothWays, Estimate, Interval, both_ways, holm
from oelm.analysis.stats.power import ALPHA
from oelm.analysis.stats.timed_pairs import count_rounds
from oelm.analysis.verdicts import correction_factor, describe_failures, is_quality, remark_on, with_lacks
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
    deciding: Interval | None = None
    """The one that the status follows from: at the level that Holm's correction leaves this test."""
    estimate: Estimate | None = None
    """What both are made from; of a ratio or a perplexity, its logarithm."""
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
    pull: int = 0
    """Where failures move the estimand, if only one arm has any: -1 down, 1 up."""
    num_undefined: int = 0
    """Seeds in which a value is 0 or below."""
    survivors: HypothesisStatus = "inconclusive"
    """What the seeds that did not fail would say alone; not to be relied on where some did."""
    survivors_p: tuple[float, float] = (1.0, 1.0)
    """Theirs: that it is supported, that it is refuted."""
    family: int = 1
    """How many tests share the level."""
    alpha: float = ALPHA
    """That level, of this look: half of it if a second stage was planned."""
    pending: Message | None = None
    """What was planned, is not there yet, and may decide it: a second stage."""
    exploratory: Message | None = None
    """Why it is no confirmatory test, if it is none."""
    sealed: Message | None = None
    """Why there are no numbers yet, where the study is not complete."""
    why: MessageValue = None
    """Why the status is no other: the checks that block it, or what keeps it open."""

    @property
    def remark(self) -> Message | None:
        """Why the status does not follow from the interval that decides; None where it does."""
        return remark_on(self.why)

    @property
    def exact(self) -> bool:
        """Whether it is a count, the same in every seed: it needs no test."""
        return _is_count(self) and self.value is not None

    def __str__(self) -> str:
        return str(self.message)


def judge_hypotheses(results: Results) -> list[JudgedHypothesis]:
    """Every hypothesis of the study, corrected for how many there are; of a part of the results, those about it."""
    whole = results.whole
    if whole is not None and results.study.seeds == whole.study.seeds:
        return [one for one in whole.hypotheses if {*arms_of(one.hypothesis.estimand)} <= set(results.study.arms)]
    planned = results.planned
    found = _look(results, planned.seeds)
    if planned.second_stage:
        second = _look(results, (*planned.seeds, *planned.second_stage))
        found = {name: _by_stages(results, one, second[name]) for name, one in found.items()}
    for late in (whole or results).study.hypotheses:  # each by itself: no family gets larger by what came later
        if late.name in results.changes.hypotheses:
            one = replace(measure_hypothesis(results, late), exploratory=Message("exploratory-added"))
            found |= judge_family({late.name: one})
    return list(found.values())


def _look(results: Results, seeds: tuple[int, ...]) -> dict[str, JudgedHypothesis]:
    """All that were planned, by these seeds."""
    planned, alpha = results.planned, alpha_of(results.planned)
    measured = {one.name: measure_hypothesis(results, one, seeds=seeds) for one in planned.hypotheses}
    return judge_family({name: replace(one, alpha=alpha) for name, one in measured.items()})


def _by_stages(results: Results, first: JudgedHypothesis, second: JudgedHypothesis) -> JudgedHypothesis:
    """What the first stage has decided stays so; the rest is judged over all seeds, when all of them are there, and
    those of the baseline."""
    if first.status != "inconclusive" or first.sealed is not None or first.timed:
        return first
    estimand, not_run = first.hypothesis.estimand, {seed for outcome in second.outcomes for seed in outcome.not_run}
    is_open = not is_quality(estimand.metric) or set(arms_of(estimand)) <= set(results.second_stage)
    if is_open and not not_run:
        return second
    number = len(second.outcomes[0].planned) - len(first.outcomes[0].planned)
    return _decided(replace(first, pending=Message("why-second-stage", n=number - len(not_run), number=number)))


def judge_family(found: Mapping[str, JudgedHypothesis]) -> dict[str, JudgedHypothesis]:
    """Those that share their level, with their status and message."""
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
            survivors=_status(alone[name], alone_refuted[name], one.alpha),
            deciding=_deciding(one, supported[name], refuted[name], family=len(tested)),
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


def _status(p_supported: float, p_refuted: float, alpha: float) -> HypothesisStatus:
    return "supported" if p_supported < alpha else "refuted" if p_refuted < alpha else "inconclusive"


def _deciding(one: JudgedHypothesis, supported: float, refuted: float, *, family: int) -> Interval | None:
    """Of a test before correction and its corrected p values: as of verdicts, at the level that the correction left it.

    What is `within` by two tests at 5 % each is so by the 90 % interval. Where nothing was decided, it is at the level
    of the whole family.
    """
    if one.estimate is None:
        return None
    status = _status(supported, refuted, one.alpha)
    share = one.alpha / family
    if status == "supported":
        sides = 2 if one.hypothesis.rule == "within" else 1
        share = sides * one.alpha / correction_factor(one.p_supported, supported, family)
    elif status == "refuted":
        share = one.alpha / correction_factor(one.p_refuted, refuted, family)
    return shown_interval(one.hypothesis.estimand, one.estimate.interval(1 - share))


def measure_hypothesis(
    results: Results, hypothesis: Hypothesis, *, seeds: tuple[int, ...] | None = None
) -> JudgedHypothesis:
    """By all planned seeds that are there, or these; by itself, and not decided yet: that depends on what else is
    tested. Checks of records do not concern a bench."""
    found = measure_estimand(results, hypothesis.estimand, seeds=seeds)
    changed = changed_hypothesis(results, hypothesis.name)
    alone = _p_alone(hypothesis, found)
    both = alone
    if found.estimate is not None:
        both = _p_values(hypothesis, both_ways(found.estimate, found.with_failures, found.pull))
    if (found.not_run or found.num_undefined) and not found.exact:
        both = (1.0, 1.0)
    return JudgedHypothesis(
        hypothesis=hypothesis,
        status="invalid" if found.blocked_by or changed else "inconclusive",
        value=found.value,
        interval=found.interval,
        estimate=found.estimate,
        n=found.n,
        p_supported=both[0],
        p_refuted=both[1],
        issues=(*found.issues, *changed),
        sealed=found.sealed,
        message=_NO_MESSAGE,
        lacks=found.lacks,
        timed=found.timed,
        outcomes=found.outcomes,
        worst=found.worst,
        pull=found.pull,
        num_undefined=found.num_undefined,
        survivors_p=alone,
    )


def _p_alone(hypothesis: Hypothesis, found: MeasuredEstimand) -> tuple[float, float]:
    """Of the seeds that did not fail; of a count, whether it is so."""
    if found.value is not None and found.exact:
        low, high = bounds(hypothesis.rule, hypothesis.margin, middle=_middle(hypothesis.estimand))
        return (0.0, 1.0) if low < found.value < high else (1.0, 0.0)
    return _p_values(hypothesis, found.estimate) if found.estimate is not None else (1.0, 1.0)


def _p_values(hypothesis: Hypothesis, estimate: Estimate | BothWays) -> tuple[float, float]:
    """That it keeps to its rule, and that it does not."""
    estimand = hypothesis.estimand
    return p_values(
        estimate,
        hypothesis.rule,
        hypothesis.margin,
        middle=_middle(estimand),
        is_logarithm=by_logarithm(estimand),
    )


def _middle(estimand: Estimand) -> float:
    return 1.0 if estimand.form == "ratio" else 0.0


def _decided(one: JudgedHypothesis) -> JudgedHypothesis:
    """With the status that its p values give, and its message."""
    status = one.status if one.status == "invalid" else _status(one.p_supported, one.p_refuted, one.alpha)
    one = replace(one, status=status)
    one = replace(one, why=_why(one))
    message = Message(
        f"hypothesis-{status}",
        name=one.hypothesis.name,
        rule=str(one.hypothesis),
        margin=one.hypothesis.margin,
        measured=_measured(one),
        why=one.why,
    )
    return replace(one, message=with_lacks(_with_words(one, message), one.lacks))


def _why(one: JudgedHypothesis) -> MessageValue:
    """Why its status does not follow from its numbers alone; None where it does."""
    if one.status == "invalid":
        return tuple(dict.fromkeys(found.code for found in one.issues if found.severity == "invalid"))
    if one.status != "inconclusive" or one.value is None:
        return None
    not_run = {seed for outcome in one.outcomes for seed in outcome.not_run}
    if not_run:
        planned = len(one.outcomes[0].planned)
        return Message("why-incomplete", n=planned - len(not_run), number=planned)
    if one.num_undefined:
        return Message("why-no-ratio", number=one.num_undefined, n=one.n + one.num_undefined)
    if one.worst is not None and one.survivors != "inconclusive":
        alone = Message(f"hypothesis-word-{one.survivors}")
        return Message("why-failures", n=one.n, alone=alone, worst=one.worst)
    if one.estimate is not None and not one.timed and one.n < 2:
        return Message("why-one-seed", n=one.n)
    if one.estimate is not None and one.estimate.no_variation:
        return Message("why-no-variation")
    if _status(*one.survivors_p, ALPHA) == "inconclusive":
        return one.pending
    why = Message("why-family", family=one.family)
    if one.alpha < ALPHA:
        why = Message("why-family-stages", family=one.family, percent=100 * one.alpha)
    return Message("why-both", one=why, other=one.pending) if one.pending is not None else why


def _with_words(one: JudgedHypothesis, message: Message) -> Message:
    """What a status does not follow from its interval for, and which seeds failed."""
    if one.status == "inconclusive" and one.why is not None:
        message = Message("hypothesis-open", status=message, why=one.why)
    if one.status in ("supported", "refuted") and one.exploratory is not None:
        message = Message("verdict-exploratory", verdict=message, why=one.exploratory)
    failed = describe_failures(one.outcomes)
    if not failed:
        return message
    if one.status not in ("supported", "refuted"):
        return Message("verdict-with-failures", verdict=message, failed=failed)
    if one.pull and one.pull == _direction(one):
        return Message("verdict-failures-add", verdict=message, failed=failed)
    return Message("verdict-despite-failures", verdict=message, failed=failed, worst=one.worst)


def _direction(one: JudgedHypothesis) -> int:
    """Of what it is found to be, from the margin: -1 below, 1 above, 0 inside."""
    if one.hypothesis.rule == "within":
        return 0 if one.status == "supported" or one.estimate is None else 1 if one.estimate.mean > 0 else -1
    return 1 if (one.hypothesis.rule == "above") == (one.status == "supported") else -1


def _measured(one: JudgedHypothesis) -> Message:
    if one.value is None:
        return Message("measured-sealed", why=one.sealed) if one.sealed is not None else Message("measured-none")
    values: dict[str, MessageValue] = {"value": one.value}
    if one.timed:
        values["rounds"] = count_rounds(one.n)
    interval = one.deciding or one.interval
    if interval is not None:
        values |= {"low": interval.low, "high": interval.high, "level": interval.level, "n": one.n}
        values["percent"] = 100 * interval.level
        return Message("measured-timed" if one.timed else "measured-interval", **values)
    if one.timed:
        return Message("measured-timed-open", **values)
    return Message("measured-count" if one.value == round(one.value) else "measured-exact", **values)
