"""Tokens: what is trained, selected and reported on; tokenized once; and nothing but a DataError for any file."""

import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import zoo
from oelm.data.limit import Limit
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import Task, task_named
from oelm.data.tokenize import (
    TokenizedTask,
    Windows,
    load_tokenizer,
    tokenize_task,
    tokenizer_fingerprint,
    train_tokenizer,
)
from oelm.errors import DataError, OelmError

SST2, RTE, MNLI, TEXT, WIKI, STORIES, XNLI = map(
    task_named, ("sst2", "rte", "mnli", "text", "wikitext-2", "tinystories", "xnli-en")
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


def bpe(vocab=300):
    return lambda texts, made_from: train_tokenizer(texts, vocab=vocab, made_from=made_from)


def loaded(tokenizer):
    return lambda texts, made_from: tokenizer


def prepared(task, path, **options):
    settings = {"tokenizer": bpe(), "max_length": 32, "validation": None} | options
    return tokenize_task(find_source(task, path if isinstance(path, dict) else str(path)), **settings)


def write(folder, **splits):
    folder.mkdir(exist_ok=True)
    for split, columns in splits.items():
        # No two splits may be the same file, so each says its name.
        named = {**columns, "split": [split] * len(next(iter(columns.values())))}
        parquet.write_table(pa.table(named), folder / f"{split}.parquet")
    return folder


@pytest.fixture
def sst2(tmp_path):
    """60 training rows, some of them with the same text, and 4 to report on."""
    texts = [f"film number {number % 40}" for number in range(60)]
    return write(
        tmp_path / "sst2",
        train={"text": texts, "label": [number % 2 for number in range(60)]},
        validation={"text": [f"other {number}" for number in range(4)], "label": [0, 1, 1, 0]},
    )


def texts_of(prepared, split):
    pairs = zip(split.offsets[:-1], split.offsets[1:], strict=True)
    return [prepared.tokenizer.decode(split.tokens[start:end]) for start, end in pairs]


def test_examples_are_the_rows(sst2):
    data = prepared(SST2, sst2, validation=10)
    train = parquet.read_table(sst2 / "train.parquet").to_pydict()
    for split in (data.train, data.validation):
        assert texts_of(data, split) == [train["text"][row] for row in split.rows]
        assert split.labels.tolist() == [train["label"][row] for row in split.rows]
    assert texts_of(data, data.test["validation"]) == [f"other {number}" for number in range(4)]
    assert data.facts.sizes == {"train": len(data.train), "validation": 10, "test-validation": 4}


def test_held_out_is_never_trained_on_not_even_by_its_text(sst2):
    data = prepared(SST2, sst2, validation=10)
    assert len(data.validation) == 10
    assert not set(data.train.rows) & set(data.validation.rows)
    assert not set(texts_of(data, data.train)) & set(texts_of(data, data.validation))
    left = set(parquet.read_table(sst2 / "train.parquet")["text"].to_pylist())
    assert set(texts_of(data, data.train)) == left - set(texts_of(data, data.validation)), "and no more is left out"


def test_what_is_held_out_is_a_function_of_the_task_alone(sst2, monkeypatch, tmp_path):
    first = prepared(SST2, sst2, validation=10).validation.rows.tolist()
    np.random.default_rng(1).random()
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "another"))
    assert prepared(SST2, sst2, validation=10, max_length=16).validation.rows.tolist() == first
    assert first != list(range(10)), "but not the first rows"


def test_a_task_that_is_registered_anew_is_tokenized_anew(tmp_path):
    texts = [f"film number {number}" for number in range(40)]
    rows = {"text": texts, "plot": texts[::-1], "label": ["a", "b"] * 20, "fine": ["a", "a", "b", "b"] * 10}
    folder = write(tmp_path / "mine", train=rows)

    def made(**changes):
        given = {"labels": ("a", "b"), "held_out": 4} | changes
        return prepared(Task(name="mine", kind="classification", **given), folder, validation=4)

    first = made()
    others = [made(label="fine"), made(labels=("b", "a")), made(columns=("plot",)), made(held_out=2)]
    assert len({first.facts.data, *(one.facts.data for one in others)}) == 5
    names = dict(zip(texts, rows["fine"], strict=True))
    assert [names[text] for text in texts_of(first, others[0].train)] == ["ab"[one] for one in others[0].train.labels]
    assert others[1].train.labels.tolist() == [1 - one for one in first.train.labels]
    assert made().facts == first.facts


def test_the_fingerprint_of_a_shipped_task_is_as_in_old_records(tmp_path):
    (tmp_path / "rows").mkdir()
    for split in ("train", "validation"):
        rows = [f"{split} {number},{number % 2}" for number in range(20)]
        (tmp_path / "rows" / f"{split}.csv").write_text("\n".join(["text,label", *rows]) + "\n")
    assert prepared(SST2, tmp_path / "rows", validation=2).facts.data == "7a363d86c5f3a81e259b80c8f1cdc035"


def test_report_is_held_out_where_there_is_no_split(tmp_path):
    task = task_named("rotten_tomatoes")
    rows = {"text": [f"film {number}" for number in range(50)], "label": [0, 1] * 25}
    write(tmp_path / "rt", train=rows)
    data = prepared(task, tmp_path / "rt", validation=7)
    report = data.test["held_out"]
    assert (len(report), len(data.validation), len(data.train)) == (5, 7, 38)
    together = [*report.rows, *data.validation.rows, *data.train.rows]
    assert sorted(together) == list(range(50)), "disjoint, and all rows"


def test_a_split_to_select_on(tmp_path):
    folder = write(
        tmp_path / "xnli",
        **{
            split: {"premise": [f"{split} a", f"{split} b"], "hypothesis": ["c", "d"], "label": [0, 2]}
            for split in ("train", "validation", "test")
        },
    )
    data = prepared(XNLI, folder, pair_separator=" | ")
    assert (list(data.test), len(data.validation)) == (["test"], 2)
    (folder / "validation.parquet").unlink()
    with pytest.raises(DataError, match=r"(?s)the validation split 'validation' is missing.*validation: 1000"):
        prepared(XNLI, folder, pair_separator=" | ")


def test_mnli_is_reported_on_both(tmp_path):
    rows = {"premise": ["a", "b", "c", "d"], "hypothesis": ["e"] * 4, "label": [0, 1, 2, 0]}
    other = {**rows, "hypothesis": ["f"] * 4}
    folder = write(tmp_path / "mnli", train=rows, validation_matched=other, validation_mismatched=other)
    data = prepared(MNLI, folder, validation=1, pair_separator=" ")
    assert list(data.test) == ["validation_matched", "validation_mismatched"]


@pytest.mark.parametrize("held", [31, 60, 1000])
def test_too_much_held_out(sst2, held):
    with pytest.raises(
        DataError,
        match=rf"(?s)cannot hold out {held} of 40 training examples.*recipe\.data\.validation.*smaller.*more rows",
    ):
        prepared(SST2, sst2, validation=held)


def test_one_class_only(sst2):
    write(sst2, train={"text": ["a", "b", "c", "d"], "label": [1, 1, 1, 1]})
    with pytest.raises(DataError, match=r"(?s)all training examples have the same label.*train.parquet"):
        prepared(SST2, sst2, validation=1)


def test_pairs_keep_their_token_types(tmp_path, shared_model):
    bert = load_tokenizer(shared_model("tokenizer-bert-base-uncased"))
    rows = {"sentence1": ["a cat", "one"] * 2, "sentence2": ["sat", "two three"] * 2, "label": [0, 1] * 2}
    folder = write(tmp_path / "rte", train=rows | {"sentence1": ["a cat", "one", "b", "c"]}, validation=rows)
    data = prepared(RTE, folder, tokenizer=loaded(bert), validation=1)
    report = data.test["validation"]
    assert texts_of(data, report)[:2] == ["[CLS] a cat [SEP] sat [SEP]", "[CLS] one [SEP] two three [SEP]"]
    assert report.types[: report.offsets[1]].tolist() == [0, 0, 0, 0, 1, 1]
    assert len(report.types) == len(report.tokens)
    with pytest.raises(DataError, match="max_length 3 leaves no room for text"):
        prepared(RTE, folder, tokenizer=loaded(bert), validation=1, max_length=3)


def test_a_tokenizer_without_pairs_needs_a_pair_separator(tmp_path):
    rows = {"sentence1": ["a cat", "one"] * 2, "sentence2": ["sat", "two three"] * 2, "label": [0, 1] * 2}
    folder = write(tmp_path / "rte", train=rows | {"sentence1": ["a cat", "one", "b", "c"]}, validation=rows)
    with pytest.raises(DataError, match=r"(?s)does not support pairs.*recipe\.data\.pair_separator"):
        prepared(RTE, folder, validation=1)
    data = prepared(RTE, folder, validation=1, pair_separator=" [SEP] ")
    assert texts_of(data, data.test["validation"])[0] == "a cat [SEP] sat"
    assert data.test["validation"].types is None


def test_long_examples_are_cut_and_counted(tmp_path, shared_model):
    bert = load_tokenizer(shared_model("tokenizer-bert-base-uncased"))
    rows = {"text": ["a b c", "a b", "a b c d e", ""], "label": [0, 1, 0, 1]}
    train = {"text": ["x y z", "u v", "w x y z", "t"], "label": [0, 1, 0, 1]}
    data = prepared(
        SST2, write(tmp_path / "d", train=train, validation=rows), tokenizer=loaded(bert), max_length=5, validation=1
    )
    assert data.test["validation"].lengths.tolist() == [5, 4, 5, 2]
    assert data.facts.cut["test-validation"] == 1, "the first just fits"


def test_an_empty_text_is_the_end_of_a_text(tmp_path):
    rows, other = ({"text": texts, "label": [0, 1, 0, 1]} for texts in (["a", "", "c", "d"], ["e", "", "f", "g"]))
    data = prepared(SST2, write(tmp_path / "d", train=rows, validation=other), validation=1)
    report = data.test["validation"]
    assert report.tokens[report.offsets[1] : report.offsets[2]].tolist() == [data.tokenizer.eos_token_id]


def test_tokenized_once(sst2):
    heard = []
    first = prepared(SST2, sst2, validation=10, progress=lambda *news: heard.append(news))
    assert heard[-1] == ("tokenizing", heard[-1][2], heard[-1][2])
    heard.clear()
    # The same size and time of change, so nobody looks into it; whoever did would find no table.
    stat = (sst2 / "train.parquet").stat()
    (sst2 / "train.parquet").write_bytes(b"x" * stat.st_size)
    os.utime(sst2 / "train.parquet", ns=(stat.st_atime_ns, stat.st_mtime_ns))
    second = prepared(SST2, sst2, validation=10, progress=lambda *news: heard.append(news))
    assert heard == []
    assert second.facts == first.facts
    assert (second.train.tokens == first.train.tokens).all()


def test_other_content_or_settings_are_tokenized_again(sst2):
    first = prepared(SST2, sst2, validation=10)
    assert prepared(SST2, sst2, validation=11).facts.data != first.facts.data
    assert prepared(SST2, sst2, validation=10, tokenizer=bpe(280)).facts.tokenizer != first.facts.tokenizer
    assert prepared(SST2, sst2, validation=10, max_length=2).train.lengths.max() == 2
    write(sst2, validation={"text": ["new"], "label": [1]})
    second = prepared(SST2, sst2, validation=10)
    assert second.facts.data != first.facts.data
    assert texts_of(second, second.test["validation"]) == ["new"]


def test_a_copy_elsewhere_is_the_same_data(sst2):
    first = prepared(SST2, sst2, validation=10)
    assert prepared(SST2, sst2.rename(sst2.with_name("moved")), validation=10).facts == first.facts


def test_what_was_begun_is_not_taken_for_whole(sst2, cache):
    write(sst2, train={"text": ["a", "b", "c", "d"], "label": [0, 1, 0, 5]})
    with pytest.raises(DataError, match="label 5"):
        prepared(SST2, sst2, validation=1)
    assert not [path for path in cache.rglob("*") if path.is_dir() and path.parent != cache]


def test_a_cache_that_cannot_be_written(sst2, tmp_path, monkeypatch):
    (tmp_path / "file").touch()
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "file"))
    with pytest.raises(OelmError, match=r"(?s)cannot write to the cache.*OELM_CACHE=FOLDER"):
        prepared(SST2, sst2, validation=10)


def test_a_tokenizer_is_trained_on_the_training_split_alone(tmp_path):
    rows = {"text": [f"ab{number} ab" for number in range(40)], "label": [0, 1] * 20}
    folder = write(tmp_path / "d", train=rows, validation={"text": ["zqzq zqzq zqzq"] * 50, "label": [1] * 50})
    data = prepared(SST2, folder, validation=4)
    assert data.tokenizer.tokenize("ab") == ["ab"]
    assert data.tokenizer.tokenize("zq") == ["z", "q"]

    seen = []
    prepared(
        SST2, folder, validation=4, tokenizer=lambda texts, made_from: seen.extend(texts()) or bpe()(texts, made_from)
    )
    assert seen == texts_of(data, data.train), "not on what is held out of it either"


def test_a_tokenizer_is_trained_on_a_part_of_a_long_text(tmp_path, monkeypatch):
    """All words of 200 MB that were different took 450 MB while a tokenizer was trained, and more of more text."""
    file = tmp_path / "t.txt"
    file.write_text("<|endoftext|>".join(f"word{number} and some more" for number in range(200)))
    texts, keys = {}, {}

    def choose(training_texts, made_from):
        texts[limit], keys[limit] = list(training_texts()), made_from
        return train_tokenizer(training_texts, vocab=300, made_from=made_from)

    size = file.stat().st_size
    for limit in (size, quarter := size // 4 + 1):
        monkeypatch.setattr("oelm.data.splits._TRAINING_BYTES", limit)
        data = tokenize_task(find_source(task_named("text"), str(file)), tokenizer=choose, max_length=4, validation=5)
        assert data.facts.sizes["train"] > 200, "all of it is tokenized"
    assert texts[quarter] == texts[size][::4], "from the first to the last"
    assert keys[quarter] == {**keys[size], "one_text_in": 4}, "another tokenizer in the cache"


def test_a_tokenizer_is_trained_on_all_of_the_little_that_a_limit_leaves(tmp_path, monkeypatch):
    file = tmp_path / "t.txt"
    file.write_text("<|endoftext|>".join(f"word{number} and some more" for number in range(200)))
    monkeypatch.setattr("oelm.data.splits._TRAINING_BYTES", file.stat().st_size // 4 + 1)
    source = find_source(task_named("text"), str(file))
    assert len(list(SplitReader(source, 5, limit=Limit(documents=40)).training_texts())) == 40
    assert len(list(SplitReader(source, 5, limit=Limit(documents=100)).training_texts())) == 50, (
        "one in two of more than fits"
    )


def test_a_trained_tokenizer_gives_every_text_back(tmp_path):
    tokenizer = train_tokenizer(lambda: ["some text"], vocab=260, made_from="x")
    for text in ("grüße, 世界!", " spaces  and\ttabs\n", "\0"):
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(
        train_tokenizer(lambda: pytest.fail("made already"), vocab=260, made_from="x")
    )


def test_a_tokenizer_that_is_not_there(tmp_path, shared_model):
    with pytest.raises(DataError, match="does not exist"):
        load_tokenizer(tmp_path / "none")
    with pytest.raises(DataError, match=r"(?s)cannot load a tokenizer.*data\.tokenizer"):
        load_tokenizer(tmp_path)
    for name in ("bert", "gpt2", "t5"):  # of which transformers makes one that knows no word
        next(family for family in zoo.FAMILIES if family.name == name).model().save_pretrained(tmp_path / name)
        with pytest.raises(DataError, match=f"there is no tokenizer in {tmp_path / name}"):
            load_tokenizer(tmp_path / name)
    assert load_tokenizer(shared_model("tokenizer-gpt2")).pad_token == "<|endoftext|>"


def test_a_text_needs_a_token_that_ends_it(tmp_path, shared_model):
    (tmp_path / "train.txt").write_text("some words\n" * 99)
    bert = load_tokenizer(shared_model("tokenizer-bert-base-uncased"))
    with pytest.raises(DataError, match=r"(?s)no end-of-text token\n  where  recipe\.data\.tokenizer\n.*train: bpe"):
        prepared(TEXT, tmp_path / "train.txt", tokenizer=loaded(bert), validation=5)


def test_end_of_text_separates_documents(tmp_path):
    stories = [f"story {number} of many" for number in range(30)]
    data = prepared(
        STORIES,
        write(tmp_path / "d", train={"text": stories}, validation={"text": ["another", "story", "or two"]}),
        validation=5,
        max_length=8,
    )
    end = data.tokenizer.eos_token
    assert data.tokenizer.decode(data.test["validation"].tokens) == f"another{end}story{end}or two{end}"
    trained, selected = (data.tokenizer.decode(split.tokens).split(end)[:-1] for split in (data.train, data.validation))
    assert len(selected) == 5
    found = [data.tokenizer.decode(document) for document in documents_of(data.validation)]
    assert found[1:3] == [text + end for text in selected[1:3]], "the first token of all is not predicted"
    assert sorted([*trained, *selected]) == sorted(stories)
    assert [stories.index(text) for text in trained] == sorted(stories.index(text) for text in trained)


def documents_of(split):
    return np.split(np.asarray(split.tokens[1 : len(split) * split.length + 1]), split.document_ends[:-1])


@given(st.lists(st.integers(0, 3), min_size=2, max_size=80), st.integers(1, 9), st.integers(1, 7))
def test_documents_are_what_ends_of_text_end(tokens, length, block):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("oelm.data.tokenize._BLOCK", block)
        split = Windows(tokens=np.array(tokens, dtype=np.uint16), length=min(length, len(tokens) - 1), end=0)
        predicted = tokens[1 : len(split) * split.length + 1]
        found = documents_of(split)
    assert np.concatenate(found).tolist() == predicted
    assert all(map(len, found))
    if 0 in predicted[:-1]:
        assert all(document[-1] == 0 and 0 not in document[:-1] for document in found[:-1])
        assert 0 not in found[-1][:-1]


@pytest.mark.parametrize(
    ("windows", "stretches"), [(1, [1]), (49, [1] * 49), (50, [1] * 50), (51, [2] * 25 + [1]), (200, [4] * 50)]
)
def test_a_text_without_documents_is_cut_into_stretches_of_windows(windows, stretches):
    split = Windows(tokens=np.ones(windows * 8 + 3, dtype=np.uint16), length=8, end=0)
    assert [len(document) // 8 for document in documents_of(split)] == stretches


def test_wikitext_is_a_text_without_documents(tmp_path):
    splits = {name: {"text": [f"= {name} =\n", f"{name} words\n"] * 100} for name in ("train", "validation", "test")}
    data = prepared(WIKI, write(tmp_path / "wiki", **splits), max_length=8)
    split = data.test["test"]
    assert len(split.document_ends) > 25
    assert set(np.diff(split.document_ends[:-1]) % 8) == {0}


def test_tokens_are_memory_mapped(tmp_path):
    stories = [f"story {number} of many" for number in range(30)]
    data = prepared(
        STORIES,
        write(tmp_path / "d", train={"text": stories}, validation={"text": stories[:3]}),
        validation=5,
        max_length=8,
    )
    assert isinstance(data.train.tokens, np.memmap)
    assert data.train.tokens.dtype == np.uint16


def test_a_document_that_is_held_out_is_not_trained_on_under_another_number(tmp_path):
    stories = [f"story {number % 20} of many" for number in range(60)]
    data = prepared(
        STORIES,
        write(tmp_path / "d", train={"text": stories}, validation={"text": stories[:3]}),
        validation=9,
        max_length=8,
    )
    end = data.tokenizer.eos_token
    trained, selected = (set(data.tokenizer.decode(s.tokens).split(end)[:-1]) for s in (data.train, data.validation))
    assert not trained & selected


def test_nothing_is_left_to_train_on(tmp_path):
    file = tmp_path / "same.txt"
    file.write_text("<|endoftext|>".join(["the same"] * 100))
    with pytest.raises(
        DataError,
        match=r"(?s)cannot hold out 15 of 100 .*: 5 for val.* and 10 for the test\n.*only together.*more text",
    ):
        prepared(TEXT, file, validation=5, tokenizer=loaded(train_tokenizer(lambda: ["a"], vocab=257, made_from=1)))


def test_one_text_is_cut_at_the_ends_of_lines(tmp_path):
    lines = [f"line {number} " + "word " * 30 for number in range(600)]
    file = tmp_path / "book.txt"
    file.write_text("\n".join(lines))
    data = prepared(TEXT, file, validation=3)
    end = data.tokenizer.eos_token
    splits = [data.train, data.validation, data.test["held_out"]]
    found = [line for split in splits for line in data.tokenizer.decode(split.tokens).replace(end, "").splitlines()]
    assert sorted(found) == sorted(lines)


def test_lines_stay_together(tmp_path):
    rows = {"text": ["= Title =\n", "", "some words", "more words\n"] * 5}
    other = {"text": ["another title", "and other words"] * 5}
    folder = write(tmp_path / "wiki", train=other, validation=rows, test=rows)
    data = prepared(WIKI, folder, max_length=8)
    text = "= Title =\n\nsome words\nmore words\n" * 5
    assert data.tokenizer.decode(data.test["test"].tokens) == text + data.tokenizer.eos_token


def test_too_little_text_for_a_window(tmp_path):
    folder = write(
        tmp_path / "wiki", train={"text": ["few words"]}, validation={"text": ["fewer"]}, test={"text": ["one"]}
    )
    with pytest.raises(DataError, match="fewer than one window of 128"):
        prepared(WIKI, folder, max_length=128)


TOKENIZER = {}


def tiny(texts, made_from):
    """One for all fuzzing: its training is tested above."""
    if not TOKENIZER:
        TOKENIZER["it"] = train_tokenizer(lambda: ["a text"], vocab=257, made_from="tiny")
    return TOKENIZER["it"]


def is_prepared_or_refused(path, task, **options):
    source = {split: str(path) for split in ("train", *task.test)}
    try:
        data = prepared(task, source, **{"tokenizer": tiny, "max_length": 4, "validation": 2} | options)
    except OelmError as error:
        str(error).encode()
    else:
        assert isinstance(data, TokenizedTask)
        assert min(len(data.train), len(data.validation), *map(len, data.test.values())) > 0


fuzz = settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
TASK = st.sampled_from([SST2, RTE, TEXT, WIKI, STORIES])
CELL = (
    st.none()
    | st.booleans()
    | st.integers(-1, 3)
    | st.floats()
    | st.text(max_size=6)
    | st.lists(st.integers(), max_size=2)
)
HEAD = st.sampled_from([b"", b"text,label\n", b"text\tlabel\n", b"sentence1,sentence2,label\n", b"PAR1", b'{"text": "'])


@fuzz
@given(TASK, st.sampled_from([".parquet", ".csv", ".tsv", ".jsonl", ".json", ".txt"]), HEAD, st.binary(max_size=60))
def test_any_bytes(tmp_path, task, ending, head, content):
    file = tmp_path / f"train{ending}"
    file.write_bytes(head + content)
    is_prepared_or_refused(file, task, pair_separator=" " if task.pairs else None)


@pytest.mark.slow
@fuzz
@given(
    TASK,
    st.sampled_from([".csv", ".tsv", ".jsonl"]),
    st.lists(
        st.fixed_dictionaries({}, optional=dict.fromkeys(("text", "text_a", "text_b", "label", "x"), CELL)), max_size=12
    ),
)
def test_any_table_as_text(tmp_path, task, ending, rows):
    file = tmp_path / f"train{ending}"
    if ending == ".jsonl":
        content = "".join(json.dumps(row) + "\n" for row in rows)
    else:
        mark = "," if ending == ".csv" else "\t"
        names = ["text", "text_a", "text_b", "label"]
        lines = [mark.join(str(row.get(name, "")) for name in names) for row in rows]
        content = "\n".join([mark.join(names), *lines])
    file.write_text(content, encoding="utf-8", errors="surrogatepass")
    is_prepared_or_refused(file, task, pair_separator=" " if task.pairs else None)


KINDS = [
    pa.string(),
    pa.large_string(),
    pa.int64(),
    pa.int8(),
    pa.uint64(),
    pa.float64(),
    pa.bool_(),
    pa.binary(),
    pa.null(),
]
KINDS += [pa.dictionary(pa.int32(), pa.string()), pa.list_(pa.string()), pa.string_view()]


@pytest.mark.slow
@fuzz
@given(st.data(), TASK, st.integers(0, 30))
def test_any_table_in_parquet(tmp_path, data, task, number):
    columns = {}
    for name in data.draw(st.lists(st.sampled_from(["text", "text_a", "text_b", "label"]), unique=True)):
        usual = pa.int64() if name == "label" else pa.string()
        kind = data.draw(st.just(usual) | st.sampled_from(KINDS))
        value = {
            pa.float64(): st.floats(),
            pa.bool_(): st.booleans(),
            pa.binary(): st.binary(max_size=4),
            pa.null(): st.none(),
            pa.list_(pa.string()): st.lists(st.text(max_size=2), max_size=2),
        }.get(kind, st.integers(0, 1) if pa.types.is_integer(kind) else st.text(max_size=4))
        empty = data.draw(st.booleans())
        cells = data.draw(st.lists(value | st.none() if empty else value, min_size=number, max_size=number))
        columns[name] = pa.array(cells, kind)
    file = tmp_path / "train.parquet"
    parquet.write_table(pa.table(columns), file)
    is_prepared_or_refused(file, task, pair_separator=" " if task.pairs else None)


@pytest.mark.slow
@fuzz
@given(st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(0, 255)), max_size=4), st.floats(0.5, 1))
def test_any_damage_to_a_good_file(tmp_path, changes, kept):
    file = tmp_path / "train.parquet"
    parquet.write_table(pa.table({"text": [f"text {number}" for number in range(20)], "label": [0, 1] * 10}), file)
    content = bytearray(file.read_bytes())
    for position, byte in changes:
        content[int(position * len(content))] = byte
    file.write_bytes(content[: max(1, int(kept * len(content)))] if kept < 0.9 else content)
    is_prepared_or_refused(file, SST2)
    is_prepared_or_refused(file, TEXT)


@pytest.mark.parametrize("name", ["sst2", "wikitext2", "tinystories_slice"])
def test_real_data_beside_the_repository(name):
    folder = Path(__file__).parents[3] / "shared" / "data" / name
    if not folder.is_dir():
        pytest.skip(f"there is no {name} beside the repository")
    task = {"sst2": SST2, "wikitext2": WIKI, "tinystories_slice": STORIES}[name]
    assert set(find_source(task, str(folder)).files) >= {"train", task.test[0]}


def test_one_file_cannot_be_trained_and_reported_on(tmp_path):
    file = tmp_path / "all.csv"
    file.write_text("text,label\n" + "".join(f"word {i},{i % 2}\n" for i in range(100)))
    source = find_source(task_named("sst2"), {"train": str(file), "validation": str(file)})
    with pytest.raises(DataError, match="are the same file"):
        tokenize_task(source, tokenizer=lambda texts, made_from: None, max_length=8, validation=10)
