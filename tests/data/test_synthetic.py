"""Synthetic tasks: what they ask is in every example, and only who sees which token follows which can answer."""

import csv
import hashlib

import numpy as np
import pytest

from oelm.data.sources import find_source
from oelm.data.synthetic import EXAMPLES
from oelm.data.tasks import TASKS, TEST_EXAMPLES
from oelm.errors import DataError
from oelm.study.load import load_study
from oelm.train.cell import load_data, open_splits
from oelm.train.progress import Progress
from oelm.train.simple_baseline import train_simple_baseline

SYNTHETIC = [task for task in TASKS.values() if task.synthetic]


@pytest.fixture
def few(monkeypatch, tmp_path):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr("oelm.data.synthetic.EXAMPLES", {"train": 2000, "validation": 50, "test": 400})


def rows(task, split="train", **options):
    (path,) = find_source(task, None, **options).files[split]
    with path.open(encoding="utf-8", newline="") as file:
        return [(row["text"].split(), row["label"]) for row in csv.DictReader(file)]


@pytest.mark.parametrize("task", SYNTHETIC, ids=lambda task: task.name)
@pytest.mark.parametrize("pairs", [2, 7])
def test_the_answer_followed_what_is_asked_for(task, pairs, few):
    for words, answer in rows(task, pairs=pairs):
        *shown, asked = words
        assert len(set(shown)) == len(shown) == (2 * pairs if task.name == "recall" else pairs + 1)
        assert shown[shown.index(asked) + 1] == answer
        assert answer in task.labels


@pytest.mark.parametrize("task", SYNTHETIC, ids=lambda task: task.name)
def test_neither_a_place_nor_an_answer_is_more_frequent(task, few):
    """So nothing is gained by a guess that looks at one place, or at nothing."""
    made = rows(task, pairs=4)
    places = np.array([words[:-1].index(answer) for words, answer in made])
    answers = np.array([task.labels.index(answer) for _, answer in made])
    for counts, number in ((np.unique(places, return_counts=True)[1], 4), (np.bincount(answers), len(task.labels))):
        assert len(counts) == number
        expected = len(made) / number
        assert np.abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_the_same_seed_makes_the_same_bytes(few):
    one, again, other = (rows(TASKS["recall"], seed=seed) for seed in (0, 0, 1))
    assert one == again != other
    assert rows(TASKS["recall"], "test")[:50] != rows(TASKS["recall"], "validation")
    (path,) = find_source(TASKS["recall"], None).files["test"]
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    assert digest.startswith("ed69f4b26eed"), "on any machine: records of two machines are compared"


def test_the_size_of_the_test_split_is_known_beforehand():
    assert {TEST_EXAMPLES[task.name] for task in SYNTHETIC} == {EXAMPLES["test"]}


def test_a_word_is_a_token_and_words_alone_do_not_answer(few):
    recipe = load_study("recall-mini").recipe
    prepared = load_data(recipe, Progress())
    assert set(prepared.train.lengths) == {9}
    assert sorted(prepared.tokenizer.get_vocab()) == sorted([*"01234567", *"abcdefgh", "<|endoftext|>", "<|unknown|>"])
    simple = train_simple_baseline(prepared, open_splits(recipe))
    assert simple.splits["test"]["accuracy"] < 0.35, "a guess among four"


def test_a_question_is_not_cut(few):
    with pytest.raises(DataError, match=r"(?s)max_length 8 cuts examples of task 'recall'.*train: words"):
        load_data(load_study("recall-mini", ["recipe.data.max_length=8"]).recipe, Progress())
