"""Tasks from the hub, for real against a hub on the loopback interface: pinned, cached, and offline."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

from loopback_hub import COMMIT, loopback_hub
from oelm.data.tasks import task_named

pytestmark = pytest.mark.slow

SST2, RTE, STORIES = task_named("sst2"), task_named("rte"), task_named("tinystories")
CODE = """
import json, sys
from oelm.data.documents import read_documents
from oelm.data.sources import find_source
from oelm.data.tables import read_rows
from oelm.data.tasks import task_named
from oelm.errors import DataError
try:
    task = task_named(sys.argv[1])
    source = find_source(task, None)
    if task.kind == "classification":
        rows = {split: read_rows(source, split).to_pydict() for split in source.files}
    else:
        rows = {split: ["".join(parts) for parts in read_documents(source, split)] for split in source.files}
    print(json.dumps(rows))
except DataError as error:
    sys.exit(str(error))
"""


@pytest.fixture
def rows_of(tmp_path):
    """The rows of a task, read in a process of its own: the hub's address is read when its client is imported."""

    def call(task, *, code=CODE, **environment):
        asked = json.dumps(task) if isinstance(task, dict) else task.name
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        own = {"HF_HOME": str(tmp_path / "hf"), "OELM_CACHE": str(tmp_path / "oelm"), "HF_HUB_DISABLE_XET": "1"}
        done = subprocess.run(
            [sys.executable, "-c", code, asked], env=kept | own | environment, capture_output=True, text=True
        )
        assert "Traceback" not in done.stderr, done.stderr
        return json.loads(done.stdout) if done.returncode == 0 else done.stderr

    return call


@pytest.fixture
def glue(tmp_path):
    """A folder as nyu-mll/glue is on the hub."""
    rows = {
        "sst2": {"sentence": ["good", "bad"], "label": [1, 0]},
        "rte": {"sentence1": ["a", "b"], "sentence2": ["c", "d"], "label": [1, 0]},
    }
    for task, columns in rows.items():
        for split in ("train", "validation", "test"):
            file = tmp_path / "glue" / task / f"{split}-00000-of-00001.parquet"
            file.parent.mkdir(parents=True, exist_ok=True)
            parquet.write_table(pa.table(columns | {"idx": [split, split]}), file)
    return tmp_path / "glue"


@pytest.mark.slow
def test_the_pinned_commit_is_downloaded_once(glue, rows_of):
    with loopback_hub({"datasets/nyu-mll/glue": glue}) as (address, requests):
        rows = rows_of(SST2, HF_ENDPOINT=address)
        assert rows == {split: {"text": ["good", "bad"], "label": [1, 0]} for split in ("train", "validation")}
        files = [request.split("/resolve/")[1] for request in requests if "GET" in request and "/resolve/" in request]
        wanted = (f"sst2/{split}-00000-of-00001.parquet" for split in ("train", "validation"))
        assert sorted(files) == [f"{SST2.hub.revision}/{file}" for file in wanted], "these, of that commit, and no more"
        assert all(SST2.hub.revision in request for request in requests if "nyu-mll" in request)

        requests.clear()
        assert rows_of(SST2, HF_ENDPOINT=address) == rows
        assert not any("nyu-mll" in request for request in requests), "a commit cannot change: what is here is good"

        pairs = rows_of(RTE, HF_ENDPOINT=address)
        assert pairs["train"] == {"text_a": ["a", "b"], "text_b": ["c", "d"], "label": [1, 0]}
        assert any("rte/train" in request for request in requests), "another task of a repository that is here in part"
    assert rows_of(SST2, HF_ENDPOINT=address) == rows, "the hub is gone"
    assert rows_of(RTE, HF_HUB_OFFLINE="1") == pairs


def test_not_here_and_not_to_be_had_says_what_to_do(glue, rows_of):
    with loopback_hub({"datasets/someone/else": glue}) as (address, _):
        absent = rows_of(SST2, HF_ENDPOINT=address)
    for message in (absent, rows_of(SST2, HF_HUB_OFFLINE="1")):
        assert "the dataset nyu-mll/glue of task 'sst2' is not on this machine and cannot be downloaded" in message
        assert f"at commit {SST2.hub.revision}" in message
        assert "--set recipe.data.path=FOLDER, with train and validation as .parquet" in message


def test_a_download_that_was_cut_short_is_not_taken_for_whole(glue, rows_of, tmp_path):
    with loopback_hub({"datasets/nyu-mll/glue": glue}) as (address, _):
        rows = rows_of(SST2, HF_ENDPOINT=address)
        (missing,) = tmp_path.glob("hf/hub/*/snapshots/*/sst2/validation-*")
        missing.unlink()
        assert "the dataset nyu-mll/glue of task 'sst2' is not on this machine" in rows_of(SST2, HF_HUB_OFFLINE="1")
        assert rows_of(SST2, HF_ENDPOINT=address) == rows


def test_a_split_that_the_hub_does_not_have(glue, rows_of):
    (glue / "sst2" / "validation-00000-of-00001.parquet").unlink()
    with loopback_hub({"datasets/nyu-mll/glue": glue}) as (address, _):
        assert "nyu-mll/glue has no files for the split 'validation'" in rows_of(SST2, HF_ENDPOINT=address)


@pytest.fixture
def stories(tmp_path):
    """A folder as roneneldan/TinyStories is on the hub: every part has a hash in its name."""
    names = [f"train-{number:05d}-of-00004-{number}d5a1467fff1081b" for number in range(4)]
    for name in (*names, "validation-00000-of-00001-869c898b519ad725"):
        file = tmp_path / "stories" / "data" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        parquet.write_table(pa.table({"text": [name]}), file)
    return tmp_path / "stories"


@pytest.mark.parametrize("listed", [True, False])
def test_some_parts_with_a_hash_in_their_name_are_not_taken_for_all(stories, rows_of, tmp_path, listed):
    """Whether or not the client has kept the hub's list of files: it has none of what was copied, or fetched before."""
    with loopback_hub({"datasets/roneneldan/TinyStories": stories}) as (address, requests):
        rows = rows_of(STORIES, HF_ENDPOINT=address)
        assert len(rows["train"]) == 4
        for part in sorted(tmp_path.glob("hf/hub/*/snapshots/*/data/train-*"))[1:]:
            part.resolve().unlink()
            part.unlink()
        for kept in () if listed else tmp_path.glob("hf/hub/*/trees/*"):
            kept.unlink()
        message = rows_of(STORIES, HF_HUB_OFFLINE="1")
        assert "roneneldan/TinyStories of task 'tinystories' is only partly on this machine" in message
        assert "1 of 4 parts of the split 'train'" in message
        assert f"at commit {STORIES.hub.revision}" in message
        assert "without HF_HUB_OFFLINE, to download the missing parts; or use a local copy" in message

        requests.clear()
        assert rows_of(STORIES, HF_ENDPOINT=address) == rows
        fetched = {request.split("/data/")[1] for request in requests if "GET" in request and "/resolve/" in request}
        assert len(fetched) == 3, "the parts that are missing, and no more"
    assert rows_of(STORIES, HF_HUB_OFFLINE="1") == rows


OWN = """
import json, sys
from oelm.data.tokenize import tokenize_task, train_tokenizer
from oelm.study.data_task import source_of
from oelm.study.recipe import DataConfig
from oelm.errors import DataError
def words(texts, made_from):
    return train_tokenizer(texts, kind="words", vocab=300, made_from=made_from)
try:
    config = DataConfig(**json.loads(sys.argv[1]))
    facts = tokenize_task(source_of(config), tokenizer=words, max_length=8, validation=config.validation).facts
    print(json.dumps([facts.hub, facts.labels, facts.sizes]))
except DataError as error:
    sys.exit(str(error))
"""


@pytest.mark.slow
def test_a_data_set_that_a_study_names(tmp_path, rows_of):
    for number, split in enumerate(("fit", "check")):
        (tmp_path / "mine").mkdir(exist_ok=True)
        rows = [f"some words {number} {row},{'xyz'[row % 3]}" for row in range(30)]
        (tmp_path / "mine" / f"{split}.csv").write_text("\n".join(["body,topic", *rows]) + "\n")
    data = {"hub": "some/mine", "splits": {"train": "fit", "test": "check"}, "validation": 3}
    data["columns"] = {"text": "body", "label": "topic"}
    with loopback_hub({"datasets/some/mine": tmp_path / "mine"}) as (address, _):
        found = rows_of(data, code=OWN, HF_ENDPOINT=address)
        assert found == [f"some/mine@{COMMIT}", ["x", "y", "z"], {"train": 27, "validation": 3, "test-test": 30}]
        typo = data | {"splits": {"train": "fit", "test": "chek"}}
        assert "no files of the split 'chek'" in rows_of(typo, code=OWN, HF_ENDPOINT=address)
    assert rows_of(data, code=OWN, HF_ENDPOINT=address) == found, "and without the hub"


LIMITED = """
import json, sys
from oelm.data.tokenize import tokenize_task, train_tokenizer
from oelm.study.data_task import source_of
from oelm.study.recipe import DataConfig, LimitConfig
from oelm.errors import DataError
def words(texts, made_from):
    return train_tokenizer(texts, kind="words", vocab=300, made_from=made_from)
try:
    data = DataConfig(task="tinystories", validation=5, limit=LimitConfig(**json.loads(sys.argv[1])))
    options = {"validation": 5, "limit": data.limit}
    facts = tokenize_task(source_of(data), tokenizer=words, max_length=8, **options).facts
    print(json.dumps([len(facts.files["train"]), facts.sizes]))
except DataError as error:
    sys.exit(str(error))
"""


def test_a_limit_downloads_the_first_files_only(stories, rows_of):
    """1,000 documents a file: those that are held out, those that are trained on, and a thousand to spare."""
    for number, file in enumerate(sorted((stories / "data").iterdir())):
        rows = [f"story {number} of {row} has these words in it" for row in range(1000)]
        parquet.write_table(pa.table({"text": rows}), file)
    with loopback_hub({"datasets/roneneldan/TinyStories": stories}) as (address, requests):

        def asked():
            """The numbers of the training files that were downloaded since."""
            done = [one.split("/data/train-")[1] for one in requests if "GET" in one and "/data/train-" in one]
            requests.clear()
            return sorted(int(name[:5]) for name in done)

        found = rows_of({"documents": 100}, code=LIMITED, HF_ENDPOINT=address)
        assert found == [2, {"train": 124, "validation": 6, "test-validation": 1249}]
        assert asked() == [0, 1]
        assert rows_of({"tokens": 900}, code=LIMITED, HF_ENDPOINT=address)[0] == 2
        assert asked() == []
        assert rows_of({"documents": 1500}, code=LIMITED, HF_ENDPOINT=address)[0] == 3
        assert asked() == [2], "those that are here are not asked for again"
    assert rows_of({"documents": 100}, code=LIMITED, HF_ENDPOINT=address) == found, "the hub is gone"
    missing = rows_of({"documents": 2500}, code=LIMITED, HF_ENDPOINT=address)
    assert "cannot be downloaded" in missing
    assert f"at commit {STORIES.hub.revision}" in missing


def pack(path, compression):
    with pa.output_stream(str(path) + {"gzip": ".gz", "zstd": ".zst"}[compression], compression=compression) as file:
        file.write(path.read_bytes())
    path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize("form", ["packed", "arrow"])
def test_data_sets_in_other_forms_than_parquet(tmp_path, rows_of, form):
    """JSON lines that are packed, a list in JSON, and what `save_to_disk` of the datasets library writes."""
    mine = tmp_path / "mine"
    for number, split in enumerate(("train", "validation", "test")):
        rows = [{"text": f"some words {number} {row}", "label": "xyz"[row % 3]} for row in range(30)]
        file = mine / split / "data-00000-of-00001.arrow" if form == "arrow" else mine / f"{split}.jsonl"
        file.parent.mkdir(parents=True, exist_ok=True)
        if form == "arrow":
            table = pa.Table.from_pylist(rows)
            with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
                writer.write_table(table)
            (file.parent / "state.json").write_text(json.dumps({"_split": split}))
            (file.parent / "dataset_info.json").write_text("{}")
        elif split == "validation":
            file.with_suffix(".json").write_text(json.dumps(rows, indent=1))
        else:
            file.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
            pack(file, "gzip" if split == "train" else "zstd")
    sizes = {"train": 30, "validation": 30, "test-test": 30}
    with loopback_hub({"datasets/some/mine": mine}) as (address, _):
        found = rows_of({"hub": "some/mine"}, code=OWN, HF_ENDPOINT=address)
    assert found == [f"some/mine@{COMMIT}", ["x", "y", "z"], sizes]
    local = {split: str(mine / split) for split in ("train", "validation", "test")} if form == "arrow" else str(mine)
    assert rows_of({"path": local}, code=OWN) == [None, ["x", "y", "z"], sizes]
