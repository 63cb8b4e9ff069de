"""Timed: what `oelm bench` left beside the records, as far as the reading needs it.

Ratios are an arm's step time over another's: 0.95 is five percent faster. Times are in seconds, memory in bytes.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, TypeAdapter, ValidationError

from oelm.analysis.checks.registry import Issue, issue
from oelm.analysis.stats.estimate import Estimate, Interval, VarianceSource
from oelm.errors import CellError
from oelm.message import Message, MessageValue, verbatim
from oelm.runs.layout import read_json
from oelm.study.cells import Cell, describe_changes, flatten, resolve_cell
from oelm.study.study import Study

BENCH = "bench.json"
_FORMAT = 1
PARTS = ("forward", "backward", "optimizer")
_LEVEL = 0.95
_LONGEST = 1e9  # no time, number of rounds or ratio of ours is larger
# What a step's time depends on, beside the treatment.
OF_A_STEP = ("model", "data", "batch", "max_grad_norm", "precision", "compile", "gradient_checkpointing")
# The file may say more than is read here, and must say this much.
_OPEN: dict[str, Any] = {"extra": "ignore", "allow_inf_nan": False}

_Positive = Annotated[float, Field(gt=0, le=_LONGEST)]
_Saved = Annotated[float, Field(ge=-_LONGEST, lt=1)]
_Count = Annotated[int, Field(ge=0, le=10**18)]
_Share = Annotated[float, Field(ge=0, le=_LONGEST)]


@dataclass(frozen=True, kw_only=True)
class TimedRatio:
    """A median over rounds with its 95 % interval."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    median: _Positive
    low: _Share
    high: _Positive | None
    """None with too few rounds for an interval."""
    rounds: _Count = 0
    block_length: Annotated[float, Field(ge=1, le=_LONGEST)] = 1.0
    """How many rounds in a row say the same: the interval is that of so many times fewer."""

    def __post_init__(self) -> None:
        if not self.low <= self.median <= (math.inf if self.high is None else self.high):
            raise ValueError("the median is not inside its own interval")

    @property
    def interval(self) -> Interval | None:
        if self.high is None or self.low < 1 / _LONGEST:
            return None
        return Interval(low=self.low, high=self.high, level=_LEVEL)

    def above(self, at_most: float | None) -> bool:
        """Whether it certainly saves more than this: then something else was timed than freezing."""
        return at_most is not None and self.high is not None and self.high < 1 - at_most


@dataclass(frozen=True, kw_only=True)
class LearningBytes:
    """Bytes that only weights that learn need."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    gradients: _Count
    optimizer: _Count

    @property
    def total(self) -> int:
        return self.gradients + self.optimizer


@dataclass(frozen=True, kw_only=True)
class CheckpointBytes:
    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    total: _Count


@dataclass(frozen=True, kw_only=True)
class TimedMemory(LearningBytes):
    """Of one arm, in a process of its own."""

    theory: LearningBytes | None = None
    """What arithmetic says of the same."""
    peak: _Count | None = None
    checkpoint: CheckpointBytes | None = None


@dataclass(frozen=True, kw_only=True)
class TimedArm:
    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    step_seconds: _Positive
    """Median of a whole step."""
    outliers: _Count = 0
    """Steps of more than 3 times the median; they stay in."""
    ratios: dict[str, TimedRatio] = field(default_factory=dict)
    """`step`, and its parts; none of the arm that is compared with."""
    ceiling: _Saved | None = None
    """The largest share of a step's arithmetic that freezing can spare."""
    at_most: _Saved | None = None
    """The same with the optimizer as it was measured, and attention for free: more cannot be freezing's."""
    memory: Annotated[TimedMemory | None, BeforeValidator(lambda value: value or None)] = None

    @property
    def step(self) -> TimedRatio | None:
        return self.ratios.get("step")

    @property
    def reached(self) -> float | None:
        """The share of the ceiling that was saved."""
        return (1 - self.step.median) / self.ceiling if self.step is not None and self.ceiling else None


@dataclass(frozen=True, kw_only=True)
class TimedBetween:
    """Whole steps of an arm in units of another's, neither of which is the one that all are compared with."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    arm: str
    against: str
    ratio: TimedRatio
    """From the same rounds as all others."""


@dataclass(frozen=True, kw_only=True)
class SystemLoad:
    """What else the machine did meanwhile."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    cores: _Count | None = None
    others: _Share | None = None
    """Cores that other processes used, as a share of these."""
    load: tuple[float, float] | None = None
    """The lowest and the highest load average."""


@dataclass(frozen=True, kw_only=True)
class Timed:
    """Step times of the arms of a study, measured in turns."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    study: str
    against: str
    stopped_by: Literal["precision", "budget", "interrupted"]
    rounds: _Count
    seconds: _Share
    batch: _Count
    length: _Share
    """Mean tokens of a row, padding with it."""
    arms: dict[str, TimedArm]
    spec: dict[str, dict[str, Any]]
    """By arm, as in a record."""
    pairs: tuple[TimedBetween, ...] = ()
    """Those that a hypothesis compares."""
    precision: _Positive = 0.01
    """Half-width of the interval that was asked for."""
    device: str | None = None
    apart: str | None = None
    """Why every visit was a process of its own, in the bench's own words; None if all arms shared one."""
    system: SystemLoad = SystemLoad()
    warnings: tuple[str, ...] = ()
    """In the bench's own words."""
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.against not in self.arms:
            raise ValueError(f"there is no arm '{self.against}', which the others are compared with")
        unknown = [name for name in self.arms if name not in self.spec]
        if unknown:
            raise ValueError(f"it does not say what arm '{unknown[0]}' was made with")
        bare = [name for name, arm in self.arms.items() if name != self.against and arm.step is None]
        if bare:
            raise ValueError(f"arm '{bare[0]}' has no ratio of whole steps")

    def restricted(self, arms: Iterable[str]) -> Timed | None:
        """Of these arms alone; None if the one that is compared with is not among them, or is all there is."""
        kept = {name: arm for name, arm in self.arms.items() if name in set(arms)}
        return replace(self, arms=kept) if self.against in kept and len(kept) > 1 else None


# -- reading -------------------------------------------------------------------------------------------------------


def read_bench(study_folder: Path) -> Timed | None:
    """What was measured of a study; None if nothing was. A damaged file is an error that says so."""
    found: Timed | None = _read(study_folder / BENCH, Timed)
    return found


def _read(path: Path, kind: type) -> Any:
    content = read_json(path)
    if content is None:
        return None
    number = content.get("format")
    if isinstance(number, int) and number > _FORMAT:
        raise CellError(
            f"{path.name} has format {number}; this oelm reads up to {_FORMAT}", hint="pip install --upgrade oelm"
        )
    try:
        return _adapter(kind).validate_python(content)
    except (ValidationError, RecursionError) as error:
        why = "it is nested without end"
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")
        raise CellError(f"{path.name} is damaged", why=why[:200], hint="oelm bench makes it anew") from error


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def bench_mismatch(timed: Timed, study: Study) -> Message | None:
    """Why a bench is not of this study as it was run; None if nothing speaks against it."""
    if timed.study != study.name or timed.against != study.compare.baseline:
        return _other(timed.study, timed.against, study)
    return _changed(timed.spec, study)


def _changed(spec: Mapping[str, Mapping[str, Any]], study: Study) -> Message | None:
    """What is another in an arm of the study now than when it was timed."""
    for name in (name for name in spec if name in study.arms):
        now = resolve_cell(study, Cell(arm=name, seed=study.seeds[0])).to_dict()
        changed = describe_changes(*(flatten(_of_a_step(made)) for made in (spec[name], now)))
        if changed:
            return Message("bench-other", arm=name, what=tuple(verbatim(change) for change in changed))
    return None


def _of_a_step(spec: Mapping[str, Any]) -> dict[str, Any]:
    recipe = spec.get("recipe")
    kept = {name: recipe.get(name) for name in OF_A_STEP} if isinstance(recipe, Mapping) else None
    return {"treatment": spec.get("treatment"), "recipe": kept}


def _other(name: str, against: str, study: Study) -> Message:
    if name != study.name:
        return Message("bench-study", name=name)
    return Message("bench-against", found=against, planned=study.compare.baseline)


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
        logs = self.estimate.interval(_LEVEL)
        return Interval(low=math.exp(logs.low), high=math.exp(logs.high), level=_LEVEL)

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
        named |= {"low": self.interval.low, "high": self.interval.high, "level": _LEVEL, "p": self.p_differs}
        if self.issues:
            return Message("timed-invalid", why=self.issues[0].code, **named)
        if self.p_differs >= 1 - _LEVEL:
            return Message("timed-inconclusive", **named)
        return Message("timed-faster" if self.is_faster else "timed-slower", **named)


def count_rounds(number: int) -> Message:
    return Message("one-round" if number == 1 else "rounds", n=number)


def timed_pair(timed: Timed | None, arm: str, against: str) -> TimedPair | None:
    """Two arms of a bench; None unless it measured both.

    Where their own ratio was not taken, their ratios to the arm that all were measured against are divided, and their
    errors are taken to be independent. They share that arm's noise, so the interval is wider than it need be.
    """
    if timed is None or arm == against or not {arm, against} <= set(timed.arms):
        return None
    measured, inverse = _measured(timed, arm, against), _measured(timed, against, arm)
    if measured is not None:
        pair = _as_measured(timed, arm, against, measured)
    elif inverse is not None:
        pair = _inverted(_as_measured(timed, against, arm, inverse))
    else:
        pair = _divided(*(_to_base(timed, each) for each in (arm, against)))
    return replace(pair, issues=tuple(_above_ceiling(timed, pair)))


def check_timed(timed: Timed | None, compared: Iterable[tuple[str, str]]) -> list[Issue]:
    """What is wrong with the times of these comparisons. It is said beside others, and blocks what rests on times."""
    pairs = [timed_pair(timed, arm, against) for arm, against in compared]
    found = dict.fromkeys(found for pair in pairs if pair is not None for found in pair.issues)
    return [replace(each, severity="warn") for each in found]


def _measured(timed: Timed, arm: str, against: str) -> TimedRatio | None:
    """Of these two arms and this way round."""
    if against == timed.against:
        return timed.arms[arm].step
    return next((pair.ratio for pair in timed.pairs if (pair.arm, pair.against) == (arm, against)), None)


def _as_measured(timed: Timed, arm: str, against: str, ratio: TimedRatio) -> TimedPair:
    rounds = ratio.rounds or timed.rounds
    estimate = _log(ratio, rounds)
    return TimedPair(arm=arm, against=against, ratio=ratio.median, estimate=estimate, rounds=rounds)


def _to_base(timed: Timed, arm: str) -> TimedPair:
    ratio = timed.arms[arm].step
    assert ratio is not None, "of every other arm it is there"
    return _as_measured(timed, arm, timed.against, ratio)


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


def _log(ratio: TimedRatio, rounds: int) -> Estimate | None:
    """The logarithm of a ratio.

    The interval was made as wide as that of a mean of `rounds / block_length` rounds by t, and is read in the same way:
    of so few, a p value of 0.01 is further from one of 0.05 than the normal distribution has it. Degrees of freedom are
    whole, rounded down.
    """
    from scipy.special import stdtrit

    if ratio.interval is None:
        return None
    low, high = math.log(ratio.interval.low), math.log(ratio.interval.high)
    df = max(math.floor(rounds / ratio.block_length) - 1, 1)
    error = (high - low) / (2 * float(stdtrit(df, (1 + _LEVEL) / 2)))
    return Estimate(mean=(low + high) / 2, seeds=VarianceSource(se=error, df=df))


def _above_ceiling(timed: Timed, pair: TimedPair) -> Iterable[Issue]:
    """Whether one of the two is certainly faster than freezing makes it: then something else was timed.

    Ceilings are of what is saved against the arm that all are compared with, so that is what each is held to.
    """
    for name in (pair.arm, pair.against):
        arm = timed.arms[name]
        if arm.step is not None and arm.step.above(arm.at_most):
            yield issue(
                "SPEEDUP-ABOVE-CEILING",
                where=name,
                arms=(name,),
                key="speedup-timed",
                arm=name,
                against=timed.against,
                saving=1 - arm.step.median,
                ceiling=arm.at_most,
            )
