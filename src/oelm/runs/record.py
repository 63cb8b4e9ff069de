"""Record: what a cell left behind, as data that needs no torch to be read."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, get_args

from oelm.errors import CellError
from oelm.runs.layout import RECORD, Status, read_json
from oelm.runs.lease import Lease

FORMAT = 1


@dataclass(frozen=True, kw_only=True)
class Record:
    """The content of `record.json`. Times are in seconds, memory in bytes."""

    status: Status
    spec: dict[str, Any]
    """Study, arm, seed, treatment, changes and the resolved recipe."""
    start: dict[str, Any]
    """SHA-256 of the weights before the treatment and of the batches that were seen; steps of the budget."""
    data: dict[str, Any]
    """Fingerprints of files and tokenizer, sizes of the splits."""
    counts: dict[str, Any]
    """Weights: total, trainable, frozen, Q/K."""
    evaluations: list[dict[str, Any]]
    """On the validation split, in the order of steps."""
    report: dict[str, Any]
    """`final` and `best`: the step of the model and its measurements on every reported split."""
    lr: list[list[float]]
    """[step, learning rate] as the optimizer had it, at most 200 of them."""
    seconds: dict[str, float]
    """training, evaluation, data, checkpoints."""
    peak_memory: dict[str, Any]
    audits: list[dict[str, Any]]
    """Step, whether it passed, findings."""
    provenance: dict[str, Any]
    """Versions, commit, machine, threads, seeds, and every start of the cell."""
    heads: dict[str, Any] = field(default_factory=dict)
    """`start` (after the treatment) and `final`: what `oelm.heads.attention.measure_heads` says of the model."""
    error: dict[str, Any] | None = None
    """Of a cell that is not `done`: what happened, and the traceback."""

    def value(self, metric: str, *, model: str = "final") -> float | None:
        """A measurement on the first reported split."""
        splits = self.report.get(model, {}).get("splits", {})
        first: dict[str, float] = next(iter(splits.values()), {})
        return first.get(metric)


def write_record(lease: Lease, record: Record) -> None:
    lease.write_json(RECORD, {"format": FORMAT, **record.__dict__})


def read_record(folder: Path) -> Record | None:
    """The record of a cell, or None if it has none yet."""
    path = Path(folder) / RECORD
    data = read_json(path)
    if data is None:
        return None
    number = data.pop("format", None)
    if not isinstance(number, int):
        raise CellError(f"{path} is damaged", why="it has no format number")
    if number > FORMAT:
        raise CellError(
            f"{path} has format {number}; this oelm reads up to {FORMAT}", hint="pip install --upgrade oelm"
        )
    data.setdefault("heads", {})  # the first records have none
    kinds: dict[str, Any] = {name: getattr(kind, "__origin__", kind) for name, kind in Record.__annotations__.items()}
    for name, kind in kinds.items():
        value = data.get(name)
        if name == "status":
            good = value in get_args(Status)
        elif name == "report":
            good = isinstance(value, dict) and all(map(_is_measured, value.values()))
        elif name == "error":
            good = value is None or (isinstance(value, dict) and "what" in value)
        elif name == "seconds":
            good = isinstance(value, dict) and all(map(_is_number, value.values()))
        elif name == "evaluations":
            good = isinstance(value, list) and all(map(_are_numbers, value))
        else:
            good = isinstance(value, kind)
        if not good:
            raise CellError(f"{path} is damaged", why=f"'{name}' is missing or of another kind")
    try:
        return Record(**data)
    except TypeError as error:
        raise CellError(f"{path} is damaged", why=str(error)) from error


def _is_measured(model: Any) -> bool:
    if not isinstance(model, dict) or not isinstance(model.get("step"), int):
        return False
    splits = model.get("splits")
    return isinstance(splits, dict) and all(map(_are_numbers, splits.values()))


def _are_numbers(metrics: Any) -> bool:
    return isinstance(metrics, dict) and all(map(_is_number, metrics.values()))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
