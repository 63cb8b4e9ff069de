"""Issues: every check is explained, in both languages, and an issue knows which comparisons it is about."""

import re
from pathlib import Path

import pytest

from oelm.analysis.checks.registry import CHECKS, SEVERITIES, by_severity, format_issues, issue
from oelm.message import LANGS
from oelm.text.messages import load_messages

PAGE = Path(__file__).parents[2] / "docs" / "fair-comparison.md"
SECTIONS = dict(re.findall(r"^### ([^\n]+)\n\n(.*?)\n(?=\n##|\Z)", PAGE.read_text(encoding="utf-8"), re.M | re.S))


def test_every_check_has_its_section_and_no_other_is_there():
    assert list(SECTIONS) == list(CHECKS), "in the order of the table"


@pytest.mark.parametrize("code", CHECKS)
def test_a_section_says_how_bad_it_is_and_what_to_do(code):
    section = SECTIONS[code]
    assert re.search("|".join(f"`{severity}`" for severity in SEVERITIES), section)[0] == f"`{CHECKS[code]}`"
    assert re.search(r"^\*Do:\* ", section, re.M)
    assert len(section.splitlines()) <= 6


@pytest.mark.parametrize("code", CHECKS)
def test_every_check_has_its_sentence(code):
    assert all(load_messages()[code][lang] for lang in LANGS)


@pytest.mark.parametrize(
    ("arms", "touched"),
    [((), "ab ac bc"), (("a",), "ab ac"), (("a", "b"), "ab"), (("b", "a"), "ab"), (("b", "c"), "bc")],
)
def test_which_comparisons_an_issue_applies_to(arms, touched):
    one = issue("CLIP-INERT", arms=arms)
    assert [pair for pair in ("ab", "ac", "bc") if one.applies_to(*pair)] == touched.split()


def test_the_worst_comes_first_and_nothing_twice():
    note, bad = issue("CLIP-INERT", where="a"), issue("DIVERGED", where="a", severity="invalid", what="NaN")
    warn = issue("DIVERGED", where="b", what="NaN")
    assert by_severity([note, warn, bad, note]) == [bad, warn, note]


def test_what_is_said_of_several_places_alike_is_said_once():
    lines = format_issues(
        [issue("CLIP-INERT", where=arm) for arm in "abcde"] + [issue("CLIP-ALWAYS", where="f", share=1.0)]
    )
    assert len(lines) == 2
    assert "a, b, c (and 2 more): " in lines[0]
    assert "f: " in lines[1]
