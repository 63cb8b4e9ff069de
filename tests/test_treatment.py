"""Treatment: every field and combination that makes sense works; one that does not is refused with the reason."""

import contextlib
import dataclasses
import inspect
import itertools
import pydoc
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

import oelm
from oelm.treatment import select_layers

INITS = [
    "keep",
    "orthogonalize",
    "orthogonal",
    "polar",
    "orthogonalize-global",
    "orthogonal-global",
    "identity",
    "gaussian",
]


def test_defaults_are_the_untreated_model():
    treatment = oelm.Treatment()
    assert (treatment.init, treatment.scale, treatment.freeze, treatment.layers) == ("keep", None, "none", "all")
    assert oelm.Treatment(init="orthogonal").scale == "unit"


@pytest.mark.parametrize(
    ("init", "scale", "freeze", "bias"),
    list(itertools.product(INITS, [None, "unit", "match", 0.02], ["none", "q", "k", "qk"], ["freeze", "train"])),
)
def test_combinations(init, scale, freeze, bias):
    sensible = (
        (scale is None or init != "keep")
        and (not isinstance(scale, float) or init == "gaussian")
        and (bias == "freeze" or freeze != "none")
    )
    if sensible:
        treatment = oelm.Treatment(init=init, scale=scale, freeze=freeze, bias=bias)
        assert treatment.frozen_roles == tuple(role for role in ("q", "k") if role in freeze)
        assert oelm.Treatment.from_dict(treatment.to_dict()) == treatment
    else:
        with pytest.raises(oelm.TreatmentError, match=r"needs another init|a number is the entry std|freeze is 'none'"):
            oelm.Treatment(init=init, scale=scale, freeze=freeze, bias=bias)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"init": "orthogonl"}, "did you mean 'orthogonal'"),
        ({"freeze": "kq"}, "'kq' is not known"),
        ({"freeze": None}, "None is not known"),
        ({"frezee": "qk"}, "did you mean 'freeze'"),
        ({"init": ["keep"]}, "is not known"),
        ({"init": "gaussian", "scale": "mach"}, "did you mean 'match'"),
        ({"init": "gaussian", "scale": -1}, "positive"),
        ({"init": "gaussian", "scale": float("nan")}, "positive"),
        ({"init": "gaussian", "scale": True}, "'unit', 'match' or a number"),
        ({"layers": "0-"}, "invalid layers"),
        ({"layers": "5-2"}, "backwards"),
        ({"layers": "first:1.5"}, "at most 1"),
        ({"layers": "first:-1"}, "invalid layers"),
        ({"layers": [0, 0]}, "twice"),
        ({"layers": [-1]}, "invalid layers"),
        ({"layers": [True]}, "invalid layers"),
        ({"layers": 3}, "invalid layers"),
        ({"freeze": "qk", "unfreeze": {"start": 0.9, "end": 0.5}}, "must not come after"),
        ({"freeze": "qk", "unfreeze": {"start": 0.1}}, "'unfreeze.end' is missing"),
        ({"freeze": "qk", "unfreeze": {"start": 0, "end": 2}}, "from 0 to 1"),
        ({"freeze": "qk", "unfreeze": {"start": 0, "end": 1, "order": "topdown"}}, "did you mean 'top-down'"),
        ({"freeze": "qk", "unfreeze": {"strat": 0, "end": 1}}, "did you mean 'start'"),
        ({"freeze": "qk", "unfreeze": 0.5}, "expected a mapping"),
        ({"unfreeze": {"start": 0, "end": 1}}, "freeze is 'none'"),
    ],
)
def test_refused_with_the_reason(fields, says):
    with pytest.raises(oelm.TreatmentError, match=says):
        oelm.Treatment.from_dict(fields)


@pytest.mark.parametrize(
    ("layers", "chosen"),
    [
        ("all", [0, 1, 2, 3, 4, 5]),
        ("0-2", [0, 1, 2]),
        ("5-5", [5]),
        ([4, 0], [0, 4]),
        ("first:0.5", [0, 1, 2]),
        ("last:0.25", [4, 5]),  # one and a half layers are two
        ("first:0.08", None),
        ("first:.1", [0]),
        ("last:1", [0, 1, 2, 3, 4, 5]),
        ("last:0", None),
        ("3-6", None),
        ([], None),
        ([6], None),
    ],
)
def test_layers(layers, chosen):
    if chosen is None:
        with pytest.raises(oelm.TreatmentError, match=r"selects none|asks for layer"):
            select_layers(layers, 6)
    else:
        assert select_layers(layers, 6) == chosen


@given(st.integers(1, 200), st.decimals(0, 1, places=3))
def test_first_and_last_are_mirrors(number, share):
    try:
        first = select_layers(f"first:{share}", number)
    except oelm.TreatmentError:
        assert Fraction(share) * number < Fraction(1, 2)
        return
    last = select_layers(f"last:{share}", number)
    assert [number - 1 - layer for layer in reversed(last)] == first
    assert abs(len(first) - Fraction(share) * number) <= Fraction(1, 2)


@given(st.one_of(st.text(), st.lists(st.integers()), st.none(), st.floats(), st.dictionaries(st.text(), st.integers())))
def test_whatever_is_said_of_layers_there_is_one_kind_of_error(layers):
    with contextlib.suppress(oelm.TreatmentError):
        assert select_layers(layers, 12)


def test_schedule():
    schedule = oelm.Unfreeze(start=0.5, end=0.9)
    layers = [0, 1, 2, 3, 4]
    assert schedule.unfrozen_layers(layers, 0.49) == []
    assert schedule.unfrozen_layers(layers, 0.5) == [4]
    assert schedule.unfrozen_layers(layers, 0.6) == [3, 4]
    assert schedule.unfrozen_layers(layers, 0.89) == [1, 2, 3, 4]
    assert schedule.unfrozen_layers(layers, 0.9) == layers
    assert oelm.Unfreeze(start=0.5, end=0.5, order="bottom-up").unfrozen_layers(layers, 0.5) == layers
    assert oelm.Unfreeze(start=0, end=1, order="bottom-up").unfrozen_layers(layers, 0.3) == [0, 1]


@given(st.integers(1, 40), st.floats(0, 1), st.floats(0, 1), st.lists(st.floats(0, 1), min_size=2))
def test_a_schedule_only_ever_gives_more_back(number, one, other, moments):
    schedule = oelm.Unfreeze(start=min(one, other), end=max(one, other))
    unfrozen = [set(schedule.unfrozen_layers(range(number), moment)) for moment in sorted(moments)]
    assert all(a <= b for a, b in itertools.pairwise(unfrozen))
    assert len(schedule.unfrozen_layers(range(number), 1.0)) == number


def test_seeds_are_pinned():
    """A change here would change every reservoir ever drawn."""
    assert oelm.seed_for(0, "qk", 0, "q", 0) == 3768225354507656159
    assert oelm.seed_for(0, "a", "b") != oelm.seed_for(0, "ab")
    assert len({oelm.seed_for(seed, "qk", layer) for seed in range(20) for layer in range(20)}) == 400


def test_help_shows_every_keyword_of_apply_with_its_default():
    shown = inspect.signature(oelm.apply).parameters
    assert list(shown)[:4] == ["model", "treatment", "seed", "inputs"]
    for field in dataclasses.fields(oelm.Treatment):
        assert shown[field.name].default == field.default
        assert shown[field.name].kind is inspect.Parameter.KEYWORD_ONLY
    text = pydoc.render_doc(oelm.apply, renderer=pydoc.plaintext)
    assert "**fields" not in text
    for name in list(shown)[1:]:
        assert f"    {name}: " in text, "the docstring says what it is"
