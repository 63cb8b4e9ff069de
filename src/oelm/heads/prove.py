"""Prove a layout by the model's own behavior: perturb one head and check which attention maps change."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oelm.errors import UnknownLayout
from oelm.heads.attention import record_inputs
from oelm.heads.find import find_projections, refuse_sharded
from oelm.heads.projection import Projection

AttentionProbe = Callable[[nn.Module], Sequence[Tensor]]
_TOKEN = 1  # the token whose query or key alone is perturbed


def prove_layout(
    model: nn.Module, inputs: Mapping[str, Any] | None = None, *, maps: AttentionProbe | None = None
) -> None:
    """Raise `UnknownLayout` unless every head's rows are where the layout has them.

    If head 3's query rows are perturbed, of that layer's attention maps only head 3's may change; for key rows, only
    those of the query heads in its group. Queries and keys are distinguished too: another query for one token changes
    one row of the map, another key changes a column. The maps come from
    `model(**inputs, output_attentions=True).attentions` (load the model with `attn_implementation="eager"`), or from
    `maps(model)`: one `(batch, heads, queries, keys)` tensor per layer. Needs three or more distinct tokens.
    """
    get_maps = maps or (lambda m: m(**(inputs or {}), output_attentions=True).attentions)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            projections = find_projections(model)
            refuse_sharded(projections)
            with record_inputs(projections) as seen:
                before = [layer_map.clone() for layer_map in get_maps(model) or () if layer_map is not None]
            if len(before) <= max(projection.layer for projection in projections):
                raise UnknownLayout(
                    f"the model returns {len(before)} attention maps for {1 + projections[-1].layer} layers",
                    hint="use attn_implementation='eager', or maps=..., see docs/layouts.md",
                )
            for projection in projections:
                for head in range(projection.num_heads):
                    _prove_head(model, projection, head, before[projection.layer], get_maps)
                # With other inputs too (relative positions), one token alone cannot be perturbed.
                if seen[projection].numel():
                    _prove_role(model, projection, seen[projection][0], before[projection.layer], get_maps)
    finally:
        model.train(training)


def _prove_head(model: nn.Module, projection: Projection, head: int, before: Tensor, get_maps: AttentionProbe) -> None:
    rows = projection.weight_rows(head)
    noise = _noise(rows.shape).to(rows) * rows.std().clamp(min=1e-3) * 3
    change = _change(model, projection, rows, noise, before, get_maps).amax((0, 2, 3))  # (heads,)
    changed = set((change > 0).nonzero().flatten().tolist())
    group = before.shape[1] // projection.num_heads
    expected = set(range(head * group, (head + 1) * group))
    if changed != expected:
        raise UnknownLayout(
            f"perturbing head {head} of {projection.role!r} changed the attention of heads {sorted(changed)}, "
            f"not of {sorted(expected)}",
            where=f"{projection.name}, layer {projection.layer}, rows {projection.starts[head]}"
            f" to {projection.starts[head] + projection.head_dim}",
            hint="use another arrangement in oelm.register_layout, see docs/layouts.md",
        )


def _prove_role(
    model: nn.Module, projection: Projection, inputs_TM: Tensor, before: Tensor, get_maps: AttentionProbe
) -> None:
    """Change the weights so that only one token's query or key changes, and check what of the map changes."""
    rows = projection.weight_rows(0)
    # Orthogonal to the inputs of all other tokens, so their projections do not change.
    only_token_M = torch.linalg.pinv(inputs_TM.cpu().double())[:, _TOKEN]
    update = torch.outer(_noise((projection.head_dim,)).double(), only_token_M).to(rows)
    change_Q = _change(model, projection, rows, update, before, get_maps)[0].amax((0, 2))  # (queries,)
    changed = set((change_Q > 1e-2 * change_Q.max()).nonzero().flatten().tolist())
    if (changed == {_TOKEN}) != (projection.role == "q"):
        raise UnknownLayout(
            f"the rows registered as {projection.role!r} act as {'q' if projection.role == 'k' else 'k'!r}",
            where=f"{projection.name}, layer {projection.layer}",
            hint="use another arrangement in oelm.register_layout, see docs/layouts.md",
        )


def _change(
    model: nn.Module, projection: Projection, rows: Tensor, update: Tensor, before: Tensor, get_maps: AttentionProbe
) -> Tensor:
    """How much the layer's maps change while `update` is added to `rows`."""
    kept = rows.clone()
    try:
        rows.add_(update)
        return (get_maps(model)[projection.layer] - before).abs()
    finally:
        rows.copy_(kept)


def _noise(shape: Sequence[int]) -> Tensor:
    return torch.randn(list(shape), generator=torch.Generator().manual_seed(0), device="cpu")
