"""How arms and verdicts look in every figure: colors, markers and dashes."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

# Stands for the color of text and lines, which the page decides.
INK = "#010203"
# Okabe and Ito's colors, distinct for every kind of eye, in an order that alternates in lightness.
PALETTE = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#d55e00", "#56b4e9")
# Of verdicts, which always stand with their word and a sign: the name of the color on the page, and on paper.
VERDICT_COLORS = {
    "better": ("--good", "#0a6b4f"),
    "worse": ("--bad", "#a33a00"),
    "equivalent": ("--even", "#0b57a4"),
    "inconclusive": ("--open", "#5c6570"),
    "invalid": ("--stop", "#8e1b3a"),
}
VERDICT_SIGNS = {"better": "▲", "worse": "▼", "equivalent": "=", "inconclusive": "?", "invalid": "×"}  # noqa: RUF001
_MARKERS = ("s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
_LINES: tuple[Any, ...] = ("--", "-.", ":", (0, (6, 1.5)), (0, (4, 1, 1, 1, 1, 1)))


@dataclass(frozen=True, kw_only=True)
class Style:
    """How an arm looks in every figure: distinct by color, by marker and by dashes."""

    color: str
    marker: str
    line: Any


def styles(arms: Sequence[str], against: str) -> dict[str, Style]:
    """The arm that all are compared with is plain ink."""
    found = {against: Style(color=INK, marker="o", line="-")}
    for number, arm in enumerate(arm for arm in arms if arm != against):
        found[arm] = Style(
            color=PALETTE[number % len(PALETTE)],
            marker=_MARKERS[number % len(_MARKERS)],
            line=_LINES[number % len(_LINES)],
        )
    return found
