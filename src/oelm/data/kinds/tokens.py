"""Token classification: a tag for every word, such as the names in a sentence (NER), with tags in IOB2.

Files are CoNLL (a token a line, its tag in the last column, a blank line between sentences) or tables with a list of
`tokens` and one of `ner_tags` in every row. The first sub-token of a word stands for it, and the others have no loss. A
word that has none, because the sentence was cut or the tokenizer drops it, counts as `O`: all words are scored.

Shapes: B sentences, T sub-tokens, C labels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oelm.data.kinds.kind import IGNORED, Encoded, ExampleKind, Ragged, Rows, char_spans, ragged_column
from oelm.data.sources import TABLES, shown_path, shown_row
from oelm.data.tables import explain_encoding, read_table
from oelm.data.tasks import Task
from oelm.errors import DataError
from oelm.metrics import count_entities

if TYPE_CHECKING:
    from torch import Tensor, nn

OUTSIDE = "O"
_TAG = re.compile(r"O|[BI]-\S+")
_FORM = "a line is a token and, in its last column, its tag: EU B-ORG"
_IOB2 = "O outside of entities, B-TYPE for the first word of one, I-TYPE for its others"

Sentence = tuple[list[str], list[str]]
"""(words, their tags)."""


@dataclass(frozen=True, kw_only=True)
class TaggedSentences(Encoded):
    tags: Ragged
    """The right one of every word, by its number in `labels`."""
    places: Ragged
    """Where the first sub-token of every word is, or -1."""
    labels: tuple[str, ...]

    @cached_property
    def predicted_words(self) -> NDArray[np.int64]:
        """Of every sentence: its words that have a sub-token, and so a loss."""
        has_place = np.concatenate([[0], np.cumsum(self.places.values >= 0)])
        return np.diff(has_place[self.places.offsets])

    def targets(self, rows: Rows) -> NDArray[np.int64]:
        targets = np.full((len(rows), int(self.lengths[rows].max())), IGNORED, dtype=np.int64)
        for number, row in enumerate(rows):
            places, tags = self.places[row], self.tags[row]
            targets[number, places[places >= 0]] = tags[places >= 0]
        return targets

    def count_targets(self, rows: Rows) -> int:
        return int(self.predicted_words[rows].sum())

    def new_answers(self) -> NDArray[np.int64]:
        return np.zeros(len(self.tags.values), dtype=np.int64)

    def put_answers(self, answers: NDArray[Any], rows: Rows, predicted: NDArray[Any]) -> None:
        outside = self.labels.index(OUTSIDE)
        for number, row in enumerate(rows):
            places = self.places[row]
            own = slice(self.tags.offsets[row], self.tags.offsets[row + 1])
            answers[own] = np.where(places >= 0, predicted[number][np.maximum(places, 0)], outside)

    def score(self, loss: NDArray[np.float64], answers: NDArray[Any]) -> dict[str, NDArray[Any]]:
        predicted = Ragged(values=answers, offsets=self.tags.offsets)
        counts = [count_tags(self.labels, self.tags[row], predicted[row]) for row in range(len(self))]
        return {
            "row": self.rows,
            "loss": loss,
            "tokens": self.predicted_words,
            "words": self.tags.lengths,
            **{name: np.array([one[name] for one in counts], dtype=np.int64) for name in counts[0]},
        }


def count_tags(labels: Sequence[str], tags: Rows, predicted: Rows) -> dict[str, int]:
    """What is kept of a sentence, given the numbers of its tags, by field of `Predictions`."""
    entities = count_entities(*([labels[number] for number in some] for some in (tags, predicted)))
    return {
        "right_words": int((tags == predicted).sum()),
        "right_entities": entities.right,
        "found_entities": entities.found,
        "true_entities": entities.true,
    }


class TokenClassification(ExampleKind):
    auto_model = "AutoModelForTokenClassification"
    peft_task = "TOKEN_CLS"
    scored_by = "seqeval"
    head = "ForTokenClassification"

    def read(self, path: Path, task: Task) -> tuple[pa.Table, pa.Table | None]:
        table = read_table(path, task) if path.suffix.lower() in TABLES and path.suffix.lower() != ".tsv" else None
        sentences = _read_conll(path) if table is None else _read_lists(table, task, path)
        if not sentences:
            raise DataError(f"{shown_path(path)} has no sentences", hint=_FORM)
        words, tags = zip(*sentences, strict=True)
        columns = {
            "text": pa.array([" ".join(some) for some in words], pa.large_string()),
            "words": ragged_column(list(words), pa.string()),
            "tags": ragged_column(list(tags), pa.string()),
        }
        return pa.table(columns), table

    def find_labels(self, rows: pa.Table, task: Task) -> tuple[str, ...]:
        """`O` first, and the tags of a type together."""
        found = {tag for tags in rows["tags"].to_pylist() for tag in tags}
        if found <= {OUTSIDE}:
            raise DataError("no training sentence has an entity", why="all of its tags are O", hint=_IOB2)
        if task.labels:
            return task.labels
        return tuple(sorted({OUTSIDE, *found}, key=lambda tag: (tag != OUTSIDE, tag[2:], tag[0])))

    def encode(self, tokenizer: Any, rows: pa.Table, task: Task, *, max_length: int, where: str) -> pa.Table:
        number_of = {tag: number for number, tag in enumerate(task.labels)}
        encoded = tokenizer(
            rows["text"].to_pylist(), truncation=True, max_length=max_length, return_attention_mask=False
        )
        tags, places = [], []
        for row in range(rows.num_rows):
            words, names = (rows[name][row].as_py() for name in ("words", "tags"))
            at = f"{where}, row {rows['row'][row].as_py() + 1}: {shorten(' '.join(words), 60)}"
            check_tags(names, task, where=at)
            tags.append([number_of[tag] for tag in names])
            places.append(find_first_tokens(words, char_spans(encoded.encodings[row])))
            if not any(place >= 0 for place in places[-1]):
                raise DataError(
                    "the tokenizer makes nothing of a sentence",
                    where=f"{where}, row {rows['row'][row].as_py() + 1}: {shorten(' '.join(words), 60)!r}",
                    hint="leave the sentence out, a longer recipe.data.max_length, or another tokenizer",
                )
        return pa.table(
            {
                "tokens": ragged_column(encoded["input_ids"], pa.int32()),
                "tags": ragged_column(tags, pa.int16()),
                "places": ragged_column(places, pa.int32()),
                "cut": [bool(one.overflowing) for one in encoded.encodings],
                "row": rows["row"],
            }
        )

    def load(self, table: pa.Table, *, task: Task, tokenizer: Any) -> TaggedSentences:
        tokens = Ragged.of(table["tokens"])
        return TaggedSentences(
            tokens=tokens.values,
            offsets=tokens.offsets,
            rows=table["row"].to_numpy(),
            tags=Ragged.of(table["tags"]),
            places=Ragged.of(table["places"]),
            labels=task.labels,
        )

    def configure(self, config: Any, task: Task, tokenizer: Any) -> None:
        config.num_labels = len(task.labels)
        config.id2label = dict(enumerate(task.labels))
        config.label2id = {tag: number for number, tag in enumerate(task.labels)}

    def losses(self, outputs: Any, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        import torch.nn.functional as F

        logits = outputs.logits.flatten(0, 1).float()  # (B * T, C)
        by_token = F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="none")
        return by_token.view_as(targets).sum(1)

    def predict(self, model: nn.Module, inputs: Mapping[str, Tensor], outputs: Any) -> Tensor:
        tags: Tensor = outputs.logits.argmax(-1)  # (B, T)
        return tags


def check_tags(tags: Sequence[str], task: Task, *, where: str) -> None:
    """Refuse a tag that the training split does not have."""
    unknown = next((tag for tag in tags if tag not in task.labels), None)
    if unknown is not None:
        raise DataError(
            f"tag '{unknown}' is in no training sentence",
            where=where,
            why=f"the training split has {shorten(', '.join(task.labels), 200)}: no model can learn another",
            hint="other files or splits; or a tag of the training split in its place",
        )


def find_first_tokens(words: Sequence[str], spans: NDArray[np.int64]) -> list[int]:
    """The place of the first sub-token of every word of a sentence that was joined by spaces; -1 if it has none.

    Some tokenizers count the space before a word as a part of it.
    """
    text = " ".join(words)
    places = [-1] * len(words)
    word_at = np.repeat(np.arange(len(words)), [len(word) + 1 for word in words])  # and its space
    for place, (start, end) in enumerate(spans.tolist()):
        piece = text[start:end]
        start += len(piece) - len(piece.lstrip())
        if start < end and places[word_at[start]] < 0:
            places[word_at[start]] = place
    return places


# -- reading ------------------------------------------------------------------------------------------------------


def _read_conll(path: Path) -> list[Sentence]:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise DataError(
            f"{shown_path(path)} is not valid UTF-8", why=str(error), hint=explain_encoding(path)
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {shown_path(path)}", why=error.strerror) from error
    sentences: list[Sentence] = []
    words: list[str] = []
    tags: list[str] = []
    for word, tag in (*_conll_rows(path, lines), ("", "")):
        if word:
            words.append(word)
            tags.append(tag)
        elif words:
            sentences.append((words, tags))
            words, tags = [], []
    return sentences


def _conll_rows(path: Path, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
    """(token, tag) of every line; two empty texts where a sentence ends."""
    width, file = None, shown_path(path)
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("-DOCSTART-"):
            yield "", ""
            continue
        columns = [column.strip() for column in (line.split("\t") if "\t" in line else line.split())]
        where = f"{file}, line {number:,}: {shorten(line, 60)!r}"
        if len(columns) < 2:
            raise DataError("a line has one column only: a token without a tag", where=where, hint=_FORM)
        width = width or len(columns)
        if len(columns) != width:
            what = f"a line has {len(columns)} columns, and those before it have {width}"
            raise DataError(what, where=where, why="the tag is in the last column of every line", hint=_FORM)
        if not columns[0] or not columns[-1]:
            missing = "token" if not columns[0] else "tag"
            raise DataError(f"a line has no {missing}", where=where, hint=_FORM)
        yield columns[0], _checked(columns[-1], where)


_TAGS = "tags are O, B-TYPE and I-TYPE, such as B-PER and I-PER"


def _checked(tag: str, where: str) -> str:
    if not _TAG.fullmatch(tag):
        raise DataError(f"tag '{shorten(tag, 60)}' is not a tag in IOB2", where=where, why=_IOB2, hint=_TAGS)
    return tag


def _read_lists(table: pa.Table, task: Task, path: Path) -> list[Sentence]:
    words = _list_column(table, task.usual_columns(task.columns, "tokens", "words"), path)
    tags = _list_column(table, task.usual_columns((task.label,), "ner_tags", "tags"), path)
    names = _tag_names(table, tags, task)
    sentences, file = list[Sentence](), shown_path(path)
    for row, (some, numbers) in enumerate(zip(table[words].to_pylist(), table[tags].to_pylist(), strict=True)):
        where = f"{file}, {shown_row(path, row)}"
        if not some or any(not isinstance(word, str) or not word.strip() for word in some):
            what = "a sentence is empty" if not some else "a token is empty, or not a text"
            raise DataError(what, where=where, hint="leave it out")
        if numbers is None or len(some) != len(numbers) or None in numbers:
            given = sum(tag is not None for tag in numbers or ())
            raise DataError(f"a sentence has {len(some)} tokens and {given} tags", where=where, why="each needs one")
        sentences.append(([word.strip() for word in some], [_named(tag, names, where) for tag in numbers]))
    return sentences


def _list_column(table: pa.Table, names: Sequence[str], path: Path) -> str:
    name = next((name for name in names if name in table.column_names), None)
    if name is None:
        have = shorten(", ".join(table.column_names[:12]), 200)
        either = " or ".join(dict.fromkeys(names))
        raise DataError(f"no column {either}", where=f"{shown_path(path)}, with the columns {have}", hint=_EXAMPLE)
    if not pa.types.is_list(table[name].type) and not pa.types.is_large_list(table[name].type):
        raise DataError(
            f"column '{name}' must hold lists, got {table[name].type}", where=shown_path(path), hint=_EXAMPLE
        )
    return name


_EXAMPLE = '{"tokens": ["EU", "rejects"], "ner_tags": ["B-ORG", "O"]}'


def _tag_names(table: pa.Table, column: str, task: Task) -> Sequence[str]:
    """Of tags that are numbers: as the task has them, or as the hub says it in a Parquet file."""
    if task.labels:
        return task.labels
    try:
        about = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
        feature = about["info"]["features"][column]
        return [str(name) for name in (feature.get("feature") or feature)["names"]]
    except (ValueError, LookupError, TypeError, AttributeError):
        return ()


def _named(tag: Any, names: Sequence[str], where: str) -> str:
    if isinstance(tag, int) and not isinstance(tag, bool):
        if not 0 <= tag < len(names):
            known = f"known are {shorten(', '.join(names), 200)}"
            why = known if names else "the file does not say what its numbers stand for"
            raise DataError(f"tag {tag} has no name", where=where, why=why, hint=_EXAMPLE)
        return _checked(names[tag], where)
    if not isinstance(tag, str):
        raise DataError(f"a tag must be a text, got {shorten(repr(tag), 60)}", where=where, hint=_EXAMPLE)
    return _checked(tag, where)
