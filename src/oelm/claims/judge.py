"""Judge claims: which checks fire on them, what intervals their numbers give, and what our own records say."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from statistics import fmean
from typing import TYPE_CHECKING

from oelm.analysis.checks import consistency
from oelm.analysis.checks.design import check_design
from oelm.analysis.checks.registry import Issue, by_severity
from oelm.analysis.checks.reported_number import parse_number
from oelm.analysis.design import Design, Side
from oelm.analysis.stats.estimate import Interval, from_seeds
from oelm.analysis.stats.timed_pairs import timed_pair
from oelm.analysis.verdicts import TIME_CHECKS
from oelm.claims.schema import Claim, ResultRow, ResultTable, Retest
from oelm.message import Message, verbatim
from oelm.metrics import SHARES
from oelm.study.cells import describe_changes
from oelm.study.load import load_study
from oelm.study.shipped import shipped_studies
from oelm.study.study import Study

if TYPE_CHECKING:
    from oelm.analysis.results import Results

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

    @property
    def codes(self) -> list[str]:
        """The checks that fire, each once."""
        return list(dict.fromkeys(found.code for found in self.issues))

    @property
    def rules(self) -> list[Message]:
        """Each of the claim's own rules, with whether it holds."""
        return [
            Message(
                "claim-rule-share" if rule.of else "claim-rule",
                rule=rule.rule,
                value=rule.number if rule.of else rule.value,
                holds=Message("rule-holds" if rule.holds else "rule-fails"),
            )
            for rule in self.claim.rules
        ]


def judge_claim(claim: Claim) -> JudgedClaim:
    """A claim with the checks that fire on it and the intervals its numbers give."""
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
    return JudgedClaim(claim=claim, issues=tuple(by_severity(issues)), paired=tuple(_paired(claim)))


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


def retest_status(claim: Claim, results_by_study: Mapping[str, Results]) -> tuple[Message, ...]:
    """What our own records say of it so far; of step times, what was measured in turns, where it was."""
    found, pending = [], []
    for retest in claim.retested_by:
        if retest.study is None:
            found.append(Message("retest-no-study", why=retest.why))
            continue
        results = results_by_study.get(retest.study)
        verdict = _verdict(retest, results) if results is not None else None
        if results is None or verdict is None:
            pending.append(f"oelm bench {retest.study}" if retest.metric == "step_seconds" else retest.study)
            continue
        found.append(Message("retest-verdict", study=retest.study, verdict=verdict))
        changed = _changed(results.study)
        if changed:
            found.append(Message("retest-changed", what=tuple(map(verbatim, changed))))
    if pending or not found:
        found.append(Message("retest-pending", studies=tuple(dict.fromkeys(pending)) or "-"))
    return tuple(found)


def _verdict(retest: Retest, results: Results) -> Message | None:
    """None where there are no results of both arms."""
    assert retest.arm is not None
    against = retest.against or results.study.compare.baseline
    timed = timed_pair(results.bench, retest.arm, against) if retest.metric == "step_seconds" else None
    if timed is not None:
        return timed.message
    if not {retest.arm, against} <= set(results.arms):
        return None
    return results.compare(retest.arm, against=against, metric=retest.metric).message


def _changed(study: Study) -> list[str]:
    """Where a study that was run departs from the shipped one of its name: it is then another test."""
    if study.name not in shipped_studies():
        return []
    shipped = load_study(study.name).to_dict()
    own = study.to_dict()
    parts = ("recipe", "tune", "seeds", "arms")
    plain_data = [json.loads(json.dumps({part: data[part] for part in parts})) for data in (shipped, own)]
    return describe_changes(*plain_data)


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
