"""cell.json: what a cell is made with, and what was found when it was started. Written before its first step."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from oelm.facts import AttentionMap, AttentionStats, Count, Share, TaskFacts
from oelm.runs.files import FileType
from oelm.runs.layout import CELL
from oelm.study.cells import CellSpec


@dataclass(frozen=True, kw_only=True)
class Origin:
    """The cell of another study whose model a cell starts from."""

    spec: CellSpec
    """What it was made with: its study, arm, seed, treatment and recipe."""
    lock: str
    """SHA-256 of the lock under which it was started."""
    record: str
    """SHA-256 of its `record.json`."""
    weights: str
    """SHA-256 of its files of weights."""
    kept: str
    """Which model it kept: `best` or `final`."""
    steps: Count
    """Optimizer steps of its budget."""
    data: str
    """Fingerprint of its data."""
    tokenizer: str
    """Fingerprint of its tokenizer, which is also the one of the cell that starts from it."""
    validation: dict[str, float]
    """Its metrics on its validation split at its last measured step."""
    tuned: tuple[str, ...]
    """Settings that its study tuned, by path: its arms may differ in them."""


@dataclass(frozen=True, kw_only=True)
class CellStart:
    """What is known of a cell before its first step."""

    lock: str
    """SHA-256 of the lock (`lock.json`) under which it was started."""
    data: TaskFacts
    """What it is trained and measured on."""
    weights: str
    """SHA-256 of all weights before adapter and treatment."""
    new_weights: tuple[str, ...]
    """Of a pretrained model: those that are not in its files, and are drawn from the seed: a new task head."""
    dropped_weights: tuple[str, ...]
    """Of a pretrained model: those in its files that the task has no use for: another task head."""
    steps: Count
    """Optimizer steps of the budget."""
    padding: Share
    """Share of positions that hold no token, in the first batches."""
    device: str
    """What it is trained on: `cuda (NVIDIA A100)`, `cpu (2 threads)`."""
    heads: AttentionStats
    """After the treatment."""
    untreated: tuple[AttentionMap, ...] = ()
    """What the heads of its `maps` attended to before it."""
    origin: Origin | None = None
    """Of a cell that starts from the model of another study: where that is from."""
    hub: dict[Literal["model", "tokenizer"], str] = field(default_factory=dict)
    """Those of the hub: `owner/name@commit`, as it was resolved when they were loaded."""


@dataclass(frozen=True, kw_only=True)
class StartedCell:
    spec: CellSpec
    """What it is made with; a study that has changed does not mix with it, and says what changed."""
    start: CellStart
    """What was found before its first step."""


CELL_FILE = FileType(CELL, StartedCell, format=7, has_checksum=True)


def read_cell(folder: Path) -> StartedCell | None:
    """What a cell was started with; None if it was not started yet."""
    return CELL_FILE.read(folder)
