"""Simple baseline: what a simple model without attention reaches on the very same rows.

TF-IDF and logistic regression for classes, or ridge regression for numbers; bigrams for text, the most frequent tag of
each word for tags. It is trained where the data are, and saved beside the records of the study
(`runs/simple_baseline.py`).
"""

import math
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oelm.data.kinds.tokens import count_tags
from oelm.data.splits import SplitReader
from oelm.data.tokenize import TokenizedTask, Windows
from oelm.metrics import class_metrics
from oelm.runs.simple_baseline import (
    SimpleBaseline,
    find_simple_baseline,
    pack_answers,
    read_simple_baselines,
    write_simple_baselines,
)
from oelm.seeds import seed_for

# From less than all of the text it is still a baseline, and made in a minute.
MOST_ROWS = 100_000
MOST_TOKENS = 5_000_000

_Labels = NDArray[Any]


def save_simple_baseline(study_folder: Path, prepared: TokenizedTask, reading: SplitReader) -> SimpleBaseline:
    """That of these data; trained, and written beside the study's records, if it is not there yet."""
    known = read_simple_baselines(study_folder)
    found = find_simple_baseline(prepared.facts, known)
    if found is None:
        found = train_simple_baseline(prepared, reading)
        write_simple_baselines(study_folder, (*known, found))
    return found


def train_simple_baseline(prepared: TokenizedTask, reading: SplitReader) -> SimpleBaseline:
    """Train the simple model on the training rows, and measure it on the test splits."""
    if prepared.task.kind == "language-modeling":
        return _of_text(prepared)
    return _of_tags(prepared, reading) if prepared.task.kind == "tokens" else _of_labels(prepared, reading)


# -- classification and regression -----------------------------------------------------------------------------


def _of_labels(prepared: TokenizedTask, reading: SplitReader) -> SimpleBaseline:
    task = prepared.task
    tables = reading.tables()
    assert {name: table.num_rows for name, table in tables.items()} == prepared.facts.sizes
    train = tables["train"]
    has_classes = task.kind == "classification"
    frequent = int(np.bincount(train["label"].to_numpy()).argmax()) if has_classes else 0
    capped = train.num_rows > MOST_ROWS
    if capped:
        random = np.random.default_rng(seed_for(0, "floor", task.name))
        train = train.take(np.sort(random.choice(train.num_rows, MOST_ROWS, replace=False)))
    predict = _fit(train, has_classes=has_classes)
    reported = {name: tables[f"test-{name}"] for name in prepared.test}
    labels = {name: table["label"].to_numpy() for name, table in reported.items()}
    predicted = {name: predict(table) for name, table in reported.items()}
    classes = len(task.labels)  # none of a regression
    return SimpleBaseline(
        data=prepared.facts.data,
        tokenizer=None,
        splits={name: class_metrics(task.metrics, labels[name], predicted[name], classes) for name in reported},
        majority={name: float((of_split == frequent).mean()) for name, of_split in labels.items() if has_classes},
        right={name: pack_answers(labels[name] == predicted[name]) for name in reported if has_classes},
        classes=classes or None,
        kind=f"tf-idf + {'logistic' if has_classes else 'ridge'} regression",
        rows=train.num_rows,
        capped=capped,
    )


def _fit(train: pa.Table, *, has_classes: bool) -> Callable[[pa.Table], _Labels]:
    """Logistic or ridge regression on TF-IDF of words and pairs of words; each text of a pair has its own features."""
    from scipy.sparse import hstack
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression, Ridge

    labels: _Labels = train["label"].to_numpy()
    found = {name: _words(train[name].to_pylist()) for name in train.column_names if name.startswith("text")}
    blocks = {name: block for name, block in found.items() if block is not None}
    if not blocks or len(set(labels.tolist())) == 1:  # nothing to learn from
        usual = np.bincount(labels).argmax() if has_classes else labels.mean()
        return lambda table: np.full(table.num_rows, usual, dtype=labels.dtype)
    model = LogisticRegression(max_iter=200) if has_classes else Ridge()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # not quite at its best, it is a baseline all the same
        model.fit(hstack([features for _, features in blocks.values()], format="csr"), labels)

    def predict(table: pa.Table) -> _Labels:
        parts = [vectorizer.transform(table[name].to_pylist()) for name, (vectorizer, _) in blocks.items()]
        predicted: _Labels = model.predict(hstack(parts, format="csr"))
        return predicted

    return predict


def _words(texts: list[str]) -> tuple[Any, Any] | None:
    """(vectorizer, features of these texts), or None where there is not one word."""
    from sklearn.feature_extraction.text import TfidfVectorizer

    for fewest in (2, 1):
        vectorizer = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, min_df=fewest, token_pattern=r"(?u)\b\w+\b")
        try:
            return vectorizer, vectorizer.fit_transform(texts)
        except ValueError:  # no word is left: so few texts that none comes twice, or none at all
            continue
    return None


# -- token classification --------------------------------------------------------------------------------------


def _of_tags(prepared: TokenizedTask, reading: SplitReader) -> SimpleBaseline:
    """The most frequent tag of each word, and of a word that is new that of all words."""
    tables = reading.tables()
    train, labels = tables["train"], prepared.task.labels
    number_of = {tag: number for number, tag in enumerate(labels)}
    seen: dict[str, _Labels] = defaultdict(lambda: np.zeros(len(labels), dtype=np.int64))
    for words, tags in _sentences(train):
        for word, tag in zip(words, tags, strict=True):
            seen[word][number_of[tag]] += 1
    frequent = np.sum(list(seen.values()), axis=0).argmax()
    splits = {}
    for name in prepared.test:
        counts = Counter[str]()
        for words, tags in _sentences(tables[f"test-{name}"]):
            guessed = np.array([seen[word].argmax() if word in seen else frequent for word in words])
            counts.update(count_tags(labels, np.array([number_of[tag] for tag in tags]), guessed), words=len(words))
        both = counts["found_entities"] + counts["true_entities"]
        splits[name] = {
            "entity_f1": 2 * counts["right_entities"] / max(1, both),
            "token_accuracy": counts["right_words"] / counts["words"],
        }
    return SimpleBaseline(
        data=prepared.facts.data,
        tokenizer=None,
        splits=splits,
        majority={},
        right={},
        classes=len(labels),
        kind="most frequent tag of each word",
        rows=train.num_rows,
        capped=False,
    )


def _sentences(table: pa.Table) -> Iterator[tuple[list[str], list[str]]]:
    """(words, tags) of every row."""
    return zip(table["words"].to_pylist(), table["tags"].to_pylist(), strict=True)


# -- language modeling ----------------------------------------------------------------------------------------


def _of_text(prepared: TokenizedTask) -> SimpleBaseline:
    available = prepared.train.tokens
    train = np.asarray(available[:MOST_TOKENS], dtype=np.int64)
    splits = {}
    for name, windows in prepared.test.items():
        assert isinstance(windows, Windows)
        # The tokens that a model is measured on: those of full windows, and the one that follows the last.
        tokens = np.asarray(windows.tokens[: len(windows) * windows.length + 1], dtype=np.int64)
        alone, after_another = next_token_losses(train, tokens, vocab=len(prepared.tokenizer))
        splits[name] = {
            "perplexity": math.exp(after_another.mean()),
            "loss": float(after_another.mean()),
            "unigram_perplexity": math.exp(alone.mean()),
        }
    return SimpleBaseline(
        data=prepared.facts.data,
        tokenizer=prepared.facts.tokenizer,
        splits=splits,
        majority={},
        right={},
        classes=None,
        kind="bigrams",
        rows=len(train),
        capped=len(available) > MOST_TOKENS,
    )


def next_token_losses(
    train: NDArray[np.int64], tokens: NDArray[np.int64], *, vocab: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(by its frequency alone, given the token before it): -ln of the probability of every token but the first.

    Frequencies have one added, so nothing is impossible. Pairs are interpolated with them as Witten and Bell do: the
    more different tokens have followed a token, the more is left for those that never have.
    """
    frequency_V = (np.bincount(train, minlength=vocab) + 1) / (len(train) + vocab)
    pairs, times = np.unique(train[:-1] * vocab + train[1:], return_counts=True)
    followed_V = np.bincount(pairs // vocab, weights=times, minlength=vocab)
    followers_V = np.bincount(pairs // vocab, minlength=vocab)
    before, token = tokens[:-1], tokens[1:]
    asked = before * vocab + token
    index = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    seen = np.where(pairs[index] == asked, times[index], 0)
    alone = frequency_V[token]
    known = followed_V[before] > 0
    interpolated = (seen + followers_V[before] * alone) / np.where(known, followed_V[before] + followers_V[before], 1)
    return -np.log(alone), -np.log(np.where(known, interpolated, alone))
