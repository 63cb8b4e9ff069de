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
import sys
import time
import traceback
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch

import oelm
import tiny_study
from oelm.runs.cell_start import read_cell
from oelm.runs.lease import Lease, holder_of, remove_stale, stale_files
from oelm.runs.status import read_state
from oelm.study.load import load_study
from oelm.train.progress import Progress
from running import run_cell

KILLS = 24
FILE_OPERATIONS = ("open", "os.rename", "os.remove", "os.link", "shutil.rmtree", "os.mkdir")


class KilledInEvaluation(Progress):
    def __init__(self, after: int):
        self.after = after

    def on_evaluate(self, what, done, total):
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_at_file_operation(number: int, below: Path) -> None:
    """Kill this process at its `number`th operation on files of the cell."""
    left = number

    def hook(event, arguments):
        nonlocal left
        if event in FILE_OPERATIONS and str(below) in str(arguments[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def child(study: Path, out: Path, *, arm: str, kill: tuple[str, float] | None) -> int:
    """Run the cell in a child; returns how it ended, as `os.waitpid` says."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            torch.set_num_threads(1)
            progress = Progress()
            if kill is not None and kill[0] == "evaluation":
                progress = KilledInEvaluation(int(kill[1]))
            if kill is not None and kill[0] == "files":
                kill_at_file_operation(int(kill[1]), out)
            record = run_cell(load_study(study), arm=arm, seed=0, out=out, progress=progress)
            code = 0 if record.status == "done" else 3
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    if kill is not None and kill[0] == "time":
        time.sleep(kill[1])
        os.kill(pid, signal.SIGKILL)
    return os.waitpid(pid, 0)[1]


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


def study_of(tmp_path: Path, kind: str) -> Path:
    if kind == "classification":
        return tiny_study.make(tmp_path)
    content = tiny_study.language_study(
        tmp_path,
        max_length=32,
        batch={"size": 2, "accumulate": 2},
        schedule={"name": "cosine", "warmup": 3, "floor": 0.1},
    )
    content["arms"]["oelm-freeze"]["unfreeze"] = {"start": 0.3, "end": 0.8}
    return tiny_study.write_study(tmp_path, content)


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "kills"), [("classification", KILLS), ("language-modeling", 12)])
def test_killed_anywhere_it_ends_with_the_same_bits(kind, kills, tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    study = study_of(tmp_path, kind)
    cell = Path("tiny/oelm-freeze/seed-0")
    began = time.monotonic()
    assert child(study, tmp_path / "whole", arm="oelm-freeze", kill=None) == 0
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
        ended = child(study, out, arm="oelm-freeze", kill=(way, when))
        if os.WIFSIGNALED(ended):
            killed[way] += 1
        else:
            assert ended == 0
        if read_state(out / cell) == "done":  # it came to its end before it could be killed: begin anew
            assert child(study, out, arm="oelm-freeze", kill=None) == 0
            assert outcome(out / cell) == outcome(tmp_path / "whole" / cell)
            out.rename(out.with_name(f"rest-{rounds}"))
    assert set(killed) == {"time", "files", "evaluation"}
    assert child(study, out, arm="oelm-freeze", kill=None) == 0
    assert read_state(out / cell) == "done"
    assert outcome(out / cell) == outcome(tmp_path / "whole" / cell)
    assert len(oelm.read_record(out / cell).launches) >= 1
    assert read_cell(out / cell).spec.arm == "oelm-freeze"


def test_killed_after_its_record_it_leaves_no_lease(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    study = study_of(tmp_path, "classification")
    cell = tmp_path / "runs" / "tiny" / "baseline" / "seed-0"
    monkeypatch.setattr(Lease, "end", lambda lease: os.kill(os.getpid(), signal.SIGKILL))
    assert os.WIFSIGNALED(child(study, tmp_path / "runs", arm="baseline", kill=None))
    monkeypatch.undo()
    assert read_state(cell) == "done"
    assert holder_of(cell) is not None

    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    assert child(study, tmp_path / "runs", arm="baseline", kill=None) == 0
    assert not (cell / "lease").exists()
