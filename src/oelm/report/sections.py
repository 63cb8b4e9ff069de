"""Sections: what a report is made of. The page, the Markdown and the paper each show the same few kinds of blocks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from oelm.report.plot import DASH, Plot
from oelm.words.text import Text, plain


@dataclass(frozen=True, kw_only=True)
class Cell:
    """A cell of a table."""

    text: Text
    sort: float | None = None
    """What a number sorts by; words sort by themselves."""
    href: str | None = None
    """A file, as a path from the study's folder; or a section of this report, after a `#`."""
    badge: str | None = None
    """A verdict or a severity: shown as such."""


@dataclass(frozen=True, kw_only=True)
class Row:
    cells: tuple[Cell, ...]
    arm: str | None = None
    """Of which arm it is, where it is of one."""


@dataclass(frozen=True, kw_only=True)
class Column:
    title: Text
    number: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]

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
class Verdict:
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


Block = Table | Prose | Bullets | Verdict | Folded | Plot


@dataclass(frozen=True, kw_only=True)
class Section:
    name: str
    title: Text
    blocks: tuple[Block, ...]


def words(text: Text | str, *, badge: str | None = None, href: str | None = None) -> Cell:
    return Cell(text=plain(text) if isinstance(text, str) else text, badge=badge, href=href)


def number(value: float | None, text: str, *, href: str | None = None) -> Cell:
    """A number as it is shown; a dash where there is none."""
    return Cell(text=plain(text if value is not None else DASH), sort=value, href=href)


def table(columns: Sequence[tuple[Text, bool]], rows: Sequence[Row]) -> Table:
    """From (title, whether it holds numbers)."""
    return Table(columns=tuple(Column(title=title, number=is_number) for title, is_number in columns), rows=tuple(rows))
