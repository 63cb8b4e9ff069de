"""Figures of the heads: how orthogonal their rows are, how evenly they look around, and how far they have moved."""

import math
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, PowerNorm
from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter

from oelm.facts import AttentionMap, AttentionStats
from oelm.format import DASH, format_signed
from oelm.message import Text
from oelm.metrics import find_metric
from oelm.report.figures.palette import INK
from oelm.report.figures.plot import MEAN_SIZE, FigureContext, draw_grid, legend_entry, legend_height, points_of
from oelm.report.figures.svg import Drawing, drawing
from oelm.runs.record import Record
from oelm.text.messages import say, untranslated
from oelm.treatment import Role

_MOST_HEAT_MAPS = 8
_ROLES: tuple[Role, ...] = ("q", "k")
_MOMENTS = ("untreated", "start", "final")


def plot_orthonormality(look: FigureContext) -> tuple[str | None, Text]:
    """How far the rows of every head are from orthogonal, whatever their length, before and after training."""
    found: dict[str, tuple[int, dict[str, AttentionStats]]] = {}
    for arm in look.arms:
        for seed, record in look.results.of(arm).items():
            moments = _moments(record)
            if arm not in found and len(moments) == 2 and all(map(_has_heads, moments.values())):
                found[arm] = seed, moments
    if not found:
        return None, say("figure-heads-none")
    arms = list(found)[:_MOST_HEAT_MAPS]
    panels = [(moment, role) for moment in ("start", "final") for role in _ROLES]
    maps = {(arm, moment, role): _heat(found[arm][1][moment].cosine[role]) for arm in arms for moment, role in panels}
    # What is orthogonal to precision is one color, whichever last bits it has.
    norm = LogNorm(vmin=1e-6, vmax=max(1e-5, *(float(np.nanmax(heat, initial=0)) for heat in maps.values())))
    with drawing(height=0.75 + 0.68 * len(arms)) as draw:
        draw_grid = draw.axes(len(arms), 1)
        image = None
        for axes, arm in zip(draw_grid, arms, strict=True):
            tiles = [maps[arm, moment, role] for moment, role in panels]
            row, middles = _side_by_side([np.clip(tile, norm.vmin, None) for tile in tiles])
            image = axes.imshow(row, norm=norm, cmap="cividis", aspect="auto", interpolation="nearest")
            axes.set_axis_off()
            draw.mark(axes, arm=arm)
            name = axes.text(-0.02, 0.5, arm, transform=axes.transAxes, ha="right", va="center", fontsize=8)
            draw.word(name, untranslated(arm), arm=arm)
            sizes = " \u2192 ".join(_mean_norm(moment) for moment in found[arm][1].values())
            size = axes.text(1.02, 0.5, sizes, transform=axes.transAxes, ha="left", va="center", fontsize=7.5)
            draw.word(size, untranslated(sizes), arm=arm)
            for middle, (moment, role) in zip(middles, panels, strict=True) if arm == arms[0] else ():
                title = say(f"heads-{moment}", role=role.upper())
                draw.word(axes.text(middle, -0.9, title.en, ha="center", va="bottom", fontsize=8), title)
        assert image is not None
        bar = draw.figure.colorbar(image, ax=draw_grid, location="bottom", shrink=0.6, aspect=45)
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        bar.ax.xaxis.set_minor_formatter(NullFormatter())
        draw.word(bar.ax.xaxis.label, say("axis-cosine"))
        rest = list(found)[_MOST_HEAT_MAPS:]
        more = say("figure-heads-more", arms=", ".join(rest)) if rest else untranslated("")
        seeds = ", ".join(dict.fromkeys(str(found[arm][0]) for arm in arms))
        return draw.finish(), say("figure-heads-caption", seeds=seeds, more=more)


def plot_attention_entropy(look: FigureContext) -> tuple[str | None, Text]:
    """How evenly every layer looks around, before and after training: the mean over seeds."""
    by_arm: dict[str, dict[str, dict[int, float]]] = {}
    for arm in look.arms:
        for moment in ("start", "final"):
            layers = _mean_by_layer([_moments(record).get(moment) for record in look.results.of(arm).values()])
            if layers:
                by_arm.setdefault(arm, {})[moment] = layers
    if not by_arm:
        return None, say("figure-entropy-none")
    with drawing(height=2.6 + legend_height(list(by_arm))) as draw:
        panels = draw.axes(1, 2, sharey=True)
        handles = {}
        for axes, moment in zip(panels, ("start", "final"), strict=True):
            for arm, moments in by_arm.items():
                style, layers = look.styles[arm], moments.get(moment, {})
                (line,) = axes.plot(list(layers), list(layers.values()), color=style.color, ls=style.line, lw=1.3)
                draw.mark(line, arm=arm)
                if layers:
                    dots = points_of(axes, list(layers), list(layers.values()), style, size=14)
                    tips = [say("tip-layer", arm=arm, layer=k, value=f"{v:.3f}") for k, v in layers.items()]
                    draw.mark(dots, arm=arm, tips=tips)
                handles[arm] = legend_entry(axes, arm, style)
            draw.word(axes.title, say(f"entropy-{moment}"))
            axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
            draw.word(axes.xaxis.label, say("axis-layer"))
            draw_grid(axes)
        draw.word(panels[0].yaxis.label, say("axis-entropy"))
        draw.legend(list(handles.values()))
        return draw.finish(), say("figure-entropy-caption")


def plot_dose(look: FigureContext) -> tuple[str | None, Text]:
    """Dose and response: how far the treatment moved attention, and what it cost."""
    dose = {arm: look.results.attention_kl(arm, "start") for arm in look.arms}
    found = [one for one in look.results.comparisons.values() if one.differences and dose.get(one.arm)]
    if not found:
        return None, say("figure-dose-none")
    with drawing(height=2.7 + legend_height([one.arm for one in found])) as draw:
        (axes,) = draw.axes()
        margin, shown = found[0].margin, found[0].shown
        if margin is not None:
            axes.axhspan(shown(-margin), shown(margin), color=INK, alpha=0.08, lw=0)
        axes.axhline(0, color=INK, lw=0.8)
        most = max(fmean(dose[one.arm].values()) for one in found) or 1.0
        seen: dict[float, int] = {}
        handles = []
        for one in found:
            style, kl = look.styles[one.arm], fmean(dose[one.arm].values())
            place = seen[kl] = seen.get(kl, -1) + 1  # arms of one dose stand side by side
            x, y, interval = kl + 0.02 * most * place, shown(one.estimate.mean), one.shown_interval(one.deciding)
            if math.isfinite(interval.high):
                (bar,) = axes.plot([x, x], [interval.low, interval.high], color=style.color, lw=1.6)
                draw.mark(bar, arm=one.arm)
            low, high = format_signed(interval.low), format_signed(interval.high)
            tip = say("tip-dose", arm=one.arm, kl=f"{kl:.3g}", value=f"{y:+.4f}", low=low, high=high)
            draw.mark(points_of(axes, [x], [y], style, size=MEAN_SIZE), arm=one.arm, tips=[tip])
            handles.append(legend_entry(axes, one.arm, style, has_line=False))
        axes.margins(x=0.08)
        axes.xaxis.set_major_locator(MaxNLocator(6))
        draw_grid(axes)
        draw.word(axes.xaxis.label, say("axis-kl-start"))
        axis = "axis-relative" if find_metric(look.metric).relative else "axis-difference"
        draw.word(axes.yaxis.label, say(axis, metric=look.metric, against=look.against))
        draw.legend(handles)
        return draw.finish(), say("figure-dose-caption")


def plot_maps(look: FigureContext) -> tuple[str | None, Text]:
    """What a few heads attend to: before the treatment, after it, and after the training."""
    found: dict[str, tuple[int, list[list[AttentionMap]]]] = {}
    for arm in look.arms:
        for seed, record in look.results.of(arm).items():
            if arm not in found and (heads := _maps(record)):
                found[arm] = seed, heads
    if not found:
        return None, say("figure-maps-none")
    arms = list(found)[:_MOST_HEAT_MAPS]
    with drawing(height=1.2 + 0.42 * len(arms)) as draw:
        grid = draw.axes(len(arms), 1)
        image = None
        for axes, arm in zip(grid, arms, strict=True):
            heads = found[arm][1]
            row, middles = _side_by_side([np.array(one.rows) for moments in heads for one in moments])
            image = axes.imshow(row, norm=PowerNorm(0.5, vmin=0, vmax=1), cmap="cividis", interpolation="nearest")
            axes.set_axis_off()
            draw.mark(axes, arm=arm)
            name = axes.text(-0.02, 0.5, arm, transform=axes.transAxes, ha="right", va="center", fontsize=8)
            draw.word(name, untranslated(arm), arm=arm)
            if arm == arms[0]:
                _name_maps(draw, axes, heads, middles)
        assert image is not None
        bar = draw.figure.colorbar(image, ax=grid, location="bottom", shrink=0.6, aspect=45)
        bar.ax.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
        draw.word(bar.ax.xaxis.label, say("axis-weight"))
        rest = list(found)[_MOST_HEAT_MAPS:]
        more = say("figure-heads-more", arms=", ".join(rest)) if rest else untranslated("")
        seeds = ", ".join(dict.fromkeys(str(found[arm][0]) for arm in arms))
        return draw.finish(), say("figure-maps-caption", seeds=seeds, more=more)


def _name_maps(draw: Drawing, axes: Axes, heads: list[list[AttentionMap]], middles: list[float]) -> None:
    """Above the first row: which head, and at which moment."""
    above: Any = {"transform": axes.get_xaxis_transform(), "ha": "center", "va": "bottom"}
    for place, middle in enumerate(middles):
        moment = say(f"maps-{_MOMENTS[place % len(_MOMENTS)]}")
        draw.word(axes.text(middle, 1.08, moment.en, fontsize=6, **above), moment)
    for (first, *_), middle in zip(heads, middles[1 :: len(_MOMENTS)], strict=True):
        title = say("maps-head", layer=first.layer, head=first.head)
        draw.word(axes.text(middle, 1.45, title.en, fontsize=8, **above), title)


def _maps(record: Record) -> list[list[AttentionMap]]:
    """By head: its map before the treatment, after it, and after the training; heads that have all three."""
    moments = _moments(record)
    if len(moments) < 2 or record.start is None:
        return []
    kept = (record.start.untreated, moments["start"].maps, moments["final"].maps)
    by_head = [{(one.layer, one.head): one for one in maps} for maps in kept]
    return [[maps[head] for maps in by_head] for head in by_head[0] if all(head in maps for maps in by_head)]


def _moments(record: Record) -> dict[str, AttentionStats]:
    """The heads before and after training, as far as they were measured."""
    found = {"start": record.start.heads if record.start is not None else None, "final": record.heads}
    return {moment: heads for moment, heads in found.items() if heads is not None}


def _has_heads(heads: AttentionStats) -> bool:
    """Whether queries and keys have blocks to show."""
    return all(any(heads.cosine.get(role, ())) for role in _ROLES)


def _mean_norm(heads: AttentionStats) -> str:
    """Of all blocks of queries and keys: how long their rows are, which their angles do not show."""
    norms = [norm for role in _ROLES for layer in heads.norm.get(role, ()) for norm in layer]
    return f"{fmean(norms):.3g}" if norms else DASH


def _heat(layers: Sequence[Sequence[float]]) -> Any:
    """A row a layer, a column a head; layers without heads of their own are empty."""
    heat = np.full((len(layers), max(1, *map(len, layers))), np.nan)
    for row, layer in enumerate(layers):
        heat[row, : len(layer)] = layer
    return heat


def _side_by_side(tiles: Sequence[Any]) -> tuple[Any, list[float]]:
    """One array with empty columns between the tiles, and where the middle of each is."""
    most = max(len(tile) for tile in tiles)
    parts: list[Any] = []
    middles, at = [], 0
    for tile in tiles:
        gap = max(1, tile.shape[1] // 8) if parts else 0
        parts += [np.full((most, gap), np.nan), np.pad(tile, ((0, most - len(tile)), (0, 0)), constant_values=np.nan)]
        middles.append(at + gap + (tile.shape[1] - 1) / 2)
        at += gap + tile.shape[1]
    return np.hstack(parts), middles


def _mean_by_layer(measured: Sequence[AttentionStats | None]) -> dict[int, float]:
    values: dict[int, list[float]] = {}
    for heads in measured:
        for layer, value in enumerate(heads.entropy if heads is not None else ()):
            if value is not None and math.isfinite(value):
                values.setdefault(layer, []).append(value)
    return {layer: fmean(found) for layer, found in sorted(values.items())}
