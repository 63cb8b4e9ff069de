"""Timing: what a bench found, as data that needs no torch to be read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from oelm.analysis.stats.step_times import _FORMAT, BENCH, PARTS
from oelm.bench.ratios import Ratio
from oelm.format import finite_or_none, format_columns, format_interval
from oelm.runs.layout import write_json

StopReason = Literal["precision", "budget", "interrupted"]


@dataclass(frozen=True, kw_only=True)
class ArmTiming:
    """One arm in units of the one it is compared with. Times are in seconds, memory in bytes."""

    step_seconds: float
    """Median of a whole step."""
    outliers: int
    """Steps of more than 3 times the median; they are counted, and stay in."""
    ratios: dict[str, Ratio]
    """`step`, `forward`, `backward` and `optimizer`; none for the arm that is compared with."""
    ceiling: float | None = None
    """The largest share of a step's arithmetic that freezing can spare."""
    at_most: float | None = None
    """The same with the optimizer as it was measured, and attention for free: more cannot be freezing's."""
    memory: dict[str, Any] = field(default_factory=dict)

    @property
    def saving(self) -> float | None:
        return 1 - self.ratios["step"].median if self.ratios else None

    @property
    def above_ceiling(self) -> bool:
        """Whether it is certainly faster than freezing can make it: then something else was timed."""
        return bool(self.ratios) and self.at_most is not None and self.ratios["step"].high < 1 - self.at_most


@dataclass(frozen=True, kw_only=True)
class PairTiming:
    """Whole steps of one treated arm in units of another's, from the same rounds."""

    arm: str
    against: str
    ratio: Ratio

    def __str__(self) -> str:
        shown = f"{self.ratio.median:.4f} ({format_ratio_interval(self.ratio)}), {_verdict(self.ratio)}"
        return f"{self.arm} in units of {self.against}: {shown}"


@dataclass(frozen=True, kw_only=True)
class Bench:
    """Step times of the arms of a study, measured in turns."""

    study: str
    against: str
    seed: int
    precision: float
    """Half-width of the interval that was asked for."""
    stopped_by: StopReason
    rounds: int
    steps: int
    """Of a visit; every arm is visited twice in a round."""
    seconds: float
    """All of it took."""
    batch: int
    length: float
    """Mean tokens of a row, padding with it."""
    device: str
    """What it was measured on, with its name."""
    apart: str | None
    """Why every visit was a process of its own; None if all arms were in one."""
    arms: dict[str, ArmTiming]
    pairs: tuple[PairTiming, ...]
    """Treated arms that a hypothesis of the study compares with each other."""
    spec: dict[str, dict[str, Any]]
    """By arm, as in the record of a cell: study, seed, treatment, changes and the resolved recipe."""
    system: dict[str, Any]
    warnings: tuple[str, ...]
    provenance: dict[str, Any]

    @property
    def interrupted(self) -> bool:
        return self.stopped_by == "interrupted"

    def to_dict(self) -> dict[str, Any]:
        data = {"format": _FORMAT, **asdict(self)}
        return finite_or_none(data)  # type: ignore[no-any-return]

    def save(self, folder: Path) -> Path:
        """Beside the records of the study."""
        write_json(folder / BENCH, self.to_dict())
        return folder / BENCH

    def __str__(self) -> str:
        header = ("arm", "ms a step", f"of {self.against}", "95 % interval", "forward", "backward", "optimizer")
        rows: list[tuple[str, ...]] = [(*header, "at best", "of what can be saved", "verdict", "gradients + optimizer")]
        for name, arm in self.arms.items():
            step = arm.ratios.get("step")
            rows.append(
                (
                    name,
                    f"{1000 * arm.step_seconds:.1f}",
                    f"{step.median:.4f}" if step else "",
                    format_ratio_interval(step) if step else "",
                    *(f"{arm.ratios[part].median:.3f}" if step else "" for part in PARTS),
                    f"{1 - arm.ceiling:.4f}" if arm.ceiling is not None else "",
                    format_reached(arm),
                    _verdict(step) if step else "",
                    _learning(arm),
                )
            )
        reasons = {
            "precision": f"the interval is within {self.precision:g}",
            "budget": f"the time was used up before the interval was within {self.precision:g}",
            "interrupted": "it was interrupted; this is what was measured until then",
        }
        rounds = "1 round" if self.rounds == 1 else f"{self.rounds} rounds"
        lines = [
            f"{self.study}: batch {self.batch} x {self.length:.0f} tokens on {self.device}, "
            f"{rounds} of 2 x {self.steps} steps an arm in {self.seconds:.0f} s; {reasons[self.stopped_by]}",
            *([f"every visit was a process of its own: {self.apart}"] if self.apart else []),
            "",
            *format_columns(rows, left=("arm", "95 % interval")),
        ]
        lines += [str(pair) for pair in self.pairs]
        lines += [f"warning: {text}" for text in self.warnings]
        return "\n".join(lines)


def format_ratio_interval(ratio: Ratio) -> str:
    return format_interval(ratio.low, ratio.high, spec=".4f", missing="none yet")


def _verdict(ratio: Ratio) -> str:
    if ratio.low <= 1 <= ratio.high:
        return "inconclusive"
    return "faster" if ratio.high < 1 else "slower"


def format_reached(arm: ArmTiming) -> str:
    if arm.saving is None or not arm.ceiling:
        return ""
    return f"{arm.saving / arm.ceiling:.0%}"


def _learning(arm: ArmTiming) -> str:
    if not arm.memory:
        return ""
    return f"{(arm.memory['gradients'] + arm.memory['optimizer']) / 2**20:.1f} MiB"
