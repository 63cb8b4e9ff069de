"""Sources: the published claims a study re-tests, what its records were made with, and what is missing of them."""

from __future__ import annotations

import math

from oelm.analysis.claims import Ledger, judge, standing
from oelm.analysis.results import Results
from oelm.report.plot import DASH
from oelm.report.sections import Block, Folded, Prose, Row, table, words
from oelm.report.shown import named
from oelm.study.plan import Cell, flat
from oelm.words.text import plain, say

# What provenance says of a cell and not of how it was made.
_OF_THE_CELL = ("seed", "starts", "time", "command")


def claims(results: Results, ledger: Ledger) -> list[Block]:
    columns = [(say(f"column-{name}"), False) for name in ("claim", "said", "checks", "standing")]
    own: list[Row] = []
    rest: list[Row] = []
    for name, claim in ledger.claims.items():
        judged = judge(claim)
        row = Row(
            cells=(
                words(name),
                words(claim.claim),
                words(", ".join(judged.codes) if judged.codes else say("claims-clean")),
                words(standing(claim, {results.study.name: results})),
            )
        )
        (own if any(retest.study == results.study.name for retest in claim.retested_by) else rest).append(row)
    blocks: list[Block] = [Prose(text=say("claims-how"))]
    blocks.append(table(columns, own) if own else Prose(text=say("claims-none-here")))
    if rest:
        blocks.append(Folded(summary=say("claims-rest", n=len(rest)), blocks=(table(columns, rest),)))
    return blocks


def provenance(results: Results) -> list[Block]:
    values: dict[str, dict[str, int]] = {}
    times = []
    for record in (*results.records.values(), *results.tuning.values()):
        kept = {name: value for name, value in record.provenance.items() if name not in _OF_THE_CELL}
        rows = flat({"": kept}) | flat({"data": record.data})
        for path, value in rows.items():
            counted = values.setdefault(path, {})
            one = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
            counted[one] = counted.get(one, 0) + 1
        if isinstance(record.provenance.get("time"), str):
            times.append(record.provenance["time"])
    cells = len(results.records) + len(results.tuning)
    rows_shown = []
    for path, counted in values.items():
        if list(counted) == ["None"] or not counted:
            continue
        told = [value if n == cells else f"{value} ({n})" for value, n in sorted(counted.items())]
        rows_shown.append(Row(cells=(words(path), words(named(told)))))
    if times:
        first, last = min(times), max(times)
        span = plain(first) if first == last else say("times", first=first, last=last)
        rows_shown.append(Row(cells=(words(say("started")), words(span))))
    columns = [(say("column-field"), False), (say("column-value"), False)]
    return [Prose(text=say("provenance-how", n=cells)), table(columns, rows_shown)]


def left_out(results: Results) -> list[Block]:
    rows = [Row(cells=(words(out.where), words(out.why))) for out in results.left_out]
    for cell, record in {**results.records, **results.tuning}.items():
        if record.status == "done":
            continue
        first = str((record.error or {}).get("what", "")).splitlines()[:1]
        why = say("not-done", status=say(f"status-{record.status}"), why=first[0] if first else DASH)
        rows.append(Row(arm=cell.arm, cells=(words(str(cell), href=record_path(cell)), words(why))))
    metric = results.study.compare.primary.metric
    for cell, record in results.records.items():
        value = record.value(metric)
        if record.status == "done" and (value is None or not math.isfinite(value)):
            why = say("no-number", metric=metric, value=str(value) if value is not None else DASH)
            rows.append(Row(arm=cell.arm, cells=(words(str(cell), href=record_path(cell)), words(why))))
    told = {out.where for out in results.left_out}
    for arm in results.study.arms:
        wanted = (Cell(arm=arm, seed=seed) for seed in results.study.seeds)
        missing = [str(one.seed) for one in wanted if one not in results.records and str(one) not in told]
        if missing:
            rows.append(Row(cells=(words(arm), words(say("no-cell", seeds=named(missing))))))
    if not rows:
        return [Prose(text=say("left-out-nothing"))]
    return [table([(say("column-where"), False), (say("column-why"), False)], rows)]


def record_path(cell: Cell) -> str:
    return (cell.folder / "record.json").as_posix()
