"""Cells: those of a study, in the order they run, and what each is made with. Pure functions of the study."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from oelm.study.adapter import Adapter, Trains
from oelm.study.overrides import apply_overrides
from oelm.study.recipe import WITHOUT_EFFECT, ModelConfig, Recipe
from oelm.study.study import Arm, Compare, Study, Value
from oelm.treatment import Treatment

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
        return Path(str(self))

    def __str__(self) -> str:
        above = self.arm if self.point is None else f"{self.arm}/tune/{point_name(self.point)}"
        return f"{above}/seed-{self.seed}"


@dataclass(frozen=True, kw_only=True)
class CellSpec:
    """Everything a cell is made with."""

    study: str
    """Name of the study."""
    arm: str
    """Name of the arm."""
    seed: int
    """All that is random is drawn from it."""
    tuning: dict[str, Value] | None
    """Of a cell that tunes: its point of the grid, by path."""
    treatment: Treatment
    """What is done to queries and keys."""
    overrides: dict[str, Value]
    """Where the arm departs from the recipe of the study, by path."""
    recipe: Recipe
    """With the arm's overrides and the tuned settings in it."""
    compare: Compare
    """What the study compares."""
    adapter: Adapter | None = None
    """New weights that are trained instead of the model's own."""
    trains: Trains = "all"
    """What of the model itself is trained, beside its task head."""

    @property
    def cell(self) -> Cell:
        return Cell(arm=self.arm, seed=self.seed, point=tuple(self.tuning.items()) if self.tuning else None)


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


def both_stages(study: Study) -> Study:
    """The study with the seeds of its second stage among the others."""
    return replace(study, seeds=(*study.seeds, *study.second_stage), second_stage=())


def tuning_cells(study: Study) -> list[Cell]:
    order = list(study.arms)
    return [
        Cell(arm=arm, seed=seed, point=point)
        for seed in tuning_seeds(study)
        for number, point in enumerate(grid_points(study))
        for arm in (order if number % 2 == 0 else reversed(order))
    ]


def tuning_seeds(study: Study) -> tuple[int, ...]:
    if study.tune is None:
        return ()
    return study.seeds if study.tune.seeds is None else study.tune.seeds


def is_nested(study: Study) -> bool:
    """Whether every compared seed tunes itself."""
    return study.tune is not None and study.tune.seeds is None


def trials_of(study: Study, cell: Cell) -> dict[Point, list[Cell]]:
    """The tuning cells that decide what a compared cell is made with, by point of the grid."""
    seeds = (cell.seed,) if is_nested(study) else tuning_seeds(study)
    return {point: [Cell(arm=cell.arm, seed=seed, point=point) for seed in seeds] for point in grid_points(study)}


def resolve_cell(study: Study, cell: Cell, tuned: Point | None = None) -> CellSpec:
    """What a cell is made with; `tuned` is the point that its tuning has chosen."""
    arm = study.arms[cell.arm]
    recipe = apply_overrides(study.recipe, {**arm.overrides, **dict(cell.point or tuned or ())})
    return CellSpec(
        study=study.name,
        arm=cell.arm,
        seed=cell.seed,
        tuning=dict(cell.point) if cell.point else None,
        treatment=arm.treatment,
        overrides=arm.overrides,
        recipe=recipe,
        compare=replace(study.compare, because=None),  # words change no cell
        adapter=arm.adapter,
        trains=arm.trains,
    )


def restrict_study(study: Study, *, arms: list[str] | None = None, seeds: list[int] | None = None) -> Study:
    """The study with a part of its arms and seeds."""
    kept = study.arms if arms is None else {name: study.arms[name] for name in study.arms if name in arms}
    return replace(study, arms=kept, seeds=study.seeds if seeds is None else tuple(seeds))


def differences(study: Study) -> dict[str, dict[str, object]]:
    """What differs between the arms, by path: the value in every arm. Nothing else does."""
    rows = {name: flatten(_method(arm)) | _departures(study, arm) for name, arm in study.arms.items()}
    paths = dict.fromkeys(path for row in rows.values() for path in row)
    table = {path: {name: row.get(path) for name, row in rows.items()} for path in paths}
    return {path: row for path, row in table.items() if len({repr(value) for value in row.values()}) > 1}


def _method(arm: Arm) -> dict[str, object]:
    adapter = arm.adapter.to_dict() if arm.adapter is not None else None
    trains = "adapter" if adapter is not None else arm.trains  # of the model itself, an adapter trains nothing
    return {**arm.treatment.to_dict(), "adapter": adapter, "trains": trains}


def _departures(study: Study, arm: Arm) -> dict[str, object]:
    base = flatten(study.recipe.to_dict())
    changed = {path for other in study.arms.values() for path in other.overrides}
    recipe = apply_overrides(study.recipe, arm.overrides)
    own = flatten(recipe.to_dict())
    found = {path: own.get(path, base.get(path)) for path in sorted(changed)}
    return found if recipe.model.from_ is None else found | {"model.arm": origin_arm(recipe.model, arm.name)}


def origin_arm(model: ModelConfig, arm: str) -> str:
    """The arm of another study whose models an arm starts from."""
    return arm if model.arm == "same" else model.arm


def describe_changes(before: Mapping[str, object], now: Mapping[str, object]) -> list[str]:
    """Where the spec of a cell differs from the one it was started with, in words, without what has no effect."""
    was, is_ = flatten(before), flatten(now)
    free = tuple(f"recipe.{path}" for path in WITHOUT_EFFECT)
    return [
        f"{path}: was {was.get(path)!r}, is {is_.get(path)!r}"
        for path in sorted(was.keys() | is_.keys())
        if was.get(path) != is_.get(path) and not path.startswith(free)
    ]


def flatten(data: Mapping[str, object], prefix: str = "") -> dict[str, object]:
    """Nested data by dotted path."""
    found: dict[str, object] = {}
    for key, value in data.items():
        path = f"{prefix}.{key}".strip(".")
        if isinstance(value, Mapping) and value:
            found |= flatten(value, path)
        else:
            found[path] = list(value) if isinstance(value, tuple) else value
    return found
