"""Plot: a figure of the report, and the parts that figures are drawn from."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from oelm.analysis.results import Results
from oelm.format import format_number
from oelm.message import Text
from oelm.report.figures.palette import INK, Style
from oelm.report.figures.svg import Drawing, legend_columns
from oelm.text.messages import say, untranslated

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SEED_SIZE, MEAN_SIZE = 11, 34  # areas of points


@dataclass(frozen=True, kw_only=True)
class Plot:
    name: str
    title: Text
    caption: Text
    svg: str | None
    """None where there is nothing to draw; the caption then says why."""


@dataclass(frozen=True, kw_only=True)
class FigureContext:
    """What every figure of a study shares."""

    results: Results
    styles: dict[str, Style]

    @property
    def arms(self) -> list[str]:
        return self.results.arms

    @property
    def metric(self) -> str:
        return self.results.study.compare.metric

    @property
    def against(self) -> str:
        return self.results.study.compare.baseline


def points_of(axes: Axes, x: Sequence[float], y: Sequence[float], style: Style, *, size: float) -> Any:
    return axes.scatter(x, y, s=size, marker=style.marker, color=style.color, linewidths=0, zorder=3)


def draw_seeds(
    draw: Drawing,
    axes: Axes,
    x: Sequence[float],
    y: Sequence[float],
    style: Style,
    *,
    arm: str,
    tips: Sequence[Text],
    width: float = 0.8,
) -> None:
    """Hollow points, one a seed."""
    points = axes.scatter(
        x, y, s=SEED_SIZE, marker=style.marker, facecolors="none", edgecolors=style.color, linewidths=width
    )
    draw.mark(points, arm=arm, tips=tips)


def legend_entry(axes: Axes, arm: str, style: Style, *, has_line: bool = True) -> tuple[Any, Text, str | None]:
    """What stands for an arm in the legend: its marker, on its line if it has one."""
    line, size = (style.line, 4) if has_line else ("none", 5)
    (handle,) = axes.plot([], [], color=style.color, ls=line, marker=style.marker, ms=size)
    return handle, untranslated(arm), arm


def name_rows(draw: Drawing, axes: Axes, arms: Sequence[str]) -> None:
    """An arm a row, from the top."""
    axes.set_yticks(range(len(arms)), arms)
    for label, arm in zip(axes.get_yticklabels(), arms, strict=True):
        draw.word(label, untranslated(arm), arm=arm)


def name_steps(draw: Drawing, axes: Axes) -> None:
    """Steps from left to right."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    draw_grid(axes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
    axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
    draw.word(axes.xaxis.label, say("axis-step"))


def with_interval(draw: Drawing, axes: Axes, look: FigureContext, arm: str, x: float) -> float:
    """An arm's mean with its interval, and its seeds beside it; returns the mean."""
    style, values = look.styles[arm], look.results.values(arm, look.metric)
    found = look.results.mean(arm, look.metric)
    assert found is not None
    interval = found.interval
    if math.isfinite(interval.high):
        (bar,) = axes.plot([x, x], [interval.low, interval.high], color=style.color, lw=1.6)
        draw.mark(bar, arm=arm)
    tips = [seed_tip(arm, seed, value) for seed, value in values.items()]
    draw_seeds(draw, axes, [x] * len(values), list(values.values()), style, arm=arm, tips=tips, width=0.7)
    mean = points_of(axes, [x], [found.mean], style, size=MEAN_SIZE)
    tip = say("tip-arm", arm=arm, n=found.n, value=format_number(found.mean))
    draw.mark(mean, arm=arm, tips=[tip])
    return found.mean


def draw_grid(axes: Axes, which: Any = "both") -> None:
    axes.grid(axis=which, color=INK, alpha=0.1, lw=0.6)
    axes.set_axisbelow(True)


def legend_height(names: Sequence[str]) -> float:
    """In inches."""
    return 0.18 * math.ceil(len(names) / legend_columns(names)) if names else 0.0


def seed_tip(
    arm: str, seed: int, value: float, *, sign: bool = False, step: int | None = None, digits: int | None = None
) -> Text:
    text = f"{value:+.4f}" if sign else f"{value:.{digits}g}" if digits is not None else format_number(value)
    if step is not None:
        return say("tip-seed-step", arm=arm, seed=seed, value=text, step=f"{step:,}")
    return say("tip-seed", arm=arm, seed=seed, value=text)


def thinned(length: int, most: int) -> list[int]:
    """At most so many places, evenly, the first and the last among them."""
    if length <= most:
        return list(range(length))
    return sorted({round(number * (length - 1) / (most - 1)) for number in range(most)})
