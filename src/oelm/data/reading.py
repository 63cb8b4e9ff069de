"""Reading: the rows of a source, divided into what is trained, selected and reported on."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from oelm.data.sources import Source, pieces, read_documents, read_rows
from oelm.errors import DataError
from oelm.seeds import seed_for

if TYPE_CHECKING:
    import pyarrow as pa


class Reading:
    """The rows of a source, divided into `train`, `select` and one `report-...` for each split that is reported.

    Rows that are held out are the same for every arm and seed. No other row with the same text is trained on.
    """

    def __init__(self, source: Source, select: int | None):
        self.source = source
        self.task = source.task
        own = self.task.select if select is None else None
        if select is None and own not in source.files:
            raise DataError(
                f"there is no split '{own}' to select on" if own else "the task has no split to select on",
                where="recipe.data.path",
                hint="select: 1000 holds out as many training examples",
            )
        self.held_for_select = select or 0
        self.whole = {} if own is None else {"select": own}
        """Published splits that are taken as they are."""
        self.whole |= {f"report-{split}": split for split in self.task.report if split in source.files}
        self.report_is_held = not any(name.startswith("report-") for name in self.whole)

    def held_out(self, number: int) -> dict[str, NDArray[np.int64]]:
        """Which of the `number` training rows are held out, by what for."""
        order = np.random.default_rng(seed_for(0, "held out", self.task.name)).permutation(number)
        report = min(self.task.held_out, number // 10) if self.report_is_held else 0
        taken = report + self.held_for_select
        if taken * 2 > number or (self.report_is_held and not report):
            raise DataError(
                f"the task has {number} training examples; {taken} cannot be held out of them",
                why="at most half may be, and one in ten to report on",
                where="recipe.data.select",
            )
        held = {"report-held_out": order[:report]} if report else {}
        return held | ({"select": order[report:taken]} if self.held_for_select else {})

    def documents(self) -> Iterator[tuple[str, str]]:
        """(split, document) for all text of the task, without holding all of it in memory."""
        train = self._training_documents
        held = {number: name for name, rows in self.held_out(sum(1 for _ in train())).items() for number in rows}
        texts = {document for number, document in enumerate(train()) if number in held}
        for number, document in enumerate(train()):
            if number in held:
                yield held[number], document
            elif document not in texts:
                yield "train", document
        for name, split in self.whole.items():
            for document in read_documents(self.source, split):
                yield name, document

    def _training_documents(self) -> Iterator[str]:
        first = list(itertools.islice(read_documents(self.source, "train"), 20))
        if len(first) < 20 and (self.report_is_held or self.held_for_select):
            return iter(pieces(first))
        return read_documents(self.source, "train")

    def tables(self) -> dict[str, pa.Table]:
        """The examples of a classification task, with the number of their row."""
        rows = self._table("train")
        if len(set(rows["label"].to_pylist())) < 2:
            raise DataError(
                "all training examples have one label: there is nothing to learn",
                where=", ".join(str(path) for path in self.source.files["train"]),
            )
        held = self.held_out(rows.num_rows)
        names = [name for name in rows.column_names if name.startswith("text")]
        texts = list(zip(*(rows[name].to_pylist() for name in names), strict=True))
        away = {texts[number] for numbers in held.values() for number in numbers}
        left = np.array([number for number, text in enumerate(texts) if text not in away], dtype=np.int64)
        split = {name: rows.take(np.sort(numbers)) for name, numbers in held.items()}
        return {"train": rows.take(left), **split, **{name: self._table(own) for name, own in self.whole.items()}}

    def _table(self, split: str) -> pa.Table:
        import pyarrow as pa

        rows = read_rows(self.source, split)
        return rows.append_column("row", pa.array(np.arange(rows.num_rows)))

    def training_texts(self) -> Iterator[str]:
        if self.task.kind == "language-modelling":
            yield from (document for split, document in self.documents() if split == "train")
        else:
            table = self.tables()["train"]
            for name in table.column_names:
                if name.startswith("text"):
                    yield from table[name].to_pylist()
