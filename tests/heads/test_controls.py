"""The controls: no queries and keys at all, part of the way, orthonormal without being frozen, and carried biases."""

import copy

import pytest
import torch

import oelm
import zoo
from oelm.errors import ModelError, TreatmentError
from oelm.heads.audit import audit_folder
from oelm.heads.find import find_projections
from oelm.heads.measure import orthonormality
from oelm.treatment import Treatment

BERT, GPT2 = (next(family for family in zoo.FAMILIES if family.name == name) for name in ("bert", "gpt2"))
every_family = pytest.mark.parametrize("family", zoo.FAMILIES, ids=lambda family: family.name)


def weights(model):
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def trained(family, model, applied, steps=3):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(steps):
        optimizer.zero_grad()
        family.loss(model).backward()
        optimizer.step()
        applied.retract()
    return optimizer


@every_family
def test_zero_is_uniform_attention_and_nothing_else_moves(family):
    model = family.model()
    before = weights(model)
    oelm.apply(model, init="zero", freeze="qk").undo()
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    applied = oelm.apply(model, init="zero", freeze="qk")
    applied.audit(optimizer=trained(family, model, applied, steps=1)).check()
    for projection in find_projections(model):
        for head in range(projection.num_heads):
            assert not projection.weight_rows(head).any()
            assert not projection.has_bias or not projection.bias_rows(head).any()


def test_the_norms_of_zero_queries_and_keys_need_not_move():
    """Nothing reaches them but weight decay, which norms often do not have."""
    family = next(family for family in zoo.FAMILIES if family.name == "oelm-gpt-qk-norm")
    model = family.model()
    applied = oelm.apply(model, init="zero", freeze="qk")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0)
    for _ in range(2):
        family.loss(model).backward()
        optimizer.step()
    applied.audit(optimizer=optimizer).check()


def test_bert_looks_at_everything_alike_without_queries_and_keys():
    model = BERT.model().eval()
    oelm.apply(model, init="zero", freeze="qk")
    with torch.no_grad():
        for layer in model(**BERT.batch(), output_attentions=True).attentions:
            assert torch.allclose(layer.amax(-1), layer.masked_fill(layer == 0, 1).amin(-1), atol=1e-6)


def test_blend_is_a_straight_line():
    rows = {}
    for blend in (0, 0.25, 1):
        model = BERT.model()
        oelm.apply(model, init="orthogonalize", blend=blend, freeze="qk").audit().check()
        rows[blend] = find_projections(model)[0].weight_rows(2).detach()
    assert torch.allclose(rows[0], find_projections(BERT.model())[0].weight_rows(2), atol=1e-7)
    assert torch.allclose(rows[0.25], 0.75 * rows[0] + 0.25 * rows[1], atol=1e-6)


@pytest.mark.parametrize("scale", ["unit", "match"])
@pytest.mark.parametrize("family", [BERT, GPT2], ids=lambda family: family.name)
def test_rows_that_learn_and_stay_orthonormal(family, scale):
    model = family.model()
    applied = oelm.apply(model, init="orthogonalize", scale=scale, keep_orthonormal=True)
    start = find_projections(model)[0].weight_rows(0).detach().clone()
    norms = [row.norm for row in orthonormality(model)]
    optimizer = trained(family, model, applied)
    applied.audit(optimizer=optimizer).check()
    assert not torch.allclose(find_projections(model)[0].weight_rows(0), start, atol=1e-3), "it learns"
    measured = orthonormality(model)
    assert max(row.cosine for row in measured) < 1e-5
    assert [row.norm for row in measured] == pytest.approx(norms, rel=1e-5)
    with torch.no_grad():
        find_projections(model)[0].weight_rows(0)[0] *= 1.5
    assert "NOT-ORTHONORMAL" in str(applied.audit(optimizer=optimizer)), "a step that was not put back is found"


def test_a_saved_model_goes_on_at_its_length(tmp_path):
    model = BERT.model()
    applied = oelm.apply(model, init="orthogonalize", scale="match", keep_orthonormal=True)
    trained(BERT, model, applied)
    applied.save_pretrained(tmp_path)
    again, loaded = oelm.from_pretrained(tmp_path, type(model))
    before = copy.deepcopy(again.state_dict())
    loaded.retract()
    for name, tensor in again.state_dict().items():
        assert torch.allclose(tensor, before[name], atol=1e-6), name
    loaded.audit().check()
    # Rows are promised whatever was trained since, also of the folder.
    assert audit_folder(tmp_path).check().examined["geometry"].startswith("16 heads in 2 layers, orthonormal")
    with torch.no_grad():
        find_projections(again)[0].weight_rows(0)[0] += find_projections(again)[0].weight_rows(0)[1]
    again.save_pretrained(tmp_path)
    assert "NOT-ORTHONORMAL" in {finding.code for finding in audit_folder(tmp_path).findings}


def test_weights_that_do_not_learn_are_not_kept_orthonormal():
    model = BERT.model()
    find_projections(model)[0].weight_parameter.requires_grad_(False)
    with pytest.raises(TreatmentError, match=r"(?s)weights that are trainable.*omit keep_orthonormal"):
        oelm.apply(model, init="orthogonalize", keep_orthonormal=True)


@pytest.mark.parametrize("init", ["orthogonalize", "polar"])
@pytest.mark.parametrize("scale", ["unit", "match"])
def test_the_query_bias_is_carried(init, scale):
    """What it adds to the logits, `W_k^T b_q`, is what it was; left where it was, it is not."""

    def seen(**fields):
        model = BERT.model()
        with torch.no_grad():
            for projection in find_projections(model):
                for head in range(projection.num_heads):
                    projection.bias_rows(head).normal_(generator=torch.Generator().manual_seed(head))
        if fields:
            oelm.apply(model, init=init, scale=scale, **fields).audit().check()
        query, key = find_projections(model)[:2]
        return torch.stack([key.weight_rows(head).mT @ query.bias_rows(head) for head in range(4)]).detach()

    assert torch.allclose(seen(freeze="qk"), seen(), atol=1e-5)
    assert not torch.allclose(seen(freeze="qk", carry_bias=False), seen(), atol=1e-3)


def test_a_bias_is_left_alone_where_positions_come_between():
    family = next(family for family in zoo.FAMILIES if family.name == "qwen2")
    model = family.model()
    before = [p.bias_rows(0).detach().clone() for p in find_projections(model)]
    oelm.apply(model, init="orthogonalize", freeze="qk")
    assert all(torch.equal(p.bias_rows(0), old) for p, old in zip(find_projections(model), before, strict=True))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"init": "zero"}, "needs freeze 'qk'"),
        ({"init": "zero", "freeze": "qk", "bias": "train"}, "needs freeze 'qk'"),
        ({"init": "zero", "scale": "unit", "freeze": "qk"}, "'zero' has no length"),
        ({"init": "orthogonalize", "scale": "keep"}, "init 'frames'"),
        ({"init": "frames", "scale": 0.02}, "'frames' rows have a norm"),
        ({"init": "frames", "blend": 0.5}, "blend needs another scale"),
        ({"blend": 0.5}, "blend needs another init"),
        ({"init": "polar", "blend": 1.5}, "from 0 to 1"),
        ({"init": "polar", "blend": True}, "from 0 to 1"),
        ({"init": "gaussian", "keep_orthonormal": True}, "orthonormal rows that are trainable"),
        ({"init": "orthogonalize", "keep_orthonormal": True, "freeze": "qk"}, "orthonormal rows that are trainable"),
        ({"init": "orthogonalize", "keep_orthonormal": True, "blend": 0.5}, "orthonormal rows that are trainable"),
        ({"init": "orthogonalize", "keep_orthonormal": 1}, "must be true or false"),
        ({"init": "gaussian", "carry_bias": False}, "carries none"),
    ],
)
def test_what_does_not_go_together(fields, message):
    with pytest.raises(TreatmentError, match=message):
        Treatment(**fields)


def test_an_undone_treatment_is_not_put_back():
    model = BERT.model()
    applied = oelm.apply(model, init="orthogonalize", keep_orthonormal=True)
    applied.undo()
    with pytest.raises(ModelError, match="undone"):
        applied.retract()
