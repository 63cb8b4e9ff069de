"""`oelm data`: what it shows of a file, a folder, a task, a study and the hub; one message for bad ones."""

import json
import os
import subprocess
import sys

import pyarrow as pa
import pytest
from pyarrow import parquet

import tiny_kinds
import tiny_study
from loopback_hub import COMMIT, loopback_hub
from oelm.cli.main import main


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    """(exit code, output, errors) of `oelm data WORDS`."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["oelm", "data", *map(str, words)])
        monkeypatch.chdir(tmp_path)
        with pytest.raises(SystemExit) as stopped:
            main()
        out, errors = capsys.readouterr()
        return stopped.value.code or 0, out, errors

    return call


def write_topics(folder, **splits):
    """CSV files: by split, (first row, number of rows)."""
    folder.mkdir()
    for split, (start, number) in splits.items():
        rows = [
            f"some words of row {row} which is about something,{'abc'[row % 3]}" for row in range(start, start + number)
        ]
        (folder / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n", encoding="utf-8")
    return folder


def test_a_folder_is_shown_with_what_its_splits_share(run, tmp_path):
    write_topics(tmp_path / "mine", train=(0, 30), validation=(30, 6), test=(24, 9))
    code, out, _ = run("mine")
    assert code == 0
    assert "mine: classification, text in text, 3 labels" in out
    assert "a         10           2     3" in out, "by label and split"
    assert "6 of 9 texts of test are also in train" in out
    *_, last, _, study = out.splitlines()
    assert last.startswith("[c] some words of row 29")
    assert study == "in a study: data: {path: mine}"
    code, out, _ = run("mine", "--json")
    found = json.loads(out)
    assert {name: split["rows"] for name, split in found["splits"].items()} == {"train": 30, "validation": 6, "test": 9}
    assert found["labels"] == ["a", "b", "c"]
    assert found["splits"]["train"]["words"] == [9, 9, 9, 9, 9]
    assert len(found["examples"]) == 3


def test_it_ends_with_what_a_study_says(run, tmp_path):
    """Also of what no label tells: its form does, and a folder may have the name of a task."""
    tiny_kinds.write_tokens(tmp_path / "ner")
    tiny_kinds.write_questions(tmp_path / "qa")
    (tmp_path / "books").mkdir()
    for number in range(30):
        (tmp_path / "books" / f"{number}.txt").write_text(f"the text of book number {number}\n" * 9)
    (tmp_path / "stars.csv").write_text("review,stars\n" + "".join(f"a review {row},{row % 5}\n" for row in range(40)))
    for words, line in {
        ("ner",): "{task: tokens, path: ner}",
        ("qa",): "{task: qa, path: qa}",
        ("books",): "{task: text, path: books, validation: 3}",
        ("stars.csv", "--column", "text=review", "--column", "label=stars"): "{path: stars.csv, columns: "
        "{text: review, label: stars}}",
    }.items():
        code, out, _ = run(*words)
        assert (code, out.splitlines()[-1]) == (0, f"in a study: data: {line}")


def test_what_a_study_would_refuse_is_refused(run, tmp_path):
    (tmp_path / "lable.csv").write_text("text,lable\n" + "".join(f"row {row},{row % 2}\n" for row in range(20)))
    code, _, errors = run("lable.csv")
    assert code == 2
    assert "no column 'label' for task 'classification'; did you mean 'lable'?" in errors
    assert "--column label=NAME for oelm data" in errors
    folder = tiny_kinds.write_tokens(tmp_path / "ner")
    (folder / "test.conll").write_text("Mars X B-PLANET\n", encoding="utf-8")
    code, _, errors = run("ner")
    assert code == 2
    assert "tag 'B-PLANET' is in no training sentence" in errors
    (tmp_path / "few.csv").write_text("text,label\na,x\nb,y\nc,x\n")
    assert "for each, for which these are too few" in run("few.csv")[1]


def test_numbers_pairs_and_text_are_recognized(run, tmp_path):
    (tmp_path / "a.tsv").write_text("text_a\ttext_b\tlabel\none\ttwo\t0.5\nthree\tfour\t2\n")
    assert "regression, text in text_a and text_b" in run("a.tsv")[1]
    assert run("a.tsv")[1].count("no file of validation and test") == 1
    (tmp_path / "a.txt").write_text("many\x1b[31m\nwords")
    _, out, _ = run("a.txt")
    assert "language-modeling" in out
    assert "many\\x1b[31m\\nwords" in out, "nothing in a file colors the terminal"
    (tmp_path / "b.csv").write_text("review,stars\nwell,1\nbad,2\n")
    assert "2 labels" in run("b.csv", "--column", "text=review", "--column", "label=stars")[1]


def test_other_kinds_are_shown(run, tmp_path):
    for split, name in (("train", "Ada"), ("test", "Eve")):
        lines = [f"{name}{row} B-PER\nsaw O\nRome{row} B-LOC\n" for row in range(20)]
        (tmp_path / f"{split}.conll").write_text("\n".join(lines))
    code, out, _ = run("train.conll")
    assert code == 0
    assert "train.conll: tokens, text in tokens, 3 labels" in out
    assert "B-PER     20" in out
    assert "[B-PER O B-LOC] Ada19 saw Rome19" in out
    found = json.loads(run(".", "--json")[1])
    assert {name: split["labels"]["O"] for name, split in found["splits"].items()} == {"train": 20, "test": 20}
    row = {"context": "Ada saw Rome", "question": "Who?", "answers": {"text": ["Ada"], "answer_start": [0]}}
    (tmp_path / "qa.jsonl").write_text(json.dumps(row) + "\n")
    assert "Who? | Ada saw Rome" in run("qa.jsonl", "--task", "qa")[1].splitlines()
    (tmp_path / "pairs.csv").write_text("source,target\none two,two\n")
    assert "one two" in run("pairs.csv", "--task", "seq2seq")[1].splitlines()


@pytest.mark.parametrize("kind", ["tokens", "qa", "seq2seq"])
def test_a_study_of_another_kind_is_shown(kind, run, tmp_path):
    content = getattr(tiny_kinds, f"{kind}_study")(tmp_path)
    code, out, errors = run(tiny_study.write_study(tmp_path, content), "--json")
    assert code == 0, errors
    found = json.loads(out)
    assert (found["kind"], len(found["examples"])) == (kind, 3)
    assert set(found["splits"]) == {"train", "validation", "test-test"}
    assert bool(found["splits"]["train"]["labels"]) == (kind == "tokens")


def test_a_task_and_a_study_are_shown(run, tmp_path):
    assert "recall: classification, text in text, 8 labels" in run("recall")[1]
    write_topics(tmp_path / "mine", train=(0, 60))
    content = tiny_study.study(tmp_path)
    content["recipe"]["data"] |= {"task": "classification", "path": "mine", "validation": 7}
    code, out, _ = run(tiny_study.write_study(tmp_path, content), "--json")
    assert code == 0
    sizes = {name: split["rows"] for name, split in json.loads(out)["splits"].items()}
    assert sizes == {"train": 47, "test-held_out": 6, "validation": 7}, "as the study divides them"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["rotten_tomatos"], "did you mean 'rotten_tomatoes'?"),
        (["mine.csv", "--task", "regresion"], "did you mean 'regression'?"),
        (["mine.csv", "--task", "regression"], "label 'a' in row 1 (the header not counted) is not a number"),
        (["mine.csv", "--column", "title=x"], "--column title=x is not NAME=COLUMN"),
        (["mine.csv", "--column", "text=texts"], "did you mean 'text'?"),
    ],
)
def test_what_is_wrong_is_one_message(run, tmp_path, words, what):
    (tmp_path / "mine.csv").write_text("text,label\none,a\ntwo,b\n")
    code, out, errors = run(*words)
    assert (code, out) == (2, "")
    assert errors.startswith("DataError: ")
    assert what in errors


# -- the hub ------------------------------------------------------------------------------------------------------


@pytest.fixture
def from_hub(tmp_path):
    """`oelm data WORDS` in a process without torch: the hub's address is read when its client is imported."""
    walls = tmp_path / "walls"
    walls.mkdir()
    (walls / "torch.py").write_text("raise ImportError('torch was imported')")

    def call(*words, **environment):
        kept = {key: value for key, value in os.environ.items() if not key.startswith("HF_")}
        path = os.pathsep.join([str(walls), os.environ.get("PYTHONPATH", "")])
        own = {"HF_HOME": str(tmp_path / "hf"), "OELM_CACHE": str(tmp_path / "oelm"), "PYTHONPATH": path}
        return subprocess.run(
            [sys.executable, "-m", "oelm", "data", *words],
            env=kept | own | {"HF_HUB_DISABLE_XET": "1"} | environment,
            capture_output=True,
            text=True,
        )

    return call


CARD = """---
configs:
- config_name: big
  data_files:
  - split: train
    path: big/part-*.parquet
- config_name: small
  data_files:
  - split: train
    path: small/a.parquet
  - split: dev
    path: [small/b.parquet]
---
A data set.
"""


@pytest.mark.slow
def test_a_data_set_of_the_hub_by_name(from_hub, tmp_path):
    folder = write_topics(tmp_path / "plain", train=(0, 30), test=(30, 6))
    (folder / "README.md").write_text("no card")
    with loopback_hub({"datasets/some/topics": folder}) as (address, requests):
        done = from_hub("some/topics", "--json", HF_ENDPOINT=address)
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["hub"] == f"some/topics@{COMMIT}"
        assert {name: split["rows"] for name, split in found["splits"].items()} == {"train": 30, "test": 6}
        assert any(COMMIT in request for request in requests)
    again = from_hub("some/topics", "--json", HF_ENDPOINT=address)
    assert json.loads(again.stdout) == found, "what was fetched is there without the hub"


@pytest.mark.slow
def test_a_card_says_which_files_are_which(from_hub, tmp_path):
    folder = tmp_path / "cards"
    for name, start in (("big/part-0", 0), ("big/part-1", 30), ("small/a", 60), ("small/b", 90)):
        file = folder / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        rows = range(start, start + 30)
        parquet.write_table(
            pa.table({"text": [f"row {row}" for row in rows], "label": [row % 2 for row in rows]}), file
        )
    (folder / "README.md").write_text(CARD)
    with loopback_hub({"datasets/some/cards": folder}) as (address, _):
        sizes = {}
        for config in ("big", "small"):
            done = from_hub("some/cards", "--config", config, "--json", HF_ENDPOINT=address)
            assert done.returncode == 0, done.stderr
            sizes[config] = {name: split["rows"] for name, split in json.loads(done.stdout)["splits"].items()}
        assert sizes == {"big": {"train": 60}, "small": {"train": 30, "validation": 30}}
        without = from_hub("some/cards", HF_ENDPOINT=address)
        assert without.returncode == 2
        assert "has 2 configurations" in without.stderr
        assert "config: one of big, small" in without.stderr


@pytest.mark.slow
def test_a_script_and_an_unknown_name_are_refused(from_hub, tmp_path):
    (tmp_path / "script").mkdir()
    (tmp_path / "script" / "script.py").write_text("raise SystemExit('this ran')")
    with loopback_hub({"datasets/some/script": tmp_path / "script"}) as (address, _):
        done = from_hub("some/script", HF_ENDPOINT=address)
        assert (done.returncode, done.stdout) == (2, "")
        assert "has no data files, only a script (script.py)" in done.stderr
        assert "refs/convert/parquet" in done.stderr
        unknown = from_hub("some/other", HF_ENDPOINT=address)
        assert unknown.returncode == 2
        assert "the hub has no such data set" in unknown.stderr
        assert "Traceback" not in done.stderr + unknown.stderr
