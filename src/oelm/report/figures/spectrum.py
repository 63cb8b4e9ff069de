"""The figure of `oelm inspect --spectrum`: the spectrum of every head, and how far treatments would move it."""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import colormaps
from matplotlib.ticker import FuncFormatter, NullFormatter

from oelm.facts import HeadSpectrum
from oelm.report.figures.plot import draw_grid
from oelm.report.figures.svg import drawing, for_paper
from oelm.runs.files import write_text
from oelm.text.messages import say

_EVEN = 1e-6  # nats: less than that is rounding


def draw_spectra(heads: Sequence[HeadSpectrum], path: Path) -> None:
    """Two panels in a file: singular values of every head, and KL by treatment, a point a head."""
    layers = sorted({one.layer for one in heads})
    color = {layer: colormaps["cividis"](layer / max(1, layers[-1])) for layer in layers}
    treatments = list(heads[0].kl) if heads else []
    with drawing(width=7.2, height=3.2) as draw:
        left, right = draw.axes(1, 2)
        for one in heads:
            left.plot(range(1, len(one.spectrum) + 1), one.spectrum, color=color[one.layer], lw=0.7, alpha=0.7)
        draw.word(left.xaxis.label, say("axis-direction"))
        draw.word(left.yaxis.label, say("axis-singular"))
        draw_grid(left)
        for place, name in enumerate(treatments):
            known = [(one, kl) for one in heads if (kl := one.kl[name]) is not None]
            spread = [place + 0.5 * (one.layer + 0.5) / (1 + max(layers)) - 0.25 for one, _ in known]
            right.scatter(spread, [max(kl, _EVEN) for _, kl in known], s=9, c=[color[one.layer] for one, _ in known])
        right.set_xticks(range(len(treatments)), [name.replace(" ", "\n") for name in treatments])
        draw.word(right.yaxis.label, say("axis-kl"))
        draw_grid(right, "y")
        for axes in (left, right):
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
            axes.yaxis.set_minor_formatter(NullFormatter())
        handles = [
            (left.plot([], [], color=color[layer])[0], say("legend-layer", layer=layer), None) for layer in layers
        ]
        draw.legend(handles if len(handles) <= 6 else [handles[0], handles[len(handles) // 2], handles[-1]])
        write_text(path, for_paper(draw.finish(), "en"), instead="--figure FILE.svg")
