"""Evaluate: measure a model on a split, example by example.

Shapes: B examples, T tokens, C classes, V vocabulary, N examples of the split.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from oelm.data.batches import Batch, collate, in_order_of_length
from oelm.data.tasks import Task
from oelm.data.tokens import Examples, Split


@dataclass(frozen=True, kw_only=True)
class Measured:
    metrics: dict[str, float]
    predictions: dict[str, NDArray[Any]]
    """By column, a row an example: `row`, `label`, `prediction`, `loss`; for text `row` (window), `loss`, `tokens`."""


def losses(model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
    """(loss of every example (B), logits (B, C) or (B, T, V)); the loss of a window is the sum over its tokens."""
    logits = model(**batch.inputs, use_cache=False).logits if batch.targets.ndim == 2 else model(**batch.inputs).logits
    if batch.targets.ndim == 1:
        return F.cross_entropy(logits.float(), batch.targets, reduction="none"), logits
    per_token = F.cross_entropy(logits.flatten(0, 1).float(), batch.targets.flatten(), reduction="none")
    return per_token.view_as(batch.targets).sum(1), logits


def evaluate(
    model: nn.Module,
    split: Split,
    *,
    task: Task,
    batch_size: int,
    pad: int,
    device: torch.device,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Metrics over all examples of a split, each counted once. `tick` hears of the progress, and may raise to stop."""
    number = len(split)
    loss = np.zeros(number)
    predicted = np.zeros(number, dtype=np.int64)
    was_training = model.training
    model.eval()
    done = 0
    try:
        with torch.no_grad():
            for rows in in_order_of_length(split.lengths, batch_size):
                example_losses, logits = losses(model, collate(split, rows, pad=pad, device=device))
                loss[rows] = example_losses.cpu().double().numpy()
                if task.kind == "classification":
                    predicted[rows] = logits.argmax(-1).cpu().numpy()
                done += len(rows)
                tick(done, number)
    finally:
        model.train(was_training)
    if not isinstance(split, Examples):
        tokens = split.lengths
        per_token = float(loss.sum() / tokens.sum())
        metrics = {"perplexity": _exp(per_token), "loss": per_token}
        return Measured(metrics=metrics, predictions={"row": np.arange(number), "loss": loss, "tokens": tokens})
    metrics = {**classification_metrics(split.labels, predicted, task), "loss": float(loss.mean())}
    columns = {"row": split.rows, "label": split.labels, "prediction": predicted, "loss": loss}
    return Measured(metrics=metrics, predictions=columns)


def classification_metrics(labels: NDArray[np.int64], predicted: NDArray[np.int64], task: Task) -> dict[str, float]:
    """Accuracy, macro-F1 over all classes of the task, binary F1 of class 1 for two classes, Matthews where asked."""
    classes = len(task.labels)
    confusion = np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes).astype(float)
    right, actual, guessed = np.diag(confusion), confusion.sum(1), confusion.sum(0)
    f1 = 2 * right / np.maximum(actual + guessed, 1)
    # A class that is neither there nor predicted has no F1.
    present = actual + guessed > 0
    metrics = {"accuracy": right.sum() / confusion.sum(), "macro_f1": f1[present].mean()}
    if classes == 2:
        metrics["f1"] = f1[1]
    if task.metric == "matthews":
        metrics["matthews"] = _matthews(confusion)
    return {name: float(value) for name, value in metrics.items()}


def _matthews(confusion: NDArray[np.float64]) -> float:
    total, right = confusion.sum(), np.trace(confusion)
    actual, guessed = confusion.sum(1), confusion.sum(0)
    spread = math.sqrt(float(total**2 - guessed @ guessed)) * math.sqrt(float(total**2 - actual @ actual))
    return float((right * total - actual @ guessed) / spread) if spread else 0.0


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf
