"""bench.json: step times of the arms of a study, measured in turns, and what a step needs of memory.

A ratio is an arm's step time over another's: 0.95 is five percent faster. Times are in seconds, memory in bytes.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from oelm.facts import Count
from oelm.runs.files import FileType
from oelm.runs.layout import BENCH
from oelm.runs.provenance import Provenance
from oelm.study.cells import CellSpec

PARTS = ("forward", "backward", "optimizer")
"""Of a step."""
OF_A_STEP = ("model", "data", "batch", "max_grad_norm", "precision", "compile", "gradient_checkpointing")
"""Parts of a recipe that a step's time depends on."""
LEVEL = 0.95
"""Of all intervals."""
_LARGEST = 1e9  # no time, number of rounds or ratio of ours is larger

StopReason = Literal["precision", "budget", "interrupted"]
_Positive = Annotated[float, Field(gt=0, le=_LARGEST)]
_NonNegative = Annotated[float, Field(ge=0, le=_LARGEST)]
_Saved = Annotated[float, Field(ge=-_LARGEST, lt=1)]
_Range = tuple[_NonNegative, _NonNegative]


@dataclass(frozen=True, kw_only=True)
class Ratio:
    """An arm's time over another's, from rounds in which both had their turns."""

    median: _Positive
    """Of the ratios of the rounds."""
    low: _NonNegative
    """Lower end of the 95 % interval."""
    high: _Positive | None
    """Upper end; None with fewer than 6 rounds, which cannot say, and `low` is 0 then."""
    trimmed: _Positive
    """Mean of the ratios of the rounds, without the lowest and the highest fifth."""
    floor: _Positive
    """Ratio of the quiet steps: of the 5th percentiles of all step times."""
    rounds: Annotated[int, Field(gt=0, le=_LARGEST)]
    """How many there were."""
    block_length: Annotated[float, Field(ge=1, le=_LARGEST)]
    """How many rounds in a row the bootstrap kept together on average; 1 if one round says nothing about the next."""

    def __post_init__(self) -> None:
        if self.low > self.median or (self.high is not None and self.median > self.high):
            raise ValueError("the median is not inside its own interval")

    @property
    def bounds(self) -> tuple[float, float] | None:
        """(low, high), or None if there is no interval."""
        return None if self.high is None or self.low < 1 / _LARGEST else (self.low, self.high)

    @property
    def half_width(self) -> float | None:
        return None if self.high is None else (self.high - self.low) / 2

    @property
    def verdict(self) -> Literal["faster", "slower", "inconclusive"]:
        if self.high is not None and self.high < 1:
            return "faster"
        return "slower" if self.low > 1 else "inconclusive"


@dataclass(frozen=True, kw_only=True)
class StepMemory:
    """Bytes of a training step, by what they are for."""

    parameters: Count
    """Weights, frozen or not."""
    gradients: Count
    """Of weights that learn."""
    optimizer: Count
    """What it keeps of weights that learn."""
    activations: Count | None = None
    """All the rest at the peak, where it was measured."""

    @property
    def learning(self) -> int:
        """What only weights that learn need: 12 bytes for each in float32 under Adam."""
        return self.gradients + self.optimizer


@dataclass(frozen=True, kw_only=True)
class CheckpointBytes:
    weights: Count
    """Tied ones once."""
    optimizer: Count
    """Its state."""

    @property
    def total(self) -> int:
        return self.weights + self.optimizer


@dataclass(frozen=True, kw_only=True)
class MeasuredMemory(StepMemory):
    """Of some steps of an arm in a process of its own."""

    device: str
    """The peak is that of the process on a `cpu`, and of tensors on a GPU."""
    steps: Count
    """That were trained for it."""
    before: Count
    """Peak before the first step."""
    peak: Count
    """After the last step."""
    theory: StepMemory | None
    """By arithmetic; None with an optimizer whose state is not known."""
    checkpoint: CheckpointBytes
    """What a checkpoint would hold."""


@dataclass(frozen=True, kw_only=True)
class ArmTiming:
    """One arm in units of the one it is compared with."""

    step_seconds: _Positive
    """Median of a whole step."""
    outliers: Count
    """Steps of more than 3 times the median; they are counted, and stay in."""
    ratios: dict[str, Ratio]
    """`step`, `forward`, `backward` and `optimizer`; none for the arm that is compared with."""
    ceiling: _Saved | None = None
    """The largest share of a step's arithmetic that freezing can spare."""
    at_most: _Saved | None = None
    """The same with the optimizer as it was measured, and attention for free: more cannot be freezing's."""
    memory: MeasuredMemory | None = None
    """In a process of its own; None if it was not measured."""

    @property
    def step(self) -> Ratio | None:
        return self.ratios.get("step")

    @property
    def saving(self) -> float | None:
        return 1 - self.step.median if self.step is not None else None

    @property
    def reached(self) -> float | None:
        """The share of the ceiling that was saved."""
        return self.saving / self.ceiling if self.saving is not None and self.ceiling else None

    @property
    def above_ceiling(self) -> bool:
        """Whether it is certainly faster than freezing can make it: then something else was timed."""
        high = self.step.high if self.step is not None else None
        return high is not None and self.at_most is not None and high < 1 - self.at_most


@dataclass(frozen=True, kw_only=True)
class PairTiming:
    """Whole steps of one treated arm in units of another's, from the same rounds."""

    arm: str
    """Whose steps."""
    against: str
    """In units of whose."""
    ratio: Ratio
    """Of whole steps."""


@dataclass(frozen=True, kw_only=True)
class SystemLoad:
    """The threads and cores of the bench, and what else the machine did, from the lowest to the highest."""

    threads: Count
    """Of torch, inside of one operation."""
    interop_threads: Count
    """Of torch, for operations side by side."""
    affinity: tuple[Count, ...] | None
    """The cores that it may use, where the system tells."""
    cores: Count
    """How many these are."""
    others: _NonNegative | None
    """Cores that other processes used on average, as a share of these."""
    load: _Range | None
    """Load average of the last minute."""
    gpu_clock: _Range | None
    """MHz"""
    gpu_temperature: _Range | None
    """degrees Celsius"""


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Step times of the arms of a study, measured in turns."""

    study: str
    """Name of the study."""
    against: str
    """The arm that the others are compared with."""
    seed: int
    """Of the order of turns."""
    precision: _Positive
    """Half-width of the interval that was asked for."""
    stopped_by: StopReason
    """What ended it."""
    rounds: Count
    """In each, every arm has two turns."""
    steps: Count
    """Of a block; every arm has two blocks in a round."""
    seconds: _NonNegative
    """All of it took."""
    batch: Count
    """Rows of a pass."""
    length: _NonNegative
    """Mean tokens of a row, padding with it."""
    device: str
    """What it was measured on, with its name."""
    isolated: str | None
    """Why every block of steps was a process of its own; None if all arms were in one."""
    arms: dict[str, ArmTiming]
    """By name."""
    pairs: tuple[PairTiming, ...]
    """Treated arms that a hypothesis of the study compares with each other."""
    spec: dict[str, CellSpec]
    """By arm."""
    system: SystemLoad
    """What else the machine did meanwhile."""
    warnings: tuple[str, ...]
    """What speaks against the figures, in words."""
    provenance: Provenance
    """Of the process that measured."""

    def __post_init__(self) -> None:
        if self.against not in self.arms:
            raise ValueError(f"there is no arm '{self.against}', which the others are compared with")
        for name, arm in self.arms.items():
            if name not in self.spec:
                raise ValueError(f"the spec of arm '{name}' is missing")
            if name != self.against and arm.step is None:
                raise ValueError(f"arm '{name}' has no ratio of whole steps")

    def restricted(self, arms: Iterable[str]) -> Bench | None:
        """Of these arms alone; None if the one that is compared with is not among them, or is all there is."""
        kept = {name: arm for name, arm in self.arms.items() if name in set(arms)}
        pairs = tuple(pair for pair in self.pairs if {pair.arm, pair.against} <= set(kept))
        return replace(self, arms=kept, pairs=pairs) if self.against in kept and len(kept) > 1 else None

    def __str__(self) -> str:
        from oelm.runs.bench_table import format_bench

        return format_bench(self)


BENCH_FILE = FileType(BENCH, Bench, format=3, hint="oelm bench makes it anew", has_checksum=True)


def read_bench(study_folder: Path) -> Bench | None:
    """What was measured of a study; None if nothing was."""
    return BENCH_FILE.read(study_folder)
