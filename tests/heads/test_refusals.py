"""Bad input: a clear error (what, where, try) and the model left exactly as it was."""

import copy

import pytest
import torch
import torch.distributed as dist
import transformers
from torch import nn

import oelm
from oelm.heads import write
from oelm.models.gpt import OelmGPTConfig, OelmGPTForCausalLM
from zoo import FAMILIES

BERT, GPT2, ENCODER = (next(f for f in FAMILIES if f.name == n) for n in ("bert", "gpt2", "torch-encoder"))
TREATMENT = {"init": "orthogonal", "freeze": "qk"}


def assert_refused(model, error, says, **fields):
    """The error says it, and nothing about the model has changed."""
    state = copy.deepcopy(model.state_dict())
    flags = {name: p.requires_grad for name, p in model.named_parameters()}
    kinds = [type(module) for module in model.modules()]
    with pytest.raises(error, match=says) as caught:
        oelm.apply(model, **(TREATMENT | fields))
    assert {name: p.requires_grad for name, p in model.named_parameters()} == flags
    assert [type(module) for module in model.modules()] == kinds
    after = model.state_dict()
    assert list(after) == list(state)
    for name, tensor in state.items():
        if torch.is_tensor(tensor) and not tensor.is_meta:
            assert torch.equal(after[name], tensor) or tensor.isnan().any(), name
    return str(caught.value)


@pytest.mark.parametrize("family", [BERT, GPT2, ENCODER], ids=lambda family: family.name)
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite(family, value):
    model = family.model()
    oelm.find_heads(model)[-1].weight[1, 2] = value
    message = assert_refused(model, oelm.ModelError, "NaN or infinite")
    assert "head 3" in message


def test_large_but_finite_weights_are_fine():
    model = BERT.model()
    oelm.find_heads(model)[0].weight.fill_(3e38)  # their sum overflows
    oelm.apply(model, **TREATMENT).audit().check()


def test_head_larger_than_width():
    config = dict(vocab_size=64, hidden_size=8, num_attention_heads=2, num_key_value_heads=1, head_dim=16)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**config, num_hidden_layers=1, intermediate_size=8, bos_token_id=1, eos_token_id=2)
    )
    assert_refused(model, oelm.TreatmentError, "16 rows per head cannot be orthonormal in a width of 8")
    oelm.apply(model, init="gaussian", scale="match", freeze="qk").audit().check()


@pytest.mark.parametrize("layers", ["first:0.1", "7-9", [5], []])
def test_layers_that_are_not_there(layers):
    assert_refused(BERT.model(), oelm.TreatmentError, r"selects none|asks for layer", layers=layers)


def test_treated_twice():
    model = BERT.model()
    applied = oelm.apply(model, **TREATMENT)
    for again in (model, model.bert):
        with pytest.raises(oelm.ModelError, match=r"already treated[\s\S]*undo"):
            oelm.apply(again, **TREATMENT)
    applied.audit().check()
    applied.undo()
    for call in (applied.undo, applied.audit, applied.unfreeze):
        with pytest.raises(oelm.ModelError, match="undone"):
            call()
    oelm.apply(model, **TREATMENT)


def test_undo_without_a_copy():
    applied = oelm.apply(BERT.model(), **TREATMENT, keep_undo=False)
    with pytest.raises(oelm.ModelError, match="cannot undo"):
        applied.undo()


@pytest.mark.parametrize("family", [BERT, GPT2, ENCODER], ids=lambda family: family.name)
@pytest.mark.parametrize("moment", ["writing", "freezing", "recording"])
def test_an_interruption_leaves_the_model_as_it_was(family, moment, monkeypatch):
    """Ctrl-C after the second layer."""
    model, calls = family.model(), []
    import oelm.heads.apply as apply_module

    module, target = {
        "writing": (write, "_write_layer"),
        "freezing": (apply_module, "set_requires_grad"),
        "recording": (apply_module, "Applied"),
    }[moment]
    original = getattr(module, target)

    def interrupted(*args, **kwargs):
        calls.append(1)
        done = original(*args, **kwargs)
        if len(calls) == (2 if moment == "writing" else 1):
            raise KeyboardInterrupt
        return done

    monkeypatch.setattr(module, target, interrupted)
    assert_refused(model, KeyboardInterrupt, None)
    monkeypatch.undo()
    oelm.apply(model, **TREATMENT).audit().check()


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None, True])
def test_seeds(seed):
    assert_refused(BERT.model(), oelm.TreatmentError, "seed must be a non-negative integer", seed=seed)


def test_what_is_said_twice_or_wrongly():
    model = BERT.model()
    with pytest.raises(oelm.TreatmentError, match=r"pass either a Treatment or its fields[\s\S]*freeze"):
        oelm.apply(model, oelm.Treatment(), freeze="qk")
    with pytest.raises(oelm.TreatmentError, match=r"an oelm\.Treatment, got dict"):
        oelm.apply(model, {"freeze": "qk"})
    with pytest.raises(oelm.TreatmentError, match="did you mean 'freeze'"):
        oelm.apply(model, frezee="qk")
    for nothing in (None, "bert-base-uncased", {"a": 1}):
        with pytest.raises(oelm.ModelError, match=r"torch\.nn\.Module"):
            oelm.apply(nothing, **TREATMENT)


def test_match_of_a_zero_block():
    model = BERT.model()
    oelm.find_heads(model)[0].weight.zero_()
    assert_refused(model, oelm.TreatmentError, "needs a block that is not zero", scale="match")
    oelm.apply(model, init="orthogonalize", scale="unit").audit().check()


@pytest.mark.parametrize("version", [2, 3])
def test_multi_head_latent_attention(version):
    common = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, num_key_value_heads=2)
    sizes = dict(
        intermediate_size=16, kv_lora_rank=8, q_lora_rank=8, qk_rope_head_dim=4, qk_nope_head_dim=8, v_head_dim=8
    )
    config = getattr(transformers, f"DeepseekV{version}Config")(
        **common, **sizes, first_k_dense_replace=1, bos_token_id=1, eos_token_id=2
    )
    model = getattr(transformers, f"DeepseekV{version}ForCausalLM")(config)
    message = assert_refused(model, oelm.UnknownLayout, "shared by all heads")
    assert "model.layers.0.self_attn" in message


@pytest.mark.parametrize("bits", [4, 8])
def test_bitsandbytes(bits, tmp_path):
    """Really quantized by bitsandbytes."""
    llama = next(f for f in FAMILIES if f.name == "llama")
    llama.model().save_pretrained(tmp_path)
    quantized = transformers.LlamaForCausalLM.from_pretrained(
        tmp_path, quantization_config=transformers.BitsAndBytesConfig(**{f"load_in_{bits}bit": True}), device_map="cpu"
    )
    assert_refused(quantized, oelm.ModelError, r"must be a plain floating-point tensor[\s\S]*unquantized")


def test_meta_device():
    with torch.device("meta"):
        model = OelmGPTForCausalLM(OelmGPTConfig.preset("mini-128"))
    assert oelm.count(model).qk == 2 * 2 * 128 * 128
    assert_refused(model, oelm.ModelError, "meta device")


def test_sharded_parameters(tmp_path):
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    try:
        model = BERT.model()
        fully_shard(model)
        with pytest.raises(oelm.ModelError, match=r"must be a plain floating-point tensor, got DTensor|unsharded"):
            oelm.apply(model, **TREATMENT)
        with pytest.raises(oelm.ModelError, match="wrapped in DistributedDataParallel"):
            oelm.apply(nn.parallel.DistributedDataParallel(BERT.model()), **TREATMENT)
        with pytest.raises(oelm.ModelError, match="DTensor"):
            oelm.find_heads(model)
        later = BERT.model()
        applied = oelm.apply(later, **TREATMENT)
        fully_shard(later)
        assert applied.audit().ok, "it puts the weights together"
        for change in (applied.unfreeze, applied.undo):
            with pytest.raises(oelm.ModelError, match="cannot change a sharded model"):
                change()
    finally:
        dist.destroy_process_group()


def test_unknown_model_types():
    config = transformers.CodeGenConfig(vocab_size=64, n_embd=32, n_layer=1, n_head=4, n_positions=16, rotary_dim=4)
    message = assert_refused(transformers.CodeGenForCausalLM(config), oelm.UnknownLayout, "model type 'codegen'")
    assert "transformer.h.0.attn" in message
    assert "register_layout" in message
    with pytest.raises(oelm.UnknownLayout, match="no attention module found in Linear"):
        oelm.apply(nn.Linear(4, 4))
    assert oelm.count(nn.Linear(4, 4)).qk is None


def test_a_known_and_an_unknown_attention_together():
    """Treating only the half that is known would be a silent mistake."""

    class UnknownAttention(nn.Linear):
        pass

    model = nn.ModuleDict({"known": nn.MultiheadAttention(8, 2), "unknown": UnknownAttention(8, 8)})
    assert_refused(model, oelm.UnknownLayout, r"no Q/K layout registered[\s\S]*unknown")


def test_parametrized_weights():
    model = BERT.model()
    torch.nn.utils.parametrizations.weight_norm(model.bert.encoder.layer[0].attention.self.query)
    with pytest.raises(oelm.ModelError, match="parametrization"):
        oelm.apply(model, **TREATMENT)


def test_query_and_key_that_are_one():
    model = BERT.model()
    attention = model.bert.encoder.layer[0].attention.self
    attention.key.weight = attention.query.weight
    assert_refused(model, oelm.UnknownLayout, "share one weight")


def test_a_pooler_with_attention_is_not_frozen():
    """SigLIP's pooling head is an nn.MultiheadAttention: freezing it would freeze a part of the task head."""
    model = nn.ModuleDict({"encoder": nn.MultiheadAttention(8, 2), "pooler": nn.MultiheadAttention(8, 2)})
    assert_refused(model, oelm.TreatmentError, "task head or pooler")
    oelm.apply(model, **TREATMENT, layers=[0]).audit().check()


def test_one_bias_for_separate_weights():
    model = nn.Sequential(nn.MultiheadAttention(8, 2, kdim=6, vdim=6))
    nn.init.normal_(model[0].in_proj_bias)
    assert [view.weight.shape for view in oelm.find_heads(model)] == [(4, 8), (4, 8), (4, 6), (4, 6)]
    assert_refused(model, oelm.TreatmentError, "a single bias")
    applied = oelm.apply(model, **TREATMENT, bias="train")
    applied.audit().check()
    assert [param_slice.key for param_slice in applied.frozen] == ["0.q_proj_weight", "0.k_proj_weight"]
    biases = {
        param_slice.key: param_slice.copy().flatten() for param_slice in applied.slices if param_slice.kind == "bias"
    }
    q, k, _ = model[0].in_proj_bias.detach().chunk(3)
    assert biases.keys() == {"0.in_proj_bias[q]", "0.in_proj_bias[k]"}
    assert torch.equal(biases["0.in_proj_bias[q]"], q)
    assert torch.equal(biases["0.in_proj_bias[k]"], k)


class MyAttention(nn.MultiheadAttention):
    pass


class DoublingLinear(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class RawAttention(nn.Module):
    """A fused weight that is a parameter of the attention module itself."""

    def __init__(self):
        super().__init__()
        self.qkv, self.head_dim = nn.Parameter(torch.randn(24, 8)), 4


def test_fused_weights_that_cannot_be_split_safely(monkeypatch):
    """A split module computes a plain linear map: what a class of the user's does besides would be lost."""
    doubling = GPT2.model()
    doubling.transformer.h[1].attn.c_attn.__class__ = type("Mine", (DoublingLinear,), {})
    raw = nn.Sequential(RawAttention())
    monkeypatch.setattr("oelm.heads.layouts._layouts", {})
    oelm.register_layout(RawAttention, query="qkv", key="qkv", arrangement="stacked")
    assert_refused(raw, oelm.ModelError, "fused weight of a RawAttention cannot be split")
    monkeypatch.undo()
    assert_refused(doubling, oelm.ModelError, "fused weight of a Mine cannot be split")
    mine = nn.Sequential(MyAttention(8, 2))
    assert_refused(mine, oelm.ModelError, "fused weight of a MyAttention cannot be split")
    oelm.apply(mine, init="orthogonal").audit().check()  # without freezing nothing needs to be split


@pytest.mark.parametrize("tied", [["query", "key"], ["query"], ["key"]])
def test_tied_weights_are_treated_and_counted_once(tied):
    model = BERT.model()
    first, second = (layer.attention.self for layer in model.bert.encoder.layer)
    for name in tied:
        getattr(second, name).weight = getattr(first, name).weight
    applied = oelm.apply(model, **TREATMENT)
    weights = [param_slice for param_slice in applied.slices if param_slice.kind == "weight"]
    assert len(weights) == 4 - len(tied)
    assert applied.counts.frozen == applied.counts.qk == sum(param_slice.numel for param_slice in applied.slices)
    applied.audit().check()


def test_gguf_kept_quantized():
    """transformers' own layer for GGUF blocks, instead of a projection."""
    from transformers.integrations.gguf.utils import GgufLinear

    q8_0 = 8  # ggml's number of the type
    model = next(f for f in FAMILIES if f.name == "llama").model()
    attention = model.model.layers[0].self_attn
    attention.q_proj = GgufLinear(64, 48, q8_0)
    with pytest.raises(oelm.ModelError, match=r"torch\.uint8[\s\S]*q_proj[\s\S]*unquantized"):
        oelm.apply(model, **TREATMENT)
