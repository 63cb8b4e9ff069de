"""One's own data: labels that are found, columns that are named, and what is wrong with them said in one message."""

import gzip
import json
import shutil
import subprocess

import pyarrow as pa
import pytest
from pyarrow import parquet

import oelm
from oelm.data.cache import cached_dir
from oelm.data.own import HubName, find_on_hub, name_columns, read_card
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import TASKS, Task, task_named
from oelm.errors import DataError

TOPICS = ("food", "music", "sport", "travel", "work")


def write_csv(path, labels, *, texts=("text",), label="label", rows=40, start=0):
    """Rows that all differ; the labels take turns."""
    lines = [",".join((*texts, label))]
    for row in range(start, start + rows):
        words = [f"{name} number {row} of them" for name in texts]
        lines.append(",".join((*words, str(labels[row % len(labels)]))))
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def read(task, path, validation=None, *, columns=None):
    task = task_named(task) if isinstance(task, str) else task
    return SplitReader(find_source(name_columns(task, columns or {}), str(path)), validation)


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        (TOPICS[::-1], TOPICS),
        ((10, 9, 2), ("2", "9", "10")),  # by size, and not as indices
        (("1.0", "01", "0"), ("0", "1")),
        (("-1", "1"), ("-1", "1")),
        (("true", "false"), ("false", "true")),
        (("NA", "N/A"), ("N/A", "NA")),
    ],
)
def test_labels_are_found_in_the_training_rows(labels, found, tmp_path):
    reader = read("classification", write_csv(tmp_path / "mine.csv", labels))
    assert reader.task.labels == found
    tables = reader.tables()
    assert {name: table.num_rows for name, table in tables.items()} == {
        "train": 32,
        "validation": 4,
        "test-held_out": 4,
    }
    assert set(tables["train"]["label"].to_pylist()) == set(range(len(found)))
    text, label = (tables["test-held_out"][name][0].as_py() for name in ("text", "label"))
    said = str(labels[int(text.split()[2]) % len(labels)])
    assert found[label] == (said if said in found else "1")


@pytest.mark.parametrize("kind", ["jsonl", "parquet", "tsv"])
def test_they_are_the_same_in_every_format(kind, tmp_path):
    columns = {"text": [f"row {row} of them" for row in range(30)], "label": [row % 3 + 1 for row in range(30)]}
    file, rows = tmp_path / f"mine.{kind}", list(zip(*columns.values(), strict=True))
    if kind == "parquet":
        parquet.write_table(pa.table({**columns, "label": pa.array(columns["label"]).dictionary_encode()}), file)
    elif kind == "jsonl":
        file.write_text("".join(json.dumps({"text": text, "label": label}) + "\n" for text, label in rows))
    else:
        file.write_text("text\tlabel\n" + "".join(f"{text}\t{label}\n" for text, label in rows))
    reader = read("classification", file)
    assert reader.task.labels == ("1", "2", "3")
    assert reader.tables()["train"]["label"][0].as_py() in (0, 1, 2)


def test_two_texts_are_pairs_without_a_word(tmp_path):
    both = ("text_a", "text_b")
    file = write_csv(tmp_path / "mine.csv", ("yes", "no"), texts=both)
    for name in ("classification", "pairs"):
        assert read(name, file).task.columns == both
        assert {*both, "label", "row"} == {*read(name, file).tables()["train"].column_names}
    one = write_csv(tmp_path / "one.csv", ("yes", "no"))
    with pytest.raises(DataError, match="no column text_a and text_b for task 'pairs'"):
        read("pairs", one)


@pytest.mark.parametrize("task", ["classification", "regression"])
@pytest.mark.parametrize("other", ["test.csv", "train-1.csv"])
def test_all_files_have_as_many_texts(task, other, tmp_path):
    write_csv(tmp_path / "train-0.csv", (1, 2))
    write_csv(tmp_path / other, (1, 2), texts=("text_a", "text_b"), start=40)
    with pytest.raises(DataError, match=rf"no column text for task(.*\n)*.*{other}(.*\n)*.*have one text each"):
        read(task, tmp_path).tables()
    write_csv(tmp_path / "train-0.csv", (1, 2), texts=("text_a", "text_b"))
    write_csv(tmp_path / other, (1, 2), start=40)
    with pytest.raises(DataError, match=rf"no column text_a and text_b for task(.*\n)*.*{other}"):
        read(task, tmp_path).tables()


@pytest.mark.parametrize("texts", [("text",), ("text_a", "text_b")])
def test_a_regression_has_numbers(texts, tmp_path):
    reader = read("regression", write_csv(tmp_path / "mine.csv", ("0.5", 1, "2e0", -3), texts=texts))
    labels = reader.tables()["train"]["label"]
    assert labels.type == pa.float64()
    assert set(labels.to_pylist()) == {0.5, 1, 2, -3}
    assert reader.task.pairs == (len(texts) == 2)


def test_columns_are_named(tmp_path):
    file = write_csv(tmp_path / "mine.csv", ("a", "b"), texts=("review", "text"), label="stars")
    reader = read("classification", file, columns={"text": "review", "label": "stars"})
    assert reader.tables()["train"]["text"][0].as_py().startswith("review number")
    assert reader.task.labels == ("a", "b")
    two = read("classification", file, columns={"text_a": "text", "text_b": "review", "label": "stars"})
    assert two.tables()["train"]["text_b"][0].as_py().startswith("review number")


def test_splits_are_found_by_their_names(tmp_path):
    for number, split in enumerate(("train", "dev", "test")):
        write_csv(tmp_path / f"{split}.csv", TOPICS, rows=20, start=100 * number)
    assert set(read("classification", tmp_path).tables()) == {"train", "validation", "test-test"}


def test_a_task_can_be_registered_without_labels(tmp_path, monkeypatch):
    monkeypatch.setattr("oelm.data.tasks.TASKS", dict(TASKS))
    path = str(write_csv(tmp_path / "mine.csv", TOPICS, texts=("body",), label="topic"))
    common = {"columns": ("body",), "held_out": 100, "path": path}
    mine = oelm.register_task(Task(name="mine", kind="classification", label="topic", **common))
    assert SplitReader(find_source(mine, None), 4).task.labels == TOPICS
    write_csv(tmp_path / "mine.csv", (1, 2.5), texts=("body",), label="price")
    price = oelm.register_task(Task(name="price", kind="regression", label="price", metric="pearson", **common))
    assert SplitReader(find_source(price, None), 4).tables()["train"]["label"][0].as_py() in (1.0, 2.5)


TRAIN = {"train": ("easy/train.csv",)}
EASY = [
    {"split": "train", "path": "easy/train.csv"},
    {"split": "train_extra", "path": "easy/more.csv"},
    {"split": "dev", "path": ["easy/dev.csv"]},
]


@pytest.mark.parametrize(
    ("files", "splits", "found"),
    [
        (EASY, {}, {**TRAIN, "validation": ("easy/dev.csv",)}),
        ([*EASY, {"split": "validation", "path": "easy/more.csv"}], {}, {**TRAIN, "validation": ("easy/more.csv",)}),
        (EASY, {"train": "train_extra"}, {"train": ("easy/more.csv",)}),
        (EASY[:2], {}, TRAIN),  # validation.csv is of the other configuration
        ("easy/*.csv", {}, {"train": ("easy/dev.csv", "easy/more.csv", "easy/train.csv")}),
        (["easy/train.csv"], {}, TRAIN),
        (None, {}, {**TRAIN, "validation": ("easy/dev.csv",)}),  # the files of its folder
    ],
)
def test_a_card_has_the_last_word_about_its_configuration(files, splits, found, tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path))
    names = ["easy/dev.csv", "easy/more.csv", "easy/train.csv", "hard/train.csv", "hard/validation.csv"]
    configs = [{"config_name": "easy", "data_files": files}, {"config_name": "hard", "data_files": "hard/train.csv"}]
    listing = json.dumps({"commit": "0" * 40, "files": names, "configs": configs})
    asked = {"repo": "some/cards", "revision": None}
    cached_dir("hub", asked, lambda folder: (folder / "listing.json").write_text(listing) and None)
    task = find_on_hub(task_named("classification"), HubName(repo="some/cards", config="easy", splits=splits))
    assert task.hub.files == found


def test_a_card_that_would_be_endless_is_not_read():
    laughs = "".join(f"l{number + 1}: &l{number + 1} [{', '.join([f'*l{number}'] * 10)}]\n" for number in range(12))
    assert read_card(f"---\nl0: &l0 lol\n{laughs}configs: *l12\n---\n") is None
    assert read_card(f"---\nconfigs: [{{}}{', {}' * 250_000}]\n---\n") is None
    assert read_card("---\nconfigs: [\n---\n") is None
    long = "".join(f"- config_name: c{number}\n  data_files: c{number}/*.csv\n" for number in range(600))
    assert len(read_card(f"---\na: &a 1\nb: *a\n<<: {{}}\nconfigs:\n{long}z: 1\n---\n")) == 600, "nothing but that"
    assert read_card("---\nconfigs: [{config_name: easy}, 5]\n---\n# Easy") == [{"config_name": "easy"}]
    for text in ("", "---\n", "---\n[\n---\n", "---\n5\n---\n", "# No front\nconfigs: 5\n---\n"):
        assert read_card(text) == []


# -- what is wrong ------------------------------------------------------------------------------------------------


def rows_of(*labels):
    return "text,label\n" + "".join(f"row {number},{label}\n" for number, label in enumerate(labels))


@pytest.mark.parametrize(
    ("task", "content", "what"),
    [
        (
            "classification",
            rows_of("a", "", "b"),
            r"1 of 3 rows have no label, the first of them row 2 \(the header not counted\)",
        ),
        ("classification", rows_of("a", "1", "2"), r"some labels are numbers \('1', '2'\), others are names \('a'\)"),
        ("classification", rows_of("a", "a", "a"), r"all training rows have the label 'a'"),
        ("classification", rows_of("0.5", "1", "2"), r"numbers, and not all of them whole.*(\n.*)*task: regression"),
        (
            "classification",
            "text,label\n,a\nb,b\n",
            r"column 'text' has an empty text in row 1 \(the header not counted\)",
        ),
        ("classification", "txt,label\nx,a\n", r"no column text for task 'classification'; did you mean 'txt'\?"),
        ("classification", "text,lable\nx,a\n", r"no column 'label' .*; did you mean 'lable'\?"),
        ("regression", rows_of("1", "much"), r"label 'much' in row 2 \(the header not counted\) is not a number"),
        ("regression", rows_of("1", "nan"), r"label 'nan' in row 2 \(the header not counted\) is not a number"),
        ("regression", rows_of("1", "inf"), r"label 'inf' in row 2 \(the header not counted\) is not a number"),
        ("regression", rows_of("1", ""), r"1 of 2 rows have no label"),
        ("regression", rows_of("2", "2"), r"all training rows have the label 2"),
        ("regression", rows_of(), r"the file has no rows"),
        ("classification", rows_of(), r"the file has no rows"),
        (
            "classification",
            rows_of("1", "2" * 5000),
            r"label 2{40} \.\.\. in row 2 \(the header not counted\) is a number of 5,000 digits",
        ),
    ],
)
def test_bad_rows_are_refused(task, content, what, tmp_path):
    (tmp_path / "mine.csv").write_text(content)
    with pytest.raises(DataError, match=what) as error:
        read(task, tmp_path / "mine.csv").tables()
    assert "where  " in str(error.value)
    assert "mine.csv" in str(error.value)
    assert "try    " in str(error.value)


def test_a_label_of_the_test_split_alone(tmp_path):
    write_csv(tmp_path / "train.csv", ("a", "b"))
    write_csv(tmp_path / "test.csv", ("a", "c"), start=100)
    with pytest.raises(
        DataError,
        match=r"label 'c' in row 2 \(the header not counted\) is in no training row(\n.*)*test\.csv.*(\n.*)*'a', 'b'",
    ):
        read("classification", tmp_path).tables()


def test_mixed_labels_of_json(tmp_path):
    (tmp_path / "mine.jsonl").write_text('{"text": "x", "label": 1}\n{"text": "y", "label": "two"}\n')
    with pytest.raises(DataError, match=r"changed from number to string(.*\n)*.*all names, or all numbers"):
        read("classification", tmp_path / "mine.jsonl")


@pytest.mark.parametrize("kind", ["csv", "jsonl"])
def test_another_encoding(kind, tmp_path):
    text = rows_of("a", "b") if kind == "csv" else '{"text": "x", "label": "a"}\n{"text": "y", "label": "b"}\n'
    (tmp_path / f"mine.{kind}").write_bytes(
        text.replace("x" if kind == "jsonl" else "row", "caf\u00e9").encode("latin-1")
    )
    with pytest.raises(DataError, match=r"UTF-?8(.*\n)*.*iconv -f WINDOWS-1252"):
        read("classification", tmp_path / f"mine.{kind}").tables()


@pytest.mark.parametrize("name", ["mine.csv", "my rows.csv", "mine.csv.gz"])
@pytest.mark.skipif(shutil.which("iconv") is None, reason="needs iconv")
def test_its_hint_can_be_pasted(name, tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    content = rows_of("a", "b").replace("row", "caf\u00e9").encode("latin-1")
    (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.raises(DataError) as error:
        read("classification", tmp_path / name).tables()
    command = str(error.value).partition("try    ")[2].splitlines()[0]
    subprocess.run(command, shell=True, check=True, cwd="/")
    made = tmp_path / f"utf8-{name.removesuffix('.gz')}"
    assert made.read_text(encoding="utf-8") == content.decode("latin-1")


def test_a_named_column_is_not_replaced_by_another(tmp_path):
    file = write_csv(tmp_path / "mine.csv", ("a", "b"))
    for columns, what in (({"text": "texts"}, "no column texts"), ({"label": "labels"}, "no column 'labels'")):
        with pytest.raises(DataError, match=f"{what} .*did you mean"):
            read("classification", file, columns=columns)


def test_a_number_that_is_none(tmp_path):
    columns = {"text": [f"row {row}" for row in range(20)], "label": [float("nan"), *map(float, range(19))]}
    parquet.write_table(pa.table(columns), tmp_path / "mine.parquet")
    with pytest.raises(DataError, match=r"1 of 20 rows have no label, the first of them row 1"):
        read("regression", tmp_path / "mine.parquet")


def test_all_of_glue(tmp_path):
    glue = {"cola", "sst2", "mrpc", "qqp", "stsb", "mnli", "qnli", "rte", "wnli"}
    assert all(TASKS[name].hub.repo == "nyu-mll/glue" for name in glue)
    for number, split in enumerate(("train", "validation")):
        texts = ("sentence1", "sentence2")
        write_csv(tmp_path / f"{split}.csv", (0.0, 2.5, 5.0), texts=texts, start=100 * number)
    reader = read("stsb", tmp_path, 5)
    assert set(reader.tables()["test-validation"]["label"].to_pylist()) == {0.0, 2.5, 5.0}
    assert reader.task.metrics == ("mse", "pearson", "spearman", "loss")
