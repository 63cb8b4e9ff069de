"""A report over 200 cells with 10,000 logged steps each: seconds, peak memory and size of the page.

    python benchmarks/report.py [--arms 5] [--seeds 40] [--steps 10000] [--format html,md,pdf]

The aim is below 15 seconds, 1 GB and 3 MB. The records are made up; their making is not timed.
"""

import argparse
import json
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from made_runs import make_runs, study_of

MAKE = """
import sys
from pathlib import Path
from oelm.analysis.results import read_results
from oelm.report.write import write_report
write_report(read_results(Path(sys.argv[1])), formats=sys.argv[2].split(","))
"""


def main() -> None:
    parser = argparse.ArgumentParser(description="seconds, memory and size of a report")
    parser.add_argument("--arms", type=int, default=5)
    parser.add_argument("--seeds", type=int, default=40)
    parser.add_argument("--steps", type=int, default=10_000)
    parser.add_argument("--evaluations", type=int, default=100)
    parser.add_argument("--format", default="html")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        folder = make(Path(root), options)
        began = time.perf_counter()
        subprocess.run([sys.executable, "-c", MAKE, str(folder), options.format], check=True)
        seconds = time.perf_counter() - began
        peak = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
        sizes = {path.name: path.stat().st_size / 1e6 for path in sorted(folder.glob("report.*"))}
    print(f"{options.arms * options.seeds} cells of {options.steps:,} steps, {options.format}")
    print(f"{seconds:.1f} s, peak {peak:,.0f} MB")
    for name, megabytes in sizes.items():
        print(f"{name} {megabytes:.2f} MB")


def make(root: Path, options: argparse.Namespace) -> Path:
    """The records of one seed, copied to all others with noise."""
    arms: dict[str, Any] = {"baseline": {"init": "keep", "freeze": "none"}}
    arms |= {f"arm-{number}": {"init": "keep", "freeze": "qk"} for number in range(1, options.arms)}
    study = study_of(study="many", arms=arms, seeds=list(range(options.seeds)))
    every = max(1, options.steps // options.evaluations)

    def change(cell: Any, record: Any) -> Any:
        steps = range(every, options.steps + 1, every)
        rows = [{"step": step, "accuracy": round(900 - 200 * float(np.exp(-step / 2000))) / 1000} for step in steps]
        return replace(record, evaluations=rows)

    folder = make_runs(root, replace(study, seeds=(0,)), steps=options.steps, change=change)
    (folder / "study.json").write_text(json.dumps(study.to_dict()))
    for arm in arms:
        first = folder / arm / "seed-0"
        record, cell = (json.loads((first / name).read_text()) for name in ("record.json", "cell.json"))
        for seed in study.seeds[1:]:
            place = folder / arm / f"seed-{seed}"
            shutil.copytree(first, place)
            record["made_with"]["seed"] = cell["seed"] = seed
            record["start"] |= {"weights": str(seed), "batches": str(seed)}
            (place / "record.json").write_text(json.dumps(record))
            (place / "cell.json").write_text(json.dumps(cell | {"start": record["start"]}))
    return folder


if __name__ == "__main__":
    main()
