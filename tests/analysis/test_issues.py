"""Issues: every check is explained, in both languages, and an issue knows which comparisons it is about."""

import itertools
import re
from pathlib import Path

import pytest

from oelm.analysis.checks.registry import CHECKS, SEVERITIES, by_severity, format_issues, issue
from oelm.message import LANGS, Message
from oelm.text.messages import load_messages, translate

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
    inert = [issue("CLIP-INERT", where=arm, arms=(arm,)) for arm in "abcde"]
    issues = by_severity([*inert, issue("CLIP-ALWAYS", where="f", arms=("f",), share=1.0)])
    lines = format_issues(issues)
    assert len(lines) == 2
    assert issues[0].arms == ("a", "b", "c", "d", "e")
    assert issues[0].applies_to("c", "f")
    assert not issues[0].applies_to("f", "g")
    assert "a, b, c (and 2 more): " in lines[0]
    assert "f: " in lines[1]


def test_one_cause_has_all_its_numbers_and_arms():
    found = [
        issue("FINAL-BELOW-BEST", where=f"a/seed-{n}", arms=("a",), metric="accuracy", best=0.5 + n / 8, last=0.4)
        for n in range(3)
    ]
    (one,) = by_severity(found)
    assert one.places == ("a/seed-0", "a/seed-1", "a/seed-2")
    assert "accuracy 0.4000 on the validation split after 0.5000 to 0.7500 on the way" in str(one.message)
    assert "0.5000 至 0.7500" in translate(one.message).zh
    assert one.to_dict()["values"]["best"] == [0.5, 0.625, 0.75]


def test_a_pair_of_one_cause_is_no_other_pair():
    """Two pairs are one issue, and it is still about these two comparisons alone."""
    pairs = [("a", "b"), ("c", "d")]
    found = [issue("PRETRAINED-ERASED", where="/".join(p), arms=p, keeps=p[0], loses=p[1]) for p in pairs]
    (one,) = by_severity(found)
    assert "kept by a, c and erased by b, d" in str(one.message)
    touched = [(x, y) for x, y in itertools.combinations("abcd", 2) if one.applies_to(x, y)]
    assert touched == pairs


def test_other_causes_stay_apart():
    what = Message("unpaired-weights")
    found = [
        issue("UNPAIRED", where=arm, arms=(arm, "base"), seeds=seeds, what=what, against="base")
        for arm, seeds in (("a", (0,)), ("b", (0, 1)), ("c", (0,)))
    ]
    assert [one.arms for one in by_severity(found)] == [("a", "base", "c"), ("b", "base")]
    severe = [issue("DIVERGED", where=arm, severity=how, what="NaN") for arm, how in (("a", "invalid"), ("b", "warn"))]
    assert len(by_severity(severe)) == 2
