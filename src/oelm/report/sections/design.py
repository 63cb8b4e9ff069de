"""The design: the settings in which arms differ, and the hypotheses with their status."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from oelm.analysis.observed_design import merge_seeds
from oelm.analysis.results import Results
from oelm.analysis.stats.timed_pairs import count_rounds
from oelm.format import DASH
from oelm.message import Text
from oelm.report.blocks import (
    Block,
    Prose,
    TableRow,
    deciding_cell,
    finite_cell,
    make_table,
    number_cell,
    text_cell,
    verdict_cell,
)
from oelm.study.cells import differences
from oelm.text.messages import say, untranslated

_Settings = Mapping[str, Mapping[str, object]]
"""By path and arm."""


def differences_section(results: Results) -> list[Block]:
    declared = differences(results.study)
    sides = results.design.sides
    tuned = {path: {arm: merge_seeds(results.tuned(arm)[path]) for arm in sides} for path in _tuned_paths(results)}
    paths = dict.fromkeys(path for side in sides.values() for path in side.settings)
    found: dict[str, dict[str, object]] = {}
    for path in paths:
        row = {arm: side.settings.get(path) for arm, side in sides.items()}
        if path not in declared and path not in tuned and len({repr(value) for value in row.values()}) > 1:
            found[path] = row
    if not sides:
        return [Prose(text=say("differences-none"))]
    groups: list[tuple[_Settings, Callable[[str], Text]]] = [
        (declared, untranslated),
        (tuned, lambda path: say("column-tuned", path=path)),
        (found, lambda path: say("column-found", path=path)),
    ]
    columns = [(say("column-arm"), False)]
    columns += [(title(path), False) for group, title in groups for path in group]
    rows = [
        TableRow(
            arm=arm,
            cells=(text_cell(arm), *(text_cell(_setting(r.get(arm))) for group, _ in groups for r in group.values())),
        )
        for arm in sides
    ]
    key = "differences-how" if not found else "differences-found"
    return [Prose(text=say(key, n=len(found))), make_table(columns, rows)]


def _tuned_paths(results: Results) -> list[str]:
    return list(results.study.tune.grid) if results.study.tune is not None else []


def _setting(value: object) -> str:
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def hypotheses_section(results: Results) -> list[Block]:
    if not results.hypotheses:
        return [Prose(text=say("hypotheses-none"))]
    columns = [(say(f"column-{name}"), False) for name in ("hypothesis", "statement", "rule")]
    columns += [(say("column-measured"), True), (say("column-deciding"), True), (say("column-n"), True)]
    columns += [(say("column-hypothesis-status"), False)]
    rows = []
    for one in results.hypotheses:
        rows.append(
            TableRow(
                cells=(
                    text_cell(one.hypothesis.name),
                    text_cell(one.hypothesis.statement),
                    text_cell(str(one.hypothesis)),
                    finite_cell(one.value, ",.4g" if one.value is None or abs(one.value) < 1e4 else ",.0f"),
                    text_cell(say("word-exact")) if one.exact else deciding_cell(one.deciding),
                    text_cell(count_rounds(one.n)) if one.timed else number_cell(one.n, str(one.n)),
                    verdict_cell(one.status, one.remark),
                )
            )
        )
    return [Prose(text=say("hypotheses-how")), make_table(columns, rows)]
