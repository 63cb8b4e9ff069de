"""The schema of a ledger: what others have published, as data (docs/claims.md).

Numbers are kept as they were printed, in quotation marks: the last digit says how exactly they are known.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from oelm.analysis.checks.consistency import Average
from oelm.analysis.checks.reported_number import parse_duration, parse_number
from oelm.errors import OelmError
from oelm.message import Text
from oelm.metrics import TIMES, Direction
from oelm.study.forbid_extra import ForbidExtra
from oelm.study.hypothesis import Estimand, Hypothesis, Rule, parse_estimand
from oelm.study.study import Value
from oelm.treatment import Treatment


def _words(value: Any) -> Text:
    """One sentence for both languages, or `{en: ..., zh: ...}`."""
    if isinstance(value, str) and value.strip():
        return Text(value, value)
    if isinstance(value, dict) and set(value) == {"en", "zh"} and all(isinstance(v, str) for v in value.values()):
        return Text(value["en"], value["zh"])
    raise ValueError("must be a sentence, or {en: ..., zh: ...}")


def _as_printed(read: Callable[[str], object], such_as: str) -> Callable[[Any], str]:
    def check(value: Any) -> str:
        if not isinstance(value, str):
            raise ValueError(f"must be as printed, {such_as}, got {value!r}")
        try:
            read(value)
        except OelmError as error:
            raise ValueError(" ".join(str(error).split())) from error
        return value

    return check


def _treatment(value: Any) -> Treatment:
    try:
        return Treatment.from_dict(value)
    except (OelmError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def _estimand(value: Any) -> Estimand:
    return parse_estimand(value if isinstance(value, str) else repr(value))


_Words = Annotated[Text, PlainValidator(_words)]
_Number = Annotated[str, BeforeValidator(_as_printed(parse_number, "in quotation marks, such as '4.27' or '91.42 %'"))]
_Time = Annotated[str, BeforeValidator(_as_printed(parse_duration, "such as '0.184 s' or '4h31'"))]
_Count = Annotated[int, Field(gt=0, le=10**12)]
_Share = Annotated[float, Field(ge=0, le=1)]
Combine = Literal["mean", "interaction"]


@dataclass(frozen=True, kw_only=True)
class ClaimArm(ForbidExtra):
    """What one side of a claim was given, as far as it is known."""

    treatment: Annotated[Treatment, PlainValidator(_treatment)] | None = None
    settings: dict[str, Value] = field(default_factory=dict)
    """By dotted path, as in a recipe: `optimizer.lr`, `schedule.warmup`; or `device`, `commit`."""
    seeds: tuple[int, ...] | None = None
    grid: dict[str, tuple[Value, ...]] | None = None
    """What was tried when tuning it."""
    trials: int | None = None
    """How many trainings its settings are the best of."""


@dataclass(frozen=True, kw_only=True)
class ResultRow(ForbidExtra):
    """The numbers of one arm in a table."""

    best: _Number | None = None
    final: _Number | None = None
    f1: _Number | None = None
    """Of the same model as the best (or only) value."""
    listed: tuple[_Number, ...] = ()
    """Values along the way, of the same run."""
    values: tuple[_Number, ...] = ()
    """One of every run, in an order that pairs them with those of the other arms."""
    steps: _Count | None = None
    step_seconds: _Time | None = None
    wall: _Time | None = None

    @property
    def main(self) -> str | None:
        return self.best or self.final


@dataclass(frozen=True, kw_only=True)
class ResultTable(ForbidExtra):
    """Published numbers that belong together: one metric on one set of examples."""

    metric: str
    better: Direction
    arms: dict[str, ResultRow]
    examples: _Count | None = None
    classes: _Count | None = None
    class_counts: tuple[_Count, ...] | None = None
    """Examples of every class."""
    f1_average: Average | None = None
    simple_baseline: _Number | None = None
    """What a simple method reaches there."""


@dataclass(frozen=True, kw_only=True)
class ClaimModel(ForbidExtra):
    pretrained: bool | None = None
    width: _Count | None = None
    head_dim: _Count | None = None
    ffn_ratio: Annotated[float, Field(gt=0)] = 4.0
    head_share: _Share = 0.0
    """The share of the linear work that is outside the layers."""


@dataclass(frozen=True, kw_only=True)
class ClaimCounts(ForbidExtra):
    """Parameters: what the architecture has, and what was reported."""

    total: _Count
    qk: _Count
    reported_total: _Count


@dataclass(frozen=True, kw_only=True)
class ScheduleClaim(ForbidExtra):
    """A learning-rate schedule as it was said to be, and as it was."""

    says: str
    was: str


@dataclass(frozen=True, kw_only=True)
class ClaimTest(ForbidExtra):
    """What decides a claim at one scale: it is supported there if the estimand keeps to the rule."""

    scale: _Words
    """Model, data and machine."""
    estimand: Annotated[Estimand, PlainValidator(_estimand)]
    """As in the hypotheses of a study."""
    rule: Rule
    margin: float
    because: _Words | None = None
    """Why the margin is that."""
    studies: tuple[str, ...] = ()
    """Shipped studies whose records it is judged by; a count is judged by their configuration."""
    combine: Combine | None = None
    """What is judged of several studies: their mean, or how far the first is from the second."""
    needs: _Words | None = None
    """What it takes beside a CPU and what comes with oelm."""
    decides: bool = True
    """Whether the claim stands or falls with it; else it is shown beside the verdict."""

    @property
    def hypothesis(self) -> Hypothesis:
        """Estimand, rule and margin, to be judged as those of a study are."""
        return Hypothesis(name="", statement="", estimand=self.estimand, rule=self.rule, margin=self.margin)


@dataclass(frozen=True, kw_only=True)
class Claim(ForbidExtra):
    claim: _Words
    source: str
    arms: dict[str, ClaimArm] = field(default_factory=dict)
    against: str | None = None
    """The arm that the others are compared with."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Other comparisons that the claim makes."""
    model: ClaimModel = ClaimModel()
    selected_on: str | None = None
    reported_on: str | None = None
    schedule: ScheduleClaim | None = None
    results: dict[str, ResultTable] = field(default_factory=dict)
    counts: ClaimCounts | None = None
    notes: tuple[_Words, ...] = ()
    """What is known and no check can see."""
    tests: tuple[ClaimTest, ...] = ()
    """The first is at the claim's own scale. The first that decides gives the verdict."""

    @property
    def of_times(self) -> bool:
        """Whether it is about times and nothing else."""
        return bool(self.results) and all(table.metric in TIMES for table in self.results.values())


@dataclass(frozen=True, kw_only=True)
class Ledger(ForbidExtra):
    ledger: str
    version: Literal[1]
    sources: dict[str, _Words]
    claims: dict[str, Claim]
