"""CPU time and peak memory of finding the texts that train and test have in common, at the size of AG News.

    python benchmarks/overlap.py [--train 120000] [--test 7600]

Texts of 40 words, as frequent as in the quickstart's sentences. Nearly all test texts are put into train, some with
other case and punctuation, some with two other words; the rest of train is made anew. In a fresh process, with the
reading of the files and the choice of 2,000 rows to hold out.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from pyarrow import parquet

from oelm.data.sources import find_source
from oelm.data.tables import read_rows
from oelm.data.tasks import task_named
from result import Result, Target, parser_for, tell

DIVIDE = """
import json, sys, time
from dataclasses import asdict
from pathlib import Path
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import task_named
reader = SplitReader(find_source(task_named("ag_news"), sys.argv[1]), int(sys.argv[2]))
found = asdict(reader.division.overlap[0])
# Not getrusage: what it says includes the process that forked this one.
status = Path("/proc/self/status").read_text().splitlines()
found["memory"] = int(next(line.split()[1] for line in status if line.startswith("VmHWM"))) / 1024
print(json.dumps(found | {"seconds": time.process_time()}))
"""


def measure(options: argparse.Namespace) -> Iterator[Result]:
    train, test = (1200, 76) if options.quick else (options.train, options.test)
    with tempfile.TemporaryDirectory() as folder:
        same, near = write_splits(Path(folder), train, test)
        words = [sys.executable, "-c", DIVIDE, folder, str(train // 60)]
        done = subprocess.run(words, check=True, stdout=subprocess.PIPE, text=True)
    found = json.loads(done.stdout)
    question = f"overlap of {train:,} with {test:,} texts"
    exact, nearly = f"{found['exact']:,} of {same:,} the same", f"{found['near']:,} of {near:,} nearly the same"
    note = f"found {exact}, {nearly}; {found['dropped']:,} dropped"
    at_most = {name: Target(rule="at most", number=number) for name, number in (("s", 20.0), ("MB", 1000.0))}
    yield Result(question=question, what="CPU time", value=found["seconds"], unit="s", target=at_most["s"], note=note)
    yield Result(question=question, what="peak memory", value=found["memory"], unit="MB", target=at_most["MB"])


def write_splits(folder: Path, train: int, test: int) -> tuple[int, int]:
    """(texts of test that are in train, those that nearly are)"""
    sentences = read_rows(find_source(task_named("rotten_tomatoes"), None), "train")["text"].to_pylist()
    known = [word for sentence in sentences for word in sentence.split() if word.isalpha()]
    draw = random.Random(0)
    tested = [draw.choices(known, k=40) for _ in range(test)]
    same, near = test * 95 // 100, test * 2 // 100
    copies = [" ".join(words).capitalize() + "!" for words in tested[:same]]
    for words in tested[same : same + near]:
        copies.append(" ".join([*words[:12], "another", *words[13:30], "another", *words[31:]]))
    others = [" ".join(draw.choices(known, k=40)) for _ in range(train - len(copies))]
    texts = {"train": [*copies, *others], "test": [" ".join(words) for words in tested]}
    draw.shuffle(texts["train"])
    for split, some in texts.items():
        parquet.write_table(
            pa.table({"text": some, "label": [number % 4 for number in range(len(some))]}), folder / f"{split}.parquet"
        )
    return same, near


if __name__ == "__main__":
    parser = parser_for(__doc__, budget=0)
    parser.add_argument("--train", type=int, default=120_000, help="texts")
    parser.add_argument("--test", type=int, default=7_600, help="texts")
    tell(measure, parser)
