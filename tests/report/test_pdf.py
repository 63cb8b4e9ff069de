"""The report on paper."""

import re

import pytest

from oelm.analysis.results import read_results
from oelm.errors import ReportError
from oelm.report.render import pdf as paper
from oelm.report.render.pdf import render_pdf
from oelm.report.write import build_content

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def english(made):
    return render_pdf(made.content)


def test_it_is_a_pdf_with_pages(english):
    assert english.startswith(b"%PDF-")
    assert english.rstrip().endswith(b"%%EOF")
    assert len(english) > 50_000


def test_made_twice_it_is_the_same_and_has_no_date(made, english):
    assert render_pdf(made.content) == english
    assert not re.search(rb"CreationDate \(D:20(?!7)", english)


def test_names_are_no_code(made, english):
    """The notes hold `#panic(1)` and a dollar sign: had Typst read them as code, there would be no PDF."""
    assert "#panic(1)" in repr(made.content)
    assert english


def test_chinese_is_another_text(made, english):
    if not any(family in paper.typst.Fonts().families() for family in paper.CHINESE):
        pytest.skip("no font with Chinese characters is installed")
    chinese = render_pdf(made.content, lang="zh")
    assert chinese.startswith(b"%PDF-")
    assert chinese != english


def test_without_a_chinese_font_it_says_what_to_install(made, monkeypatch):
    monkeypatch.setattr(paper, "CHINESE", ())
    with pytest.raises(ReportError, match="fonts-noto-cjk"):
        render_pdf(made.content, lang="zh")


def test_bad_records_still_give_a_pdf(bad_runs):
    assert render_pdf(build_content(read_results(bad_runs))).startswith(b"%PDF-")
