"""Study: a question as data: one recipe, the arms that are compared, the seeds. Its product is cells."""

from dataclasses import asdict, dataclass

from oelm.metrics import Direction, find_metric
from oelm.study.forbid_extra import ForbidExtra
from oelm.study.hypothesis import Hypothesis
from oelm.study.recipe import Recipe
from oelm.treatment import Treatment

Value = bool | int | float | str | None


@dataclass(frozen=True, kw_only=True)
class Arm:
    name: str
    treatment: Treatment
    overrides: dict[str, Value]
    """Where it departs from the recipe, by dotted path: shown wherever the arm is shown."""

    def __str__(self) -> str:
        return f"{self.treatment}{format_overrides(self.overrides)}"


@dataclass(frozen=True, kw_only=True)
class Tune:
    """One grid for every arm, on seeds of its own; every arm takes what did best on the validation split."""

    grid: dict[str, tuple[Value, ...]]
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Compare(ForbidExtra):
    """What a study compares: every arm with the baseline, on one metric."""

    baseline: str
    """The arm that the others are compared with."""
    metric: str
    min_effect: float | None = None
    """The smallest effect of interest: a smaller difference would not matter, even if it were certain."""
    because: str | None = None
    """Why it is that, in words."""

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
    tune: Tune | None = None
    plugins: tuple[str, ...] = ()
    """Modules that register the tasks, metrics, optimizers and layouts it names."""
    notes: tuple[str, ...] = ()
    """Said wherever the study is shown: known faults of a protocol, above all."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """Written down before anything is run, and judged by their own rules."""

    def to_dict(self) -> dict[str, object]:
        """Plain data in the form of the file."""
        tune = None if self.tune is None else {**self.tune.grid, "seeds": self.tune.seeds}
        return {
            "study": self.name,
            "version": self.version,
            "plugins": self.plugins,
            "notes": self.notes,
            "recipe": asdict(self.recipe),
            "arms": {arm.name: {**arm.treatment.to_dict(), "overrides": arm.overrides} for arm in self.arms.values()},
            "tune": tune,
            "seeds": self.seeds,
            "compare": asdict(self.compare),
            "hypotheses": {hypothesis.name: hypothesis.to_dict() for hypothesis in self.hypotheses},
        }


def format_overrides(overrides: dict[str, Value]) -> str:
    return f" [overrides: {', '.join(f'{path} = {value}' for path, value in overrides.items())}]" if overrides else ""
