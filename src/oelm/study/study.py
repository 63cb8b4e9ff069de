"""Study: a question as data: one recipe, the arms that are compared, the seeds. Its product is cells."""

import json
from dataclasses import asdict, dataclass
from typing import Self

from oelm.metrics import Direction, find_metric
from oelm.study.adapter import Adapter, Trains
from oelm.study.forbid_extra import ForbidExtra
from oelm.study.hypothesis import Hypothesis
from oelm.study.recipe import Recipe
from oelm.treatment import Treatment

Value = bool | int | float | str | None
LR = "optimizer.lr"


@dataclass(frozen=True, kw_only=True)
class Arm:
    name: str
    treatment: Treatment
    overrides: dict[str, Value]
    """Where it departs from the recipe, by dotted path: shown wherever the arm is shown."""
    adapter: Adapter | None = None
    """New weights that are trained instead of the model's own."""
    trains: Trains = "all"
    """What of the model itself is trained, beside its task head."""

    @property
    def method(self) -> str:
        """Treatment, adapter and what is trained, in words."""
        parts = [str(self.treatment)] if self.treatment != Treatment() or not self.freezes_backbone else []
        parts += [f"adapter {self.adapter}"] if self.adapter is not None else []
        parts += [f"trains {self.trains}"] if self.trains != "all" else []
        return ", ".join(parts)

    @property
    def training(self) -> str:
        """What is trained instead of all weights, as in the file; empty if all are."""
        parts = [f"adapter: {json.dumps(self.adapter.to_dict())}"] if self.adapter is not None else []
        parts += [f"trains: {self.trains}"] if self.trains != "all" else []
        return ", ".join(parts)

    @property
    def freezes_backbone(self) -> bool:
        return self.adapter is not None or self.trains != "all"

    def trains_like(self, other: Self) -> bool:
        """Whether both have the same adapter, or train the same part of the model."""
        return (self.adapter, self.trains) == (other.adapter, other.trains)

    def to_dict(self) -> dict[str, object]:
        """In the form of the file."""
        adapter = {"adapter": self.adapter.to_dict()} if self.adapter is not None else {}
        trains = {"trains": self.trains} if self.trains != "all" else {}
        return {**self.treatment.to_dict(), **adapter, **trains, "overrides": self.overrides}

    def __str__(self) -> str:
        return f"{self.method}{format_overrides(self.overrides)}"


@dataclass(frozen=True, kw_only=True)
class Tune:
    """One grid for every arm. What did best on the validation split is taken."""

    grid: dict[str, tuple[Value, ...]]
    seeds: tuple[int, ...] | None = None
    """None: nested. Every compared seed runs the grid and takes its own best, so the luck of tuning is in the spread
    over seeds. Else seeds of its own, and all compared seeds of an arm share what did best on their average."""


@dataclass(frozen=True, kw_only=True)
class Compare(ForbidExtra):
    """What a study compares: every arm with the baseline, on one metric."""

    baseline: str
    """The arm that the others are compared with."""
    metric: str
    min_effect: float | None = None
    """The smallest effect of interest: a smaller difference would not matter, even if it were certain. Of a perplexity
    it is relative: 0.05 is 5 %; of a loss it is in nats."""
    because: str | None = None
    """Why it is that, in words."""

    @property
    def margin(self) -> float | None:
        """The smallest effect of interest on the scale on which the metric is judged."""
        return find_metric(self.metric).margin(self.min_effect) if self.min_effect is not None else None

    @property
    def direction(self) -> Direction:
        return find_metric(self.metric).direction


@dataclass(frozen=True, kw_only=True)
class Study:
    name: str
    version: int
    recipe: Recipe
    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    compare: Compare
    second_stage: tuple[int, ...] = ()
    """More seeds, planned before anything is run, for what the first ones leave open. Both looks share the 5 %."""
    tune: Tune | None = None
    plugins: tuple[str, ...] = ()
    """Modules that register the tasks, metrics, optimizers and layouts it names."""
    notes: tuple[str, ...] = ()
    """Said wherever the study is shown: known faults of a protocol, above all."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """Written down before anything is run, and judged by their own rules."""

    @property
    def tunes_lr(self) -> bool:
        return self.tune is not None and LR in self.tune.grid

    def to_dict(self) -> dict[str, object]:
        """Plain data in the form of the file."""
        tune = self.tune and {**self.tune.grid, **({"seeds": self.tune.seeds} if self.tune.seeds is not None else {})}
        return {
            "study": self.name,
            "version": self.version,
            "plugins": self.plugins,
            "notes": self.notes,
            "recipe": self.recipe.to_dict(),
            "arms": {arm.name: arm.to_dict() for arm in self.arms.values()},
            "tune": tune,
            "seeds": self.seeds,
            "second_stage": self.second_stage,
            "compare": asdict(self.compare),
            "hypotheses": {hypothesis.name: hypothesis.to_dict() for hypothesis in self.hypotheses},
        }


def as_number(value: Value) -> float | None:
    """A setting that is a number, as one."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def format_overrides(overrides: dict[str, Value]) -> str:
    return f" [overrides: {', '.join(f'{path} = {value}' for path, value in overrides.items())}]" if overrides else ""
