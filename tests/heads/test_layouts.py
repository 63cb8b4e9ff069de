"""Teaching an architecture, and proving that what was taught is so."""

import pytest
import torch
import transformers
from torch import nn

import oelm
from oelm.heads import layouts


@pytest.fixture(autouse=True)
def _forget_what_was_taught(monkeypatch):
    monkeypatch.setattr(layouts, "_layouts", {name: list(rows) for name, rows in layouts._layouts.items()})
    monkeypatch.setattr(layouts, "ARRANGEMENTS", dict(layouts.ARRANGEMENTS))
    monkeypatch.setattr("oelm.heads.find.ARRANGEMENTS", layouts.ARRANGEMENTS)


class MyAttention(nn.Module):
    """Fused as v, q, k, with two query heads to a key head."""

    def __init__(self) -> None:
        super().__init__()
        self.rows_of_a_head, self.key_value_heads = 4, 2
        self.vqk = nn.Linear(16, (2 + 4 + 2) * 4)

    def forward(self, x):
        v, q, k = self.vqk(x).split([8, 16, 8], -1)
        q = q.unflatten(-1, (4, 4)).transpose(1, 2)
        k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2).repeat_interleave(2, 1) for t in (k, v))
        maps = (q @ k.mT / 2).softmax(-1)
        return (maps @ v).transpose(1, 2).flatten(2), maps


class MyModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = MyAttention()
        self.head = nn.Linear(16, 2)

    def forward(self, x):
        return self.head(self.attention(x)[0])


def my_maps(model):
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    return [model.attention(x)[1]]


def teach(arrangement):
    oelm.register_layout(
        MyAttention,
        query="vqk",
        key="vqk",
        head_dim="rows_of_a_head",
        key_heads="key_value_heads",
        arrangement=arrangement,
    )


def test_a_new_architecture_is_taught_and_proven():
    model = MyModel()
    with pytest.raises(
        oelm.UnknownLayout, match=r"no Q/K layout registered for MyModel[\s\S]*vqk[\s\S]*register_layout"
    ):
        oelm.find_heads(model)
    teach(lambda role, head, heads, key_heads: key_heads + head + (0 if role == "q" else heads))
    oelm.prove_layout(model, maps=my_maps)
    x = torch.randn(1, 3, 16)
    before = model(x)
    applied = oelm.apply(model, init="keep", freeze="qk")
    assert torch.allclose(model(x), before, atol=1e-6)
    assert applied.counts.frozen == (4 + 2) * 4 * 17
    applied.audit().check()
    oelm.prove_layout(model, maps=my_maps)


@pytest.mark.parametrize("wrong", ["stacked", "grouped"])
def test_a_wrong_layout_is_found_out(wrong):
    teach(wrong)
    model = MyModel()
    state = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(oelm.UnknownLayout, match=r"perturbing head 0 of 'q' changed the attention of heads"):
        oelm.prove_layout(model, maps=my_maps)
    assert all(torch.equal(model.state_dict()[name], tensor) for name, tensor in state.items())


def test_queries_taken_for_keys_are_found_out():
    """With as many key heads as query heads both act on the same maps, and only what they do there differs."""
    model = transformers.GPTNeoXForCausalLM(
        transformers.GPTNeoXConfig(
            vocab_size=32, hidden_size=24, num_hidden_layers=2, num_attention_heads=4, intermediate_size=16
        )
    )
    model.set_attn_implementation("eager")
    inputs = {"input_ids": torch.arange(5)[None]}
    oelm.prove_layout(model, inputs)
    oelm.register_layout(
        f"{type(model).__module__}.GPTNeoXAttention",
        query="query_key_value",
        key="query_key_value",
        head_dim="head_size",
        arrangement=lambda role, head, heads, key_heads: 3 * head + (1 if role == "q" else 0),
    )
    with pytest.raises(oelm.UnknownLayout, match="registered as 'q' act as 'k'"):
        oelm.prove_layout(model, inputs)


def test_codegen_can_be_taught():
    """Its rows are q, v, k in each of four parts: no guess from shapes would find them."""
    config = transformers.CodeGenConfig(vocab_size=32, n_embd=32, n_layer=2, n_head=8, n_positions=16, rotary_dim=4)
    config._attn_implementation = "eager"
    model = transformers.CodeGenForCausalLM(config)
    inputs = {"input_ids": torch.arange(5)[None]}
    name = f"{type(model).__module__}.CodeGenAttention"

    def part_by_part(role, head, heads, key_heads):
        each = heads // 4  # heads in a part
        return (head // each) * 3 * each + head % each + (0 if role == "q" else 2 * each)

    oelm.register_layout(name, query="qkv_proj", key="qkv_proj", arrangement=part_by_part)
    oelm.prove_layout(model, inputs)
    oelm.register_layout(name, query="qkv_proj", key="qkv_proj", arrangement="stacked")
    with pytest.raises(oelm.UnknownLayout, match="perturbing head"):
        oelm.prove_layout(model, inputs)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"query": "a", "key": "b", "arrangement": "stacked"}, "does not fit"),
        ({"query": "a", "key": "a"}, "does not fit"),
        ({"query": "a", "key": "a", "arrangement": "sideways"}, r"unknown arrangement[\s\S]*interleaved"),
    ],
)
def test_what_cannot_be_taught(fields, says):
    with pytest.raises(oelm.TreatmentError, match=says):
        oelm.register_layout(MyAttention, **fields)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"head_dim": "rows_of_a_hat"}, "must be the number of rows per head"),
        ({"key_heads": "rows_of_a_head"}, "cannot be 0 query, 4 key"),
    ],
)
def test_what_does_not_fit_the_model(fields, says):
    taught = {"query": "vqk", "key": "vqk", "head_dim": "rows_of_a_head", "key_heads": "key_value_heads"}
    oelm.register_layout(MyAttention, **(taught | fields), arrangement="stacked")
    with pytest.raises(oelm.UnknownLayout, match=says):
        oelm.find_heads(MyModel())


def test_deberta_v1_is_not_taken_for_v2():
    """Its class has the same name and another order of rows."""
    config = transformers.DebertaConfig(
        vocab_size=32, hidden_size=24, num_hidden_layers=1, num_attention_heads=4, intermediate_size=8
    )
    with pytest.raises(oelm.UnknownLayout, match="model type 'deberta'"):
        oelm.find_heads(transformers.DebertaModel(config))


@pytest.mark.parametrize(
    ("name", "query"),
    [
        ("distilbert.modeling_distilbert.MultiHeadSelfAttention", "q_lin"),
        ("vit.modeling_vit.ViTSelfAttention", "query"),
    ],
)
def test_classes_of_older_transformers_have_their_layouts(name, query):
    """Their variants for other ways to compute attention are subclasses. `make compat` proves the rows for real."""
    module, _, cls = f"transformers.models.{name}".rpartition(".")
    older = type(cls, (nn.Module,), {"__module__": module})
    variant = type("SdpaAttention", (older,), {})
    assert layouts.layout_of(older()).query == layouts.layout_of(variant()).query == query


def test_a_wrapper_of_older_transformers_is_not_taken_for_the_attention():
    wrapper = type("ViTAttention", (nn.Module,), {"__module__": "transformers.models.vit.modeling_vit"})
    assert layouts.layout_of(wrapper()) is None
