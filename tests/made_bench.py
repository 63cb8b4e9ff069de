"""Benches made by hand: the file that `oelm bench` would have left beside a study's records."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from made_runs import PROVENANCE, edit_sealed
from oelm.runs.bench import (
    BENCH_FILE,
    ArmTiming,
    Bench,
    CheckpointBytes,
    MeasuredMemory,
    PairTiming,
    Ratio,
    StepMemory,
    SystemLoad,
)
from oelm.study.cells import Cell, CellSpec, resolve_cell
from oelm.study.study import Study

BASE_SECONDS = 0.27
MIB = 2**20
LOAD = SystemLoad(
    threads=2,
    interop_threads=1,
    affinity=(0, 1),
    cores=2,
    others=0.04,
    load=(1.1, 1.9),
    gpu_clock=None,
    gpu_temperature=None,
)


def ratio(median: float, *, half: float = 0.01, rounds: int = 64, block_length: float = 1.0) -> Ratio:
    """A ratio whose interval reaches a factor of `1 + half` to each side; with too few rounds it has none."""
    few = rounds < 6
    return Ratio(
        median=median,
        low=0.0 if few else median / (1 + half),
        high=None if few else median * (1 + half),
        trimmed=median,
        floor=median,
        rounds=rounds,
        block_length=block_length,
    )


def between(arm: str, against: str, found: Ratio) -> PairTiming:
    """Two arms of which neither is the one that all are compared with."""
    return PairTiming(arm=arm, against=against, ratio=found)


def bench_of(study: Study, ratios: Mapping[str, float | Ratio], /, *, at_most: float = 0.08, **parts: Any) -> Bench:
    """A bench of these arms, by their ratio to the arm that is compared with; parts of it are replaced.

    Arms that freeze have a ceiling of 0.055, and all others one of 0.
    """
    arms = {study.compare.baseline: _arm(None, frozen=False)}
    for name, found in ratios.items():
        frozen = name not in study.arms or study.arms[name].treatment.freeze != "none"
        step = found if isinstance(found, Ratio) else ratio(found)
        arms[name] = _arm(step, frozen=frozen, at_most=at_most)
    bench = Bench(
        study=study.name,
        against=study.compare.baseline,
        seed=0,
        precision=0.01,
        stopped_by="precision",
        rounds=64,
        steps=2,
        seconds=151.4,
        batch=study.recipe.batch.size,
        length=26.4,
        device="cpu (a CPU)",
        isolated=None,
        arms=arms,
        pairs=(),
        spec={name: _spec(study, name) for name in arms},
        system=LOAD,
        warnings=(),
        provenance=PROVENANCE,
    )
    return replace(bench, **parts)


def _spec(study: Study, name: str) -> CellSpec:
    known = name if name in study.arms else study.compare.baseline
    return resolve_cell(study, Cell(arm=known, seed=study.seeds[0]))


def _arm(step: Ratio | None, *, frozen: bool, at_most: float = 0.0) -> ArmTiming:
    if step is None:
        return ArmTiming(step_seconds=BASE_SECONDS, outliers=1, ratios={}, memory=_memory(frozen=False))
    medians = {"forward": 1.0, "backward": step.median**1.5, "optimizer": 0.92 if frozen else 1.0}
    parts = {name: ratio(median, half=0.02, rounds=step.rounds) for name, median in medians.items()}
    return ArmTiming(
        step_seconds=BASE_SECONDS * step.median,
        outliers=3,
        ratios={"step": step, **parts},
        ceiling=0.055 if frozen else 0.0,
        at_most=at_most if frozen else 0.0,
        memory=_memory(frozen=frozen),
    )


def _memory(*, frozen: bool) -> MeasuredMemory:
    learning = 240 * MIB if frozen else 260 * MIB
    gradients = learning // 3
    return MeasuredMemory(
        device="cpu",
        steps=3,
        before=500 * MIB,
        peak=900 * MIB,
        parameters=87 * MIB,
        gradients=gradients,
        optimizer=learning - gradients,
        activations=100 * MIB,
        theory=StepMemory(parameters=87 * MIB, gradients=gradients, optimizer=160 * MIB),
        checkpoint=CheckpointBytes(weights=87 * MIB, optimizer=160 * MIB),
    )


def write_bench(folder: Path, study: Study, ratios: Mapping[str, float | Ratio], /, **parts: Any) -> Path:
    BENCH_FILE.write(folder, bench_of(study, ratios, **parts))
    return folder


def edited(folder: Path, change: Callable[[Any], object], *, name: str = BENCH_FILE.name) -> Path:
    """The file with one thing changed in place, as if it had been written so."""
    if name == BENCH_FILE.name:
        edit_sealed(folder / name, change)
        return folder
    data = json.loads((folder / name).read_text())
    change(data)
    (folder / name).write_text(json.dumps(data))
    return folder
