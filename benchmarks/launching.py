"""Launching: what a cell costs beside its training, which is what decides how many of them a cluster can run at once.

    python benchmarks/launching.py [--folder FOLDER] [--weights 22713986] [--runs 5]

With `--folder` on the file system that the cells will share, the figures are those of that file system. Checkpoints
have as many weights as MiniLM, unless told otherwise. Times are the shortest of several: what a cell takes when nobody
else is there. docs/clusters.md shows what follows from them.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cost import Load, Phase, Site, Weights, wave_seconds
from oelm.runs.layout import CHECKPOINTS, STEPS
from oelm.runs.lease import acquire
from oelm.runs.record import read_record
from oelm.study.cells import Cell, resolve_cell
from oelm.study.load import load_study
from oelm.train.cell import load_data
from oelm.train.preflight import check_data
from oelm.train.progress import Progress
from result import Result, parser_for, tell
from side_by_side import seconds_of

MANY = 1000  # cells
CELL = """
import sys
opened = []
sys.addaudithook(lambda event, args: opened.append(args[0]) if event == "open" else None)

import json, os, time
from oelm.launch.run import run
from oelm.study.load import load_study
from oelm.train.progress import Progress

class Ready(Progress):
    def on_cell_start(self, cell, *, step, total):
        mapped = {line.split()[-1] for line in open("/proc/self/maps") if "/" in line}
        files = {os.fspath(path) for path in opened if isinstance(path, (str, os.PathLike))} | mapped
        sizes = [os.path.getsize(path) for path in files if os.path.isfile(path)]
        print(json.dumps({"ready": time.time(), "files": len(sizes), "bytes": sum(sizes)}), flush=True)

study = load_study("quickstart", sys.argv[2:])
run(study, cells=["baseline/seed-0"], out=sys.argv[1], progress=Ready())
"""
CHECKPOINT = """
import sys, time
from pathlib import Path
import torch
from oelm.runs.lease import acquire
from oelm.runs.layout import CHECKPOINTS
from oelm.runs.train_state import CheckpointState, TrainState
from oelm.train.checkpoint import latest_checkpoint, save_checkpoint

folder, weights, step = Path(sys.argv[1]), int(sys.argv[2]), 0
parts = {"model": 1, "optimizer": 2, "best": 1}  # weights, two moments, the best weights so far
tensors = {name: {"all": torch.rand(number * weights)} for name, number in parts.items()}
with acquire(folder) as lease:
    print("ready", flush=True)
    for line in sys.stdin:
        began = time.perf_counter()
        if line.strip() == "write":
            step += 1
            state = CheckpointState(train=TrainState(step=step), frozen={}, scaler=None, groups=(), tensors={})
            save_checkpoint(lease, state, tensors)
        else:
            assert latest_checkpoint(folder / CHECKPOINTS, log=print) is not None
        print(time.perf_counter() - began, flush=True)
"""


def measure(options: argparse.Namespace) -> Iterator[Result]:
    if options.quick:
        options.weights, options.runs = 100_000, 1
    with tempfile.TemporaryDirectory(dir=options.folder) as name:
        folder = Path(name)
        short, long = (1, 2) if options.quick else (20, 100)
        cells = [run_cell(folder / f"cell-{number}", steps=short) for number in range(1 if options.quick else 3)]
        first = min(cells, key=lambda cell: cell.whole)
        yield _seconds(
            "start of a cell", "process to first step", first.start, note=f"{first.load.files:,} files opened"
        )
        yield _megabytes("start of a cell", "all files that were opened", first.bytes)
        yield from _kept(first.folder)
        yield from _data(first.folder.parents[1], options.runs)
        yield from _lease(folder / "held", options.runs)
        alone = checkpoint_seconds(folder, options.weights, at_once=1, runs=options.runs)
        yield from _checkpoint(alone, options.weights)
        yield from _at_once(folder, alone["write"], options)
        yield _whole(first, run_cell(folder / "second", steps=long), alone)


# -- a cell --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Ran:
    """A cell of the quickstart that ran in a process of its own, and evaluated after every quarter."""

    folder: Path
    load: Load
    start: float
    """Seconds from the start of the process to its first step."""
    whole: float
    """Seconds from the start of the process to its end."""
    step_seconds: float
    bytes: int
    """Of all files that were opened until then."""


def run_cell(out: Path, *, steps: int) -> Ran:
    every = max(1, steps // 4)
    overrides = [f"recipe.budget.steps={steps}", f"recipe.evaluate.every={every}", "seeds=[0]"]
    began = time.time()
    told = json.loads(_run([sys.executable, "-c", CELL, str(out), *overrides]).splitlines()[-1])
    whole = time.time() - began
    folder = out / "quickstart" / "baseline" / "seed-0"
    record = read_record(folder)
    assert record is not None
    assert record.start is not None
    assert record.counts is not None
    rows = [json.loads(line)["seconds"] for line in (folder / STEPS).read_text().splitlines()]
    sizes, measured = record.start.data.sizes, len(record.evaluations)
    # The best model is tested too, unless it is the final one.
    tested = 1 + (record.test["best"].step != steps)
    examples = measured * sizes["validation"] + tested * sum(n for split, n in sizes.items() if "test" in split)
    return Ran(
        folder=folder,
        load=Load(
            steps=steps,
            passes=examples / record.spec.recipe.batch.size,
            checkpoints=measured,
            model=Weights(total=record.counts.total, learning=record.counts.trainable),
            files=told["files"],
            read=0,  # model and data are read until the first step, and in its time
        ),
        start=told["ready"] - began,
        whole=whole,
        step_seconds=statistics.median(rows),
        bytes=told["bytes"],
    )


def _whole(first: Ran, second: Ran, alone: dict[str, float]) -> Result:
    """What the cost model says of a longer cell, from a shorter one and from checkpoints by themselves."""
    here = Site(
        step_seconds=first.step_seconds,
        queue_seconds=0.0,
        start_seconds=first.start,
        read_speed=1.0,
        write_speed=alone["bytes"] / alone["write"],
        **dict.fromkeys(("starts", "opens", "bandwidth"), float("inf")),
    )
    said = wave_seconds(second.load, here, 1)
    return Result(
        question="a whole cell, MiniLM",
        what="seconds, measured / by the cost model",
        value=second.whole / said,
        seconds={"measured": second.whole, "cost model": said},
        note=f"{second.load.steps} steps, {second.load.checkpoints} checkpoints; the model knows a cell of "
        f"{first.load.steps} steps",
    )


def _kept(folder: Path) -> Iterator[Result]:
    sizes = {path.name: path.stat().st_size for path in folder.iterdir() if path.is_file()}
    yield _megabytes("a finished cell", "record, log and predictions", sum(sizes.values()))
    steps = len((folder / STEPS).read_text().splitlines())
    yield _megabytes("a finished cell", "log of 1,000 steps", sizes[STEPS] / steps * 1000)
    model = sum(path.stat().st_size for path in (folder / "model").iterdir())
    yield _megabytes("a finished cell", "the model that is kept", model)


def _data(root: Path, runs: int) -> Iterator[Result]:
    study = load_study("quickstart")
    cell = resolve_cell(study, Cell(arm="baseline", seed=0))
    prepared = load_data(cell.recipe, Progress())
    seconds = [seconds_of(lambda: load_data(cell.recipe, Progress())) for _ in range(runs)]
    yield _seconds("data cache", "tokens found and mapped", min(seconds))
    for number in range(1, MANY):
        place = root / "baseline" / f"seed-{number}"
        place.mkdir()
        shutil.copyfile(root / "baseline/seed-0/cell.json", place / "cell.json")
    seconds = [seconds_of(lambda: check_data(cell, root, prepared.facts)) for _ in range(runs)]
    yield _seconds("data cache", f"compared with those of {MANY:,} cells", min(seconds))


def _lease(folder: Path, runs: int) -> Iterator[Result]:
    def take() -> None:
        with acquire(folder):
            pass

    yield _seconds("a lease", "taken and let go of", min(seconds_of(take) for _ in range(runs)))
    with acquire(folder) as lease:
        seconds = [seconds_of(lambda: os.utime(lease.staging / "holder.json")) for _ in range(runs)]
    yield _seconds("a lease", "a sign of life", min(seconds))


# -- checkpoints ---------------------------------------------------------------------------------------------------


def checkpoint_seconds(folder: Path, weights: int, *, at_once: int, runs: int) -> dict[str, float]:
    """Seconds to `write` a checkpoint and to `read` it, of the slowest of so many processes, and its `bytes`."""
    words = [sys.executable, "-c", CHECKPOINT]
    places = [Path(tempfile.mkdtemp(dir=folder)) for _ in range(at_once)]
    processes = [
        subprocess.Popen(
            [*words, str(place), str(weights)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1
        )
        for place in places
    ]
    try:
        for process in processes:
            _answer(process)
        taken: dict[str, list[float]] = {"write": [], "read": []}
        for _ in range(runs):
            for what, seconds in taken.items():
                for process in processes:
                    assert process.stdin is not None
                    process.stdin.write(what + "\n")
                seconds.append(max(float(_answer(process)) for process in processes))
    finally:
        for process in processes:
            process.communicate()  # the end of its input is its end
    found = max((places[0] / CHECKPOINTS).iterdir())
    size = sum(path.stat().st_size for path in found.iterdir())
    for place in places:
        shutil.rmtree(place)
    return {**{what: min(seconds) for what, seconds in taken.items()}, "bytes": float(size)}


def _checkpoint(alone: dict[str, float], weights: int) -> Iterator[Result]:
    question = f"checkpoint of {weights:,} weights"
    yield _megabytes(question, "weights, two moments, the best weights so far", alone["bytes"])
    for what in ("write", "read"):
        speed = alone["bytes"] / alone[what] / 1e6
        yield _seconds(question, what, alone[what], note=f"{speed:.0f} MB/s, with checksums")


def _at_once(folder: Path, alone: float, options: argparse.Namespace) -> Iterator[Result]:
    """What two at once share says what four at once take."""
    two, four = (
        checkpoint_seconds(folder, options.weights, at_once=number, runs=options.runs)["write"] for number in (2, 4)
    )
    said = Phase(alone=alone, shared=two / 2).seconds(4)
    yield Result(
        question=f"four checkpoints at once, of {options.weights:,} weights",
        what="seconds, measured / by the cost model from one and two",
        value=four / said,
        seconds={"one": alone, "two": two, "four": four},
    )


def _answer(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        raise RuntimeError(f"it ended with code {process.wait()}")
    return line


# -- showing -------------------------------------------------------------------------------------------------------


def _seconds(question: str, what: str, value: float, *, note: str = "") -> Result:
    return Result(question=question, what=what, value=value, unit="s", note=note)


def _megabytes(question: str, what: str, value: float, *, note: str = "") -> Result:
    return Result(question=question, what=what, value=value / 1e6, unit="MB", note=note)


def _run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{Path(words[0]).name} ended with code {done.returncode}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    parser = parser_for(__doc__, budget=0)
    parser.add_argument("--folder", type=Path, help="where to write; left out, where temporary files are")
    parser.add_argument("--weights", type=int, default=22_713_986, help="of a checkpoint")
    parser.add_argument("--runs", type=int, default=5, help="of everything but whole cells")
    tell(measure, parser)
