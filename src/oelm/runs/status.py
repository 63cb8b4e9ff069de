"""Status: where a cell stands, from what is in its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from oelm.errors import CellError
from oelm.runs.cell_start import read_cell
from oelm.runs.layout import CELL, Status
from oelm.runs.lease import Holder, holder_of
from oelm.runs.record import Record, read_record
from oelm.runs.steps import read_last_steps

CellState = Status | Literal["queued", "damaged"]
"""`queued` is what a batch system knows of; `damaged` is a cell whose files cannot be read."""
_RECENT = 50  # steps that the time left is estimated from


@dataclass(frozen=True, kw_only=True)
class CellStatus:
    """A row of `oelm status`."""

    study: str
    cell: str
    where: str = ""
    """Host, and the job of a batch system."""
    state: CellState
    step: int = 0
    steps: int | None = None
    """Of the whole cell; not known before it has started."""
    eta: float | None = None
    """Seconds left, of a cell that runs."""
    loss: float | None = None
    """Of the last step."""
    result: str = ""
    """The compared metric on the validation split, or what went wrong."""
    device: str = ""
    """That it is trained on."""
    sealed: bool = False
    """Whether test numbers wait for other cells of its study."""

    def to_dict(self) -> dict[str, str | float | None]:
        return asdict(self)


def read_state(folder: Path) -> Status:
    """The state of a cell, in a word."""
    holder = holder_of(folder)  # first: who lets go of a cell has written its record
    return _state(folder, read_record(folder), holder)


def _state(folder: Path, record: Record | None, holder: Holder | None) -> Status:
    if record is not None:
        return record.status
    if holder is not None and holder.is_alive:
        return "running"
    return "stopped" if (folder / CELL).exists() else "pending"


def read_status(folder: Path, *, study: str, cell: str) -> CellStatus:
    """All that its folder says of a cell."""
    try:
        return _read_status(folder, study, cell)
    except CellError as error:
        return CellStatus(study=study, cell=cell, state="damaged", result=str(error).splitlines()[0])


def _read_status(folder: Path, study: str, cell: str) -> CellStatus:
    holder = holder_of(folder)  # first: who lets go of a cell has written its record
    record = read_record(folder)
    started = read_cell(folder) if record is None else None
    start = record.start if record is not None else started.start if started is not None else None
    state = _state(folder, record, holder)
    recent = read_last_steps(folder, _RECENT if state == "running" else 1)
    step = recent[-1].step if recent else 0
    steps = start.steps if start is not None else None
    eta = None
    if state == "running" and recent and steps:
        eta = max(0, steps - step) * sum(row.seconds for row in recent) / len(recent)
    host = record.provenance.host if record is not None else ""
    return CellStatus(
        study=study,
        cell=cell,
        where=holder.where if holder is not None else host,
        state=state,
        step=step,
        steps=steps,
        eta=eta,
        loss=recent[-1].loss if recent else None,
        result=_result(record),
        device=start.device if start is not None else "",
    )


def _result(record: Record | None) -> str:
    if record is None:
        return ""
    metric = record.spec.compare.metric
    value = record.last_evaluation.get(metric) if record.status == "done" else None
    if value is not None:  # a test split is for the report of the whole study
        return f"validation {metric} {value:.4f}"
    return record.error.first_line[:100] if record.error is not None else ""
