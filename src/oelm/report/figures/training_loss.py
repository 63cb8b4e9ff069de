"""Training loss: every step of every compared cell, as the median and the extremes of stretches of steps."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.results import Results
from oelm.format import format_number
from oelm.message import Text
from oelm.report.figures.plot import FigureContext, legend_entry, legend_height, name_steps, points_of, thinned
from oelm.report.figures.svg import drawing
from oelm.study.cells import Cell
from oelm.text.messages import say, untranslated

MOST_STRETCHES = 200  # more cannot be seen
_MOST_MARKERS = 20  # of a curve, for hovering


@dataclass(frozen=True, kw_only=True)
class LossCurve:
    """The training loss of an arm, an entry a stretch of steps: over all its steps, of all seeds."""

    step: NDArray[np.float64]
    """The last one of the stretch."""
    median: NDArray[np.float64]
    lowest: NDArray[np.float64]
    highest: NDArray[np.float64]
    steps: int
    """In a stretch, at most."""
    not_finite: int
    """Cells with a loss that is not a number or infinite, which is in none of these."""


def loss_curve(results: Results, arm: str, *, most: int = MOST_STRETCHES) -> LossCurve | None:
    """None where no cell of the arm has a log with a finite loss."""
    logs = [results.steps(Cell(arm=arm, seed=seed)) for seed in results.of(arm)]
    longest = max(map(len, logs), default=0)
    if not any(np.isfinite(log.loss).any() for log in logs):
        return None
    number = min(longest, most)
    place = np.concatenate([(log.step.astype(np.int64) - 1) * number // longest for log in logs])
    loss = np.concatenate([log.loss for log in logs])
    known = np.isfinite(loss)
    place, loss = place[known], loss[known]
    order = np.argsort(place, kind="stable")
    there, first = np.unique(place[order], return_index=True)
    stretches = np.split(loss[order], first[1:])
    return LossCurve(
        step=-(-(there + 1) * longest // number).astype(np.float64),
        median=np.array([np.median(some) for some in stretches]),
        lowest=np.array([some.min() for some in stretches]),
        highest=np.array([some.max() for some in stretches]),
        steps=-(-longest // number),
        not_finite=sum(not np.isfinite(log.loss).all() for log in logs),
    )


def plot_training_loss(look: FigureContext) -> tuple[str | None, Text]:
    """Medians and extremes of every arm."""
    curves = {arm: found for arm in look.arms if (found := loss_curve(look.results, arm)) is not None}
    if not curves:
        return None, say("figure-loss-none")
    with drawing(height=2.7 + legend_height(list(curves))) as draw:
        (axes,) = draw.axes()
        handles = []
        for arm, curve in curves.items():
            style = look.styles[arm]
            band = axes.fill_between(curve.step, curve.lowest, curve.highest, color=style.color, alpha=0.1, lw=0)
            (line,) = axes.plot(curve.step, curve.median, color=style.color, ls=style.line, lw=1.3)
            draw.mark(band, line, arm=arm)
            some = thinned(len(curve.step), _MOST_MARKERS)
            points = points_of(axes, list(curve.step[some]), list(curve.median[some]), style, size=12)
            tips = [_tip(arm, curve, number) for number in some]
            draw.mark(points, arm=arm, tips=tips)
            handles.append(legend_entry(axes, arm, style))
        # A few steps far above all others would flatten what there is to see; the caption names them.
        top = 1.1 * max(float(curve.median.max()) for curve in curves.values())
        axes.set_ylim(min(float(curve.lowest.min()) for curve in curves.values()) - 0.02 * top, top)
        name_steps(draw, axes)
        draw.word(axes.yaxis.label, say("axis-training-loss"))
        draw.legend(handles)
        return draw.finish(), _caption(curves, top)


def _tip(arm: str, curve: LossCurve, number: int) -> Text:
    low, middle, high = (format_number(float(of[number])) for of in (curve.lowest, curve.median, curve.highest))
    return say("tip-loss", arm=arm, value=middle, low=low, high=high, step=f"{curve.step[number]:,.0f}")


def _caption(curves: dict[str, LossCurve], top: float) -> Text:
    highest = {arm: float(curve.highest.max()) for arm, curve in curves.items()}
    above = {arm: format_number(value) for arm, value in highest.items() if value > top}
    broken = {arm: curve.not_finite for arm, curve in curves.items() if curve.not_finite}
    more = say("figure-loss-above", named=_named(above)) if above else untranslated("")
    ended = say("figure-loss-not-finite", named=_named(broken)) if broken else untranslated("")
    steps = max(curve.steps for curve in curves.values())
    stretch = say("figure-loss-stretch", steps=f"{steps:,}") if steps > 1 else untranslated("")
    return say("figure-loss-caption", stretch=stretch, above=more, broken=ended)


def _named(values: dict[str, str] | dict[str, int]) -> str:
    return ", ".join(f"{arm} {value}" for arm, value in values.items())
