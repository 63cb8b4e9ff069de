"""Attention, measured on a batch: how far its logits spread, and how evenly it looks around.

Shape suffixes: B = sequences, T = queries, S = keys, H = query heads, K = key heads, D = rows of a head, M = width.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.heads.find import find_projections
from oelm.heads.inputs import seeing_inputs
from oelm.heads.measure import orthonormality
from oelm.heads.view import Projection
from oelm.heads.whole import gathered, is_sharded
from oelm.treatment import Role

# Models whose attention looks back only, without its modules saying so in `is_causal`.
_CAUSAL_TYPES = ("bloom", "clip_text_model", "mpt")
# Normalised queries and keys have another scale than their projections.
_NORMS = ("q_norm", "q_layernorm", "q_ln")
_ROLES: tuple[Role, ...] = ("q", "k")

Rounded = float | None


def measure_heads(model: nn.Module, inputs: dict[str, Any]) -> dict[str, Any]:
    """The heads of a model as plain data, to six digits.

    `norm` (Frobenius) and `deviation` (max |W W^T - I|) of every head's block, by role, layer and head. By layer,
    `logit_spread`: the standard deviation of the attention logits over all heads and over all pairs of a query and a
    key that it may look at, none of them padding; and `entropy`: that of the attention weights, in nats, the mean over
    heads and queries.

    Logits are plain q.k, scaled as the module says, or by 1/sqrt(D). What a model does to them beyond that is left
    out: rotations and biases for positions, sliding windows, soft caps; and GPT-Neo is measured as if it scaled. Where
    queries and keys are normalised after the projection, or a layer is given different things in one run, there is
    None. The model runs once, without dropout, and is left as it was.
    """
    projections = find_projections(model)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad(), seeing_inputs(projections) as seen:
            # Not by calling: a compiled model does not see hooks that come later. A sharded one needs its own.
            (model if any(map(is_sharded, model.parameters())) else model.forward)(**inputs)
        with torch.no_grad():
            layers = [_attention(model, layer, seen, inputs) for layer in _by_layer(projections)]
    finally:
        for module, training in modes.items():
            module.training = training
    blocks: dict[str, dict[Role, list[list[float]]]] = {
        name: {role: [[] for _ in layers] for role in _ROLES} for name in ("norm", "deviation")
    }
    for row in orthonormality(model):
        blocks["norm"][row.role][row.layer].append(_rounded(row.norm))
        blocks["deviation"][row.role][row.layer].append(_rounded(row.deviation))
    return {
        **blocks,
        "logit_spread": [spread for spread, _ in layers],
        "entropy": [entropy for _, entropy in layers],
    }


def _by_layer(projections: list[Projection]) -> list[dict[Role, Projection]]:
    layers: list[dict[Role, Projection]] = [{} for _ in range(1 + projections[-1].layer)]
    for projection in projections:
        layers[projection.layer][projection.role] = projection
    return layers


def _attention(
    model: nn.Module, layer: dict[Role, Projection], seen: dict[Projection, Tensor], inputs: dict[str, Any]
) -> tuple[Rounded, Rounded]:
    """(spread of the logits, entropy of the attention) of one layer."""
    given = [seen[layer[role]] for role in _ROLES if role in layer and layer[role] in seen]
    if len(given) < 2 or any(batch.ndim != 3 for batch in given) or _normalises(layer["q"].attention):
        return None, None
    queries_BTM, keys_BSM = given
    allowed_BTS = _allowed(model, layer["q"].attention, queries_BTM, keys_BSM, inputs.get("attention_mask"))
    query_BHTD, key_BKSD = _projected(layer["q"], queries_BTM), _projected(layer["k"], keys_BSM)
    key_BHSD = key_BKSD.repeat_interleave(query_BHTD.shape[1] // key_BKSD.shape[1], dim=1)
    logits_BHTS = query_BHTD @ key_BHSD.mT * _scale(layer["q"])
    weights_BHTS = logits_BHTS.masked_fill(~allowed_BTS[:, None], -torch.inf).softmax(-1)
    entropy_BTH = torch.special.entr(weights_BHTS).sum(-1).transpose(1, 2)
    spread = logits_BHTS.transpose(0, 1)[:, allowed_BTS].std(correction=0)
    return _rounded(spread.item()), _rounded(entropy_BTH[allowed_BTS.any(-1)].mean().item())


def _allowed(model: nn.Module, attention: nn.Module, queries_BTM: Tensor, keys_BSM: Tensor, mask: Any) -> Tensor:
    """Which keys a query may look at, (B, T, S): none for padding, none ahead of it where attention is causal."""
    shape = (*queries_BTM.shape[:2], keys_BSM.shape[1])
    allowed_BTS = torch.ones(shape, dtype=torch.bool, device=queries_BTM.device)
    if not torch.equal(queries_BTM, keys_BSM):  # across, from a decoder to its encoder
        return allowed_BTS
    if _is_causal(model, attention):
        allowed_BTS = allowed_BTS.tril()
    if isinstance(mask, Tensor) and mask.shape == shape[:2]:
        real_BT = mask.to(allowed_BTS)
        allowed_BTS = allowed_BTS & real_BT[:, :, None] & real_BT[:, None, :]
    return allowed_BTS


def _is_causal(model: nn.Module, attention: nn.Module) -> bool:
    kind = getattr(getattr(model, "config", None), "model_type", None)
    return kind in _CAUSAL_TYPES or bool(getattr(attention, "is_causal", False))


def _normalises(attention: nn.Module) -> bool:
    return any(getattr(attention, name, None) is not None for name in _NORMS)


def _scale(projection: Projection) -> float:
    own = getattr(projection.attention, "scaling", None)
    return own if isinstance(own, float) else projection.head_dim**-0.5


def _projected(projection: Projection, inputs_BTM: Tensor) -> Tensor:
    """(B, heads, T, D), in float32."""
    heads = range(projection.num_heads)
    inputs_BTM = inputs_BTM.float()
    with gathered(projection.owner):
        weight = torch.cat([projection.weight_rows(head) for head in heads]).to(inputs_BTM)
        bias = torch.cat([projection.bias_rows(head) for head in heads]).to(weight) if projection.has_bias else None
    projected = F.linear(inputs_BTM, weight, bias)
    return projected.view(*inputs_BTM.shape[:2], projection.num_heads, projection.head_dim).transpose(1, 2)


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")
