"""Start-up: how long one waits for help, for a check of a study, and for the first step of a training.

    python benchmarks/startup.py [--runs 15] [--budget 150]

The first step is that of a cell of the quickstart in a process of its own, beside one that only imports torch and
transformers; tokens are cached.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from result import Result, Target, parser_for, tell
from side_by_side import seconds_of, take_turns

OELM = str(Path(sys.executable).with_name("oelm"))
FIRST_STEP = """
import os, sys, time
from oelm.launch.run import run
from oelm.study.load import load_study
from oelm.train.progress import Progress

class First(Progress):
    def on_step(self, step, *, loss):
        print(time.time(), flush=True)
        os._exit(0)  # what comes after it is not asked for

study = load_study("quickstart", ["recipe.budget.steps=1", "seeds=[0]"])
run(study, cells=["baseline/seed-0"], out=sys.argv[1], progress=First())
"""
IMPORTS = "import torch; from transformers import AutoTokenizer, BertForSequenceClassification"


def measure(options: argparse.Namespace) -> Iterator[Result]:
    runs = 2 if options.quick else options.runs
    yield _command("oelm --help", ["--help"], 0.4, runs)
    yield _command("oelm check", ["check", "quickstart"], 0.5, runs)
    yield take_turns({"first step": _first_step, "imports": _imports}, budget=options.budget).result(
        "first step",
        "imports",
        question="first step",
        what="start of a process to the end of its first step / importing torch and transformers",
        note="MiniLM, quickstart",
    )


def _command(question: str, words: list[str], target: float, runs: int) -> Result:
    _run([OELM, *words])  # files are read for the first time
    seconds = [seconds_of(lambda: _run([OELM, *words])) for _ in range(runs)]
    return Result(
        question=question,
        what="seconds, median",
        value=statistics.median(seconds),
        unit="s",
        target=Target(rule="at most", number=target),
        note=f"{min(seconds):.2f} to {max(seconds):.2f} s in {runs} runs",
    )


def _first_step() -> float:
    with tempfile.TemporaryDirectory() as folder:
        began = time.time()
        return float(_run([sys.executable, "-c", FIRST_STEP, folder]).split()[0]) - began


def _imports() -> float:
    return seconds_of(lambda: _run([sys.executable, "-c", IMPORTS]))


def _run(words: list[str]) -> str:
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{Path(words[0]).name} ended with code {done.returncode}:\n{done.stderr}")
    return done.stdout


if __name__ == "__main__":
    parser = parser_for(__doc__, budget=150)
    parser.add_argument("--runs", type=int, default=15, help="of a command")
    tell(measure, parser)
