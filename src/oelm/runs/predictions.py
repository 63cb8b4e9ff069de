"""predictions.parquet: what a cell kept of every single example that it was measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oelm.errors import CellError
from oelm.parquet import open_parquet
from oelm.runs.files import FileDigest, read_unchanged
from oelm.runs.layout import PREDICTIONS
from oelm.runs.record import Which

if TYPE_CHECKING:
    import pyarrow as pa

_FORMAT, _FORMAT_KEY = 2, b"oelm_format"  # in the metadata of the file
# What can be in a file that is not damaged.
_WORDS = ("model", "split")
_CLASSES = ("label", "prediction")  # or numbers of a regression
_SHARES = ("exact_match", "answer_f1", "rouge1", "rouge2", "rougeL")
_FLOATS = ("loss", *_SHARES)
_RANGES: dict[str, tuple[float, float]] = {
    "loss": (-np.inf, np.inf),
    "label": (0, 1_000_000),
    "prediction": (0, 1_000_000),
    "tokens": (1, 1 << 40),
    "words": (1, 1 << 40),
    **dict.fromkeys(("right_words", "right_entities", "found_entities", "true_entities"), (0, 1 << 40)),
    **dict.fromkeys(_SHARES, (0, 1)),
}


@dataclass(frozen=True, kw_only=True)
class Predictions:
    """Of one model on one split, an entry an example. A language model has documents, and no labels; the labels and
    predictions of a regression are numbers (float64), and its losses squared errors."""

    row: NDArray[np.int64]
    """Of the published split; of a language model, the number of the document."""
    loss: NDArray[np.float64]
    """Summed over the tokens of a document."""
    label: NDArray[np.int64] | NDArray[np.float64] | None = None
    """What is right."""
    prediction: NDArray[np.int64] | NDArray[np.float64] | None = None
    """The class that the model prefers, or its number."""
    tokens: NDArray[np.int64] | None = None
    """Of a document or a target, those that were predicted; of a sentence, the words that have a loss."""
    words: NDArray[np.int64] | None = None
    """Of a sentence whose words were classified."""
    right_words: NDArray[np.int64] | None = None
    """Those whose tag is right."""
    right_entities: NDArray[np.int64] | None = None
    """Entities of the sentence that were found, with all of their words and their type."""
    found_entities: NDArray[np.int64] | None = None
    """All that were found."""
    true_entities: NDArray[np.int64] | None = None
    """All that there are."""
    exact_match: NDArray[np.float64] | None = None
    """1 if the answer to a question is right, 0 if not."""
    answer_f1: NDArray[np.float64] | None = None
    """How far its words are those of the right answer."""
    rouge1: NDArray[np.float64] | None = None
    """Of the text that was written: words that it shares with the right one."""
    rouge2: NDArray[np.float64] | None = None
    """Pairs of words."""
    rougeL: NDArray[np.float64] | None = None  # noqa: N815, its name in rouge-score
    """The longest sequence of words."""
    text: NDArray[np.object_] | None = None
    """What was answered, or written."""

    @property
    def are_documents(self) -> bool:
        """Whether the entries are documents of a text, which is measured in windows."""
        return self.tokens is not None and self.words is None and self.rougeL is None

    def __post_init__(self) -> None:
        if (
            self.label is not None
            and self.prediction is not None
            and self.label.dtype.kind != self.prediction.dtype.kind
        ):
            raise ValueError("labels are classes and predictions numbers, or the other way round")

    @property
    def has_classes(self) -> bool:
        return self.label is not None and self.prediction is not None and self.label.dtype.kind == "i"

    def scores(self, metric: str) -> NDArray[np.float64] | None:
        """What the metric is made of, example by example; None for one that is no mean of examples.

        It is their mean, or their sum over all `weights`; a perplexity is the power of that. The F1 of entities is no
        mean, but other sentences would change it by the mean of what each has to do with it.
        """
        if metric == "accuracy" and self.has_classes:
            right: NDArray[np.float64] = np.equal(self.label, self.prediction).astype(np.float64)  # type: ignore[arg-type]
            return right
        if metric == "token_accuracy" and self.right_words is not None:
            return self.right_words.astype(np.float64)
        if metric == "entity_f1" and self.right_entities is not None:
            return self._f1_by_sentence()
        if metric in _FLOATS:
            scores: NDArray[np.float64] | None = getattr(self, metric)
            return scores
        return self.loss if metric in ("perplexity", "mse") else None

    def weights(self, metric: str) -> NDArray[np.int64] | None:
        """What the scores of a metric are summed over, where examples do not count alike."""
        if metric == "token_accuracy":
            return self.words
        return self.tokens if metric in ("loss", "perplexity") else None

    def _f1_by_sentence(self) -> NDArray[np.float64]:
        """Numbers whose mean is the F1 of all sentences, each with what leaving its sentence out would do to it (the
        jackknife): F1 is twice the right entities over those that were found and those that are there."""
        assert self.right_entities is not None
        assert self.found_entities is not None
        assert self.true_entities is not None
        right, both = 2.0 * self.right_entities, (self.found_entities + self.true_entities).astype(np.float64)
        f1 = right.sum() / max(1.0, both.sum())
        without = (right.sum() - right) / np.maximum(1.0, both.sum() - both)
        influence = (len(right) - 1) * (f1 - without)
        values: NDArray[np.float64] = f1 + influence - influence.mean()
        return values

    def mean(self, metric: str) -> float | None:
        """The metric; of a perplexity, its logarithm."""
        scores, weights = self.scores(metric), self.weights(metric)
        if scores is None or not len(scores):
            return None
        with np.errstate(all="ignore"):
            return float(scores.mean() if weights is None else scores.sum() / weights.sum())


def write_predictions(path: Path, predictions: Mapping[tuple[Which, str], Predictions]) -> None:
    """Of every model on every test split, in the order they are reported."""
    import pyarrow as pa
    from pyarrow import parquet

    tables = []
    for (model, split), one in predictions.items():
        columns = {name: values for name, values in vars(one).items() if values is not None}
        number = len(one.row)
        tables.append(pa.table({"model": np.full(number, model), "split": np.full(number, split), **columns}))
    table = pa.concat_tables(tables).replace_schema_metadata({_FORMAT_KEY: str(_FORMAT)})
    # A page of zstd takes 17 us to set up, and a file has a dozen: of thousands of cells, a third of reading them.
    parquet.write_table(table, path, compression="lz4")


def read_predictions(
    folder: Path, digest: FileDigest | None, *, model: Which = "final", split: str | None = None
) -> Predictions | None:
    """On the first test split, or another. The record of the cell has the digest; None if the cell kept none."""
    from pyarrow import ArrowException

    if digest is None:
        return None
    path = folder / PREDICTIONS
    content = read_unchanged(path, digest)
    try:
        file = open_parquet(content, read_dictionary=_WORDS)
        found = (file.metadata.metadata or {}).get(_FORMAT_KEY, b"none").decode()
        if found != str(_FORMAT):
            raise CellError(f"{path} has format {found}; this oelm reads format {_FORMAT}")
        table = file.read(use_threads=False)
        columns = {name: _in_one(column) for name, column in zip(table.column_names, table.columns, strict=True)}
        (models, of_model), (splits, of_split) = (_words(name, columns.pop(name)) for name in _WORDS)
        own = np.flatnonzero(_are(model, models)[of_model])
        first = splits[of_split[own[0]]] if len(own) else ""
        chosen = own[_are(split or first, splits)[of_split[own]]]
        return Predictions(**{name: _numbers(name, column)[chosen] for name, column in columns.items()})
    except (ArrowException, OSError, ValueError, LookupError, TypeError) as error:
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CellError(f"{path} is damaged", why=why) from error


def _in_one(column: pa.ChunkedArray) -> pa.Array:
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _words(name: str, column: pa.Array) -> tuple[list[str], NDArray[Any]]:
    """A dictionary, in which each word is once, and the place of every row's word in it."""
    if not hasattr(column, "dictionary") or column.null_count:
        raise _other_content(name, column)
    return column.dictionary.to_pylist(), np.from_dlpack(column.indices)


def _are(word: str, words: list[str]) -> NDArray[np.bool_]:
    return np.array([one == word for one in words], dtype=np.bool_)


def _numbers(name: str, column: pa.Array) -> NDArray[Any]:
    from pyarrow import types

    if name == "text" and types.is_string(column.type):
        return np.array(column.to_pylist(), dtype=np.object_)
    is_number = types.is_floating(column.type) and name in (*_FLOATS, *_CLASSES)
    if not (is_number or (name not in _FLOATS and types.is_integer(column.type))) or column.null_count:
        raise _other_content(name, column)
    values: NDArray[Any] = np.from_dlpack(column)  # its own to_numpy loads pandas
    if name in _CLASSES and is_number:
        if not np.isfinite(values).all():
            raise ValueError(f"'{name}' is not finite")
    elif name in _RANGES and len(values):
        (least, most), low, high = _RANGES[name], values.min(), values.max()
        if not (low >= least and high <= most):
            raise ValueError(f"'{name}' goes from {low} to {high}")
    return values


def _other_content(name: str, column: pa.Array) -> ValueError:
    return ValueError(f"'{name}' holds {column.type} with {column.null_count} missing")
