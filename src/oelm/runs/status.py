"""Standing: where a cell stands, from what is in its folder."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from oelm.errors import CellError
from oelm.runs.layout import CELL_SPEC, RECORD, STEPS, Status, read_json
from oelm.runs.lease import holder_of
from oelm.runs.record import read_record

CellState = Status | Literal["queued", "damaged"]
"""`queued` is what a batch system knows of; `damaged` is a cell whose files cannot be read."""
_RECENT = 50  # steps that the time left is estimated from
_LINE = 400  # bytes of a step at most


@dataclass(frozen=True, kw_only=True)
class CellStatus:
    """A row of `oelm status`."""

    study: str
    cell: str
    where: str
    """Host, and the job of a batch system."""
    state: CellState
    step: int
    steps: int | None
    """Of the whole cell; not known before it has started."""
    eta: float | None
    """Seconds left, of a cell that runs."""
    loss: float | None
    """Of the last step."""
    result: str
    """The compared metric, or what went wrong."""
    device: str = ""
    """That it is trained on."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def read_state(folder: Path) -> Status:
    """Where a cell stands, in a word."""
    record = read_json(folder / RECORD)
    if record is not None:
        status: Any = record.get("status")
        if status not in get_args(Status):
            raise CellError(f"{folder / RECORD} is damaged", why=f"its status is {status!r}")
        return status  # type: ignore[no-any-return]
    if not (folder / CELL_SPEC).exists():
        return "pending"
    holder = holder_of(folder)
    return "running" if holder is not None and holder.is_alive else "stopped"


def read_status(folder: Path, *, study: str, cell: str) -> CellStatus:
    """All that its folder says of a cell."""
    try:
        return _standing(folder, study, cell)
    except (CellError, AttributeError, TypeError, ValueError) as error:
        why = str(error).splitlines()[0]
        return CellStatus(
            study=study, cell=cell, where="", state="damaged", step=0, steps=None, eta=None, loss=None, result=why
        )


def _standing(folder: Path, study: str, cell: str) -> CellStatus:
    content = read_json(folder / CELL_SPEC) or {}
    record, holder = read_record(folder), holder_of(folder)
    state: CellState = read_state(folder)
    if state == "pending" and holder is not None and holder.is_alive:
        state = "running"  # it prepares its data
    rows = last_steps(folder)
    step = int(rows[-1]["step"]) if rows else 0
    steps = (content.get("start") or {}).get("steps")
    left = None
    if state == "running" and rows and steps:
        left = (steps - step) * sum(float(row["seconds"]) for row in rows) / len(rows)
    where = str((record.provenance if record is not None else {}).get("host") or "")
    if holder is not None:
        where = holder.host + (f" job {holder.job}" if holder.job else "")
    return CellStatus(
        study=study,
        cell=cell,
        where=where,
        state=state,
        step=step,
        steps=steps,
        eta=left,
        loss=float(rows[-1]["loss"]) if rows else None,
        result=_result(record, content),
        device=str((content.get("start") or {}).get("device") or ""),
    )


def _result(record: Any, content: dict[str, Any]) -> str:
    if record is None:
        return ""
    metric = str((content.get("compare") or {}).get("metric"))
    value = record.value(metric)
    if value is not None:
        return f"{metric} {value:.4f}"
    lines = str((record.error or {}).get("what", "")).splitlines()
    return lines[0][:100] if lines else ""


def last_steps(folder: Path) -> list[dict[str, Any]]:
    """The last steps of a cell that were written whole, oldest first."""
    try:
        with (folder / STEPS).open("rb") as file:
            end = file.seek(0, 2)
            file.seek(max(0, end - _RECENT * _LINE))
            lines = file.read().splitlines()[-_RECENT:]
    except OSError:
        return []
    rows = []
    for line in lines:
        try:
            row = json.loads(line)
        except ValueError:  # cut at its beginning, or not written to its end yet
            continue
        if isinstance(row, dict) and {"step", "loss", "seconds"} <= row.keys():
            rows.append(row)
    return rows
