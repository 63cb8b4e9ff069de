"""Figures of the tuning: how arms answer to a setting, and what the best of k trials gives."""

import math
import statistics
from collections.abc import Mapping, Sequence

from matplotlib.ticker import MaxNLocator, NullFormatter

from oelm.analysis.tuning import best_of_k_curve, response
from oelm.format import format_number
from oelm.message import Text
from oelm.report.figures.plot import MEAN_SIZE, FigureContext, draw_grid, legend_entry, legend_height, points_of
from oelm.report.figures.svg import drawing
from oelm.study.study import LR, Value, as_number
from oelm.text.messages import say, untranslated


def plot_tuning_response(look: FigureContext) -> tuple[str | None, Text]:
    """How every arm answers to the setting that was tuned."""
    tune = look.results.study.tune
    if tune is None:
        return None, say("figure-tuning-untuned")
    path = _tuned_path(tune.grid)
    if path is None:
        return None, say("figure-tuning-words")
    by_arm: dict[str, dict[float, dict[str, float]]] = {}
    failed = 0
    for cell, record in look.results.tuning.items():
        setting = dict(cell.point or ()).get(path)
        last = record.last_evaluation.get(look.metric)
        if record.status != "done" or last is None or not math.isfinite(last) or not isinstance(setting, int | float):
            failed += 1
            continue
        by_arm.setdefault(cell.arm, {}).setdefault(float(setting), {})[str(cell.folder)] = float(last)
    if not by_arm:
        return None, say("figure-tuning-none", metric=look.metric)
    with drawing(height=2.6 + legend_height(list(by_arm))) as draw:
        (axes,) = draw.axes()
        handles = []
        for arm in (arm for arm in look.results.study.arms if arm in by_arm):
            style, points = look.styles[arm], by_arm[arm]
            curve = response({x: list(values.values()) for x, values in points.items()})
            (line,) = axes.plot([r.value for r in curve], [r.mean for r in curve], color=style.color, ls=style.line)
            draw.mark(line, arm=arm)
            xs = [x for x, values in sorted(points.items()) for _ in values]
            trials = [(name, y) for _, values in sorted(points.items()) for name, y in values.items()]
            dots = points_of(axes, xs, [y for _, y in trials], style, size=MEAN_SIZE * 0.7)
            tips = [untranslated(f"{name}, {format_number(y)}") for name, y in trials]
            draw.mark(dots, arm=arm, tips=tips)
            handles.append(legend_entry(axes, arm, style))
        if min(x for points in by_arm.values() for x in points) > 0:
            ticks = sorted({x for points in by_arm.values() for x in points})
            axes.set_xscale("log")
            axes.set_xticks(ticks, [f"{x:g}" for x in ticks])
            axes.xaxis.set_minor_formatter(NullFormatter())
        draw_grid(axes)
        axes.set_xlabel(path)
        draw.word(axes.yaxis.label, say("axis-validation", metric=look.metric))
        draw.legend(handles)
        more = say("figure-tuning-failed", n=failed) if failed else untranslated("")
        return draw.finish(), say("figure-tuning-caption", path=path, failed=more)


def plot_best_of_k(look: FigureContext) -> tuple[str | None, Text]:
    """What the best of k trials is expected to give: arms are compared at the same k."""
    if look.results.study.tune is None:
        return None, say("figure-tuning-untuned")
    trials: dict[str, dict[int, list[float]]] = {}
    for cell, record in look.results.tuning.items():
        last = record.last_evaluation.get(look.metric, math.nan)
        value = float(last) if record.status == "done" else math.nan
        trials.setdefault(cell.arm, {}).setdefault(cell.seed, []).append(value)
    by_arm = {}
    for arm, seeds in trials.items():
        # Every seed chooses from its own trials, or all of them by their average: the best of k points either way.
        curves = [best_of_k_curve(values, better=look.results.study.compare.direction) for values in seeds.values()]
        means = [statistics.fmean(values) for values in zip(*curves, strict=False)]
        finite = {k + 1: value for k, value in enumerate(means) if math.isfinite(value)}
        if finite:
            by_arm[arm] = finite
    if not by_arm or max(map(len, by_arm.values())) < 2:
        return None, say("figure-best-of-k-none")
    with drawing(height=2.5 + legend_height(list(by_arm))) as draw:
        (axes,) = draw.axes()
        handles = []
        for arm in (arm for arm in look.results.study.arms if arm in by_arm):
            style, curve_k = look.styles[arm], by_arm[arm]
            (line,) = axes.plot(list(curve_k), list(curve_k.values()), color=style.color, ls=style.line)
            dots = points_of(axes, list(curve_k), list(curve_k.values()), style, size=MEAN_SIZE * 0.6)
            draw.mark(line, arm=arm)
            draw.mark(
                dots, arm=arm, tips=[say("tip-best", arm=arm, k=k, value=format_number(v)) for k, v in curve_k.items()]
            )
            handles.append(legend_entry(axes, arm, style))
        axes.xaxis.set_major_locator(MaxNLocator(6, integer=True))
        draw_grid(axes)
        draw.word(axes.xaxis.label, say("axis-trials"))
        draw.word(axes.yaxis.label, say("axis-expected", metric=look.metric))
        draw.legend(handles)
        return draw.finish(), say("figure-best-of-k-caption")


def _tuned_path(grid: Mapping[str, Sequence[Value]]) -> str | None:
    """The setting to draw: the learning rate, or the first that is a number."""
    numeric = [path for path, values in grid.items() if None not in map(as_number, values)]
    return LR if LR in numeric else next(iter(numeric), None)
