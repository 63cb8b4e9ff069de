"""Figure of the shapes: the ratio of step times against the width, beside the best that freezing could do."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, NullLocator

from oelm.analysis.stats.timed_pairs import step_changes
from oelm.errors import CellError, StudyError
from oelm.message import Text
from oelm.report.figures.palette import INK, Style, styles
from oelm.report.figures.plot import MEAN_SIZE, draw_grid, legend_height
from oelm.report.figures.svg import Drawing, drawing, for_paper
from oelm.runs.files import write_text
from oelm.study.cells import Cell, resolve_cell
from oelm.study.study import Study
from oelm.text.messages import untranslated
from shapes_file import SHAPES_FILE, Shapes, ShapeTiming

_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
# What every shape has of its own. Its width is in no recipe: it is that of the model, whose layers all shapes keep.
_OF_A_SHAPE = ("recipe.data.max_length:", "recipe.batch.size:")


def draw_shapes(study: Study, folder: Path) -> Path:
    """Draw what was measured of this study, as a file beside the numbers."""
    found = read_shapes(folder)
    _check_same_study(found, study)
    svg, _ = plot_shapes(study, found.points)
    path = (folder / SHAPES_FILE.name).with_suffix(".svg")
    write_text(path, for_paper(svg, "en"))
    return path


def read_shapes(folder: Path) -> Shapes:
    found = SHAPES_FILE.read(folder)
    if found is None:
        hint = "benchmarks/shapes.py without --draw makes it"
        raise CellError(f"there is no {folder / SHAPES_FILE.name}", hint=hint)
    return found


def _check_same_study(found: Shapes, study: Study) -> None:
    """Refuse to draw what was measured of another study, or of this one as it was before a change."""
    against = study.compare.baseline
    if found.study != study.name:
        raise StudyError(f"{SHAPES_FILE.name} was measured for another study, {found.study}")
    if found.against != against:
        raise StudyError(f"{SHAPES_FILE.name} was measured against {found.against}; the study compares with {against}")
    for name in (name for name in found.spec if name in study.arms):
        changes = step_changes(found.spec[name], resolve_cell(study, Cell(arm=name, seed=study.seeds[0])))
        changed = [change for change in changes if not change.startswith(_OF_A_SHAPE)]
        if changed:
            raise StudyError(f"the study has changed since {name} was timed", why="; ".join(changed[:3]))


def plot_shapes(study: Study, points: Sequence[ShapeTiming]) -> tuple[str, str]:
    """(figure, caption): how the ratio changes with the width, a line for every length and batch."""
    against = study.compare.baseline
    looks = styles(list(study.arms), against)
    shapes = sorted({(one.shape.length, one.shape.batch) for one in points})
    drawn, more = shapes[: len(_MARKERS)], len(shapes) - len(_MARKERS)
    arms = [arm for arm in study.arms if any(arm in one.compared for one in points)]
    names = [f"{length} tokens, batch {batch}" for length, batch in drawn]
    with drawing(height=2.7 + legend_height([*arms, *names, ""])) as draw:
        (axes,) = draw.axes()
        axes.axhline(1, color=INK, lw=0.8)
        lines = list(itertools.product(arms, enumerate(drawn)))
        for place, (arm, (number, shape)) in enumerate(lines):
            found = [one for one in points if arm in one.compared and (one.shape.length, one.shape.batch) == shape]
            # What has one width stands side by side.
            shift = 1 + min(0.03, 0.3 / len(lines)) * (place - (len(lines) - 1) / 2)
            found.sort(key=lambda one: one.shape.width)
            _line(draw, axes, arm, found, looks[arm], _MARKERS[number], shift)
        widths = sorted({one.shape.width for one in points})
        axes.set_xscale("log")
        axes.set_xticks(widths, [f"{width:,}" for width in widths])
        axes.xaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.margins(x=0.08)
        draw_grid(axes)
        draw.word(axes.xaxis.label, untranslated("width of the model"))
        draw.word(axes.yaxis.label, untranslated(f"of {against}'s time"))
        handles: list[tuple[Any, Text, str | None]] = []
        for arm in arms:
            (handle,) = axes.plot([], [], color=looks[arm].color, lw=1.5)
            handles.append((handle, untranslated(arm), arm))
        for number, name in enumerate(names):
            handles.append((_handle(axes, marker=_MARKERS[number]), untranslated(name), None))
        handles.append((_handle(axes, marker="", ls="--", lw=0.9), untranslated("at best"), None))
        draw.legend(handles)
        left = f" Not drawn for lack of space: {more} more." if more > 0 else ""
        caption = f"In units of {against}'s, with 95 % intervals; dashed is the best that freezing could do.{left}"
        return draw.finish(), caption


def _line(
    draw: Drawing, axes: Axes, arm: str, points: Sequence[ShapeTiming], style: Style, marker: str, shift: float
) -> None:
    """One arm, length and batch: the ratios with their intervals, and the best that freezing could do."""
    if not points:
        return
    at, ratios = [one.shape.width * shift for one in points], [one.arms[arm].ratios["step"] for one in points]
    medians = [ratio.median for ratio in ratios]
    (line,) = axes.plot(at, medians, color=style.color, lw=1.2)
    draw.mark(line, arm=arm)
    for x, ratio in zip(at, ratios, strict=True):
        if ratio.bounds is not None:
            (bar,) = axes.plot([x, x], ratio.bounds, color=style.color, lw=1.2)
            draw.mark(bar, arm=arm)
    dots = axes.scatter(at, medians, s=MEAN_SIZE * 0.7, marker=marker, color=style.color, lw=0, zorder=3)
    tips = [untranslated(f"{arm}, {one.shape}: {median:.4f}") for one, median in zip(points, medians, strict=True)]
    draw.mark(dots, arm=arm, tips=tips)
    ceilings = [one.arms[arm].ceiling for one in points]
    best = [(x, 1 - ceiling) for x, ceiling in zip(at, ceilings, strict=True) if ceiling is not None]
    if best:
        (curve,) = axes.plot([x for x, _ in best], [y for _, y in best], color=style.color, ls="--", lw=0.9)
        draw.mark(curve, arm=arm)


def _handle(axes: Axes, *, marker: str, ls: Any = "none", **looks: Any) -> Any:
    (handle,) = axes.plot([], [], color=INK, ls=ls, marker=marker, ms=5, **looks)
    return handle
