"""Plan: what a study would do, before it is done: cells, differences, counts, what is there already, and how long."""

import tempfile
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from oelm.analysis.design import alpha_of, count_tests, without_power
from oelm.analysis.tuning import read_best_point
from oelm.errors import MissingPart, OelmError, StudyError, require
from oelm.facts import Counts
from oelm.format import format_columns, format_count, format_duration, format_percent
from oelm.launch.memory import MemoryEstimate, estimate_memory
from oelm.runs.layout import FINISHED, RUNS, Status
from oelm.runs.lock import Lock, LockChanges, find_changes, make_lock, read_lock
from oelm.runs.status import read_state, read_status
from oelm.study.cells import Cell, compared_cells, differences, is_nested, resolve_cell, tuning_cells
from oelm.study.study import Study
from oelm.train.progress import Progress

_MEASURED_STEPS = 5


@dataclass(frozen=True, kw_only=True)
class CostEstimate:
    steps: int
    """Of a cell."""
    step_seconds: float
    training_seconds: float
    """Of a cell, with its evaluations on the validation split."""
    test_seconds: float
    """Of a cell, on the test splits."""
    counts: dict[str, Counts]
    """Weights that an arm has and trains, by arm."""
    stored: dict[str, int]
    """Bytes of a saved model, by arm."""
    sizes: dict[str, int]
    """Examples (windows) of every split."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    study: Study
    cells: list[tuple[Cell, Status | Literal["changed"]]]
    """In the order they run, those of the tuning first. A changed one was made with another study, and is refused."""
    differences: dict[str, dict[str, object]]
    estimate: CostEstimate | None
    not_estimated: str | None
    """Why there is no estimate."""
    refused: str | None
    """Why `oelm run` would refuse it on this machine, as far as measuring showed: data missing, an arm that does not
    fit."""
    devices: dict[str, str]
    """By cell, what it was trained on, or would be trained on here."""
    lock: Lock
    """What was locked, at the latest when the first cell was started, or will be."""
    is_locked: bool
    memory: MemoryEstimate | None
    """Of a training step, by arithmetic; None where the sizes of the model are known only when it is loaded."""

    @property
    def changes(self) -> LockChanges:
        """How the study departs from what was locked."""
        return find_changes(self.lock, self.study)

    @property
    def missing(self) -> list[Cell]:
        return [cell for cell, status in self.cells if status not in (*FINISHED, "changed")]

    @property
    def seconds(self) -> float | None:
        """Of all that is missing. A cell that is the best of its trials once more is not trained again."""
        if self.estimate is None:
            return None
        trained = [cell for cell in self.missing if cell.point is not None or not is_nested(self.study)]
        tested = [cell for cell in self.missing if cell.point is None]
        return len(trained) * self.estimate.training_seconds + len(tested) * self.estimate.test_seconds

    def to_dict(self) -> dict[str, object]:
        return {
            "study": self.study.name,
            "cells": [
                {
                    "cell": str(cell),
                    "arm": cell.arm,
                    "seed": cell.seed,
                    "tuning": bool(cell.point),
                    "status": status,
                    "device": self.devices[str(cell)],
                }
                for cell, status in self.cells
            ],
            "differences": self.differences,
            "estimate": None if self.estimate is None else asdict(self.estimate),
            "not_estimated": self.not_estimated,
            "refused": self.refused,
            "seconds": self.seconds,
            "memory": None if self.memory is None else {**asdict(self.memory), "fits": self.memory.fits},
            "lock": {**asdict(self.lock), "sha256": self.lock.digest, "tests": count_tests(self.lock)},
            "is_locked": self.is_locked,
            "changes": asdict(self.changes),
        }

    def __str__(self) -> str:
        return "\n".join(_format(self))


def plan(study: Study, *, out: str | Path = RUNS, measure: bool = True, progress: Progress | None = None) -> Plan:
    """What `oelm run` would do. With `measure`, a few steps are done (and thrown away) to tell how long it takes."""
    folder = Path(out) / study.name
    locked = read_lock(folder, study.name)
    lock = locked or make_lock(study)
    ordered = [*tuning_cells(study), *compared_cells(study)]
    estimate: CostEstimate | None = None
    refused: str | None = None
    why: str | None = "leave out --no-measure for it, and for the counts"
    if measure:
        try:
            estimate, why = _measure(study, folder, progress or Progress()), None
        except MissingPart as error:  # where studies are only read and planned
            why = str(error)
        except OelmError as error:
            why = refused = str(error)
        except Exception as error:  # the plan is printed all the same
            why = f"{type(error).__name__}: {error}"
    cells = [(cell, _status(study, cell, folder, lock.digest)) for cell in ordered]
    devices = _devices(study, ordered, folder)
    return Plan(
        study=study,
        cells=cells,
        differences=differences(study),
        estimate=estimate,
        not_estimated=why,
        refused=refused if any(status not in FINISHED for _, status in cells) else None,
        devices=devices,
        lock=lock,
        is_locked=locked is not None,
        memory=estimate_memory(study, device=next(iter(devices.values()))),
    )


def _devices(study: Study, cells: list[Cell], folder: Path) -> dict[str, str]:
    """By cell. A GPU that is there and cannot be used is an error, before anybody plans with the CPU's figures."""
    from oelm.train.device import planned_device

    known = {str(one): read_status(folder / one.folder, study=study.name, cell=str(one)).device for one in cells}
    device = "" if all(known.values()) else planned_device()
    return {cell: found or device for cell, found in known.items()}


def _status(study: Study, cell: Cell, folder: Path, lock: str) -> Status | Literal["changed"]:
    from oelm.train.preflight import check_spec_unchanged

    status = read_state(folder / cell.folder)
    if status == "pending":
        return status
    try:
        tuned = read_best_point(study, cell, folder) if study.tune is not None and cell.point is None else None
        check_spec_unchanged(resolve_cell(study, cell, tuned), folder, lock=lock)
    except StudyError:
        return "changed"
    return status


def _measure(study: Study, folder: Path, progress: Progress) -> CostEstimate:
    require("lab", needed_by="it")
    from oelm.train.adapters import counted_and_stored
    from oelm.train.cell import build_cell_model, build_loop
    from oelm.train.origin import locate_origin
    from oelm.train.signals import StopRequest

    arm = study.compare.baseline
    cell = Cell(arm=arm, seed=study.seeds[0])
    point = None
    if study.tune is not None:
        try:
            point = read_best_point(study, cell, folder)
        except OelmError:
            point = tuple((path, values[0]) for path, values in study.tune.grid.items())
    spec = resolve_cell(study, cell, point)
    with tempfile.TemporaryDirectory() as scratch:
        loop = build_loop(spec, Path(scratch), progress, StopRequest())
        times = []
        for number in range(min(_MEASURED_STEPS, loop.total)):
            progress.on_prepare("measuring a few steps", number, _MEASURED_STEPS)
            began = time.perf_counter()
            loop.step()
            times.append(time.perf_counter() - began)
    step = sum(times[1:] or times) / len(times[1:] or times)  # the first one warms up
    recipe, prepared = locate_origin(spec).recipe, loop.prepared
    measurements = -(-loop.total // recipe.evaluate.every)
    # A forward pass is about a third of a step.
    example = step / recipe.batch.accumulate / recipe.batch.size / 3
    model = build_cell_model(recipe, prepared, seed=cell.seed)
    sizes = {
        name: counted_and_stored(model, locate_origin(resolve_cell(study, one, point)), task=prepared.task)
        for name, one in ((name, Cell(arm=name, seed=cell.seed)) for name in study.arms)
    }
    return CostEstimate(
        steps=loop.total,
        step_seconds=step,
        training_seconds=step * loop.total + measurements * len(prepared.validation) * example,
        test_seconds=2 * sum(len(split) for split in prepared.test.values()) * example,
        counts={name: counts for name, (counts, _) in sizes.items()},
        stored={name: stored for name, (_, stored) in sizes.items()},
        sizes=prepared.facts.sizes,
    )


def _format(plan: Plan) -> list[str]:
    study, estimate = plan.study, plan.estimate
    compare = study.compare
    lines = [f"{study.name}: {compare.metric} against {study.compare.baseline}, {compare.direction} is better"]
    lines += [f"note: {note}" for note in study.notes]
    rows = [("arm", "trainable", "share", "stored", "treatment")]
    for name, arm in study.arms.items():
        rows.append((name, *_sizes(estimate, name), str(arm)))
    lines += ["", *format_columns(rows, left=("arm", "treatment"))]
    lines += ["", "what differs between the arms (nothing else does)"]
    names = list(study.arms)
    table = [("", *names)]
    table += [
        (path, *("-" if values[name] is None else str(values[name]) for name in names))
        for path, values in plan.differences.items()
    ]
    lines += format_columns(table, left=("", *names))
    lines += ["", *_format_lock(plan)]
    lines += ["", "cells, in the order they run"]
    lines += format_columns(
        [("cell", "status", "device"), *((str(cell), status, plan.devices[str(cell)]) for cell, status in plan.cells)],
        left=("cell", "status", "device"),
    )
    lines.append("")
    changed = sum(status == "changed" for _, status in plan.cells)
    if changed:
        whose = f"{format_count(changed, 'cell')} made with another study"
        lines.append(f"{whose}: `oelm run` will say what changed, and needs another --out")
    if plan.memory is not None:
        lines += str(plan.memory).splitlines()
    done = len(plan.cells) - len(plan.missing) - changed
    to_run = f"{format_count(len(plan.missing), 'cell')} to run, {done} done"
    if plan.refused is not None:
        return [*lines, to_run, f"this cannot run here yet: {plan.refused}"]
    if estimate is None:
        lines.append(f"{to_run}; no estimate of the time: {plan.not_estimated}")
        return lines
    sizes = ", ".join(f"{name} {size:,}" for name, size in estimate.sizes.items())
    cell_seconds = estimate.training_seconds + estimate.test_seconds
    nested = "; each seed tests the best of its own trials, which is not trained again" if is_nested(study) else ""
    lines += [
        f"examples: {sizes}",
        f"a cell: {format_count(estimate.steps, 'step')} of about {estimate.step_seconds:.2f} s, in all about "
        f"{format_duration(cell_seconds)} on this machine",
        f"{to_run}: about {format_duration(plan.seconds or 0.0)}{nested}",
    ]
    return lines


def _sizes(estimate: CostEstimate | None, arm: str) -> tuple[str, str, str]:
    """Weights that learn, their share of all, and what a saved model takes on disk."""
    if estimate is None:
        return "?", "?", "?"
    counts, stored = estimate.counts[arm], estimate.stored[arm]
    return f"{counts.trainable:,}", format_percent(counts.trained_share or 0), f"{stored / 2**20:,.1f} MiB"


def _format_lock(plan: Plan) -> list[str]:
    """What counts as planned, whatever becomes of the study later."""
    lock, changes, tests = plan.lock, plan.changes, count_tests(plan.lock)
    compare, tune = lock.compare, lock.tune
    margin = f"{compare.min_effect:g}" if compare.min_effect is not None else "none"
    kind = "hypotheses" if lock.hypotheses else "comparisons with the baseline"
    stages = " in each of two stages" if lock.second_stage else ""
    second = f"; second stage, if wanted: {_listed(lock.second_stage)}" if lock.second_stage else ""
    grid = "; ".join(f"{path}: {_listed(values)}" for path, values in tune.grid.items()) if tune is not None else "none"
    rows = [
        ("arms", _listed(lock.arms)),
        ("seeds", f"{_listed(lock.seeds)}{second}"),
        ("metric", f"{compare.metric} against {compare.baseline}, smallest effect of interest {margin}"),
        ("tests", f"{tests} ({kind}), which share the {100 * alpha_of(lock):g} %{stages}"),
        ("grid", grid + (f"; tuning seeds {_listed(tune.seeds)}" if tune is not None and tune.seeds else "")),
        *((f"hypothesis {one.name}", str(one)) for one in lock.hypotheses),
        ("sha256", lock.digest),
    ]
    title = "what was locked when the first cell was started" if plan.is_locked else "what the first cell will lock"
    lines = [title, *format_columns([("", ""), *rows], left=("",))[1:]]
    unstated = without_power(plan.study)
    if unstated:
        known = "it is for differences of shares on a test split whose size is known"
        lines.append(f"power is not foretold for {_listed(unstated)}: {known}")
    lines += [f"added since, and so exploratory: {_listed(changes.added)}"] if changes.added else []
    return lines + [f"CHANGED-AFTER-START {change}" for change in changes.changed]


def _listed(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
