"""A report over 200 cells with 10,000 logged steps each: seconds, peak memory and size of the page.

    python benchmarks/report.py [--arms 5] [--seeds 40] [--steps 10000] [--format html,md,pdf]

The records are made up; their making is not timed.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np

from oelm.runs.cell_start import CELL_FILE, StartedCell
from oelm.runs.record import RECORD_FILE, Record, ValidationScore, read_record
from oelm.study.cells import Cell
from result import Result, Target, parser_for, tell
from side_by_side import seconds_of

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from made_runs import make_runs, study_of

MAKE = """
import sys
from pathlib import Path
from oelm.analysis.results import read_results
from oelm.report.write import write_report
write_report(read_results(Path(sys.argv[1])), formats=sys.argv[2].split(","))
"""


def measure(options: argparse.Namespace) -> Iterator[Result]:
    if options.quick:
        options.arms, options.seeds, options.steps, options.evaluations = 2, 2, 100, 10
    with tempfile.TemporaryDirectory() as root:
        folder = make(Path(root), options)
        words = [sys.executable, "-c", MAKE, str(folder), options.format]
        seconds = seconds_of(lambda: subprocess.run(words, check=True))
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(folder.glob("report.*"))}
    question = f"report of {options.arms * options.seeds} cells of {options.steps:,} steps, {options.format}"
    yield Result(question=question, what="seconds", value=seconds, unit="s", target=Target(rule="at most", number=15.0))
    yield Result(
        question=question, what="peak memory", value=peak, unit="MB", target=Target(rule="at most", number=1000.0)
    )
    for name, megabytes in sizes.items():
        target = Target(rule="at most", number=3.0)
        yield Result(question=question, what=f"size of {name}", value=megabytes, unit="MB", target=target)


def make(root: Path, options: argparse.Namespace) -> Path:
    """The records of one seed, copied to all others with noise."""
    arms = {"baseline": {"init": "keep", "freeze": "none"}}
    arms |= {f"arm-{number}": {"init": "keep", "freeze": "qk"} for number in range(1, options.arms)}
    study = study_of(study="many", arms=arms, seeds=list(range(options.seeds)))
    every = max(1, options.steps // options.evaluations)

    def change(cell: Cell, record: Record) -> Record:
        steps = range(every, options.steps + 1, every)
        rising = {step: round(900 - 200 * float(np.exp(-step / 2000))) / 1000 for step in steps}
        scores = (ValidationScore(step=step, metrics={"accuracy": value}) for step, value in rising.items())
        return replace(record, evaluations=tuple(scores))

    folder = make_runs(root, replace(study, seeds=(0,)), steps=options.steps, change=change)
    (folder / "study.json").write_text(json.dumps(study.to_dict()))
    for arm in arms:
        first = folder / arm / "seed-0"
        record = read_record(first)
        assert record is not None
        assert record.start is not None
        for seed in study.seeds[1:]:
            place = folder / arm / f"seed-{seed}"
            shutil.copytree(first, place)
            spec, start = replace(record.spec, seed=seed), replace(record.start, weights=str(seed))
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
