"""Timed pairs: two arms' step times in one ratio, as read from a bench.

Ratios are an arm's step time over another's: 0.95 is five percent faster.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from oelm.analysis.checks.registry import Issue, issue
from oelm.analysis.stats.estimate import Estimate, Interval, VarianceSource
from oelm.message import Message, MessageValue, verbatim
from oelm.runs.bench import LEVEL, OF_A_STEP, Bench, Ratio
from oelm.study.cells import Cell, CellSpec, describe_changes, resolve_cell
from oelm.study.study import Study


def bench_mismatch(bench: Bench, study: Study) -> Message | None:
    """Why a bench is not of this study as it was run; None if nothing speaks against it."""
    if bench.study != study.name:
        return Message("bench-study", name=bench.study)
    if bench.against != study.compare.baseline:
        return Message("bench-against", found=bench.against, planned=study.compare.baseline)
    for name in (name for name in bench.spec if name in study.arms):
        changed = step_changes(bench.spec[name], resolve_cell(study, Cell(arm=name, seed=study.seeds[0])))
        if changed:
            return Message("bench-other", arm=name, what=tuple(verbatim(change) for change in changed))
    return None


def step_changes(timed: CellSpec, now: CellSpec) -> list[str]:
    """What a step's time depends on and is another now than when it was timed, in words."""
    return describe_changes(_of_a_step(timed), _of_a_step(now))


def _of_a_step(spec: CellSpec) -> dict[str, object]:
    whole = asdict(spec)
    recipe = {name: whole["recipe"][name] for name in OF_A_STEP}
    return {**{part: whole[part] for part in ("treatment", "adapter", "trains")}, "recipe": recipe}


# -- two arms ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TimedPair:
    """One arm's step time over another's."""

    arm: str
    against: str
    ratio: float
    """Of the medians."""
    estimate: Estimate | None
    """Of its logarithm, by the t distribution; None with too few rounds.

    It is that of the interval, whose middle need not be the median: so what lies outside of the interval is excluded at
    5 %, and the two never disagree.
    """
    rounds: int
    issues: tuple[Issue, ...] = ()
    """What is wrong with it, and blocks it."""

    @property
    def interval(self) -> Interval | None:
        if self.estimate is None:
            return None
        logs = self.estimate.interval(LEVEL)
        return Interval(low=math.exp(logs.low), high=math.exp(logs.high), level=LEVEL)

    @property
    def is_faster(self) -> bool:
        """On which side of 1 it lies, by the estimate that its p value is of; how surely is another question."""
        return self.estimate is not None and self.estimate.mean < 0

    @property
    def p_differs(self) -> float:
        return self.estimate.p_differs() if self.estimate is not None and not self.estimate.no_variation else 1.0

    @property
    def message(self) -> Message:
        """Whether it is faster, with the numbers."""
        named: dict[str, MessageValue] = {"arm": self.arm, "against": self.against, "ratio": self.ratio}
        named["rounds"] = count_rounds(self.rounds)
        if self.interval is None:
            return Message("timed-open", **named)
        named |= {"low": self.interval.low, "high": self.interval.high, "level": LEVEL, "p": self.p_differs}
        if self.issues:
            return Message("timed-invalid", why=self.issues[0].code, **named)
        if self.p_differs >= 1 - LEVEL:
            return Message("timed-inconclusive", **named)
        return Message("timed-faster" if self.is_faster else "timed-slower", **named)


def count_rounds(number: int) -> Message:
    return Message("one-round" if number == 1 else "rounds", n=number)


def timed_pair(bench: Bench | None, arm: str, against: str) -> TimedPair | None:
    """Two arms of a bench; None unless it measured both.

    Where their own ratio was not taken, their ratios to the arm that all were measured against are divided, and their
    errors are taken to be independent. They share that arm's noise, so the interval is wider than it need be.
    """
    if bench is None or arm == against or not {arm, against} <= set(bench.arms):
        return None
    measured, inverse = _measured(bench, arm, against), _measured(bench, against, arm)
    if measured is not None:
        pair = _as_measured(arm, against, measured)
    elif inverse is not None:
        pair = _inverted(_as_measured(against, arm, inverse))
    else:
        pair = _divided(*(_to_base(bench, each) for each in (arm, against)))
    return replace(pair, issues=tuple(_above_ceiling(bench, pair)))


def check_timed(bench: Bench | None, compared: Iterable[tuple[str, str]]) -> list[Issue]:
    """What is wrong with the times of these comparisons. It is said beside others, and blocks what rests on times."""
    pairs = [timed_pair(bench, arm, against) for arm, against in compared]
    found = dict.fromkeys(found for pair in pairs if pair is not None for found in pair.issues)
    return [replace(each, severity="warn") for each in found]


def _measured(bench: Bench, arm: str, against: str) -> Ratio | None:
    """Of these two arms and this way round."""
    if against == bench.against:
        return bench.arms[arm].step
    return next((pair.ratio for pair in bench.pairs if (pair.arm, pair.against) == (arm, against)), None)


def _as_measured(arm: str, against: str, ratio: Ratio) -> TimedPair:
    return TimedPair(arm=arm, against=against, ratio=ratio.median, estimate=_log(ratio), rounds=ratio.rounds)


def _to_base(bench: Bench, arm: str) -> TimedPair:
    ratio = bench.arms[arm].step
    assert ratio is not None, "of every other arm it is there"
    return _as_measured(arm, bench.against, ratio)


def _inverted(pair: TimedPair) -> TimedPair:
    estimate = pair.estimate and replace(pair.estimate, mean=-pair.estimate.mean)
    return replace(pair, arm=pair.against, against=pair.arm, ratio=1 / pair.ratio, estimate=estimate)


def _divided(one: TimedPair, other: TimedPair) -> TimedPair:
    """Two arms against a third."""
    estimate = None
    if one.estimate is not None and other.estimate is not None:
        above, below = one.estimate.seeds, other.estimate.seeds
        error = VarianceSource(se=math.hypot(above.se, below.se), df=min(above.df, below.df))
        estimate = Estimate(mean=one.estimate.mean - other.estimate.mean, seeds=error)
    return TimedPair(
        arm=one.arm,
        against=other.arm,
        ratio=one.ratio / other.ratio,
        estimate=estimate,
        rounds=min(one.rounds, other.rounds),
    )


def _log(ratio: Ratio) -> Estimate | None:
    """The logarithm of a ratio.

    The interval was made as wide as that of a mean of `rounds / block_length` rounds by t, and is read in the same way:
    of so few, a p value of 0.01 is further from one of 0.05 than the normal distribution has it. Degrees of freedom are
    whole, rounded down.
    """
    from scipy.special import stdtrit

    if ratio.bounds is None:
        return None
    low, high = map(math.log, ratio.bounds)
    df = max(math.floor(ratio.rounds / ratio.block_length) - 1, 1)
    error = (high - low) / (2 * float(stdtrit(df, (1 + LEVEL) / 2)))
    return Estimate(mean=(low + high) / 2, seeds=VarianceSource(se=error, df=df))


def _above_ceiling(bench: Bench, pair: TimedPair) -> Iterable[Issue]:
    """Whether one of the two is certainly faster than freezing makes it: then something else was timed.

    Ceilings are of what is saved against the arm that all are compared with, so that is what each is held to.
    """
    for name in (pair.arm, pair.against):
        arm = bench.arms[name]
        if arm.above_ceiling:
            yield issue(
                "SPEEDUP-ABOVE-CEILING",
                where=name,
                arms=(name,),
                key="speedup-timed",
                arm=name,
                against=bench.against,
                saving=arm.saving,
                ceiling=arm.at_most,
            )
