"""Claims: what others have published, as data; the checks that fire on it, and what our own records say of it.

A ledger is a YAML file (docs/claims.md). Numbers stand in it as they were printed, in quotation marks.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal

from pydantic import BeforeValidator, Field, PlainValidator, TypeAdapter

from oelm.analysis import numbers
from oelm.analysis.checks import check_design
from oelm.analysis.design import Design, Side
from oelm.analysis.flags import Flag, worst_first
from oelm.analysis.numbers import Average, Better
from oelm.analysis.paired import Interval, from_seeds
from oelm.analysis.printed import duration, printed
from oelm.analysis.timed import timed_pair
from oelm.analysis.verdicts import TIME_CHECKS, TIMES
from oelm.errors import OelmError, StudyError, did_you_mean
from oelm.study import yaml
from oelm.study.load import checked, load_study
from oelm.study.plan import what_changed
from oelm.study.shipped import shipped_studies
from oelm.study.study import Study, Value
from oelm.treatment import Treatment
from oelm.words.text import Text, joined, plain, say

if TYPE_CHECKING:
    from oelm.analysis.results import Results

FIRST = "oelm-first"
"""The ledger of the reports that the method comes from."""
_SHARES = ("accuracy", "f1", "macro_f1")
# What can be wrong with a claim about times alone. A learning rate changes no step's time.
_OF_TIMES = (*TIME_CHECKS, "FEW-SEEDS", "DUPLICATE-ROWS")
_STRICT: dict[str, Any] = {"extra": "forbid", "allow_inf_nan": False}


def _words(value: Any) -> Text:
    """One sentence for both languages, or `{en: ..., zh: ...}`."""
    if isinstance(value, str) and value.strip():
        return plain(value)
    if isinstance(value, dict) and set(value) == {"en", "zh"} and all(isinstance(v, str) for v in value.values()):
        return Text(value["en"], value["zh"])
    raise ValueError("must be a sentence, or {en: ..., zh: ...}")


def _number(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be as printed, in quotation marks, such as '4.27' or '91.42 %', got {value!r}")
    return _readable(printed, value)


def _time(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"must be as printed, such as '0.184 s' or '4h31', got {value!r}")
    return _readable(duration, value)


def _readable(read: Any, value: str) -> str:
    try:
        read(value)
    except OelmError as error:
        raise ValueError(" ".join(str(error).split())) from error
    return value


def _treatment(value: Any) -> Treatment:
    try:
        return Treatment.from_dict(value)
    except (OelmError, TypeError) as error:
        raise ValueError(" ".join(str(error).split())) from error


Words = Annotated[Text, PlainValidator(_words)]
Number = Annotated[str, BeforeValidator(_number)]
Time = Annotated[str, BeforeValidator(_time)]
Count = Annotated[int, Field(gt=0, le=10**12)]
Share = Annotated[float, Field(ge=0, le=1)]


# -- the data ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClaimArm:
    """What one side of a claim was given, as far as it is known."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    treatment: Annotated[Treatment, PlainValidator(_treatment)] | None = None
    settings: dict[str, Value] = field(default_factory=dict)
    """By dotted path, as in a recipe: `optimizer.lr`, `schedule.warmup`; or `device`, `commit`."""
    seeds: tuple[int, ...] | None = None
    grid: dict[str, tuple[Value, ...]] | None = None
    """What was tried when tuning it."""
    trials: int | None = None
    """How many trainings its settings were chosen from."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """The numbers of one arm in a table."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    best: Number | None = None
    final: Number | None = None
    f1: Number | None = None
    """Of the same model as the best (or only) value."""
    listed: tuple[Number, ...] = ()
    """Values along the way, of the same run."""
    values: tuple[Number, ...] = ()
    """One of every run, in an order that pairs them with those of the other arms."""
    steps: Count | None = None
    step_seconds: Time | None = None
    wall: Time | None = None

    @property
    def main(self) -> str | None:
        return self.best or self.final


@dataclass(frozen=True, kw_only=True)
class Table:
    """Published numbers that belong together: one metric on one set of examples."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    metric: str
    better: Better
    arms: dict[str, Row]
    examples: Count | None = None
    classes: Count | None = None
    class_counts: tuple[Count, ...] | None = None
    """Examples of every class."""
    f1_average: Average | None = None
    floor: Number | None = None
    """What a simple method reaches there."""


@dataclass(frozen=True, kw_only=True)
class Model:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    pretrained: bool | None = None
    width: Count | None = None
    head_dim: Count | None = None
    ffn_ratio: Annotated[float, Field(gt=0)] = 4.0
    head_share: Share = 0.0
    """The share of the linear work that is outside the layers."""


@dataclass(frozen=True, kw_only=True)
class Counted:
    """Weights: what the architecture has, and what was reported."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    total: Count
    qk: Count
    reported_total: Count


@dataclass(frozen=True, kw_only=True)
class Told:
    """A learning-rate schedule as it was said to be, and as it was."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    says: str
    was: str


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule by which the claim is to be judged: exactly one of `about`, `above` and `at_most`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    rule: Words
    value: Number
    of: Number | None = None
    """What the value is a share of."""
    about: Number | None = None
    above: Number | None = None
    at_most: Number | None = None

    @property
    def number(self) -> float:
        return float(printed(self.value).value / (printed(self.of).value if self.of else 1))

    @property
    def holds(self) -> bool:
        """`about 15 %` is what would be printed as 15 %."""
        exact = printed(self.value).value / (printed(self.of).value if self.of else 1)
        if self.about is not None:
            return printed(self.about).low <= exact <= printed(self.about).high
        if self.above is not None:
            return exact > printed(self.above).value
        assert self.at_most is not None
        return exact <= printed(self.at_most).value

    def __str__(self) -> str:
        return f"{self.number:.4%}" if self.of else self.value


@dataclass(frozen=True, kw_only=True)
class Retest:
    """The shipped study that asks the same question fairly; where there is none, why."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    study: str | None = None
    arm: str | None = None
    against: str | None = None
    metric: str | None = None
    """The study's own, if none is said."""
    why: Words | None = None


@dataclass(frozen=True, kw_only=True)
class Claim:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    claim: Words
    source: str
    arms: dict[str, ClaimArm] = field(default_factory=dict)
    against: str | None = None
    """The arm that the others are compared with."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Other comparisons that the claim makes."""
    model: Model = Model()
    selected_on: str | None = None
    reported_on: str | None = None
    schedule: Told | None = None
    results: dict[str, Table] = field(default_factory=dict)
    counts: Counted | None = None
    rules: tuple[Rule, ...] = ()
    notes: tuple[Words, ...] = ()
    """What is known and no check can see."""
    retested_by: tuple[Retest, ...] = ()

    @property
    def of_times(self) -> bool:
        """Whether it is about times and nothing else."""
        return bool(self.results) and all(table.metric in TIMES for table in self.results.values())


@dataclass(frozen=True, kw_only=True)
class Ledger:
    __pydantic_config__: ClassVar[dict[str, Any]] = _STRICT

    ledger: str
    version: Literal[1]
    sources: dict[str, Words]
    claims: dict[str, Claim]


# -- loading -------------------------------------------------------------------------------------------------------


def shipped_ledgers() -> dict[str, Path]:
    """File by name."""
    return {path.stem: path for path in sorted((Path(__file__).parent / "ledgers").glob("*.yaml"))}


def load_ledger(path: str | Path = FIRST) -> Ledger:
    """A ledger from a file, or a shipped one by its name."""
    shipped = shipped_ledgers()
    file = shipped.get(str(path), Path(path))
    try:
        there = file.is_file()
    except (OSError, ValueError) as error:  # a name that is too long, or no name of a file at all
        raise StudyError(f"{path} cannot be read", why=str(error)) from error
    if not there:
        raise StudyError(f"there is no ledger {path}{did_you_mean(file.stem, shipped)}", hint="docs/claims.md")
    return ledger_from_dict(yaml.read(file), where=str(file))


def ledger_from_dict(raw: Any, *, where: str = "the ledger") -> Ledger:
    """A ledger from plain data in the form of the file."""
    if not isinstance(raw, dict):
        raise StudyError(f"{where} is not a ledger", why="it is not a mapping with `ledger:`, `sources:` and `claims:`")
    return checked(raw, TypeAdapter(Ledger), Ledger, where=where, also=_problems)


def _problems(ledger: Ledger) -> Iterator[tuple[str, str]]:
    shipped = shipped_studies()
    for name, claim in ledger.claims.items():
        at = f"claims.{name}"
        if claim.source not in ledger.sources:
            known = did_you_mean(claim.source, ledger.sources)
            yield f"{at}.source", f"'{claim.source}' is none of the sources{known}"
        if claim.arms and claim.against is None:
            yield f"{at}.against", "is missing: which of the arms are the others compared with?"
        named = [(f"{at}.against", claim.against)] if claim.against is not None else []
        named += [(f"{at}.pairs", arm) for pair in claim.pairs for arm in pair]
        for label, table in claim.results.items():
            if claim.arms:
                named += [(f"{at}.results.{label}.arms", arm) for arm in table.arms]
            yield from _table_problems(table, f"{at}.results.{label}")
        for place, arm in named:
            if arm not in claim.arms:
                yield place, f"'{arm}' is no arm{did_you_mean(arm, claim.arms)}"
        for number, rule in enumerate(claim.rules):
            if sum(limit is not None for limit in (rule.about, rule.above, rule.at_most)) != 1:
                yield f"{at}.rules.{number}", "needs exactly one of about, above, at_most"
            if rule.of is not None and printed(rule.of).value == 0:
                yield f"{at}.rules.{number}.of", "must not be 0"
        for number, retest in enumerate(claim.retested_by):
            if retest.study is None and retest.why is None:
                yield f"{at}.retested_by.{number}", "names no study: say why"
            if retest.study is not None and retest.arm is None:
                yield f"{at}.retested_by.{number}.arm", "is missing"
            if retest.study is not None and retest.study not in shipped:
                known = did_you_mean(retest.study, shipped) or "; oelm studies ls lists them"
                yield f"{at}.retested_by.{number}.study", f"'{retest.study}' is no shipped study{known}"


def _table_problems(table: Table, at: str) -> Iterator[tuple[str, str]]:
    if table.class_counts is not None:
        if table.examples is not None and sum(table.class_counts) != table.examples:
            yield f"{at}.class_counts", f"sum to {sum(table.class_counts)}, and there are {table.examples} examples"
        if table.classes is not None and len(table.class_counts) != table.classes:
            yield f"{at}.class_counts", f"are {len(table.class_counts)}, and there are {table.classes} classes"
    for arm, row in table.arms.items():
        shares = [row.best, row.final, *row.listed, *row.values] if table.metric in _SHARES else []
        for text in (*shares, row.f1):
            if text is not None and not 0 <= printed(text).value <= 1:
                yield f"{at}.arms.{arm}", f"'{text}' is no share: write '91.42 %' or '0.9142'"


# -- judging -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The mean difference of paired published values; of what is no share, relative to the mean of `against`."""

    table: str
    arm: str
    against: str
    metric: str
    n: int
    points: bool
    """Whether it is a difference of shares, in hundredths; else it is relative."""
    mean: float
    interval: Interval

    @property
    def text(self) -> Text:
        scale, key = (100.0, "claim-paired-points") if self.points else (1.0, "claim-paired")
        low, mean, high = (scale * value for value in (self.interval.low, self.mean, self.interval.high))
        return say(key, arm=self.arm, against=self.against, metric=self.metric, n=self.n, low=low, mean=mean, high=high)


@dataclass(frozen=True, kw_only=True)
class Judged:
    claim: Claim
    flags: tuple[Flag, ...]
    paired: tuple[Paired, ...]

    @property
    def codes(self) -> list[str]:
        """The checks that fire, each once."""
        return list(dict.fromkeys(found.code for found in self.flags))

    @property
    def rules(self) -> list[Text]:
        """Each of the claim's own rules, with whether it holds."""
        return [
            say("claim-rule", rule=rule.rule, value=str(rule), held=say("rule-holds" if rule.holds else "rule-fails"))
            for rule in self.claim.rules
        ]


def judge(claim: Claim) -> Judged:
    """A claim with the checks that fire on it and the intervals its numbers give."""
    flags = check_design(design_of_claim(claim))
    for name, table in claim.results.items():
        flags += _check_table(name, table, claim)
    flags += numbers.duplicate_rows(_rows(claim))
    if claim.counts is not None:
        counts = claim.counts
        flags += numbers.count_misses_buffers(
            total=counts.total, qk=counts.qk, reported_total=counts.reported_total, where="counts"
        )
    if claim.schedule is not None:
        flags += numbers.inert_schedule(says=claim.schedule.says, was=claim.schedule.was, where="schedule")
    if claim.of_times:
        flags = [found for found in flags if found.code in _OF_TIMES]
    return Judged(claim=claim, flags=tuple(worst_first(flags)), paired=tuple(_paired(claim)))


def design_of_claim(claim: Claim) -> Design:
    """The design of a claim, as far as it is known."""
    sides = {
        name: Side(
            name=name,
            treatment=arm.treatment,
            settings=arm.settings,
            grid=arm.grid,
            trials=arm.trials,
            seeds=arm.seeds,
        )
        for name, arm in claim.arms.items()
    }
    return Design(
        sides=sides,
        against=claim.against or "",
        pairs=claim.pairs,
        pretrained=claim.model.pretrained,
        width=claim.model.width,
        same_split=claim.reported_on if claim.reported_on == claim.selected_on else None,
    )


def standing(claim: Claim, results_by_study: Mapping[str, Results]) -> Text:
    """What our own records say of it so far; of step times, what was measured in turns, where it was."""
    told, waiting = [], []
    for retest in claim.retested_by:
        if retest.study is None:
            told.append(say("standing-no-study", why=retest.why))
            continue
        results = results_by_study.get(retest.study)
        verdict = _verdict(retest, results) if results is not None else None
        if results is None or verdict is None:
            waiting.append(f"oelm bench {retest.study}" if retest.metric == "step_seconds" else retest.study)
            continue
        told.append(say("standing-verdict", study=retest.study, verdict=verdict))
        changed = _changed(results.study)
        if changed:
            told.append(say("standing-changed", what="; ".join(changed[:3])))
    if waiting or not told:
        told.append(say("standing-not-yet", studies=", ".join(dict.fromkeys(waiting)) or "-"))
    return joined(told)


def _verdict(retest: Retest, results: Results) -> Text | None:
    """None where there are no results of both arms."""
    assert retest.arm is not None
    against = retest.against or results.study.compare.against
    timed = timed_pair(results.bench, retest.arm, against) if retest.metric == "step_seconds" else None
    if timed is not None:
        return timed.sentence
    if not {retest.arm, against} <= set(results.arms):
        return None
    return results.compare(retest.arm, against=against, metric=retest.metric).sentence


def _changed(study: Study) -> list[str]:
    """Where a study that was run departs from the shipped one of its name: it is then another test."""
    if study.name not in shipped_studies():
        return []
    shipped = load_study(study.name).to_dict()
    own = study.to_dict()
    parts = ("recipe", "tune", "seeds", "arms")
    plain_data = [json.loads(json.dumps({part: data[part] for part in parts})) for data in (shipped, own)]
    return what_changed(*plain_data)


def _check_table(name: str, table: Table, claim: Claim) -> Iterator[Flag]:
    base = table.arms.get(claim.against or "")
    for arm, row in table.arms.items():
        at: dict[str, Any] = {"where": f"{name}, {arm}", "arms": (arm,)}
        yield from _check_row(row, table, at, is_baseline=arm == claim.against)
        if row.steps and row.step_seconds and row.wall:
            yield from numbers.time_arithmetic(steps=row.steps, step_seconds=row.step_seconds, wall=row.wall, **at)
        given = claim.arms.get(arm)
        roles = len(given.treatment.frozen_roles) if given and given.treatment else 0
        if base is None or not roles:
            continue
        at["arms"] = (arm, claim.against)
        for slow, fast in ((base.step_seconds, row.step_seconds), (base.wall, row.wall)):
            if slow and fast:
                work: dict[str, Any] = {"ffn_ratio": claim.model.ffn_ratio, "head_share": claim.model.head_share}
                yield from numbers.speedup_above_ceiling(baseline=slow, treated=fast, frozen_roles=roles, **work, **at)


def _check_row(row: Row, table: Table, at: dict[str, Any], *, is_baseline: bool) -> Iterator[Flag]:
    told = [text for text in (row.best, row.final, *row.listed, *row.values) if text is not None]
    examples = table.examples or (sum(table.class_counts) if table.class_counts else None)
    if table.metric == "accuracy" and examples is not None:
        for text in dict.fromkeys(told):
            yield from numbers.grim(text, examples=examples, **at)
    if row.best is not None:
        yield from numbers.best_below_listed(best=row.best, listed=told, better=table.better, **at)
    if row.best is not None and row.final is not None:
        size = examples if table.metric in _SHARES else None
        yield from numbers.final_below_best(best=row.best, final=row.final, better=table.better, examples=size, **at)
    if row.main is None:
        return
    classes: dict[str, Any] = {"classes": table.classes, "class_counts": table.class_counts}
    learned = []
    if table.floor is not None:
        learned += numbers.below_floor(value=row.main, floor=table.floor, better=table.better, **at)
    if table.metric == "accuracy":
        learned += numbers.collapsed(accuracy=row.main, examples=examples, **classes, **at)
    # A treated arm that learned nothing is a result; a baseline that did is none.
    yield from (found if is_baseline else replace(found, severity="warn") for found in learned)
    if table.metric == "accuracy" and row.f1 is not None:
        yield from numbers.f1_impossible(accuracy=row.main, f1=row.f1, average=table.f1_average, **classes, **at)


def _rows(claim: Claim) -> dict[tuple[str, int], dict[str, str]]:
    """Every published run with all its numbers: (arm, its place among the arm's runs)."""
    rows: dict[tuple[str, int], dict[str, str]] = {}
    for name, table in claim.results.items():
        for arm, row in table.arms.items():
            single = {"best": row.best, "final": row.final, "f1": row.f1}
            named = {f"{name} {label}": text for label, text in single.items() if text is not None}
            if named:
                rows.setdefault((arm, 0), {}).update(named)
            for number, text in enumerate(row.values):
                rows.setdefault((arm, number), {})[f"{name} {table.metric}"] = text
    return rows


def _paired(claim: Claim) -> Iterator[Paired]:
    for name, table in claim.results.items():
        base = table.arms.get(claim.against or "")
        if claim.against is None or base is None or len(base.values) < 2:
            continue
        level = [float(printed(text).value) for text in base.values]
        for arm, row in table.arms.items():
            if arm == claim.against or len(row.values) != len(level):
                continue
            points = table.metric in _SHARES
            unit = 1.0 if points else fmean(level)
            if unit == 0:
                continue
            estimate = from_seeds(
                [(float(printed(v).value) - b) / unit for v, b in zip(row.values, level, strict=True)]
            )
            yield Paired(
                table=name,
                arm=arm,
                against=claim.against,
                metric=table.metric,
                n=len(level),
                points=points,
                mean=estimate.mean,
                interval=estimate.interval(0.95),
            )
