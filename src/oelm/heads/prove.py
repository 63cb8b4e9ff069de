"""Prove a layout by the model's own behaviour: disturb one head, and see which attention maps change."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from oelm.errors import UnknownLayout
from oelm.heads.find import find_projections, refuse_sharded
from oelm.heads.inputs import seeing_inputs
from oelm.heads.view import Projection

Look = Callable[[nn.Module], Sequence[Tensor]]
_TOKEN = 1  # the token whose query or key is disturbed alone


def prove_layout(model: nn.Module, inputs: dict[str, Any] | None = None, *, maps: Look | None = None) -> None:
    """Raise `UnknownLayout` unless every head's rows are where the layout says.

    If head 3's query rows are disturbed, of that layer's attention maps only head 3's may change; for key rows, only
    those of the query heads in its group. Queries and keys are told apart too: another query for one token changes one
    row of the map, another key changes a column. The maps come from
    `model(**inputs, output_attentions=True).attentions` (load the model with `attn_implementation="eager"`), or from
    `maps(model)`: one `(batch, heads, queries, keys)` tensor per layer. Three tokens or more are needed.
    """
    look = maps or (lambda m: m(**(inputs or {}), output_attentions=True).attentions)
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            projections = find_projections(model)
            refuse_sharded(projections)
            with seeing_inputs(projections) as seen:
                before = [layer_map.clone() for layer_map in look(model) or () if layer_map is not None]
            if len(before) <= max(projection.layer for projection in projections):
                raise UnknownLayout(
                    f"the model shows {len(before)} attention maps for {1 + projections[-1].layer} layers",
                    hint="attn_implementation='eager', or maps=..., see docs/layouts.md",
                )
            for projection in projections:
                for head in range(projection.num_heads):
                    _prove_head(model, projection, head, before[projection.layer], look)
                # Given something else too (relative positions), it cannot be disturbed for one token alone.
                if seen[projection].numel():
                    _prove_role(model, projection, seen[projection][0], before[projection.layer], look)
    finally:
        model.train(training)


def _prove_head(model: nn.Module, projection: Projection, head: int, before: Tensor, look: Look) -> None:
    rows = projection.weight_rows(head)
    noise = _noise(rows.shape).to(rows) * rows.std().clamp(min=1e-3) * 3
    change = _change(model, projection, rows, noise, before, look).amax((0, 2, 3))  # (heads,)
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


def _prove_role(model: nn.Module, projection: Projection, inputs_TM: Tensor, before: Tensor, look: Look) -> None:
    """Change the weights so that only one token's query or key changes, and see what of the map does."""
    rows = projection.weight_rows(0)
    # Orthogonal to the inputs of all other tokens, so these are projected as before.
    only_token_M = torch.linalg.pinv(inputs_TM.cpu().double())[:, _TOKEN]
    update = torch.outer(_noise((projection.head_dim,)).double(), only_token_M).to(rows)
    change_Q = _change(model, projection, rows, update, before, look)[0].amax((0, 2))  # (queries,)
    changed = set((change_Q > 1e-2 * change_Q.max()).nonzero().flatten().tolist())
    if (changed == {_TOKEN}) != (projection.role == "q"):
        raise UnknownLayout(
            f"the rows said to be {projection.role!r} act as {'q' if projection.role == 'k' else 'k'!r}",
            where=f"{projection.name}, layer {projection.layer}",
            hint="another arrangement in oelm.register_layout, see docs/layouts.md",
        )


def _change(
    model: nn.Module, projection: Projection, rows: Tensor, update: Tensor, before: Tensor, look: Look
) -> Tensor:
    """How much the layer's maps change while `update` is added to `rows`."""
    kept = rows.clone()
    try:
        rows.add_(update)
        return (look(model)[projection.layer] - before).abs()
    finally:
        rows.copy_(kept)


def _noise(shape: Sequence[int]) -> Tensor:
    return torch.randn(list(shape), generator=torch.Generator().manual_seed(0), device="cpu")
