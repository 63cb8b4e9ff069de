"""A report over 200 cells with 10,000 logged steps each: seconds of CPU, peak memory and size of the page.

    python benchmarks/report.py [--arms 5] [--seeds 40] [--steps 10000] [--format html,md,pdf] [--beside OTHER/src]

Then status, check and report of 5,000 cells with 100 steps each, and the check of study files. The records are made
up; their making is not timed. With `--beside`, the sources of another commit do the same at the same time: whatever
else the machine has to do, it does to both.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
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
STUDIES = ("quickstart", "bert-sst2-fair")


def measure(options: argparse.Namespace) -> Iterator[Result]:
    if options.quick:
        options.arms, options.seeds, options.steps, options.evaluations = 2, 2, 100, 10
    for study in STUDIES:
        yield from run(f"check of {study}", ["check", study], options, seconds=0.6, megabytes=None)
    with tempfile.TemporaryDirectory() as root:
        folder = make(Path(root), options)
        question = f"report of {options.arms * options.seeds} cells of {options.steps:,} steps, {options.format}"
        words = ["report", str(folder), "--format", options.format]
        yield from run(question, words, options, seconds=15.0, megabytes=1000.0)
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
            yield from run(question, [command, str(folder)], options, seconds=seconds, megabytes=megabytes)


def run(
    question: str, words: list[str], options: argparse.Namespace, *, seconds: float, megabytes: float | None
) -> Iterator[Result]:
    """What a command takes, in a process of its own: of its CPU, for others may have to do with the machine."""
    sources = {"here": os.environ.get("PYTHONPATH", ""), **({"beside": options.beside} if options.beside else {})}
    processes = {
        name: subprocess.Popen(
            [sys.executable, "-m", "oelm", *words],
            stdout=subprocess.DEVNULL,
            env={**os.environ, "PYTHONPATH": source},
        )
        for name, source in sources.items()
    }
    took, peak = {}, {}
    for name, process in processes.items():
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, words
        took[name], peak[name] = usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024
    target = Target(rule="at most", number=seconds)
    seconds_of = took if options.beside else {}
    yield Result(question=question, what="CPU", value=took["here"], unit="s", target=target, seconds=seconds_of)
    if megabytes is not None:
        target = Target(rule="at most", number=megabytes)
        yield Result(question=question, what="peak memory", value=peak["here"], unit="MB", target=target)


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
    parser.add_argument("--beside", metavar="FOLDER")
    tell(measure, parser)
