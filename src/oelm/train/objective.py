"""Objective: what training minimises, the cross-entropy of classes or of next tokens.

The logits of a language model are its largest tensors by far: 4,096 tokens and 50,257 words are 0.8 GB, and as much
again for each of their log-probabilities and gradients. Where the output head is a plain linear map, its loss and
gradients are made of a few hundred tokens at a time, which is the same arithmetic without ever holding all logits.

Shapes: B examples, T tokens, M width, C classes, V vocabulary.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_CHUNK = 2**24  # logits at a time, 64 MB in float32


class Objective(nn.Module):
    """A model that answers with its loss."""

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model
        self._in_chunks = has_plain_head(model)

    def forward(self, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The loss of a batch, summed over its examples, or over the tokens of its windows."""
        if targets.ndim == 1:
            return F.cross_entropy(self.model(**inputs).logits.float(), targets, reduction="sum")
        return self._next_tokens(inputs, targets, "sum")

    def each(self, inputs: dict[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """(loss of every example (B), logits (B, C)); of windows the sum over their tokens, and no logits."""
        if targets.ndim == 1:
            logits = self.model(**inputs).logits.float()
            return F.cross_entropy(logits, targets, reduction="none"), logits
        return self._next_tokens(inputs, targets, "none").view_as(targets).sum(1), None

    def _next_tokens(self, inputs: dict[str, Tensor], targets: Tensor, reduction: str) -> Tensor:
        model: Any = self.model
        if not self._in_chunks or torch.compiler.is_compiling():
            logits = model(**inputs, use_cache=False).logits  # (B, T, V)
            return F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten(), reduction=reduction)
        head = model.get_output_embeddings()
        hidden = model.base_model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)  # (B * T, M)
        weight, bias = head.weight, head.bias
        if torch.is_autocast_enabled(hidden.device.type):  # as a linear map would be
            dtype = torch.get_autocast_dtype(hidden.device.type)
            hidden, weight, bias = hidden.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        return F.linear_cross_entropy(
            hidden,
            weight,
            targets.flatten(),
            linear_bias=bias,
            reduction=reduction,
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=max(1, _CHUNK // len(weight))),
        )


def has_plain_head(model: nn.Module) -> bool:
    """Whether the logits are a linear map of the last hidden states and nothing else, which is tried out.

    Some models scale or cap them, and only torch from 2.13 on can take them in chunks.
    """
    asked: Any = model
    head = asked.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear or asked.base_model is model or not hasattr(F, "linear_cross_entropy"):
        return False
    tokens = torch.arange(4, device=head.weight.device)[None] % len(head.weight)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            hidden = asked.base_model(input_ids=tokens, use_cache=False).last_hidden_state
            return torch.equal(head(hidden), asked(input_ids=tokens, use_cache=False).logits)
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return False  # it is called in another way: it knows best
    finally:
        model.train(was_training)
