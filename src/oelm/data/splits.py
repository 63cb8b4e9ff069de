"""Splits: the rows of a source, by role: train, validation and test."""

from __future__ import annotations

import hashlib
import itertools
import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oelm.data.chunking import TextChunker
from oelm.data.documents import chunk_documents, read_documents
from oelm.data.sources import Source
from oelm.data.tables import read_rows
from oelm.errors import DataError
from oelm.seeds import seed_for

if TYPE_CHECKING:
    import pyarrow as pa

_TRAINING_BYTES = 10**8  # of text that a tokenizer is trained on: of more, some of it evenly spread
_FEW = 20  # documents: fewer are split into chunks, so that some can be held out


class SplitReader:
    """Reads a source as `train`, `validation` and one `test-...` for each test split.

    Held-out rows are the same for every arm and seed. Training rows with the same text as a held-out row are dropped.
    """

    def __init__(self, source: Source, validation: int | None):
        self.source = source
        self.task = source.task
        own = self.task.validation if validation is None else None
        if validation is None and own not in source.files:
            raise DataError(
                f"the validation split '{own}' is missing" if own else "the task has no validation split",
                where="recipe.data.path",
                hint="validation: 1000 holds out 1000 training examples",
            )
        self.num_validation = validation or 0
        self.published = {} if own is None else {"validation": own}
        """Published splits that are used unchanged, by role."""
        self.published |= {f"test-{split}": split for split in self.task.test if split in source.files}
        self.holds_out_test = not any(name.startswith("test-") for name in self.published)

    def held_out(self, number: int) -> dict[str, NDArray[np.int64]]:
        """The held-out rows of `number` training rows, by role."""
        order = np.random.default_rng(seed_for(0, "held out", self.task.name)).permutation(number)
        test = min(self.task.held_out, number // 10) if self.holds_out_test else 0
        total = test + self.num_validation
        if total * 2 > number or (self.holds_out_test and not test):
            raise DataError(
                f"cannot hold out {total} of {number} training examples",
                why="at most half of them can be held out, and one in ten for the test",
                where="recipe.data.validation",
            )
        held = {"test-held_out": order[:test]} if test else {}
        return held | ({"validation": order[test:total]} if self.num_validation else {})

    def documents(self) -> Iterator[tuple[str, Iterable[str]]]:
        """(split, parts of a document) for all text of the task, streamed."""
        if self.holds_out_test or self.num_validation:
            yield from self._hold_out_documents()
        else:
            yield from (("train", document) for document in read_documents(self.source, "train"))
        for name, split in self.published.items():
            yield from ((name, document) for document in read_documents(self.source, split))

    def _hold_out_documents(self) -> Iterator[tuple[str, Iterable[str]]]:
        """(split, parts of a document) of the training split, some of whose documents are held out."""
        # A document may be too long to keep, and there may be many. Hashes of 64 bits are enough to tell them apart:
        # of ten million, one would be dropped by mistake with a chance below a millionth.
        hashes = np.fromiter(map(_hash, self._training_documents()), dtype=np.uint64)
        held = {number: name for name, rows in self.held_out(len(hashes)).items() for number in rows.tolist()}
        held_hashes = set(hashes[list(held)].tolist())
        # A file may have changed since; whoever keeps what is made of it will notice.
        for number, (found, document) in enumerate(zip(hashes, self._training_documents(), strict=False)):
            if number in held:
                yield held[number], document
            elif int(found) not in held_hashes:
                yield "train", document

    def _training_documents(self) -> Iterator[Iterable[str]]:
        documents = read_documents(self.source, "train")
        few = sum(1 for _ in itertools.islice(read_documents(self.source, "train"), _FEW)) < _FEW
        return chunk_documents(documents) if few else documents

    def tables(self) -> dict[str, pa.Table]:
        """The examples of a classification task by split, with their row numbers."""
        rows = self._table("train")
        if len(set(rows["label"].to_pylist())) < 2:
            raise DataError(
                "all training examples have the same label",
                where=", ".join(str(path) for path in self.source.files["train"]),
            )
        held = self.held_out(rows.num_rows)
        names = [name for name in rows.column_names if name.startswith("text")]
        texts = list(zip(*(rows[name].to_pylist() for name in names), strict=True))
        held_texts = {texts[number] for numbers in held.values() for number in numbers}
        kept = np.array([number for number, text in enumerate(texts) if text not in held_texts], dtype=np.int64)
        split = {name: rows.take(np.sort(numbers)) for name, numbers in held.items()}
        return {"train": rows.take(kept), **split, **{name: self._table(own) for name, own in self.published.items()}}

    def _table(self, split: str) -> pa.Table:
        import pyarrow as pa

        rows = read_rows(self.source, split)
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


def _hash(document: Iterable[str]) -> int:
    digest = hashlib.blake2b(digest_size=8)
    for part in document:
        digest.update(part.encode("utf-8", "surrogatepass"))
    return int.from_bytes(digest.digest())
