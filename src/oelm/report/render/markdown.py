"""Markdown: the report as text, with its figures as files beside it."""

import re
from urllib.parse import quote

from oelm.format import escape_controls
from oelm.message import Lang, Text
from oelm.report.blocks import Content
from oelm.report.figures.plot import Plot
from oelm.report.figures.svg import for_paper
from oelm.report.render.html import environment
from oelm.runs.layout import ARCHIVE
from oelm.version import __version__

FIGURES = "report-figures"
_SPECIAL = re.compile(r"([\\`*_\[\]|~#$])")


def render_markdown(content: Content, *, lang: Lang = "en", records: str = ".") -> str:
    """The report as Markdown; `records` is where the study's folder lies, seen from where the text will lie.

    In its place, it may be the archive that the records are in: then all links lead there.
    """
    is_archive = records.endswith(ARCHIVE)
    return escape_controls(
        environment(html=False)  # every text goes through `words` instead
        .get_template("report.md.jinja")
        .render(
            content=content,
            version=__version__,
            words=lambda text: escaped(text[lang] if isinstance(text, Text) else str(text)),
            picture=lambda plot: f"{FIGURES}/{figure_name(plot, lang)}",
            link=lambda href: quote(records if is_archive else f"{records}/{href}".removeprefix("./")),
        )
    )


def figure_files(content: Content, *, lang: Lang = "en") -> dict[str, str | None]:
    """The figures by the name of their file; None for one that there is nothing to draw of."""
    plots = [one for section in content.sections for one in section.blocks if isinstance(one, Plot)]
    return {
        figure_name(one, lang): escape_controls(for_paper(one.svg, lang)) if one.svg is not None else None
        for one in plots
    }


def figure_name(plot: Plot, lang: Lang) -> str:
    return f"{plot.name}.svg" if lang == "en" else f"{plot.name}.{lang}.svg"


def escaped(text: str) -> str:
    """A text that Markdown shows as it is, on one line."""
    text = " ".join(text.split()).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(r"\\\1", text)
