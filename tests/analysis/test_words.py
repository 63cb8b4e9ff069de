"""The tables of sentences: complete in both languages, and used."""

import json
import math
import re
import string
from pathlib import Path
from typing import get_args

import pytest

import oelm.text.messages
from oelm.analysis.checks.registry import CHECKS, SEVERITIES
from oelm.analysis.hypotheses import HypothesisStatus
from oelm.analysis.verdicts import Verdict
from oelm.message import Message, Text, verbatim
from oelm.runs.layout import Status
from oelm.text.messages import join_texts, load_messages, say, translate, untranslated

SOURCE = Path(oelm.text.messages.__file__).parents[1]
CODE = "\n".join(path.read_text(encoding="utf-8") for path in SOURCE.rglob("*.py"))
TEMPLATES = "\n".join(
    path.read_text(encoding="utf-8")
    for kind in ("*.html", "*.typ", "*.jinja", "*.j2", "*.js")
    for path in SOURCE.rglob(kind)
)
KEYS = sorted(load_messages())
# Keys that are put together: what may stand in the place of the braces.
EXPANDED = {
    "verdict-{}": get_args(Verdict),
    "hypothesis-{}": get_args(HypothesisStatus),
    "status-{}": get_args(Status),
    "word-{}": (*get_args(Verdict), *get_args(HypothesisStatus), *SEVERITIES),
    "edge-{}": ("lowest", "highest"),
    "unpaired-{}": ("weights", "batches"),
    "better-{}": ("higher", "lower"),
}


def fields(template):
    """{name: format} of a template; it must be one that can be filled in."""
    return sorted((name, form) for _, name, form, _ in string.Formatter().parse(template) if name is not None)


@pytest.mark.parametrize("key", KEYS)
def test_every_sentence_says_the_same_in_both_languages(key):
    row = load_messages()[key]
    assert row.en
    assert row.zh
    assert fields(row.en) == fields(row.zh), "the same values in the same form"
    assert all(name.isidentifier() for name, _ in fields(row.en))


JOINTS = ("list-comma",)
"""What stands between others."""


@pytest.mark.parametrize("lang", ["en", "zh"])
def test_a_space_at_the_end_of_a_sentence_is_seen_by_nobody(lang):
    """At its beginning one is meant where the sentence is put behind another."""
    for key in KEYS:
        text = load_messages()[key][lang]
        assert text == text.rstrip() or key in JOINTS, key
        assert text == text.lstrip() or load_messages()[key].en.endswith("."), key


def test_chinese_is_chinese():
    """A row that was copied and forgotten has no Chinese in it."""
    for key in KEYS:
        en, zh = (re.sub(r"\{[^}]*\}", "", load_messages()[key][lang]) for lang in ("en", "zh"))
        if len(re.findall(r"[A-Za-z]{2,}", en)) > 2:
            assert re.search(r"[\u4e00-\u9fff]", zh), key
        assert not re.search(r"[\u4e00-\u9fff]", en) or key == "page-other-language", key


def said():
    """Every key that the code says by name, and every form of key."""
    names = set(re.findall(r"\b(?:say|Message)\(\s*\"([A-Za-z0-9-]+)\"", CODE))
    names |= set(re.findall(r"\b(?:issue|few)\([^()]*key=\"([A-Za-z0-9-]+)\"", CODE))
    forms = set(re.findall(r"\b(?:say|Message)\(\s*f\"([^\"]+)\"", CODE)) | set(
        re.findall(r"(?:\bkey =|_key\([^()]*\) or) f\"([^\"]+)\"", CODE)
    )
    return names, {re.sub(r"\{[^}]*\}", "{}", form) for form in forms}


def test_no_sentence_is_said_that_is_not_there():
    names, forms = said()
    assert len(names) > 40
    missing = {name for name in names if name not in load_messages()}
    assert not missing
    for form in forms:
        values = EXPANDED.get(form)
        if values is None:
            assert any(re.fullmatch(form.replace("{}", ".+"), key) for key in KEYS), form
        else:
            assert [form.format(value) for value in values if form.format(value) not in load_messages()] == []
    codes = set(re.findall(r"\bissue\(\s*\"([A-Z0-9-]+)\"", CODE))
    assert len(codes) > 20
    assert codes <= CHECKS.keys()


def test_no_sentence_is_there_that_is_not_said():
    names, forms = said()
    unused = []
    for key in KEYS:
        put_together = any(re.fullmatch(form.replace("{}", ".+"), key) for form in forms)
        if key not in names and key not in CHECKS and not put_together and not quoted(key):
            unused.append(key)
    assert unused == []


def quoted(key):
    return f'"{key}"' in CODE or f'"{key}"' in TEMPLATES or f"'{key}'" in TEMPLATES


def test_every_check_has_a_sentence():
    without = {code for code in CHECKS if code not in load_messages()}
    assert without == set()


def test_values_are_taken_in_each_language():
    inner = Text("inner", "里")
    assert say("FEW-SEEDS", n=3, smallest=0.5, about=inner).zh.endswith("里")
    assert say("FEW-SEEDS", n=3, smallest=0.5, about=inner)["en"].endswith("inner")
    assert join_texts([Text("a.", "甲。"), Text("b.", "乙。")]) == Text("a. b.", "甲。乙。")
    assert untranslated("x")["zh"] == "x"
    with pytest.raises(KeyError):
        say("no such sentence")
    with pytest.raises(KeyError):
        say("FEW-SEEDS")


def test_a_message_is_data_until_it_is_printed():
    inner = Message("status-done")
    one = Message("INCOMPLETE", seeds=(0, 1), number=5, why=inner)
    assert one.to_dict() == {
        "key": "INCOMPLETE",
        "values": {"seeds": [0, 1], "number": 5, "why": {"key": "status-done", "values": {}}},
    }
    assert str(one) == "no result of seed 0, 1 (of 5): done"
    assert translate(one).zh == "缺少随机种子 0, 1 的结果\uff08共 5 个\uff09\uff1a完成"
    assert one == Message("INCOMPLETE", seeds=(0, 1), number=5, why=Message("status-done"))
    assert len({one, Message("INCOMPLETE", seeds=(0, 1), number=5, why=inner)}) == 1


@pytest.mark.parametrize(
    ("value", "english", "plain"),
    [
        (1e-4, "0.0001", 1e-4),
        (0.1 + 0.2, "0.3", 0.1 + 0.2),
        (math.nan, "\u2013", None),
        (-math.inf, "-\u221e", None),
        ((1e-5, 2), "1e-05, 2", [1e-5, 2]),
        (tuple(verbatim(name) for name in "abcdefgh"), "a; b; c; d; e; f and 2 more", ...),
        (Text("two", "二"), "two", {"en": "two", "zh": "二"}),
        (None, "None", None),
        ("{x}", "{x}", "{x}"),
    ],
)
def test_every_kind_of_value(value, english, plain):
    one = Message("verbatim", text=value)
    assert str(one) == english
    assert plain is ... or one.to_dict()["values"]["text"] == plain
    json.dumps(one.to_dict(), allow_nan=False)


def test_no_key_stands_twice_in_a_table():
    """YAML takes the last of them without a word."""
    for path in sorted((SOURCE / "text").glob("*.yaml")):
        keys = re.findall(r"^([\w-]+):", path.read_text(encoding="utf-8"), re.MULTILINE)
        assert len(keys) == len(set(keys)), path.name
