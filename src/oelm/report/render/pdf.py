"""The report on paper: a PDF by Typst. What comes from records reaches it as data, never as its code."""

import json
from pathlib import Path
from typing import Any

import matplotlib
import typst

from oelm.errors import ReportError
from oelm.format import escape_controls
from oelm.message import Lang
from oelm.report.blocks import Block, Bullets, Content, Folded, Prose, Table, VerdictBox
from oelm.report.figures.plot import Plot
from oelm.report.figures.svg import for_paper
from oelm.report.render.html import TEMPLATES, kind
from oelm.text.messages import say
from oelm.version import __version__

# Fonts with simplified Chinese characters, the ones that suit the text first.
CHINESE = (
    "Noto Serif CJK SC",
    "Noto Serif SC",
    "Source Han Serif SC",
    "Songti SC",
    "SimSun",
    "Noto Sans CJK SC",
    "Noto Sans SC",
    "Source Han Sans SC",
    "PingFang SC",
    "Microsoft YaHei",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
)


def render_pdf(content: Content, *, lang: Lang = "en") -> bytes:
    """The report as a PDF, the same bytes every time on one machine."""
    fonts = typst.Fonts(font_paths=[Path(matplotlib.get_data_path()) / "fonts" / "ttf"])
    chinese = [family for family in CHINESE if family in fonts.families()]
    if lang == "zh" and not chinese:
        raise ReportError(
            "no font with Chinese characters is installed, so there can be no PDF in Chinese",
            hint="apt install fonts-noto-cjk, or --format html,md",
        )
    data = {
        "lang": lang,
        "fonts": ["Libertinus Serif", *chinese[:1]],
        "study": content.study,
        "sections": [
            {"title": section.title[lang], "blocks": [_plain(one, lang) for one in section.blocks]}
            for section in content.sections
        ],
        "footer": f"{content.made_from[lang]} oelm {__version__}",
    }
    try:
        made = typst.compile(
            TEMPLATES / "report.typ",
            font_paths=fonts,
            sys_inputs={"data": json.dumps(_visible(data), ensure_ascii=False)},
            timestamp=0,
        )
    except typst.TypstError as error:
        raise ReportError("the PDF could not be set", why=" ".join(str(error).split())[:300]) from error
    assert isinstance(made, bytes)
    return made


def _visible(data: Any) -> Any:
    """Plain data in which no text turns its direction, nor that of what comes after it."""
    if isinstance(data, dict):
        return {key: _visible(value) for key, value in data.items()}
    if isinstance(data, list):
        return [_visible(value) for value in data]
    return escape_controls(data) if isinstance(data, str) else data


def _plain(one: Block, lang: Lang) -> dict[str, object]:
    """A block as plain data in one language."""
    data: dict[str, object] = {"kind": kind(one)}
    match one:
        case Prose():
            return data | {"text": one.text[lang]}
        case VerdictBox():
            return data | {"word": say(f"word-{one.kind}")[lang], "text": one.text[lang]}
        case Bullets():
            return data | {"items": [item[lang] for item in one.items]}
        case Folded():
            return data | {"title": one.summary[lang], "blocks": [_plain(inner, lang) for inner in one.blocks]}
        case Table():
            return data | {
                "columns": [{"title": column.title[lang], "number": column.number} for column in one.columns],
                "rows": [
                    [{"text": cell.text[lang], "badge": cell.badge is not None} for cell in row.cells]
                    for row in one.rows
                ],
            }
        case Plot():
            caption = one.caption if one.svg is not None else say("no-figure", why=one.caption)
            svg = for_paper(one.svg, lang) if one.svg is not None else None
            return data | {"title": one.title[lang], "svg": svg, "caption": caption[lang]}
