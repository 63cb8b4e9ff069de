"""The numbers that must come out, on skeletons without weights."""

import pytest
import torch
import transformers
from torch import nn

import oelm
from oelm.heads.count import freezing_savings
from oelm.models.gpt import OelmGPTConfig, OelmGPTForCausalLM, OelmGPTForSequenceClassification


def meta(build):
    with torch.device("meta"):
        return build()


MINILM = dict(hidden_size=384, num_hidden_layers=6, num_attention_heads=12, intermediate_size=1536)
MODELS = {
    "GPT Medium-512": (lambda: OelmGPTForCausalLM(OelmGPTConfig.preset("medium-512")), 44_896_768, 3_145_728),
    "GPT Medium-512 classifier": (
        lambda: OelmGPTForSequenceClassification(OelmGPTConfig.preset("medium-512", num_labels=2)),
        44_897_794,
        3_145_728,
    ),
    "BERT-base": (
        lambda: transformers.BertForSequenceClassification(transformers.BertConfig(num_labels=2)),
        109_483_778,
        14_174_208,
    ),
    "MiniLM-L6": (lambda: transformers.BertModel(transformers.BertConfig(**MINILM)), 22_713_216, 1_774_080),
}


@pytest.mark.parametrize("name", MODELS)
def test_totals_and_queries_and_keys(name):
    build, total, qk = MODELS[name]
    model = meta(build)
    counts = oelm.count(model)
    assert (counts.total, counts.trainable, counts.frozen, counts.qk) == (total, total, 0, qk)
    assert freezing_savings(model, oelm.Treatment(freeze="qk")).frozen == qk
    assert freezing_savings(model, oelm.Treatment(freeze="qk")).memory_bytes == 12 * qk


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "trainable", "share"),
    [
        ("GPT Medium-512", 41_751_040, "7.007 %"),
        ("GPT Medium-512 classifier", 41_752_066, "7.006 %"),
        ("BERT-base", 95_309_570, "12.946 %"),
    ],
)
def test_frozen(name, trainable, share):
    """Treated for real: what is left to train, and the share that `print(applied)` shows."""
    build, total, qk = MODELS[name]
    applied = oelm.apply(build(), freeze="qk")
    counts = applied.counts
    assert (counts.total, counts.trainable, counts.frozen) == (total, trainable, qk)
    assert f"frozen {qk:,} of {total:,} weights ({share})" in str(applied)


def test_weights_in_buffers_count():
    """The predecessor kept frozen weights in buffers and counted parameters: '41.8M, 0 frozen' was 3,145,728 short."""
    model = meta(MODELS["GPT Medium-512"][0])
    for block in model.model.blocks:
        for projection in (block.attention.q_proj, block.attention.k_proj):
            weight = projection.weight
            del projection.weight
            projection.register_buffer("weight", weight.detach())
    assert sum(p.numel() for p in model.parameters()) == 41_751_040
    counts = oelm.count(model)
    assert (counts.total, counts.frozen, counts.buffers) == (44_896_768, 3_145_728, 3_145_728)
    with pytest.raises(oelm.ModelError, match="is a buffer"):
        oelm.apply(model, freeze="qk")


def test_tables_that_are_recomputed_do_not_count():
    model = nn.Linear(2, 2)
    model.register_buffer("positions", torch.arange(10))
    model.register_buffer("frequencies", torch.rand(10), persistent=False)
    assert oelm.count(model).total == 6
    model.register_buffer("running_mean", torch.rand(10))
    assert (oelm.count(model).total, oelm.count(model).buffers) == (16, 10)


def test_the_ceiling_of_a_bert_layer():
    """Of 36 M^2 multiply-adds a token, 2 go away: 5.56 % of a layer's linear work."""
    config = transformers.BertConfig(vocab_size=2, max_position_embeddings=2, num_hidden_layers=12)
    model = meta(lambda: transformers.BertModel(config, add_pooling_layer=False))
    assert freezing_savings(model, oelm.Treatment(freeze="qk")).linear_work == pytest.approx(2 / 36)
    assert freezing_savings(model, oelm.Treatment(freeze="q", layers="first:0.5")).linear_work == pytest.approx(1 / 72)


def test_albert_is_treated_and_counted_once():
    config = transformers.AlbertConfig(num_hidden_layers=12, hidden_size=768, num_attention_heads=12)
    model = meta(lambda: transformers.AlbertModel(config))
    assert oelm.count(model).qk == 2 * (768 * 768 + 768)
    assert {view.layer for view in oelm.find_heads(model)} == {0}


def test_scales():
    """`unit` and `match` and a number mean what the definition says."""
    model = OelmGPTForCausalLM(OelmGPTConfig.preset("mini-128", vocab_size=16))
    applied = oelm.apply(model, init="gaussian", scale=0.02)
    entries = torch.cat([view.weight.flatten() for view in oelm.find_heads(model)])
    assert entries.std().item() == pytest.approx(0.02, rel=0.02)
    assert entries.mean().item() == pytest.approx(0, abs=3e-4)
    applied.undo()
    norms = [row.norm for row in oelm.orthonormality(model)]
    applied = oelm.apply(model, init="gaussian", scale="match")
    assert [row.norm for row in oelm.orthonormality(model)] == pytest.approx(norms, rel=1e-6)
    applied.undo()
    oelm.apply(model, init="gaussian", scale="unit")
    lengths = torch.cat([view.weight.norm(dim=1) for view in oelm.find_heads(model)])
    assert lengths.square().mean().item() == pytest.approx(1, rel=0.02)


def test_head_wise_and_global_differ_in_overlap_between_heads_only():
    """Both are orthonormal inside every head; only the global recipe makes heads orthogonal to each other."""
    overlap = {}
    for init in ("orthogonal", "orthogonal-global"):
        model = OelmGPTForCausalLM(OelmGPTConfig.preset("mini-128", vocab_size=16))
        oelm.apply(model, init=init, seed=1)
        views = [v.weight.double() for v in oelm.find_heads(model) if (v.layer, v.role) == (0, "q")]
        assert max((v @ v.mT - torch.eye(32)).abs().max().item() for v in views) < 1e-5
        overlap[init] = (views[0] @ views[1].mT).abs().max().item()
    assert overlap["orthogonal"] > 0.1
    assert overlap["orthogonal-global"] < 1e-6


def test_the_reservoir_is_the_same_in_every_type_up_to_rounding():
    views = {}
    for dtype in (torch.float64, torch.float32, torch.bfloat16):
        model = OelmGPTForCausalLM(OelmGPTConfig.preset("mini-128", vocab_size=16)).to(dtype)
        oelm.apply(model, init="orthogonal", seed=7)
        views[dtype] = oelm.find_heads(model)[5].weight
    assert torch.equal(views[torch.float64].float(), views[torch.float32])
    assert torch.equal(views[torch.float64].bfloat16(), views[torch.bfloat16])
