"""Drawings: a figure as SVG text in which words have both languages and points say what they are.

Text stays text and colors stay names, so that one drawing serves the page (both languages, light and dark) and paper
(one language, black on white). Only matplotlib's objects are used, never its global figure.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from oelm.format import escape_controls
from oelm.message import Lang, Text
from oelm.report.figures.palette import INK, PALETTE, VERDICT_COLORS

if TYPE_CHECKING:  # a page without figures is made without it
    from matplotlib.artist import Artist
    from matplotlib.axes import Axes
    from matplotlib.text import Text as Label

WIDTH = 4.6  # inches
_FONTS = "'DejaVu Sans', 'Noto Sans CJK SC', 'PingFang SC', 'Microsoft YaHei', sans-serif"
_SVG = "{http://www.w3.org/2000/svg}"
_XLINK = "{http://www.w3.org/1999/xlink}"
_RC: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "oelm",
    "text.parse_math": False,  # a name with two dollar signs is a name
    "font.size": 9,
    "font.sans-serif": ["DejaVu Sans"],
    "axes.titlesize": 9,
    "axes.labelsize": 9,
    "legend.fontsize": 8.5,
    "legend.frameon": False,
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.linewidth": 0.7,
    "xtick.major.width": 0.7,
    "ytick.major.width": 0.7,
    "axes.formatter.use_mathtext": False,
    "axes.formatter.useoffset": False,
    "axes.formatter.limits": (-5, 7),
    **dict.fromkeys(("text.color", "axes.labelcolor", "axes.edgecolor", "xtick.color", "ytick.color"), INK),
}


class Drawing:
    """A figure under way, and what its parts are."""

    def __init__(self, *, width: float, height: float):
        from matplotlib.figure import Figure

        self.figure = Figure(figsize=(width, height), layout="constrained")
        self.figure.patch.set_visible(False)
        self._marked: dict[str, tuple[str | None, list[Text], Text | None]] = {}

    def axes(self, rows: int = 1, columns: int = 1, **options: Any) -> list[Axes]:
        """Panels, row by row."""
        grid = self.figure.subplots(rows, columns, squeeze=False, **options)
        for axes in grid.flat:
            axes.patch.set_visible(False)
        return list(grid.flat)

    def mark(self, *artists: Artist, arm: str | None = None, tips: Sequence[Text] = ()) -> None:
        """Say of which arm something is, and of a row of points, what each is."""
        for artist in artists:
            self._mark(artist, (arm, list(map(_visible, tips)), None))

    def word(self, artist: Label, text: Text, *, arm: str | None = None) -> None:
        """Write a piece of text, which has both languages."""
        text = _visible(text)
        artist.set_text(text.en)
        self._mark(artist, (arm, [], text))

    def _mark(self, artist: Artist, what: tuple[str | None, list[Text], Text | None]) -> None:
        name = f"marked-{len(self._marked)}"
        artist.set_gid(name)
        self._marked[name] = what

    def legend(self, entries: Sequence[tuple[Artist, Text, str | None]]) -> None:
        """Below all panels: what is drawn, what it is called, and of which arm it is."""
        found = self.figure.legend(
            [artist for artist, _, _ in entries],
            [text.en for _, text, _ in entries],
            loc="outside lower center",
            ncols=legend_columns([text.en for _, text, _ in entries]),
            handlelength=2.4,
            columnspacing=1.2,
        )
        for artist, (_, text, arm) in zip(found.get_texts(), entries, strict=True):
            self.word(artist, text, arm=arm)
        for handle, (_, _, arm) in zip(found.legend_handles, entries, strict=True):
            if handle is not None:
                self.mark(handle, arm=arm)

    def finish(self) -> str:
        """The drawing as SVG, the same bytes every time."""
        file = io.StringIO()
        empty = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        self.figure.savefig(file, format="svg", metadata=empty, dpi=144)
        return _tidy(file.getvalue(), self._marked)


def _visible(text: Text) -> Text:
    """SVG cannot hold controls, and a drawing has a direction."""
    return Text(escape_controls(text.en), escape_controls(text.zh))


def legend_columns(names: Sequence[str]) -> int:
    """As many as fit below a drawing: a letter is about 5 points wide, a handle 38."""
    return max(1, min(3, len(names), int(72 * WIDTH / (38 + 5 * max(map(len, names), default=0)))))


@contextmanager
def drawing(*, width: float = WIDTH, height: float = 2.9) -> Iterator[Drawing]:
    """A drawing of this size in inches: on a phone it is shown at about its own size."""
    import matplotlib

    with matplotlib.rc_context(_RC):
        yield Drawing(width=width, height=height)


def _tidy(svg: str, marked: dict[str, tuple[str | None, list[Text], Text | None]]) -> str:
    """What was marked is written down at its place; names, precision and fonts that nobody needs go."""
    root = ElementTree.fromstring(svg)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
        if f"{_XLINK}href" in element.attrib:
            element.set("href", element.attrib.pop(f"{_XLINK}href"))
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in ("metadata", "style") or (child.tag == "defs" and child.find("style") is not None):
                parent.remove(child)
    kept = {found for element in root.iter() for found in _references(element)}
    for element in root.iter():
        name = element.get("id", "")
        if name in marked:
            _write_down(element, *marked[name])
        if name and name not in kept:
            del element.attrib["id"]
        for key in ("d", "x", "y", "transform", "points", "style", "width", "height"):
            if key in element.attrib:
                element.set(key, _short(element.attrib[key]))
        element.text = element.text if element.tag in ("text", "tspan") else None
        element.tail = None
    root.attrib = {
        "xmlns": "http://www.w3.org/2000/svg",
        "viewBox": root.attrib["viewBox"],
        "stroke-linejoin": "round",
        "role": "img",
    }
    return ElementTree.tostring(root, encoding="unicode")


def _references(element: ElementTree.Element) -> Iterator[str]:
    if element.get("href", "").startswith("#"):
        yield element.attrib["href"][1:]
    yield from re.findall(r"url\(#([^)]+)\)", " ".join(element.attrib.values()))


def _write_down(element: ElementTree.Element, arm: str | None, tips: list[Text], text: Text | None) -> None:
    if arm is not None:
        element.set("data-arm", arm)
    if tips:
        shapes = {inner for defs in element.iter("defs") for inner in defs.iter("path")}
        points = list(element.iter("use")) or [inner for inner in element.iter("path") if inner not in shapes]
        assert len(points) == len(tips), f"{len(points)} points, {len(tips)} tips"
        for point, tip in zip(points, tips, strict=True):
            point.set("data-tip", tip.en)
            if tip.zh != tip.en:
                point.set("data-tip-zh", tip.zh)
    if text is not None and text.zh != text.en:
        for child in element.iter("text"):
            child.set("data-zh", text.zh)


def _short(value: str) -> str:
    value = re.sub(r"font-family: [^;]*?sans-serif;?", "", value)
    value = re.sub(r"-?\d+\.\d{3,}", lambda found: f"{float(found[0]):.2f}".rstrip("0").rstrip("."), value)
    return " ".join(value.split())


def for_page(svg: str, name: str) -> str:
    """Inside a page: both languages, the page's own colors and font, and names that no other figure has."""
    root = ElementTree.fromstring(svg)
    _without_namespace(root)
    for element in root.iter("text"):
        zh = element.attrib.pop("data-zh", None)
        if zh is not None:
            for lang, text in (("en", element.text), ("zh", zh)):
                ElementTree.SubElement(element, "tspan", {"class": lang}).text = text
            element.text = None
    for element in root.iter():
        for key, value in element.attrib.items():
            if key == "id":
                element.set(key, f"{name}-{value}")
            elif key == "href" and value.startswith("#"):
                element.set(key, f"#{name}-{value[1:]}")
            elif key in ("style", "clip-path"):
                element.set(key, _named_colors(value.replace("url(#", f"url(#{name}-")))
    del root.attrib["role"]  # its points can be walked through, so it is more than an image
    return ElementTree.tostring(root, encoding="unicode")


def _named_colors(style: str) -> str:
    style = style.replace(INK, "currentColor")
    for number, color in enumerate(PALETTE):
        style = style.replace(color, f"var(--arm-{number})")
    for name, color in VERDICT_COLORS.values():
        style = style.replace(color, f"var({name})")
    return style


def for_paper(svg: str, lang: Lang) -> str:
    """As a file of its own: one language, black on white."""
    root = ElementTree.fromstring(svg)
    _without_namespace(root)
    for element in root.iter():
        zh = element.attrib.pop("data-zh", None)
        if zh is not None and lang == "zh":
            element.text = zh
        for key in ("data-arm", "data-tip", "data-tip-zh"):
            element.attrib.pop(key, None)
        if "style" in element.attrib:
            element.set("style", element.attrib["style"].replace(INK, "#000000"))
    width, height = root.attrib["viewBox"].split()[2:]
    root.attrib |= {"xmlns": "http://www.w3.org/2000/svg", "width": f"{width}pt", "height": f"{height}pt"}
    root.set("font-family", _FONTS)
    ground = ElementTree.Element("rect", {"width": "100%", "height": "100%", "fill": "#ffffff"})
    root.insert(0, ground)
    return ElementTree.tostring(root, encoding="unicode") + "\n"


def _without_namespace(root: ElementTree.Element) -> None:
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
