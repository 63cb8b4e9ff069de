"""Sources: local files of every kind, and the errors for files that do not fit their task."""

import gzip
import json
import os

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from oelm.data import tables
from oelm.data.documents import read_documents
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tables import read_rows
from oelm.data.tasks import task_named
from oelm.errors import DataError

SST2, MNLI, TEXT, WIKI = (task_named(name) for name in ("sst2", "mnli", "text", "wikitext-2"))
ROWS = {"text": ['he said "no', "fine, thanks", "don't\ttell"], "label": [0, 1, 1]}


def write(path, columns):
    """Columns as a file of the kind that its name says."""
    path.parent.mkdir(exist_ok=True, parents=True)
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    if path.suffix == ".parquet":
        parquet.write_table(pa.table(columns), path)
    elif path.suffix == ".jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    elif path.suffix == ".csv":
        quoted = ([f'"{str(cell).replace(chr(34), chr(34) * 2)}"' for cell in row.values()] for row in rows)
        path.write_text("\n".join(map(",".join, [list(columns), *quoted])), encoding="utf-8")
    else:
        path.write_text("\n".join("\t".join(map(str, line)) for line in [columns, *(r.values() for r in rows)]))
    return path


def documents(source):
    return ["".join(parts) for parts in read_documents(source, "train")]


@pytest.fixture
def sst2(tmp_path):
    """Rows of a training file with a good validation file beside it."""

    def read(columns=None, *, ending=".parquet", content=None, split="train"):
        write(tmp_path / "d" / "validation.parquet", {"sentence": ["good"], "label": [1]})
        file = tmp_path / "d" / f"train{ending}"
        if content is not None:
            file.write_bytes(content)
        else:
            write(file, columns)
        return read_rows(find_source(SST2, str(tmp_path / "d")), split).to_pydict()

    return read


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".csv"])
@pytest.mark.parametrize("column", ["sentence", "text"])
def test_tables(sst2, ending, column):
    assert sst2({column: ROWS["text"], "label": ROWS["label"]}, ending=ending) == ROWS


def test_in_tsv_a_quotation_mark_is_a_character(sst2):
    texts = ['he said "no', '"so', "it's"]
    assert sst2({"sentence": texts, "label": [0, 1, 1]}, ending=".tsv")["text"] == texts


def test_texts_that_look_like_something_else_stay_texts(sst2):
    texts = ["007", "2020-01-01", ""]
    assert sst2({"text": texts, "label": [0, 1, 1]}, ending=".csv")["text"] == texts


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".csv", ".tsv"])
def test_labels_by_name(sst2, ending):
    assert sst2({"text": ["a", "b"], "label": ["positive", "negative"]}, ending=ending)["label"] == [1, 0]


def test_shards_and_names_that_splits_go_by(tmp_path):
    for name, label in {"train-00000-of-00002": 0, "train-00001-of-00002": 1, "trainer": 0, "dev": 1}.items():
        write(tmp_path / f"{name}.parquet", {"text": [name], "label": [label]})
    source = find_source(SST2, str(tmp_path))
    assert read_rows(source, "train")["text"].to_pylist() == ["train-00000-of-00002", "train-00001-of-00002"]
    assert read_rows(source, "validation")["text"].to_pylist() == ["dev"]


def test_a_path_for_every_split(tmp_path):
    train = write(tmp_path / "some.csv", ROWS)
    write(tmp_path / "folder" / "whatever.jsonl", ROWS)
    source = find_source(SST2, {"train": str(train), "validation": str(tmp_path / "folder")})
    assert read_rows(source, "train") == read_rows(source, "validation")
    with pytest.raises(DataError, match="has no split 'dev'"):
        find_source(SST2, {"train": str(train), "dev": str(train)})
    with pytest.raises(DataError, match=r"none.csv does not exist"):
        find_source(SST2, {"train": str(train), "validation": str(tmp_path / "none.csv")})
    with pytest.raises(
        DataError, match=r"(?s)no file for the split 'validation'.*path: {train: FILE, validation: FILE}"
    ):
        find_source(SST2, {"train": str(train)})


def test_mnli_with_matched_and_mismatched(tmp_path):
    pairs = {"premise": ["a"], "hypothesis": ["b"], "label": [2]}
    for name in ("train", "validation_matched", "validation_mismatched"):
        write(tmp_path / "full" / f"{name}.parquet", pairs | {"premise": [name]})
    source = find_source(MNLI, str(tmp_path / "full"))
    for split in ("train", "validation_matched", "validation_mismatched"):
        assert read_rows(source, split).to_pydict() == {"text_a": [split], "text_b": ["b"], "label": [2]}
    for name in ("train", "validation"):
        write(tmp_path / "one" / f"{name}.parquet", pairs)
    assert list(find_source(MNLI, str(tmp_path / "one")).files) == ["train", "validation_matched"]
    write(tmp_path / "wrong" / "train.parquet", pairs)
    write(tmp_path / "wrong" / "validation_mismatched.parquet", pairs)
    with pytest.raises(DataError, match="no file for the split 'validation_matched'"):
        find_source(MNLI, str(tmp_path / "wrong"))


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        ({"txt": ["a"], "label": [0]}, r"no column sentence for task 'sst2'(?s:.*)train.parquet(?s:.*)txt, label"),
        ({"text": ["a"], "lable": [0]}, r"no column 'label'(?s:.*)train.parquet(?s:.*)text, lable"),
        ({"text": ["a", "b"], "label": [0, 2]}, r"label 2 in row 2(?s:.*)train.parquet(?s:.*)0 \(negative\), 1"),
        (
            {"text": ["a", "b"], "label": [0, -1]},
            r"label -1 in row 2 is not a label of task 'sst2'(?s:.*)train.parquet",
        ),
        ({"text": ["a", "b"], "label": [0, None]}, r"label None in row 2(?s:.*)train.parquet"),
        ({"text": ["a"], "label": pa.array([2**64 - 1], pa.uint64())}, r"label 18446744073709551615 in row 1"),
        ({"text": ["a", "b"], "label": ["positive", "great"]}, r"label 'great' in row 2(?s:.*)positive"),
        ({"text": ["a"], "label": [0.5]}, r"must hold labels, got double(?s:.*)train.parquet"),
        ({"text": ["a"], "label": [True]}, r"must hold labels, got bool"),
        ({"text": ["a"], "label": [None]}, r"must hold labels, got null"),
        (
            {"text": ["a", None], "label": [0, 1]},
            r"'text' has 1 missing values, the first in row 2(?s:.*)train.parquet",
        ),
        ({"text": [None], "label": [0]}, r"'text' must be text, got null"),
        (
            {"text": [5], "label": [0]},
            r"'text' must be text, got int64(?s:.*)train.parquet\n  try .*\{columns: \{text: NAME\}\}",
        ),
        ({"text": [["a"]], "label": [0]}, r"'text' must be text, got list"),
        (
            {"text": pa.array([], pa.string()), "label": pa.array([], pa.int64())},
            r"train.parquet has no rows",
        ),
    ],
)
def test_a_table_that_is_not_what_its_task_says(sst2, columns, says):
    with pytest.raises(DataError, match=says):
        sst2(columns)


@pytest.mark.parametrize("ending", [".parquet", ".csv", ".tsv", ".jsonl"])
@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "train.* is empty(?s:.*)download completed"),
        (b"text,label\ncaf\xe9,1\n", "train"),
        (b'text\tlabel\ncaf\xe9\t1\n{"text": "caf\xe9"}', "train"),
        (b'{"text": "caf\xe9", "label": 1}\n', "train"),
        (b"PAR1\0\0\0\0PAR1", "train"),
        (b"text,text,label\na,b,1\n", "train"),
    ],
)
def test_bytes_that_are_no_table(sst2, ending, content, says):
    with pytest.raises(DataError, match=says):
        sst2(ending=ending, content=content)


def test_two_columns_of_one_name(sst2):
    with pytest.raises(DataError, match="duplicate column 'text'"):
        sst2(ending=".csv", content=b"text,text,label\na,b,1\n")


def test_paths_that_do_not_exist(tmp_path):
    with pytest.raises(DataError, match=r"(?s)none.* does not exist.*recipe\.data\.path=FOLDER, with train and valid"):
        find_source(SST2, str(tmp_path / "none"))
    for invalid in ("a" * 5000, "~nobody-of-this-name/x"):
        with pytest.raises(DataError, match="cannot read"):
            find_source(SST2, invalid)
    with pytest.raises(DataError, match=r"(?s)no file for the split 'train'.*looked for train"):
        find_source(SST2, str(tmp_path))
    write(tmp_path / "train.csv", ROWS)
    with pytest.raises(DataError, match=r"(?s)no file for the split 'validation'.*validation.* or .*dev"):
        find_source(SST2, str(tmp_path))
    (tmp_path / "train.xlsx").write_bytes(b"PK")
    with pytest.raises(DataError, match=r"train.xlsx: unsupported file type"):
        find_source(TEXT, str(tmp_path / "train.xlsx"))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read(tmp_path):
    file = write(tmp_path / "train.csv", ROWS)
    file.chmod(0)
    with pytest.raises(DataError, match=r"cannot read .*train.csv"):
        find_source(TEXT, str(file))


def test_texts_and_their_documents(tmp_path):
    file = tmp_path / "stories.txt"
    file.write_text("one\nday<|endoftext|>\ntwo\n\n<|endoftext|>  \n", encoding="utf-8")
    assert documents(find_source(TEXT, str(file))) == ["one\nday", "two"]
    assert documents(find_source(TEXT, str(tmp_path))) == ["one\nday", "two"]
    with pytest.raises(DataError, match="is plain text; task 'sst2' needs columns"):
        read_rows(find_source(SST2, {"train": str(file), "validation": str(file)}), "train")
    file.write_text("\n\n")
    with pytest.raises(DataError, match=r"(?s)the split 'train' .* is empty.*stories.txt"):
        documents(find_source(TEXT, str(file)))
    file.write_bytes(b"one\r\nday<|endoftext|>two\rdays")
    assert documents(find_source(TEXT, str(file))) == ["one\nday", "two\ndays"]
    file.write_bytes(b"one<|endoftext|>caf\xe9")
    with pytest.raises(DataError, match=r"byte 19"):
        documents(find_source(TEXT, str(file)))
    file.write_bytes(b"caf\xe9")
    with pytest.raises(DataError, match=r"(?s)stories.txt is not valid UTF-8.*byte 3.*iconv"):
        documents(find_source(TEXT, str(file)))


def test_lines_are_one_document(tmp_path):
    for split in ("train", "validation", "test"):
        write(tmp_path / f"{split}.parquet", {"text": ["= Title =\n", "", "a line", f"{split}\n"]})
    source = find_source(WIKI, str(tmp_path))
    assert documents(source) == ["= Title =\n\na line\ntrain\n"]


@pytest.mark.parametrize("ending", [".parquet", ".jsonl"])
def test_rows_are_documents(tmp_path, ending):
    file = write(tmp_path / f"train{ending}", {"text": ["one", " ", "two"]})
    assert documents(find_source(TEXT, str(file))) == ["one", "two"]


@pytest.mark.parametrize("ending", [".parquet", ".jsonl", ".csv"])
def test_documents_that_cannot_be_read(tmp_path, ending):
    file = tmp_path / f"train{ending}"
    file.write_bytes(b"\xff\xfe\0")
    with pytest.raises(DataError, match=f"train{ending}"):
        documents(find_source(TEXT, str(file)))


@pytest.mark.parametrize("ending", ["", "-2d5a1467fff1081b"])
def test_a_part_of_a_dataset_is_not_taken_for_the_whole(tmp_path, ending):
    parts = [tmp_path / "d" / f"train-{number:05d}-of-00003{ending}.csv" for number in range(3)]
    validation = write(tmp_path / "d" / "validation.csv", ROWS)
    for part in parts[::2]:
        write(part, ROWS)
    says = rf"(?s)parts of the split 'train' are missing.*2 of 3 parts.*{tmp_path}.*copy the missing parts"
    with pytest.raises(DataError, match=says):
        find_source(SST2, str(tmp_path / "d"))
    write(parts[1], ROWS)
    assert find_source(SST2, str(tmp_path / "d")).files["train"] == tuple(parts)

    own = tmp_path / "train"
    own.mkdir()
    parts[0].rename(own / parts[0].name)
    with pytest.raises(DataError, match=r"parts of the split 'train' are missing: found 1 of 3 parts"):
        find_source(SST2, {"train": str(own), "validation": str(validation)})
    named = find_source(SST2, {"train": str(own / parts[0].name), "validation": str(validation)})
    assert len(named.files["train"]) == 1, "whoever names a part means it"


def test_a_part_that_is_there_twice_does_not_stand_for_another(tmp_path):
    for name in ("train-00000-of-00002-aaaa", "train-00000-of-00002-bbbb", "validation"):
        write(tmp_path / f"{name}.parquet", ROWS)
    with pytest.raises(DataError, match="1 of 2 parts in 2 files"):
        find_source(SST2, str(tmp_path))


def test_a_split_in_two_forms_is_refused(tmp_path):
    for ending in ("csv", "tsv"):
        (tmp_path / f"train.{ending}").write_text("text,label\na,0\nb,1\n")
    with pytest.raises(DataError, match="more than one type"):
        find_source(task_named("sst2"), str(tmp_path))


# -- long rows, deep JSON, and what is no file -----------------------------------------------------------------------


@pytest.mark.parametrize("ending", [".jsonl", ".csv", ".tsv"])
@pytest.mark.parametrize("place", [0, 1])
def test_rows_beyond_a_block_are_read(sst2, ending, place):
    texts = ["a", "b", "c"]
    texts[place] = "word " * 300_000
    assert sst2({"text": texts, "label": [0, 1, 1]}, ending=ending) == {"text": texts, "label": [0, 1, 1]}


def test_a_long_row_of_many_lines_is_read(sst2):
    texts = ["a", "line\n" * 300_000, "c"]
    assert sst2({"text": texts, "label": [0, 1, 1]}, ending=".csv")["text"] == texts


def test_a_row_beyond_all_blocks_is_refused_by_its_length(sst2, monkeypatch):
    monkeypatch.setattr(tables, "_BLOCK_SIZES", (2**10, 2**20))
    columns = {"text": ["a", "word " * 500_000, "b"], "label": [0, 1, 1]}
    with pytest.raises(DataError, match=r"(?s)train.jsonl has a row of more than 1 MB.*split it$"):
        sst2(columns, ending=".jsonl")


def test_a_quotation_mark_that_is_not_closed_for_too_long(sst2, monkeypatch):
    monkeypatch.setattr(tables, "_BLOCK_SIZES", (2**10, 2**20))
    content = b'text,label\na,0\n"not closed,1\n' + b"some row,1\n" * 300_000
    with pytest.raises(DataError, match=r"(?s)train.csv has a row of more than 1 MB.*close a quotation mark"):
        sst2(ending=".csv", content=content)


def test_a_quotation_mark_that_is_not_closed(sst2):
    content = b'text,label\na,0\n"not closed,1\n' + b"some row,1\n" * 200_000
    with pytest.raises(DataError, match=r"(?s)cannot read .*train.csv as csv.*Expected 2 columns"):
        sst2(ending=".csv", content=content)


LEVELS = 60_000  # kill pyarrow
DEEP = {
    "lists": '{"text": "a", "x": ' + "[" * LEVELS + "]" * LEVELS + "}",
    "objects": '{"text": "a", "x": ' + '{"a": ' * LEVELS + "1" + "}" * LEVELS + "}",
    "over lines": '{"text": "a", "x": ' + "[\n" * LEVELS + "]\n" * LEVELS + "}",
    "with brackets in strings": '{"text": "a", "x": ' + '["]",\n' * LEVELS + "1" + "]" * LEVELS + "}",
    "after a string without an end": '{"text": "a\n' + '{"text": "a", "x": ' + "[" * LEVELS + "]" * LEVELS + "}",
    "behind backslashes": r'{"text": "\\\\", "y": "\"", "x": ' + "[" * LEVELS + "]" * LEVELS + "}",
}


@pytest.mark.parametrize("ending", [".json", ".jsonl"])
@pytest.mark.parametrize("kind", DEEP)
def test_deep_json_is_refused_by_its_line(tmp_path, kind, ending):
    file = tmp_path / f"train{ending}"
    file.write_text('{"text": "first"}\n' + DEEP[kind] + "\n")
    with pytest.raises(DataError, match=rf"(?s)train{ending} is nested more than 100 levels deep.*line \d") as refused:
        documents(find_source(TEXT, str(file)))
    assert ("line 2" in str(refused.value)) == (kind in ("lists", "objects", "behind backslashes"))


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text('[{]}\n"a', max_size=40), st.integers(1, 5))
def test_the_depth_is_that_of_brackets_outside_of_strings(tmp_path, monkeypatch, content, block):
    monkeypatch.setattr(tables, "_MAX_DEPTH", 3)
    monkeypatch.setattr(tables, "_BLOCK", block)
    file = tmp_path / "train.jsonl"
    file.write_text(content)
    deepest, depth = {}, 0
    for number, line in enumerate(content.split("\n"), start=1):
        for bracket in "".join(line.split('"')[::2]).replace("a", ""):
            depth = max(0, depth + (1 if bracket in "[{" else -1))
            deepest[number] = max(depth, deepest.get(number, 0))
    too_deep = [number for number, depth in deepest.items() if depth > 3]
    if too_deep:
        with pytest.raises(DataError, match=f"(?s)more than 3 levels deep.*line {too_deep[0]}\n"):
            tables._check_json(file)
    else:
        tables._check_json(file)


WIDE = 1001
TOO_WIDE = {
    "keys.jsonl": "".join(f'{{"text": "a", "k{number}": 1}}\n' for number in range(WIDE)),
    "keys of keys.jsonl": "".join(f'{{"text": "a", "m": {{"k{number}"\t: 1}}}}\n' for number in range(WIDE)),
    "header.csv": "\n\ntext" + ",k" * WIDE + "\na\n",
    "header.tsv": "text" + "\tk" * WIDE + "\na\n",
}


@pytest.mark.parametrize("name", [*TOO_WIDE, "columns.parquet", "fields.parquet"])
def test_thousands_of_columns_never_reach_arrow(tmp_path, monkeypatch, name):
    """Of 20,000 rows with a key of their own, Arrow made 400 million nulls, in 5 GB and more than a minute."""
    file = tmp_path / name
    fields = {f"k{number}": [1] for number in range(WIDE)}
    if name == "columns.parquet":
        parquet.write_table(pa.table({"text": ["a"], **fields}), file)
    elif name == "fields.parquet":
        parquet.write_table(pa.table({"text": ["a"], "m": [dict.fromkeys(fields, 1)]}), file)
    else:
        file.write_text(TOO_WIDE[name])
    monkeypatch.setattr(tables, "_read_table", None)
    monkeypatch.setattr(parquet.ParquetFile, "iter_batches", None)
    with pytest.raises(DataError, match="more than 1,000 columns"):
        documents(find_source(TEXT, str(file)))


def test_keys_that_come_again_or_are_text_are_not_counted(tmp_path):
    file = tmp_path / "train.jsonl"
    text = " ".join(f'"k{number}": 1,' for number in range(WIDE)) + "\\"
    file.write_text("".join(json.dumps({"text": text, "label": number}) + "\n" for number in range(WIDE)))
    assert documents(find_source(TEXT, str(file))) == [text] * WIDE


def test_brackets_that_are_text_are_not_levels(tmp_path):
    texts = ["[" * 1000, '"{' * 1000, "\\[" * 1000, "\\", "fine ]"]
    file = write(tmp_path / "train.jsonl", {"text": texts, "x": [[[[1]]]] * 5})
    assert documents(find_source(TEXT, str(file))) == texts
    pretty = "".join(json.dumps({"text": text, "x": [[1], [2]]}, indent=1) + "\n" for text in texts)
    file.write_text(pretty)
    assert documents(find_source(TEXT, str(file))) == texts, "rows over several lines"


def test_a_small_file_has_no_long_row(sst2):
    with pytest.raises(DataError, match=r"(?s)cannot read .*train.csv as csv.*cannot infer number of columns"):
        sst2(ending=".csv", content=b"a" * 2**21)


def test_many_columns_and_long_names_are_no_long_story(sst2):
    names = [f"column-{number}" for number in range(900)]
    with pytest.raises(DataError, match="no column sentence") as refused:
        sst2(ending=".csv", content=",".join(names).encode() + b"\n" + b",".join([b"1"] * len(names)) + b"\n")
    assert len(str(refused.value)) < 2000
    with pytest.raises(DataError, match="no column sentence") as refused:
        sst2({"x" * 100_000: ["a"], "label": [0]}, ending=".csv")
    assert len(str(refused.value)) < 2000
    with pytest.raises(DataError, match="is not a label") as refused:
        sst2({"text": ["a"], "label": ["x" * 100_000]}, ending=".csv")
    assert len(str(refused.value)) < 2000


@pytest.mark.parametrize("ending", [".csv", ".tsv", ".jsonl", ".txt"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be"])
def test_utf_16_says_how_to_convert_it(tmp_path, ending, encoding):
    file = tmp_path / f"train{ending}"
    mark = "\ufeff" if encoding == "utf-16-be" else ""
    file.write_text(mark + 'text,label\n{"text": "grüße"}\n', encoding=encoding)
    with pytest.raises(DataError, match=r"(?s)train.*iconv -f UTF-16"):
        documents(find_source(TEXT, str(file)))


def test_nul_bytes_are_characters(tmp_path, sst2):
    assert sst2({"text": ["a\0b", "c"], "label": [0, 1]}, ending=".csv")["text"] == ["a\0b", "c"]
    (tmp_path / "a.txt").write_bytes(b"one\0two")
    assert documents(find_source(TEXT, str(tmp_path / "a.txt"))) == ["one\0two"]


NO_FILES = {
    "a folder": (lambda path: path.mkdir(), "is not a file(?s:.*)a folder"),
    "a pipe": (os.mkfifo, "is not a file(?s:.*)a pipe"),
    "a device": (lambda path: path.symlink_to("/dev/zero"), "is not a file(?s:.*)device"),
    "a dangling link": (lambda path: path.symlink_to("nowhere"), "does not exist(?s:.*)link"),
    "a loop of links": (lambda path: path.symlink_to(path.name), "train.csv"),
}


@pytest.mark.parametrize("kind", NO_FILES)
def test_what_is_no_file_is_not_opened(tmp_path, kind):
    make, says = NO_FILES[kind]
    make(tmp_path / "train.csv")
    write(tmp_path / "validation.csv", ROWS)
    with pytest.raises(DataError, match=says):
        find_source(SST2, str(tmp_path))
    if kind != "a folder":  # which a path may be
        with pytest.raises(DataError, match=says):
            find_source(SST2, {"train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "validation.csv")})
        with pytest.raises(DataError, match=r"train\.csv"):
            find_source(TEXT, str(tmp_path / "train.csv"))


def test_a_text_of_a_folder_that_cannot_be_read_is_not_left_out(tmp_path):
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "two.txt").symlink_to("nowhere")
    with pytest.raises(DataError, match=r"two.txt does not exist"):
        find_source(TEXT, str(tmp_path))


def test_a_file_that_goes_away(tmp_path):
    source = find_source(TEXT, str(write(tmp_path / "train.jsonl", {"text": ["a"]})))
    (tmp_path / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"cannot read .*train.jsonl"):
        source.fingerprint()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("train.csv.gz", b"not packed at all", "(?s)cannot unpack.*try    check that"),
        ("train.jsonl.zst", b"\x28\xb5\x2f\xfdcut", "cannot unpack"),
        ("train.csv.gz", gzip.compress(bytes(2**21)), "times as large"),
        ("train.arrow", b"ARROW1 and no more", "as arrow"),
        ("train.arrow", b"no stream", "as arrow"),
        ("train.json", b"[1, 2]", "as json"),
        ("train.json", b'[{"text": "a", "label": 0}, ', "as json"),
        ("train.json", b'[{"text": "a", "label": 0}, {"text": 5, "label": "b"}]', "as json"),
    ],
)
def test_packed_files_and_arrow_files_that_are_damaged(tmp_path, monkeypatch, name, content, says):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("oelm.data.sources.MOST_UNPACKED", 1)
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=says):
        SplitReader(find_source(task_named("classification"), str(tmp_path / name)), 5)


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("a.csv", "text;label\nhello, there, you;1\n", r"Expected 1 columns.*try .*semicolons: save it with commas"),
        ("a.csv", "text;label\nhello;1\n", r"no column text.*try .*semicolons: save it with commas"),
        ("a.csv", "text\tlabel\nhello, you\t1\n", r"Expected 1 columns.*try .*tabs: name it \.tsv"),
        ("a.csv", "this is a good film,1\nand not this,0\n", r"no column text.*try    is the header missing\?"),
        ("a.tsv", "text,label\nhello,1\n", r"no column text.*try .*commas: name it \.csv"),
        (
            "a.csv",
            "\ntext,label\n" + "a,1\n" * 20 + "hello, there,1\n",
            r"where  line 23\n.*got 3: hello, there,1\n.*header, and quotation marks around a text with commas",
        ),
        ("a.csv", f"text,label\na,1\n{'long, ' * 99}1\n", r"where  line 3\n"),
        ("a.tsv", "text\tlabel\r\na\tb\t1\r\n", r"where  line 2\n.*header, and a tab between columns"),
        (
            "a.jsonl",
            '{"text": "a"}\n' * 9 + '{"text": 5}\n',
            r"in row 10\n  try    column 'text' has texts and numbers: put quotation marks around the numbers",
        ),
        ("a.jsonl", '{"text": 5}\n{"text": ["a"]}\n', r"try    values of one type in column 'text'"),
        ("a.jsonl", '{"text": "a"}\n{"text":', r"try    check that the file is complete$"),
        ("a.csv", "text,label,x\ngood,1,2\ngood,1\n", r"where  line 3\n"),
        ("a.json", '[{"text": "a", "label": 0}, null]', r"element 2 of the list is not an object"),
        ("a.json", '[{"text": "a", "label": 123456789012345678901}]', r"cannot read .*a\.json as json"),
    ],
)
def test_what_cannot_be_read_as_a_table_says_what_to_do(tmp_path, name, content, says):
    (tmp_path / name).write_bytes(content.encode())
    with pytest.raises(DataError, match=f"(?s){says}"):
        SplitReader(find_source(task_named("classification"), str(tmp_path / name)), 5)


def test_rows_of_a_streamed_file_are_counted_through(tmp_path):
    texts = [f"text {number}" for number in range(200_000)]
    parquet.write_table(pa.table({"text": [*texts, None]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="the first in row 200001\n"):
        documents(find_source(TEXT, str(tmp_path / "a.parquet")))


def test_messages_name_the_packed_file(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "scores.jsonl.gz"
    file.write_bytes(gzip.compress(b'{"text": "a", "label": "b"}\n{"text": "c", "label": null}\n'))
    with pytest.raises(DataError, match="the first of them row 2\n") as error:
        SplitReader(find_source(task_named("classification"), str(file)), 5)
    assert f"where  {file}, column" in str(error.value)


def test_messages_name_the_file_of_the_hub(tmp_path):
    folder = tmp_path / "datasets--me--my--texts" / "snapshots" / ("0" * 40) / "data"
    file = write(folder / "train-00000-of-00001.parquet", {"text": [None]})
    with pytest.raises(DataError, match=r"where  me/my--texts: data/train-00000-of-00001\.parquet"):
        documents(find_source(TEXT, str(file)))


def test_a_list_of_json_has_the_columns_of_all_its_elements(tmp_path):
    (tmp_path / "a.json").write_text('[{"text": "a"}, {"text": "b", "label": "x"}]')
    table = tables.read_table(tmp_path / "a.json", task_named("classification"))
    assert table.to_pydict() == {"text": ["a", "b"], "label": [None, "x"]}


def test_a_file_that_is_there_packed_as_well_is_not_read_twice(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "data"
    folder.mkdir()
    for name, opened in (("a.txt", open), ("b.txt.gz", gzip.open)):
        with opened(folder / name, "wt") as file:
            file.write(f"the text of {name}\n")
    texts = find_source(task_named("text"), str(folder)).files["train"]
    assert [path.read_text() for path in texts] == ["the text of a.txt\n", "the text of b.txt.gz\n"]
    with gzip.open(folder / "a.txt.gz", "wt") as file:
        file.write("the text of a.txt\n")
    with pytest.raises(DataError, match=r"a\.txt and a\.txt\.gz are one file, packed and unpacked"):
        find_source(task_named("text"), str(folder))
