"""Report: the final model and the chosen one, measured on what is reported, and what is kept of them."""

from typing import Any

import numpy as np
import pyarrow as pa
from pyarrow import parquet

from oelm.heads.whole import gathered
from oelm.records.lease import Lease
from oelm.records.store import MODEL, PREDICTIONS, writing
from oelm.train.checkpoint import load_weights_, weights_of
from oelm.train.loop import Loop


def report(loop: Loop) -> dict[str, Any]:
    """Measure the final model, then the chosen one, on every reported split; keep predictions and a model."""
    assert loop.state.chosen is not None  # the last step is always measured
    assert loop.chosen_weights is not None
    steps = {"final": loop.total, "chosen": loop.state.chosen["step"]}
    final_weights = weights_of(loop.model)
    reported: dict[str, Any] = {}
    tables: list[pa.Table] = []
    for which, step in steps.items():
        if which == "chosen" and step == loop.total:
            reported[which] = {**reported["final"], "step": step}
            tables += [table.set_column(0, "model", pa.array(["chosen"] * table.num_rows)) for table in list(tables)]
            continue
        if which == "chosen":
            load_weights_(loop.model, loop.chosen_weights)
        splits = {}
        for name, split in loop.prepared.report.items():
            measured = loop.measure(split, name)
            splits[name] = measured.metrics
            number = len(measured.predictions["row"])
            columns = {"model": np.full(number, which), "split": np.full(number, name), **measured.predictions}
            tables.append(pa.table(columns))
        reported[which] = {"step": step, "splits": splits}
    lease, keep = loop.lease, loop.recipe.checkpoint.keep
    load_weights_(loop.model, loop.chosen_weights if keep == "best" else final_weights)
    with gathered(loop.model):
        if lease is not None:
            _keep(loop, lease, tables)
    return reported


def _keep(loop: Loop, lease: Lease, tables: list[pa.Table]) -> None:
    with writing(loop.folder):
        made = lease.place / PREDICTIONS
        parquet.write_table(pa.concat_tables(tables), made, compression="zstd")
        lease.move_in(made, PREDICTIONS)
        if loop.recipe.checkpoint.keep != "none":
            made = lease.place / MODEL
            loop.applied.save_pretrained(made)
            loop.prepared.tokenizer.backend_tokenizer.no_truncation()  # which tokenising has set, if it was just done
            loop.prepared.tokenizer.save_pretrained(made)
            lease.move_in(made, MODEL)
