"""How names, numbers and intervals are shown, the same in every table."""

from __future__ import annotations

import math
from collections.abc import Sequence

from oelm.analysis.paired import Interval
from oelm.report.plot import DASH
from oelm.report.plot import shown as measured
from oelm.report.sections import Cell, number
from oelm.words.text import Text, plain, say

_MOST_NAMED = 6


def named(names: Sequence[str]) -> Text:
    """A list of names; of many, the first, and how many more there are."""
    first = ", ".join(names[:_MOST_NAMED])
    return say("and-more", names=first, n=len(names) - _MOST_NAMED) if len(names) > _MOST_NAMED else plain(first)


def seconds(value: float) -> str:
    return f"{value * 1000:.1f} ms" if value < 1 else f"{value:.2f} s"


def setting(value: object) -> str:
    if value is None:
        return DASH
    if isinstance(value, float):
        return f"{value:g}"
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def listed(texts: Sequence[Text]) -> Text:
    comma = say("list-comma")
    return Text(comma.en.join(text.en for text in texts), comma.zh.join(text.zh for text in texts))


def finite(value: float | None, form: str) -> Cell:
    known = value if value is not None and math.isfinite(value) else None
    return number(known, format(known, form) if known is not None else "")


def interval_cell(interval: Interval | None, *, sign: bool = False) -> Cell:
    if interval is None or not math.isfinite(interval.low) or not math.isfinite(interval.high):
        return number(None, "")
    if sign:
        return number(interval.low, f"[{interval.low:+.4f}, {interval.high:+.4f}]")
    return number(interval.low, f"[{measured(interval.low)}, {measured(interval.high)}]")
