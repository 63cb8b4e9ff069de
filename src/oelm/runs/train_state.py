"""state.json: what a cell has been through so far. It lies in every checkpoint, beside the tensors."""

from __future__ import annotations

from dataclasses import dataclass, field

from oelm.facts import Amount, Count
from oelm.runs.files import FileType
from oelm.runs.record import AuditOutcome, Launch, ValidationScore


@dataclass(frozen=True, kw_only=True)
class BestScore:
    """The best evaluation so far."""

    step: Count
    """After which it was measured."""
    value: float
    """Of the compared metric."""


@dataclass(frozen=True, kw_only=True)
class TrainState:
    """The history of a cell up to a step; its record is made of it."""

    step: Count = 0
    """Steps that are done."""
    batches: str = ""
    """SHA-256 chained over the examples of every step."""
    evaluations: tuple[ValidationScore, ...] = ()
    """On the validation split, in the order of steps."""
    best: BestScore | None = None
    """None before the first evaluation."""
    audits: tuple[AuditOutcome, ...] = ()
    """In the order of steps."""
    seconds: dict[str, Amount] = field(default_factory=dict)
    """By phase."""
    launches: tuple[Launch, ...] = ()
    """Every start so far."""


@dataclass(frozen=True, kw_only=True)
class CheckpointState:
    """All of a checkpoint but its tensors."""

    train: TrainState
    """The history of the cell so far."""
    frozen: dict[str, str]
    """SHA-256 of every frozen slice of weights."""
    scaler: dict[str, int | float] | None
    """Of the gradients in fp16."""
    groups: tuple[dict[str, int | float], ...]
    """Numbers in the parameter groups of the optimizer: some keep what they have learned there."""
    tensors: dict[str, str]
    """SHA-256 of every safetensors file beside it, by name."""


STATE_FILE = FileType("state.json", CheckpointState, format=4, has_checksum=True)
