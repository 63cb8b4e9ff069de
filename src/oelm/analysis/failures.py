"""Failures: planned seeds of an arm without a result that can be used. They count, by one rule for all arms.

A seed failed if it diverged, came to no end, failed an audit, learned nothing, is damaged or has no number. What was
not run yet is no failure: the comparison is incomplete. No verdict rests on the seeds that survived: it must hold with
every failure at the worst value as well. An arm that learns nothing in any seed did not fail by bad luck: that is its
result, and the numbers that it has are taken.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from oelm.analysis.evidence import judged_values
from oelm.analysis.results import Results, finite_number
from oelm.message import Message
from oelm.metrics import find_metric
from oelm.runs.layout import FINISHED
from oelm.runs.record import Which
from oelm.study.cells import Cell, grid_points, tuning_seeds

_LEVEL = 0.95


@dataclass(frozen=True, kw_only=True)
class SeedOutcomes:
    """How the planned seeds of an arm ended."""

    arm: str
    planned: tuple[int, ...]
    not_run: tuple[int, ...]
    failed: Mapping[int, Message]
    """By seed, how."""
    values: Mapping[int, float]
    """By seed, of those that did not fail; on the scale on which the metric is judged."""

    @property
    def num_ran(self) -> int:
        return len(self.planned) - len(self.not_run)

    @property
    def rate_at_most(self) -> float:
        """The failure rate that these seeds do not exclude: 95 %, one-sided (Clopper and Pearson)."""
        from scipy.special import betaincinv

        n, k = self.num_ran, len(self.failed)
        return 1.0 if k >= n else float(betaincinv(k + 1, n - k, _LEVEL))

    def counted(self, worst: float) -> dict[int, float]:
        """With failures at the worst value."""
        return {**self.values, **dict.fromkeys(self.failed, worst)}


def seed_outcomes(results: Results, arm: str, metric: str, *, model: Which = "final") -> SeedOutcomes:
    """Of quality. Counts, memory and times are what they are, and taken where they were measured."""
    values = judged_values(results, arm, metric, model=model)
    if find_metric(metric).kind == "tuning":
        return _tuning_outcomes(results, arm, metric, values)
    if find_metric(metric).kind not in ("predictions", "loss", "curve"):
        return SeedOutcomes(arm=arm, planned=tuple(values), not_run=(), failed={}, values=values)
    failed: dict[int, Message] = {}
    not_run = []
    for seed in results.planned.seeds:
        cell = Cell(arm=arm, seed=seed)
        record = results.records.get(cell)
        if record is None and str(cell) in results.damaged:
            failed[seed] = Message("failure-damaged")
        elif record is None or record.status not in (*FINISHED, "failed"):
            not_run.append(seed)
        elif record.status != "done":
            failed[seed] = Message(f"status-{record.status}")
        elif seed not in values:
            failed[seed] = Message("failure-no-number", metric=metric)
    collapsed = {cell.seed for cell in results.collapsed if cell.arm == arm and cell.seed in values}
    if collapsed != set(results.planned.seeds):
        failed |= dict.fromkeys(sorted(collapsed), Message("failure-collapsed"))
    return SeedOutcomes(
        arm=arm,
        planned=results.planned.seeds,
        not_run=tuple(not_run),
        failed=dict(sorted(failed.items())),
        values={seed: value for seed, value in values.items() if seed not in failed},
    )


def _tuning_outcomes(results: Results, arm: str, metric: str, values: Mapping[int, float]) -> SeedOutcomes:
    """Of trials. That some diverge is part of what is measured; a seed failed if there is nothing to measure."""
    planned, there = tuning_seeds(results.planned), results.tuning
    missing = [seed for seed in planned if seed not in values]
    trials = {
        seed: [Cell(arm=arm, seed=seed, point=point) for point in grid_points(results.planned)] for seed in missing
    }
    not_run = [
        seed for seed in missing if any(one not in there and str(one) not in results.damaged for one in trials[seed])
    ]
    why = Message("failure-no-number", metric=metric)
    return SeedOutcomes(
        arm=arm,
        planned=planned,
        not_run=tuple(not_run),
        failed={seed: why for seed in missing if seed not in not_run},
        values=values,
    )


def worst_value(results: Results, metric: str) -> float:
    """What a failure counts as: the worst there can be, so that nothing hangs on what a failed run is worth.

    Of shares that is 0 (of Matthews' correlation, -1). A loss has no worst value: the largest that was seen at a first
    step, before anything was learned, or at an end. Not a number where neither is known, as of a metric of one's own
    or of an LR sensitivity: then nothing is decided.
    """
    known, everything = find_metric(metric), results.whole or results
    if known.kind == "tuning":
        return math.nan
    if known.kind == "predictions":
        bound = known.low if known.direction == "higher" else known.high
        return bound if math.isfinite(bound) else math.nan
    logs = (everything.steps(cell).loss for cell in everything.records)
    first = [loss for losses in logs if (loss := finite_number(next(iter(losses), None))) is not None]
    if not first:
        return math.nan
    ends = (value for arm in everything.arms for value in judged_values(everything, arm, metric).values())
    return max([*first, *ends])  # a perplexity is judged as the loss
