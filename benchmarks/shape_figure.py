"""Figure of the shapes: the ratio of step times against the width, beside the best that freezing could do."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

from matplotlib.axes import Axes
from matplotlib.ticker import NullFormatter, NullLocator
from pydantic import Field, TypeAdapter, ValidationError

from oelm.analysis.stats.step_times import OF_A_STEP
from oelm.errors import CellError, StudyError
from oelm.message import Text
from oelm.report.figures.plot import MEAN_SIZE, draw_grid, legend_height
from oelm.report.figures.svg import INK, Drawing, Style, drawing, for_paper, styles
from oelm.runs.layout import read_json, write_text
from oelm.study.cells import Cell, describe_changes, flatten, resolve_cell
from oelm.study.study import Study
from oelm.text.messages import untranslated

SHAPES = "bench-shapes.json"
FORMAT = 1
_MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h")
# What every shape has of its own. Its width is in no recipe: it is that of the model, whose layers all shapes keep.
_OF_A_SHAPE = ("recipe.data.max_length", "recipe.batch.size")
# The file says more than is read here, and must say this much.
_OPEN: dict[str, Any] = {"extra": "ignore", "allow_inf_nan": False}

_Positive = Annotated[float, Field(gt=0, le=1e9)]
_Size = Annotated[int, Field(gt=0, le=10**9)]


@dataclass(frozen=True, kw_only=True)
class ShapeRatio:
    """A median over rounds with its 95 % interval."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    median: _Positive
    low: Annotated[float, Field(ge=0, le=1e9)]
    high: _Positive | None
    """None with too few rounds for an interval."""

    def __post_init__(self) -> None:
        if not self.low <= self.median <= (math.inf if self.high is None else self.high):
            raise ValueError("the median is not inside its own interval")


@dataclass(frozen=True, kw_only=True)
class ShapePoint:
    """The ratio of one arm in one shape."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    width: _Size
    length: _Size
    batch: _Size
    arm: str
    ratio: ShapeRatio
    ceiling: Annotated[float, Field(ge=-1e9, lt=1)] | None = None


@dataclass(frozen=True, kw_only=True)
class ShapesFile:
    """What the figure needs of `bench-shapes.json`."""

    __pydantic_config__: ClassVar[dict[str, Any]] = _OPEN

    study: str
    against: str
    points: tuple[ShapePoint, ...]
    spec: dict[str, dict[str, Any]]
    """By arm, as in a record: what all shapes were made from."""

    def __post_init__(self) -> None:
        unknown = [one.arm for one in self.points if one.arm not in self.spec]
        if unknown:
            raise ValueError(f"the spec of arm '{unknown[0]}' is missing")


def draw_shapes(study: Study, folder: Path) -> Path:
    """Draw what was measured of this study, as a file beside the numbers."""
    found = read_shapes(folder)
    _check_same_study(found, study)
    svg, _ = plot_shapes(study, [one for one in found.points if one.arm in study.arms])
    path = (folder / SHAPES).with_suffix(".svg")
    write_text(path, for_paper(svg, "en"))
    return path


def read_shapes(folder: Path) -> ShapesFile:
    path = folder / SHAPES
    content = read_json(path)
    if content is None:
        raise CellError(f"there is no {path}", hint="benchmarks/shapes.py without --draw makes it")
    if content.get("format") != FORMAT:
        raise CellError(f"{path} has format {content.get('format')}; this script reads {FORMAT}", hint="measure again")
    try:
        return TypeAdapter(ShapesFile).validate_python(content)
    except (ValidationError, RecursionError) as error:
        why = str(error).partition("\n")[0]
        if isinstance(error, ValidationError):
            first = error.errors(include_url=False, include_input=False)[0]
            why = f"{'.'.join(map(str, first['loc']))}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")
        raise CellError(f"{path} is damaged", why=why[:200], hint="measure again") from error


def _check_same_study(found: ShapesFile, study: Study) -> None:
    """Refuse to draw what was measured of another study, or of this one as it was before a change."""
    if found.study != study.name:
        raise StudyError(f"{SHAPES} was measured for another study, {found.study}")
    against = study.compare.baseline
    if found.against != against:
        raise StudyError(f"{SHAPES} was measured against {found.against}; the study compares with {against}")
    for name in (name for name in found.spec if name in study.arms):
        now = resolve_cell(study, Cell(arm=name, seed=study.seeds[0])).to_dict()
        then_and_now = (flatten(_of_a_step(spec)) for spec in (found.spec[name], now))
        changed = describe_changes(
            *({path: each[path] for path in each if path not in _OF_A_SHAPE} for each in then_and_now)
        )
        if changed:
            raise StudyError(f"the study has changed since {name} was timed", why="; ".join(changed[:3]))


def _of_a_step(spec: Mapping[str, Any]) -> dict[str, Any]:
    recipe = spec.get("recipe")
    kept = {name: recipe.get(name) for name in OF_A_STEP} if isinstance(recipe, Mapping) else None
    return {"treatment": spec.get("treatment"), "recipe": kept}


def plot_shapes(study: Study, points: Sequence[ShapePoint]) -> tuple[str, str]:
    """(figure, caption): how the ratio changes with the width, a line for every length and batch."""
    against = study.compare.baseline
    looks = styles(list(study.arms), against)
    shapes = sorted({(one.length, one.batch) for one in points})
    drawn, more = shapes[: len(_MARKERS)], len(shapes) - len(_MARKERS)
    arms = [arm for arm in study.arms if any(one.arm == arm for one in points)]
    names = [f"{length} tokens, batch {batch}" for length, batch in drawn]
    with drawing(height=2.7 + legend_height([*arms, *names, ""])) as draw:
        (axes,) = draw.axes()
        axes.axhline(1, color=INK, lw=0.8)
        lines = list(itertools.product(arms, enumerate(drawn)))
        for place, (arm, (number, shape)) in enumerate(lines):
            found = [one for one in points if (one.arm, one.length, one.batch) == (arm, *shape)]
            # What has one width stands side by side.
            shift = 1 + min(0.03, 0.3 / len(lines)) * (place - (len(lines) - 1) / 2)
            found.sort(key=lambda one: one.width)
            _line(draw, axes, found, looks[arm], _MARKERS[number], shift)
        widths = sorted({one.width for one in points})
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


def _line(draw: Drawing, axes: Axes, points: Sequence[ShapePoint], style: Style, marker: str, shift: float) -> None:
    """One arm, length and batch: the ratios with their intervals, and the best that freezing could do."""
    if not points:
        return
    arm = points[0].arm
    at = [one.width * shift for one in points]
    (line,) = axes.plot(at, [one.ratio.median for one in points], color=style.color, lw=1.2)
    draw.mark(line, arm=arm)
    for x, one in zip(at, points, strict=True):
        if one.ratio.high is not None:
            (bar,) = axes.plot([x, x], [one.ratio.low, one.ratio.high], color=style.color, lw=1.2)
            draw.mark(bar, arm=arm)
    dots = axes.scatter(
        at, [one.ratio.median for one in points], s=MEAN_SIZE * 0.7, marker=marker, color=style.color, lw=0, zorder=3
    )
    tips = [
        untranslated(f"{arm}, width {one.width}, {one.length} tokens, batch {one.batch}: {one.ratio.median:.4f}")
        for one in points
    ]
    draw.mark(dots, arm=arm, tips=tips)
    best = [(x, 1 - one.ceiling) for x, one in zip(at, points, strict=True) if one.ceiling is not None]
    if best:
        (curve,) = axes.plot([x for x, _ in best], [y for _, y in best], color=style.color, ls="--", lw=0.9)
        draw.mark(curve, arm=arm)


def _handle(axes: Axes, *, marker: str, ls: Any = "none", **looks: Any) -> Any:
    (handle,) = axes.plot([], [], color=INK, ls=ls, marker=marker, ms=5, **looks)
    return handle
