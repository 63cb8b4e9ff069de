"""Queries and keys together: in the singular frames of their form, attention is what it was.

Shape suffixes: B = heads, D = rows of a head, M = width, T = tokens.
"""

import copy

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import oelm
import zoo
from oelm.errors import ModelError, TreatmentError
from oelm.heads import gauge, init
from oelm.heads.audit import audit_folder
from oelm.heads.find import find_projections
from oelm.heads.measure import orthonormality
from zoo import attentive

SHAPES = st.tuples(st.integers(1, 4), st.integers(1, 8), st.integers(8, 24), st.integers(0, 2**31))


def drawn(shape):
    """Queries, keys and their biases of some heads, with tokens to look at: float64."""
    heads, rows, width, seed = shape
    generator = torch.Generator().manual_seed(seed)

    def normal(*sizes):
        return torch.randn(*sizes, generator=generator, dtype=torch.float64)

    return (
        normal(heads, rows, width),
        normal(heads, rows, width),
        normal(heads, rows),
        normal(heads, rows),
        normal(6, width),
    )


def logits(query_BDM, key_BDM, query_bias_BD, key_bias_BD, tokens_TM):
    queries_BTD = tokens_TM @ query_BDM.mT + query_bias_BD[:, None]
    keys_BTD = tokens_TM @ key_BDM.mT + key_bias_BD[:, None]
    return queries_BTD @ keys_BTD.mT


def turned(query_BDM, key_BDM, query_bias_BD, key_bias_BD):
    """In the frames, with the spectrum kept."""
    found = init.frames(query_BDM, key_BDM)
    root_BD1 = found.spectrum.sqrt()[..., None]
    new_query, new_key = found.query * root_BD1, found.key * root_BD1
    carried = init.carry_query_bias(query_bias_BD, key_BDM, new_key)
    return new_query, new_key, carried, init.turn_bias(key_bias_BD, key_BDM, new_key)


@settings(max_examples=60, deadline=None)
@given(SHAPES)
def test_frames_keep_the_logits_and_have_orthogonal_rows(shape):
    query, key, query_bias, key_bias, tokens = drawn(shape)
    new = turned(query, key, query_bias, key_bias)
    before, after = logits(query, key, query_bias, key_bias, tokens), logits(*new, tokens)
    assert (after - before).abs().max() <= 1e-10 * before.abs().max().clamp(min=1)
    found = init.frames(query, key)
    eye = torch.eye(query.shape[1], dtype=torch.float64)
    for rows in (found.query, found.key):
        assert (rows @ rows.mT - eye).abs().max() < 1e-12
    assert torch.allclose(torch.linalg.svdvals(query.mT @ key)[:, : query.shape[1]], found.spectrum, atol=1e-10)


@settings(max_examples=40, deadline=None)
@given(SHAPES)
def test_the_key_bias_has_no_effect_and_the_query_bias_has(shape):
    query, key, query_bias, key_bias, tokens = drawn(shape)
    with_both = logits(query, key, query_bias, key_bias, tokens).softmax(-1)
    assert torch.allclose(with_both, logits(query, key, query_bias, 0 * key_bias, tokens).softmax(-1), atol=1e-12)
    assert not torch.allclose(with_both, logits(query, key, 0 * query_bias, key_bias, tokens).softmax(-1), atol=1e-6)


def turns(shape, number):
    """Invertible A (D x D) for every head of a shape."""
    heads, rows, _, seed = shape
    generator = torch.Generator().manual_seed(seed + number)
    return torch.randn(heads, rows, rows, generator=generator, dtype=torch.float64) + 3 * torch.eye(rows)


def moved_by(turn_BDD, query_BDM, key_BDM, query_bias_BD, key_bias_BD):
    """Queries by A^T and keys by A^-1: an element of the gauge group."""
    inverse_BDD = torch.linalg.inv(turn_BDD)
    biases = (turn_BDD.mT @ query_bias_BD[..., None])[..., 0], (inverse_BDD @ key_bias_BD[..., None])[..., 0]
    return turn_BDD.mT @ query_BDM, inverse_BDD @ key_BDM, *biases


@settings(max_examples=40, deadline=None)
@given(SHAPES)
def test_the_gauge_is_a_group_that_the_frames_do_not_depend_on(shape):
    *head, tokens = drawn(shape)
    first, second = turns(shape, 1), turns(shape, 2)
    if max(torch.linalg.cond(one).max() for one in (first, second, first @ second)) > 1e4:
        return
    moved = moved_by(second, *moved_by(first, *head))
    for one, other in zip(moved, moved_by(first @ second, *head), strict=True):
        assert torch.allclose(one, other, atol=1e-7), "one after the other is their product"
    back = moved_by(torch.linalg.inv(first @ second), *moved)
    assert all(torch.allclose(one, other, atol=1e-7) for one, other in zip(back, head, strict=True))
    assert torch.allclose(logits(*moved, tokens), logits(*head, tokens), atol=1e-7)
    query, key = head[:2]
    once, twice = init.frames(query, key), init.frames(moved[0], moved[1])
    assert torch.allclose(once.spectrum, twice.spectrum, atol=1e-7)
    form = lambda some: some.query.mT @ (some.spectrum[..., None] * some.key)  # noqa: E731
    assert torch.allclose(form(once), form(twice), atol=1e-7)


@pytest.mark.parametrize("family", zoo.FAMILIES, ids=lambda family: family.name)
def test_every_family_keeps_its_function_or_says_why_not(family):
    model, batch = attentive(family), family.batch()
    if not family.has_gauge:
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(TreatmentError, match=r"rotary positions|q/k norms|share \d+ key heads"):
            oelm.apply(model, init="frames", freeze="qk", inputs=batch)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        return
    model.eval()
    with torch.no_grad():
        before = model(**batch)
    maps = family.maps(model)
    applied = oelm.apply(model, init="frames", freeze="qk", inputs=batch)
    applied.audit().check()
    with torch.no_grad():
        after = model(**batch)
    # The proof looks at what attention puts out; its maps say the same, where the layers below have rounded nothing.
    new_maps = family.maps(model)
    assert (new_maps[0] - maps[0]).abs().max() <= 1e-5
    assert max((new - old).abs().max() for old, new in zip(maps, new_maps, strict=True)) <= 2e-4
    for old, new in zip(_tensors(before), _tensors(after), strict=True):
        assert (new - old).abs().max() <= 2e-4 * old.abs().max().clamp(min=1e-6)
    assert max(row.cosine for row in orthonormality(model)) < 1e-4
    applied.undo()
    flat = oelm.apply(model, init="frames", scale="match", freeze="qk", inputs=batch)
    flat.audit().check()
    norms = {(row.layer, row.head): row.norm for row in orthonormality(model) if row.role == "q"}
    assert all(row.norm == pytest.approx(norms[row.layer, row.head], rel=1e-5) for row in orthonormality(model))


def _tensors(output):
    values = output.to_tuple() if hasattr(output, "to_tuple") else (output,)
    return [value for value in values if isinstance(value, torch.Tensor)]


@pytest.mark.parametrize("name", ["falcon-old", "gptj", "gpt-neox"])
def test_what_is_not_seen_before_is_found_out_by_running_it(name, monkeypatch):
    """A model whose rotary positions nobody knows of."""
    family = next(family for family in zoo.FAMILIES if family.name == name)
    model = attentive(family)
    monkeypatch.setattr(gauge, "why_no_gauge", lambda layer, rotary: None)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(TreatmentError, match="not plain inner products"):
        oelm.apply(model, init="frames", inputs=family.batch())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "and nothing is changed"


def test_attention_that_looks_at_everything_alike_proves_nothing():
    bert = zoo.FAMILIES[0].model()
    with torch.no_grad():
        for projection in find_projections(bert):
            projection.weight_parameter.mul_(1e-4)
    with pytest.raises(ModelError, match=r"(?s)so flat.*inputs="):
        oelm.apply(bert, init="frames")


def test_a_layer_is_proved_by_itself():
    """Flat attention above attention that is not: another output of what is below proves nothing of it."""
    family = zoo.FAMILIES[0]
    bert = attentive(family)
    with torch.no_grad():
        for projection in find_projections(bert):
            if projection.layer == 1:
                projection.weight_parameter.mul_(1e-4)
                projection.bias_parameter.mul_(1e-4)
    with pytest.raises(ModelError, match=r"(?s)so flat.*layer 1"):
        oelm.apply(bert, init="frames", inputs=family.batch())


def test_what_is_saved_is_audited_against_its_base(tmp_path):
    """Without inputs: that attention is what it was needs no second proof."""
    family = next(family for family in zoo.FAMILIES if family.name == "bert-decoder")
    model = attentive(family)
    model.save_pretrained(tmp_path / "base")
    oelm.apply(model, init="frames", scale="match", freeze="qk", inputs=family.batch()).save_pretrained(tmp_path / "it")
    audit_folder(tmp_path / "it", against=tmp_path / "base").check()
    attentive(family, seed=1).save_pretrained(tmp_path / "other")
    found = audit_folder(tmp_path / "it", against=tmp_path / "other").findings
    assert {finding.code for finding in found} == {"DIFFERS-FROM-BASE"}


def test_signs_are_not_the_librarys():
    """The same form, whose singular vectors have either sign: one result."""
    query, key, *_ = drawn((3, 5, 12, 0))
    once, again = init.frames(query, key), init.frames(-query, -key)
    assert torch.allclose(once.query, again.query)
    assert torch.allclose(once.key, again.key)


def test_inputs_that_cannot_be_made_up_are_asked_for():
    family = next(family for family in zoo.FAMILIES if family.name == "torch-encoder")
    with pytest.raises(ModelError, match=r"(?s)does not say what its inputs are.*inputs="):
        oelm.apply(attentive(family), init="frames")
    family = next(family for family in zoo.FAMILIES if family.name == "bert-decoder")
    with pytest.raises(ModelError, match="did not run on the inputs"):
        oelm.apply(attentive(family), init="frames")
    for wrong in ({"words": torch.ones(1)}, {"input_ids": torch.full((1, 3), 10**6)}, [1, 2]):
        with pytest.raises(ModelError, match=r"(?s)does not run on these inputs.*inputs="):
            oelm.apply(attentive(family), init="frames", inputs=wrong)


def test_a_form_of_lower_rank():
    """Kept, it stays what it is, its query bias too; a flat spectrum would make directions up."""
    family = zoo.FAMILIES[0]
    model, batch = attentive(family), family.batch()
    with torch.no_grad():
        next(p for p in find_projections(model) if p.role == "q").weight_rows(1)[2:] = 0
        before = model.eval()(**batch)
    applied = oelm.apply(model, init="frames", freeze="qk", inputs=batch)
    applied.audit().check()
    with torch.no_grad():
        after = model(**batch)
    assert torch.allclose(_tensors(before)[0], _tensors(after)[0], atol=1e-4)
    applied.undo()
    for scale in ("match", "unit"):
        before = copy.deepcopy(model.state_dict())
        with pytest.raises(TreatmentError, match=r"(?s)rank 2 of 6.*scale 'keep'"):
            oelm.apply(model, init="frames", scale=scale, inputs=batch, keep_undo=False)
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items()), "nothing is changed"


def test_a_rank_that_only_rounding_fills():
    family = zoo.FAMILIES[0]
    model = attentive(family)
    with torch.no_grad():
        rows = next(p for p in find_projections(model) if p.role == "k").weight_rows(0)
        rows.copy_(torch.randn(6, 3, generator=torch.Generator().manual_seed(0)) @ rows[:3])
    with pytest.raises(TreatmentError, match=r"(?s)rank 3 of 6.*head 0.*scale 'keep'"):
        oelm.apply(model, init="frames", scale="match", inputs=family.batch())
    oelm.apply(model, init="frames", inputs=family.batch()).audit().check()


def test_heads_of_zeros():
    """A form that is zero stays so; `orthogonalize` and `polar` make rows of it, as of any other."""
    family = zoo.FAMILIES[0]
    for role in ("q", "k"):
        model = attentive(family).eval()
        with torch.no_grad():
            next(p for p in find_projections(model) if p.role == role).weight_rows(1).zero_()
            before = model(**family.batch())
        applied = oelm.apply(model, init="frames", freeze="qk", inputs=family.batch())
        applied.audit().check()
        with torch.no_grad():
            assert torch.allclose(_tensors(before)[0], _tensors(model(**family.batch()))[0], atol=1e-4)
        applied.undo()
        for how in ("orthogonalize", "polar"):
            applied = oelm.apply(model, init=how)
            applied.audit().check()
            applied.undo()


def test_a_flat_spectrum_and_the_way_there():
    """`unit`: every singular value is 1; `match`: their norm is kept; `blend` goes there in a straight line."""
    family = zoo.FAMILIES[0]

    def spectrum(**fields):
        model = attentive(family)
        if fields:
            oelm.apply(model, init="frames", inputs=family.batch(), **fields)
        query, key = find_projections(model)[:2]
        forms = [
            query.weight_rows(head).detach().double().mT @ key.weight_rows(head).detach().double() for head in range(4)
        ]
        return torch.stack([torch.linalg.svdvals(form)[: query.head_dim] for form in forms])

    old, unit, match, half = (
        spectrum(),
        spectrum(scale="unit"),
        spectrum(scale="match"),
        spectrum(scale="match", blend=0.5),
    )
    assert torch.allclose(unit, torch.ones_like(unit), atol=1e-5)
    assert torch.allclose(match.norm(dim=-1), old.norm(dim=-1), rtol=1e-5)
    assert torch.allclose(match, match[:, :1].expand_as(match), rtol=1e-4)
    assert torch.allclose(half, (old + match) / 2, rtol=1e-4)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_proves_nothing(dtype):
    family = zoo.FAMILIES[0]
    with pytest.raises(TreatmentError, match=r"(?s)float16.*load the model in float32"):
        oelm.apply(attentive(family).to(dtype), init="frames", inputs=family.batch())
