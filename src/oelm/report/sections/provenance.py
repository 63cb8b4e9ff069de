"""Provenance: what the records were made with, and what was excluded."""

import math
from dataclasses import asdict, replace

from oelm.analysis.results import Results
from oelm.format import DASH
from oelm.report.blocks import Block, Prose, make_row, make_table, text_cell, text_columns
from oelm.runs.layout import RECORD
from oelm.runs.record import Record
from oelm.study.cells import Cell, flatten
from oelm.text.messages import join_names, say, untranslated

# Provenance of the cell itself, not of how it was trained.
_OF_THE_CELL = ("time", "command")


def provenance_section(results: Results) -> list[Block]:
    values: dict[str, dict[str, int]] = {}
    times = []
    alike: dict[str, list[Record]] = {}  # mostly all are
    for record in (*results.records.values(), *results.tuning.values()):
        facts = replace(record.provenance, time="", command="")
        alike.setdefault(repr((facts, record.data, record.processes)), []).append(record)
        times.append(record.provenance.time)
    for records in alike.values():
        first = records[0]
        kept = {name: value for name, value in asdict(first.provenance).items() if name not in _OF_THE_CELL}
        data = asdict(first.data) if first.data is not None else {}
        processes = first.processes.number if first.processes is not None else None
        rows = flatten({"": kept, "processes": processes, "data": data})
        for path, value in rows.items():
            counted = values.setdefault(path, {})
            one = ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
            counted[one] = counted.get(one, 0) + len(records)
    cells = len(results.records) + len(results.tuning)
    rows_by_field = []
    for path, counted in values.items():
        if list(counted) == ["None"] or not counted:
            continue
        named = [value if n == cells else f"{value} ({n})" for value, n in sorted(counted.items())]
        rows_by_field.append(make_row(path, join_names(named)))
    if times:
        begin, end = min(times), max(times)
        span = untranslated(begin) if begin == end else say("times", first=begin, last=end)
        rows_by_field.append(make_row(say("started"), span))
    return [Prose(text=say("provenance-how", n=cells)), make_table(text_columns("field", "value"), rows_by_field)]


def excluded_section(results: Results) -> list[Block]:
    rows = [make_row(out.where, out.why) for out in results.excluded]
    for cell, record in {**results.records, **results.tuning}.items():
        if record.status == "done":
            continue
        reason = record.error.first_line if record.error is not None else ""
        why = say("not-done", status=say(f"status-{record.status}"), why=reason or DASH)
        rows.append(make_row(text_cell(str(cell), href=record_path(cell)), why, arm=cell.arm))
    metric = results.study.compare.metric
    for cell, record in results.records.items() if results.sealed is None else ():
        value = record.value(metric)
        if record.status == "done" and (value is None or not math.isfinite(value)):
            why = say("no-number", metric=metric, value=str(value) if value is not None else DASH)
            rows.append(make_row(text_cell(str(cell), href=record_path(cell)), why, arm=cell.arm))
    known = {out.where for out in results.excluded}
    for arm in results.study.arms:
        wanted = (Cell(arm=arm, seed=seed) for seed in results.study.seeds)
        missing = [str(one.seed) for one in wanted if one not in results.records and str(one) not in known]
        if missing:
            rows.append(make_row(arm, say("no-cell", seeds=join_names(missing))))
    if not rows:
        return [Prose(text=say("excluded-nothing"))]
    return [make_table(text_columns("where", "why"), rows)]


def record_path(cell: Cell) -> str:
    return f"{cell}/{RECORD}"
