"""The page: one file that needs nothing else, where all from records is text and links lead somewhere."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

from oelm.analysis.results import read_results
from oelm.message import Text
from oelm.report.render.html import TEMPLATES, both, render_html
from oelm.report.write import build_content, write_content

pytestmark = pytest.mark.slow

VOID = {"meta", "input", "br", "img", "path", "use"}


class Parsed(HTMLParser):
    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.text, self.scripts, self.raw = [], [], [], None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.raw = tag if tag in ("script", "style") else None

    def handle_endtag(self, tag):
        self.raw = None

    def handle_data(self, data):
        (self.scripts if self.raw == "script" else self.text if self.raw is None else []).append(data)


@pytest.fixture(scope="module")
def text(made):
    return render_html(made.content)


@pytest.fixture(scope="module")
def parsed(text):
    return Parsed(text)


def test_it_needs_nothing_from_anywhere(parsed, text):
    for tag, attributes in parsed.tags:
        assert tag not in ("link", "iframe", "object", "embed", "base", "img"), tag
        for name in ("src", "href", "action", "srcset"):
            value = attributes.get(name) or ""
            assert not re.match(r"(?i)\s*(https?:|//|javascript:|file:)", value), value
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)


def test_only_its_own_script_may_run(parsed):
    policy = next(a["content"] for tag, a in parsed.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy.startswith("default-src 'none'")
    (script,) = parsed.scripts
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "unsafe-eval" not in policy
    assert "unsafe-inline" not in policy.split("style-src")[0]


def test_hostile_words_are_shown_and_not_run(parsed, hostile):
    shown = "".join(parsed.text)
    # a note, a hypothesis, and a host
    assert shown.count(hostile) >= 3
    assert [tag for tag, _ in parsed.tags].count("script") == 1
    assert not any(name.startswith("on") for _, attributes in parsed.tags for name in attributes)


def test_errors_in_records_are_text_too(bad_runs, hostile):
    parsed = Parsed(render_html(build_content(read_results(bad_runs))))
    shown = "".join(parsed.text)
    assert f"the loss is NaN {hostile}" in shown
    assert "another <b>study</b>" in shown
    assert [tag for tag, _ in parsed.tags].count("script") == 1


@pytest.mark.parametrize("elsewhere", [False, True])
def test_links_lead_to_records(made, tmp_path, elsewhere):
    out = tmp_path / "a b" / "c" if elsewhere else None
    (path,) = write_content(made.content, made.folder, formats=["html"], lang="en", out=out)
    parsed = Parsed(path.read_text(encoding="utf-8"))
    hrefs = [a["href"] for tag, a in parsed.tags if tag == "a"]
    ids = {a["id"] for _, a in parsed.tags if "id" in a}
    records = {href for href in hrefs if not href.startswith("#")}
    assert len(records) == 25
    assert all((path.parent / unquote(href)).resolve().is_file() for href in records)
    assert all(href[1:] in ids for href in hrefs if href.startswith("#"))
    path.unlink()


def test_ids_are_unique(parsed):
    ids = [attributes["id"] for _, attributes in parsed.tags if "id" in attributes]
    assert len(ids) == len(set(ids))


def test_it_is_small_and_the_same_every_time(made, text):
    assert len(text.encode()) < 1_000_000
    assert render_html(made.content) == text


def test_it_opens_in_the_language_asked_for(made, text):
    assert '<html lang="en">' in text
    chinese = render_html(made.content, lang="zh")
    assert chinese.replace('<html lang="zh-CN">', '<html lang="en">') == text


def test_both():
    assert str(both(Text("a<b", "a<b"))) == "a&lt;b"
    assert str(both(Text("a<b", "甲&"))) == (
        '<span class="en" lang="en">a&lt;b</span><span class="zh" lang="zh-CN">甲&amp;</span>'
    )


@pytest.mark.parametrize("name", ["page.html.jinja", "report.md.jinja"])
def test_templates_hold_no_words_of_their_own(name):
    template = (TEMPLATES / name).read_text()
    rest = re.sub(r"\{%.*?%\}|\{\{.*?\}\}|\{#.*?#\}", " ", template, flags=re.S)
    rest = re.sub(r"<[^>]*>", " ", rest)
    assert set(re.findall(r"[A-Za-z]{2,}", rest)) <= {"oelm"}
    for attribute in ("title", "alt", "placeholder", "aria-label"):
        assert not re.search(rf'{attribute}="[^"{{]*[a-z]', template)


def test_the_paper_holds_no_words_of_its_own():
    """In Typst, words would be in brackets or be strings that are shown."""
    source = (TEMPLATES / "report.typ").read_text()
    source = re.sub(r"//.*", "", source)
    for inside in re.findall(r"\[([^\]]*)\]", source):
        assert not re.search(r"(?<![#.\w])[A-Za-z]{2,}", re.sub(r"#[\w.]+(\([^)]*\))?", "", inside)), inside


def test_the_script_shows_no_words_of_its_own():
    source = (TEMPLATES / "page.js").read_text()
    assert "innerHTML" not in source
    assert "eval" not in source.replace("evaluate", "")
    assert re.findall(r"textContent = (.*);", source) == ['[point, ...below.slice(0, 7)].map(told).join("\\n")']


def test_the_style_knows_every_color():
    style = Path(TEMPLATES / "page.css").read_text()
    for number in range(6):
        assert style.count(f"--arm-{number}:") == 3, "light, dark and print"
