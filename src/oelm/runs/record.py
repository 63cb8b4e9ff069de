"""record.json: what a cell left behind when it came to an end."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from oelm.facts import Amount, AttentionStats, Count, Counts, TaskFacts
from oelm.metrics import check_ranges
from oelm.runs.cell_start import CellStart
from oelm.runs.files import FileDigest, FileType
from oelm.runs.layout import RECORD, Status
from oelm.runs.lease import Lease
from oelm.runs.provenance import GitState, PeakMemory, Provenance
from oelm.study.cells import CellSpec
from oelm.treatment import Role

Which = Literal["final", "best"]
"""The model after the last step, or the best one on the validation split."""
LrTrace = tuple[tuple[Count, Amount], ...]


@dataclass(frozen=True, kw_only=True)
class ValidationScore:
    """A measurement on the validation split."""

    step: Count
    """After which it was measured."""
    metrics: dict[str, float]
    """By name."""

    def __post_init__(self) -> None:
        check_ranges(self.metrics)


@dataclass(frozen=True, kw_only=True)
class ModelScores:
    """A model on the test splits."""

    step: Count
    """After which it is what it is."""
    splits: dict[str, dict[str, float]]
    """By test split and metric."""

    def __post_init__(self) -> None:
        for metrics in self.splits.values():
            check_ranges(metrics)


@dataclass(frozen=True, kw_only=True)
class AuditOutcome:
    step: Count
    """After which it was audited."""
    passed: bool
    """Whether all promises of the treatment hold."""
    findings: tuple[str, ...]
    """What does not hold, in words."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """One start of a cell, from its beginning or from a checkpoint."""

    step: Count
    """It went on from here."""
    time: str
    """Of the start."""
    host: str
    """Name of the machine."""
    device: str | None
    """`cuda` or `cpu`."""
    threads: int | None
    """Of torch."""
    processes: Count
    """How many trained it together."""
    versions: dict[str, str | None]
    """By package."""
    oelm: str
    """Its version."""
    code: GitState | None
    """Of oelm's own source, where it is a working copy: the commit that changed it last."""
    python: str
    """Its version."""


@dataclass(frozen=True, kw_only=True)
class ProcessStats:
    """The processes that trained a cell together."""

    number: Count
    """How many."""
    parallel: Literal["ddp", "fsdp"] | None = None
    """None of a single one."""
    reduced_bytes: Count | None = None
    """With ddp: gradients that are added up over the processes in a step."""
    spared_bytes: Count | None = None
    """With ddp: what frozen weights would add to that."""
    held_bytes: dict[str, Count] | None = None
    """With fsdp: weights, gradients and optimizer state that one process keeps."""
    whole_bytes: dict[str, Count] | None = None
    """With fsdp: the same of a process alone."""


@dataclass(frozen=True, kw_only=True)
class Failure:
    """Why a cell is not `done`."""

    what: str
    """The error, in words."""
    traceback: str | None
    """Where it happened; none of a loss that is not finite."""

    @property
    def first_line(self) -> str:
        return next(iter(self.what.splitlines()), "")


@dataclass(frozen=True, kw_only=True)
class Record:
    """Times are in seconds, memory in bytes."""

    status: Status
    """How it ended."""
    spec: CellSpec
    """What it was made with."""
    start: CellStart | None
    """None of a cell that failed before its first step."""
    batches: str | None
    """SHA-256 chained over the examples of every step."""
    counts: Counts | None
    """Weights of the model; None of a cell that failed before it had one."""
    evaluations: tuple[ValidationScore, ...]
    """In the order of steps."""
    test: dict[Which, ModelScores]
    """Empty unless the cell is `done`."""
    lr: LrTrace
    """(step, learning rate) as the optimizer had it, at most 200 of them."""
    seconds: dict[str, Amount]
    """training, evaluation, data, checkpoints."""
    peak_memory: PeakMemory
    """Over all its starts."""
    audits: tuple[AuditOutcome, ...]
    """At the start and at every checkpoint."""
    provenance: Provenance
    """Of the process that came to the end."""
    launches: tuple[Launch, ...]
    """Every start of the cell, the first one first."""
    processes: ProcessStats | None
    """Those that trained it; None of a cell that failed before."""
    heads: AttentionStats | None
    """Of the final model."""
    files: dict[str, FileDigest]
    """`steps.jsonl` and `predictions.parquet` as they were at its end."""
    error: Failure | None = None
    """Of a cell that is not `done`."""

    def __post_init__(self) -> None:
        metric = self.spec.compare.metric
        for scores in self.test.values() if self.status == "done" else ():
            for name, metrics in scores.splits.items():
                if not math.isfinite(metrics.get(metric, 0)):
                    raise ValueError(f"{metric} on {name} is {metrics[metric]}")

    def value(self, metric: str, *, model: Which = "final", split: str | None = None) -> float | None:
        """A measurement on the first test split, or another."""
        return self.scores(model, split=split).get(metric)

    def scores(self, model: Which = "final", *, split: str | None = None) -> dict[str, float]:
        """All measurements on the first test split, or another."""
        splits = self.test[model].splits if model in self.test else {}
        return next(iter(splits.values()), {}) if split is None else splits.get(split, {})

    def kl(self, moment: Literal["start", "final"]) -> float | None:
        """How far its attention is from that of the untreated model, after the treatment or after the training."""
        heads = self.heads if moment == "final" else self.start.heads if self.start is not None else None
        return heads.mean_kl if heads is not None else None

    @property
    def first_split(self) -> str | None:
        """The test split that is compared."""
        final = self.test.get("final")
        return next(iter(final.splits), None) if final is not None else None

    @property
    def num_test_examples(self) -> int:
        """Of the split that is compared; 0 if that is not known."""
        return self.data.sizes.get(f"test-{self.first_split}", 0) if self.data is not None else 0

    @property
    def data(self) -> TaskFacts | None:
        return self.start.data if self.start is not None else None

    @property
    def frozen_roles(self) -> tuple[Role, ...]:
        """Which of queries and keys are frozen, by its treatment or since the study that it starts from."""
        origin = self.start.origin if self.start is not None else None
        if origin is None or self.spec.recipe.model.freeze == "none":
            return self.spec.treatment.frozen_roles
        return self.spec.treatment.frozen_roles or origin.spec.treatment.frozen_roles

    @property
    def steps(self) -> int | None:
        """Of the budget."""
        return self.start.steps if self.start is not None else None

    @property
    def last_evaluation(self) -> dict[str, float]:
        """Metrics on the validation split at the last measured step."""
        return self.evaluations[-1].metrics if self.evaluations else {}


RECORD_FILE = FileType(RECORD, Record, format=7, has_checksum=True)


def write_record(lease: Lease, record: Record) -> None:
    lease.write(RECORD_FILE, record)


def read_record(folder: str | Path) -> Record | None:
    """The record of a cell, or None if it has none yet."""
    return RECORD_FILE.read(Path(folder))
