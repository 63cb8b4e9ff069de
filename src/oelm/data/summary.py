"""Summary of data: rows, labels, lengths, what splits have in common, and a few examples. No torch."""

import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np
import pyarrow as pa

from oelm.data.documents import read_documents
from oelm.data.kinds.kind import read_rows_of
from oelm.data.kinds.qa import load_squad
from oelm.data.kinds.table import TASK_KINDS
from oelm.data.kinds.tokens import check_tags
from oelm.data.labels import has_fractions
from oelm.data.overlap import TextOrPair
from oelm.data.sources import TABLES, TAGGED, Source, decompress, plain_suffix
from oelm.data.splits import SplitReader, divide
from oelm.data.tables import find_labels, has_labels, own_labels, read_rows, read_table
from oelm.data.tasks import TASKS, Task
from oelm.errors import did_you_mean
from oelm.facts import Overlap

QUANTILES = (0, 0.05, 0.5, 0.95, 1)
_EXAMPLES = 3


@dataclass(frozen=True, kw_only=True)
class Example:
    texts: tuple[str, ...]
    """One, or the two of a pair."""
    label: str | float | tuple[str, ...] | None
    """Name of the class, number, or the tags of the words; None of other kinds."""


@dataclass(frozen=True, kw_only=True)
class SplitSummary:
    rows: int
    """Examples, or documents of text."""
    labels: dict[str, int]
    """Of a classification: how many rows have each; of tags, how many words."""
    numbers: tuple[float, ...]
    """Of a regression: the `QUANTILES` of the labels."""
    characters: tuple[int, ...]
    """The `QUANTILES` of the lengths; of a pair, both texts together."""
    words: tuple[int, ...]
    """The same, in words between white space."""


@dataclass(frozen=True, kw_only=True)
class DataSummary:
    task: str
    kind: str
    columns: tuple[str, ...]
    """Of the text."""
    labels: tuple[str, ...]
    """The classes, in the order of their indices; or the tags."""
    hub: str | None
    """`owner/name@commit`, if they are from there."""
    files: dict[str, tuple[str, ...]]
    """By split."""
    splits: dict[str, SplitSummary]
    held_out: tuple[str, ...]
    """Roles without a file, for which a study holds out training rows."""
    overlap: tuple[Overlap, ...]
    examples: tuple[Example, ...]
    """Of the first split: at its beginning, in its middle and at its end; of text, the first documents."""

    def to_dict(self) -> dict[str, object]:
        return {**asdict(self), "quantiles": QUANTILES}


_Rows = Callable[[], Iterator[Example]]


def guess_task(path: Path, columns: Mapping[str, str]) -> str:
    """The name of the task that one's own file, or folder, looks like: by its form, or by its labels, if it has any."""
    files = sorted(path.iterdir()) if path.is_dir() else [path]
    tables = [file for file in files if plain_suffix(file) in TABLES]
    if not tables:
        return "tokens" if any(plain_suffix(file) in TAGGED for file in files) else "text"
    first = decompress(next((file for file in tables if file.stem.lower().startswith("train")), tables[0]))
    if load_squad(first) is not None:
        return "qa"
    label = columns.get("label", "label")
    task = replace(TASKS["classification"], label=label)
    table = read_table(first, task)
    if label not in table.column_names:
        others = [name for name in table.column_names if name != columns.get("text", "text")]
        is_text = len(others) < len(table.column_names) and not did_you_mean(label, others)
        return "text" if is_text and "label" not in columns else task.name
    return "regression" if has_fractions(own_labels(table, task, first)) else task.name


def summarize_source(source: Source) -> DataSummary:
    """The splits as they are published."""
    source = find_labels(source)
    task = source.task
    names = [name for name in source.files if name != task.unlabeled_test or has_labels(source, name)]
    if task.kind == "language-modeling":
        rows = {name: _documents_of(source, name) for name in names}
    else:
        kind = TASK_KINDS.get(task.kind)
        tables = {
            name: read_rows(source, name) if kind is None else read_rows_of(kind, source.files[name], task)
            for name in names
        }
        source = _find_tags(source, tables)
        rows = {name: _rows_of(table, task) for name, table in tables.items()}

    def reading(name: str) -> Callable[[], Iterable[TextOrPair]]:
        return lambda: (tuple((text,) for text in one.texts) for one in rows[name]())

    others = {name: reading(name) for name in names if name != "train"}
    overlap = divide(reading("train"), others, hold_out=None, drop=False).overlap if others else ()
    return _summarize(source, rows, overlap, held_out=tuple(_without_file(source)))


def _without_file(source: Source) -> Iterator[str]:
    task = source.task
    if task.held_out and task.validation is not None and task.validation not in source.files:
        yield "validation"
    if task.held_out and not set(task.test) & set(source.files):
        yield "test"


def summarize_splits(reader: SplitReader) -> DataSummary:
    """The splits by role, as a study divides them."""
    source, task = reader.source, reader.task
    if task.kind != "language-modeling":
        tables = reader.tables()
        rows = {name: _rows_of(table, task) for name, table in tables.items()}
        return _summarize(_find_tags(source, tables), rows, reader.division.overlap)
    names = ["train", *reader.division.held_out, *reader.published]

    def documents(name: str) -> _Rows:
        return lambda: (
            Example(texts=("".join(text),), label=None) for role, text in reader.documents() if role == name
        )

    return _summarize(source, {name: documents(name) for name in names}, reader.division.overlap)


def _documents_of(source: Source, split: str) -> _Rows:
    return lambda: (Example(texts=("".join(parts),), label=None) for parts in read_documents(source, split))


def _find_tags(source: Source, tables: dict[str, pa.Table]) -> Source:
    """The source with the tags of its training split, if its task is about tags; other splits have no others."""
    if source.task.kind != "tokens":
        return source
    task = replace(source.task, labels=TASK_KINDS["tokens"].find_labels(tables["train"], source.task))
    for name, table in tables.items():
        for row, (text, tags) in enumerate(zip(table["text"].to_pylist(), table["tags"].to_pylist(), strict=True)):
            check_tags(tags, task, where=f"the split '{name}', row {row + 1}: {shorten(text, 60)}")
    return replace(source, task=task)


def _rows_of(table: pa.Table, task: Task) -> _Rows:
    texts = [table[name].to_pylist() for name in table.column_names if name.startswith("text")]
    labels: list[Any] = [None] * table.num_rows
    if task.kind == "tokens":
        labels = [tuple(tags) for tags in table["tags"].to_pylist()]
    elif task.kind not in TASK_KINDS:
        labels = table["label"].to_pylist()
    if task.kind == "classification":
        labels = [task.labels[label] for label in labels]
    return lambda: (
        Example(texts=of_row, label=label) for of_row, label in zip(zip(*texts, strict=True), labels, strict=True)
    )


def _summarize(
    source: Source, rows: dict[str, _Rows], overlap: tuple[Overlap, ...], *, held_out: tuple[str, ...] = ()
) -> DataSummary:
    task = source.task
    splits = {name: _summarize_split(read(), task) for name, read in rows.items()}
    first = next(iter(rows))
    number = splits[first].rows
    chosen = {0, number // 2, number - 1} if task.kind != "language-modeling" else set(range(_EXAMPLES))
    examples = []
    for row, example in enumerate(rows[first]()):
        if row in chosen:
            examples.append(example)
        if row >= max(chosen):
            break
    return DataSummary(
        task=task.name,
        kind=task.kind,
        columns=task.columns,
        labels=task.labels,
        hub=task.hub.commit if task.hub is not None and not source.local else None,
        files={split: tuple(map(str, paths)) for split, paths in source.files.items()},
        splits=splits,
        held_out=held_out,
        overlap=overlap,
        examples=tuple(examples),
    )


def _summarize_split(rows: Iterable[Example], task: Task) -> SplitSummary:
    characters: list[int] = []
    words: list[int] = []
    labels: list[Any] = []
    for row in rows:
        characters.append(sum(map(len, row.texts)))
        words.append(sum(len(text.split()) for text in row.texts))
        labels.append(row.label)
    counts: Counter[Any] = Counter(itertools.chain.from_iterable(labels) if task.kind == "tokens" else labels)
    return SplitSummary(
        rows=len(characters),
        labels={name: counts[name] for name in task.labels},
        numbers=tuple(float(one) for one in _quantiles(labels)) if task.kind == "regression" else (),
        characters=tuple(int(one) for one in _quantiles(characters)),
        words=tuple(int(one) for one in _quantiles(words)),
    )


def _quantiles(values: object) -> list[float]:
    """Each one of the values themselves."""
    found: list[float] = np.quantile(np.asarray(values), QUANTILES, method="inverted_cdf").tolist()
    return found
