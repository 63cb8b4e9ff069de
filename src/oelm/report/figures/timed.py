"""Figure of the bench: what a step takes against the baseline's, part by part."""

from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from oelm.analysis.results import Results
from oelm.analysis.stats.timed_pairs import count_rounds
from oelm.format import DASH
from oelm.message import Text
from oelm.report.figures.palette import INK, Style, styles
from oelm.report.figures.plot import MEAN_SIZE, FigureContext, draw_grid, legend_height, name_rows
from oelm.report.figures.svg import Drawing, drawing, for_paper
from oelm.runs.bench import PARTS, Ratio, read_bench
from oelm.runs.files import write_text
from oelm.runs.layout import BENCH, STUDY
from oelm.study.study import Study
from oelm.text.messages import say

_PART_MARKERS = {"forward": ">", "backward": "<", "optimizer": "s"}
_PART_SIZE = 20


def plot_step_ratios(look: FigureContext) -> tuple[str | None, Text]:
    """Whole steps and their parts, with intervals, beside the best that freezing could do."""
    bench = look.results.bench
    if bench is None:
        return None, say("figure-timed-none", study=f"RUNS/{look.results.folder.name}/{STUDY}")
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
        name_rows(draw, axes, arms)
        axes.set_ylim(len(arms) - 0.45, -0.55)
        axes.tick_params(axis="y", length=0)
        axes.spines["left"].set_visible(False)
        draw_grid(axes, "x")
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
        return draw.finish(), say("figure-timed-caption", rounds=count_rounds(bench.rounds), against=bench.against)


def draw_bench(study: Study, folder: Path) -> Path:
    """The figure of a bench as a file beside its numbers."""
    results = Results(study=study, folder=folder, records={}, bench=read_bench(folder))
    looks = styles(list(study.arms), study.compare.baseline)
    svg, caption = plot_step_ratios(FigureContext(results=results, styles=looks))
    assert svg is not None, caption
    path = (folder / BENCH).with_suffix(".svg")
    write_text(path, for_paper(svg, "en"))
    return path


def _interval(
    draw: Drawing,
    axes: Axes,
    arm: str,
    part: Text,
    ratio: Ratio,
    height: float,
    style: Style,
    *,
    width: float,
    filled: bool = True,
) -> None:
    if ratio.bounds is not None:
        (bar,) = axes.plot(ratio.bounds, [height] * 2, color=style.color, lw=width)
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


def _numbers(ratio: Ratio) -> dict[str, str]:
    low, high = (f"{bound:.4f}" for bound in ratio.bounds) if ratio.bounds is not None else (DASH, DASH)
    return {"value": f"{ratio.median:.4f}", "low": low, "high": high}


def _handle(axes: Axes, *, marker: str, ls: Any = "none", **looks: Any) -> Any:
    (handle,) = axes.plot([], [], color=INK, ls=ls, marker=marker, ms=5, **looks)
    return handle
