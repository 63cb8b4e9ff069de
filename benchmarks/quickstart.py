"""What the quickstart ends with, again and again with other seeds: how often it decides, and what.

    python benchmarks/quickstart.py [--repetitions 10] [--out quickstart-again]

Each takes as long as the quickstart. Ctrl-C keeps what is done; the same command goes on.
"""

import argparse
import subprocess
import sys
import time
from pathlib import Path

import oelm


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("quickstart-again"))
    options = parser.parse_args()
    seeds = oelm.load_study("quickstart").seeds
    for number in range(1, options.repetitions + 1):
        others = [9200 + 10 * number + seed for seed in seeds]  # that no pilot has had
        folder = options.out / str(number)
        began = time.monotonic()
        words = ["--workers", "2", "--set", f"seeds={others}", "--set", "recipe.checkpoint.keep=none"]
        subprocess.run(
            [sys.executable, "-m", "oelm", "run", "quickstart", *words, "--out", str(folder)],
            check=True,
            stdout=subprocess.DEVNULL,
        )
        took = time.monotonic() - began
        print(describe(number, oelm.load(folder / "quickstart")) + f" {took:.0f} s |", flush=True)


def describe(number: int, results: oelm.Results) -> str:
    """A row of a table in Markdown: the baseline, then every arm with its difference and verdict."""
    baseline = results.mean("baseline", "accuracy")
    cells = [str(number), "-" if baseline is None else f"{baseline.mean:.4f}"]
    for one in results.comparisons.values():
        low, high = (100 * end for end in (one.deciding.low, one.deciding.high))
        cells.append(f"{one.arm}: {100 * one.estimate.mean:+.1f} ({low:+.1f} to {high:+.1f}), {one.verdict}")
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
