"""bench-shapes.json: ratios of step times over a grid of shapes. Reading it needs no torch."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple, dataclass
from typing import Annotated, Literal

from pydantic import Field

from oelm.facts import Count
from oelm.format import format_columns
from oelm.runs.bench import ArmTiming, StopReason, SystemLoad
from oelm.runs.bench_table import format_bounds, format_ratio, format_reached
from oelm.runs.files import FileType
from oelm.runs.provenance import Provenance
from oelm.study.cells import CellSpec

_Size = Annotated[int, Field(gt=0, le=10**9)]


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: _Size
    length: _Size
    """Tokens of a row."""
    batch: _Size
    """Rows of a pass."""

    @property
    def work(self) -> int:
        """What goes with its arithmetic, to put shapes in order."""
        return self.width**2 * self.length * self.batch

    def __str__(self) -> str:
        return f"width {self.width}, {self.length} tokens, batch {self.batch}"


@dataclass(frozen=True, kw_only=True)
class ShapeTiming:
    """The arms of a study, timed in one shape."""

    shape: Shape
    layers: Count
    rounds: Count
    stopped_by: StopReason
    arms: dict[str, ArmTiming]

    @property
    def compared(self) -> dict[str, ArmTiming]:
        """All but the baseline, which has no ratio."""
        return {name: arm for name, arm in self.arms.items() if arm.step is not None}

    def __str__(self) -> str:
        return "; ".join(f"{name} {format_ratio(arm.ratios['step'])}" for name, arm in self.compared.items())


@dataclass(frozen=True, kw_only=True)
class ExcludedShape:
    shape: Shape
    why: str


@dataclass(frozen=True, kw_only=True)
class Shapes:
    """Ratios of step times over a grid of shapes."""

    study: str
    against: str
    seed: int
    precision: float
    seconds: float
    """All of it took."""
    stopped: Literal["done", "interrupted"]
    points: tuple[ShapeTiming, ...]
    excluded: tuple[ExcludedShape, ...]
    spec: dict[str, CellSpec]
    """By arm: what all shapes were made from."""
    system: SystemLoad
    warnings: tuple[str, ...]
    provenance: Provenance

    def __post_init__(self) -> None:
        unknown = [name for point in self.points for name in point.arms if name not in self.spec]
        if unknown:
            raise ValueError(f"the spec of arm '{unknown[0]}' is missing")

    def __str__(self) -> str:
        header = ("width", "length", "batch", "arm", f"of {self.against}", "95 % interval", "at best")
        rows = [(*header, "of what can be saved", "rounds"), *self._rows()]
        shapes = "1 shape" if len(self.points) == 1 else f"{len(self.points)} shapes"
        ended = "" if self.stopped == "done" else "; it was interrupted, this is what was measured until then"
        lines = [
            f"{self.study}: {shapes} of {self.points[0].layers} layers in {self.seconds:.0f} s{ended}",
            "",
            *format_columns(rows, left=("arm", "95 % interval")),
        ]
        lines += [f"excluded: {one.shape}: {one.why}" for one in self.excluded]
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)

    def _rows(self) -> Iterator[tuple[str, ...]]:
        for point in self.points:
            for name, arm in point.compared.items():
                step = arm.ratios["step"]
                best = f"{1 - arm.ceiling:.4f}" if arm.ceiling is not None else ""
                ratio = (f"{step.median:.4f}", format_bounds(step), best, format_reached(arm))
                yield (*map(str, astuple(point.shape)), name, *ratio, str(point.rounds))


SHAPES_FILE = FileType("bench-shapes.json", Shapes, format=2, hint="measure again")
