"""A report over 200 cells with 10,000 logged steps each: seconds, peak memory and size of the page.

    python benchmarks/report.py [--arms 5] [--seeds 40] [--steps 10000] [--format html,md,pdf]

Then status, check and report of 5,000 cells with 100 steps each. The records are made up; their making is not timed.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from oelm.runs.cell_start import CELL_FILE, StartedCell
from oelm.runs.lock import LOCK_FILE, make_lock
from oelm.runs.record import RECORD_FILE, Record, ValidationScore, read_record
from oelm.study.cells import Cell
from result import Result, Target, parser_for, tell

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from made_runs import make_runs, study_of

# Seconds, and MB of memory where that was promised.
MANY_CELLS = {"status": (3.0, None), "check": (10.0, None), "report": (30.0, 500.0)}


def measure(options: argparse.Namespace) -> Iterator[Result]:
    if options.quick:
        options.arms, options.seeds, options.steps, options.evaluations = 2, 2, 100, 10
    with tempfile.TemporaryDirectory() as root:
        folder = make(Path(root), options)
        question = f"report of {options.arms * options.seeds} cells of {options.steps:,} steps, {options.format}"
        yield from run(question, ["report", str(folder), "--format", options.format], seconds=15.0, megabytes=1000.0)
        sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(folder.glob("report.*"))}
    for name, megabytes in sizes.items():
        target = Target(rule="at most", number=3.0)
        yield Result(question=question, what=f"size of {name}", value=megabytes, unit="MB", target=target)
    arms, seeds = (2, 3) if options.quick else (20, 250)
    with tempfile.TemporaryDirectory() as root:
        study = study_of(study="large", arms=arms_of(arms), seeds=list(range(seeds)))
        folder = make_runs(Path(root), study, examples=200, steps=100)
        for command, (seconds, megabytes) in MANY_CELLS.items():
            question = f"{command} of {arms * seeds:,} cells of 100 steps"
            yield from run(question, [command, str(folder)], seconds=seconds, megabytes=megabytes)


def run(question: str, words: list[str], *, seconds: float, megabytes: float | None) -> Iterator[Result]:
    """What a command takes, in a process of its own."""
    began = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "oelm", *words], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    took = time.perf_counter() - began
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, words
    yield Result(question=question, what="seconds", value=took, unit="s", target=Target(rule="at most", number=seconds))
    if megabytes is not None:
        target = Target(rule="at most", number=megabytes)
        yield Result(question=question, what="peak memory", value=usage.ru_maxrss / 1024, unit="MB", target=target)


def arms_of(number: int) -> dict[str, dict[str, str]]:
    """A baseline and others that are frozen."""
    frozen = {f"arm-{arm}": {"init": "keep", "freeze": "qk"} for arm in range(1, number)}
    return {"baseline": {"init": "keep", "freeze": "none"}, **frozen}


def make(root: Path, options: argparse.Namespace) -> Path:
    """The records of one seed, copied to all others with noise."""
    arms = arms_of(options.arms)
    study = study_of(study="many", arms=arms, seeds=list(range(options.seeds)))
    every = max(1, options.steps // options.evaluations)

    def change(cell: Cell, record: Record) -> Record:
        steps = range(every, options.steps + 1, every)
        rising = {step: round(900 - 200 * float(np.exp(-step / 2000))) / 1000 for step in steps}
        scores = (ValidationScore(step=step, metrics={"accuracy": value}) for step, value in rising.items())
        return replace(record, evaluations=tuple(scores))

    folder = make_runs(root, replace(study, seeds=(0,)), steps=options.steps, change=change)
    (folder / "study.json").write_text(json.dumps(study.to_dict()))
    lock = make_lock(study)
    LOCK_FILE.write(folder, lock)
    for arm in arms:
        first = folder / arm / "seed-0"
        record = read_record(first)
        assert record is not None
        assert record.start is not None
        for seed in study.seeds:
            place = folder / arm / f"seed-{seed}"
            if place != first:
                shutil.copytree(first, place)
            spec = replace(record.spec, seed=seed)
            start = replace(record.start, weights=str(seed), lock=lock.digest)
            CELL_FILE.write(place, StartedCell(spec=spec, start=start))
            RECORD_FILE.write(place, replace(record, spec=spec, start=start, batches=str(seed)))
    return folder


if __name__ == "__main__":
    parser = parser_for(__doc__, budget=0)
    parser.add_argument("--arms", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--format", default="html")
    tell(measure, parser)
