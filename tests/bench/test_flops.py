"""Ceiling: our arithmetic is torch's count, and what it says of known shapes is what paper and pencil say."""

import copy
from dataclasses import asdict
from functools import cache

import pytest
import torch
import transformers
from torch import nn

import oelm
from ceilings import ceiling, counted
from oelm.bench.flops import OPTIMIZER_FLOPS, work_of
from oelm.errors import ModelError
from oelm.heads.count import freezing_savings
from oelm.models.gpt import OelmGPTConfig, OelmGPTForCausalLM, OelmGPTForSequenceClassification
from oelm.treatment import Treatment
from zoo import FAMILIES, VOCAB, _model

pytestmark = pytest.mark.slow

ZOO = {family.name: family for family in FAMILIES}
KNOWN = ["bert", "gpt2", "llama", "opt", "oelm-gpt", "oelm-gpt-classifier", "gpt-neox", "albert", "torch-encoder"]
TREATMENTS = {
    "baseline": Treatment(),
    "qk": Treatment(freeze="qk"),
    "q": Treatment(freeze="q"),
    "first half": Treatment(freeze="qk", layers="first:0.5"),
    "biases train": Treatment(freeze="qk", bias="train"),
}
SHAPE = {"batch": 3, "length": 7}
QK = TREATMENTS["qk"]


def gpt2_classifier():
    config = dict(vocab_size=VOCAB, n_embd=24, n_layer=2, n_head=4, n_positions=32, pad_token_id=0)
    return _model("GPT2ForSequenceClassification", "GPT2Config", **config, num_labels=3)


def llama_classifier():
    config = dict(vocab_size=VOCAB, hidden_size=48, num_hidden_layers=2, num_attention_heads=6, intermediate_size=32)
    return _model("LlamaForSequenceClassification", "LlamaConfig", **config, num_labels=3, pad_token_id=0)


def bert_lm():
    config = dict(vocab_size=VOCAB, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=32)
    return _model("BertLMHeadModel", "BertConfig", **config, is_decoder=True)


BUILD = {name: ZOO[name].model for name in KNOWN}
BUILD |= {"gpt2-classifier": gpt2_classifier, "llama-classifier": llama_classifier, "bert-lm": bert_lm}


def on_meta(cls, config):
    with torch.device("meta"):
        return cls(config)


@cache
def bert_base():
    return on_meta(transformers.BertForSequenceClassification, transformers.BertConfig())


@cache
def untreated_work(name):
    return work_of(BUILD[name](), **SHAPE)


# Every model with one treatment that freezes, and every treatment with separate and with fused projections.
CASES = [(name, "qk") for name in BUILD]
CASES += [(name, treatment) for name in ("bert", "gpt2") for treatment in TREATMENTS if treatment != "qk"]


@pytest.mark.parametrize(("name", "treatment"), CASES)
def test_our_arithmetic_is_torchs_count_and_the_same_before_and_after_a_treatment(name, treatment):
    treatment = TREATMENTS[treatment]
    before = ceiling(BUILD[name](), treatment, **SHAPE)
    applied = oelm.apply(BUILD[name](), treatment)
    after = ceiling(applied, **SHAPE)
    assert before == after
    assert before.baseline == untreated_work(name)
    assert (before.saving > 0) == (treatment.freeze != "none")
    assert after.treated.products == pytest.approx(counted(applied.model, **SHAPE), rel=0.005)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_a_count_on_the_cpu_agrees(implementation):
    """The products that are really computed, where no fused kernel hides them."""
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    model = oelm.apply(ZOO["bert"].model(), QK).model
    model.config._attn_implementation = implementation
    tokens = torch.ones(SHAPE["batch"], SHAPE["length"], dtype=torch.long)
    with FlopCounterMode(display=False) as counter, sdpa_kernel(SDPBackend.MATH):
        model(tokens).logits.sum().backward()
    assert work_of(model, **SHAPE).products == counter.get_total_flops()


def test_every_part_by_hand():
    """A BERT of width M, feed-forward F, L layers, in operations for B sequences of T tokens."""
    B, T, M, F, L, C = 3, 7, 24, 32, 2, 3
    work = work_of(ZOO["bert"].model(), batch=B, length=T)
    forward = L * 2 * B * T * (4 * M * M + 2 * M * F)
    assert work.linear_forward == work.linear_input_gradient == work.linear_weight_gradient == forward
    assert work.attention == L * 6 * 2 * B * T * T * M
    assert work.head == 3 * 2 * B * (M * M + M * C)  # a pooler and a classifier, on the first token alone
    learning = sum(parameter.numel() for parameter in ZOO["bert"].model().parameters())
    assert work.optimizer == OPTIMIZER_FLOPS * learning
    assert work.total == 3 * forward + work.attention + work.head + work.optimizer


def test_freezing_spares_the_weight_gradients_of_what_is_frozen_and_nothing_else():
    B, T, M, L = 3, 7, 24, 2
    found = ceiling(ZOO["bert"].model(), QK, batch=B, length=T)
    before, after = asdict(found.baseline), asdict(found.treated)
    assert before.pop("linear_weight_gradient") - after.pop("linear_weight_gradient") == L * 2 * 2 * B * T * M * M
    frozen = L * 2 * (M * M + M)
    assert before.pop("optimizer") - after.pop("optimizer") == OPTIMIZER_FLOPS * frozen
    assert before == after


def test_the_first_layer_needs_no_input_gradient_if_the_embedding_does_not_learn():
    B, T, M = 3, 7, 24
    model = ZOO["bert"].model()
    learns = work_of(model, batch=B, length=T)
    model.bert.embeddings.requires_grad_(False)
    frozen = work_of(model, batch=B, length=T)
    product = 2 * B * T * M * M
    assert learns.linear_input_gradient - frozen.linear_input_gradient == 3 * product  # of q, k and v
    assert learns.attention == frozen.attention
    # Without a gradient of its inputs or for its weights, a frozen first layer spares those of queries and keys too.
    spared = ceiling(model, QK, batch=B, length=T)
    assert spared.baseline.attention - spared.treated.attention == 3 * 2 * B * T * T * M
    assert spared.treated.products == counted(oelm.apply(model, QK).model, batch=B, length=T)


def test_of_a_layer_of_bert_2_of_36_can_be_spared():
    found = ceiling(bert_base(), QK, batch=32, length=24)
    assert found.linear_saving == pytest.approx(2 / 36, rel=1e-12)
    assert found.linear_saving == pytest.approx(freezing_savings(bert_base(), QK).linear_work, rel=0.01)
    # width far above length, and many tokens a step: all the rest is small
    assert found.saving == pytest.approx(2 / 36, rel=0.005)
    assert ceiling(bert_base(), TREATMENTS["q"], batch=32, length=24).linear_saving == pytest.approx(1 / 36, rel=1e-12)


def test_attention_and_a_large_vocabulary_leave_less():
    config = OelmGPTConfig.preset("medium-512")
    lm = ceiling(on_meta(OelmGPTForCausalLM, config), QK, batch=8, length=512)
    classifier = ceiling(on_meta(OelmGPTForSequenceClassification, config), QK, batch=8, length=512)
    assert lm.linear_saving == classifier.linear_saving == pytest.approx(2 / 36, rel=1e-12)
    assert lm.saving == pytest.approx(0.022, abs=0.0005)
    assert classifier.saving == pytest.approx(2 / 36 / (1 + 1 / 6), rel=0.01)  # scores are T/6M of the linear work
    assert classifier.at_most(0) == pytest.approx(2 / 36, rel=1e-4)


def test_more_of_the_optimizer_is_spared_than_of_the_arithmetic():
    found = ceiling(bert_base(), QK, batch=32, length=24)
    frozen = 12 * 2 * (768 * 768 + 768)
    total = sum(parameter.numel() for parameter in bert_base().parameters())
    assert found.optimizer_saving == pytest.approx(frozen / total)
    assert found.at_most(1) == pytest.approx(frozen / total)
    assert found.at_most(0) < found.at_most(0.1) < found.at_most(1)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_layers_that_are_checkpointed_are_computed_twice(name):
    model = ZOO[name].model()
    plain = work_of(model, **SHAPE)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    again = work_of(model, **SHAPE)
    # recomputing stops at the last tensor that is needed, which may be the input of the last map
    assert 1.7 * plain.linear_forward < again.linear_forward <= 2 * plain.linear_forward
    assert again.linear_weight_gradient == plain.linear_weight_gradient
    assert again.products == pytest.approx(counted(model, **SHAPE), rel=0.005)


def test_looking_changes_nothing():
    model = ZOO["gpt2"].model()
    weights = copy.deepcopy(model.state_dict())
    modules = [type(module) for module in model.modules()]
    generator = torch.get_rng_state()
    ceiling(model, QK, **SHAPE)
    counted(model, **SHAPE)
    assert not model.training
    assert [type(module) for module in model.modules()] == modules
    assert all(parameter.requires_grad and parameter.grad is None for parameter in model.parameters())
    assert all(torch.equal(value, weights[name]) for name, value in model.state_dict().items())
    assert not any(module._forward_hooks for module in model.modules())
    assert model.config.use_cache
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_model_prepared_for_mixed_precision_is_counted_alike():
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    model = ZOO["oelm-gpt"].model()
    plain = work_of(model, **SHAPE)
    AcceleratorState._reset_state(reset_partial_state=True)
    try:
        runner = Accelerator(mixed_precision="bf16", cpu=True).prepare(model)
        assert work_of(runner, **SHAPE) == plain
        assert counted(runner, **SHAPE) == plain.products
    finally:
        AcceleratorState._reset_state(reset_partial_state=True)


def test_torchs_own_attention_split():
    found = ceiling(ZOO["torch-encoder"].model(), QK, **SHAPE)
    assert found.baseline.linear_weight_gradient - found.treated.linear_weight_gradient == 2 * 2 * 2 * 21 * 24 * 24
    assert found.baseline.attention == found.treated.attention


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "opt"])
def test_no_layer_is_left_out(name):
    """Values that are not there must not decide what runs: OPT draws a number for every layer."""
    B, T, model = 3, 7, ZOO[name].model()
    matrices = [w for n, w in model.named_parameters() if w.ndim == 2 and (".0." in n or ".1." in n)]
    assert work_of(model, batch=B, length=T).linear_forward == 2 * B * T * sum(w.numel() for w in matrices)


def test_a_model_that_cannot_be_run_so_says_why():
    with pytest.raises(ModelError, match=r"T5ForConditionalGeneration cannot be counted.*\n.*ValueError"):
        work_of(ZOO["t5"].model(), **SHAPE)


def test_one_attention_without_layers():
    class Bare(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding, self.attend = nn.Embedding(VOCAB, 24), nn.MultiheadAttention(24, 4, batch_first=True)

        def forward(self, tokens):
            hidden = self.embedding(tokens)
            return self.attend(query=hidden, key=hidden, value=hidden, need_weights=False)[0]

    work = work_of(Bare(), **SHAPE)
    assert work.products == counted(Bare(), **SHAPE)
    assert work.head == 0
