"""Hypotheses in a study file: read as they are written, and refused with a reason."""

import contextlib
import copy
import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from made_runs import STUDY, study_of
from oelm.errors import StudyError
from oelm.study.hypothesis import Estimand, Hypothesis, parse_estimand
from oelm.study.load import study_from_dict

GOOD = {
    "statement": "It costs nothing",
    "estimand": "accuracy(oelm-freeze) - accuracy(baseline)",
    "rule": "above",
    "margin": -0.01,
}
NAMES = st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,20}", fullmatch=True)


def study_with(**changes):
    return study_of(hypotheses={"H1": {**GOOD, **changes}})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("accuracy(a)", Estimand(metric="accuracy", arm="a")),
        ("accuracy(a) - accuracy(b)", Estimand(metric="accuracy", arm="a", against="b", form="difference")),
        ("  loss( a-b )/loss(c-d)  ", Estimand(metric="loss", arm="a-b", against="c-d", form="ratio")),
        ("loss(v1.5)-loss(a - b)", Estimand(metric="loss", arm="v1.5", against="a - b", form="difference")),
    ],
)
def test_an_estimand_is_read(text, expected):
    assert parse_estimand(text) == expected


@pytest.mark.parametrize(
    "text",
    ["", "accuracy", "accuracy()", "accuracy(a) + accuracy(b)", "accuracy(a) - accuracy(b) - accuracy(c)",
     "accuracy(a) -", "accuracy(a) accuracy(b)", "accuracy((a))", "1 - accuracy(a)", "accuracy(a) > 0", "x y(a)"],
)  # fmt: skip
def test_what_is_no_estimand(text):
    with pytest.raises(ValueError, match="is not of the form"):
        parse_estimand(text)


def test_two_measurements_are_not_compared():
    with pytest.raises(ValueError, match="compares accuracy with loss"):
        parse_estimand("accuracy(a) - loss(b)")


@settings(max_examples=50, deadline=None)
@given(metric=st.from_regex(r"[a-z_]{1,10}", fullmatch=True), arm=NAMES, against=st.none() | NAMES, ratio=st.booleans())
def test_an_estimand_is_read_as_it_is_shown(metric, arm, against, ratio):
    form = "value" if against is None else "ratio" if ratio else "difference"
    one = Estimand(metric=metric, arm=arm, against=against, form=form)
    assert parse_estimand(str(one)) == one


@pytest.mark.parametrize(
    ("rule", "estimand", "shown"),
    [
        ("below", "accuracy(a)", "accuracy(a) < 0.1"),
        ("above", "loss(a) - loss(b)", "loss(a) - loss(b) > 0.1"),
        ("within", "loss(a) - loss(b)", "|loss(a) - loss(b)| < 0.1"),
        ("within", "loss(a) / loss(b)", "|loss(a) / loss(b) - 1| < 0.1"),
    ],
)
def test_a_rule_in_symbols(rule, estimand, shown):
    one = Hypothesis(name="H", statement="s", estimand=parse_estimand(estimand), rule=rule, margin=0.1)
    assert str(one) == shown


def test_hypotheses_come_back_from_plain_data():
    study = study_of(hypotheses={"H1": GOOD, "H2": {**GOOD, "rule": "within", "margin": 1}})
    assert [one.name for one in study.hypotheses] == ["H1", "H2"]
    assert study_from_dict(study.to_dict()) == study
    assert study_of().hypotheses == ()
    assert study_of(hypotheses=None).hypotheses == ()
    assert study_of(hypotheses={}).hypotheses == ()


@pytest.mark.parametrize(
    ("changes", "place", "told"),
    [
        ({"estimand": "accuracy(oelm-freze)"}, "estimand", "unknown arm 'oelm-freze'; did you mean 'oelm-freeze'?"),
        ({"estimand": "accuracy(oelm-freeze) - accuracy(oelm-freeze)"}, "estimand", "with itself"),
        ({"estimand": "acuracy(oelm-freeze)"}, "estimand", "did you mean 'accuracy'?"),
        ({"estimand": "perplexity(oelm-freeze)"}, "estimand", "is not measured"),
        (
            {"estimand": "perplexity(oelm-freeze) - perplexity(baseline)"},
            "estimand",
            "compared by their ratio: perplexity(oelm-freeze) / perplexity(baseline)",
        ),
        ({"estimand": None}, "estimand", "is not of the form"),
        ({"estimand": ["accuracy(oelm-freeze)"]}, "estimand", "is not of the form"),
        ({"rule": "over"}, "rule", "one of below, above, within"),
        ({"rule": ["above"]}, "rule", "one of below, above, within"),
        ({"rule": None}, "rule", "one of below, above, within"),
        ({"rule": "within", "estimand": "accuracy(oelm-freeze)", "margin": 0.1}, "rule", "needs two arms"),
        ({"rule": "within", "margin": 0}, "margin", "greater than 0"),
        (
            {"estimand": "accuracy(oelm-freeze) / accuracy(baseline)", "rule": "within", "margin": 5},
            "margin",
            "0.05 is 5 %, got 5",
        ),
        ({"rule": "within", "margin": -0.1}, "margin", "greater than 0"),
        ({"margin": None}, "margin", "must be a number"),
        ({"margin": True}, "margin", "must be a number"),
        ({"margin": "0.1"}, "margin", "must be a number"),
        ({"margin": math.nan}, "margin", "must be a number"),
        ({"margin": math.inf}, "margin", "must be a number"),
        ({"margin": 10**400}, "margin", "must be a number"),
        ({"statement": ""}, "statement", "must be a sentence"),
        ({"statement": 7}, "statement", "must be a sentence"),
        ({"marign": 1}, "marign", "did you mean 'margin'?"),
    ],
)
def test_a_hypothesis_that_makes_no_sense(changes, place, told):
    with pytest.raises(StudyError) as error:
        study_with(**changes)
    line = next(line for line in str(error.value).splitlines() if f"hypotheses.H1.{place}" in line)
    assert told in line


@pytest.mark.parametrize("raw", ["text", ["H1"], {"H1": "text"}, {"H1": None}, {"H1": []}, 7])
def test_hypotheses_of_another_form(raw):
    with pytest.raises(StudyError, match=r"hypotheses.*must be a mapping"):
        study_of(hypotheses=raw)


def test_all_problems_are_said_at_once():
    bad = {"statement": "", "estimand": "nothing", "rule": "over", "margin": "x"}
    with pytest.raises(StudyError) as error:
        study_of(hypotheses={"H1": bad, "H2": bad}, seeds=[])
    assert str(error.value).count("hypotheses.H") == 8
    assert "seeds" in str(error.value)


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
ROWS = st.fixed_dictionaries(dict.fromkeys(GOOD, PLAIN))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(raw=PLAIN | st.dictionaries(st.sampled_from(["H1", "H2"]), PLAIN | ROWS))
def test_anything_may_stand_where_hypotheses_do(raw):
    data = copy.deepcopy(STUDY)
    with contextlib.suppress(StudyError):
        study = study_from_dict({**data, "hypotheses": raw})
        assert study_from_dict(study.to_dict()) == study


def test_measurements_that_every_record_has_may_be_asked_about():
    for metric in ("trainable", "frozen", "total", "step_seconds", "training_seconds", "peak_memory"):
        study_with(estimand=f"{metric}(oelm-freeze) / {metric}(baseline)")
