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

from oelm.analysis.flags import Flag, flag
from oelm.analysis.paired import Estimate, Interval, Source
from oelm.errors import CellError
from oelm.records.store import read_json
from oelm.study.plan import Cell, resolve, what_changed
from oelm.study.study import Study
from oelm.words.text import Text, say

BENCH, SHAPES = "bench.json", "bench-shapes.json"
FORMAT = 1
PARTS = ("forward", "backward", "optimizer")
LEVEL = 0.95
_LONGEST = 1e9  # no time, number of rounds or ratio of ours is larger
_NORMAL = 10**9  # degrees of freedom with which a t distribution is the normal one
# What a step's time depends on, beside the treatment.
_OF_A_STEP = ("model", "data", "batch", "clip", "precision", "compile", "gradient_checkpointing")
# The file may say more than is read here, and must say this much.
_OPEN: dict[str, Any] = {"extra": "ignore", "allow_inf_nan": False}

Positive = Annotated[float, Field(gt=0, le=_LONGEST)]
Saved = Annotated[float, Field(ge=-_LONGEST, lt=1)]
Count = Annotated[int, Field(ge=0, le=10**18)]
Share = Annotated[float, Field(ge=0, le=_LONGEST)]


@dataclass(frozen=True, kw_only=True)
class TimedRatio:
    """A median over rounds with its 95 % interval."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    median: Positive
    low: Share
    high: Positive | None
    """None with too few rounds for an interval."""
    rounds: Count = 0

    def __post_init__(self) -> None:
        if not self.low <= self.median <= (math.inf if self.high is None else self.high):
            raise ValueError("the median is not inside its own interval")

    @property
    def interval(self) -> Interval | None:
        if self.high is None or self.low <= 0:
            return None
        return Interval(low=self.low, high=self.high, level=LEVEL)


@dataclass(frozen=True, kw_only=True)
class Learning:
    """Bytes that only weights that learn need."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    gradients: Count
    optimizer: Count

    @property
    def total(self) -> int:
        return self.gradients + self.optimizer


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    total: Count


@dataclass(frozen=True, kw_only=True)
class TimedMemory(Learning):
    """Of one arm, in a process of its own."""

    theory: Learning | None = None
    """What arithmetic says of the same."""
    peak: Count | None = None
    checkpoint: Checkpoint | None = None


@dataclass(frozen=True, kw_only=True)
class TimedArm:
    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    step_seconds: Positive
    """Median of a whole step."""
    outliers: Count = 0
    """Steps of more than 3 times the median; they stay in."""
    ratios: dict[str, TimedRatio] = field(default_factory=dict)
    """`step`, and its parts; none of the arm that is compared with."""
    ceiling: Saved | None = None
    """The largest share of a step's arithmetic that freezing can spare."""
    at_most: Saved | None = None
    """The same with the optimiser as it was measured, and attention for free: more cannot be freezing's."""
    memory: Annotated[TimedMemory | None, BeforeValidator(lambda value: value or None)] = None

    @property
    def step(self) -> TimedRatio | None:
        return self.ratios.get("step")

    @property
    def reached(self) -> float | None:
        """The share of the ceiling that was saved."""
        return (1 - self.step.median) / self.ceiling if self.step is not None and self.ceiling else None


@dataclass(frozen=True, kw_only=True)
class Surroundings:
    """What else the machine did meanwhile."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    cores: Count | None = None
    others: Share | None = None
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
    rounds: Count
    seconds: Share
    batch: Count
    length: Share
    """Mean tokens of a row, padding with it."""
    arms: dict[str, TimedArm]
    made_with: dict[str, dict[str, Any]]
    """By arm, as in a record."""
    precision: Positive = 0.01
    """Half-width of the interval that was asked for."""
    device: str | None = None
    apart: str | None = None
    """Why every arm had a process of its own, in the bench's own words; None if they shared one."""
    surroundings: Surroundings = Surroundings()
    warnings: tuple[str, ...] = ()
    """In the bench's own words."""
    provenance: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.against not in self.arms:
            raise ValueError(f"there is no arm '{self.against}', which the others are compared with")
        unknown = [name for name in self.arms if name not in self.made_with]
        if unknown:
            raise ValueError(f"it does not say what arm '{unknown[0]}' was made with")
        bare = [name for name, arm in self.arms.items() if name != self.against and arm.step is None]
        if bare:
            raise ValueError(f"arm '{bare[0]}' has no ratio of whole steps")

    def restricted(self, arms: Iterable[str]) -> Timed | None:
        """Of these arms alone; None if the one that is compared with is not among them, or is all there is."""
        kept = {name: arm for name, arm in self.arms.items() if name in set(arms)}
        return replace(self, arms=kept) if self.against in kept and len(kept) > 1 else None


@dataclass(frozen=True, kw_only=True)
class TimedShape:
    """The ratio of whole steps of a model of another size."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    width: Annotated[int, Field(gt=0, le=10**9)]
    length: Annotated[int, Field(gt=0, le=10**9)]
    batch: Annotated[int, Field(gt=0, le=10**9)]
    arm: str
    ratio: TimedRatio
    ceiling: Saved | None = None


@dataclass(frozen=True, kw_only=True)
class Shapes:
    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    study: str
    points: tuple[TimedShape, ...]
    against: str | None = None


# -- reading -------------------------------------------------------------------------------------------------------


def read_bench(study_folder: Path) -> Timed | None:
    """What was measured of a study; None if nothing was. A damaged file is an error that says so."""
    found: Timed | None = _read(study_folder / BENCH, Timed)
    return found


def read_shapes(study_folder: Path) -> Shapes | None:
    """The ratios over a grid of shapes; None if there are none."""
    found: Shapes | None = _read(study_folder / SHAPES, Shapes)
    return found


def _read(path: Path, kind: type) -> Any:
    content = read_json(path)
    if content is None:
        return None
    number = content.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise CellError(
            f"{path.name} has format {number}; this oelm reads up to {FORMAT}", hint="pip install --upgrade oelm"
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


def foreign(timed: Timed, study: Study) -> Text | None:
    """Why a bench is not of this study as it was run; None if nothing speaks against it."""
    if timed.study != study.name or timed.against != study.compare.against:
        return _other(timed.study, timed.against, study)
    for name in (name for name in timed.arms if name in study.arms):
        now = resolve(study, Cell(arm=name, seed=study.seeds[0])).to_dict()
        changed = what_changed(*(_of_a_step(made) for made in (timed.made_with[name], now)))
        if changed:
            return say("bench-other", arm=name, what="; ".join(changed[:3]))
    return None


def _of_a_step(made_with: Mapping[str, Any]) -> dict[str, Any]:
    recipe = made_with.get("recipe")
    kept = {name: recipe.get(name) for name in _OF_A_STEP} if isinstance(recipe, Mapping) else None
    return {"treatment": made_with.get("treatment"), "recipe": kept}


def foreign_shapes(shapes: Shapes, study: Study) -> Text | None:
    """The same of a grid of shapes, which has batches and lengths of its own."""
    if shapes.study != study.name or shapes.against not in (study.compare.against, None):
        return _other(shapes.study, str(shapes.against), study)
    return None


def _other(name: str, against: str, study: Study) -> Text:
    if name != study.name:
        return say("bench-study", name=name)
    return say("bench-against", found=against, planned=study.compare.against)


# -- two arms ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class TimedPair:
    """One arm's step time over another's."""

    arm: str
    against: str
    ratio: float
    """Of the medians."""
    estimate: Estimate | None
    """Of its logarithm, by the normal distribution; None with too few rounds.

    It is that of the interval, whose middle need not be the median: so what lies outside of the interval is excluded at
    5 %, and the two never disagree.
    """
    rounds: int
    flags: tuple[Flag, ...] = ()
    """What is wrong with it, and blocks it."""

    @property
    def interval(self) -> Interval | None:
        if self.estimate is None:
            return None
        logs = self.estimate.interval(LEVEL)
        return Interval(low=math.exp(logs.low), high=math.exp(logs.high), level=LEVEL)

    @property
    def p_differs(self) -> float:
        return self.estimate.p_differs() if self.estimate is not None and not self.estimate.no_variation else 1.0

    @property
    def sentence(self) -> Text:
        """Whether it is faster, with the numbers."""
        named: dict[str, Any] = {"arm": self.arm, "against": self.against, "ratio": self.ratio, "n": self.rounds}
        if self.interval is None:
            return say("timed-open", **named)
        named |= {"low": self.interval.low, "high": self.interval.high}
        if self.flags:
            return say("timed-invalid", why=self.flags[0].code, **named)
        if self.p_differs >= 1 - LEVEL:
            return say("timed-undecided", **named)
        return say("timed-faster" if self.ratio < 1 else "timed-slower", **named)


def timed_pair(timed: Timed | None, arm: str, against: str) -> TimedPair | None:
    """Two arms of a bench; None unless it measured both.

    Where neither is the arm that all were measured against, their ratios to it are divided and their errors are taken
    to be independent. They share that arm's noise, so the interval is wider than it need be.
    """
    if timed is None or arm == against or not {arm, against} <= set(timed.arms):
        return None
    pair = _divided(timed, arm, against)
    return replace(pair, flags=tuple(_above_ceiling(timed, pair)))


def check_timed(timed: Timed | None, compared: Iterable[tuple[str, str]]) -> list[Flag]:
    """What is wrong with the times of these comparisons. It is said beside others, and blocks what rests on times."""
    pairs = [timed_pair(timed, arm, against) for arm, against in compared]
    return [replace(found, severity="warn") for pair in pairs if pair is not None for found in pair.flags]


def _divided(timed: Timed, arm: str, against: str) -> TimedPair:
    one, other = (timed.arms[name].step for name in (arm, against))
    measured = [ratio for ratio in (one, other) if ratio is not None]
    above, below = (_log(ratio) for ratio in (one, other))
    estimate = None
    if above is not None and below is not None:
        error = math.hypot(above.seeds.se, below.seeds.se)
        estimate = Estimate(mean=above.mean - below.mean, seeds=Source(se=error, df=_NORMAL))
    return TimedPair(
        arm=arm,
        against=against,
        ratio=(one.median if one else 1.0) / (other.median if other else 1.0),
        estimate=estimate,
        rounds=min(ratio.rounds or timed.rounds for ratio in measured),
    )


def _log(ratio: TimedRatio | None) -> Estimate | None:
    """The logarithm of a ratio; of the arm that is compared with, it is 0 by definition."""
    from scipy.special import ndtri

    if ratio is None:
        return Estimate(mean=0.0, seeds=Source(se=0.0, df=_NORMAL))
    if ratio.interval is None:
        return None
    low, high = math.log(ratio.interval.low), math.log(ratio.interval.high)
    error = (high - low) / (2 * float(ndtri((1 + LEVEL) / 2)))
    return Estimate(mean=(low + high) / 2, seeds=Source(se=error, df=_NORMAL))


def _above_ceiling(timed: Timed, pair: TimedPair) -> Iterable[Flag]:
    """Whether the arm that freezes more is certainly faster than freezing makes it: then something else was timed."""
    spared = {name: 0.0 if name == timed.against else timed.arms[name].at_most for name in (pair.arm, pair.against)}
    if pair.interval is None or None in spared.values():
        return
    more = max(spared, key=lambda name: (spared[name], name != timed.against))
    less = pair.against if more == pair.arm else pair.arm
    fastest = (1 - (spared[more] or 0.0)) / (1 - (spared[less] or 0.0))
    slowest_seen = pair.interval.high if more == pair.arm else 1 / pair.interval.low
    if slowest_seen < fastest:
        yield flag(
            "SPEEDUP-ABOVE-CEILING",
            where=more if less == timed.against else f"{more} / {less}",
            arms=(more, less),
            key="speedup-timed",
            arm=more,
            against=less,
            saving=1 - (pair.ratio if more == pair.arm else 1 / pair.ratio),
            ceiling=1 - fastest,
        )
