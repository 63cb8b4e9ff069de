"""Markdown: the same report, with every name as it is and every picture beside it."""

import re
from dataclasses import replace
from html import unescape
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.report.render.markdown import escaped, figure_files, render_markdown
from oelm.report.write import write_content, write_report

pytestmark = pytest.mark.slow


def cells(line):
    return re.split(r"(?<!\\)\|", line.strip())[1:-1]


def test_tables_are_whole(made):
    """A name with a bar in it is no new column."""
    lines = render_markdown(made.content).splitlines()
    width = None
    rows = 0
    for line in lines:
        if not line.startswith("|"):
            width = None
            continue
        width = width or len(cells(line))
        assert len(cells(line)) == width, line
        rows += 1
    assert rows > 100


def test_it_says_what_the_content_says(made, hostile):
    text = render_markdown(made.content)
    assert escaped(hostile) in text
    assert "<script" not in text
    headings = [line[3:] for line in text.splitlines() if line.startswith("## ")]
    assert headings == [one.title.en for one in made.content.sections]
    chinese = render_markdown(made.content, lang="zh")
    for one in made.results.comparisons.values():
        interval = escaped(f"[{one.deciding.low:+.4f}, {one.deciding.high:+.4f}] {100 * one.deciding.level:.4g} %")
        assert interval in text
        assert interval in chinese
    assert [line[3:] for line in chinese.splitlines() if line.startswith("## ")] == [
        one.title.zh for one in made.content.sections
    ]


def test_pictures_and_records_are_there(made, tmp_path):
    for lang, name in (("en", "report.md"), ("zh", "report.zh.md")):
        (path,) = write_content(made.content, made.folder, formats=["md"], lang=lang, out=tmp_path)
        assert path.name == name
        text = path.read_text(encoding="utf-8")
        pictures = re.findall(r"!\[[^\]]*\]\(([^)]*)\)", text)
        assert len(pictures) == 13
        assert all((tmp_path / picture).is_file() for picture in pictures)
        links = set(re.findall(r"(?<!!)\[[^\]]*\]\(([^)]*record\.json)\)", text))
        assert len(links) == 25
        assert all((tmp_path / unquote(link)).is_file() for link in links)


def test_a_picture_that_is_no_longer_drawn_goes(made, tmp_path):
    write_content(made.content, made.folder, formats=["md"], lang="en", out=tmp_path)
    assert (tmp_path / "report-figures" / "tuning.svg").exists()
    untuned = replace(made.results, study=replace(made.results.study, tune=None), tuning={})
    write_report(untuned, formats=["md"], out=tmp_path)
    assert not (tmp_path / "report-figures" / "tuning.svg").exists()


def test_made_twice_it_is_the_same(made):
    assert render_markdown(made.content) == render_markdown(made.content)
    assert figure_files(made.content) == figure_files(made.content)


@given(st.text(st.characters(codec="utf-8", exclude_categories=["Cs"])))
def test_escaping_can_be_undone(text):
    shown = unescape(re.sub(r"\\([\\`*_\[\]|~#$])", r"\1", escaped(text)))
    assert shown == " ".join(text.split()) or "&" in text
    assert "\n" not in escaped(text)
    assert not re.search(r"(?<!\\)(\\\\)*[|`*_<]", escaped(text))
