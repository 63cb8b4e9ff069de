"""Figures of the bench: what a step takes against the baseline's, part by part, and how that changes with the shape."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator, NullFormatter, NullLocator

from oelm.analysis.timed import PARTS, TimedRatio, TimedShape, rounds_told
from oelm.report.plot import DASH, MEAN_SIZE, Look, grid, legend_height
from oelm.report.svg import INK, Drawing, Style, drawing
from oelm.words.text import Text, plain, say

_PART_MARKERS = {"forward": ">", "backward": "<", "optimizer": "s"}
_SHAPE_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
_PART_SIZE = 20
_MOST_SHAPES = len(_SHAPE_MARKERS)


def step_ratios(look: Look) -> tuple[str | None, Text]:
    """Whole steps and their parts, with intervals, beside the best that freezing could do."""
    bench = look.results.bench
    if bench is None:
        return None, say("figure-timed-none", study=look.results.study.name)
    arms = [name for name in bench.arms if name != bench.against]
    with drawing(height=0.95 + 0.6 * len(arms) + legend_height(["", *PARTS, ""])) as draw:
        (axes,) = draw.axes()
        axes.axvline(1, color=INK, lw=0.8)
        for row, arm in enumerate(arms):
            style, timed = look.styles[arm], bench.arms[arm]
            if timed.step is not None:
                _interval(draw, axes, arm, say("part-step"), timed.step, row - 0.2, style, width=2)
            for number, part in enumerate(PARTS):
                ratio = timed.ratios.get(part)
                if ratio is not None:
                    marker = Style(color=style.color, marker=_PART_MARKERS[part], line="-")
                    height = row + 0.02 + 0.16 * number
                    _interval(draw, axes, arm, say(f"part-{part}"), ratio, height, marker, width=0.9, filled=False)
            if timed.ceiling is not None:
                best = 1 - timed.ceiling
                (mark,) = axes.plot([best] * 2, [row - 0.42, row + 0.42], color=INK, lw=1.1, ls=(0, (2, 1.5)))
                draw.mark(mark, arm=arm)
        axes.set_yticks(range(len(arms)), arms)
        for label, arm in zip(axes.get_yticklabels(), arms, strict=True):
            draw.word(label, plain(arm), arm=arm)
        axes.set_ylim(len(arms) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        grid(axes, "x")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axes.margins(x=0.08)
        draw.word(axes.xaxis.label, say("axis-ratio", against=bench.against))
        handles: list[tuple[Any, Text, str | None]] = []
        handles.append((_handle(axes, marker="o"), say("part-step"), None))
        handles += [
            (_handle(axes, marker=_PART_MARKERS[part], mfc="none"), say(f"part-{part}"), None) for part in PARTS
        ]
        handles.append((_handle(axes, marker="", ls=(0, (2, 1.5)), lw=1.1), say("part-best"), None))
        draw.legend(handles)
        return draw.finish(), say("figure-timed-caption", rounds=rounds_told(bench.rounds), against=bench.against)


def ratios_by_shape(look: Look) -> tuple[str | None, Text]:
    """How the ratio changes with the width, a line for every length and batch."""
    points = look.results.shapes
    if not points:
        return None, say("figure-shapes-none", study=look.results.study.name)
    shapes = sorted({(one.length, one.batch) for one in points})
    drawn, more = shapes[:_MOST_SHAPES], len(shapes) - _MOST_SHAPES
    arms = [arm for arm in look.results.study.arms if any(one.arm == arm for one in points)]
    names = [say("shape", length=length, batch=batch) for length, batch in drawn]
    with drawing(height=2.7 + legend_height([*arms, *(name.en for name in names), ""])) as draw:
        (axes,) = draw.axes()
        axes.axhline(1, color=INK, lw=0.8)
        lines = list(itertools.product(arms, enumerate(drawn)))
        for place, (arm, (number, shape)) in enumerate(lines):
            found = [one for one in points if (one.arm, one.length, one.batch) == (arm, *shape)]
            # What has one width stands side by side.
            shift = 1 + min(0.03, 0.3 / len(lines)) * (place - (len(lines) - 1) / 2)
            found.sort(key=lambda one: one.width)
            _line(draw, axes, found, look.styles[arm], _SHAPE_MARKERS[number], shift)
        widths = sorted({one.width for one in points})
        axes.set_xscale("log")
        axes.set_xticks(widths, [f"{width:,}" for width in widths])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.08)
        grid(axes)
        draw.word(axes.xaxis.label, say("axis-width"))
        draw.word(axes.yaxis.label, say("axis-ratio", against=look.against))
        handles: list[tuple[Any, Text, str | None]] = []
        for arm in arms:
            (handle,) = axes.plot([], [], color=look.styles[arm].color, lw=1.5)
            handles.append((handle, plain(arm), arm))
        for number, name in enumerate(names):
            handles.append((_handle(axes, marker=_SHAPE_MARKERS[number]), name, None))
        handles.append((_handle(axes, marker="", ls="--", lw=0.9), say("part-best"), None))
        draw.legend(handles)
        left = say("figure-shapes-more", n=more) if more > 0 else plain("")
        return draw.finish(), say("figure-shapes-caption", against=look.against, more=left)


def _line(draw: Drawing, axes: Axes, points: Sequence[TimedShape], style: Style, marker: str, shift: float) -> None:
    """One arm, length and batch: the ratios with their intervals, and the best that freezing could do."""
    if not points:
        return
    arm = points[0].arm
    at = [one.width * shift for one in points]
    (line,) = axes.plot(at, [one.ratio.median for one in points], color=style.color, lw=1.2)
    draw.mark(line, arm=arm)
    for x, one in zip(at, points, strict=True):
        interval = one.ratio.interval
        if interval is not None:
            (bar,) = axes.plot([x, x], [interval.low, interval.high], color=style.color, lw=1.2)
            draw.mark(bar, arm=arm)
    dots = axes.scatter(
        at, [one.ratio.median for one in points], s=MEAN_SIZE * 0.7, marker=marker, color=style.color, lw=0, zorder=3
    )
    tips = [
        say("tip-shape", arm=arm, width=one.width, length=one.length, batch=one.batch, **_numbers(one.ratio))
        for one in points
    ]
    draw.mark(dots, arm=arm, tips=tips)
    best = [(x, 1 - one.ceiling) for x, one in zip(at, points, strict=True) if one.ceiling is not None]
    if best:
        (curve,) = axes.plot([x for x, _ in best], [y for _, y in best], color=style.color, ls="--", lw=0.9)
        draw.mark(curve, arm=arm)


def _interval(
    draw: Drawing,
    axes: Axes,
    arm: str,
    part: Text,
    ratio: TimedRatio,
    height: float,
    style: Style,
    *,
    width: float,
    filled: bool = True,
) -> None:
    interval = ratio.interval
    if interval is not None:
        (bar,) = axes.plot([interval.low, interval.high], [height] * 2, color=style.color, lw=width)
        draw.mark(bar, arm=arm)
    point = axes.scatter(
        [ratio.median],
        [height],
        s=MEAN_SIZE if filled else _PART_SIZE,
        marker=style.marker,
        facecolors=style.color if filled else "none",
        edgecolors="none" if filled else style.color,
        linewidths=0.9,
        zorder=3,
    )
    draw.mark(point, arm=arm, tips=[say("tip-part", arm=arm, part=part, **_numbers(ratio))])


def _numbers(ratio: TimedRatio) -> dict[str, str]:
    interval = ratio.interval
    low, high = (f"{interval.low:.4f}", f"{interval.high:.4f}") if interval is not None else (DASH, DASH)
    return {"value": f"{ratio.median:.4f}", "low": low, "high": high}


def _handle(axes: Axes, *, marker: str, ls: Any = "none", **looks: Any) -> Any:
    (handle,) = axes.plot([], [], color=INK, ls=ls, marker=marker, ms=5, **looks)
    return handle
