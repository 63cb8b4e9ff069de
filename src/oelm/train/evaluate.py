"""Evaluate: measure a model on a split, example by example; at the end, the final and the best model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import torch
from numpy.typing import NDArray
from pyarrow import parquet

from oelm.data.batches import batches_by_length, collate
from oelm.data.tasks import Task, class_metrics
from oelm.data.tokenize import Examples, Split
from oelm.heads.sharded import gather_params, is_sharded
from oelm.runs.layout import MODEL, PREDICTIONS, writing
from oelm.runs.lease import Lease
from oelm.train.checkpoint import load_weights_, weights_of
from oelm.train.distributed import SINGLE_PROCESS, ProcessGroup
from oelm.train.objective import Objective

if TYPE_CHECKING:
    from oelm.train.loop import Loop


@dataclass(frozen=True, kw_only=True)
class Evaluation:
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
    group: ProcessGroup = SINGLE_PROCESS,
    tick: Callable[[int, int], None] = lambda done, total: None,
) -> Evaluation:
    """Metrics over all examples of a split, each counted once, by whichever of the processes.

    `tick` hears of the progress, and of one process alone it may raise to stop.
    """
    number = len(split)
    loss = np.zeros(number)
    predicted = np.zeros(number, dtype=np.int64)
    was_training = objective.training
    objective.eval()
    done = 0
    batches = batches_by_length(split.lengths, batch_size)
    # Sharded weights are gathered in place, and could not be trained any more if that happened in inference mode.
    sharded = any(map(is_sharded, objective.parameters()))
    try:
        with torch.no_grad() if sharded else torch.inference_mode():
            for mine in range(group.rank, len(batches) + -len(batches) % group.world_size, group.world_size):
                rows = batches[mine % len(batches)]
                batch = collate(split, rows, pad=pad, device=device)
                example_losses, logits = objective.each(batch.inputs, batch.targets)
                if mine >= len(batches):  # only to keep in step with the others, who need shards of this process
                    continue
                loss[rows] = example_losses.cpu().double().numpy()
                if logits is not None:
                    predicted[rows] = logits.argmax(-1).cpu().numpy()
                done += len(rows) * group.world_size
                tick(min(done, number), number)
    finally:
        objective.train(was_training)
    group.all_reduce_arrays_(loss, predicted)
    if not isinstance(split, Examples):
        tokens = split.lengths
        per_token = float(loss.sum() / tokens.sum())
        metrics = {"perplexity": _exp(per_token), "loss": per_token}
        return Evaluation(metrics=metrics, predictions={"row": np.arange(number), "loss": loss, "tokens": tokens})
    metrics = {**class_metrics(split.labels, predicted, task), "loss": float(loss.mean())}
    columns = {"row": split.rows, "label": split.labels, "prediction": predicted, "loss": loss}
    return Evaluation(metrics=metrics, predictions=columns)


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


# -- the end of a cell ---------------------------------------------------------------------------------------------


def evaluate_final(loop: Loop) -> dict[str, Any]:
    """Measure the final model, then the chosen one, on every reported split; keep predictions and a model."""
    assert loop.state.best is not None  # the last step is always measured
    assert loop.best_weights is not None
    steps = {"final": loop.total, "best": loop.state.best["step"]}
    final_weights = weights_of(loop.model)
    reported: dict[str, Any] = {}
    tables: list[pa.Table] = []
    for which, step in steps.items():
        if which == "best" and step == loop.total:
            reported[which] = {**reported["final"], "step": step}
            tables += [table.set_column(0, "model", pa.array(["best"] * table.num_rows)) for table in list(tables)]
            continue
        if which == "best":
            load_weights_(loop.model, loop.best_weights)
        splits = {}
        for name, split in loop.prepared.test.items():
            measured = loop.evaluate(split, name)
            splits[name] = measured.metrics
            number = len(measured.predictions["row"])
            columns = {"model": np.full(number, which), "split": np.full(number, name), **measured.predictions}
            tables.append(pa.table(columns))
        reported[which] = {"step": step, "splits": splits}
    lease, keep = loop.lease, loop.recipe.checkpoint.keep
    load_weights_(loop.model, loop.best_weights if keep == "best" else final_weights)
    with gather_params(loop.model):
        if lease is not None:
            _keep(loop, lease, tables)
    return reported


def _keep(loop: Loop, lease: Lease, tables: list[pa.Table]) -> None:
    with writing(loop.folder):
        made = lease.staging / PREDICTIONS
        parquet.write_table(pa.concat_tables(tables), made, compression="zstd")
        lease.publish(made, PREDICTIONS)
        if loop.recipe.checkpoint.keep != "none":
            made = lease.staging / MODEL
            loop.applied.save_pretrained(made)
            loop.prepared.tokenizer.backend_tokenizer.no_truncation()  # which tokenizing has set, if it was just done
            loop.prepared.tokenizer.save_pretrained(made)
            lease.publish(made, MODEL)
