"""The design: the settings in which arms differ, and the hypotheses with their status."""

from oelm.analysis.hypotheses import JudgedHypothesis
from oelm.analysis.observed_design import merge_seeds
from oelm.analysis.results import Results
from oelm.analysis.stats.timed_pairs import count_rounds
from oelm.format import DASH
from oelm.report.blocks import (
    Block,
    Prose,
    TableCell,
    TableColumn,
    deciding_cell,
    finite_cell,
    make_row,
    make_table,
    number_cell,
    number_columns,
    text_cell,
    text_columns,
    verdict_cell,
)
from oelm.study.cells import differences
from oelm.text.messages import say, untranslated


def differences_section(results: Results) -> list[Block]:
    declared = differences(results.study)
    sides = results.design.sides
    grid = results.study.tune.grid if results.study.tune is not None else {}
    tuned = {path: {arm: merge_seeds(results.tuned(arm)[path]) for arm in sides} for path in grid}
    paths = dict.fromkeys(path for side in sides.values() for path in side.settings)
    found: dict[str, dict[str, object]] = {}
    for path in paths:
        row = {arm: side.settings.get(path) for arm, side in sides.items()}
        if path not in declared and path not in tuned and len({repr(value) for value in row.values()}) > 1:
            found[path] = row
    if not sides:
        return [Prose(text=say("differences-none"))]
    titles = [*map(untranslated, declared), *(say("column-tuned", path=path) for path in tuned)]
    titles += [say("column-found", path=path) for path in found]
    columns = [*text_columns("arm"), *(TableColumn(title=title) for title in titles)]
    settings = [*declared.values(), *tuned.values(), *found.values()]
    rows = [make_row(arm, *(_setting(row.get(arm)) for row in settings), arm=arm) for arm in sides]
    key = "differences-how" if not found else "differences-found"
    return [Prose(text=say(key, n=len(found))), make_table(columns, rows)]


def _setting(value: object) -> str:
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def measured_cells(one: JudgedHypothesis) -> tuple[TableCell, TableCell]:
    """The value of a hypothesis, and the interval that decides."""
    form = ",.4g" if one.value is None or abs(one.value) < 1e4 else ",.0f"
    return finite_cell(one.value, form), text_cell(say("word-exact")) if one.exact else deciding_cell(one.deciding)


def hypotheses_section(results: Results) -> list[Block]:
    if not results.hypotheses:
        return [Prose(text=say("hypotheses-none"))]
    columns = [*text_columns("hypothesis", "statement", "rule"), *number_columns("measured", "deciding", "n")]
    columns += text_columns("hypothesis-status")
    rows = [
        make_row(
            one.hypothesis.name,
            one.hypothesis.statement,
            str(one.hypothesis),
            *measured_cells(one),
            count_rounds(one.n) if one.timed else number_cell(one.n, str(one.n)),
            verdict_cell(one.status, one.remark),
        )
        for one in results.hypotheses
    ]
    return [Prose(text=say("hypotheses-how")), make_table(columns, rows)]
