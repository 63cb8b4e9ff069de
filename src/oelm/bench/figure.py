"""Figure: what a bench found, drawn as the report draws it, as a file beside its numbers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from oelm.analysis.results import Results
from oelm.analysis.timed import BENCH, SHAPES, read_bench, read_shapes
from oelm.records.store import write_text
from oelm.report.plot import Look
from oelm.report.svg import for_paper, styles
from oelm.report.timed_figures import ratios_by_shape, step_ratios
from oelm.study.study import Study
from oelm.words.text import Text


def draw_bench(study: Study, folder: Path) -> Path:
    """Every arm's step and its parts in units of the baseline's, beside the best that freezing could do."""
    return _drawn(step_ratios, study, folder, BENCH)


def draw_shapes(study: Study, folder: Path) -> Path:
    """The ratio against the width, a line for every length and batch, beside the best that freezing could do."""
    return _drawn(ratios_by_shape, study, folder, SHAPES)


def _drawn(maker: Callable[[Look], tuple[str | None, Text]], study: Study, folder: Path, numbers: str) -> Path:
    compare = study.compare
    bench = read_bench(folder) if numbers == BENCH else None
    shapes = read_shapes(folder) if numbers == SHAPES else None
    points = shapes.points if shapes is not None else ()
    results = Results(study=study, folder=folder, records={}, bench=bench, shapes=points)
    look = Look(
        results=results,
        metric=compare.primary.metric,
        against=compare.against,
        styles=styles(list(study.arms), compare.against),
    )
    svg, caption = maker(look)
    assert svg is not None, caption
    path = (folder / numbers).with_suffix(".svg")
    write_text(path, for_paper(svg, "en"))
    return path
