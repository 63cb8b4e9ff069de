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
from oelm.study.plan import Cell, flat, resolve, what_changed
from oelm.study.study import Study
from oelm.words.text import Text, say

BENCH, SHAPES = "bench.json", "bench-shapes.json"
FORMAT = 1
PARTS = ("forward", "backward", "optimizer")
LEVEL = 0.95
_LONGEST = 1e9  # no time, number of rounds or ratio of ours is larger
# What a step's time depends on, beside the treatment.
OF_A_STEP = ("model", "data", "batch", "clip", "precision", "compile", "gradient_checkpointing")
# What every shape has of its own. Its width is in no recipe: it is that of the model, whose layers all shapes keep.
_OF_A_SHAPE = ("recipe.data.max_length", "recipe.batch.size")
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
    block_length: Annotated[float, Field(ge=1, le=_LONGEST)] = 1.0
    """How many rounds in a row say the same: the interval is that of so many times fewer."""

    def __post_init__(self) -> None:
        if not self.low <= self.median <= (math.inf if self.high is None else self.high):
            raise ValueError("the median is not inside its own interval")

    @property
    def interval(self) -> Interval | None:
        if self.high is None or self.low < 1 / _LONGEST:
            return None
        return Interval(low=self.low, high=self.high, level=LEVEL)

    def above(self, at_most: float | None) -> bool:
        """Whether it certainly saves more than this: then something else was timed than freezing."""
        return at_most is not None and self.high is not None and self.high < 1 - at_most


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
class TimedBetween:
    """Whole steps of an arm in units of another's, neither of which is the one that all are compared with."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    arm: str
    against: str
    ratio: TimedRatio
    """From the same rounds as all others."""


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
    pairs: tuple[TimedBetween, ...] = ()
    """Those that a hypothesis compares."""
    precision: Positive = 0.01
    """Half-width of the interval that was asked for."""
    device: str | None = None
    apart: str | None = None
    """Why every visit was a process of its own, in the bench's own words; None if all arms shared one."""
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
    at_most: Saved | None = None

    @property
    def above_ceiling(self) -> bool:
        return self.ratio.above(self.at_most)


@dataclass(frozen=True, kw_only=True)
class Shapes:
    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    study: str
    points: tuple[TimedShape, ...]
    made_with: dict[str, dict[str, Any]]
    """By arm, as in a record: what all shapes were made from."""
    against: str | None = None

    def __post_init__(self) -> None:
        unknown = [one.arm for one in self.points if one.arm not in self.made_with]
        if unknown:
            raise ValueError(f"it does not say what arm '{unknown[0]}' was made with")


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
    return _changed(timed.made_with, study)


def foreign_shapes(shapes: Shapes, study: Study) -> Text | None:
    """The same of a grid of shapes, which has batches and lengths of its own."""
    if shapes.study != study.name or shapes.against not in (study.compare.against, None):
        return _other(shapes.study, str(shapes.against), study)
    return _changed(shapes.made_with, study, but=_OF_A_SHAPE)


def _changed(made_with: Mapping[str, Mapping[str, Any]], study: Study, but: tuple[str, ...] = ()) -> Text | None:
    """What is another in an arm of the study now than when it was timed."""
    for name in (name for name in made_with if name in study.arms):
        now = resolve(study, Cell(arm=name, seed=study.seeds[0])).to_dict()
        then_and_now = (flat(_of_a_step(made)) for made in (made_with[name], now))
        changed = what_changed(*({path: each[path] for path in each if path not in but} for each in then_and_now))
        if changed:
            return say("bench-other", arm=name, what="; ".join(changed[:3]))
    return None


def _of_a_step(made_with: Mapping[str, Any]) -> dict[str, Any]:
    recipe = made_with.get("recipe")
    kept = {name: recipe.get(name) for name in OF_A_STEP} if isinstance(recipe, Mapping) else None
    return {"treatment": made_with.get("treatment"), "recipe": kept}


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
    """Of its logarithm, by the t distribution; None with too few rounds.

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
    def is_faster(self) -> bool:
        """On which side of 1 it lies, by the estimate that its p value is of; how surely is another question."""
        return self.estimate is not None and self.estimate.mean < 0

    @property
    def p_differs(self) -> float:
        return self.estimate.p_differs() if self.estimate is not None and not self.estimate.no_variation else 1.0

    @property
    def sentence(self) -> Text:
        """Whether it is faster, with the numbers."""
        named: dict[str, Any] = {"arm": self.arm, "against": self.against, "ratio": self.ratio}
        named["rounds"] = rounds_told(self.rounds)
        if self.interval is None:
            return say("timed-open", **named)
        named |= {"low": self.interval.low, "high": self.interval.high}
        if self.flags:
            return say("timed-invalid", why=self.flags[0].code, **named)
        if self.p_differs >= 1 - LEVEL:
            return say("timed-undecided", **named)
        return say("timed-faster" if self.is_faster else "timed-slower", **named)


def rounds_told(number: int) -> Text:
    return say("one-round" if number == 1 else "rounds", n=number)


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
    return replace(pair, flags=tuple(_above_ceiling(timed, pair)))


def check_timed(timed: Timed | None, compared: Iterable[tuple[str, str]]) -> list[Flag]:
    """What is wrong with the times of these comparisons. It is said beside others, and blocks what rests on times."""
    pairs = [timed_pair(timed, arm, against) for arm, against in compared]
    found = dict.fromkeys(found for pair in pairs if pair is not None for found in pair.flags)
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
        error = Source(se=math.hypot(above.se, below.se), df=min(above.df, below.df))
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
    error = (high - low) / (2 * float(stdtrit(df, (1 + LEVEL) / 2)))
    return Estimate(mean=(low + high) / 2, seeds=Source(se=error, df=df))


def _above_ceiling(timed: Timed, pair: TimedPair) -> Iterable[Flag]:
    """Whether one of the two is certainly faster than freezing makes it: then something else was timed.

    Ceilings are of what is saved against the arm that all are compared with, so that is what each is held to.
    """
    for name in (pair.arm, pair.against):
        arm = timed.arms[name]
        if arm.step is not None and arm.step.above(arm.at_most):
            yield flag(
                "SPEEDUP-ABOVE-CEILING",
                where=name,
                arms=(name,),
                key="speedup-timed",
                arm=name,
                against=timed.against,
                saving=1 - arm.step.median,
                ceiling=arm.at_most,
            )
