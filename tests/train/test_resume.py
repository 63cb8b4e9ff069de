"""Kill -9 at any moment, give the same command again: the cell ends with the same bits as if nothing had happened.

Children are forked from this process, which has imported everything, and killed for real: at a random time, at a
random file operation (so in the middle of a checkpoint, of the log of steps, of the record), or at a random moment
of an evaluation.
"""

import collections
import json
import os
import random
import signal
import time
from pathlib import Path

import pyarrow.parquet as parquet
import pytest

import oelm
from oelm.runs.cell_start import read_cell
from oelm.runs.lease import Lease, holder_of, remove_stale, stale_files
from oelm.runs.status import read_state
from torture.training import ARM, CELL, make_study, train, train_until_killed

KILLS = 16


def outcome(cell: Path) -> dict[str, object]:
    """Everything that must not depend on being killed."""
    record = oelm.read_record(cell)
    steps = [json.loads(line) for line in (cell / "steps.jsonl").read_text().splitlines()]
    return {
        "status": record.status,
        "steps": [(row["step"], row["loss"], row["lr"], row["grad_norm"]) for row in steps],
        "evaluations": record.evaluations,
        "test": record.test,
        "start": record.start,
        "batches": record.batches,
        "heads": record.heads,
        "lr": record.lr,
        "audits": [audit.step for audit in record.audits],
        "predictions": parquet.read_table(cell / "predictions.parquet").to_pydict(),
        "model": (cell / "model" / "model.safetensors").read_bytes(),
        "left over": left_over(cell),
    }


def left_over(cell: Path) -> list[str]:
    """All that lies in the folder, when also that is old which nobody had signed before it was killed."""
    stale = stale_files(cell)
    assert not [path for path in stale if any(path.rglob("holder.json"))], "whose holder is known to be dead"
    for path in stale:
        os.utime(path, (0, 0))
    remove_stale(cell)
    return sorted(path.name for path in cell.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("classes", KILLS), ("text", 8)])
def test_killed_anywhere_it_ends_with_the_same_bits(kind, kills, tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    study = make_study(tmp_path, kind)
    cell = CELL
    began = time.monotonic()
    assert train(study, tmp_path / "whole") == 0
    took = time.monotonic() - began

    out = tmp_path / "killed"
    choose = random.Random(7)
    killed = collections.Counter()
    rounds = 0
    while sum(killed.values()) < kills:
        rounds += 1
        assert rounds < 10 * kills
        way = choose.choice(["time", "files", "evaluation"])
        when = {
            "time": choose.uniform(0.02, 0.6) * took,
            "files": choose.randint(1, 60),
            "evaluation": choose.randint(1, 12),
        }[way]
        ended = train_until_killed(study, out, way, when)
        if os.WIFSIGNALED(ended):
            killed[way] += 1
        else:
            assert ended == 0
        if read_state(out / cell) == "done":  # it came to its end before it could be killed: begin anew
            assert train(study, out) == 0
            assert outcome(out / cell) == outcome(tmp_path / "whole" / cell)
            out.rename(out.with_name(f"rest-{rounds}"))
    assert set(killed) == {"time", "files", "evaluation"}
    assert train(study, out) == 0
    assert read_state(out / cell) == "done"
    assert outcome(out / cell) == outcome(tmp_path / "whole" / cell)
    assert len(oelm.read_record(out / cell).launches) >= 1
    assert read_cell(out / cell).spec.arm == ARM


def test_killed_after_its_record_it_leaves_no_lease(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    study = make_study(tmp_path, "classes")
    cell = tmp_path / "runs" / "tiny" / "baseline" / "seed-0"
    monkeypatch.setattr(Lease, "end", lambda lease: os.kill(os.getpid(), signal.SIGKILL))
    assert os.WIFSIGNALED(train(study, tmp_path / "runs", arm="baseline"))
    monkeypatch.undo()
    assert read_state(cell) == "done"
    assert holder_of(cell) is not None

    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    assert train(study, tmp_path / "runs", arm="baseline") == 0
    assert not (cell / "lease").exists()
