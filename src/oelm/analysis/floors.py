"""Floors: what a cheap model without any Transformer reaches on the very same rows.

A floor is made where the data are and kept beside the records, in `floor.json` in the study's folder. Reading it needs
neither the data nor torch.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oelm.data.reading import Reading
from oelm.data.tasks import Task
from oelm.data.tokens import Prepared, Windows
from oelm.errors import CellError
from oelm.records.record import Record
from oelm.records.store import read_json, write_json
from oelm.seeds import seed_for

if TYPE_CHECKING:
    import pyarrow as pa

FLOOR = "floor.json"
FORMAT = 1
# A floor from less than all of the text is still a floor, and made in a minute.
MOST_ROWS = 100_000
MOST_TOKENS = 5_000_000

Classes = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Floor:
    """What the cheap model reaches on every reported split."""

    data: str
    """Fingerprint of the data, as in a record."""
    tokenizer: str | None
    """Fingerprint of the tokenizer, for language modelling: its tokens are what is predicted."""
    splits: dict[str, dict[str, float]]
    """By reported split and metric."""
    majority: dict[str, float]
    """By reported split: the accuracy of always saying the most frequent class of the training rows."""
    classes: int | None
    kind: str
    """`tf-idf + logistic regression` or `bigrams`"""
    rows: int
    """How many examples, or tokens, the cheap model was trained on."""
    capped: bool
    """Whether there were more."""


def floors_in(study_folder: Path) -> list[Floor]:
    """All floors that were kept for a study; none if there is no such file."""
    path = Path(study_folder) / FLOOR
    content = read_json(path)
    if content is None:
        return []
    number = content.get("format")
    if isinstance(number, int) and number > FORMAT:
        raise CellError(
            f"{path} has format {number}; this oelm reads up to {FORMAT}", hint="pip install --upgrade oelm"
        )
    rows = content.get("floors")
    if number != FORMAT or not isinstance(rows, list) or not all(map(_is_floor, rows)):
        raise CellError(f"{path} is damaged", why="it does not hold floors", hint=f"rm {path}; it is made anew")
    return [Floor(**row) for row in rows]


def floor_for(record: Record, floors: Iterable[Floor]) -> Floor | None:
    """The floor of the data that a cell was trained and measured on."""
    return _of(record.data, floors)


def keep_floor(study_folder: Path, prepared: Prepared, reading: Reading) -> Floor:
    """The floor of these data; made, and written beside the study's records, if it is not there yet."""
    floors = floors_in(study_folder)
    floor = _of(prepared.facts, floors)
    if floor is None:
        floor = floor_of(prepared, reading)
        rows = [asdict(one) for one in (*floors, floor)]
        write_json(Path(study_folder) / FLOOR, {"format": FORMAT, "floors": rows})
    return floor


def floor_of(prepared: Prepared, reading: Reading) -> Floor:
    """Train the cheap model on the rows that are trained on, and measure it on those that are reported."""
    return _of_classes(prepared, reading) if prepared.task.kind == "classification" else _of_text(prepared)


def _of(facts: Mapping[str, Any], floors: Iterable[Floor]) -> Floor | None:
    alike = (floor for floor in floors if floor.data == facts.get("data"))
    return next((floor for floor in alike if floor.tokenizer in (None, facts.get("tokenizer"))), None)


# -- classification --------------------------------------------------------------------------------------------


def _of_classes(prepared: Prepared, reading: Reading) -> Floor:
    task = prepared.task
    tables = reading.tables()
    assert {name: table.num_rows for name, table in tables.items()} == prepared.facts["sizes"]
    train = tables["train"]
    frequent = int(np.bincount(train["label"].to_numpy()).argmax())
    capped = train.num_rows > MOST_ROWS
    if capped:
        random = np.random.default_rng(seed_for(0, "floor", task.name))
        train = train.take(np.sort(random.choice(train.num_rows, MOST_ROWS, replace=False)))
    guess = _learnt(train)
    reported = {name: tables[f"report-{name}"] for name in prepared.report}
    labels = {name: table["label"].to_numpy() for name, table in reported.items()}
    return Floor(
        data=prepared.facts["data"],
        tokenizer=None,
        splits={name: class_metrics(labels[name], guess(table), task) for name, table in reported.items()},
        majority={name: float((classes == frequent).mean()) for name, classes in labels.items()},
        classes=len(task.labels),
        kind="tf-idf + logistic regression",
        rows=train.num_rows,
        capped=capped,
    )


def _learnt(train: pa.Table) -> Callable[[pa.Table], Classes]:
    """Logistic regression on TF-IDF of words and pairs of words; each text of a pair has features of its own."""
    from scipy.sparse import hstack
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    labels: Classes = train["label"].to_numpy()
    found = {name: _words(train[name].to_pylist()) for name in train.column_names if name.startswith("text")}
    blocks = {name: block for name, block in found.items() if block is not None}
    if not blocks or len(set(labels.tolist())) == 1:  # nothing to learn from
        frequent = np.bincount(labels).argmax()
        return lambda table: np.full(table.num_rows, frequent, dtype=np.int64)
    model = LogisticRegression(max_iter=200)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # not quite at its best, it is a floor all the same
        model.fit(hstack([features for _, features in blocks.values()], format="csr"), labels)

    def guess(table: pa.Table) -> Classes:
        parts = [vectorizer.transform(table[name].to_pylist()) for name, (vectorizer, _) in blocks.items()]
        classes: Classes = model.predict(hstack(parts, format="csr"))
        return classes

    return guess


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


def class_metrics(labels: Classes, guessed: Classes, task: Task) -> dict[str, float]:
    """The metrics that arms are measured by, without their loss."""
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    metrics = {
        "accuracy": accuracy_score(labels, guessed),
        "macro_f1": f1_score(labels, guessed, average="macro", zero_division=0),
    }
    if len(task.labels) == 2:
        metrics["f1"] = f1_score(labels, guessed, labels=[1], average="macro", zero_division=0)
    if task.metric == "matthews":
        metrics["matthews"] = matthews_corrcoef(labels, guessed) if len({*labels, *guessed}) > 1 else 0.0
    return {name: float(value) for name, value in metrics.items()}


# -- language modelling ----------------------------------------------------------------------------------------


def _of_text(prepared: Prepared) -> Floor:
    whole = prepared.train.tokens
    train = np.asarray(whole[:MOST_TOKENS], dtype=np.int64)
    splits = {}
    for name, windows in prepared.report.items():
        assert isinstance(windows, Windows)
        # The tokens that a model is measured on: those of whole windows, and the one that follows the last.
        tokens = np.asarray(windows.tokens[: len(windows) * windows.length + 1], dtype=np.int64)
        alone, after_another = next_token_losses(train, tokens, vocab=len(prepared.tokenizer))
        splits[name] = {
            "perplexity": math.exp(after_another.mean()),
            "loss": float(after_another.mean()),
            "unigram_perplexity": math.exp(alone.mean()),
        }
    return Floor(
        data=prepared.facts["data"],
        tokenizer=prepared.facts["tokenizer"],
        splits=splits,
        majority={},
        classes=None,
        kind="bigrams",
        rows=len(train),
        capped=len(whole) > MOST_TOKENS,
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
    place = np.minimum(np.searchsorted(pairs, asked), len(pairs) - 1)
    seen = np.where(pairs[place] == asked, times[place], 0)
    alone = frequency_V[token]
    known = followed_V[before] > 0
    interpolated = (seen + followers_V[before] * alone) / np.where(known, followed_V[before] + followers_V[before], 1)
    return -np.log(alone), -np.log(np.where(known, interpolated, alone))


# -- what was kept ---------------------------------------------------------------------------------------------


def _is_floor(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and row.keys() == Floor.__annotations__.keys()
        and isinstance(row["data"], str)
        and isinstance(row["tokenizer"], str | None)
        and isinstance(row["splits"], dict)
        and all(map(_are_numbers, row["splits"].values()))
        and _are_numbers(row["majority"])
        and (row["classes"] is None or (type(row["classes"]) is int and row["classes"] > 0))
        and isinstance(row["kind"], str)
        and type(row["rows"]) is int
        and isinstance(row["capped"], bool)
    )


def _are_numbers(values: Any) -> bool:
    return isinstance(values, dict) and all(type(value) in (int, float) for value in values.values())
