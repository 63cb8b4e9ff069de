"""Benches made by hand: the file that `oelm bench` would have left beside a study's records."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from oelm.runs.layout import write_json
from oelm.study.cells import Cell, resolve_cell
from oelm.study.study import Study

BASE_SECONDS = 0.27
MIB = 2**20


def ratio(median: float, *, half: float = 0.01, rounds: int = 64, block_length: float = 1.0) -> dict[str, Any]:
    """A ratio whose interval reaches a factor of `1 + half` to each side; with too few rounds it has none."""
    few = rounds < 6
    return {
        "median": median,
        "low": 0.0 if few else median / (1 + half),
        "high": None if few else median * (1 + half),
        "level": 0.95,
        "trimmed": median,
        "floor": median,
        "rounds": rounds,
        "block_length": block_length,
    }


def between(arm: str, against: str, told: Mapping[str, Any]) -> dict[str, Any]:
    """A row of `pairs`: two arms of which neither is the one that all are compared with."""
    return {"arm": arm, "against": against, "ratio": dict(told)}


def bench_of(study: Study, ratios: Mapping[str, Any], /, *, at_most: float = 0.08, **parts: Any) -> dict[str, Any]:
    """What a bench of these arms says: their ratio to the arm that is compared with, or all of `ratio`'s fields.

    Arms that freeze have a ceiling of 0.055, and all others one of 0; parts of the file are replaced.
    """
    arms: dict[str, Any] = {study.compare.baseline: _arm(BASE_SECONDS, None, frozen=False, at_most=0.0)}
    for name, told in ratios.items():
        step = told if isinstance(told, Mapping) else ratio(told)
        frozen = study.arms[name].treatment.freeze != "none" if name in study.arms else True
        arms[name] = _arm(BASE_SECONDS * step["median"], dict(step), frozen=frozen, at_most=at_most)
    return {
        "format": 1,
        "study": study.name,
        "against": study.compare.baseline,
        "seed": 0,
        "precision": 0.01,
        "stopped_by": "precision",
        "rounds": 64,
        "steps": 2,
        "seconds": 151.4,
        "batch": study.recipe.batch.size,
        "length": 26.4,
        "device": "cpu (a CPU)",
        "apart": None,
        "arms": arms,
        "spec": {name: _made_with(study, name) for name in arms},
        "system": {"cores": 2, "others": 0.04, "load": [1.1, 1.9], "gpu_clock": None, "gpu_temperature": None},
        "warnings": [],
        "provenance": {"cpu": "a CPU", "gpu": None, "threads": 2, "oelm": "0.1.0"},
        **parts,
    }


def _made_with(study: Study, name: str) -> dict[str, Any]:
    known = name if name in study.arms else study.compare.baseline
    return resolve_cell(study, Cell(arm=known, seed=study.seeds[0])).to_dict()


def _arm(seconds: float, step: dict[str, Any] | None, *, frozen: bool, at_most: float) -> dict[str, Any]:
    learning = 240 * MIB if frozen else 260 * MIB
    memory = {
        "device": "cpu",
        "before": 500 * MIB,
        "peak": 900 * MIB,
        "parameters": 87 * MIB,
        "gradients": learning // 3,
        "optimizer": learning - learning // 3,
        "activations": 100 * MIB,
        "theory": {"parameters": 87 * MIB, "gradients": learning // 3, "optimizer": 160 * MIB, "activations": None},
        "checkpoint": {"weights": 87 * MIB, "optimizer": 160 * MIB, "total": 247 * MIB},
    }
    if step is None:
        return {
            "step_seconds": seconds,
            "outliers": 1,
            "ratios": {},
            "ceiling": None,
            "at_most": None,
            "memory": memory,
        }
    narrow = {"rounds": step["rounds"], "half": 0.02}
    parts = {"forward": 1.0, "backward": step["median"] ** 1.5, "optimizer": 0.92 if frozen else 1.0}
    return {
        "step_seconds": seconds,
        "outliers": 3,
        "ratios": {"step": step, **{name: ratio(median, **narrow) for name, median in parts.items()}},
        "ceiling": 0.055 if frozen else 0.0,
        "at_most": at_most if frozen else 0.0,
        "memory": memory,
    }


def write_bench(folder: Path, study: Study, ratios: Mapping[str, Any], /, **parts: Any) -> Path:
    write_json(folder / "bench.json", bench_of(study, ratios, **parts))
    return folder


def edited(folder: Path, change: Any, *, name: str = "bench.json") -> Path:
    """The file with one thing changed in place."""
    data = json.loads((folder / name).read_text())
    change(data)
    (folder / name).write_text(json.dumps(data))
    return folder
