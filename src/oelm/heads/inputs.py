"""Inputs: what each query and key projection is given while a model runs."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oelm.heads.view import Projection


@contextmanager
def seeing_inputs(projections: Sequence[Projection]) -> Iterator[dict[Projection, Tensor]]:
    """What each projection is given, (batch, tokens, width), filled in while the model runs inside.

    Empty for one that is given different things in one run: a layer that is used again (ALBERT), relative positions
    beside the tokens (DeBERTa).
    """
    seen: dict[Projection, Tensor] = {}

    def remember(projection: Projection) -> Callable[..., None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            given = [*args, *kwargs.values()]
            batch = given[1] if isinstance(module, nn.MultiheadAttention) and projection.role == "k" else given[0]
            if isinstance(module, nn.MultiheadAttention) and not module.batch_first:
                batch = batch.transpose(0, 1)
            again = projection in seen and not torch.equal(seen[projection], batch)
            seen[projection] = batch.new_empty(0) if again else batch

        return hook

    handles = [
        projection.owner.register_forward_pre_hook(remember(projection), with_kwargs=True) for projection in projections
    ]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
