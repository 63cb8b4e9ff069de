"""The figures of a report, in their order. Where there is nothing to draw, the caption says why."""

from collections.abc import Callable

from oelm.analysis.results import Results
from oelm.message import Text
from oelm.report.figures.arms import plot_forest, plot_four_corners, plot_quality_by_size
from oelm.report.figures.convergence import plot_speed, plot_validation_curves
from oelm.report.figures.heads import plot_attention_entropy, plot_dose, plot_maps, plot_orthonormality
from oelm.report.figures.palette import styles
from oelm.report.figures.plot import FigureContext, Plot
from oelm.report.figures.timed import plot_step_ratios
from oelm.report.figures.training_loss import plot_training_loss
from oelm.report.figures.tuning import plot_best_of_k, plot_tuning_response
from oelm.text.messages import say


def figures_section(results: Results) -> list[Plot]:
    study = results.study
    context = FigureContext(results=results, styles=styles(list(study.arms), study.compare.baseline))
    makers: dict[str, Callable[[FigureContext], tuple[str | None, Text]]] = {
        "forest": plot_forest,
        "curves": plot_validation_curves,
        "loss": plot_training_loss,
        "corners": plot_four_corners,
        "size": plot_quality_by_size,
        "speed": plot_speed,
        "timed": plot_step_ratios,
        "tuning": plot_tuning_response,
        "best-of-k": plot_best_of_k,
        "heads": plot_orthonormality,
        "entropy": plot_attention_entropy,
        "dose": plot_dose,
        "maps": plot_maps,
    }
    found = []
    for name, maker in makers.items():
        svg, caption = maker(context)
        found.append(Plot(name=name, title=say(f"figure-{name}"), caption=caption, svg=svg))
    return found
