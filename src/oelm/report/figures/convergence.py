"""Convergence: validation curves, and how many steps and how much training time an arm takes to the common target."""

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np
from matplotlib.ticker import MaxNLocator

from oelm.analysis.results import Results, finite_number
from oelm.format import format_number
from oelm.message import Text
from oelm.report.figures.plot import (
    SEED_SIZE,
    FigureContext,
    draw_grid,
    draw_seeds,
    legend_entry,
    legend_height,
    name_rows,
    name_steps,
    points_of,
    seed_tip,
    thinned,
)
from oelm.report.figures.svg import drawing
from oelm.study.cells import Cell
from oelm.text.messages import join_names, say, untranslated

MOST_POINTS = 200  # of a curve: more cannot be seen
_MOST_MARKERS = 20  # of a curve, for hovering


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where a cell first was as good as the target on the validation split."""

    step: int
    seconds: float | None
    """Of training steps alone; None where the log does not go that far."""


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """The target is the best mean of the arm whose best mean is worst: as good as every arm becomes."""

    target: float
    reached: dict[str, dict[int, Reached | None]]
    """By arm and seed; None for a cell that never came so far."""


def curves(results: Results, arm: str) -> dict[int, dict[int, float]]:
    """The primary metric on the validation split: by seed, by step."""
    metric = results.study.compare.metric
    found = {}
    for seed, record in results.of(arm).items():
        measured = {row.step: finite_number(row.metrics.get(metric)) for row in record.evaluations}
        curve = {step: value for step, value in measured.items() if value is not None}
        if curve:
            found[seed] = dict(sorted(curve.items()))
    return found


def mean_curve(by_seed: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """At the steps at which all seeds were measured."""
    if not by_seed:
        return {}
    shared = set.intersection(*(set(curve) for curve in by_seed.values()))
    return {step: fmean(curve[step] for curve in by_seed.values()) for step in sorted(shared)}


def convergence(results: Results) -> Convergence | None:
    """None unless every arm was measured on the way."""
    best = max if results.study.compare.direction == "higher" else min
    worst = min if results.study.compare.direction == "higher" else max
    by_arm = {arm: curves(results, arm) for arm in results.arms}
    means = {arm: mean_curve(by_seed) for arm, by_seed in by_arm.items()}
    if not means or not all(means.values()):
        return None
    target = worst(best(curve.values()) for curve in means.values())
    return Convergence(
        target=target,
        reached={
            arm: {seed: _reached(results, Cell(arm=arm, seed=seed), curve, target) for seed, curve in by_seed.items()}
            for arm, by_seed in by_arm.items()
        },
    )


def _reached(results: Results, cell: Cell, curve: Mapping[int, float], target: float) -> Reached | None:
    higher = results.study.compare.direction == "higher"
    step = next((step for step, value in curve.items() if (value >= target if higher else value <= target)), None)
    if step is None:
        return None
    log = results.steps(cell)
    complete = len(log) and log.step[-1] >= step and np.isfinite(log.seconds).all()
    return Reached(step=step, seconds=float(log.seconds[log.step <= step].sum()) if complete else None)


def plot_validation_curves(look: FigureContext) -> tuple[str | None, Text]:
    """The mean of every arm on the validation split, from its lowest to its highest seed."""
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
                say("tip-mean", arm=arm, n=len(measured[k]), value=format_number(means[k]), step=f"{at[k]:,}")
                for k in some
            ]
            points = points_of(axes, [at[k] for k in some], [means[k] for k in some], style, size=15)
            draw.mark(points, arm=arm, tips=tips)
            last = {seed: list(curve.items())[-1] for seed, curve in by_seed.items()}
            ends = points_of(axes, [x for x, _ in last.values()], [y for _, y in last.values()], style, size=SEED_SIZE)
            draw.mark(ends, arm=arm, tips=[seed_tip(arm, seed, value, step=x) for seed, (x, value) in last.items()])
            draw.mark(band, line, arm=arm)
            handles.append(legend_entry(axes, arm, style))
        name_steps(draw, axes)
        draw.word(axes.yaxis.label, say("axis-validation", metric=look.metric))
        draw.legend(handles)
        return draw.finish(), say("figure-curves-caption")


def plot_speed(look: FigureContext) -> tuple[str | None, Text]:
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
                tips = [seed_tip(arm, seed, value, digits=4) for seed, value in by_seed.items()]
                draw_seeds(draw, axes, values, [row] * len(values), style, arm=arm, tips=tips)
                (mean,) = axes.plot([fmean(values)] * 2, [row - 0.3, row + 0.3], color=style.color, lw=2)
                draw.mark(mean, arm=arm)
            draw_grid(axes, "x")
            axes.xaxis.set_major_locator(MaxNLocator(2))
            axes.margins(x=0.12)
            draw.word(axes.xaxis.label, say(key))
            axes.xaxis.label.set_fontsize(7.5)
            axes.tick_params(axis="y", length=0)
        name_rows(draw, all_axes[0], arms)
        all_axes[0].set_ylim(len(arms) - 0.5, -0.5)
        if found is None:
            return draw.finish(), say("figure-speed-no-target")
        more = say("figure-speed-late", arms=join_names(late)) if late else untranslated("")
        return draw.finish(), say(
            "figure-speed-caption", metric=look.metric, target=format_number(found.target), late=more
        )
