"""simple_baseline.json: what a model without attention reaches on the rows of a study. Reading it needs no data."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from oelm.errors import CellError
from oelm.runs.layout import read_json, write_json

SIMPLE_BASELINE = "simple_baseline.json"
_FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class SimpleBaseline:
    """What the simple model reaches on every test split."""

    data: str
    """Fingerprint of the data, as in a record."""
    tokenizer: str | None
    """Fingerprint of the tokenizer, for language modeling: its tokens are what is predicted."""
    splits: dict[str, dict[str, float]]
    """By test split and metric."""
    majority: dict[str, float]
    """By test split: the accuracy of always predicting the most frequent class of the training rows."""
    classes: int | None
    """How many there are; None for language modeling."""
    kind: str
    """`tf-idf + logistic regression` or `bigrams`"""
    rows: int
    """How many examples, or tokens, the simple model was trained on."""
    capped: bool
    """Whether there were more."""


def read_simple_baselines(study_folder: Path) -> list[SimpleBaseline]:
    """All that were saved for a study; none if there is no such file."""
    path = Path(study_folder) / SIMPLE_BASELINE
    content = read_json(path)
    if content is None:
        return []
    number = content.get("format")
    if isinstance(number, int) and number > _FORMAT:
        raise CellError(
            f"{path} has format {number}; this oelm reads up to {_FORMAT}", hint="pip install --upgrade oelm"
        )
    rows = content.get("baselines")
    if number != _FORMAT or not isinstance(rows, list) or not all(map(_is_simple_baseline, rows)):
        raise CellError(f"{path} is damaged", why="it holds no simple baselines", hint=f"rm {path}; it is made again")
    return [SimpleBaseline(**row) for row in rows]


def write_simple_baselines(study_folder: Path, baselines: Sequence[SimpleBaseline]) -> None:
    rows = [asdict(one) for one in baselines]
    write_json(Path(study_folder) / SIMPLE_BASELINE, {"format": _FORMAT, "baselines": rows})


def find_simple_baseline(data: Mapping[str, Any], baselines: Iterable[SimpleBaseline]) -> SimpleBaseline | None:
    """That of the data that a cell was trained and measured on, by the fingerprints in its record."""
    alike = (one for one in baselines if one.data == data.get("data"))
    return next((one for one in alike if one.tokenizer in (None, data.get("tokenizer"))), None)


def _is_simple_baseline(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and row.keys() == SimpleBaseline.__annotations__.keys()
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
