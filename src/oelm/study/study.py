"""Study: a question as data: one recipe, the arms that are compared, the seeds. Its product is cells."""

from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Literal

from oelm.study.hypothesis import Hypothesis
from oelm.study.recipe import Recipe
from oelm.treatment import Treatment

Value = bool | int | float | str | None


@dataclass(frozen=True, kw_only=True)
class Arm:
    name: str
    treatment: Treatment
    changes: dict[str, Value]
    """Where it departs from the recipe, by dotted path: shown wherever the arm is shown."""

    def __str__(self) -> str:
        return f"{self.treatment}{shown_changes(self.changes)}"


@dataclass(frozen=True, kw_only=True)
class Tune:
    """One grid for every arm, on seeds of its own; every arm takes what did best on the selection split."""

    grid: dict[str, tuple[Value, ...]]
    seeds: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Primary:
    """The one measurement a study is about."""

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid", "allow_inf_nan": False}

    metric: str
    better: Literal["higher", "lower"]
    smallest_interesting: float | None = None
    """A difference below this would not matter, even if it were certain."""


@dataclass(frozen=True, kw_only=True)
class Compare:
    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    against: str
    primary: Primary


@dataclass(frozen=True, kw_only=True)
class Study:
    name: str
    version: int
    recipe: Recipe
    arms: dict[str, Arm]
    seeds: tuple[int, ...]
    compare: Compare
    tune: Tune | None = None
    notes: tuple[str, ...] = ()
    """Said wherever the study is shown: known faults of a protocol, above all."""
    hypotheses: tuple[Hypothesis, ...] = ()
    """Written down before anything is run, and judged by their own rules."""

    def to_dict(self) -> dict[str, Any]:
        """Plain data in the form of the file."""
        tune = None if self.tune is None else {**self.tune.grid, "seeds": self.tune.seeds}
        return {
            "study": self.name,
            "version": self.version,
            "notes": self.notes,
            "recipe": asdict(self.recipe),
            "arms": {arm.name: {**arm.treatment.to_dict(), "changes": arm.changes} for arm in self.arms.values()},
            "tune": tune,
            "seeds": self.seeds,
            "compare": asdict(self.compare),
            "hypotheses": {hypothesis.name: hypothesis.to_dict() for hypothesis in self.hypotheses},
        }


def shown_changes(changes: dict[str, Value]) -> str:
    return f" [changes: {', '.join(f'{path} = {value}' for path, value in changes.items())}]" if changes else ""
