"""Verdicts: what the records support about two arms.

The rules, all at 5 % (with a planned second stage, at half of it in each of the two looks): `equivalent` if two
one-sided tests put the difference inside the smallest effect of interest; else `better` or `worse` if a paired test
finds a difference; else `inconclusive`. Where a check blocks the comparison, it is `invalid`, whatever the numbers. The
arms of a study are one family of tests, corrected by Holm's method, however many of them are looked at. A verdict is
given at the planned number of seeds, and must hold with the seeds that failed at their worst value, unless these could
only add to it (`evidence`).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal, overload

from oelm.analysis.checks.design import check_results
from oelm.analysis.checks.registry import Issue
from oelm.analysis.design import alpha_of
from oelm.analysis.evidence import (
    SeedOutcomes,
    by_example,
    kept_predictions,
    pull_of,
    same_examples,
    seed_outcomes,
    with_examples,
    worst_value,
)
from oelm.analysis.results import Results
from oelm.analysis.stats.crossed import Crossed, McNemar, crossed, example_bootstrap, mcnemar
from oelm.analysis.stats.estimate import (
    BothWays,
    Estimate,
    Interval,
    VarianceSource,
    bca_interval,
    both_ways,
    from_seeds,
    holm,
)
from oelm.analysis.stats.power import ALPHA, detectable, seeds_needed
from oelm.message import Message, MessageValue
from oelm.metrics import find_metric, is_higher_better
from oelm.runs.record import Which

Verdict = Literal["better", "worse", "equivalent", "inconclusive", "invalid"]

NOTHING = Estimate(mean=math.nan, seeds=VarianceSource(se=math.inf, df=0))
# What can be wrong with a count, with memory, with a time. Quality is another matter, and these are none of its.
_COUNT_CHECKS = ("AUDIT-FAILED", "COUNT-MISSES-BUFFERS", "BASELINE-TREATED")
_MEMORY_CHECKS = ("AUDIT-FAILED", "SETTING-DIFFERS", "CHANGED-AFTER-START")
# Nor need a baseline be a good one for its LR sensitivity to be known.
_TUNING_CHECKS = (
    *("AUDIT-FAILED", "SETTING-DIFFERS", "CHANGED-AFTER-START", "UNPAIRED", "TUNING-UNEQUAL", "INERT-SCHEDULE"),
    *("BASELINE-TREATED", "SCALE-CONFOUND", "PRETRAINED-ERASED", "MANY-FACTORS"),
)
# Reasons why nothing is decided, whatever the interval.
_INSTEAD_OF_INTERVAL = (
    "why-incomplete",
    "why-failures",
    "why-no-seed",
    "why-one-seed",
    "why-no-variation",
    "why-no-ratio",
)
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
    """By seed, of the seeds that failed in neither arm."""
    estimate: Estimate
    """What the verdict rests on: over seeds and examples where examples were kept, else over seeds."""
    interval: Interval
    """95 %, of the estimate, by itself."""
    deciding: Interval
    """The one that the verdict follows from: at the level that Holm's correction leaves this test."""
    over_seeds: Interval
    """95 %, by t over the seeds alone: for these very examples."""
    examples: Crossed | None
    """Both sources of variation, where examples were kept."""
    margin: float | None
    """The smallest effect of interest."""
    family: int
    """How many tests share the level: of an exploratory comparison by itself, 1."""
    alpha: float = ALPHA
    """That level, of this look: half of it if a second stage was planned."""
    pending: Message | None = None
    """What was planned, is not there yet, and may decide it: a second stage."""
    p_differs: float
    """Corrected for the family; with failures, both ways to count them (`BothWays`)."""
    p_equivalent: float | None
    detectable: float
    """The smallest true difference that these seeds and examples find with 80 % power, as one of the family."""
    seeds_needed: int | None
    """Seeds with which a new study would decide on the margin with 80 % power: find it, or show that there is none.
    None where no number would do."""
    outcomes: tuple[SeedOutcomes, ...]
    """How the planned seeds of both arms ended."""
    worst: float | None
    """What a failure counts as, if there is one, on the scale on which the metric is judged."""
    with_failures: Estimate | None
    """With every failure at the worst value."""
    pull: int = 0
    """Where failures move the difference, if only the arm has any: -1 down, 1 up."""
    survivors: Verdict = "inconclusive"
    """What the seeds that did not fail would say alone; not to be relied on where some did."""
    exploratory: Message | None = None
    """Why it is no confirmatory test, if it is none."""
    issues: tuple[Issue, ...]
    lacks: tuple[str, ...] = ()
    """What is damaged and would have been used, by name."""
    sealed: Message | None = None
    """Why there are no numbers yet, where the study is not complete."""
    verdict: Verdict
    why: MessageValue = None
    """Why it is no other: the checks that block it, or what keeps it open."""
    message: Message
    """The verdict with its numbers; printed, it is a sentence."""
    results: Results | None = field(default=None, compare=False)
    """Those that are compared."""
    model: Which = "final"

    # Shown beside a verdict, and no part of it: whoever does not show them need not wait for them.

    @cached_property
    def bootstrap(self) -> Interval | None:
        """95 %, BCa over the seeds; undefined for very few."""
        return bca_interval(list(self.differences.values()), level=1 - ALPHA) if self.differences else None

    @cached_property
    def over_examples(self) -> Interval | None:
        """95 %, by bootstrap over the examples alone: for these very seeds."""
        if self.results is None:
            return None
        arms = (self.arm, self.against)
        examples = by_example(self.results, arms, self.metric, self.model, self.differences, operator.sub)
        return example_bootstrap(*examples, level=1 - ALPHA) if examples is not None else None

    @cached_property
    def mcnemar(self) -> dict[int, McNemar]:
        """By seed, for accuracies."""
        if self.results is None or self.metric != "accuracy":
            return {}
        return _mcnemar(self.results, self.arm, self.against, self.model, self.differences)

    @property
    def remark(self) -> Message | None:
        """Why the verdict does not follow from the interval that decides; None where it does."""
        return remark_on(self.why)

    @property
    def tested(self) -> Estimate | BothWays:
        return both_ways(self.estimate, self.with_failures, self.pull)

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
    def worst_shown(self) -> float | None:
        """In the unit of the metric."""
        return find_metric(self.metric).level(self.worst) if self.worst is not None else None

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

        shown = self.shown_interval(self.deciding)
        rows = {"verdict": self.verdict, "mean difference": self.shown(self.estimate.mean), "low": shown.low}
        rows |= {"high": shown.high, "n": self.n, "p": self.p_differs}
        named = pd.DataFrame({f"{self.arm} - {self.against}, {self.metric}": rows})
        html: str = named.to_html()
        return html


def comparisons(results: Results) -> dict[str, Comparison]:
    """Every arm against the study's baseline on its primary metric, corrected for all that the study planned."""
    whole, compare = results.whole, results.study.compare
    if compare.baseline not in results.arms:
        return {}
    if whole is not None and results.study.seeds == whole.study.seeds:  # the same tests, of which some are shown
        return {arm: one for arm, one in whole.comparisons.items() if arm in results.arms}
    planned = results.planned
    family = len(planned.arms) - 1
    why = Message("exploratory-arms") if planned.hypotheses else None
    asked: dict[str, Any] = {"against": compare.baseline, "metric": compare.metric}
    others = [arm for arm in results.arms if arm != compare.baseline]

    def look(seeds: tuple[int, ...]) -> dict[str, Comparison]:
        at: dict[str, Any] = {"seeds": seeds, "alpha": alpha_of(planned), "family": family, "exploratory": why}
        arms = [arm for arm in others if arm in planned.arms]
        return corrected({arm: compare_arms(results, arm, **asked, **at) for arm in arms}, family=family)

    judged = look(planned.seeds)
    if planned.second_stage:
        judged = by_stages(judged, look((*planned.seeds, *planned.second_stage)))
    late = Message("exploratory-added")
    added = {arm: explore(results, arm, **asked, why=late) for arm in others if arm not in planned.arms}
    return {arm: (judged | added)[arm] for arm in others}


def by_stages(first: Mapping[str, Comparison], second: Mapping[str, Comparison]) -> dict[str, Comparison]:
    """What the first stage has decided stays so; the rest is judged over all seeds, when all of them are there."""
    found = {}
    for arm, one in first.items():
        later = second[arm]
        not_run = {seed for outcome in later.outcomes for seed in outcome.not_run}
        number = len(later.outcomes[0].planned) - len(one.outcomes[0].planned) if later.outcomes else 0
        if one.verdict != "inconclusive" or one.sealed is not None:
            found[arm] = one
        elif not_run:
            there = number - len(not_run)
            found[arm] = _judged(replace(one, pending=Message("why-second-stage", n=there, number=number)))
        else:
            found[arm] = later
    return found


def explore(
    results: Results,
    arm: str,
    *,
    against: str,
    metric: str,
    model: Which = "final",
    why: Message | None = None,
) -> Comparison:
    """Two arms on any metric, by itself, and judged: not what the study set out to test."""
    one = compare_arms(
        results, arm, against=against, metric=metric, model=model, exploratory=why or Message("exploratory-other")
    )
    return corrected({arm: one}, family=1)[arm]


def corrected(found: Mapping[str, Comparison], *, family: int) -> dict[str, Comparison]:
    """Comparisons of one family, judged together: its tests share the 5 %, also those that are not there or blocked.

    Looking at a part of a study, or dropping an arm from it, must not make it easier to find something.
    """
    differs, equal = _holm(found, _p_differs, family), _holm(found, _p_equivalent, family)
    alone, same = _holm(found, _p_survivors_differ, family), _holm(found, _p_survivors_equivalent, family)
    return {
        arm: _judged(
            replace(
                one,
                p_differs=differs[arm],
                p_equivalent=equal[arm] if one.margin is not None else None,
                survivors=_by_tests(one, alone[arm], same[arm]),
            )
        )
        for arm, one in found.items()
    }


def exploratory_arms(found: Iterable[Comparison]) -> dict[Message, list[str]]:
    """Those whose verdicts are exploratory, by the reason: one that was added later may be, and the others not."""
    arms: dict[Message, list[str]] = {}
    for one in found:
        if one.exploratory is not None:
            arms.setdefault(one.exploratory, []).append(one.arm)
    return arms


def in_terms_of(one: Comparison, metric: str) -> Comparison | None:
    """The same comparison by the name of another metric that asks the same; None if that is another question."""
    return _judged(replace(one, metric=metric)) if _same_question(metric, one.metric) else None


def _same_question(metric: str, other: str) -> bool:
    """A perplexity is judged as the loss that it is the power of."""
    return {metric, other} == {"loss", "perplexity"}


def _holm(found: Mapping[str, Comparison], p_of: Callable[[Comparison], float], family: int) -> dict[str, float]:
    """Corrected p values. What cannot find anything still counts, and leaves the others no more than if it were not."""
    return holm({arm: p_of(one) if _is_tested(one) else 1.0 for arm, one in found.items()}, family)


def _is_tested(one: Comparison) -> bool:
    return not _is_blocked(one) and (one.exact or _why_not_tested(one) is None)


def _p_survivors_differ(one: Comparison) -> float:
    return one.estimate.p_differs()


def _p_survivors_equivalent(one: Comparison) -> float:
    return one.estimate.p_within(one.margin) if one.margin is not None else 1.0


def _p_differs(one: Comparison) -> float:
    """Before correction."""
    return one.tested.p_differs()


def _p_equivalent(one: Comparison) -> float:
    return one.tested.p_within(one.margin) if one.margin is not None else 1.0


def compare_arms(
    results: Results,
    arm: str,
    *,
    against: str,
    metric: str,
    model: Which = "final",
    family: int = 1,
    alpha: float = ALPHA,
    seeds: tuple[int, ...] | None = None,
    exploratory: Message | None = None,
) -> Comparison:
    """Two arms on any metric, by all planned seeds that are there, or these; not judged yet, as that depends on what
    else is tested."""
    seeds = results.counted(arm, against) if seeds is None else seeds
    outcomes = tuple(seed_outcomes(results, name, metric, seeds=seeds, model=model) for name in (arm, against))
    differences = _differences(*(one.values for one in outcomes))
    compare = results.study.compare
    margin = compare.margin if metric == compare.metric or _same_question(metric, compare.metric) else None
    over_seeds = from_seeds(list(differences.values())) if differences else NOTHING
    examples = by_example(results, (arm, against), metric, model, differences, operator.sub)
    both = crossed(*examples) if examples is not None else None
    estimate = with_examples(over_seeds, both)
    worst = worst_value(results, metric, seeds) if any(one.failed for one in outcomes) else None
    chance: dict[str, float] = {
        "spread": over_seeds.seeds.se * math.sqrt(len(differences)),
        "example_se": estimate.examples.se if estimate.examples is not None else 0.0,
        "alpha": alpha / family,
    }
    is_known = 0 < chance["spread"] < math.inf
    return Comparison(
        arm=arm,
        against=against,
        metric=metric,
        higher_is_better=is_higher_better(metric),
        differences=differences,
        estimate=estimate,
        interval=estimate.interval(1 - ALPHA),
        deciding=estimate.interval(1 - alpha / family),
        over_seeds=over_seeds.interval(1 - ALPHA),
        examples=both,
        margin=margin,
        family=family,
        alpha=alpha,
        p_differs=1.0,
        p_equivalent=None,
        detectable=detectable(len(differences), **chance) if is_known else math.inf,
        seeds_needed=seeds_needed(margin, **chance) if is_known and margin is not None else None,
        outcomes=outcomes,
        worst=worst,
        with_failures=_with_failures(outcomes, worst, estimate) if worst is not None else None,
        pull=pull_of(results, outcomes, metric) if outcomes[0].failed else 0,  # nobody is better by who failed
        exploratory=exploratory,
        issues=issues_of(results, arm, against, metric),
        lacks=results.lacking((arm, against), metric),
        sealed=results.sealed if is_quality(metric) else None,
        verdict="inconclusive",
        message=Message("verdict-none"),
        results=results,
        model=model,
    )


def _differences(one: Mapping[int, float], other: Mapping[int, float]) -> dict[int, float]:
    return {seed: one[seed] - other[seed] for seed in one if seed in other}


def _with_failures(outcomes: tuple[SeedOutcomes, ...], worst: float, estimate: Estimate) -> Estimate:
    differences = list(_differences(*(one.counted(worst) for one in outcomes)).values())
    if not differences or not all(map(math.isfinite, differences)):
        return NOTHING
    return replace(from_seeds(differences), examples=estimate.examples)


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
    if kind == "tuning":
        return tuple(one for one in about if one.code in _TUNING_CHECKS)
    if kind == "time":
        return tuple(_blocking(one) for one in about if one.code in TIME_CHECKS)
    return tuple(about)


def _blocking(issue: Issue) -> Issue:
    """Another machine, or an order that never changes, is worth a word beside an accuracy, and blocks a time."""
    return (
        issue
        if issue.code in ("PADDING-TIMED", "AUDIT-FAILED", "CHANGED-AFTER-START")
        else replace(issue, severity="invalid")
    )


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
    """With the verdict, the interval that it follows from, and its message."""
    verdict, why = _verdict(one)
    one = replace(one, verdict=verdict, why=why, deciding=_deciding(one, verdict))
    message = Message(
        _special_key(one, verdict) or f"verdict-{verdict}",
        arm=one.arm,
        against=one.against,
        metric=one.metric,
        n=one.n,
        mean=one.shown(one.estimate.mean),
        low=one.shown(one.deciding.low),
        high=one.shown(one.deciding.high),
        level=one.deciding.level,
        percent=100 * one.deciding.level,
        corrected=_corrected_for(one),
        margin=one.shown(one.margin),
        why=why,
    )
    said = _with_words(one, message)
    said = _with_warning(said, one) if one.verdict != "invalid" else said
    return replace(one, message=with_lacks(said, one.lacks))


def _corrected_for(one: Comparison) -> Message | str:
    if one.alpha == ALPHA:
        return Message("corrected-for", family=one.family) if one.family > 1 else ""
    return Message("corrected-for-stages", family=one.family) if one.family > 1 else Message("corrected-stages")


def _deciding(one: Comparison, verdict: Verdict) -> Interval:
    """At the level that Holm's correction has left this test; where it decided nothing, at that of the whole family.

    Equivalence at 5 % is two tests at 5 % each: it is the 90 % interval that lies inside the margin.
    """
    if verdict == "equivalent" and one.p_equivalent is not None:
        factor = correction_factor(_p_equivalent(one), one.p_equivalent, one.family)
        return one.estimate.interval(1 - 2 * one.alpha / factor)
    is_decided = verdict in ("better", "worse")
    factor = correction_factor(_p_differs(one), one.p_differs, one.family) if is_decided else one.family
    return one.estimate.interval(1 - one.alpha / factor)


def correction_factor(raw: float, corrected_p: float, family: int) -> float:
    """By how much Holm's correction has made a p value larger: never more than the size of the family."""
    return corrected_p / raw if raw > 0 else family


def _with_words(one: Comparison, message: Message) -> Message:
    """A verdict that says what else must be known of it: which seeds failed, how many may, and what it is worth."""
    is_decided = one.verdict in ("better", "worse", "equivalent") and not one.exact
    failed = describe_failures(one.outcomes)
    if failed and one.verdict == "worse" and one.pull:
        message = Message("verdict-failures-add", verdict=message, failed=failed)
    elif failed and is_decided:
        message = Message("verdict-despite-failures", verdict=message, failed=failed, worst=one.worst_shown)
    elif failed:
        message = Message("verdict-with-failures", verdict=message, failed=failed)
    elif is_decided and any(outcome.planned for outcome in one.outcomes) and is_quality(one.metric):
        message = Message("verdict-no-failures", verdict=message, most=max(o.rate_at_most for o in one.outcomes))
    if is_decided and one.exploratory is not None:
        message = Message("verdict-exploratory", verdict=message, why=one.exploratory)
    return message


def remark_on(why: MessageValue) -> Message | None:
    """In a few words, what decided instead of the interval; None where nothing did."""
    if isinstance(why, tuple):
        return Message("remark-blocked", codes=why)
    if isinstance(why, Message) and why.key in _INSTEAD_OF_INTERVAL:
        return Message(f"remark-{why.key.removeprefix('why-')}", **why.values)
    return None


def describe_failures(outcomes: Iterable[SeedOutcomes]) -> tuple[Message, ...]:
    """Which seeds of each arm failed, how, and what failure rate that does not exclude."""
    return tuple(
        Message(
            "failed-seeds",
            arm=one.arm,
            number=len(one.failed),
            n=one.num_ran,
            seeds=tuple(one.failed),
            how=tuple(dict.fromkeys(one.failed.values())),
            most=one.rate_at_most,
        )
        for one in outcomes
        if one.failed
    )


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
    if not one.differences and verdict == "invalid":
        return "verdict-invalid-none"
    if not one.differences:
        return "verdict-sealed" if one.sealed is not None else "verdict-none"
    if one.exact and verdict != "invalid":
        return "verdict-same" if verdict == "equivalent" else "verdict-exact"
    if verdict == "inconclusive" and (one.n < 2 or one.estimate.no_variation):
        return "verdict-open"
    return None


def is_quality(metric: str) -> bool:
    return find_metric(metric).is_quality


def _is_blocked(one: Comparison) -> bool:
    return any(found.severity == "invalid" for found in one.issues)


def _verdict(one: Comparison) -> tuple[Verdict, MessageValue]:
    """And why, where it does not follow from the numbers themselves."""
    if _is_blocked(one):
        return "invalid", tuple(dict.fromkeys(found.code for found in one.issues if found.severity == "invalid"))
    if one.exact:
        return ("equivalent" if one.estimate.mean == 0 else _direction(one)), None
    untested = _why_not_tested(one)
    if untested is not None:
        return "inconclusive", untested
    verdict = _by_tests(one, one.p_differs, one.p_equivalent)
    return (verdict, None) if verdict != "inconclusive" else (verdict, _why_open(one))


def _why_not_tested(one: Comparison) -> Message | None:
    if one.sealed is not None:
        return one.sealed
    planned = len(one.outcomes[0].planned) if one.outcomes else 0
    not_run = {seed for outcome in one.outcomes for seed in outcome.not_run}
    if not_run:
        return Message("why-incomplete", n=planned - len(not_run), number=planned)
    if one.n < 2:
        return Message("why-one-seed", n=one.n) if one.n else Message("why-no-seed")
    return Message("why-no-variation") if one.estimate.no_variation else None


def _by_tests(one: Comparison, p_differs: float, p_equivalent: float | None) -> Verdict:
    if p_equivalent is not None and p_equivalent < one.alpha:
        return "equivalent"
    return _direction(one) if p_differs < one.alpha else "inconclusive"


def _why_open(one: Comparison) -> Message:
    if one.worst is not None and one.survivors != "inconclusive":
        return Message("why-failures", n=one.n, alone=Message(f"verdict-word-{one.survivors}"), worst=one.worst_shown)
    if not one.interval.contains(0):
        low, high = one.shown(one.interval.low), one.shown(one.interval.high)
        why = Message("why-corrected", low=low, high=high, family=one.family, p=one.p_differs)
        if one.alpha < ALPHA:
            why = Message("why-corrected-stages", **why.values, percent=100 * one.alpha)
        return Message("why-both", one=why, other=one.pending) if one.pending is not None else why
    if one.pending is not None:
        return one.pending
    if one.margin is None:
        return Message("why-no-margin")
    if one.seeds_needed is not None and one.seeds_needed > one.n:
        return Message("why-more-seeds", number=one.seeds_needed, margin=one.shown(one.margin))
    spread = one.estimate.seeds.se * math.sqrt(one.n)
    if one.seeds_needed is None and seeds_needed(one.margin, spread=spread, alpha=one.alpha / one.family) is not None:
        return Message("why-more-examples", smallest=one.shown(one.detectable), margin=one.shown(one.margin))
    return Message("why-too-wide", smallest=one.shown(one.detectable))


def _direction(one: Comparison) -> Verdict:
    return "better" if (one.estimate.mean > 0) == one.higher_is_better else "worse"
