"""Batches: the examples of each step, and their tensors.

The order is a function of the data seed and the step alone, so arms of one seed see the same batches, and a resumed
cell continues where it stopped with nothing but its step.

Shapes: B examples of a batch, T tokens of its longest example.
"""

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from oelm.data.kinds.kind import Encoded, Rows
from oelm.data.tokenize import Examples, Split, Windows
from oelm.seeds import seed_for

_BUCKET = 50  # batches that are sorted by length together: enough for little padding, few enough to stay random


@dataclass(frozen=True, kw_only=True)
class Batch:
    inputs: dict[str, Tensor]
    """Keyword arguments of the model, each (B, T)."""
    targets: Tensor
    """Classes or numbers (B), next tokens (B, T), or what another kind has."""


class BatchSampler:
    """The batches of every training step."""

    def __init__(self, lengths: Rows, *, batch_size: int, accumulate: int, seed: int):
        self._lengths = lengths
        self._batch_size = batch_size
        self._accumulate = accumulate
        self._seed = seed
        self._epoch: tuple[int, list[Rows]] = (-1, [])
        self.steps_per_epoch = math.ceil(math.ceil(len(lengths) / batch_size) / accumulate)

    def at(self, step: int) -> list[Rows]:
        """The examples of step `step` (from 0), one array per forward pass."""
        epoch, index = divmod(step, self.steps_per_epoch)
        if self._epoch[0] != epoch:
            self._epoch = (epoch, self._shuffled(epoch))
        return self._epoch[1][index * self._accumulate : (index + 1) * self._accumulate]

    def steps_for(self, *, epochs: float | None, steps: int | None, tokens: int | None) -> int:
        """The number of steps of a budget."""
        if steps is not None:
            return steps
        if epochs is not None:
            return max(1, round(epochs * self.steps_per_epoch))
        assert tokens is not None
        epoch_tokens = int(self._lengths.sum())
        number = tokens // epoch_tokens * self.steps_per_epoch
        left = tokens % epoch_tokens
        while left > 0:
            left -= sum(int(self._lengths[rows].sum()) for rows in self.at(number))
            number += 1
        return number

    def _shuffled(self, epoch: int) -> list[Rows]:
        """Batches of examples of similar length, in random order."""
        random = np.random.default_rng(seed_for(self._seed, "order", epoch))
        order = random.permutation(len(self._lengths))
        buckets = _split(order, self._batch_size * _BUCKET)
        by_length = (bucket[np.argsort(self._lengths[bucket], kind="stable")] for bucket in buckets)
        batches = [batch for bucket in by_length for batch in _split(bucket, self._batch_size)]
        return [batches[number] for number in random.permutation(len(batches))]


def batches_by_length(lengths: Rows, batch_size: int) -> list[Rows]:
    """All examples once, longest first: for evaluation, where order is irrelevant and peak memory comes first."""
    return _split(np.argsort(-lengths, kind="stable"), batch_size)


def _split(rows: Rows, size: int) -> list[Rows]:
    return [rows[start : start + size] for start in range(0, len(rows), size)]


def collate(split: Split, rows: Rows, *, pad: int, device: torch.device) -> Batch:
    """The rows of a split as tensors on the device."""
    batch = _windows(split, rows) if isinstance(split, Windows) else _examples(split, rows, pad)
    if device.type == "cpu":
        return batch
    inputs = {name: tensor.pin_memory().to(device, non_blocking=True) for name, tensor in batch.inputs.items()}
    return Batch(inputs=inputs, targets=batch.targets.pin_memory().to(device, non_blocking=True))


def _examples(split: Examples | Encoded, rows: Rows, pad: int) -> Batch:
    starts, ends = split.offsets[rows], split.offsets[rows + 1]
    longest = int((ends - starts).max())
    tokens = np.full((len(rows), longest), pad, dtype=np.int64)
    mask = np.zeros((len(rows), longest), dtype=np.int64)
    types = None if split.types is None else np.zeros((len(rows), longest), dtype=np.int64)
    for row, (start, end) in enumerate(zip(starts, ends, strict=True)):
        tokens[row, : end - start] = split.tokens[start:end]
        mask[row, : end - start] = 1
        if types is not None and split.types is not None:
            types[row, : end - start] = split.types[start:end]
    inputs = {"input_ids": torch.from_numpy(tokens), "attention_mask": torch.from_numpy(mask)}
    if types is not None:
        inputs["token_type_ids"] = torch.from_numpy(types)
    targets = torch.from_numpy(split.targets(rows) if isinstance(split, Encoded) else split.labels[rows])
    if isinstance(split, Encoded) and split.feeds_targets:
        inputs["labels"] = targets
    return Batch(inputs=inputs, targets=targets.float() if targets.is_floating_point() else targets)


def _windows(split: Windows, rows: Rows) -> Batch:
    # One token more than the window, so that every token is predicted once, including the first of a window.
    starts = rows * split.length
    tokens = np.stack([split.tokens[start : start + split.length + 1] for start in starts]).astype(np.int64)
    tokens_BT1 = torch.from_numpy(tokens)
    return Batch(inputs={"input_ids": tokens_BT1[:, :-1].contiguous()}, targets=tokens_BT1[:, 1:].contiguous())
