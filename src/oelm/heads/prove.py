"""Prove a layout by the model's own behaviour: disturb one head, and see which attention maps change."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oelm.errors import UnknownLayout
from oelm.heads.find import find_projections
from oelm.heads.view import Projection


def prove_layout(
    model: nn.Module,
    inputs: dict[str, Any] | None = None,
    *,
    maps: Callable[[nn.Module], Sequence[Tensor]] | None = None,
) -> None:
    """Raise `UnknownLayout` unless every head's rows are where the layout says.

    If head 3's query rows are disturbed, of that layer's attention maps only head 3's may change; for key rows, only
    those of the query heads in its group. The maps come from `model(**inputs, output_attentions=True).attentions` (load
    the model with `attn_implementation="eager"`), or from `maps(model)`: one `(batch, heads, queries, keys)` tensor per
    layer.
    """
    look = maps or (lambda m: m(**(inputs or {}), output_attentions=True).attentions)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            before = [layer_map.clone() for layer_map in look(model)]
            for projection in find_projections(model):
                for head in range(projection.num_heads):
                    _prove_head(model, projection, head, before[projection.layer], look)
    finally:
        model.train(training)


def _prove_head(
    model: nn.Module, projection: Projection, head: int, before: Tensor, look: Callable[[nn.Module], Sequence[Tensor]]
) -> None:
    rows = projection.weight_rows(head)
    kept = rows.clone()
    noise = torch.randn(rows.shape, generator=torch.Generator().manual_seed(0)).to(rows)
    try:
        rows.add_(noise * kept.std().clamp(min=1e-3) * 3)
        after = look(model)[projection.layer]
    finally:
        rows.copy_(kept)
    change = (after - before).abs().amax((0, 2, 3))  # (heads,)
    changed = set((change > 0).nonzero().flatten().tolist())
    group = before.shape[1] // projection.num_heads
    expected = set(range(head * group, (head + 1) * group))
    if changed != expected:
        raise UnknownLayout(
            f"disturbing head {head} of {projection.role!r} changed the attention of heads {sorted(changed)}, "
            f"not of {sorted(expected)}",
            where=f"{projection.name}, layer {projection.layer}, rows {projection.starts[head]}"
            f" to {projection.starts[head] + projection.head_dim}",
            hint="another arrangement in oelm.register_layout, see docs/layouts.md",
        )
