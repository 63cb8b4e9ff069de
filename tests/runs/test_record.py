"""Record: read as it was written; anything else is said to be damaged. And where it was made."""

import json
import math
import mmap
import subprocess
import sys
from dataclasses import asdict, replace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from made_runs import edit_sealed, made_record
from oelm.errors import CellError, OelmError
from oelm.runs.layout import RECORD
from oelm.runs.lease import acquire
from oelm.runs.provenance import collect_provenance, peak_memory, reset_peak_memory
from oelm.runs.record import RECORD_FILE, ModelScores, Record, ValidationScore, read_record, write_record
from oelm.study.cells import Cell
from oelm.version import __version__

GOOD = replace(
    made_record(Cell(arm="baseline", seed=0), {"accuracy": 0.5}),
    evaluations=(ValidationScore(step=1, metrics={"perplexity": math.inf}),),
    test={"final": ModelScores(step=2, splits={"validation": {"accuracy": 0.5}, "other": {"accuracy": 0.1}})},
)


def test_read_as_written(tmp_path):
    assert read_record(tmp_path) is None
    with acquire(tmp_path) as lease:
        write_record(lease, GOOD)
    assert read_record(tmp_path) == GOOD
    assert json.loads((tmp_path / RECORD).read_text())["format"] == RECORD_FILE.format


def test_a_value_is_that_of_the_first_reported_split():
    assert GOOD.value("accuracy") == 0.5
    assert GOOD.value("perplexity") is None
    assert GOOD.value("accuracy", model="best") is None


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"format": RECORD_FILE.format + 1}, "a newer oelm"),
        ({"format": RECORD_FILE.format - 1}, "the oelm that wrote it; or move it away; oelm run makes"),
        ({"format": None}, "it has no format number"),
        ({"status": "perfect"}, "status: Input should be 'done'"),
        ({"lr": {}}, "lr: Input should be a valid array"),
        ({"test": None}, "test: Input should be an object"),
        ({"error": "text"}, "error: Input should be an object"),
        ({"test": {"final": 5}}, "test.final: Input should be an object"),
        ({"test": {"last": {"step": 1, "splits": {}}}}, "test.last"),
        ({"test": {"final": {"step": 1, "splits": {"test": None}}}}, "test.final.splits.test"),
        ({"peak_memory": {"process": "much", "gpu": None}}, "peak_memory.process"),
        ({"more": 1}, "more"),
    ],
)
def test_a_damaged_record(tmp_path, change, says):
    with acquire(tmp_path) as lease:
        write_record(lease, GOOD)
    edit_sealed(tmp_path / RECORD, lambda data: data.update(change))
    with pytest.raises(CellError, match=f"(?s)record.json .*{says}"):
        read_record(tmp_path)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("test.final.splits.validation.accuracy", 1.3, "accuracy is 1.3, and can be from 0 to 1"),
        ("test.final.splits.validation.accuracy", -5, "accuracy is -5"),
        ("test.final.splits.validation.accuracy", math.nan, "accuracy is nan"),
        ("test.final.splits.validation.matthews", -1.5, "matthews is -1.5, and can be from -1 to 1"),
        ("test.final.splits.validation.loss", -0.5, "loss is -0.5"),
        ("test.final.splits.validation.loss", math.inf, "loss is inf"),
        ("test.final.splits.validation.perplexity", 0.5, "perplexity is 0.5"),
        ("seconds.training", -1, "seconds.training"),
        ("seconds.training", 1e400, "seconds.training"),
        ("lr", [[1, -1e308]], "lr.0.1"),
        ("start.padding", 1.5, "start.padding"),
        ("files", {"steps.jsonl": {"size": -1, "sha256": ""}}, "files.steps.jsonl.size"),
    ],
)
def test_a_number_that_cannot_be_is_damage_whoever_wrote_it(tmp_path, path, value, says):
    def change(data):
        *parents, last = path.split(".")
        for name in parents:
            data = data[name]
        data[last] = value

    RECORD_FILE.write(tmp_path, GOOD)
    edit_sealed(tmp_path / RECORD, change)
    with pytest.raises(CellError, match=f"(?s)is damaged.*{says}"):
        read_record(tmp_path)


def test_a_registered_metric_may_be_anything_unless_it_is_compared(tmp_path):
    spec = replace(GOOD.spec, compare=replace(GOOD.spec.compare, metric="my_own"))
    for metric, value in (("my_own", 7.5), ("another", math.nan)):
        scores = ModelScores(step=2, splits={"validation": {metric: value}})
        RECORD_FILE.write(tmp_path, replace(GOOD, spec=spec, test={"final": scores}))
        assert read_record(tmp_path) is not None
    with pytest.raises(ValueError, match="my_own on validation is nan"):
        replace(GOOD, spec=spec, test={"final": ModelScores(step=2, splits={"validation": {"my_own": math.nan}})})


KEYS = st.sampled_from(["final", "splits", "accuracy"]) | st.text(max_size=3)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=5,
)
FIELDS = [*Record.__annotations__, "format", "another"]


@pytest.mark.slow
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.binary(max_size=40)
    | JSON.map(lambda data: json.dumps(data).encode())
    | st.dictionaries(st.sampled_from(FIELDS), JSON, max_size=2).map(
        lambda change: json.dumps({**json.loads(RECORD_FILE.dumps(GOOD)), **change}).encode()
    )
)
def test_any_bytes(tmp_path, content):
    (tmp_path / RECORD).write_bytes(content)
    try:
        found = read_record(tmp_path)
    except OelmError:
        return
    assert isinstance(found, Record)
    found.value("accuracy")


def test_provenance_is_plain_data():
    found = json.loads(json.dumps(asdict(collect_provenance())))
    assert found["oelm"] == __version__
    assert found["versions"]["torch"] is not None
    assert found["threads"] == torch.get_num_threads()


def test_reading_needs_no_torch():
    code = (
        "import sys, oelm.runs.record; from oelm.runs.provenance import collect_provenance; "
        "collect_provenance(); sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_peak_memory_is_measured_anew():
    reset_peak_memory()
    before = peak_memory().process
    # Memory that goes back to the system at once, whatever was done here before with freed memory.
    with mmap.mmap(-1, 100_000_000) as block:
        for page in range(0, len(block), mmap.PAGESIZE):
            block[page] = 1  # written to, not only asked for
        with_block = peak_memory().process
    assert with_block - before > 90_000_000
    reset_peak_memory()
    after = peak_memory().process
    assert after < with_block - 50_000_000
