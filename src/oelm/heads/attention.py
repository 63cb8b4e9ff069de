"""Measure attention on a batch: the spread of its logits, the entropy of its weights, how far they have moved.

Shape suffixes: B = sequences, T = queries, S = keys, H = query heads, K = key heads, D = rows of a head, M = width.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Self, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.facts import AttentionMap, AttentionStats, Blocks
from oelm.heads.find import by_layer, find_projections
from oelm.heads.measure import Orthonormality, orthonormality
from oelm.heads.projection import Projection
from oelm.heads.sharded import gather_params, is_sharded
from oelm.treatment import Role

# Models with causal attention whose modules do not have `is_causal`.
_CAUSAL_TYPES = ("bloom", "clip_text_model", "mpt")
# Norms of queries and keys after the projection, by role.
_NORMS: dict[Role, tuple[str, ...]] = {
    "q": ("q_norm", "q_layernorm", "q_ln"),
    "k": ("k_norm", "k_layernorm", "k_ln"),
}
_ROLES: tuple[Role, ...] = ("q", "k")
_SHOWN = 12  # tokens of a map that is kept

_Measured = TypeVar("_Measured")
Maps = list[Tensor | None]
"""By layer: logs of the attention weights, (B, H, T, S), as `_LayerLogits` has them; None where they are not known."""


def measure_heads(model: nn.Module, inputs: Mapping[str, Any]) -> AttentionStats:
    """Norms and orthonormality of every head, spread of logits and entropy of every layer.

    Logits are plain q.k of queries and keys (normalized, if the model does that head by head), with the module's own
    scale or 1/sqrt(D). Anything beyond that is ignored: rotary embeddings and position biases, sliding windows, soft
    caps; and GPT-Neo is measured as if it scaled. If a layer gets different inputs in one forward pass, the value is
    None. The model runs once, without dropout, and is left unchanged.
    """
    layers = _measure_layers(model, inputs, lambda layer: (layer.spread(), layer.entropy()))
    rows = orthonormality(model)
    return AttentionStats(
        norm=_by_role([(row, row.norm) for row in rows], len(layers)),
        cosine=_by_role([(row, row.cosine) for row in rows], len(layers)),
        logit_spread=tuple(None if found is None else found[0] for found in layers),
        entropy=tuple(None if found is None else found[1] for found in layers),
    )


def attention_maps(model: nn.Module, inputs: Mapping[str, Any]) -> Maps:
    """What every head attends to, with the limits of `measure_heads`."""
    return _measure_layers(model, inputs, lambda layer: layer.log_weights().cpu())


def divergences(before: Maps, after: Maps) -> list[Tensor | None]:
    """By layer: the KL divergence of the maps after from those before in nats, (H, queries), without padding."""

    def divergence(old_BHTS: Tensor, new_BHTS: Tensor) -> Tensor:
        old, new = old_BHTS.double(), new_BHTS.double()
        terms_BHTS = torch.where(old.isfinite(), old.exp() * (old - new), 0.0)
        is_query_BT = old.isfinite().any(-1).any(1)
        return terms_BHTS.sum(-1).clamp(min=0).transpose(0, 1)[:, is_query_BT]

    return [
        None if old is None or new is None else divergence(old, new) for old, new in zip(before, after, strict=True)
    ]


@dataclass(frozen=True, kw_only=True, eq=False)
class UntreatedMaps:
    """What a model attends to before it is treated, and in which batch: what comes after is compared with it."""

    inputs: Mapping[str, Tensor]
    maps: Maps

    @classmethod
    def measure(cls, model: nn.Module, inputs: Mapping[str, Tensor]) -> Self:
        return cls(inputs=inputs, maps=attention_maps(model, inputs))

    def compare(self, model: nn.Module, stats: AttentionStats) -> AttentionStats:
        """The measurements of a model together with how far its attention is from this."""
        device = next(model.parameters()).device
        maps = attention_maps(model, {name: tensor.to(device) for name, tensor in self.inputs.items()})
        means = [None if one is None else one.mean().item() for one in divergences(self.maps, maps)]
        kl = tuple(_round(one) if one is not None and math.isfinite(one) else None for one in means)
        return replace(stats, kl=kl, maps=sample_maps(maps))


def sample_maps(maps: Maps) -> tuple[AttentionMap, ...]:
    """A few heads on the first tokens of the first example, small enough for a record."""
    known = [(layer, logs_BHTS) for layer, logs_BHTS in enumerate(maps) if logs_BHTS is not None]
    found = []
    for place in sorted({0, len(known) // 2, len(known) - 1}) if known else ():
        layer, logs_BHTS = known[place]
        logs_TS = logs_BHTS[0, 0, :_SHOWN, :_SHOWN]
        is_real_TS = logs_TS.isfinite()
        weights_TS = logs_TS[is_real_TS.any(-1)][:, is_real_TS.any(0)].exp()  # without padding
        weights = bytes((255 * weights_TS).round().flatten().int().tolist())
        if weights:
            found.append(AttentionMap(layer=layer, head=0, queries=len(weights_TS), weights=weights.hex()))
    return tuple(found)


@dataclass(frozen=True, eq=False)
class _LayerLogits:
    """The attention of one layer on a batch, before its softmax."""

    logits: Tensor
    """(B, H, T, S)."""
    allowed: Tensor
    """Which keys a query attends to, (B, T, S)."""

    def log_weights(self) -> Tensor:
        """(B, H, T, S): -inf where a query does not attend, and not a number in all of a query that is padding."""
        return self.logits.masked_fill(~self.allowed[:, None], -torch.inf).log_softmax(-1)

    def spread(self) -> float:
        return _round(self.logits.transpose(0, 1)[:, self.allowed].std(correction=0).item())

    def entropy(self) -> float:
        weights_BHTS = self.logits.masked_fill(~self.allowed[:, None], -torch.inf).softmax(-1)
        entropy_BTH = torch.special.entr(weights_BHTS).sum(-1).transpose(1, 2)
        return _round(entropy_BTH[self.allowed.any(-1)].mean().item())


@torch.no_grad()
def _measure_layers(
    model: nn.Module, inputs: Mapping[str, Any], measure: Callable[[_LayerLogits], _Measured]
) -> list[_Measured | None]:
    """A measurement of every layer, one after the other; None where its attention is not known."""
    projections = find_projections(model)
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with record_inputs(projections) as seen:
            # `forward` directly: a compiled model ignores hooks added later. A sharded one needs its own hooks.
            (model if any(map(is_sharded, model.parameters())) else model.forward)(**inputs)
        attentions = (_attention(model, layer, seen, inputs) for layer in by_layer(projections))
        return [None if attention is None else measure(attention) for attention in attentions]
    finally:
        for module, training in modes.items():
            module.training = training


def _by_role(values: Sequence[tuple[Orthonormality, float]], layers: int) -> Blocks:
    return {
        role: tuple(
            tuple(_round(value) for row, value in values if (row.role, row.layer) == (role, layer))
            for layer in range(layers)
        )
        for role in _ROLES
    }


def _attention(
    model: nn.Module, layer: dict[Role, Projection], seen: dict[Projection, Tensor], inputs: Mapping[str, Any]
) -> _LayerLogits | None:
    given = [seen[layer[role]] for role in _ROLES if role in layer and layer[role] in seen]
    if len(given) < 2 or any(batch.ndim != 3 for batch in given):
        return None
    queries_BTM, keys_BSM = given
    query_BHTD, key_BKSD = (
        _normalized(layer[role], _projected(layer[role], batch)) for role, batch in zip(_ROLES, given, strict=True)
    )
    if query_BHTD is None or key_BKSD is None:
        return None
    allowed_BTS = _allowed(model, layer["q"].attention, queries_BTM, keys_BSM, inputs.get("attention_mask"))
    key_BHSD = key_BKSD.repeat_interleave(query_BHTD.shape[1] // key_BKSD.shape[1], dim=1)
    return _LayerLogits(query_BHTD @ key_BHSD.mT * _scale(layer["q"]), allowed_BTS)


def find_norm(projection: Projection) -> nn.Module | None:
    """What normalizes the queries or the keys after their projection, if anything does."""
    found = (getattr(projection.attention, name, None) for name in _NORMS[projection.role])
    return next((one for one in found if isinstance(one, nn.Module)), None)


def _normalized(projection: Projection, heads_BHTD: Tensor) -> Tensor | None:
    """Queries or keys as they meet; None if they are not normalized head by head."""
    norm = find_norm(projection)
    if norm is None:
        return heads_BHTD
    weight = getattr(norm, "weight", None)
    fits = isinstance(weight, Tensor) and weight.shape == (projection.head_dim,)
    with gather_params(norm):
        return norm(heads_BHTD) if fits else None


def _allowed(model: nn.Module, attention: nn.Module, queries_BTM: Tensor, keys_BSM: Tensor, mask: Any) -> Tensor:
    """Which keys a query attends to, (B, T, S): no padding, and no later keys if attention is causal."""
    shape = (*queries_BTM.shape[:2], keys_BSM.shape[1])
    allowed_BTS = torch.ones(shape, dtype=torch.bool, device=queries_BTM.device)
    if not torch.equal(queries_BTM, keys_BSM):  # cross attention
        return allowed_BTS
    if _is_causal(model, attention):
        allowed_BTS = allowed_BTS.tril()
    if isinstance(mask, Tensor) and mask.shape == shape[:2]:
        real_BT = mask.to(allowed_BTS)
        allowed_BTS = allowed_BTS & real_BT[:, :, None] & real_BT[:, None, :]
    return allowed_BTS


def _is_causal(model: nn.Module, attention: nn.Module) -> bool:
    kind = getattr(getattr(model, "config", None), "model_type", None)
    # In older versions of transformers, BERT and T5 say only whether they are decoders.
    is_decoder = getattr(attention, "is_decoder", False)
    return kind in _CAUSAL_TYPES or bool(getattr(attention, "is_causal", is_decoder))


def _scale(projection: Projection) -> float:
    own = getattr(projection.attention, "scaling", None)
    return own if isinstance(own, float) else projection.head_dim**-0.5


def _projected(projection: Projection, inputs_BTM: Tensor) -> Tensor:
    """(B, heads, T, D), in float32, with what an adapter adds."""
    heads = range(projection.num_heads)
    if projection.is_adapted:
        rows_BTN = projection.module(inputs_BTM).float()
        blocks = [rows_BTN[..., start : start + projection.head_dim] for start in projection.starts]
        return torch.stack(blocks, dim=1)
    inputs_BTM = inputs_BTM.float()
    with gather_params(projection.owner):
        weight = torch.cat([projection.weight_rows(head) for head in heads]).to(inputs_BTM)
        bias = torch.cat([projection.bias_rows(head) for head in heads]).to(weight) if projection.has_bias else None
    projected = F.linear(inputs_BTM, weight, bias)
    return projected.view(*inputs_BTM.shape[:2], projection.num_heads, projection.head_dim).transpose(1, 2)


def _round(value: float) -> float:
    return float(f"{value:.6g}")


@contextmanager
def record_inputs(projections: Sequence[Projection]) -> Iterator[dict[Projection, Tensor]]:
    """The input of each projection, (batch, tokens, width), recorded while the model runs inside.

    Empty for a projection with several different inputs: a layer that is reused (ALBERT), relative positions besides
    the tokens (DeBERTa).
    """
    seen: dict[Projection, Tensor] = {}

    def recorder(projection: Projection) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
            given = [*args, *kwargs.values()]
            batch = given[1] if isinstance(module, nn.MultiheadAttention) and projection.role == "k" else given[0]
            if isinstance(module, nn.MultiheadAttention) and not module.batch_first:
                batch = batch.transpose(0, 1)
            differs = projection in seen and not torch.equal(seen[projection], batch)
            seen[projection] = batch.new_empty(0) if differs else batch

        return hook

    handles = [
        projection.module.register_forward_pre_hook(recorder(projection), with_kwargs=True)
        for projection in projections
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
