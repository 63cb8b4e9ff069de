"""Splits: the rows of a source, by role: train, validation and test.

Training texts are trained on, held out, or dropped because another split has them too.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal, TypeAlias

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oelm.data.chunking import TextChunker
from oelm.data.documents import PIECE_CHARACTERS, chunk_documents, read_documents
from oelm.data.kinds.kind import read_rows_of
from oelm.data.kinds.table import TASK_KINDS
from oelm.data.limit import LESS, Limit, front_documents
from oelm.data.overlap import Matches, TextIndex, TextOrPair, sentences_of
from oelm.data.sources import Source, shown_path
from oelm.data.tables import find_labels, has_labels, read_rows
from oelm.errors import DataError
from oelm.facts import Overlap
from oelm.seeds import seed_for

Texts: TypeAlias = Callable[[], Iterable[TextOrPair]]
"""Reads texts from their files, again every time: there may be too many to keep."""
HoldOut: TypeAlias = Callable[[NDArray[Any], NDArray[np.bool_]], dict[str, NDArray[np.int64]]]
"""Chooses what is held out, by role, given (group of every text, whether it may be chosen)."""

_Mask: TypeAlias = NDArray[np.bool_]

_TRAINING_BYTES = 10**8  # of text that a tokenizer is trained on: of more, some of it evenly spread
_TOLD = 1000  # texts between two signs of life
_FEW = 20  # documents: fewer are split into chunks, so that some can be held out


@dataclass(frozen=True, kw_only=True)
class Division:
    """What becomes of the texts of the training split."""

    held_out: dict[str, NDArray[np.int64]]
    """By role."""
    dropped: _Mask
    """Neither trained on nor held out."""
    overlap: tuple[Overlap, ...]

    @property
    def trained_on(self) -> _Mask:
        return ~self.dropped & ~_mask(len(self.dropped), *self.held_out.values())

    def roles(self) -> Iterator[str | None]:
        """Of every training text; None if it is dropped."""
        held = {row: name for name, rows in self.held_out.items() for row in rows.tolist()}
        for row, is_dropped in enumerate(self.dropped.tolist()):
            yield held.get(row, None if is_dropped else "train")


class SplitReader:
    """Reads a source as `train`, `validation` and one `test-...` for each test split.

    Held-out rows are the same for every arm and seed. Training rows that are also in another split are dropped, or
    kept if `overlap` says so. Rows with the same value in the column `group` are held out together. Of what is left,
    as much as `limit` says is trained on; what a smaller limit leaves is part of what a larger one does. Documents are
    taken from the front, and so is what is held out then: no more is read.
    """

    def __init__(
        self,
        source: Source,
        validation: int | None,
        *,
        overlap: Literal["drop", "keep"] = "drop",
        group: str | None = None,
        limit: Limit | None = None,
        progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    ):
        self.source = source = find_labels(source)
        self.task = source.task
        self._drops_overlap = overlap == "drop"
        self._group = group
        self.limit = limit
        self._front = front_documents(self.task, validation)
        self._progress = progress
        own = self.task.validation if validation is None else None
        self._holds_out_validation = own is not None and own not in source.files and self.task.held_out > 0
        if self._holds_out_validation:
            own = None
        elif validation is None and own not in source.files:
            raise DataError(
                f"the validation split '{own}' is missing" if own else "the task has no validation split",
                where="recipe.data.path",
                hint="validation: 1000 holds out 1000 training examples",
            )
        self.num_validation = validation or 0
        tests = [split for split in self.task.test if split in source.files]
        unlabeled = self.task.unlabeled_test
        if unlabeled in source.files and has_labels(source, unlabeled):
            tests.insert(0, unlabeled)
        self.published = {} if own is None else {"validation": own}
        """Published splits that are used unchanged, by role."""
        self.published |= {f"test-{split}": split for split in tests}
        self.holds_out_test = not tests

    @cached_property
    def division(self) -> Division:
        """What becomes of the training rows."""
        if self.limit is not None and (problem := self.limit.problem_for(self.task)) is not None:
            raise DataError(problem, where="recipe.data.limit")
        division = self._divide_documents() if self._is_text else self._divide_rows()
        # How many tokens a document has, only who tokenizes it knows.
        return division if self.limit is None or self.limit.tokens else self._limited(division, self.limit.number)

    def _limited(self, division: Division, limit: int) -> Division:
        rows = np.flatnonzero(division.trained_on)
        if limit > len(rows):
            raise DataError(f"there are only {len(rows)} {self._counted}", where="recipe.data.limit", hint=LESS)
        if not self._is_text:
            rows = np.random.default_rng(seed_for(0, "limit", self.task.name)).permutation(rows)
        return replace(division, dropped=division.dropped | _mask(len(division.dropped), rows[limit:]))

    @property
    def _is_text(self) -> bool:
        return self.task.kind == "language-modeling"

    @cached_property
    def _read(self) -> tuple[int, int]:
        """Of text with a limit: (documents from the front that are read, their characters)."""
        assert self.limit is not None
        number = characters = 0
        for document in self._all_texts("train"):
            number, characters = number + 1, characters + sum(map(len, document))
            if self.limit.is_enough(number, characters, front=self._front):
                break
        return number, characters

    @property
    def _counted(self) -> str:
        """What `limit` and `validation` are numbers of."""
        if not self._is_text:
            return "training examples"
        if not self._has_few("train"):
            return "training documents"
        return f"training pieces of about {PIECE_CHARACTERS:,} characters (of fewer than {_FEW} documents)"

    @property
    def _holds_out(self) -> bool:
        return self.holds_out_test or self._holds_out_validation or self.num_validation > 0

    def _divide(self, texts: Texts, reading: Callable[[str], Texts], **more: Any) -> Division:
        published = {name: reading(split) for name, split in self.published.items()}
        hold_out = self._hold_out if self._holds_out else None
        return divide(texts, published, hold_out=hold_out, drop=self._drops_overlap, **more)

    def _told(self, texts: Iterable[TextOrPair]) -> Iterator[TextOrPair]:
        """The same texts; whoever waits hears how many were read."""
        for number, text in enumerate(texts):
            if number % _TOLD == 0:
                self._progress("comparing texts", number, 0)
            yield text

    def _hold_out(self, groups: NDArray[Any], may_be_chosen: NDArray[np.bool_]) -> dict[str, NDArray[np.int64]]:
        """The held-out rows by role, group by group."""
        if self._is_text and self.limit is not None:
            groups, may_be_chosen = groups[: self._front], may_be_chosen[: self._front]
        order = np.random.default_rng(seed_for(0, "held out", self.task.name)).permutation(len(groups))
        order = order[may_be_chosen[order]]
        tenth = min(self.task.held_out, len(order) // 10)
        test = tenth if self.holds_out_test else 0
        validation = max(1, tenth) if self._holds_out_validation else self.num_validation
        total = test + validation
        _, first, group = np.unique(groups[order], return_index=True, return_inverse=True)
        by_group = order[np.argsort(first[group], kind="stable")]
        held = {"test-held_out": by_group[:test]} if test else {}
        if validation:
            others = by_group[~np.isin(groups[by_group], groups[by_group[:test]])]
            held["validation"] = others[:validation]
        if total * 2 > len(order) or sum(map(len, held.values())) < total or (self.holds_out_test and not test):
            both = f": {validation} for validation and {test} for the test" if test and validation else ""
            raise DataError(
                f"cannot hold out {total} of {len(order)} {self._counted}{both}",
                why="at most half of them can be held out, and one in ten for the test; the copies of a text, or the "
                "rows of a group, only together",
                where="recipe.data.validation",
                hint=f"a smaller validation, or more {'text' if self._is_text else 'rows'}",
            )
        return held

    # -- language modeling ---------------------------------------------------------------------------------------

    def documents(self) -> Iterator[tuple[str, Iterable[str]]]:
        """(split, parts of a document) for all text of the task, streamed."""
        roles = self.division.roles()
        if self._holds_out or not self._has_few("train"):
            # A file may have changed since; whoever keeps what is made of it will notice.
            for role, document in zip(roles, self._texts("train"), strict=False):
                if role is not None:
                    yield role, document
        else:  # of these, chunks are dropped
            for document in read_documents(self.source, "train"):
                kept = itertools.compress(chunk_documents([document]), roles)
                if (first := next(kept, None)) is not None:
                    yield "train", itertools.chain(first, itertools.chain.from_iterable(kept))
        for name, split in self.published.items():
            yield from ((name, document) for document in read_documents(self.source, split))

    def _divide_documents(self) -> Division:
        def reading(split: str) -> Texts:
            return lambda: self._told((document,) for document in self._texts(split))

        return self._divide(reading("train"), reading)

    def _texts(self, split: str) -> Iterator[Iterable[str]]:
        """The documents of a split, as many as are read; if there are few, their chunks."""
        texts = self._all_texts(split)
        return texts if self.limit is None or split != "train" else itertools.islice(texts, self._read[0])

    def _all_texts(self, split: str) -> Iterator[Iterable[str]]:
        documents = read_documents(self.source, split)
        return chunk_documents(documents) if self._has_few(split) else documents

    def _has_few(self, split: str) -> bool:
        return sum(1 for _ in itertools.islice(read_documents(self.source, split), _FEW)) < _FEW

    # -- examples ------------------------------------------------------------------------------------------------

    def tables(self) -> dict[str, pa.Table]:
        """The examples of a task by split, with their row numbers."""
        rows = self._table("train")
        held = {name: rows.take(np.sort(numbers)) for name, numbers in self.division.held_out.items()}
        train = rows.take(np.flatnonzero(self.division.trained_on))
        learned = rows if self.limit is None else train
        if self.task.kind == "classification" and len(set(learned["label"].to_pylist())) < 2:
            raise DataError(
                "all training examples have the same label",
                where="recipe.data.limit" if self.limit else ", ".join(map(shown_path, self.source.files["train"])),
            )
        return {"train": train, **held, **{name: self._table(own) for name, own in self.published.items()}}

    def find_labels(self) -> tuple[str, ...]:
        """Those of the task, or, of a kind that finds them, those of all training rows."""
        kind = TASK_KINDS.get(self.task.kind)
        return self.task.labels if kind is None else kind.find_labels(self._table("train"), self.task)

    def _divide_rows(self) -> Division:
        rows = self._table("train")

        def reading(split: str) -> Texts:
            return lambda: self._told(_texts_of(self._table(split)))

        texts = _texts_of(rows)
        grouped = rows["group"].to_pylist() if "group" in rows.column_names else None
        group = None if grouped is None else np.unique(grouped, return_inverse=True)[1]
        sentences = sentences_of([text for ((text,),) in texts]) if self.task.has_phrases else None
        return self._divide(lambda: self._told(texts), reading, groups=group, sentences=sentences)

    def _table(self, split: str) -> pa.Table:
        kind, group = TASK_KINDS.get(self.task.kind), self._group if split == "train" else None
        if kind is None:
            rows = read_rows(self.source, split, group=group)
        else:
            rows = read_rows_of(kind, self.source.files[split], self.task, group=group)
        return rows.append_column("row", pa.array(np.arange(rows.num_rows)))

    def one_text_in(self) -> int:
        """`training_texts` has one in how many: whoever counts words has all that are different in memory."""
        if not self._is_text:
            return 1
        if self.limit is None:
            size = float(self.source.size("train"))
        else:  # what it leaves
            size = float(self.division.trained_on.mean()) * self._read[1]
        return max(1, math.ceil(size / _TRAINING_BYTES))

    def training_texts(self) -> Iterator[str]:
        """What a tokenizer is trained on: all texts, or a part of them from the first to the last."""
        if self._is_text:
            # A byte-level BPE is trained on the same words, in less memory.
            chunker = TextChunker()
            documents = (document for split, document in self.documents() if split == "train")
            chunks = (chunk for document in documents for chunk, _ in chunker.chunks(document))
            yield from itertools.islice(chunks, 0, None, self.one_text_in())
        else:
            table = self.tables()["train"]
            for name in table.column_names:
                if name.startswith(("text", "target")):
                    yield from table[name].to_pylist()


def _texts_of(rows: pa.Table) -> list[tuple[tuple[str], ...]]:
    columns = [rows[name].to_pylist() for name in rows.column_names if name.startswith("text")]
    return [tuple((text,) for text in texts) for texts in zip(*columns, strict=True)]


# -- what becomes of the training texts -----------------------------------------------------------------------------


def divide(
    texts: Texts,
    published: Mapping[str, Texts],
    *,
    hold_out: HoldOut | None,
    drop: bool,
    groups: NDArray[Any] | None = None,
    sentences: Sequence[tuple[int, ...]] | None = None,
) -> Division:
    """Decide about the training texts, given the splits that are published, by role.

    What is held out is whole groups, and in no published split; without `groups`, the copies of a text are one. Of
    phrases, the whole `sentences` that each is a part of: only these are held out. With `drop`, training texts are
    dropped that are in another split too, or nearly, or parts of held-out sentences alone.
    """
    index = TextIndex((name, text) for name, read in published.items() for text in read())
    found = index.look_up(texts())
    number = len(found.keys)
    is_found = _mask(number, found.rows)
    overlap = _count(index, found, "train", of=is_found, drop=drop)
    if "validation" in published:
        tests = [name for name in published if name != "validation"]
        again = index.look_up(published["validation"]())
        overlap += _count(index, again, "validation", of=np.ones(len(again.keys), bool), drop=False, only=tests)
    if hold_out is None:
        return _unless_empty(Division(held_out={}, dropped=is_found & drop, overlap=overlap))

    if groups is None:  # a text without a word has no copies
        groups = np.where(found.keys == 0, np.arange(number, dtype=np.uint64), found.keys)
    may_be_chosen = ~is_found
    if sentences is not None:
        may_be_chosen &= [whole[0] == row for row, whole in enumerate(sentences)]
    held_out = hold_out(groups, may_be_chosen)
    is_held = {name: _mask(number, rows) for name, rows in held_out.items()}
    any_held = _mask(number, *held_out.values())
    dropped = (is_found & drop) | (np.isin(groups, groups[any_held]) & ~any_held)
    of = ~dropped & ~any_held
    parts = {name: _parts(sentences, rows, any_held) & of for name, rows in held_out.items()} if sentences else {}

    names = {row: name for name, rows in held_out.items() for row in rows.tolist()}
    index = TextIndex((names[row], text) for row, text in enumerate(texts()) if row in names)
    found = index.look_up(text for _, text in zip(range(number), texts(), strict=False))
    overlap += _count(index, found, "train", of=of, drop=drop, parts=parts)
    if len(held_out) > 1:
        overlap += _count(index, found, "validation", of=is_held["validation"], drop=False, only=["test-held_out"])
    if drop:
        dropped |= _mask(number, found.rows) & of
        for some in parts.values():
            dropped |= some
    return _unless_empty(Division(held_out=held_out, dropped=dropped, overlap=overlap))


def _parts(sentences: Sequence[tuple[int, ...]], held: NDArray[np.int64], any_held: _Mask) -> _Mask:
    """Those that are parts of these held-out sentences, and of none that is trained on."""
    wholes = {sentences[row][0] for row in np.flatnonzero(any_held).tolist()}
    own = {sentences[row][0] for row in held.tolist()}
    return np.array([wholes.issuperset(whole) and not own.isdisjoint(whole) for whole in sentences])


def _count(
    index: TextIndex,
    found: Matches,
    other: Literal["train", "validation"],
    *,
    of: _Mask,
    drop: bool,
    only: Sequence[str] | None = None,
    parts: Mapping[str, _Mask] | None = None,
) -> tuple[Overlap, ...]:
    """What the splits of an index have in common with `other`, whose texts are some `of` those that were looked up."""
    mine = of[found.rows]
    rows, texts, exact = found.rows[mine], found.texts[mine], found.exact[mine]
    counted = []
    for split in index.splits if only is None else only:
        numbers = index.splits[split]
        numbers = numbers[numbers >= 0]
        is_same, is_found = (np.isin(numbers, some) for some in (texts[exact], texts))
        own = _mask(len(of), rows[np.isin(texts, numbers)])
        if parts is not None and split in parts:
            own |= parts[split]
        counted.append(
            Overlap(
                split=split,
                other=other,
                texts=len(index.splits[split]),
                exact=int(is_same.sum()),
                near=int((is_found & ~is_same).sum()),
                dropped=int(own.sum()) if drop else 0,
            )
        )
    return tuple(counted)


def _unless_empty(division: Division) -> Division:
    if not division.trained_on.any():
        found = ", ".join(f"{one.exact + one.near} of {one.texts} texts of {one.split}" for one in division.overlap)
        raise DataError(
            "there is nothing left to train on",
            why=f"all training texts are held out, or in another split too: {found} are in train",
            hint="other files in recipe.data.path, a smaller recipe.data.validation, or recipe.data.overlap=keep",
        )
    return division


def _mask(number: int, *rows: NDArray[np.int64]) -> _Mask:
    mask = np.zeros(number, dtype=np.bool_)
    for some in rows:
        mask[some[some < number]] = True  # a file may have grown since; whoever keeps what is made of it will notice
    return mask
