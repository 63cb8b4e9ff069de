"""Cost: what the cells of a study ask of a cluster, by arithmetic. What goes in is measured or assumed elsewhere.

Cells that are started together do the same things at the same time. Then each of their phases takes as long as it takes
one of them alone, or as long as what they share is busy with all of them, whichever is longer. At best they are out of
step, and wait only for what is busy all the time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

_FLOAT = 4  # bytes: weights, gradients and the optimiser's state are float32, whatever the arithmetic is in
_MOMENTS = 2  # that Adam keeps of every weight that learns
_FORWARD = 1 / 3  # of a step


@dataclass(frozen=True, kw_only=True)
class Weights:
    """How many weights there are, and how many of them learn."""

    total: int
    learning: int


@dataclass(frozen=True, kw_only=True)
class Load:
    """What one cell does, wherever it runs."""

    steps: int
    passes: float
    """Batches that are only evaluated."""
    checkpoints: int
    model: Weights
    files: int
    """Opened until the first step, nearly all of them Python's."""
    read: int
    """Bytes of model and data."""
    keeps_model: bool = True
    """At the end: `checkpoint.keep` of a recipe."""

    @property
    def checkpoint(self) -> int:
        """Bytes of a checkpoint: weights, what Adam keeps, and the weights of the best model so far."""
        return _FLOAT * (2 * self.model.total + _MOMENTS * self.model.learning)

    @property
    def written(self) -> int:
        """Bytes from start to end, at most: as if the model had been better at every measurement."""
        return self.checkpoints * self.checkpoint + _FLOAT * self.model.total * self.keeps_model


@dataclass(frozen=True, kw_only=True)
class Site:
    """Where cells run: what a cell finds there alone, and what all of them have together."""

    step_seconds: float
    queue_seconds: float
    """From a GPU that is free to a process on it."""
    start_seconds: float
    """From the start of a process to its first step, with nobody else there."""
    read_speed: float
    """Bytes a second, of one cell."""
    write_speed: float
    """Bytes of a checkpoint a second, of one cell: with checksums, and until they are on the disk."""
    starts: float
    """Processes a second that the queue starts."""
    opens: float
    """Files a second that the shared file system opens."""
    bandwidth: float
    """Bytes a second that the shared file system reads or writes."""


@dataclass(frozen=True, kw_only=True)
class Phase:
    """A part of a cell's life."""

    alone: float
    """Seconds, of one cell."""
    shared: float = 0.0
    """Seconds for which one cell keeps busy what all of them share."""

    def seconds(self, at_once: int) -> float:
        return max(self.alone, at_once * self.shared)

    @property
    def saturates_at(self) -> float:
        """Cells at once from which on they wait for each other."""
        return self.alone / self.shared if self.shared else math.inf


def phases(load: Load, site: Site) -> dict[str, Phase]:
    """The life of a cell, in order."""
    return {
        "queue": Phase(alone=site.queue_seconds, shared=1 / site.starts),
        "start": Phase(alone=site.start_seconds, shared=load.files / site.opens),
        "read": Phase(alone=load.read / site.read_speed, shared=load.read / site.bandwidth),
        "train": Phase(alone=load.steps * site.step_seconds),
        "evaluate": Phase(alone=load.passes * site.step_seconds * _FORWARD),
        "save": Phase(alone=load.written / site.write_speed, shared=load.written / site.bandwidth),
    }


def wave_seconds(load: Load, site: Site, at_once: int, *, in_step: bool = True) -> float:
    """Of so many cells that are started together."""
    life = phases(load, site).values()
    if in_step:
        return sum(phase.seconds(at_once) for phase in life)
    return max(sum(phase.alone for phase in life), at_once * max(phase.shared for phase in life))


def study_seconds(load: Load, site: Site, *, stages: Sequence[int], gpus: int, in_step: bool = True) -> float:
    """Of a study, in waves of a cell on every GPU.

    `stages` are numbers of cells, each of which waits for the one before: those of the tuning, and all others.
    """
    waves = [number for cells in stages for number in (*[gpus] * (cells // gpus), cells % gpus) if number]
    return sum(wave_seconds(load, site, number, in_step=in_step) for number in waves)


@dataclass(frozen=True, kw_only=True)
class Share:
    """Bytes on each of the GPUs that hold a model together (FSDP), without activations."""

    parameters: float
    gradients: float
    optimizer: float
    gathered: float
    """For a moment: weights and gradients of the layers at work, which every GPU then has whole."""

    @property
    def kept(self) -> float:
        """What is there all the time."""
        return self.parameters + self.gradients + self.optimizer


def share_of(model: Weights, *, gpus: int, at_work: Weights, bf16: bool = False) -> Share:
    """What each GPU holds of a model under Adam.

    `at_work` are the weights that are gathered at once, which are in bf16 where the arithmetic is.
    """
    return Share(
        parameters=_FLOAT * model.total / gpus,
        gradients=_FLOAT * model.learning / gpus,
        optimizer=_MOMENTS * _FLOAT * model.learning / gpus,
        gathered=(_FLOAT / 2 if bf16 else _FLOAT) * (at_work.total + at_work.learning) if gpus > 1 else 0.0,
    )
