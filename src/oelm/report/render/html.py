"""The page: a report as one HTML file that needs nothing else, in both languages."""

import base64
import hashlib
import os
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from oelm.format import escape_controls
from oelm.message import Lang, Text
from oelm.report.blocks import Bullets, Content, Folded, Prose, Table, VerdictBox
from oelm.report.figures.palette import INK, PALETTE, Style
from oelm.report.figures.plot import Plot
from oelm.report.figures.svg import for_page
from oelm.text.messages import say
from oelm.version import __version__

TEMPLATES = Path(__file__).parents[1] / "templates"
_KINDS = {Table: "table", Prose: "prose", Bullets: "bullets", VerdictBox: "verdict", Folded: "folded", Plot: "plot"}
# How an arm's mark looks beside its name: the shapes of the figures, drawn in a box of 12.
_SHAPES = {
    "o": "M6 2a4 4 0 1 0 .001 0z",
    "s": "M2.5 2.5h7v7h-7z",
    "^": "M6 1.5l4.6 8.6H1.4z",
    "v": "M6 10.5L1.4 1.9h9.2z",
    "<": "M1.5 6l8.6-4.6v9.2z",
    ">": "M10.5 6L1.9 1.4v9.2z",
    "D": "M6 1l5 5-5 5-5-5z",
    "P": "M4.4 1.5h3.2v2.9h2.9v3.2H7.6v2.9H4.4V7.6H1.5V4.4h2.9z",
    "X": "M3.3 1.2L6 3.9l2.7-2.7 2.1 2.1L8.1 6l2.7 2.7-2.1 2.1L6 8.1l-2.7 2.7-2.1-2.1L3.9 6 1.2 3.3z",
    "p": "M6 1l5 3.7-1.9 5.9H2.9L1 4.7z",
    "h": "M6 1l4.5 2.5v5L6 11 1.5 8.5v-5z",
}


def render_html(content: Content, *, lang: Lang = "en", records: str = ".") -> str:
    """The report as HTML; `records` is where the study's folder lies, seen from where the page will lie."""
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return escape_controls(
        _environment()
        .get_template("page.html.jinja")
        .render(
            content=content,
            lang="zh-CN" if lang == "zh" else "en",
            script=Markup(script),
            style=Markup(_file("page.css")),
            digest=digest,
            version=__version__,
            link=lambda href: href if href.startswith("#") else quote(f"{records}/{href}".removeprefix("./")),
        )
    )


def relative(folder: Path, *, to: Path) -> str:
    """Where a folder lies, seen from another."""
    return Path(os.path.relpath(folder.resolve(), to.resolve())).as_posix()


def both(text: Text) -> Markup:
    """A text in both languages, of which the page shows one."""
    if text.en == text.zh:
        return escape(text.en)
    return Markup('<span class="en" lang="en">{}</span><span class="zh" lang="zh-CN">{}</span>').format(
        text.en, text.zh
    )


def _color(style: Style) -> str:
    return "currentColor" if style.color == INK else f"var(--arm-{PALETTE.index(style.color)})"


@cache
def _environment() -> Environment:
    found = environment(html=True)
    found.filters |= {"both": both, "color": _color}
    found.globals |= {"shapes": _SHAPES, "figure": lambda plot: Markup(for_page(plot.svg, plot.name))}
    return found


def environment(*, html: bool) -> Environment:
    """What all templates of the report share. In HTML every text is escaped."""
    found = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=html,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    found.filters["kind"] = kind
    found.globals["say"] = say
    return found


def kind(block: Any) -> str:
    return _KINDS[type(block)]


def _file(name: str) -> str:
    return (TEMPLATES / name).read_text(encoding="utf-8")
