"""Evaluate: measure a model on a split, example by example."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from oelm.data.batches import collate, in_order_of_length
from oelm.data.tasks import Task
from oelm.data.tokens import Examples, Split
from oelm.heads.whole import is_sharded
from oelm.train.objective import Objective
from oelm.train.ranks import ALONE, Ranks


@dataclass(frozen=True, kw_only=True)
class Measured:
    metrics: dict[str, float]
    predictions: dict[str, NDArray[Any]]
    """By column, a row an example: `row`, `label`, `prediction`, `loss`; for text `row` (window), `loss`, `tokens`."""


def evaluate(
    objective: Objective,
    split: Split,
    *,
    task: Task,
    batch_size: int,
    pad: int,
    device: torch.device,
    ranks: Ranks = ALONE,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Measured:
    """Metrics over all examples of a split, each counted once, by whichever of the processes.

    `tick` hears of the progress, and of one process alone it may raise to stop.
    """
    number = len(split)
    loss = np.zeros(number)
    predicted = np.zeros(number, dtype=np.int64)
    was_training = objective.training
    objective.eval()
    done = 0
    batches = in_order_of_length(split.lengths, batch_size)
    # Sharded weights are put together in place, and could not learn any more if that was done in inference mode.
    sharded = any(map(is_sharded, objective.parameters()))
    try:
        with torch.no_grad() if sharded else torch.inference_mode():
            for mine in range(ranks.mine, len(batches) + -len(batches) % ranks.number, ranks.number):
                rows = batches[mine % len(batches)]
                batch = collate(split, rows, pad=pad, device=device)
                example_losses, logits = objective.each(batch.inputs, batch.targets)
                if mine >= len(batches):  # only to keep in step with the others, who need shards of this process
                    continue
                loss[rows] = example_losses.cpu().double().numpy()
                if logits is not None:
                    predicted[rows] = logits.argmax(-1).cpu().numpy()
                done += len(rows) * ranks.number
                tick(min(done, number), number)
    finally:
        objective.train(was_training)
    ranks.add_each_(loss, predicted)
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
