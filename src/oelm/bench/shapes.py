"""Shapes: how the ratio of two arms depends on the size of the model and of its batches, as data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from oelm.analysis.timed import FORMAT, SHAPES
from oelm.bench.ratios import FEWEST
from oelm.bench.surroundings import MUCH
from oelm.bench.timing import ArmTiming, Stop, finite, interval_shown, reached_shown
from oelm.records.store import write_json, writing
from oelm.table import aligned


@dataclass(frozen=True, kw_only=True)
class Shape:
    width: int
    length: int
    """Tokens of a row."""
    batch: int
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
    layers: int
    rounds: int
    stopped_by: Stop
    arms: dict[str, ArmTiming]

    def to_dicts(self) -> Iterator[dict[str, Any]]:
        """One for each arm that is compared."""
        for name, arm in self.arms.items():
            if arm.ratios:
                yield {
                    **asdict(self.shape),
                    "layers": self.layers,
                    "arm": name,
                    "ratio": asdict(arm.ratios["step"]),
                    "ceiling": arm.ceiling,
                    "at_most": arm.at_most,
                    "rounds": self.rounds,
                    "stopped_by": self.stopped_by,
                    "step_seconds": {each: timing.step_seconds for each, timing in self.arms.items()},
                }

    def __str__(self) -> str:
        steps = {name: arm.ratios["step"] for name, arm in self.arms.items() if arm.ratios}
        return "; ".join(f"{name} {step.median:.4f} ({interval_shown(step)})" for name, step in steps.items())


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
    left_out: tuple[tuple[Shape, str], ...]
    """With the reason."""
    made_with: dict[str, dict[str, Any]]
    """By arm, as in the record of a cell: what all shapes were made from."""
    surroundings: dict[str, Any]
    provenance: dict[str, Any]

    @property
    def interrupted(self) -> bool:
        return self.stopped == "interrupted"

    @property
    def warnings(self) -> list[str]:
        share = self.surroundings["others"]
        found = [] if share is None or share <= MUCH else [f"other processes used {share:.0%} of the cores meanwhile"]
        few = sum(point.rounds < FEWEST for point in self.points)
        if few:
            found.append(f"{few} of {len(self.points)} shapes have fewer than {FEWEST} rounds, too few: --budget")
        for point in self.points:
            found += [
                f"SPEEDUP-ABOVE-CEILING: {point.shape}: {name} is {arm.saving:.1%} faster, and freezing can save "
                f"{arm.at_most:.1%} at most: something else was timed"
                for name, arm in point.arms.items()
                if arm.above_ceiling
            ]
        return found

    def to_dict(self) -> dict[str, Any]:
        data = {
            "format": FORMAT,
            "study": self.study,
            "against": self.against,
            "seed": self.seed,
            "precision": self.precision,
            "seconds": self.seconds,
            "stopped": self.stopped,
            "points": [one for point in self.points for one in point.to_dicts()],
            "left_out": [{**asdict(shape), "why": why} for shape, why in self.left_out],
            "made_with": self.made_with,
            "surroundings": self.surroundings,
            "warnings": self.warnings,
            "provenance": self.provenance,
        }
        return finite(data)  # type: ignore[no-any-return]

    def save(self, folder: Path) -> Path:
        """Beside the records of the study."""
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        write_json(folder / SHAPES, self.to_dict())
        return folder / SHAPES

    def __str__(self) -> str:
        header = ("width", "length", "batch", "arm", f"of {self.against}", "95 % interval", "at best")
        rows: list[tuple[str, ...]] = [(*header, "of what can be saved", "rounds")]
        for point in self.points:
            sizes = tuple(map(str, asdict(point.shape).values()))
            for name, arm in point.arms.items():
                if arm.ratios:
                    step = arm.ratios["step"]
                    best = f"{1 - arm.ceiling:.4f}" if arm.ceiling is not None else ""
                    told = (f"{step.median:.4f}", interval_shown(step), best, reached_shown(arm), str(point.rounds))
                    rows.append((*sizes, name, *told))
        shapes = "1 shape" if len(self.points) == 1 else f"{len(self.points)} shapes"
        ended = "" if self.stopped == "done" else "; it was interrupted, this is what was measured until then"
        lines = [
            f"{self.study}: {shapes} of {self.points[0].layers} layers in {self.seconds:.0f} s{ended}",
            "",
            *aligned(rows, left=("arm", "95 % interval")),
        ]
        lines += [f"left out: {shape}: {why}" for shape, why in self.left_out]
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)
