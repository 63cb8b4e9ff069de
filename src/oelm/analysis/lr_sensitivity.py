"""LR sensitivity of the arms of a study, from the trials of its tuning. Test splits have no part in it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean

from oelm.analysis.results import Results, finite_number
from oelm.study.cells import Cell, both_stages, grid_points, tuning_seeds
from oelm.study.study import LR, Study, Value


def lr_sensitivity(losses: Sequence[float], *, at_init: float) -> float | None:
    """How much is lost on average by a learning rate of the grid that is not the best one (Wortsman et al. 2023).

    The mean of min(loss, loss at initialization) minus the best loss, in nats. A trial that diverged (infinite) learned
    nothing, and counts as the loss at initialization. None where no trial learned anything: there is no best then, and
    a training that fails everywhere alike would seem to be the least sensitive of all.
    """
    reached = [loss if loss < at_init else at_init for loss in losses]
    best = min(reached)
    return sum(reached) / len(reached) - best if best < at_init else None


def lr_sensitivities(results: Results, arm: str) -> dict[int, float]:
    """By seed of the tuning, of those whose trials all came to an end and some of which learned something.

    Where other settings were tuned as well, a learning rate counts with the best of its trials.
    """
    found = {}
    for seed in tuning_seeds(both_stages(results.study)) if results.study.tunes_lr else ():
        trials = _lr_trials(results.study, arm, seed)
        at_init = _loss_at_init(results, [trial for some in trials.values() for trial in some])
        losses = [loss for some in trials.values() if (loss := _best_loss(results, some)) is not None]
        if at_init is None or len(losses) < len(trials):
            continue
        value = lr_sensitivity(losses, at_init=at_init)
        if value is not None:
            found[seed] = value
    return found


def _lr_trials(study: Study, arm: str, seed: int) -> dict[Value, list[Cell]]:
    """The trials of an arm and seed by learning rate."""
    found: dict[Value, list[Cell]] = {}
    for point in grid_points(study):
        found.setdefault(dict(point)[LR], []).append(Cell(arm=arm, seed=seed, point=point))
    return found


def _best_loss(results: Results, trials: Sequence[Cell]) -> float | None:
    """At the last step, on the validation split; infinite where all diverged, None where one came to no end."""
    losses = []
    for record in map(results.tuning.get, trials):
        if record is None or record.status not in ("done", "diverged"):
            return None
        last = finite_number(record.last_evaluation.get("loss"))
        losses.append(last if record.status == "done" and last is not None else math.inf)
    return min(losses)


def _loss_at_init(results: Results, trials: Sequence[Cell]) -> float | None:
    """The training loss of the first step, before its update: that of the first batch, the same in all trials.

    Nothing is evaluated before the first step. One batch is a rough measure, and enough: it only bounds what a trial
    that failed is worth.
    """
    logs = (results.steps(trial).loss for trial in trials if trial in results.tuning)
    first = [loss for losses in logs if (loss := finite_number(next(iter(losses), None))) is not None]
    return fmean(first) if first else None
