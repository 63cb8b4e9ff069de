"""Blocks: what a report is made of. HTML, Markdown and PDF each render the same few kinds of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from oelm.analysis.stats.estimate import Interval
from oelm.format import DASH, format_number
from oelm.message import Message, MessageValue, Text
from oelm.report.figures.palette import Style
from oelm.report.figures.plot import Plot
from oelm.text.messages import say, translate, untranslated


@dataclass(frozen=True, kw_only=True)
class TableCell:
    text: Text
    sort: float | None = None
    """What a number sorts by; words sort by themselves."""
    href: str | None = None
    """A file, as a path from the study's folder; or a section of this report, after a `#`."""
    badge: str | None = None
    """A verdict or a severity, rendered as a badge."""


@dataclass(frozen=True, kw_only=True)
class TableRow:
    cells: tuple[TableCell, ...]
    arm: str | None = None
    """Of which arm it is, where it is of one."""
    is_total: bool = False
    """Of all the others: it stays below them, however they are sorted."""


@dataclass(frozen=True, kw_only=True)
class TableColumn:
    title: Text
    number: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    columns: tuple[TableColumn, ...]
    rows: tuple[TableRow, ...]

    @property
    def wordy(self) -> bool:
        """Whether it holds sentences: a narrow page shows its rows below each other."""
        return any(len(cell.text.en) > 32 for row in self.rows for cell in row.cells)


@dataclass(frozen=True, kw_only=True)
class Prose:
    text: Text


@dataclass(frozen=True, kw_only=True)
class Bullets:
    items: tuple[Text, ...]


@dataclass(frozen=True, kw_only=True)
class VerdictBox:
    """The verdict in one sentence, and what kind it is."""

    kind: str
    text: Text


@dataclass(frozen=True, kw_only=True)
class Folded:
    """Details that a page shows when asked for."""

    summary: Text
    blocks: tuple[Block, ...]
    name: str | None = None
    """What a link calls it."""


Block = Table | Prose | Bullets | VerdictBox | Folded | Plot


@dataclass(frozen=True, kw_only=True)
class Section:
    name: str
    title: Text
    blocks: tuple[Block, ...]


@dataclass(frozen=True, kw_only=True)
class Content:
    """Everything that a report says, in its order. Nothing in it depends on when or where it is made."""

    study: str
    verdict: VerdictBox
    sections: tuple[Section, ...]
    styles: dict[str, Style]
    """Of the arms that have results, in the study's order."""
    made_from: Text


def text_cell(text: Text | Message | str, *, badge: str | None = None, href: str | None = None) -> TableCell:
    if isinstance(text, Message):
        text = translate(text)
    return TableCell(text=untranslated(text) if isinstance(text, str) else text, badge=badge, href=href)


def number_cell(value: float | None, text: str, *, href: str | None = None) -> TableCell:
    """A number as it is printed; a dash where there is none."""
    return TableCell(text=untranslated(text if value is not None else DASH), sort=value, href=href)


def finite_cell(value: float | None, form: str) -> TableCell:
    """A number in this form; a dash where it is not finite."""
    known = value if value is not None and math.isfinite(value) else None
    return number_cell(known, format(known, form) if known is not None else "")


def interval_cell(interval: Interval | None, *, sign: bool = False) -> TableCell:
    if interval is None or not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return number_cell(None, "")
    if sign:
        return number_cell(interval.low, f"[{interval.low:+.4f}, {interval.high:+.4f}]")
    return number_cell(interval.low, f"[{format_number(interval.low)}, {format_number(interval.high)}]")


def deciding_cell(interval: Interval | None, *, sign: bool = False) -> TableCell:
    """With its level, which is another for every test of a family."""
    cell = interval_cell(interval, sign=sign)
    if interval is None or cell.sort is None:
        return cell
    return number_cell(cell.sort, f"{cell.text.en} {100 * interval.level:.4g} %")


def verdict_cell(verdict: str, remark: Message | None) -> TableCell:
    """A verdict as a badge, with what decided instead of the interval, if anything did."""
    word = say(f"word-{verdict}")
    return text_cell(say("remarked", verdict=word, remark=remark) if remark is not None else word, badge=verdict)


def bullets(items: Sequence[Text]) -> list[Block]:
    """Nothing where there is none."""
    return [Bullets(items=tuple(items))] if items else []


def text_columns(*names: str) -> list[TableColumn]:
    return [TableColumn(title=say(f"column-{name}")) for name in names]


def number_columns(*names: str, **values: MessageValue) -> list[TableColumn]:
    return [TableColumn(title=say(f"column-{name}", **values), number=True) for name in names]


def named_columns(*names: str) -> list[TableColumn]:
    """Numbers of arms or metrics."""
    return [TableColumn(title=untranslated(name), number=True) for name in names]


def make_row(*cells: TableCell | Text | Message | str, arm: str | None = None, is_total: bool = False) -> TableRow:
    """Words stand for a cell of them."""
    made = tuple(one if isinstance(one, TableCell) else text_cell(one) for one in cells)
    return TableRow(cells=made, arm=arm, is_total=is_total)


def make_table(columns: Sequence[TableColumn], rows: Sequence[TableRow]) -> Table:
    return Table(columns=tuple(columns), rows=tuple(rows))
