"""oelm as a user starts it: in a process of its own, and what its cells left behind."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from safetensors.torch import load_file

import oelm

OELM = [sys.executable, "-m", "oelm"]


def environment(tmp_path: Path) -> dict[str, str]:
    return {**os.environ, "OELM_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}


def run(*words: object, env: dict[str, str], cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*OELM, *map(str, words)],
        env=env,
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=300,
        stdin=subprocess.DEVNULL,
    )


def start(*words: object, env: dict[str, str], cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [*OELM, *map(str, words)],
        env=env,
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def until(holds: Callable[[], object], *, seconds: float = 120, what: str = "it") -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, f"{what} did not come to be in {seconds:.0f} s"
        time.sleep(0.1)


def steps_of(cell: Path) -> list[dict[str, float]]:
    """Loss, rate and length of the gradient of every step."""
    try:
        rows = [json.loads(line) for line in (cell / "steps.jsonl").read_text().splitlines()]
    except FileNotFoundError:
        return []
    return [{name: row[name] for name in ("step", "loss", "lr", "grad_norm")} for row in rows]


def bits_of(cell: Path) -> dict[str, object]:
    """All that must be the same wherever a cell has run."""
    record = oelm.read_record(cell)
    assert record is not None
    assert record.status == "done", record.error
    return {
        "steps": steps_of(cell),
        "report": record.report,
        "evaluations": record.evaluations,
        "batches": record.start["batches"],
        "model": (cell / "model" / "model.safetensors").read_bytes(),
        "predictions": (cell / "predictions.parquet").read_bytes(),
    }


def weights_of(cell: Path) -> dict[str, object]:
    return load_file(cell / "model" / "model.safetensors")
