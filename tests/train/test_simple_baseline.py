"""Simple baselines: trained on the very rows of a task, kept once, and read back without data or torch."""

import collections
import itertools
import json
import math
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import tiny_study
from made_runs import sealed
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import task_named
from oelm.data.tokenize import TokenizedTask, Windows, tokenize_task, train_tokenizer
from oelm.errors import CellError, OelmError
from oelm.facts import TaskFacts
from oelm.runs.layout import SIMPLE_BASELINE
from oelm.runs.simple_baseline import (
    SIMPLE_BASELINE_FILE,
    SimpleBaseline,
    find_simple_baseline,
    pack_answers,
    read_simple_baselines,
)
from oelm.train import simple_baseline
from oelm.train.simple_baseline import save_simple_baseline, train_simple_baseline

pytestmark = pytest.mark.slow

SST2, RTE, COLA, TEXT = map(task_named, ("sst2", "rte", "cola", "text"))


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))


def made(task, path, *, validation=20, **options):
    """(what is trained on, the rows that it is made of)"""
    source = find_source(task, str(path))
    settings = {"max_length": 16, "pair_separator": " | " if task.pairs else None} | options
    tokenizer = lambda texts, made_from: train_tokenizer(texts, vocab=300, made_from=made_from)  # noqa: E731
    return tokenize_task(source, tokenizer=tokenizer, validation=validation, **settings), SplitReader(
        source, validation
    )


def write(folder, **splits):
    folder.mkdir()
    for split, columns in splits.items():
        parquet.write_table(pa.table(columns), folder / f"{split}.parquet")
    return folder


# -- classification --------------------------------------------------------------------------------------------


def test_words_that_decide_are_found(tmp_path):
    prepared, reading = made(SST2, tiny_study.write_data(tmp_path / "data"))
    baseline = train_simple_baseline(prepared, reading)
    assert baseline.data == prepared.facts.data
    assert baseline.tokenizer is None, "the same for every tokenizer"
    assert baseline.kind == "tf-idf + logistic regression"
    assert (baseline.rows, baseline.capped, baseline.classes) == (len(prepared.train), False, 2)
    assert set(baseline.splits) == {"validation"}
    assert set(baseline.splits["validation"]) == {"accuracy", "macro_f1", "f1"}
    assert baseline.splits["validation"]["accuracy"] > 0.9
    assert baseline.splits["validation"]["accuracy"] * 60 == pytest.approx(
        round(baseline.splits["validation"]["accuracy"] * 60)
    )
    assert train_simple_baseline(prepared, reading) == baseline


def test_labels_that_nothing_tells_are_not_learned(tmp_path):
    """No row that is reported may be trained on: with labels at random the baseline is chance, not memory."""
    random = np.random.default_rng(0)
    words = random.integers(0, 50, (1200, 8))
    texts = [" ".join(f"w{word}" for word in row) for row in words]
    labels = random.integers(0, 2, 1200).tolist()
    folder = write(
        tmp_path / "data",
        train={"text": texts[:600], "label": labels[:600]},
        validation={"text": texts[600:], "label": labels[600:]},
    )
    baseline = train_simple_baseline(*made(SST2, folder))
    accuracy = baseline.splits["validation"]["accuracy"]
    assert abs(accuracy - 0.5) < 0.1
    assert baseline.answers("validation", 600).mean() == pytest.approx(accuracy), "answer by answer"


def test_the_majority_is_that_of_the_training_rows(tmp_path):
    rows = [f"word{number} again" for number in range(60)]
    folder = write(
        tmp_path / "data",
        train={"text": rows, "label": [0] * 15 + [1] * 45},
        validation={"text": ["a b", "c d", "e f", "g h", "i j"], "label": [0, 0, 0, 0, 1]},
    )
    assert train_simple_baseline(*made(SST2, folder, validation=4)).majority == {"validation": 0.2}


def test_each_text_of_a_pair_counts_by_itself(tmp_path):
    """Every pair has one `yes` and one `no`: only which text has which tells the label."""
    random = np.random.default_rng(1)
    first = random.integers(0, 2, 400)
    columns = {
        "text_a": [f"{row} {'yes' if one else 'no'} {row}" for row, one in enumerate(first)],
        "text_b": [f"{row} {'no' if one else 'yes'} {row}" for row, one in enumerate(first)],
        "label": first.tolist(),
    }
    train = {name: values[:300] for name, values in columns.items()}
    report = {name: values[300:] for name, values in columns.items()}
    baseline = train_simple_baseline(*made(RTE, write(tmp_path / "data", train=train, validation=report)))
    assert baseline.splits["validation"]["accuracy"] == 1.0


@pytest.mark.parametrize(
    ("texts", "reason"),
    [
        (["?! ..."] * 30, "not one word"),
        ([f"only{number}" for number in range(30)], "no word comes twice"),
        ([""] * 30, "nothing"),
    ],
)
def test_texts_without_much_in_them(tmp_path, texts, reason):
    texts = [text + "!" * number for number, text in enumerate(texts)]  # held out rows are left out by their text
    folder = write(
        tmp_path / "data",
        train={"text": texts, "label": [1, 1, 0] * 10},
        validation={"text": ["?", "unseen", ""], "label": [1, 1, 0]},
    )
    baseline = train_simple_baseline(*made(SST2, folder, validation=3))
    assert baseline.splits["validation"]["accuracy"] == baseline.majority["validation"] == pytest.approx(2 / 3), reason


def test_more_rows_than_are_needed(tmp_path, monkeypatch):
    prepared, reading = made(SST2, tiny_study.write_data(tmp_path / "data"))
    monkeypatch.setattr(simple_baseline, "MOST_ROWS", 100)
    baseline = train_simple_baseline(prepared, reading)
    assert (baseline.rows, baseline.capped) == (100, True)
    assert baseline.splits["validation"]["accuracy"] > 0.7
    assert train_simple_baseline(prepared, reading) == baseline


# -- language modeling ----------------------------------------------------------------------------------------


def by_hand(train: list[int], tokens: list[int], vocab: int) -> tuple[list[float], list[float]]:
    """(unigram, Witten-Bell bigram) losses, with dictionaries."""
    single, pair, followers = collections.Counter(train), collections.Counter(), collections.defaultdict(set)
    for one, two in itertools.pairwise(train):
        pair[one, two] += 1
        followers[one].add(two)
    alone, after = [], []
    for one, two in itertools.pairwise(tokens):
        unigram = (single[two] + 1) / (len(train) + vocab)
        distinct = len(followers[one])
        total = sum(pair[one, other] for other in followers[one])
        alone.append(-math.log(unigram))
        after.append(-math.log((pair[one, two] + distinct * unigram) / (total + distinct)) if total else alone[-1])
    return alone, after


@given(st.lists(st.integers(0, 6), min_size=2, max_size=60), st.lists(st.integers(0, 6), min_size=2, max_size=30))
def test_losses_of_tokens(train, tokens):
    alone, after = simple_baseline.next_token_losses(np.array(train), np.array(tokens), vocab=8)
    expected = by_hand(train, tokens, 8)
    np.testing.assert_allclose(alone, expected[0], rtol=1e-12)
    np.testing.assert_allclose(after, expected[1], rtol=1e-12)


@given(st.lists(st.integers(0, 6), min_size=2, max_size=60), st.integers(0, 7))
def test_probabilities_add_up_to_one(train, context):
    asked = [(context, token) for token in range(8)]
    for which in (0, 1):
        total = sum(
            math.exp(-simple_baseline.next_token_losses(np.array(train), np.array(pair), vocab=8)[which][0])
            for pair in asked
        )
        assert total == pytest.approx(1)


class Vocabulary:
    def __init__(self, size):
        self.size = size

    def __len__(self):
        return self.size


def windows_of(train, report, *, length=4, vocab=8):
    facts = TaskFacts(data="d", tokenizer="t", files={}, sizes={}, cut={}, overlap=())
    train, report = (Windows(tokens=np.array(one, dtype=np.uint16), length=length, end=0) for one in (train, report))
    return TokenizedTask(
        task=TEXT, train=train, validation=report, test={"held": report}, tokenizer=Vocabulary(vocab), facts=facts
    )


def test_the_tokens_are_those_that_models_are_measured_on():
    """Two windows of four and the token after them; what is left over at the end is nobody's."""
    train = [1, 2, 3, 1, 2, 3, 1, 2, 4]
    report = [1, 2, 3, 1, 2, 4, 1, 2, 3, 7, 7]
    baseline = train_simple_baseline(windows_of(train, report), None)
    alone, after = by_hand(train, report[:9], 8)
    assert baseline.splits["held"] == pytest.approx(
        {
            "perplexity": math.exp(np.mean(after)),
            "loss": np.mean(after),
            "unigram_perplexity": math.exp(np.mean(alone)),
        }
    )
    assert (baseline.kind, baseline.rows, baseline.capped, baseline.majority) == ("bigrams", 9, False, {})
    assert baseline.classes is None


def test_a_large_vocabulary_does_not_overflow():
    """Tokens are stored in 16 bits; the number of a pair needs twice as many."""
    train = [60000, 1, 60000, 1, 60000, 2] * 3
    baseline = train_simple_baseline(windows_of(train, train[:9], vocab=65000), None)
    _, after = by_hand(train, train[:9], 65000)
    assert baseline.splits["held"]["loss"] == pytest.approx(np.mean(after))


def test_more_tokens_than_are_needed(monkeypatch):
    monkeypatch.setattr(simple_baseline, "MOST_TOKENS", 6)
    train = [1, 2, 3, 1, 2, 3, 5, 5, 5, 5]
    baseline = train_simple_baseline(windows_of(train, [1, 2, 3, 1, 2]), None)
    assert (baseline.rows, baseline.capped) == (6, True)
    assert baseline.splits["held"]["loss"] == pytest.approx(np.mean(by_hand(train[:6], [1, 2, 3, 1, 2], 8)[1]))


def test_real_text_from_the_cache(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("<|endoftext|>".join(words for words, _ in tiny_study.texts(400, seed=3)))
    prepared, reading = made(TEXT, text)
    baseline = train_simple_baseline(prepared, reading)
    assert baseline.tokenizer == prepared.facts.tokenizer
    values = baseline.splits["held_out"]
    assert 1 < values["perplexity"] < values["unigram_perplexity"] < len(prepared.tokenizer)


# -- what is kept ----------------------------------------------------------------------------------------------


def test_a_baseline_is_trained_once(tmp_path, monkeypatch):
    prepared, reading = made(SST2, tiny_study.write_data(tmp_path / "data"))
    study = tmp_path / "runs"
    study.mkdir()
    assert read_simple_baselines(study) == ()
    baseline = save_simple_baseline(study, prepared, reading)
    assert read_simple_baselines(study) == (baseline,)
    content = (study / SIMPLE_BASELINE).read_bytes()
    monkeypatch.setattr(simple_baseline, "train_simple_baseline", None)  # it is not made again
    assert save_simple_baseline(study, prepared, reading) == baseline
    assert (study / SIMPLE_BASELINE).read_bytes() == content


def facts(data, tokenizer):
    return TaskFacts(data=data, tokenizer=tokenizer, files={}, sizes={}, cut={}, overlap=())


def test_baselines_of_other_data_are_kept_beside(tmp_path):
    one, two = windows_of([1, 2, 3, 1, 2], [1, 2, 3, 1, 2]), windows_of([1, 1, 2, 1, 1], [1, 2, 3, 1, 2])
    two = replace(two, facts=replace(two.facts, tokenizer="other"))
    kept = tuple(save_simple_baseline(tmp_path, prepared, None) for prepared in (one, two))
    assert read_simple_baselines(tmp_path) == kept
    assert kept[0] != kept[1]
    assert find_simple_baseline(facts("d", "t"), kept) == kept[0]
    assert find_simple_baseline(facts("d", "other"), kept) == kept[1]
    assert find_simple_baseline(facts("d", "third"), kept) is None
    assert find_simple_baseline(facts("e", "t"), kept) is None
    assert find_simple_baseline(None, kept) is None, "a cell that failed before it had data"
    assert find_simple_baseline(facts("d", "third"), [replace(kept[0], tokenizer=None)]) is not None


GOOD = SimpleBaseline(
    data="d",
    tokenizer=None,
    splits={"validation": {"accuracy": 0.8}},
    majority={"validation": 0.5},
    right={"validation": "a0"},
    classes=2,
    kind="bigrams",
    rows=3,
    capped=False,
)


def test_which_answers_are_right_comes_back():
    right = np.random.default_rng(0).random(21) < 0.7
    kept = replace(GOOD, right={"validation": pack_answers(right), "empty": ""})
    assert (kept.answers("validation", 21) == right).all()
    assert kept.answers("validation", 30) is None, "of another split"
    assert kept.answers("test", 21) is kept.answers("empty", 0) is None


def file_of(*baselines, version=SIMPLE_BASELINE_FILE.format):
    """As it would have been written, whatever is in it."""
    return sealed(json.dumps({"format": version, "sha256": "", "baselines": baselines}))


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "damaged"),
        ("[]", "damaged"),
        ("{}", "damaged"),
        (file_of(version=99), "format 99"),
        (json.dumps({"format": SIMPLE_BASELINE_FILE.format}), "checksum"),
        (json.dumps({"format": SIMPLE_BASELINE_FILE.format, "baselines": []}), "checksum"),
        (file_of({"data": "d"}), "baselines.0.tokenizer"),
        (file_of(GOOD.__dict__ | {"splits": {"a": {"accuracy": "high"}}}), "accuracy"),
        (file_of(GOOD.__dict__ | {"splits": {"a": {"accuracy": 1.3}}}), "accuracy is 1.3"),
        (file_of(GOOD.__dict__ | {"splits": {"a": {"accuracy": math.nan}}}), "accuracy is nan"),
        (file_of(GOOD.__dict__ | {"majority": {"a": -5}}), "majority.a"),
        (file_of(GOOD.__dict__ | {"right": {"a": "no"}}), "right.a"),
        (file_of(GOOD.__dict__ | {"right": {"a": "abc"}}), "right.a"),
        (file_of(GOOD.__dict__ | {"more": 1}), "more"),
    ],
)
def test_a_damaged_file(tmp_path, content, says):
    (tmp_path / SIMPLE_BASELINE).write_text(content)
    with pytest.raises(CellError, match=f"(?s)simple_baseline.json.*{says}"):
        read_simple_baselines(tmp_path)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(st.sampled_from([*GOOD.__dict__, "more"]), JSON, max_size=2))
def test_whatever_is_read_is_a_baseline(tmp_path, change):
    (tmp_path / SIMPLE_BASELINE).write_text(file_of(GOOD.__dict__ | change))
    try:
        (found,) = read_simple_baselines(tmp_path)
    except OelmError:
        return
    find_simple_baseline(facts("d", "t"), [found])


def test_reading_needs_neither_torch_nor_scikit_learn(tmp_path):
    (tmp_path / SIMPLE_BASELINE).write_text(file_of(GOOD.__dict__))
    code = (
        "import sys; from pathlib import Path; from oelm.runs.simple_baseline import read_simple_baselines;"
        f"assert len(read_simple_baselines(Path({str(tmp_path)!r}))) == 1;"
        "sys.exit(bool({'torch', 'transformers', 'sklearn', 'pyarrow'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
