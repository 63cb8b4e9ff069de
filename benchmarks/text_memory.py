"""Peak memory of tokenizing plain text, by its size, and the line through it: text of any size must fit.

    python benchmarks/text_memory.py [--sizes 50,200,500]

The quickstart's sentences in random order, as one text and as stories with end-of-text marks. Every size in a fresh
process, with the training of its tokenizer.
"""

import argparse
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from oelm.data.documents import END_OF_TEXT
from oelm.data.sources import find_source
from oelm.data.tables import read_rows
from oelm.data.tasks import task_named
from result import Result, Target, parser_for, tell

TOKENIZE = """
import sys
import torch  # as in a training, which tokenizes before it starts
from pathlib import Path
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import tokenize_task, train_tokenizer
def trained(texts, made_from):
    return train_tokenizer(texts, vocab=8192, made_from=made_from)
tokenize_task(find_source(task_named("text"), sys.argv[1]), tokenizer=trained, max_length=128, validation=100)
# Not getrusage: what it says includes the process that forked this one.
status = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""
LARGE = 2000  # MB that the line is followed to


def measure(options: argparse.Namespace) -> Iterator[Result]:
    sizes = [1, 2] if options.quick else [int(size) for size in options.sizes.split(",")]
    for name, end in {"one text": "\n", "stories with marks": f"\n{END_OF_TEXT}\n"}.items():
        question = f"tokenizing plain text, {name}"
        peaks = []
        for size in sizes:
            peaks.append(peak_memory(size, end))
            yield Result(question=question, what=f"peak memory of {size} MB", value=peaks[-1], unit="MB")
        slope, start = np.polyfit(sizes, peaks, 1)
        yield Result(
            question=question,
            what=f"peak memory of {LARGE:,} MB, by the line through them",
            value=float(start + slope * LARGE),
            unit="MB",
            target=Target(rule="at most", number=600.0),
            note=f"{start:.0f} MB and {slope:.3f} MB for each MB of text",
        )


def peak_memory(size: int, end: str) -> float:
    """MB of the process that tokenizes `size` MB of stories, with `end` after each."""
    with tempfile.TemporaryDirectory() as folder:
        text = Path(folder) / "text.txt"
        write_stories(text, size * 10**6, end)
        words = [sys.executable, "-c", TOKENIZE, str(text)]
        environment = os.environ | {"OELM_CACHE": f"{folder}/cache"}
        done = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE, text=True)
    return int(done.stdout) / 1024


def write_stories(path: Path, size: int, end: str) -> None:
    lines = read_rows(find_source(task_named("rotten_tomatoes"), None), "train")["text"].to_pylist()
    draw, written = random.Random(0), 0
    with path.open("w", encoding="utf-8") as file:
        while written < size:
            written += len(story := "\n".join(draw.choices(lines, k=10)) + end)
            file.write(story)


if __name__ == "__main__":
    parser = parser_for(__doc__, budget=0)
    parser.add_argument("--sizes", default="50,200,500", help="MB of text")
    tell(measure, parser)
