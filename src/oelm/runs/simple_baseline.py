"""simple_baseline.json: what a model without attention reaches on the rows of a study. Reading it needs no data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from oelm.facts import Count, Share, TaskFacts
from oelm.metrics import check_ranges
from oelm.runs.files import FileType
from oelm.runs.layout import SIMPLE_BASELINE


@dataclass(frozen=True, kw_only=True)
class SimpleBaseline:
    """What the simple model reaches on every test split."""

    data: str
    """Fingerprint of the data, as in a record."""
    tokenizer: str | None
    """Fingerprint of the tokenizer, for language modeling: its tokens are what is predicted."""
    splits: dict[str, dict[str, float]]
    """By test split and metric."""
    majority: dict[str, Share]
    """By test split: the accuracy of always predicting the most frequent class of the training rows; none of a
    regression."""
    right: dict[str, Annotated[str, Field(pattern=r"^([0-9a-f]{2})*$")]]
    """By test split: a bit for every example, in hexadecimal, whether its class is predicted; none where there are no
    classes."""
    classes: Annotated[int, Field(gt=0)] | None
    """How many there are; None of a regression and for language modeling."""
    kind: str
    """`tf-idf + logistic regression`, `tf-idf + ridge regression`, `bigrams` or `most frequent tag of each word`"""
    rows: Count
    """How many examples, or tokens, the simple model was trained on."""
    capped: bool
    """Whether there were more."""

    def __post_init__(self) -> None:
        for metrics in self.splits.values():
            check_ranges(metrics)

    def answers(self, split: str, examples: int) -> NDArray[np.float64] | None:
        """1 for every example that it has right, 0 for the others; None where that is not kept of all of them."""
        bits = np.frombuffer(bytes.fromhex(self.right.get(split, "")), dtype=np.uint8)
        return np.unpackbits(bits, count=examples).astype(np.float64) if len(bits) == -(-examples // 8) > 0 else None


def pack_answers(right: NDArray[np.bool_]) -> str:
    return np.packbits(right).tobytes().hex()


@dataclass(frozen=True, kw_only=True)
class SimpleBaselines:
    baselines: tuple[SimpleBaseline, ...]
    """One for each data (and tokenizer) of the study's cells."""


SIMPLE_BASELINE_FILE = FileType(
    SIMPLE_BASELINE, SimpleBaselines, format=3, hint="remove it; oelm run makes it again", has_checksum=True
)


def read_simple_baselines(study_folder: Path) -> tuple[SimpleBaseline, ...]:
    """All that were saved for a study; none if there is no such file."""
    found = SIMPLE_BASELINE_FILE.read(study_folder)
    return found.baselines if found is not None else ()


def write_simple_baselines(study_folder: Path, baselines: Sequence[SimpleBaseline]) -> None:
    SIMPLE_BASELINE_FILE.write(study_folder, SimpleBaselines(baselines=tuple(baselines)))


def find_simple_baseline(data: TaskFacts | None, baselines: Iterable[SimpleBaseline]) -> SimpleBaseline | None:
    """That of the data that a cell was trained and measured on."""
    if data is None:
        return None
    alike = (one for one in baselines if one.data == data.data)
    return next((one for one in alike if one.tokenizer in (None, data.tokenizer)), None)
