"""Figures: what the records look like. One function a figure; where there is nothing to draw, it says why."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from itertools import chain
from statistics import fmean
from typing import Any

from matplotlib.ticker import FuncFormatter, MaxNLocator

from oelm.analysis.results import Results
from oelm.report.convergence import convergence, curves
from oelm.report.head_figures import attention_entropy, orthonormality
from oelm.report.plot import (
    MEAN_SIZE,
    SEED_SIZE,
    Look,
    Plot,
    grid,
    legend_height,
    points_of,
    seed_tip,
    shown,
    signed,
    thinned,
    with_interval,
)
from oelm.report.shown import named
from oelm.report.svg import INK, drawing, styles
from oelm.report.timed_figures import ratios_by_shape, step_ratios
from oelm.report.tuning_figures import best_of_k, tuning_response
from oelm.treatment import ORTHONORMAL
from oelm.words.text import Text, plain, say

MOST_POINTS = 200  # of a curve: more cannot be told apart
_MOST_MARKERS = 20  # of a curve, for hovering


def plots(results: Results) -> list[Plot]:
    """All figures, in the order of the report."""
    compare = results.study.compare
    look = Look(
        results=results,
        metric=compare.primary.metric,
        against=compare.against,
        styles=styles(list(results.study.arms), compare.against),
    )
    makers: dict[str, Callable[[Look], tuple[str | None, Text]]] = {
        "curves": validation_curves,
        "forest": forest,
        "corners": four_corners,
        "size": quality_by_size,
        "speed": speed,
        "timed": step_ratios,
        "shapes": ratios_by_shape,
        "tuning": tuning_response,
        "best-of-k": best_of_k,
        "heads": orthonormality,
        "entropy": attention_entropy,
    }
    found = []
    for name, maker in makers.items():
        svg, caption = maker(look)
        found.append(Plot(name=name, title=say(f"figure-{name}"), caption=caption, svg=svg))
    return found


# -- the figures ---------------------------------------------------------------------------------------------------


def validation_curves(look: Look) -> tuple[str | None, Text]:
    """The mean of every arm on the selection split, from its lowest to its highest seed."""
    by_arm = {arm: found for arm in look.arms if (found := curves(look.results, arm))}
    if not by_arm:
        return None, say("figure-curves-none", metric=look.metric)
    with drawing(height=2.7 + legend_height(list(by_arm))) as draw:
        (axes,) = draw.axes()
        handles = []
        for arm, by_seed in by_arm.items():
            style = look.styles[arm]
            at = sorted({step for curve in by_seed.values() for step in curve})
            at = [at[number] for number in thinned(len(at), MOST_POINTS)]
            measured = [[curve[step] for curve in by_seed.values() if step in curve] for step in at]
            means = [fmean(values) for values in measured]
            band = axes.fill_between(
                at, [min(v) for v in measured], [max(v) for v in measured], color=style.color, alpha=0.13, lw=0
            )
            (line,) = axes.plot(at, means, color=style.color, ls=style.line, lw=1.5)
            some = thinned(len(at), _MOST_MARKERS)
            tips = [
                say("tip-mean", arm=arm, n=len(measured[k]), value=shown(means[k]), step=f"{at[k]:,}") for k in some
            ]
            points = points_of(axes, [at[k] for k in some], [means[k] for k in some], style, size=15)
            draw.mark(points, arm=arm, tips=tips)
            last = {seed: list(curve.items())[-1] for seed, curve in by_seed.items()}
            ends = points_of(axes, [x for x, _ in last.values()], [y for _, y in last.values()], style, size=SEED_SIZE)
            draw.mark(ends, arm=arm, tips=[seed_tip(arm, seed, value, step=x) for seed, (x, value) in last.items()])
            draw.mark(band, line, arm=arm)
            (handle,) = axes.plot([], [], color=style.color, ls=style.line, lw=1.5, marker=style.marker, ms=4)
            handles.append((handle, plain(arm), arm))
        grid(axes)
        axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:,.0f}"))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        draw.word(axes.xaxis.label, say("axis-step"))
        draw.word(axes.yaxis.label, say("axis-select", metric=look.metric))
        draw.legend(handles)
        return draw.finish(), say("figure-curves-caption")


def forest(look: Look) -> tuple[str | None, Text]:
    """Differences by seed, their mean and interval, against the zone of equivalence."""
    found = [one for one in look.results.comparisons.values() if one.differences]
    if not found:
        return None, say("figure-forest-none", against=look.against, metric=look.metric)
    margin = found[0].margin
    with drawing(height=0.9 + 0.36 * len(found)) as draw:
        (axes,) = draw.axes()
        if margin is not None:
            axes.axvspan(-margin, margin, color=INK, alpha=0.08, lw=0)
        axes.axvline(0, color=INK, lw=0.8)
        names = []
        for row, one in enumerate(found):
            style = look.styles[one.arm]
            seeds = axes.scatter(
                list(one.differences.values()),
                [row + 0.2] * one.n,
                s=SEED_SIZE,
                marker=style.marker,
                facecolors="none",
                edgecolors=style.color,
                linewidths=0.8,
            )
            draw.mark(seeds, arm=one.arm, tips=[seed_tip(one.arm, s, v, sign=True) for s, v in one.differences.items()])
            if math.isfinite(one.interval.low):
                (bar,) = axes.plot([one.interval.low, one.interval.high], [row - 0.1] * 2, color=style.color, lw=2)
                draw.mark(bar, arm=one.arm)
            mean = points_of(axes, [one.estimate.mean], [row - 0.1], style, size=MEAN_SIZE)
            tip = say(
                "tip-interval",
                arm=one.arm,
                value=f"{one.estimate.mean:+.4f}",
                low=signed(one.interval.low),
                high=signed(one.interval.high),
                verdict=say(f"word-{one.verdict}"),
            )
            draw.mark(mean, arm=one.arm, tips=[tip])
            names.append(one.arm)
        axes.set_yticks(range(len(found)), names)
        for label, one in zip(axes.get_yticklabels(), found, strict=True):
            draw.word(label, plain(one.arm), arm=one.arm)
        axes.set_ylim(len(found) - 0.5, -0.6)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        grid(axes, "x")
        axes.xaxis.set_major_locator(MaxNLocator(5))
        draw.word(axes.xaxis.label, say("axis-difference", metric=look.metric, against=look.against))
        zone = say("figure-forest-zone", margin=margin) if margin is not None else say("figure-forest-no-zone")
        better = say("better-right" if found[0].higher_is_better else "better-left")
        return draw.finish(), say("figure-forest-caption", zone=zone, better=better)


def four_corners(look: Look) -> tuple[str | None, Text]:
    """Init x freeze: what the initialisation does, and what freezing does."""
    corners: dict[tuple[bool, bool], list[str]] = {}
    others = []
    for arm in look.arms:
        treatment = look.results.study.arms[arm].treatment
        if treatment.init != "keep" and treatment.init not in ORTHONORMAL:
            others.append(arm)
        elif look.results.values(arm, look.metric):
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
                style = look.styles[arm]
                places[arm] = x, with_interval(draw, axes, look, arm, x)
                (handle,) = axes.plot([], [], color=style.color, ls="none", marker=style.marker, ms=5)
                handles.append((handle, plain(arm), arm))
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
        grid(axes, "y")
        axes.set_ylabel(look.metric)
        for made, key in ((False, "corner-keep"), (True, "corner-orthogonal")):
            (handle,) = axes.plot([], [], color=INK, lw=0.9, ls="-" if made else "--", alpha=0.6)
            handles.append((handle, say(key), None))
        draw.legend(handles)
        left_out = say("figure-corners-others", arms=", ".join(others)) if others else plain("")
        return draw.finish(), say("figure-corners-caption", others=left_out)


def quality_by_size(look: Look) -> tuple[str | None, Text]:
    """The primary metric against trainable parameters."""
    sizes = {arm: list(look.results.values(arm, "trainable").values()) for arm in look.arms}
    arms = [arm for arm in look.arms if sizes[arm] and look.results.values(arm, look.metric)]
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
            style = look.styles[arm]
            (handle,) = axes.plot([], [], color=style.color, ls="none", marker=style.marker, ms=5)
            handles.append((handle, plain(arm), arm))
        axes.margins(x=0.15)
        axes.xaxis.set_major_locator(MaxNLocator(5))
        grid(axes)
        draw.word(axes.xaxis.label, say("axis-trainable"))
        axes.set_ylabel(look.metric)
        draw.legend(handles)
        return draw.finish(), say("figure-size-caption")


def speed(look: Look) -> tuple[str | None, Text]:
    """Step time; steps and time to the target that all arms reach."""
    found = convergence(look.results)
    step_seconds = {arm: look.results.values(arm, "step_seconds") for arm in look.arms}
    panels: list[tuple[str, Mapping[str, Mapping[int, float]]]] = []
    if any(step_seconds.values()):
        panels.append(("axis-step-seconds", step_seconds))
    late: list[str] = []
    if found is not None:
        # An arm of which a seed never came so far has no mean: the quick seeds alone would flatter it.
        late = [arm for arm, by_seed in found.reached.items() if None in by_seed.values()]
        reached = {
            arm: {seed: one for seed, one in by_seed.items() if one is not None}
            for arm, by_seed in found.reached.items()
            if arm not in late
        }
        panels.append(
            ("axis-target-steps", {arm: {s: float(r.step) for s, r in by.items()} for arm, by in reached.items()})
        )
        times = {arm: {s: r.seconds for s, r in by.items() if r.seconds is not None} for arm, by in reached.items()}
        if any(times.values()):
            panels.append(("axis-target-seconds", times))
    panels = [panel for panel in panels if any(panel[1].values())]
    if not panels:
        return None, say("figure-speed-none")
    arms = [arm for arm in look.arms if any(by_arm.get(arm) for _, by_arm in panels)]
    with drawing(height=0.8 + 0.26 * len(arms)) as draw:
        all_axes = draw.axes(1, len(panels), sharey=True)
        for axes, (key, by_arm) in zip(all_axes, panels, strict=True):
            for row, arm in enumerate(arms):
                by_seed, style = by_arm.get(arm, {}), look.styles[arm]
                if not by_seed:
                    continue
                values = list(by_seed.values())
                seeds = axes.scatter(
                    values,
                    [row] * len(values),
                    s=SEED_SIZE,
                    marker=style.marker,
                    facecolors="none",
                    edgecolors=style.color,
                    linewidths=0.8,
                )
                draw.mark(
                    seeds, arm=arm, tips=[seed_tip(arm, seed, value, digits=4) for seed, value in by_seed.items()]
                )
                (mean,) = axes.plot([fmean(values)] * 2, [row - 0.3, row + 0.3], color=style.color, lw=2)
                draw.mark(mean, arm=arm)
            grid(axes, "x")
            axes.xaxis.set_major_locator(MaxNLocator(2))
            axes.margins(x=0.12)
            draw.word(axes.xaxis.label, say(key))
            axes.xaxis.label.set_fontsize(7.5)
            axes.tick_params(axis="y", length=0)
        all_axes[0].set_yticks(range(len(arms)), arms)
        for label, arm in zip(all_axes[0].get_yticklabels(), arms, strict=True):
            draw.word(label, plain(arm), arm=arm)
        all_axes[0].set_ylim(len(arms) - 0.5, -0.5)
        if found is None:
            return draw.finish(), say("figure-speed-no-target")
        more = say("figure-speed-late", arms=named(late)) if late else plain("")
        return draw.finish(), say("figure-speed-caption", metric=look.metric, target=shown(found.target), late=more)
