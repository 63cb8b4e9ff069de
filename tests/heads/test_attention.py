"""What is measured of attention is what the models' own attention maps show, and measuring leaves no trace."""

import math

import pytest
import torch

import oelm
from oelm.heads.attention import measure_heads
from oelm.heads.find import find_projections
from zoo import FAMILIES, TOKENS, VOCAB

BY_NAME = {family.name: family for family in FAMILIES}
# Their attention is softmax of plain logits: nothing is added for positions, nothing rotated.
PLAIN = ["bert", "bert-decoder", "roberta", "electra", "distilbert", "opt", "vit", "bart", "clip-text"]
PLAIN += ["oelm-gpt", "oelm-gpt-classifier", "gpt2", "gpt2-cross", "torch-encoder"]
WITHOUT = {"albert", "deberta-v2"}
MEASURED = [family for family in FAMILIES if family.name not in WITHOUT]


def sharpened(family):
    """A model with attention that is far from even; small weights would make all of it alike."""
    model = family.model()
    with torch.no_grad():
        for projection in find_projections(model):
            for head in range(projection.num_heads):
                projection.weight_rows(head).mul_(2 if family.name in ("torch-encoder", "clip-text") else 12)
    return model


def own_entropy(maps, real=None):
    """(heads' mean over the real queries) of a model's own map."""
    entropy = torch.special.entr(maps.float()).sum(-1).mean(1)  # (batch, queries)
    return (entropy if real is None else entropy[real]).mean().item()


@pytest.mark.parametrize("name", PLAIN)
def test_entropy_is_that_of_the_models_own_maps(name):
    family = BY_NAME[name]
    model = sharpened(family)
    measured = measure_heads(model, family.batch())
    with torch.no_grad():
        own = [own_entropy(layer_map) for layer_map in family.maps(model)]
    assert measured.entropy == pytest.approx(own, rel=1e-4)
    even = measure_heads(family.model(), family.batch()).entropy
    assert min(own) < min(even) - 0.01, "attention is uneven enough to tell a mistake"


def test_normalized_queries_and_keys_are_measured_as_they_attend():
    """Their length has no part in it: that is what norms are for."""
    family = BY_NAME["oelm-gpt-qk-norm"]
    for model in (family.model(), sharpened(family)):
        with torch.no_grad():
            for block in model.model.blocks:
                block.attention.q_norm.weight.mul_(3)
        measured = measure_heads(model, family.batch())
        with torch.no_grad():
            own = [own_entropy(layer_map) for layer_map in family.maps(model)]
        assert measured.entropy == pytest.approx(own, rel=1e-4)
        assert min(own) < 0.8, "which is far from even"


@pytest.mark.parametrize("name", ["bert", "distilbert", "oelm-gpt", "oelm-gpt-classifier", "gpt2", "opt"])
def test_padding_neither_asks_nor_is_looked_at(name):
    family = BY_NAME[name]
    model = sharpened(family)
    tokens = torch.randint(3, VOCAB, (3, TOKENS), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1] * 7, [1] * 4 + [0] * 3, [1] * 2 + [0] * 5])
    inputs = {"input_ids": tokens, "attention_mask": mask}
    measured = measure_heads(model, inputs)
    with torch.no_grad():
        maps = model(**inputs, output_attentions=True).attentions
    assert measured.entropy == pytest.approx([own_entropy(one, mask.bool()) for one in maps], rel=1e-4)
    other = {"input_ids": tokens.where(mask.bool(), 5), "attention_mask": mask}
    again = measure_heads(model, other)
    for one in ("entropy", "logit_spread"):
        assert getattr(again, one) == pytest.approx(getattr(measured, one), rel=1e-4), "padding tokens do not matter"


@pytest.mark.parametrize("causal", [False, True])
def test_spread_is_that_of_the_logits(causal):
    """One layer at a time, by hand, from the model's own hidden states."""
    family = BY_NAME["oelm-gpt" if causal else "oelm-gpt-classifier"]
    model = sharpened(family)
    inputs = {**family.batch(), "attention_mask": torch.tensor([[1] * 7, [1] * 5 + [0] * 2])}
    with torch.no_grad():
        hidden = model(**inputs, output_hidden_states=True).hidden_states
    expected = []
    for block, before in zip(model.model.blocks, hidden, strict=False):
        normed = block.attention_norm(before).double()
        logits = []
        for sequence, length in enumerate((7, 5)):
            for head in range(4):
                rows = slice(head * 6, head * 6 + 6)
                query = normed[sequence] @ block.attention.q_proj.weight[rows].double().T
                key = normed[sequence] @ block.attention.k_proj.weight[rows].double().T
                for i in range(length):
                    logits += [query[i] @ key[j] / math.sqrt(6) for j in range(i + 1 if causal else length)]
        expected.append(torch.stack(logits).std(correction=0).item())
    assert measure_heads(model, inputs).logit_spread == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_every_family_is_measured_or_said_to_be_none(family):
    model = family.model()
    oelm.apply(model, init="orthogonal", freeze="qk", seed=0)
    measured = measure_heads(model, family.batch())
    projections = find_projections(model)
    for role in ("q", "k"):
        heads = [projection.num_heads for projection in projections if projection.role == role]
        assert [len(row) for row in measured.norm[role]] == heads
        assert max(max(row) for row in measured.cosine[role]) < 1e-5
        dims = [projection.head_dim for projection in projections if projection.role == role]
        for row, dim in zip(measured.norm[role], dims, strict=True):
            assert row == pytest.approx([math.sqrt(dim)] * len(row), rel=1e-5)
    for values in (measured.logit_spread, measured.entropy):
        assert len(values) == family.num_layers
        if family.name in WITHOUT:
            assert values == (None,) * family.num_layers
        else:
            assert all(value > 0 for value in values)


@pytest.mark.parametrize("family", MEASURED, ids=lambda family: family.name)
def test_it_is_known_which_attention_looks_back_only(family):
    """With equal logits every query is as uncertain as it can be: ln of how many keys it may look at."""
    model = family.model()
    with torch.no_grad():
        maps = family.maps(model)
        for projection in find_projections(model):
            for head in range(projection.num_heads):
                projection.weight_rows(head).zero_()
                if projection.has_bias:
                    projection.bias_rows(head).zero_()
    measured = measure_heads(model, family.batch()).entropy
    expected = [(one > 0).sum(-1).double().log().mean().item() for one in maps]
    assert measured == pytest.approx(expected, rel=1e-5)


def test_measuring_leaves_no_trace():
    family = BY_NAME["bert"]
    model = family.model().train()
    model.bert.encoder.layer[0].eval()  # one part is kept from training
    modes = {name: module.training for name, module in model.named_modules()}
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    state = torch.get_rng_state()
    first = measure_heads(model, family.batch())
    assert torch.equal(torch.get_rng_state(), state)
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert measure_heads(model, family.batch()) == first, "dropout has no part in it"


def test_a_model_that_fails_is_left_as_it_was():
    model = BY_NAME["bert"].model().train()
    with pytest.raises(ValueError, match="input_ids"):
        measure_heads(model, {})
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_the_scale_of_the_control_is_seen_in_the_logits():
    """Gaussian entries of std 0.02 make rows of length 0.02 sqrt(M), not one: logits spread (0.02^2 M) times as far."""
    family = BY_NAME["oelm-gpt"]
    width, wanted = 24, {}
    for scale in ("unit", 0.02):
        spreads = []
        for seed in range(6):
            model = family.model()
            oelm.apply(model, init="gaussian", scale=scale, freeze="qk", seed=seed)
            spreads.append(measure_heads(model, family.batch()).logit_spread[0])
        wanted[scale] = spreads
    # The same draw, scaled: seed by seed the ratio is exact.
    for small, unit in zip(wanted[0.02], wanted["unit"], strict=True):
        assert small / unit == pytest.approx(0.02**2 * width, rel=1e-4)


def test_numbers_have_six_digits():
    measured = measure_heads(BY_NAME["bert"].model(), BY_NAME["bert"].batch())
    values = [
        *measured.entropy,
        *measured.logit_spread,
        *measured.norm["q"][0],
        *measured.cosine["k"][1],
    ]
    assert all(float(f"{value:.6g}") == value for value in values)


@pytest.mark.parametrize("scale", ["unit", "match"])
def test_orthogonal_rows_are_orthogonal_at_any_length(scale):
    """`match` keeps the norms of the weights before, so its rows are not of length 1; their angles are right."""
    model = BY_NAME["bert"].model()
    untreated = measure_heads(model, BY_NAME["bert"].batch())
    oelm.apply(model, init="orthogonalize", scale=scale, freeze="qk")
    rows = oelm.orthonormality(model)
    assert max(row.cosine for row in rows) < 1e-5
    assert (max(row.deviation for row in rows) < 1e-5) == (scale == "unit")
    assert min(min(layer) for layer in untreated.cosine["q"]) > 0.01, "which can be told from others"


def test_cosines_are_those_of_the_rows():
    model = BY_NAME["bert"].model()
    rows_DM = next(iter(find_projections(model))).weight_rows(0).double()
    unit_DM = rows_DM / rows_DM.norm(dim=1, keepdim=True)
    cosine_DD = (unit_DM @ unit_DM.mT).fill_diagonal_(0).abs()
    assert oelm.orthonormality(model)[0].cosine == pytest.approx(cosine_DD.max().item())
    with torch.no_grad():
        rows_DM = next(iter(find_projections(model))).weight_rows(0).zero_()
    assert oelm.orthonormality(model)[0].cosine == 0
