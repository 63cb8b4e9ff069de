"""Numbers, intervals, durations and columns as plain text: the same on a terminal, in a log and in a report."""

import math
import re
from collections.abc import Collection, Sequence
from html import escape
from typing import Any

DASH = "\u2013"  # where there is no number
# Controls of a terminal but for tab and line feed, of the direction and the lines of a text; and halves of surrogates.
_CONTROLS = re.compile(r"[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


class Relative(float):
    """A change as a share of what is changed: it is shown in percent, wherever a number is."""

    def __format__(self, spec: str) -> str:
        if not math.isfinite(self):
            return DASH if math.isnan(self) else format(float(self), "+" if spec.startswith("+") else "")
        return format(float(self), "+.2%") if spec.startswith("+") else f"{100 * self:.3g}%"


def escape_controls(text: str) -> str:
    """What is in a file, to be shown: nothing in it moves the cursor, colors, or turns the direction of a line.

    From DEL on, as JSON writes it: a JSON text, in which those before are escaped already, keeps its meaning.
    """
    return _CONTROLS.sub(_escape, text)


def _escape(found: re.Match[str]) -> str:
    number = ord(found[0])
    return f"\\x{number:02x}" if number < 0x7F else f"\\u{number:04x}"


def format_number(value: float) -> str:
    """A measurement to as many digits as are of use."""
    if not math.isfinite(value):
        return DASH
    return f"{value:.4f}" if abs(value) < 100 else f"{value:,.1f}"


def format_signed(value: float) -> str:
    """A difference, with its sign."""
    return f"{value:+.4f}" if math.isfinite(value) else DASH


def format_interval(low: float, high: float, *, sign: str = "") -> str:
    """`low to high`; `none` where one of them is not finite. `sign` is "+" for differences."""
    return f"{low:{sign}.4f} to {high:{sign}.4f}" if math.isfinite(low) and math.isfinite(high) else "none"


def format_percent(share: float) -> str:
    """With two digits that count, where it is small: 0.27 %, 86.4 %."""
    return f"{100 * share:.1f} %" if share >= 0.1 else f"{100 * share:.2g} %"


def format_count(number: int, noun: str) -> str:
    """`1 step`, `1,200 steps`."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def format_duration(seconds: float) -> str:
    """How long something takes, as people say it: `40 s`, `12 min`, `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if math.isfinite(seconds) else "?"


def format_step_time(seconds: float) -> str:
    """The time of one training step: `84.2 ms`, `1.31 s`."""
    return f"{seconds * 1000:.1f} ms" if seconds < 1 else f"{seconds:.2f} s"


def format_columns(rows: Sequence[Sequence[str]], *, left: Collection[str]) -> list[str]:
    """Aligned columns, one line a row. The first row names the columns; those in `left` are aligned left."""
    rows = [[escape_controls(cell).replace("\n", "\\x0a") for cell in row] for row in rows]  # no name makes a row
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return [
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(rows[0], row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]


def html_table(rows: Sequence[Sequence[str]], *, left: Collection[str]) -> str:
    """The same rows for a notebook."""

    def cells(tag: str, row: Sequence[str]) -> str:
        sides = ("left" if name in left else "right" for name in rows[0])
        return "".join(
            f'<{tag} style="text-align: {side}">{escape(cell)}</{tag}>' for side, cell in zip(sides, row, strict=True)
        )

    body = "".join(f"<tr>{cells('td', row)}</tr>" for row in rows[1:])
    return f"<table><thead><tr>{cells('th', rows[0])}</tr></thead><tbody>{body}</tbody></table>"


def html_lines(*lines: str) -> str:
    """A paragraph a line, for a notebook."""
    return "".join(f"<p>{escape(line)}</p>" for line in lines)


def finite_or_none(value: Any) -> Any:
    """Plain data without infinities and NaN, which JSON does not have."""
    if isinstance(value, dict):
        return {key: finite_or_none(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite_or_none(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
