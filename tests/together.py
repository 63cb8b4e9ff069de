"""A cell that several processes train together, and what it has in common with one that was trained by one."""

from pathlib import Path

import numpy as np
import pytest
import torch
from pyarrow import parquet

import oelm
import tiny_study
from running import steps_of, weights_of


def make(folder: Path, **recipe) -> Path:
    """Without dropout, of which every process draws its own; batches do not divide, and one has a single example."""
    # At a rate at which nothing is learned by heart: next to a loss of zero, rounding is large.
    optimizer = {"lr": 1e-4}
    recipe = {"batch": {"size": 7, "accumulate": 2}, "checkpoint": {"every": 8}, "optimizer": optimizer, **recipe}
    content = tiny_study.study(tiny_study.write_data(folder / "data", train=146), **recipe)
    content["recipe"]["model"]["dropout"] = 0.0
    content["seeds"] = [0]
    return tiny_study.write_study(folder, content)


def check_same(one: Path, two: Path) -> None:
    """Up to the order in which numbers are added."""
    records = [oelm.read_record(folder) for folder in (one, two)]
    assert [record.status for record in records] == ["done", "done"], records[1].error
    assert records[0].batches == records[1].batches
    assert records[0].start.weights == records[1].start.weights
    for mine, other in zip(steps_of(one), steps_of(two), strict=True):
        assert mine["step"] == other["step"]
        assert mine["loss"] == pytest.approx(other["loss"], rel=2e-4)
        assert mine["grad_norm"] == pytest.approx(other["grad_norm"], rel=2e-3)
    for mine, other in zip(records[0].evaluations, records[1].evaluations, strict=True):
        assert mine.step == other.step
        assert mine.metrics == pytest.approx(other.metrics, rel=1e-3)
    tables = [parquet.read_table(folder / "predictions.parquet").to_pydict() for folder in (one, two)]
    assert tables[0]["row"] == tables[1]["row"], "all examples, each once"
    assert tables[0].get("tokens") == tables[1].get("tokens")
    assert np.allclose(tables[0]["loss"], tables[1]["loss"], rtol=1e-3, atol=1e-4)
    weights = [weights_of(folder) for folder in (one, two)]
    for name, mine in weights[0].items():
        assert torch.allclose(mine, weights[1][name], rtol=1e-3, atol=2e-5), name
