"""Evaluate: measure a model on a split, example by example; at the end, the final and the best model."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from oelm.data.batches import batches_by_length, collate
from oelm.data.kinds.kind import Encoded
from oelm.data.tasks import Task
from oelm.data.tokenize import Examples, Split, Windows
from oelm.heads.sharded import gather_params, is_sharded
from oelm.metrics import class_metrics
from oelm.runs.files import writing
from oelm.runs.layout import MODEL, PREDICTIONS
from oelm.runs.lease import Lease
from oelm.runs.predictions import Predictions, write_predictions
from oelm.runs.record import ModelScores, Which
from oelm.train.adapters import save_arm
from oelm.train.checkpoint import load_weights_, weights_of
from oelm.train.distributed import SINGLE_PROCESS, ProcessGroup
from oelm.train.objective import Objective

if TYPE_CHECKING:
    from oelm.train.loop import Loop


class Diverged(Exception):
    """The loss, or what is compared, is not finite."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    metrics: dict[str, float]
    predictions: Predictions


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
    # Of text, what is kept are documents: a window holds parts of several, and its neighbors are no others by chance.
    ends = split.document_ends if isinstance(split, Windows) else None
    loss = np.zeros(number if ends is None else len(ends))
    if isinstance(split, Encoded):
        predicted = split.new_answers()
    else:
        predicted = np.zeros(number, dtype=split.labels.dtype if isinstance(split, Examples) else np.int64)
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
                losses, logits = objective.each(batch.inputs, batch.targets)
                if mine >= len(batches):  # only to keep in step with the others, who need shards of this process
                    continue
                measured = losses.cpu().double().numpy()
                if isinstance(split, Encoded):
                    assert logits is not None
                    loss[rows] = measured
                    split.put_answers(predicted, rows, logits.cpu().numpy())
                elif logits is not None:
                    answers = logits.squeeze(-1) if task.kind == "regression" else logits.argmax(-1)
                    loss[rows], predicted[rows] = measured, answers.cpu().numpy()
                elif ends is not None:
                    places = rows[:, None] * measured.shape[1] + np.arange(1, measured.shape[1] + 1)
                    np.add.at(loss, np.searchsorted(ends, places), measured)
                done += len(rows) * group.world_size
                tick(min(done, number), number)
    finally:
        objective.train(was_training)
    group.all_reduce_arrays_(loss, predicted)
    if isinstance(split, Examples) and task.kind == "regression":
        loss[:] = (predicted - split.labels) ** 2  # of labels that float32 has not all digits of
    if isinstance(split, Encoded):
        return _score(task, Predictions(**split.score(loss, predicted)))
    if not isinstance(split, Examples):
        assert ends is not None
        documents = Predictions(row=np.arange(len(ends)), loss=loss, tokens=np.diff(ends, prepend=0))
        per_token = documents.mean("loss")
        assert per_token is not None
        return Evaluation(metrics={"perplexity": _exp(per_token), "loss": per_token}, predictions=documents)
    metrics = class_metrics(task.metrics, split.labels, predicted, len(task.labels)) | {"loss": float(loss.mean())}
    kept = Predictions(row=split.rows, label=split.labels, prediction=predicted, loss=loss)
    return Evaluation(metrics=metrics, predictions=kept)


def _score(task: Task, kept: Predictions) -> Evaluation:
    """All that is reported is made of what is kept."""
    measured = {name: kept.mean(name) for name in task.metrics}
    return Evaluation(metrics={name: one for name, one in measured.items() if one is not None}, predictions=kept)


def _exp(loss: float) -> float:
    return math.exp(loss) if loss < 700 else math.inf


# -- the end of a cell ---------------------------------------------------------------------------------------------


def evaluate_final(loop: Loop) -> dict[Which, ModelScores]:
    """Measure the final model, then the best one, on every test split; keep predictions and a model."""
    assert loop.state.best is not None  # the last step is always measured
    assert loop.best_weights is not None
    final_weights = weights_of(loop.model)
    measured: dict[Which, dict[str, Evaluation]] = {"final": _evaluate_test(loop)}
    if loop.state.best.step == loop.total:
        measured["best"] = measured["final"]
    else:
        load_weights_(loop.model, loop.best_weights)
        measured["best"] = _evaluate_test(loop)
    metric = loop.spec.compare.metric
    for which, splits in measured.items():
        for name, one in splits.items():
            if not math.isfinite(one.metrics[metric]):
                raise Diverged(f"{metric} of the {which} model on {name} is {one.metrics[metric]}")
    load_weights_(loop.model, loop.best_weights if loop.recipe.checkpoint.keep == "best" else final_weights)
    with gather_params(loop.model):
        if loop.lease is not None:
            _keep(loop, loop.lease, measured)
    steps: dict[Which, int] = {"final": loop.total, "best": loop.state.best.step}
    return {
        which: ModelScores(step=steps[which], splits={name: one.metrics for name, one in splits.items()})
        for which, splits in measured.items()
    }


def _evaluate_test(loop: Loop) -> dict[str, Evaluation]:
    return {name: loop.evaluate(split, name) for name, split in loop.prepared.test.items()}


def _keep(loop: Loop, lease: Lease, measured: dict[Which, dict[str, Evaluation]]) -> None:
    predictions = {(which, name): one.predictions for which, splits in measured.items() for name, one in splits.items()}
    with writing(loop.folder):
        made = lease.staging / PREDICTIONS
        write_predictions(made, predictions)
        lease.publish(made, PREDICTIONS)
        if loop.recipe.checkpoint.keep != "none":
            made = lease.staging / MODEL
            save_arm(loop.applied, made, spec=loop.spec)
            loop.prepared.tokenizer.backend_tokenizer.no_truncation()  # which tokenizing has set, if it was just done
            loop.prepared.tokenizer.save_pretrained(made)
            lease.publish(made, MODEL)
