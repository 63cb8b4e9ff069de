"""Convergence: how many steps, and how much time of training, an arm takes to come as far as all arms come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from oelm.analysis.results import Results
from oelm.study.plan import Cell


@dataclass(frozen=True, kw_only=True)
class Reached:
    """Where a cell first was as good as the target on the selection split."""

    step: int
    seconds: float | None
    """Of training steps alone; None where the log does not go that far."""


@dataclass(frozen=True, kw_only=True)
class Convergence:
    """The target is the best mean of the arm whose best mean is worst: as good as every arm becomes."""

    target: float
    reached: dict[str, dict[int, Reached | None]]
    """By arm and seed; None for a cell that never came so far."""


def curves(results: Results, arm: str) -> dict[int, dict[int, float]]:
    """The primary metric on the selection split: by seed, by step."""
    metric = results.study.compare.primary.metric
    found = {}
    for seed, record in results.of(arm).items():
        rows = [row for row in record.evaluations if _finite(row.get("step")) and _finite(row.get(metric))]
        curve = {int(row["step"]): float(row[metric]) for row in rows}
        if curve:
            found[seed] = dict(sorted(curve.items()))
    return found


def mean_curve(by_seed: Mapping[int, Mapping[int, float]]) -> dict[int, float]:
    """At the steps at which all seeds were measured."""
    if not by_seed:
        return {}
    shared = set.intersection(*(set(curve) for curve in by_seed.values()))
    return {step: fmean(curve[step] for curve in by_seed.values()) for step in sorted(shared)}


def convergence(results: Results) -> Convergence | None:
    """None unless every arm was measured on the way."""
    best = max if results.study.compare.primary.better == "higher" else min
    worst = min if results.study.compare.primary.better == "higher" else max
    by_arm = {arm: curves(results, arm) for arm in results.arms}
    means = {arm: mean_curve(by_seed) for arm, by_seed in by_arm.items()}
    if not means or not all(means.values()):
        return None
    target = worst(best(curve.values()) for curve in means.values())
    return Convergence(
        target=target,
        reached={
            arm: {seed: _reached(results, Cell(arm=arm, seed=seed), curve, target) for seed, curve in by_seed.items()}
            for arm, by_seed in by_arm.items()
        },
    )


def _reached(results: Results, cell: Cell, curve: Mapping[int, float], target: float) -> Reached | None:
    higher = results.study.compare.primary.better == "higher"
    step = next((step for step, value in curve.items() if (value >= target if higher else value <= target)), None)
    if step is None:
        return None
    log = results.steps(cell)
    whole = len(log) and log.step[-1] >= step and np.isfinite(log.seconds).all()
    return Reached(step=step, seconds=float(log.seconds[log.step <= step].sum()) if whole else None)


def _finite(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))
