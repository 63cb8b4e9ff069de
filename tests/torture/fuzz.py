"""Fuzz one reader, guided by coverage: it reads what it is given, or refuses it by an OelmError.

    pip install atheris
    python tests/torture/fuzz.py TARGET [--minutes 20] [--corpus FOLDER]

It starts from good files of that kind. What breaks a reader is left as `crash-...` in the corpus, and becomes a test.
"""

import argparse
import json
import os
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1])]

import atheris  # noqa: E402

with atheris.instrument_imports(include=["oelm"]):
    import made_bench
    import made_runs
    import oelm
    import tiny_study
    from oelm.claims.load import load_ledger, shipped_ledgers
    from oelm.data.kinds.table import TASK_KINDS
    from oelm.data.own import read_card
    from oelm.data.sources import find_source
    from oelm.data.splits import SplitReader
    from oelm.data.tasks import task_named
    from oelm.errors import OelmError
    from oelm.heads.save import read_oelm_json
    from oelm.launch.backends.cluster import load_cluster
    from oelm.runs.bench import BENCH_FILE
    from oelm.runs.cell_start import CELL_FILE
    from oelm.runs.files import FileType, digest_file
    from oelm.runs.jobs import Job, append_job, read_jobs
    from oelm.runs.layout import PREDICTIONS, STEPS
    from oelm.runs.lease import HOLDER_FILE, acquire
    from oelm.runs.lock import LOCK_FILE
    from oelm.runs.predictions import read_predictions
    from oelm.runs.record import RECORD_FILE
    from oelm.runs.simple_baseline import SIMPLE_BASELINE_FILE
    from oelm.runs.steps import read_last_steps, read_steps, read_written_steps
    from oelm.runs.train_state import STATE_FILE, CheckpointState, TrainState
    from oelm.study.load import load_study
    from oelm.study.shipped import shipped_studies

HERE = Path(tempfile.mkdtemp(prefix="oelm-fuzz-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
Reader = Callable[[bytes], object]


def _of_file(file: FileType) -> Reader:
    """With the checksum that it should have: else nothing would come any further."""

    def read(data: bytes) -> object:
        text = made_runs.sealed(data.decode("utf-8", "surrogateescape")).encode("utf-8", "surrogateescape")
        return file.parse(text, where=HERE / file.name)

    return read


def _at(name: str, read: Callable[[Path], object]) -> Reader:
    """A reader that is given the file."""

    def written(data: bytes) -> object:
        (HERE / name).write_bytes(data)
        return read(HERE / name)

    return written


def _steps(path: Path) -> None:
    read_written_steps(HERE)
    read_last_steps(HERE, 5)
    read_steps(HERE, digest_file(path))


def _data(path: Path) -> object:
    where = {"train": str(path), "validation": str(HERE / "good" / "validation.csv")}
    return SplitReader(find_source(task_named("sst2"), where), 3).tables()


def _kind(name: str) -> Callable[[Path], object]:
    def read(path: Path) -> object:
        task = task_named(name)
        rows, _ = TASK_KINDS[task.kind].read(path, task)
        return TASK_KINDS[task.kind].find_labels(rows, task)

    return read


TARGETS: dict[str, Reader] = {
    "record": _of_file(RECORD_FILE),
    "cell": _of_file(CELL_FILE),
    "lock": _of_file(LOCK_FILE),
    "bench": _of_file(BENCH_FILE),
    "simple-baseline": _of_file(SIMPLE_BASELINE_FILE),
    "checkpoint-state": _of_file(STATE_FILE),
    "lease-holder": _of_file(HOLDER_FILE),
    "jobs": _at("jobs.jsonl", lambda path: read_jobs(path.parent)),
    "steps": _at(STEPS, _steps),
    "predictions": _at(PREDICTIONS, lambda path: read_predictions(HERE, digest_file(path))),
    "study": _at("study.yaml", load_study),
    "study-json": _at("study.json", load_study),
    "ledger": _at("ledger.yaml", load_ledger),
    "cluster": _at("cluster.yaml", lambda path: load_cluster(project=HERE, user=HERE)),
    "oelm-json": _at("oelm.json", lambda path: read_oelm_json(HERE)),
    "csv": _at("train.csv", _data),
    "jsonl": _at("train.jsonl", _data),
    "parquet": _at("train.parquet", _data),
    "conll": _at("train.conll", _kind("tokens")),
    "squad": _at("train.json", _kind("qa")),
    "card": lambda data: read_card(data.decode("utf-8", "replace")),
}


def write_good_files(target: str, corpus: Path) -> None:
    """Files to start from."""
    good = HERE / "good"
    data = tiny_study.write_data(good, train=12, validation=6)
    runs = made_runs.make_runs(good, made_runs.study_of(seeds=[0]), examples=20, steps=10)
    made_bench.write_bench(runs, made_runs.study_of(seeds=[0]), {"freeze-only": 0.95})
    cell = runs / "baseline" / "seed-0"
    append_job(runs, Job(on="ssh://me@host/lab", cells=("baseline/seed-0",), given={"workers": 2}))
    train = TrainState(step=4, batches="ab")
    STATE_FILE.write(good, CheckpointState(train=train, frozen={"a": "b"}, scaler=None, groups=(), tensors={}))
    with acquire(good / "held") as lease:
        holder = (lease.staging / HOLDER_FILE.name).read_bytes()
    found: dict[str, list[bytes]] = {
        "record": [(cell / RECORD_FILE.name).read_bytes()],
        "cell": [(cell / CELL_FILE.name).read_bytes()],
        "lock": [(runs / LOCK_FILE.name).read_bytes()],
        "bench": [(runs / BENCH_FILE.name).read_bytes()],
        "simple-baseline": [(runs / SIMPLE_BASELINE_FILE.name).read_bytes()],
        "checkpoint-state": [(good / STATE_FILE.name).read_bytes()],
        "lease-holder": [holder],
        "jobs": [(runs / "jobs.jsonl").read_bytes()],
        "steps": [(cell / STEPS).read_bytes()],
        "predictions": [(cell / PREDICTIONS).read_bytes()],
        "study": [path.read_bytes() for path in shipped_studies().values()],
        "study-json": [(runs / "study.json").read_bytes()],
        "ledger": [path.read_bytes() for path in shipped_ledgers().values()],
        "cluster": [b"venv: /venv\nmodules: [cuda]\nslurm: {partition: gpu, time: 4:00:00}\nssh: {workers: 2}\n"],
        "csv": [(data / "train.csv").read_bytes()],
        "card": [b"---\nconfigs:\n- config_name: a\n  data_files: [{split: train, path: a.csv}]\n---\n# A"],
    }
    rows = tiny_study.texts(12, seed=1)
    found["jsonl"] = ["".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows).encode()]
    if target in ("conll", "squad"):
        import tiny_kinds

        found["conll"] = [tiny_kinds.conll(tiny_kinds.sentences(6, seed=1)).encode()]
        asked = tiny_kinds.questions(6, seed=1, unanswerable=True)
        found["squad"] = [json.dumps(tiny_kinds.as_squad(asked)).encode(), json.dumps(asked).encode()]
    if target == "parquet":
        import pyarrow as pa
        from pyarrow import parquet

        table = pa.table({"text": [text for text, _ in rows], "label": [label for _, label in rows]})
        parquet.write_table(table, good / "rows.parquet")
        found["parquet"] = [(good / "rows.parquet").read_bytes()]
    if target == "oelm-json":
        from transformers import BertConfig, BertModel

        sizes = {"vocab_size": 9, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2}
        config = BertConfig(**sizes, intermediate_size=8)
        oelm.apply(BertModel(config), init="orthogonalize", freeze="qk").save_pretrained(good / "model")
        found["oelm-json"] = [(good / "model" / "oelm.json").read_bytes()]
    for number, content in enumerate(found[target]):
        (corpus / f"good-{number}").write_bytes(content)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--minutes", type=float, default=20.0, help="CPU time, whatever else runs (%(default)s)")
    parser.add_argument("--corpus", type=Path, help="a folder of its own by default")
    options = parser.parse_args()
    corpus = options.corpus or Path(tempfile.mkdtemp(prefix=f"oelm-fuzz-{options.target}-"))
    corpus.mkdir(parents=True, exist_ok=True)
    write_good_files(options.target, corpus)
    read = TARGETS[options.target]

    end = time.process_time() + 60 * options.minutes

    def attempt(data: bytes) -> None:
        if time.process_time() > end:
            os.kill(os.getpid(), signal.SIGINT)  # the fuzzer prints what it has done, and ends
        with suppress(OelmError):
            read(data)

    words = [str(corpus), f"-artifact_prefix={corpus}/"]
    words += ["-timeout=20", "-rss_limit_mb=4096", "-max_len=20000", "-print_final_stats=1"]
    atheris.Setup([sys.argv[0], *words], attempt)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
