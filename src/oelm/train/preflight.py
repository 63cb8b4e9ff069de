"""Checks: what would make the cells of a study something else than one comparison is refused before it is run."""

import copy
import signal
from dataclasses import asdict, replace
from pathlib import Path

from oelm.data.tasks import Task, task_named
from oelm.errors import OelmError, Stopped, StudyError
from oelm.facts import TaskFacts
from oelm.runs.cell_start import read_cell
from oelm.runs.layout import LOCK, walk_cell_folders
from oelm.runs.lock import Lock, find_changes, make_lock, read_lock
from oelm.runs.record import Record
from oelm.study.cells import CellSpec, describe_changes
from oelm.study.data_task import source_of
from oelm.study.forbid_extra import as_in_file
from oelm.study.recipe import Recipe
from oelm.study.study import Study
from oelm.train.origin import locate_origin
from oelm.train.progress import Progress


def check_against_lock(study: Study, root: Path) -> Lock:
    """Refuse a study that is not the one that was planned when its first cell was started; returns that plan. What was
    only added to it is allowed."""
    lock = read_lock(root, study.name)
    changed = find_changes(lock, study).changed if lock is not None else ()
    if changed:
        raise StudyError(
            "the study has changed since its first cell was started (CHANGED-AFTER-START); nothing was started",
            where=str(root / LOCK),
            why="\n".join(map(str, changed[:12])),
            hint="another --out, another name of the study, or the study as it was; --arm and --seed pick cells",
        )
    return lock or make_lock(study)


def check_spec_unchanged(spec: CellSpec, root: Path, *, lock: str) -> None:
    """Refuse to mix a cell with one that was made differently, or under another lock, of which this is the digest."""
    folder = root / spec.cell.folder
    started = read_cell(folder)
    changed = describe_changes(_by_name(started.spec), _by_name(spec)) if started is not None else []
    if changed:
        raise StudyError(
            f"the study has changed since {spec.cell} was started; nothing was started",
            where=str(folder),
            why="\n".join(changed[:12]),
            hint="another --out, another name of the study, or the study as it was",
        )
    if started is not None and started.start.lock != lock:
        raise StudyError(
            f"{spec.cell} was started under another lock (CHANGED-AFTER-START); nothing was started",
            where=str(root / LOCK),
            why=f"the SHA-256 of the lock was {started.start.lock or 'missing'}, is {lock}",
            hint="another --out, or lock.json and the study as they were",
        )


def _by_name(spec: CellSpec) -> dict[str, object]:
    return asdict(spec, dict_factory=as_in_file)


def check_data(spec: CellSpec, root: Path, facts: TaskFacts) -> None:
    """Data and tokenizer must be those that the cell was started with, and those of the study's other cells.

    One other cell that reads alike stands for all: it was held to those before it.
    """
    own = root / spec.cell.folder
    for cell in (own, *_first_alike(spec, root, apart_from=own)):
        started = read_cell(cell)
        if started is None or not _reads_alike(started.spec.recipe, spec.recipe):
            continue
        for name, text in (("data", "the data are not those"), ("tokenizer", "the tokenizer is not the one")):
            before, now = getattr(started.start.data, name), getattr(facts, name)
            if before != now:
                raise StudyError(
                    f"{text} that {cell} was started with; nothing was started",
                    why=f"fingerprint was {before}, is {now}",
                    hint="another --out, or the files as they were",
                )


def check_files_unchanged(spec: CellSpec, root: Path, record: Record) -> None:
    """A finished cell may not pass for one on other files. Where they are gone, there is nothing to say."""
    data = spec.recipe.data
    path = data.path or task_named(data.task).path
    if isinstance(path, str) and not Path(path).expanduser().exists():
        return
    if path is None or record.start is None:
        return
    if source_of(data).fingerprint() != record.start.data.files:
        raise StudyError(
            f"the data are not those that {root / spec.cell.folder} was made with; nothing was started",
            where=str(path),
            hint="another --out, or the files as they were",
        )


def check_metric(spec: CellSpec, task: Task) -> None:
    """Refuse what is not measured after all: whether there are two classes, which F1 is for, only the data say."""
    metric = spec.compare.metric
    if metric not in task.metrics:
        raise StudyError(
            f"'{metric}' is not measured: the data have {len(task.labels)} labels",
            where="compare.metric",
            hint=f"one of {', '.join(task.metrics)}",
        )


def _first_alike(spec: CellSpec, root: Path, *, apart_from: Path) -> list[Path]:
    """A started cell that reads the same tokens, if there is one."""
    for cell in walk_cell_folders(root):
        started = read_cell(cell) if cell != apart_from else None
        if started is not None and _reads_alike(started.spec.recipe, spec.recipe):
            return [cell]
    return []


def _reads_alike(one: Recipe, other: Recipe) -> bool:
    """Whether two recipes ask for the same tokens, wherever the files lie."""
    return replace(one.data, path=None) == replace(other.data, path=None) and one.model == other.model


def check_treatments(arms: list[CellSpec], *, progress: Progress) -> None:
    """Treat the model of arms that share it and their data once each, so that one that does not fit is refused before
    hours of others."""
    from oelm.heads.apply import apply
    from oelm.train.adalora import find_rank_budget
    from oelm.train.adapters import treat_arm
    from oelm.train.cell import build_cell_model, first_inputs, load_data
    from oelm.train.loop import plan_steps
    from oelm.train.optim import make_optimizer
    from oelm.train.signals import catch_signals

    with catch_signals() as stop:
        try:
            arms = [locate_origin(spec) for spec in arms]
            recipe, seed = arms[0].recipe, arms[0].seed
            prepared = load_data(recipe, progress)
            check_metric(arms[0], prepared.task)
            model, inputs = build_cell_model(recipe, prepared, seed=seed), first_inputs(prepared)
            for spec in arms:
                try:
                    if spec.adapter is None and spec.trains == "all":
                        separate_qk = spec.recipe.optimizer.qk_lr is not None
                        apply(model, spec.treatment, seed=spec.seed, inputs=inputs, separate_qk=separate_qk).undo()
                    else:  # of which nothing can be undone
                        applied = treat_arm(copy.deepcopy(model), spec, task=prepared.task, inputs=inputs)
                        make_optimizer(applied.model, spec.recipe.optimizer)  # Muon needs matrices that learn
                        _, total = plan_steps(spec.recipe, prepared, seed=spec.seed)
                        find_rank_budget(applied.model, total=total)  # AdaLoRA needs steps
                except OelmError as error:
                    raise StudyError(f"arm '{spec.arm}' does not fit the model", why=str(error)) from error
        except KeyboardInterrupt:
            raise Stopped("stopped at once; no cell was started", signal=stop.signal or signal.SIGINT) from None
