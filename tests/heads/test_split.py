"""RowPlan and Split: any pattern of rows can be taken apart, put together and found again."""

import copy
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from transformers.pytorch_utils import Conv1D

from oelm.heads.split import RowPlan, SplitLinear, SplitMultiheadAttention, join_, split_

patterns = st.lists(st.booleans(), min_size=2, max_size=12).filter(lambda flags: any(flags) and not all(flags))


@given(patterns, st.integers(1, 3))
def test_parts_join_to_the_fused_tensor(flags, rows):
    plan = RowPlan.from_blocks(flags, rows)
    fused = torch.arange(len(flags) * rows * 2).reshape(-1, 2)
    reservoir, rest = plan.parts(fused)
    assert torch.equal(plan.join(reservoir, rest, dim=0), fused)
    assert torch.equal(plan.join(reservoir.mT, rest.mT, dim=-1), fused.mT)
    assert len(reservoir) == sum(flags) * rows
    for row in range(len(fused)):
        in_reservoir, index = plan.locate(row)
        assert in_reservoir == flags[row // rows]
        assert torch.equal((reservoir if in_reservoir else rest)[index], fused[row])


@pytest.mark.parametrize(
    ("flags", "repeats", "runs"),
    [
        ([True, True, False], 1, ((True, 4), (False, 2))),  # stacked, one head
        ([True, True, False] * 3, 3, ((True, 4), (False, 2))),  # interleaved
        ([True, False, False] * 2, 2, ((True, 2), (False, 4))),  # interleaved, only q
    ],
)
def test_a_plan_is_as_short_as_it_can_be_said(flags, repeats, runs):
    assert RowPlan.from_blocks(flags, 2) == RowPlan(repeats, runs)


@settings(deadline=None)
@given(patterns, st.booleans(), st.booleans())
def test_a_split_layer_computes_the_same(flags, transposed, bias):
    rows, width = len(flags), 5
    layer = Conv1D(rows, width) if transposed else nn.Linear(width, rows, bias=bias)
    nn.init.normal_(layer.weight)
    x = torch.randn(2, 3, width)
    expected, state = layer(x), copy.deepcopy(layer.state_dict())
    before = split_(layer, RowPlan.from_blocks(flags, 1), transposed=transposed)
    assert isinstance(layer, SplitLinear)
    assert torch.allclose(layer(x), expected, rtol=1e-6, atol=1e-6)
    assert list(layer.state_dict()) == list(state)
    assert all(torch.equal(layer.state_dict()[name], tensor) for name, tensor in state.items())
    join_(before)
    assert torch.equal(layer(x), expected)
    assert list(layer.state_dict()) == list(state)


@pytest.fixture
def split_layer():
    layer = nn.Linear(4, 6)
    split_(layer, RowPlan.from_blocks([True, True, False], 2), transposed=False)
    return layer


def test_loading_says_what_is_wrong_in_vanilla_words(split_layer):
    with pytest.raises(RuntimeError, match=r'Missing key\(s\) in state_dict: "weight", "bias"'):
        split_layer.load_state_dict({})
    with pytest.raises(RuntimeError, match=r"size mismatch for weight: .*\[5, 4\].* from checkpoint.*\[6, 4\]"):
        split_layer.load_state_dict({"weight": torch.zeros(5, 4), "bias": torch.zeros(6)})
    with pytest.raises(RuntimeError, match=r'Unexpected key\(s\) in state_dict: "weight_rest"'):
        split_layer.load_state_dict(split_layer.state_dict() | {"weight_rest": torch.zeros(2, 4)})
    missing, unexpected = split_layer.load_state_dict({"weight": torch.ones(6, 4)}, strict=False)
    assert (missing, unexpected) == (["bias"], [])
    assert torch.equal(split_layer.weight, torch.ones(6, 4))


def test_assigning_keeps_what_learns(split_layer):
    split_layer.weight_reservoir.requires_grad_(False)
    split_layer.load_state_dict({"weight": torch.ones(6, 4), "bias": torch.ones(6)}, assign=True)
    assert not split_layer.weight_reservoir.requires_grad
    assert split_layer.weight_rest.requires_grad
    assert torch.equal(split_layer.weight, torch.ones(6, 4))


def test_a_split_layer_can_be_moved_cast_copied_and_pickled(split_layer):
    twin = pickle.loads(pickle.dumps(copy.deepcopy(split_layer)))
    x = torch.randn(3, 4)
    assert torch.equal(twin(x), split_layer(x))
    assert twin.to(torch.bfloat16).state_dict()["weight"].dtype == torch.bfloat16
    assert "out_features=4+2" in repr(split_layer)


def test_hooks_and_references_survive():
    layer = nn.Linear(4, 6)
    calls = []
    layer.register_forward_hook(lambda *_: calls.append(1))
    holder = nn.Sequential(layer)
    split_(layer, RowPlan.from_blocks([True, False, False], 2), transposed=False)
    holder(torch.randn(1, 4))
    assert calls == [1]
    assert holder[0] is layer


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("masked", [True, False])
def test_multihead_attention(bias, masked):
    """Training, evaluation (where torch has a fast path) and masks give what the untreated module gives."""
    encoder = nn.TransformerEncoder(
        nn.TransformerEncoderLayer(12, 3, 16, batch_first=True, bias=bias, dropout=0.0), 1, enable_nested_tensor=False
    )
    attention = encoder.layers[0].self_attn
    mask = torch.tensor([[False] * 5, [False] * 3 + [True] * 2]) if masked else None
    x = torch.randn(2, 5, 12)
    encoder.eval()
    state = copy.deepcopy(encoder.state_dict())
    evaluated = encoder(x, src_key_padding_mask=mask)
    with torch.no_grad():
        fast = encoder(x, src_key_padding_mask=mask)
    before = split_(attention, RowPlan.from_blocks([True, True, False], 12), transposed=False)
    assert isinstance(attention, SplitMultiheadAttention)
    assert isinstance(attention, nn.MultiheadAttention)
    valid = ~mask if masked else torch.ones(2, 5, dtype=torch.bool)
    assert torch.allclose(encoder(x, src_key_padding_mask=mask)[valid], evaluated[valid], rtol=1e-5, atol=1e-6)
    with torch.no_grad():
        assert torch.allclose(encoder(x, src_key_padding_mask=mask)[valid], fast[valid], rtol=1e-5, atol=1e-6)
    assert list(encoder.state_dict()) == list(state)
    encoder.load_state_dict(state)
    join_(before)
    assert type(attention) is nn.MultiheadAttention
    assert torch.equal(encoder(x, src_key_padding_mask=mask), evaluated)
    assert list(encoder.state_dict()) == list(state)


def test_keep_vars_shows_tensors_that_gradients_flow_through(split_layer):
    fused = split_layer.state_dict(keep_vars=True)["weight"]
    fused.sum().backward()
    assert torch.equal(split_layer.weight_rest.grad, torch.ones_like(split_layer.weight_rest))
    assert not split_layer.state_dict()["weight"].requires_grad


def test_parts_learn_as_the_fused_tensor_did():
    layer = nn.Linear(4, 6)
    layer.bias.requires_grad_(False)
    before = split_(layer, RowPlan.from_blocks([True, True, False], 2), transposed=False)
    assert layer.weight_reservoir.requires_grad
    assert layer.weight_rest.requires_grad
    assert not layer.bias_reservoir.requires_grad
    assert not layer.bias_rest.requires_grad
    join_(before)
    assert [p.requires_grad for p in layer.parameters()] == [True, False]


def test_the_weights_are_held_once():
    layer = nn.Linear(4, 6)
    before = split_(layer, RowPlan.from_blocks([True, True, False], 2), transposed=False)
    assert [p.numel() for p in before.parameters.values()] == [0, 0]


def test_what_was_assigned_while_split_stays():
    attention = nn.MultiheadAttention(12, 3, add_bias_kv=True)
    before = split_(attention, RowPlan.from_blocks([True, True, False], 12), transposed=False)
    state = {name: torch.full_like(tensor, 0.5) for name, tensor in attention.state_dict().items()}
    attention.load_state_dict(state, assign=True)
    join_(before)
    assert all((tensor == 0.5).all() for tensor in attention.state_dict().values())
