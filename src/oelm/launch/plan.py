"""Plan: what a study would do, before it is done: cells, differences, counts, what is there already, and how long."""

from __future__ import annotations

import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from oelm.errors import OelmError, StudyError
from oelm.launch.tuning import best_point
from oelm.records.standing import status_of
from oelm.records.store import FINISHED, RUNS, Status
from oelm.study.plan import Cell, cells, differences, resolve, tuning_cells
from oelm.study.study import Study, Value, shown_changes
from oelm.table import aligned
from oelm.times import duration
from oelm.train.watch import Watch

_MEASURED_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class Estimate:
    steps: int
    """Of a cell."""
    step_seconds: float
    cell_seconds: float
    trainable: dict[str, int]
    """Weights that learn, by arm."""
    total: int
    sizes: dict[str, int]
    """Examples (windows) of every split."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    study: Study
    cells: list[tuple[Cell, Status | Literal["changed"]]]
    """In the order they run, those of the tuning first. A changed one was made with another study, and is refused."""
    differences: dict[str, dict[str, Value]]
    estimate: Estimate | None
    not_estimated: str | None
    """Why there is no estimate."""

    @property
    def missing(self) -> list[Cell]:
        return [cell for cell, status in self.cells if status not in (*FINISHED, "changed")]

    def to_dict(self) -> dict[str, Any]:
        return {
            "study": self.study.name,
            "cells": [
                {"cell": str(cell), "arm": cell.arm, "seed": cell.seed, "tuning": bool(cell.point), "status": status}
                for cell, status in self.cells
            ],
            "differences": self.differences,
            "estimate": None if self.estimate is None else asdict(self.estimate),
            "not_estimated": self.not_estimated,
        }

    def __str__(self) -> str:
        return "\n".join(_shown(self))


def plan(study: Study, *, out: str | Path = RUNS, measure: bool = True, watch: Watch | None = None) -> Plan:
    """What `compare` would run. With `measure`, a few steps are done (and thrown away) to tell how long it takes."""
    folder = Path(out) / study.name
    ordered = [*tuning_cells(study), *cells(study)]
    estimate: Estimate | None = None
    why: str | None = "leave out --no-measure for it, and for the counts"
    if measure:
        try:
            estimate, why = _measured(study, folder, watch or Watch()), None
        except OelmError as error:
            why = str(error)
        except Exception as error:  # it does not keep a study from being shown
            why = f"{type(error).__name__}: {error}"
    return Plan(
        study=study,
        cells=[(cell, _status(study, cell, folder)) for cell in ordered],
        differences=differences(study),
        estimate=estimate,
        not_estimated=why,
    )


def _status(study: Study, cell: Cell, folder: Path) -> Status | Literal["changed"]:
    from oelm.train.checks import check_makings

    status = status_of(folder / cell.folder)
    if status == "waiting":
        return status
    try:
        tuned = best_point(study, cell.arm, folder) if study.tune is not None and cell.point is None else None
        check_makings(resolve(study, cell, tuned), folder)
    except StudyError:
        return "changed"
    return status


def _measured(study: Study, folder: Path, watch: Watch) -> Estimate:
    from oelm.heads.savings import saving
    from oelm.train.cell import assembled
    from oelm.train.preparation import model_for
    from oelm.train.signals import Stop

    arm = study.compare.against
    cell = Cell(arm=arm, seed=study.seeds[0])
    point = None
    if study.tune is not None:
        try:
            point = best_point(study, arm, folder)
        except OelmError:
            point = tuple((path, values[0]) for path, values in study.tune.grid.items())
    resolved = resolve(study, cell, point)
    with tempfile.TemporaryDirectory() as place:
        loop = assembled(resolved, Path(place), watch, Stop())
        times = []
        for number in range(min(_MEASURED_STEPS, loop.total)):
            watch.prepares("measuring a few steps", number, _MEASURED_STEPS)
            began = time.perf_counter()
            loop.step()
            times.append(time.perf_counter() - began)
    step = sum(times[1:] or times) / len(times[1:] or times)  # the first one warms up
    recipe, prepared = resolved.recipe, loop.prepared
    measurements = -(-loop.total // recipe.evaluate.every)
    examples = len(prepared.select) * measurements + 2 * sum(len(split) for split in prepared.report.values())
    passes = examples / recipe.batch.size
    # A forward pass is about a third of a step.
    seconds = step * loop.total + passes * step / recipe.batch.accumulate / 3
    model = model_for(recipe, prepared, seed=cell.seed)
    total = loop.applied.counts.total
    trainable = {name: total - saving(model, other.treatment).frozen for name, other in study.arms.items()}
    return Estimate(
        steps=loop.total,
        step_seconds=step,
        cell_seconds=seconds,
        trainable=trainable,
        total=total,
        sizes=prepared.facts["sizes"],
    )


def _shown(plan: Plan) -> list[str]:
    study, estimate = plan.study, plan.estimate
    primary = study.compare.primary
    lines = [f"{study.name}: {primary.metric} against {study.compare.against}, {primary.better} is better"]
    lines += [f"note: {note}" for note in study.notes]
    rows = [("arm", "trainable", "treatment")]
    for name, arm in study.arms.items():
        number = f"{estimate.trainable[name]:,}" if estimate else "?"
        rows.append((name, number, f"{arm.treatment}{shown_changes(arm.changes)}"))
    lines += ["", *aligned(rows, left=("arm", "treatment"))]
    lines += ["", "what differs between the arms (nothing else does)"]
    names = list(study.arms)
    table = [("", *names)]
    table += [
        (path, *("-" if values[name] is None else str(values[name]) for name in names))
        for path, values in plan.differences.items()
    ]
    lines += aligned(table, left=("", *names))
    lines += ["", "cells, in the order they run"]
    lines += aligned(
        [("cell", "status"), *((str(cell), status) for cell, status in plan.cells)], left=("cell", "status")
    )
    lines.append("")
    changed = sum(status == "changed" for _, status in plan.cells)
    if changed:
        lines.append(
            f"{changed} cells were made with another study: `compare` will say what changed, and needs another --out"
        )
    done = len(plan.cells) - len(plan.missing) - changed
    if estimate is None:
        lines.append(f"{len(plan.missing)} cells to run, {done} done; no estimate of the time: {plan.not_estimated}")
        return lines
    sizes = ", ".join(f"{name} {size:,}" for name, size in estimate.sizes.items())
    lines += [
        f"examples: {sizes}",
        f"a cell: {estimate.steps:,} steps of about {estimate.step_seconds:.2f} s, in all about "
        f"{duration(estimate.cell_seconds)} on this machine",
        f"{len(plan.missing)} cells to run, {done} done: about {duration(len(plan.missing) * estimate.cell_seconds)}",
    ]
    return lines
