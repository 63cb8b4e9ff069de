"""What a kind of task is: how its rows are read and tokenized, what its loss is, and how its answers are scored.

One module of this package says all of that for one kind. Classification and language modeling, which came first, are in
`data/tables.py`, `data/documents.py`, `data/tokenize.py` and `train/objective.py`.

Shapes: B examples of a batch, T tokens of its longest example.
"""

from __future__ import annotations

import importlib.util
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oelm.data.sources import shown_path
from oelm.data.tables import group_column
from oelm.data.tasks import Task
from oelm.errors import DataError
from oelm.installation import install_command

if TYPE_CHECKING:
    from torch import Tensor, nn

IGNORED = -100
"""A target that has no loss, as in torch."""

Rows = NDArray[np.int64]


@dataclass(frozen=True, kw_only=True)
class Ragged:
    """Lists of numbers, one after the other: list `i` is `values[offsets[i]:offsets[i + 1]]`."""

    values: NDArray[Any]
    offsets: NDArray[np.int64]

    @classmethod
    def of(cls, column: pa.ChunkedArray) -> Ragged:
        if column.num_chunks != 1:  # Arrow divides what its 32-bit offsets cannot hold
            raise DataError("a split has more than two billion tokens", hint="fewer rows: recipe.data.limit.examples")
        lists = column.chunk(0)
        return cls(values=lists.values.to_numpy(), offsets=lists.offsets.to_numpy().astype(np.int64))

    def __getitem__(self, row: int) -> NDArray[Any]:
        return self.values[self.offsets[row] : self.offsets[row + 1]]

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


@dataclass(frozen=True, kw_only=True)
class Encoded(ABC):
    """A tokenized split. Input `i` is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: NDArray[np.int32]
    types: NDArray[np.int8] | None = None
    """Segment of a pair that each token belongs to (`token_type_ids`), if the tokenizer has them."""
    offsets: NDArray[np.int64]
    rows: Rows
    """Row of each input in the published split."""

    feeds_targets: ClassVar[bool] = False
    """Whether the model is given its targets too (`labels`), to read one before it predicts the next."""

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def num_examples(self) -> int:
        return len(self)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)

    @property
    def target_length(self) -> int | None:
        """Tokens that a model reads beside its inputs, on average; None if there are none."""
        return None

    @abstractmethod
    def targets(self, rows: Rows) -> NDArray[np.int64]:
        """What is to be predicted for these inputs."""

    @abstractmethod
    def count_targets(self, rows: Rows) -> int:
        """What the loss of these inputs is summed over."""

    @abstractmethod
    def new_answers(self) -> NDArray[Any]:
        """Zeros for the answers to all inputs. Those of several processes are added up."""

    @abstractmethod
    def put_answers(self, answers: NDArray[Any], rows: Rows, predicted: NDArray[Any]) -> None:
        """Keep what a model has predicted for these inputs."""

    @abstractmethod
    def score(self, loss: NDArray[np.float64], answers: NDArray[Any]) -> dict[str, NDArray[Any]]:
        """What is kept of every example, by field of `Predictions`, given the loss of every input."""


class ExampleKind(ABC):
    """One of these for each kind of task."""

    auto_model: ClassVar[str]
    """The class of transformers that loads its models."""
    peft_task: ClassVar[str]
    """What PEFT calls it."""
    head: ClassVar[str | None] = None
    """How classes of models end whose head has to fit the labels of a task."""
    scored_by: ClassVar[str | None] = None
    """The module that scores its answers, if it is not ours."""
    has_head: ClassVar[bool] = True
    """Whether its models have layers of their own for it, which always learn."""

    @abstractmethod
    def read(self, path: Path, task: Task) -> tuple[pa.Table, pa.Table | None]:
        """(the validated rows of a file, the table that they come from if it is one).

        Columns that begin with `text` are what is compared between splits; `target` is more text to learn tokens from.
        """

    def find_labels(self, rows: pa.Table, task: Task) -> tuple[str, ...]:
        """What there is to learn, from all training rows."""
        return task.labels

    @abstractmethod
    def encode(self, tokenizer: Any, rows: pa.Table, task: Task, *, max_length: int, where: str) -> pa.Table:
        """Tokenized rows, `cut` among their columns: whether something was left out."""

    @abstractmethod
    def load(self, table: pa.Table, *, task: Task, tokenizer: Any) -> Encoded:
        """A split from what `encode` has made."""

    @abstractmethod
    def configure(self, config: Any, task: Task, tokenizer: Any) -> None:
        """Set what the configuration of a model has to say about the task."""

    def finish(self, model: nn.Module, task: Task) -> None:
        """Set what the model itself has to know of the task."""
        return

    @abstractmethod
    def losses(self, outputs: Any, inputs: Mapping[str, Tensor], targets: Tensor) -> Tensor:
        """The loss of every input (B), summed over its targets."""

    @abstractmethod
    def predict(self, model: nn.Module, inputs: Mapping[str, Tensor], outputs: Any) -> Tensor:
        """What `put_answers` takes: (B, ...)."""


def check_scorer(kind: ExampleKind) -> None:
    """Refuse before hours of training what could not be scored after them."""
    if kind.scored_by is not None and importlib.util.find_spec(kind.scored_by) is None:
        raise DataError(f"the package {kind.scored_by} is not installed", hint=install_command("lab"))


def read_rows_of(kind: ExampleKind, paths: tuple[Path, ...], task: Task, *, group: str | None = None) -> pa.Table:
    """The validated rows of the files of a split, with the `group` if asked, or if the kind has one."""
    tables = []
    for path in paths:
        rows, table = kind.read(path, task)
        if group is not None and table is None:
            raise DataError(
                f"{shown_path(path)} has no column '{group}' to group by", where="recipe.data.group", hint=".jsonl"
            )
        if group is not None:
            others = [name for name in rows.column_names if name != "group"]
            rows = rows.select(others).append_column("group", group_column(table, group, path))
        tables.append(rows)
    return pa.concat_tables(tables)


def ragged_column(values: list[Any], dtype: pa.DataType) -> pa.Array:
    return pa.array(values, pa.list_(dtype))


def char_spans(encoding: Any) -> NDArray[np.int64]:
    """(T, 2): which characters of its text every token stands for."""
    return np.array(encoding.offsets, dtype=np.int64).reshape(-1, 2)
