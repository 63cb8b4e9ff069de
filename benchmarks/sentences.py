"""Sentences: our loop with MiniLM on short sentences, as the comparisons of training have it.

A comparison goes through the same few sentences again and again, so that every visit has as much to do as any other.
"""

import argparse
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import transformers
from torch import nn

from oelm.bench.run import bench
from oelm.data.batches import BatchSampler
from oelm.models.dropout import Dropout
from oelm.runs.bench import Bench
from oelm.runs.lease import acquire
from oelm.study.cells import Cell, resolve_cell
from oelm.study.load import load_study
from oelm.study.study import Study
from oelm.train.cell import build_cell_model, build_loop
from oelm.train.loop import Loop
from oelm.train.progress import Progress
from oelm.train.signals import StopRequest

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()

BATCH = 32
SHORTEST = 20.0  # seconds of a bench: one round must fit


def add_sst2(parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    parser.add_argument(
        "--sst2",
        default=os.environ.get("OELM_SST2"),
        help="a folder with SST-2, or the variable OELM_SST2; without it the quickstart's sentences, which are longer",
    )
    return parser


def study_of(sst2: str | None, *, precision: str = "fp32") -> Study:
    """MiniLM on SST-2, or on the quickstart's sentences; it never comes to an end by itself."""
    overrides = ["tune=null", f"recipe.precision={precision}", "recipe.data.max_length=128"]
    overrides += [f"recipe.batch.size={BATCH}", "recipe.budget={steps: 1000000}", "recipe.evaluate.every=1000000"]
    if sst2 is None:
        return load_study("quickstart", overrides)
    return load_study("minilm-sst2", [*overrides, f"recipe.data.path={sst2}"])


@contextmanager
def loop_of(study: Study, *, batches: int | None = None) -> Iterator[Loop]:
    """The loop of the baseline; with `batches`, it goes through so many batches of sentences again and again."""
    with tempfile.TemporaryDirectory() as folder:
        cell = Cell(arm="baseline", seed=0)
        with acquire(Path(folder) / cell.folder) as lease:
            loop = build_loop(resolve_cell(study, cell), Path(folder), Progress(), StopRequest(), lease=lease)
            if batches is not None:
                lengths = loop.prepared.train.lengths[: batches * BATCH]
                loop.order = BatchSampler(lengths, batch_size=BATCH, accumulate=1, seed=0)
            yield loop
            loop.close_log()


def their_model(loop: Loop) -> nn.Module:
    """The model of the loop as others train it, with torch's own dropout."""
    model = build_cell_model(loop.recipe, loop.prepared, seed=0)
    for module in model.modules():
        if type(module) is Dropout:
            module.__class__ = nn.Dropout
    return model


def described(study: Study, loop: Loop, batches: int) -> str:
    mean = loop.prepared.train.lengths[: batches * BATCH].mean()
    return f"{study.recipe.data.task}, {mean:.1f} tokens a sentence, batch {BATCH}"


def benched(study: Study, *, arms: list[str] | None = None, budget: float) -> Bench:
    """`oelm bench` on a study, of which no files are kept."""
    with tempfile.TemporaryDirectory() as folder:
        return bench(study, arms=arms, budget=max(budget, SHORTEST), memory=False, out=folder)
