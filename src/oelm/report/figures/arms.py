"""Figures of the arms: their differences, what init and freezing each do, and quality by size."""

import math
from itertools import chain
from statistics import fmean
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from oelm.analysis.verdicts import Comparison
from oelm.format import format_signed
from oelm.message import Text
from oelm.metrics import find_metric
from oelm.report.figures.palette import INK, VERDICT_COLORS, VERDICT_SIGNS
from oelm.report.figures.plot import (
    MEAN_SIZE,
    FigureContext,
    draw_grid,
    draw_seeds,
    legend_entry,
    legend_height,
    name_rows,
    points_of,
    seed_tip,
    with_interval,
)
from oelm.report.figures.svg import Drawing, drawing
from oelm.text.messages import say, untranslated


def plot_forest(look: FigureContext) -> tuple[str | None, Text]:
    """Differences by seed, their mean and interval, against the zone of equivalence."""
    found = [one for one in look.results.comparisons.values() if one.differences]
    if not found:
        return None, say("figure-forest-none", against=look.against, metric=look.metric)
    margin, shown = found[0].margin, found[0].shown
    with drawing(height=0.9 + 0.36 * len(found)) as draw:
        (axes,) = draw.axes()
        if margin is not None:
            axes.axvspan(shown(-margin), shown(margin), color=INK, alpha=0.08, lw=0)
        axes.axvline(0, color=INK, lw=0.8)
        for row, one in enumerate(found):
            style = look.styles[one.arm]
            interval, effect = one.shown_interval(one.deciding), one.shown(one.estimate.mean)
            by_seed = {seed: one.shown(difference) for seed, difference in one.differences.items()}
            tips = [seed_tip(one.arm, seed, value, sign=True) for seed, value in by_seed.items()]
            draw_seeds(draw, axes, list(by_seed.values()), [row + 0.2] * one.n, style, arm=one.arm, tips=tips)
            if math.isfinite(interval.high):
                (bar,) = axes.plot([interval.low, interval.high], [row - 0.1] * 2, color=style.color, lw=2)
                draw.mark(bar, arm=one.arm)
            mean = points_of(axes, [effect], [row - 0.1], style, size=MEAN_SIZE)
            tip = say(
                "tip-interval",
                arm=one.arm,
                value=f"{effect:+.4f}",
                percent=100 * interval.level,
                low=format_signed(interval.low),
                high=format_signed(interval.high),
                verdict=say(f"word-{one.verdict}"),
            )
            draw.mark(mean, arm=one.arm, tips=[tip])
            _write_verdict(draw, axes, one, row)
        name_rows(draw, axes, [one.arm for one in found])
        axes.set_ylim(len(found) - 0.5, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        draw_grid(axes, "x")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        axis = "axis-relative" if find_metric(look.metric).relative else "axis-difference"
        draw.word(axes.xaxis.label, say(axis, metric=look.metric, against=look.against))
        zone = say("figure-forest-zone", margin=shown(margin)) if margin is not None else say("figure-forest-no-zone")
        better = say("better-right" if found[0].higher_is_better else "better-left")
        return draw.finish(), say("figure-forest-caption", zone=zone, better=better)


def _write_verdict(draw: Drawing, axes: Axes, one: Comparison, row: int) -> None:
    """At the right, in words and with a sign: its color says nothing that they do not."""
    word = say(f"word-{one.verdict}")
    text = say("remarked", verdict=word, remark=one.remark) if one.remark is not None else word
    signed = say("signed-verdict", sign=VERDICT_SIGNS[one.verdict], verdict=text)
    color = VERDICT_COLORS[one.verdict][1]
    label = axes.text(1.02, row, signed.en, transform=axes.get_yaxis_transform(), va="center", fontsize=8, color=color)
    draw.word(label, signed, arm=one.arm)


def plot_four_corners(look: FigureContext) -> tuple[str | None, Text]:
    """Init x freeze: what the initialization does, and what freezing does."""
    corners: dict[tuple[bool, bool], list[str]] = {}
    others = []
    study = look.results.study
    base = study.arms.get(study.compare.baseline)  # none in a part of a study
    for arm in look.arms:
        treatment = study.arms[arm].treatment
        is_alike = base is None or study.arms[arm].trains_like(base)
        if not is_alike or (treatment.init != "keep" and treatment.rows == "any"):
            others.append(arm)
        elif look.results.mean(arm, look.metric) is not None:
            corners.setdefault((treatment.init != "keep", treatment.freeze != "none"), []).append(arm)
    if len(corners) < 3:
        return None, say("figure-corners-none", n=len(corners))
    with drawing(height=2.9 + legend_height(list(chain.from_iterable(corners.values())))) as draw:
        (axes,) = draw.axes()
        places: dict[str, tuple[float, float]] = {}
        handles: list[tuple[Any, Text, str | None]] = []
        for (made, frozen), arms in sorted(corners.items()):
            for number, arm in enumerate(arms):
                x = float(frozen) + (0.09 if made else -0.09) + 0.07 * (number - (len(arms) - 1) / 2)
                places[arm] = x, with_interval(draw, axes, look, arm, x)
                handles.append(legend_entry(axes, arm, look.styles[arm], has_line=False))
        for made in (False, True):
            ends = [corners.get((made, frozen), []) for frozen in (False, True)]
            for left in ends[0]:
                for right in ends[1]:
                    xs, ys = zip(places[left], places[right], strict=True)
                    axes.plot(xs, ys, color=INK, lw=0.9, ls="-" if made else "--", alpha=0.45, zorder=1)
        axes.set_xlim(-0.45, 1.45)
        axes.set_xticks([0, 1], [say("corner-trainable").en, say("corner-frozen").en])
        for label, key in zip(axes.get_xticklabels(), ("corner-trainable", "corner-frozen"), strict=True):
            draw.word(label, say(key))
        draw_grid(axes, "y")
        axes.set_ylabel(look.metric)
        for made, key in ((False, "corner-keep"), (True, "corner-orthogonal")):
            (handle,) = axes.plot([], [], color=INK, lw=0.9, ls="-" if made else "--", alpha=0.6)
            handles.append((handle, say(key), None))
        draw.legend(handles)
        excluded = say("figure-corners-others", arms=", ".join(others)) if others else untranslated("")
        return draw.finish(), say("figure-corners-caption", others=excluded)


def plot_quality_by_size(look: FigureContext) -> tuple[str | None, Text]:
    """The primary metric against trainable parameters."""
    sizes = {arm: list(look.results.values(arm, "trainable").values()) for arm in look.arms}
    arms = [arm for arm in look.arms if sizes[arm] and look.results.mean(arm, look.metric) is not None]
    if not arms:
        return None, say("figure-size-none", metric=look.metric)
    with drawing(height=2.6 + legend_height(arms)) as draw:
        (axes,) = draw.axes()
        handles = []
        million = {arm: fmean(sizes[arm]) / 1e6 for arm in arms}
        width = max(million.values()) - min(million.values()) or max(million.values()) * 0.1 or 1.0
        seen: dict[float, int] = {}
        for arm in arms:
            # Arms of one size stand side by side.
            place = seen[million[arm]] = seen.get(million[arm], -1) + 1
            with_interval(draw, axes, look, arm, million[arm] + 0.03 * width * place)
            handles.append(legend_entry(axes, arm, look.styles[arm], has_line=False))
        axes.margins(x=0.15)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        draw_grid(axes)
        draw.word(axes.xaxis.label, say("axis-trainable"))
        axes.set_ylabel(look.metric)
        draw.legend(handles)
        return draw.finish(), say("figure-size-caption")
