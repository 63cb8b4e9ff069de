"""Checks of runs: whether the records of a study are what its comparisons need them to be."""

from __future__ import annotations

import contextlib
import math
import statistics
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from functools import lru_cache
from typing import Any

import numpy as np

from oelm.analysis.checks.consistency import (
    OPTIMIZER_ALLOWANCE,
    check_record,
    duplicate_records,
    luck_of_the_best,
    saving_ceiling,
)
from oelm.analysis.checks.leakage import check_leakage
from oelm.analysis.checks.registry import Issue, Severity, issue
from oelm.analysis.checks.simple_baseline import check_simple_baseline
from oelm.analysis.evidence import diverged_everywhere
from oelm.analysis.observed_design import all_starts
from oelm.analysis.results import Results, finite_number
from oelm.errors import CellError
from oelm.message import Message, verbatim
from oelm.metrics import BY_EXAMPLE, find_metric
from oelm.runs.layout import PREDICTIONS
from oelm.runs.predictions import Predictions
from oelm.runs.record import LrTrace, Record
from oelm.runs.simple_baseline import find_simple_baseline
from oelm.study.cells import Cell, both_stages, compared_cells, trials_of
from oelm.study.recipe import ScheduleConfig
from oelm.study.schedule import lr_at

_MUCH_PADDING = 0.5
_FEW_EXAMPLES = 100  # one answer is a point of accuracy
_MOSTLY_ONE_CLASS = 0.8  # of the examples: no task of GLUE comes near


def check_runs(results: Results, compared: list[tuple[str, str]]) -> list[Issue]:
    of_cells = (_ended, _learned, _fell, _schedules, _clipping, _numbers, _times, _started)
    rules = (_complete, _whole, _treated, *of_cells, check_simple_baseline, _measured)
    pairs = (_paired, _order, _ceiling)
    found = [one for rule in (check_leakage, *rules) for one in rule(results)]
    return [*found, *(one for rule in pairs for one in rule(results, compared))]


def _complete(results: Results) -> Iterator[Issue]:
    study, reasons = results.study, {out.where: out.why for out in results.excluded}
    if study.compare.baseline not in results.arms:
        yield issue("INCOMPLETE", where=study.compare.baseline, severity="invalid", key="no-baseline")
    absent = [cell for cell in compared_cells(study) if cell not in results.records]
    for name in study.arms:
        missing: dict[Message, list[int]] = {}
        for cell in absent:
            if cell.arm == name:
                why = reasons.get(str(cell)) or _untuned(results, cell) or Message("not-run")
                missing.setdefault(why, []).append(cell.seed)
        for why, some in missing.items():
            seeds, number = tuple(sorted(some)), len(study.seeds)
            yield issue("INCOMPLETE", where=name, arms=(name,), seeds=seeds, number=number, why=why)


def _whole(results: Results) -> Iterator[Issue]:
    """What is damaged, but for cells that are compared: those are said to be missing."""
    study = results.study
    compared = {str(cell) for cell in compared_cells(both_stages(study))}
    for out in results.excluded:
        arm, _, below = out.where.partition("/")
        if not out.is_damaged or out.where in compared or (below and arm not in study.arms):
            continue
        code = "NOT-REPRODUCED" if below.endswith(PREDICTIONS) else "INCOMPLETE"
        arms = (arm,) if arm in study.arms else ()
        yield issue(code, where=out.where, arms=arms, severity="warn", key="damaged-file", what=out.why)


def _untuned(results: Results, cell: Cell) -> Message | None:
    """The trial that kept a cell from being tuned. One that diverged does not, if at another point none did."""
    trials = (trial for some in trials_of(results.study, cell).values() for trial in some)
    ends = ("failed", "audit-failed", *(("diverged",) if diverged_everywhere(results, cell) else ()))
    bad = [trial for trial in trials if trial in results.tuning and results.tuning[trial].status in ends]
    if not bad:
        return None
    return Message("untuned", cell=str(bad[0]), status=Message(f"status-{results.tuning[bad[0]].status}"))


def _treated(results: Results) -> Iterator[Issue]:
    """Every cell must have had the treatment that the study says."""
    for name in results.arms:
        planned = results.study.arms[name]
        given = {
            seed: replace(planned, treatment=spec.treatment, adapter=spec.adapter, trains=spec.trains)
            for seed, spec in ((seed, record.spec) for seed, record in results.of(name).items())
        }
        other = [seed for seed, arm in given.items() if arm != planned]
        if other:
            yield issue(
                "AUDIT-FAILED",
                where=name,
                arms=(name,),
                key="other-treatment",
                seeds=tuple(other),
                found=given[other[0]].method,
                planned=planned.method,
            )


def _ended(results: Results) -> Iterator[Issue]:
    for cell, record in results.records.items():
        what = record.error.first_line if record.error is not None else ""
        failed = [audit for audit in record.audits if not audit.passed]
        if record.status == "done" and not record.audits:
            yield issue("AUDIT-FAILED", where=str(cell), arms=(cell.arm,), severity="note", key="no-audit")
        if record.status == "audit-failed" or failed:
            findings = next((audit.findings for audit in failed if audit.findings), ())
            said = tuple(map(verbatim, (what,) if what else findings))
            yield issue("AUDIT-FAILED", where=str(cell), arms=(cell.arm,), what=said)
        elif record.status == "diverged":
            yield issue("DIVERGED", where=str(cell), arms=(cell.arm,), what=verbatim(what))
        elif record.status == "failed":
            yield issue("INCOMPLETE", where=str(cell), arms=(cell.arm,), key="failed", what=verbatim(what))
        elif record.status != "done":
            status = Message(f"status-{record.status}")
            yield issue("INCOMPLETE", where=str(cell), arms=(cell.arm,), key="excluded-unfinished", status=status)
        elif not any(row.step == record.steps for row in record.evaluations):
            yield issue("INCOMPLETE", where=str(cell), arms=(cell.arm,), key="last-not-measured")
        elif _number(record, results) is None and results.sealed is None and cell.seed in results.counted(cell.arm):
            metric = results.study.compare.metric
            yield issue("INCOMPLETE", where=str(cell), arms=(cell.arm,), key="no-metric", metric=metric)


def _severity(results: Results, arm: str) -> Severity:
    """A treated arm that fails has a result; a baseline that fails is none."""
    return "invalid" if arm == results.study.compare.baseline else "warn"


def _number(record: Record, results: Results) -> float | None:
    return finite_number(record.value(results.study.compare.metric))


def _learned(results: Results) -> Iterator[Issue]:
    """Nothing that learned no more than the commonest class is a baseline."""
    for arm in results.arms:
        for seed, record in results.of(arm).items():
            if record.status != "done" or _number(record, results) is None:
                continue
            cell = Cell(arm=arm, seed=seed)
            kept = None
            try:
                kept = results.predictions(cell)
            except CellError as error:
                what = verbatim(" ".join(str(error).split()))
                where = f"{cell}/{PREDICTIONS}"
                yield issue("NOT-REPRODUCED", where=where, arms=(arm,), severity="warn", key="damaged-file", what=what)
            if kept is not None:
                yield from _reproduced(cell, record, kept)
        collapsed = {cell.seed: why for cell, why in results.collapsed.items() if cell.arm == arm}
        if collapsed:
            seeds, first = tuple(collapsed), next(iter(collapsed.values()))
            # Seeds that fail now and then are counted by the verdict; a baseline that never learns is none.
            never = len(collapsed) == len(results.of(arm)) and arm == results.study.compare.baseline
            severity: Severity = "invalid" if never else "warn"
            yield issue("COLLAPSED", where=arm, arms=(arm,), severity=severity, seeds=seeds, what=first)


def _reproduced(cell: Cell, record: Record, kept: Predictions) -> Iterator[Issue]:
    """What is reported must come out of what was kept: all examples, each once."""
    kept_rows, examples = len(kept.row), record.num_test_examples
    if not kept_rows or (not kept.are_documents and kept_rows != examples):
        at: dict[str, Any] = {"where": str(cell), "arms": (cell.arm,), "severity": "warn"}
        yield issue("NOT-REPRODUCED", key="predictions-missing", **at, n=kept_rows, examples=examples)
    for metric in BY_EXAMPLE:
        said, again = record.value(metric), kept.mean(metric)
        if said is None or again is None:
            continue
        again = find_metric(metric).level(again)
        if not math.isclose(said, again, rel_tol=1e-6, abs_tol=1e-9):
            where, n = str(cell), len(kept.row)
            yield issue("NOT-REPRODUCED", where=where, arms=(cell.arm,), metric=metric, said=said, again=again, n=n)


def _fell(results: Results) -> Iterator[Issue]:
    """The end of training far below its best: the mean of what is reported hides it."""
    compare = results.study.compare
    for cell, record in results.records.items():
        measured = (finite_number(row.metrics.get(compare.metric)) for row in record.evaluations)
        values = [value for value in measured if value is not None]
        if len(values) < 2:
            continue
        best, last = (max(values) if compare.direction == "higher" else min(values)), values[-1]
        size = record.data.sizes.get("validation") if record.data is not None else None
        counted = size if find_metric(compare.metric).kind == "predictions" else None
        if abs(best - last) > luck_of_the_best(best, examples=counted):
            yield issue(
                "FINAL-BELOW-BEST", where=str(cell), arms=(cell.arm,), metric=compare.metric, best=best, last=last
            )


def _schedules(results: Results) -> Iterator[Issue]:
    for cell, record in results.records.items():
        reason = _inert(record)
        if reason is not None:
            yield issue("INERT-SCHEDULE", where=str(cell), arms=(cell.arm,), what=reason)


def _inert(record: Record) -> Message | None:
    recipe = record.spec.recipe
    if record.status != "done" or not record.steps or not record.lr:
        return None
    return _off_schedule(recipe.schedule, recipe.optimizer.lr, record.steps, record.lr)


@lru_cache(maxsize=100)
def _off_schedule(schedule: ScheduleConfig, peak: float, total: int, trace: LrTrace) -> Message | None:
    """How a trace departs from its schedule. Cells of one recipe have one trace."""
    planned = [lr_at(step - 1, total=total, peak=peak, schedule=schedule) for step, _ in trace]
    if len(trace) > 2 and len({lr for _, lr in trace}) == 1 < len(set(planned)):
        return Message("inert-constant", lr=trace[0][1], name=schedule.name)
    for (step, lr), expected in zip(trace, planned, strict=True):
        if not abs(lr - expected) <= 0.01 * peak:
            return Message("inert-other", step=step, lr=lr, expected=expected)
    return None


def _clipping(results: Results) -> Iterator[Issue]:
    shares: dict[str, list[float]] = {}
    for cell, record in results.records.items():
        clip, norms = record.spec.recipe.max_grad_norm, results.steps(cell).grad_norm
        if clip is not None and len(norms):
            shares.setdefault(cell.arm, []).append(float((norms > clip).mean()))
    for arm, found in shares.items():
        share = statistics.fmean(found)
        if share == 0:
            yield issue("CLIP-INERT", where=arm, arms=(arm,))
        elif share > 0.99:
            yield issue("CLIP-ALWAYS", where=arm, arms=(arm,), share=share)


def _started(results: Results) -> Iterator[Issue]:
    """One training on one and the same code: at every start, and with nothing that no commit has."""
    for cell, record in results.records.items():
        starts = all_starts(record)
        values = {name: dict.fromkeys(start[name] for start in starts if name in start) for name in starts[-1]}
        changed = tuple(
            Message("differing-start", path=name, values=tuple(map(str, found)))
            for name, found in values.items()
            if len(found) > 1
        )
        if changed:
            at: dict[str, Any] = {"where": str(cell), "arms": (cell.arm,), "severity": "warn"}
            yield issue("SETTING-DIFFERS", key="mixed-starts", **at, what=changed)
        codes = (record.provenance.code, *(launch.code for launch in record.launches))
        if any(code is not None and code.dirty for code in codes):
            yield issue("DIRTY-CODE", where=str(cell), arms=(cell.arm,))


def _measured(results: Results) -> Iterator[Issue]:
    """Whether the examples can show what the metric is asked for. All arms have the same."""
    compare = results.study.compare
    cells = [cell for cell, record in results.records.items() if record.status == "done"]
    if find_metric(compare.metric).kind != "predictions" or not cells:
        return
    record = results.records[cells[0]]
    size = record.num_test_examples
    if size and (size < _FEW_EXAMPLES or 1 / size > (compare.min_effect or math.inf)):
        yield issue("FEW-EXAMPLES", examples=size, one=1 / size, half=0.98 / math.sqrt(size))
    share = _largest_class(results, cells[0])
    if compare.metric == "accuracy" and share is not None and share >= _MOSTLY_ONE_CLASS:
        yield issue("IMBALANCED", share=share, examples=size, metrics=("macro_f1", "matthews"))


def _largest_class(results: Results, cell: Cell) -> float | None:
    """Its share of the split that is compared: of the labels that were kept, or as the simple baseline knows it."""
    record, kept = results.records[cell], None
    with contextlib.suppress(CellError):  # said elsewhere
        kept = results.predictions(cell)
    if kept is not None and kept.has_classes and kept.label is not None and len(kept.label):
        return float(np.bincount(kept.label).max() / len(kept.label))
    simple = find_simple_baseline(record.data, results.simple_baselines)
    return simple.majority.get(record.first_split or "") if simple is not None else None


def _paired(results: Results, compared: list[tuple[str, str]]) -> Iterator[Issue]:
    for arm, against in compared:
        one, other = results.of(arm), results.of(against)
        both = [seed for seed in one if seed in other and one[seed].status == other[seed].status == "done"]
        for name, hash_of in (("weights", _weights), ("batches", _batches)):
            shared = [seed for seed in both if name == "batches" or _same_origin(one[seed], other[seed])]
            hashes = {seed: (hash_of(one[seed]), hash_of(other[seed])) for seed in shared}
            unknown = tuple(seed for seed, pair in hashes.items() if not all(pair))
            differ = tuple(seed for seed, pair in hashes.items() if all(pair) and pair[0] != pair[1])
            for key, seeds in (("UNPAIRED", differ), ("unpaired-unknown", unknown)):
                if seeds:
                    what = Message(f"unpaired-{name}")
                    at: dict[str, Any] = {"where": arm, "arms": (arm, against)}
                    yield issue("UNPAIRED", key=key, **at, against=against, seeds=seeds, what=what)


def _same_origin(*records: Record) -> bool:
    """Whether two cells start from one model; from those of two arms they have other weights on purpose."""
    origins = [record.start.origin if record.start is not None else None for record in records]
    return len({(one.spec.study, one.spec.arm) if one is not None else None for one in origins}) == 1


def _weights(record: Record) -> str | None:
    return record.start.weights if record.start is not None else None


def _batches(record: Record) -> str | None:
    return record.batches


def _numbers(results: Results) -> Iterator[Issue]:
    """The numbers of our own records are held to what is asked of published ones."""
    for cell, record in results.records.items():
        yield from check_record(record, where=str(cell), arm=cell.arm)
    yield from duplicate_records({str(cell): record for cell, record in results.records.items()})


def _times(results: Results) -> Iterator[Issue]:
    for cell, record in results.records.items():
        if record.start is not None and record.start.padding > _MUCH_PADDING:
            yield issue("PADDING-TIMED", where=str(cell), arms=(cell.arm,), share=record.start.padding)
        steps, training = results.steps(cell).all_seconds, record.seconds.get("training")
        if training is not None and steps > 1.05 * training + 1:
            yield issue(
                "TIME-ARITHMETIC", where=str(cell), arms=(cell.arm,), key="time-record", steps=steps, all=training
            )


def _order(results: Results, compared: list[tuple[str, str]]) -> Iterator[Issue]:
    """One arm always before the other: a machine that slows down, or is shared by day, favors one of them."""
    for arm, against in compared:
        one, other = results.of(arm), results.of(against)
        began = [(_began(one[seed]), _began(other[seed])) for seed in one if seed in other]
        known = [(first, second) for first, second in began if first and second and first != second]
        if len(known) > 1 and len({first < second for first, second in known}) == 1:
            where = arm if against == results.study.compare.baseline else f"{arm} / {against}"
            yield issue("FIXED-ORDER", where=where, arms=(arm, against), against=against, n=len(known))


def _began(record: Record) -> datetime | None:
    try:
        return datetime.strptime(record.launches[0].time, "%Y-%m-%dT%H:%M:%S%z") if record.launches else None
    except ValueError:
        return None


def _ceiling(results: Results, compared: list[tuple[str, str]]) -> Iterator[Issue]:
    """Whole runs that are faster than freezing can make them were timed on a machine that had other things to do."""
    arms = results.study.arms
    for arm, against in compared:
        if not arms[arm].trains_like(arms[against]):
            continue  # how much less there is to do for an adapter, no arithmetic of ours says
        one, other = (results.values(name, "step_seconds") for name in (arm, against))
        shares = [one[seed] / other[seed] for seed in one if other.get(seed)]
        savings = [1 - share for share in shares if finite_number(share) is not None]
        if not savings:
            continue
        more = [max(len(record.frozen_roles) for record in results.of(name).values()) for name in (arm, against)]
        ceiling = saving_ceiling(frozen_roles=max(0, more[0] - more[1])) + OPTIMIZER_ALLOWANCE
        saving = statistics.fmean(savings)
        error = statistics.stdev(savings) / math.sqrt(len(savings)) if len(savings) > 1 else 0.0
        if saving - 2 * error > ceiling:
            yield issue(
                "SPEEDUP-ABOVE-CEILING",
                where=arm if against == results.study.compare.baseline else f"{arm} / {against}",
                arms=(arm, against),
                severity="warn" if len(savings) > 1 else "note",  # of one pair nobody knows the error
                key="speedup-runs",
                saving=saving,
                ceiling=ceiling,
            )
