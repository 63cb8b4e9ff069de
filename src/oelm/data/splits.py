"""Splits: the rows of a source, by role: train, validation and test."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from oelm.data.chunking import TextChunker
from oelm.data.division import Division, Texts, divide
from oelm.data.documents import chunk_documents, read_documents
from oelm.data.overlap import TextOrPair, sentences_of
from oelm.data.sources import Source
from oelm.data.tables import has_labels, read_rows
from oelm.errors import DataError
from oelm.seeds import seed_for

if TYPE_CHECKING:
    import pyarrow as pa

_TRAINING_BYTES = 10**8  # of text that a tokenizer is trained on: of more, some of it evenly spread
_TOLD = 1000  # texts between two signs of life
_FEW = 20  # documents: fewer are split into chunks, so that some can be held out


class SplitReader:
    """Reads a source as `train`, `validation` and one `test-...` for each test split.

    Held-out rows are the same for every arm and seed. Training rows that are also in another split are dropped, or
    kept if `overlap` says so. Rows with the same value in the column `group` are held out together.
    """

    def __init__(
        self,
        source: Source,
        validation: int | None,
        *,
        overlap: Literal["drop", "keep"] = "drop",
        group: str | None = None,
        progress: Callable[[str, int, int], None] = lambda what, done, total: None,
    ):
        self.source = source
        self.task = source.task
        self._drops_overlap = overlap == "drop"
        self._group = group
        self._progress = progress
        own = self.task.validation if validation is None else None
        if validation is None and own not in source.files:
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
        return self._divide_documents() if self.task.kind == "language-modeling" else self._divide_rows()

    @property
    def _holds_out(self) -> bool:
        return self.holds_out_test or self.num_validation > 0

    def _told(self, texts: Iterable[TextOrPair]) -> Iterator[TextOrPair]:
        """The same texts; whoever waits hears how many were read."""
        for number, text in enumerate(texts):
            if number % _TOLD == 0:
                self._progress("comparing texts", number, 0)
            yield text

    def _hold_out(self, groups: NDArray[Any], may_be_chosen: NDArray[np.bool_]) -> dict[str, NDArray[np.int64]]:
        """The held-out rows by role, group by group."""
        order = np.random.default_rng(seed_for(0, "held out", self.task.name)).permutation(len(groups))
        order = order[may_be_chosen[order]]
        test = min(self.task.held_out, len(order) // 10) if self.holds_out_test else 0
        total = test + self.num_validation
        _, first, group = np.unique(groups[order], return_index=True, return_inverse=True)
        by_group = order[np.argsort(first[group], kind="stable")]
        held = {"test-held_out": by_group[:test]} if test else {}
        if self.num_validation:
            others = by_group[~np.isin(groups[by_group], groups[by_group[:test]])]
            held["validation"] = others[: self.num_validation]
        if total * 2 > len(order) or sum(map(len, held.values())) < total or (self.holds_out_test and not test):
            raise DataError(
                f"cannot hold out {total} of {len(order)} training examples",
                why="at most half of them can be held out, and one in ten for the test; the copies of a text, or the "
                "rows of a group, only together",
                where="recipe.data.validation",
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
                yield "train", itertools.chain.from_iterable(kept)
        for name, split in self.published.items():
            yield from ((name, document) for document in read_documents(self.source, split))

    def _divide_documents(self) -> Division:
        def reading(split: str) -> Texts:
            return lambda: self._told((document,) for document in self._texts(split))

        return divide(
            reading("train"),
            {name: reading(split) for name, split in self.published.items()},
            hold_out=self._hold_out if self._holds_out else None,
            drop=self._drops_overlap,
        )

    def _texts(self, split: str) -> Iterator[Iterable[str]]:
        """The documents of a split; if there are few, their chunks."""
        documents = read_documents(self.source, split)
        return chunk_documents(documents) if self._has_few(split) else documents

    def _has_few(self, split: str) -> bool:
        return sum(1 for _ in itertools.islice(read_documents(self.source, split), _FEW)) < _FEW

    # -- classification ------------------------------------------------------------------------------------------

    def tables(self) -> dict[str, pa.Table]:
        """The examples of a classification task by split, with their row numbers."""
        rows = self._table("train")
        held = {name: rows.take(np.sort(numbers)) for name, numbers in self.division.held_out.items()}
        train = rows.take(np.flatnonzero(self.division.trained_on))
        return {"train": train, **held, **{name: self._table(own) for name, own in self.published.items()}}

    def _divide_rows(self) -> Division:
        rows = self._table("train")
        if len(set(rows["label"].to_pylist())) < 2:
            raise DataError(
                "all training examples have the same label",
                where=", ".join(str(path) for path in self.source.files["train"]),
            )

        def reading(split: str) -> Texts:
            return lambda: self._told(_texts_of(self._table(split)))

        texts = _texts_of(rows)
        group = np.unique(rows["group"].to_pylist(), return_inverse=True)[1] if self._group else None
        return divide(
            lambda: self._told(texts),
            {name: reading(split) for name, split in self.published.items()},
            hold_out=self._hold_out if self._holds_out else None,
            drop=self._drops_overlap,
            groups=group,
            sentences=sentences_of([text for ((text,),) in texts]) if self.task.has_phrases else None,
        )

    def _table(self, split: str) -> pa.Table:
        import pyarrow as pa

        rows = read_rows(self.source, split, group=self._group if split == "train" else None)
        return rows.append_column("row", pa.array(np.arange(rows.num_rows)))

    def one_text_in(self) -> int:
        """`training_texts` has one in how many: whoever counts words has all that are different in memory."""
        if self.task.kind != "language-modeling":
            return 1
        return max(1, math.ceil(self.source.size("train") / _TRAINING_BYTES))

    def training_texts(self) -> Iterator[str]:
        """What a tokenizer is trained on: all texts, or a part of them from the first to the last."""
        if self.task.kind == "language-modeling":
            # A byte-level BPE is trained on the same words, in less memory.
            chunker = TextChunker()
            documents = (document for split, document in self.documents() if split == "train")
            chunks = (chunk for document in documents for chunk, _ in chunker.chunks(document))
            yield from itertools.islice(chunks, 0, None, self.one_text_in())
        else:
            table = self.tables()["train"]
            for name in table.column_names:
                if name.startswith("text"):
                    yield from table[name].to_pylist()


def _texts_of(rows: pa.Table) -> list[tuple[tuple[str], ...]]:
    columns = [rows[name].to_pylist() for name in rows.column_names if name.startswith("text")]
    return [tuple((text,) for text in texts) for texts in zip(*columns, strict=True)]
