"""Judge claims: which checks fire on them, what intervals their numbers give, and the verdict of their tests."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

from oelm.analysis.checks import consistency
from oelm.analysis.checks.design import check_design
from oelm.analysis.checks.registry import Issue, by_severity
from oelm.analysis.checks.reported_number import parse_number
from oelm.analysis.design import Design, Side
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import Interval, from_seeds
from oelm.analysis.verdicts import TIME_CHECKS
from oelm.claims.decide import ClaimVerdict, decide_claim
from oelm.claims.schema import Claim, ResultRow, ResultTable
from oelm.message import Message
from oelm.metrics import SHARES

# What can be wrong with a claim about times alone. A learning rate changes no step's time.
_OF_TIMES = (*TIME_CHECKS, "FEW-SEEDS", "DUPLICATE-ROWS")


@dataclass(frozen=True, kw_only=True)
class PairedDifference:
    """The mean difference of paired published values; if they are not shares, relative to the mean of `against`."""

    table: str
    arm: str
    against: str
    metric: str
    n: int
    points: bool
    """Whether it is a difference of shares; else it is relative."""
    mean: float
    interval: Interval

    @property
    def message(self) -> Message:
        scale, key = (100.0, "claim-paired-points") if self.points else (1.0, "claim-paired")
        return Message(
            key,
            arm=self.arm,
            against=self.against,
            metric=self.metric,
            n=self.n,
            mean=scale * self.mean,
            low=scale * self.interval.low,
            high=scale * self.interval.high,
            level=self.interval.level,
        )


@dataclass(frozen=True, kw_only=True)
class JudgedClaim:
    claim: Claim
    issues: tuple[Issue, ...]
    paired: tuple[PairedDifference, ...]
    verdict: ClaimVerdict

    @property
    def codes(self) -> list[str]:
        """The checks that fire, each once."""
        return list(dict.fromkeys(found.code for found in self.issues))


def judge_claim(claim: Claim, results: Sequence[Results] = ()) -> JudgedClaim:
    """A claim with the checks that fire on it, the intervals its numbers give, and the verdict of its tests.

    `results` are those of studies. Of two runs of one study neither decides.
    """
    issues = check_design(claimed_design(claim))
    for name, table in claim.results.items():
        issues += _check_table(name, table, claim)
    issues += consistency.duplicate_rows(_rows(claim))
    if claim.counts is not None:
        counts = claim.counts
        issues += consistency.count_misses_buffers(
            total=counts.total, qk=counts.qk, reported_total=counts.reported_total, where="counts"
        )
    if claim.schedule is not None:
        issues += consistency.inert_schedule(says=claim.schedule.says, was=claim.schedule.was, where="schedule")
    if claim.of_times:
        issues = [found for found in issues if found.code in _OF_TIMES]
    return JudgedClaim(
        claim=claim,
        issues=tuple(by_severity(issues)),
        paired=tuple(_paired(claim)),
        verdict=decide_claim(claim, results),
    )


def claimed_design(claim: Claim) -> Design:
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


def _check_table(name: str, table: ResultTable, claim: Claim) -> Iterator[Issue]:
    base = table.arms.get(claim.against or "")
    for arm, row in table.arms.items():
        where = f"{name}, {arm}"
        for found in _check_row(row, table, is_baseline=arm == claim.against):
            yield replace(found, places=(where,), about=((arm,),))
        given = claim.arms.get(arm)
        roles = len(given.treatment.frozen_roles) if given and given.treatment else 0
        if base is None or claim.against is None or not roles:
            continue
        for slow, fast in ((base.step_seconds, row.step_seconds), (base.wall, row.wall)):
            if slow and fast:
                yield from consistency.speedup_above_ceiling(
                    baseline=slow,
                    treated=fast,
                    frozen_roles=roles,
                    ffn_ratio=claim.model.ffn_ratio,
                    head_share=claim.model.head_share,
                    where=where,
                    arms=(arm, claim.against),
                )


def _check_row(row: ResultRow, table: ResultTable, *, is_baseline: bool) -> Iterator[Issue]:
    """What the numbers of one arm say against each other."""
    yield from _check_values(row, table, is_baseline=is_baseline)
    if row.steps and row.step_seconds and row.wall:
        yield from consistency.time_arithmetic(steps=row.steps, step_seconds=row.step_seconds, wall=row.wall)


def _check_values(row: ResultRow, table: ResultTable, *, is_baseline: bool) -> Iterator[Issue]:
    reported = [text for text in (row.best, row.final, *row.listed, *row.values) if text is not None]
    examples = table.examples or (sum(table.class_counts) if table.class_counts else None)
    if table.metric == "accuracy" and examples is not None:
        for text in dict.fromkeys(reported):
            yield from consistency.grim(text, examples=examples)
    if row.best is not None:
        yield from consistency.best_below_listed(best=row.best, listed=reported, better=table.better)
    if row.best is not None and row.final is not None:
        size = examples if table.metric in SHARES else None
        yield from consistency.final_below_best(best=row.best, final=row.final, better=table.better, examples=size)
    if row.main is None:
        return
    learned = []
    if table.simple_baseline is not None:
        level = table.simple_baseline
        learned += consistency.below_simple_baseline(value=row.main, simple_baseline=level, better=table.better)
    if table.metric == "accuracy":
        learned += consistency.collapsed(
            accuracy=row.main, examples=examples, classes=table.classes, class_counts=table.class_counts
        )
    # A treated arm that learned nothing is a result; a baseline that did is not a baseline.
    yield from (found if is_baseline else replace(found, severity="warn") for found in learned)
    if table.metric == "accuracy" and row.f1 is not None:
        yield from consistency.f1_impossible(
            accuracy=row.main,
            f1=row.f1,
            average=table.f1_average,
            classes=table.classes,
            class_counts=table.class_counts,
        )


def _rows(claim: Claim) -> dict[tuple[str, int], dict[str, str]]:
    """Every published run with all its numbers: (arm, its number among the arm's runs)."""
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


def _paired(claim: Claim) -> Iterator[PairedDifference]:
    for name, table in claim.results.items():
        base = table.arms.get(claim.against or "")
        if claim.against is None or base is None or len(base.values) < 2:
            continue
        level = [float(parse_number(text).value) for text in base.values]
        for arm, row in table.arms.items():
            if arm == claim.against or len(row.values) != len(level):
                continue
            points = table.metric in SHARES
            unit = 1.0 if points else fmean(level)
            if unit == 0:
                continue
            estimate = from_seeds(
                [(float(parse_number(v).value) - b) / unit for v, b in zip(row.values, level, strict=True)]
            )
            yield PairedDifference(
                table=name,
                arm=arm,
                against=claim.against,
                metric=table.metric,
                n=len(level),
                points=points,
                mean=estimate.mean,
                interval=estimate.interval(0.95),
            )
