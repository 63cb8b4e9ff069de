"""Plan: the cells of a study, in the order they run, and what each is made with. Pure functions of the study."""

import itertools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from oelm.study.overrides import apply_overrides
from oelm.study.schema import WITHOUT_EFFECT, Recipe
from oelm.study.study import Arm, Study, Value

Point = tuple[tuple[str, Value], ...]
"""One choice of the tuned settings: ((path, value), ...)."""


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One training of a study: an arm and a seed, and when tuning, a point of the grid."""

    arm: str
    seed: int
    point: Point | None = None

    @property
    def folder(self) -> Path:
        """Inside the folder of the study."""
        if self.point is None:
            return Path(self.arm) / f"seed-{self.seed}"
        return Path(self.arm) / "tune" / point_name(self.point) / f"seed-{self.seed}"

    def __str__(self) -> str:
        return str(self.folder)


@dataclass(frozen=True, kw_only=True)
class CellSpec:
    """Everything a cell is made with."""

    study: Study
    cell: Cell
    arm: Arm
    recipe: Recipe
    """With the arm's overrides and the tuned settings in it."""

    def to_dict(self) -> dict[str, Any]:
        """As plain as JSON, so that it compares equal to what is read back."""
        tuned = dict(self.cell.point) if self.cell.point else {}
        data = {
            "study": self.study.name,
            "arm": self.arm.name,
            "seed": self.cell.seed,
            "tuning": tuned or None,
            "treatment": self.arm.treatment.to_dict(),
            "overrides": self.arm.overrides,
            "recipe": asdict(self.recipe),
            "compare": asdict(self.study.compare),
        }
        return json.loads(json.dumps(data))  # type: ignore[no-any-return]


def point_name(point: Point) -> str:
    return ",".join(f"{path}={value}" for path, value in point).replace("/", "_")


def grid_points(study: Study) -> list[Point]:
    """All points of the grid that is tuned on."""
    if study.tune is None:
        return []
    axes = [[(path, value) for value in values] for path, values in study.tune.grid.items()]
    return list(itertools.product(*axes))


def compared_cells(study: Study) -> list[Cell]:
    """The cells that are compared. Every second seed takes the arms in reverse (ABBA), so that a drift of the machine
    does not fall on one arm."""
    order = list(study.arms)
    return [
        Cell(arm=arm, seed=seed)
        for number, seed in enumerate(study.seeds)
        for arm in (order if number % 2 == 0 else reversed(order))
    ]


def tuning_cells(study: Study) -> list[Cell]:
    order = list(study.arms)
    return [
        Cell(arm=arm, seed=seed, point=point)
        for seed in (study.tune.seeds if study.tune else ())
        for number, point in enumerate(grid_points(study))
        for arm in (order if number % 2 == 0 else reversed(order))
    ]


def resolve_cell(study: Study, cell: Cell, tuned: Point | None = None) -> CellSpec:
    """What a cell is made with; `tuned` is the point that its arm has chosen."""
    arm = study.arms[cell.arm]
    recipe = apply_overrides(study.recipe, {**arm.overrides, **dict(cell.point or tuned or ())})
    return CellSpec(study=study, cell=cell, arm=arm, recipe=recipe)


def restrict_study(study: Study, *, arms: list[str] | None = None, seeds: list[int] | None = None) -> Study:
    """The study with a part of its arms and seeds."""
    kept = study.arms if arms is None else {name: study.arms[name] for name in study.arms if name in arms}
    return replace(study, arms=kept, seeds=study.seeds if seeds is None else tuple(seeds))


def differences(study: Study) -> dict[str, dict[str, Value]]:
    """What differs between the arms, by path: the value in every arm. Nothing else does."""
    rows = {name: flatten({"": arm.treatment.to_dict()}) | _departures(study, arm) for name, arm in study.arms.items()}
    paths = dict.fromkeys(path for row in rows.values() for path in row)
    table = {path: {name: row.get(path) for name, row in rows.items()} for path in paths}
    return {path: row for path, row in table.items() if len({repr(value) for value in row.values()}) > 1}


def _departures(study: Study, arm: Arm) -> dict[str, Value]:
    base = flatten(asdict(study.recipe))
    changed = {path for other in study.arms.values() for path in other.overrides}
    own = flatten(asdict(apply_overrides(study.recipe, arm.overrides)))
    return {path: own.get(path, base.get(path)) for path in sorted(changed)}


def describe_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Where the spec of a cell differs from the one it was started with, in words, without what has no effect."""
    was, is_ = flatten(before), flatten(now)
    free = tuple(f"recipe.{path}" for path in WITHOUT_EFFECT)
    return [
        f"{path}: was {was.get(path)!r}, is {is_.get(path)!r}"
        for path in sorted(was.keys() | is_.keys())
        if was.get(path) != is_.get(path) and not path.startswith(free)
    ]


def flatten(data: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested data by dotted path."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        path = f"{prefix}.{key}".strip(".")
        if isinstance(value, Mapping) and value:
            found |= flatten(value, path)
        else:
            found[path] = list(value) if isinstance(value, tuple) else value
    return found
