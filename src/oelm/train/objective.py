"""Objective: what training minimizes: the cross-entropy of classes or of next tokens, the squared error of numbers, or
what another kind of task says.

The logits of a language model are its largest tensors by far: 4,096 tokens and 50,257 words are 0.8 GB, and as much
again for each of their log-probabilities and gradients. Where the output head is a plain linear map, its loss and, in
float32, its gradients are made of a few hundred tokens at a time: the same arithmetic without ever holding all logits.

Shapes: B examples, T tokens, M width, C classes, V vocabulary.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.data.kinds.kind import ExampleKind
from oelm.heads.sharded import is_sharded

_CHUNK = 2**24  # logits at a time, 64 MB in float32


class Objective(nn.Module):
    """A model that answers with its loss."""

    def __init__(self, model: nn.Module, kind: ExampleKind | None = None):
        super().__init__()
        self.model = model
        self._kind = kind
        self._plain_head = kind is None and has_plain_head(model)

    def forward(self, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        """The loss of a batch, summed over its examples, or over the tokens of its windows."""
        if self._kind is not None:
            return self._kind.losses(self.model(**inputs), inputs, targets).sum()
        if targets.ndim == 1:
            logits = self.model(**inputs).logits.float()
            return _by_example(logits, targets, reduction="sum")
        return self._next_tokens(inputs, targets)

    def each(self, inputs: dict[str, Tensor], targets: Tensor) -> tuple[Tensor, Tensor | None]:
        """(loss of every example (B), logits (B, C)); of windows that of every token (B, T), and no logits. Other kinds
        have what they predict in place of logits."""
        if self._kind is not None:
            outputs = self.model(**inputs)
            return self._kind.losses(outputs, inputs, targets), self._kind.predict(self.model, inputs, outputs)
        if targets.ndim == 1:
            logits = self.model(**inputs).logits.float()
            return _by_example(logits, targets, reduction="none"), logits
        if not self._plain_head:
            return _by_token(self._logits(inputs), targets.flatten()).view_as(targets), None
        head, hidden = self._head, self._hidden(inputs)
        size = self._chunk
        pieces = zip(torch.split(hidden, size), torch.split(targets.flatten(), size), strict=True)
        return torch.cat([_by_token(head(some), those) for some, those in pieces]).view_as(targets), None

    def _next_tokens(self, inputs: dict[str, Tensor], targets: Tensor) -> Tensor:
        # Below float32, torch would add up the loss and the head's gradients in that precision, chunk by chunk.
        lower = torch.is_autocast_enabled(targets.device.type)
        if not self._plain_head or lower or torch.compiler.is_compiling() or not hasattr(F, "linear_cross_entropy"):
            return _by_token(self._logits(inputs), targets.flatten()).sum()
        return F.linear_cross_entropy(
            self._hidden(inputs),
            self._head.weight,
            targets.flatten(),
            linear_bias=self._head.bias,
            reduction="sum",
            options=nn.LinearCrossEntropyOptions(batch_chunk_size=self._chunk),
        )

    @property
    def _head(self) -> Any:
        model: Any = self.model
        return model.get_output_embeddings()

    @property
    def _chunk(self) -> int:
        """Tokens at a time."""
        return max(1, _CHUNK // len(self._head.weight))

    def _hidden(self, inputs: dict[str, Tensor]) -> Tensor:
        model: Any = self.model
        hidden: Tensor = model.base_model(**inputs, use_cache=False).last_hidden_state.flatten(0, 1)  # (B * T, M)
        return hidden

    def _logits(self, inputs: dict[str, Tensor]) -> Tensor:
        logits: Tensor = self.model(**inputs, use_cache=False).logits.flatten(0, 1)  # (B * T, V)
        return logits


def _by_example(logits: Tensor, targets: Tensor, *, reduction: str) -> Tensor:
    """Of classes (B), or of numbers (B), with logits (B, C) or (B, 1)."""
    if targets.is_floating_point():
        return F.mse_loss(logits.squeeze(-1), targets, reduction=reduction)
    return F.cross_entropy(logits, targets, reduction=reduction)


def _by_token(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.float(), targets, reduction="none")


def has_plain_head(model: nn.Module) -> bool:
    """Whether the logits are a linear map of the last hidden states and nothing else, which is tried out.

    Some models scale or cap them. Hooks on the head alone are not called where it is taken in chunks, and those that
    gather a sharded model are on the model itself.
    """
    asked: Any = model
    head = asked.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    if type(head) is not nn.Linear or asked.base_model is model or is_sharded(head.weight):
        return False
    tokens = torch.arange(4, device=head.weight.device)[None] % len(head.weight)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            hidden = asked.base_model(input_ids=tokens, use_cache=False).last_hidden_state
            return torch.equal(head(hidden), asked(input_ids=tokens, use_cache=False).logits)
    except Exception:  # it is called in another way, and knows best: the plain way will tell what is wrong with it
        return False
    finally:
        model.train(was_training)
