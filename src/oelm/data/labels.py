"""Labels of one's own data: names, whole numbers, or the numbers of a regression, as they are in the rows."""

import math
import re
from collections.abc import Collection
from pathlib import Path
from textwrap import shorten
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from oelm.data.sources import shown_row
from oelm.data.tasks import Task
from oelm.errors import DataError

_WHOLE = re.compile(r"\s*([+-]?\d+)(?:\.0*)?\s*")
_NUMBER = re.compile(r"\s*[+-]?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?\s*", re.IGNORECASE)


def convert_labels(values: pa.ChunkedArray, task: Task, *, path: Path, where: str) -> pa.Array:
    """A label for every row: a number of a regression, else a name. A whole number has one name, however it is written:
    1, 01 and 1.0 are all '1'."""
    is_regression = task.kind == "regression"
    if pa.types.is_dictionary(values.type):
        values = values.cast(values.type.value_type)
    kinds = [pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_floating]
    if not any(is_kind(values.type) for is_kind in [*kinds, *([] if is_regression else [pa.types.is_boolean])]):
        raise DataError(f"the column must hold labels, got {values.type}", where=where)
    encoded = pa.concat_arrays(values.chunks).dictionary_encode()
    known = encoded.dictionary.to_pylist()
    converted = [(_as_number if is_regression else _as_name)(value) for value in known]
    for number, value in enumerate(known):
        if converted[number] is None and not _is_missing(value):
            row = shown_row(path, pc.index(encoded.indices, number).as_py())
            if not is_regression:
                raise DataError(
                    f"label {value.strip()[:40]} ... in {row} is a number of {len(value.strip()):,} digits",
                    where=where,
                    hint="names or smaller numbers, or another column: data: {columns: {label: NAME}}",
                )
            raise DataError(
                f"label {shorten(repr(value), 80, placeholder=' ...')} in {row} is not a number",
                where=where,
                hint="numbers in all rows, or names with data: {task: classification}",
            )
    labels = pa.array(converted, pa.float64() if is_regression else pa.large_string()).take(encoded.indices)
    if labels.null_count:
        row = shown_row(path, labels.is_null().index(True).as_py())
        raise DataError(
            f"{labels.null_count} of {len(labels)} rows have no label, the first of them {row}",
            where=where,
            hint="label these rows, or remove them",
        )
    return labels


def name_classes(found: Collection[str], *, where: str) -> tuple[str, ...]:
    """The names of the classes, sorted; of numbers, by size."""
    if len(found) == 1:
        raise DataError(
            f"all training rows have the label {_list(found)}",
            where=where,
            hint="rows of at least two classes, or another column: data: {columns: {label: NAME}}",
        )
    numbers = [name for name in found if _NUMBER.fullmatch(name)]
    if numbers and len(numbers) < len(found):
        names = [name for name in found if name not in numbers]
        raise DataError(
            f"some labels are numbers ({_list(numbers)}), others are names ({_list(names)})",
            where=where,
            hint="one or the other in all rows",
        )
    if not all(_WHOLE.fullmatch(number) for number in numbers):
        raise DataError(
            f"the labels are numbers, and not all of them whole: {_list(numbers)}",
            where=where,
            hint="data: {task: regression}",
        )
    return tuple(sorted(numbers, key=int) if numbers else sorted(found))


def has_fractions(names: pa.Array) -> bool:
    """Whether the labels are numbers, and not all of them whole: then they are no classes."""
    found = pc.unique(names).to_pylist()
    return all(map(_NUMBER.fullmatch, found)) and not all(map(_WHOLE.fullmatch, found))


def check_spread(labels: pa.Array, *, where: str) -> None:
    """Refuse a regression with nothing to learn."""
    low, high = pc.min_max(labels).as_py().values()
    if low == high:
        raise DataError(f"all training rows have the label {low:g}", where=where, hint="rows with labels that differ")


def index_labels(names: pa.Array, task: Task, *, path: Path, where: str) -> pa.Array:
    """The index of every label among those that were found in the training rows."""
    numbers = pc.index_in(names, pa.array(task.labels, pa.large_string()))
    if numbers.null_count:
        number = numbers.is_null().index(True).as_py()
        raise DataError(
            f"label {shorten(repr(names[number].as_py()), 80, placeholder=' ...')} in {shown_row(path, number)} "
            "is in no training row",
            where=where,
            why=f"the labels of the training rows are {_list(task.labels)}",
            hint="training rows with this label, or a file without it; data.path names the files of each split",
        )
    return numbers.cast(pa.int64())


def _is_missing(value: Any) -> bool:
    return value is None or value != value or (isinstance(value, str) and not value.strip())


def _as_name(value: Any) -> str | None:
    """None if it is missing, or a whole number of more digits than Python converts."""
    if _is_missing(value):
        return None
    if isinstance(value, bool):
        return str(value).lower()
    whole = _WHOLE.fullmatch(str(value))
    try:
        return str(int(whole[1])) if whole else str(value)
    except ValueError:
        return None


def _as_number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _list(names: Collection[str]) -> str:
    return shorten(", ".join(map(repr, sorted(names))), 120, placeholder=" ...")
