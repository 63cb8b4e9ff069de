"""What freezing saves in gradients and optimizer state, over what theory says.

    python benchmarks/memory.py

MiniLM on the quickstart's sentences, every arm in a fresh process: the bytes of the tensors that are there.
"""

import argparse
from collections.abc import Iterator

from oelm.bench.memory import measure_peak_memory
from oelm.study.load import load_study
from result import Result, Target, parser_for, tell


def measure(options: argparse.Namespace) -> Iterator[Result]:
    study = load_study("quickstart", ["recipe.batch.size=2"] if options.quick else [])
    baseline, frozen = (measure_peak_memory(study, arm) for arm in ("baseline", "freeze-only"))
    assert baseline.theory is not None
    assert frozen.theory is not None
    saved = baseline.learning - frozen.learning
    theory = baseline.theory.learning - frozen.theory.learning
    peak = (baseline.peak - frozen.peak) / 2**20
    yield Result(
        question="memory saved by freezing, MiniLM",
        what="gradient + optimizer bytes saved, measured / theory",
        value=saved / theory,
        target=Target(rule="at least", number=0.95),
        note=f"{saved / 2**20:.1f} of {theory / 2**20:.1f} MiB; the peak of the process went down by {peak:.1f} MiB",
    )


if __name__ == "__main__":
    tell(measure, parser_for(__doc__, budget=0))
