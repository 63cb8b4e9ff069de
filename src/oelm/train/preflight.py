"""Checks: what would make the cells of a study something else than one comparison is refused before it is run."""

from __future__ import annotations

import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import TokenizedTask
from oelm.errors import OelmError, Stopped, StudyError
from oelm.runs.cell_start import read_cell
from oelm.runs.layout import walk_cell_folders
from oelm.runs.record import Record
from oelm.study.cells import CellSpec, describe_changes
from oelm.study.recipe import Recipe
from oelm.train.progress import Progress

if TYPE_CHECKING:
    from torch import nn


def check_spec_unchanged(spec: CellSpec, root: Path) -> None:
    """Refuse to mix a cell with one that was made differently."""
    folder = root / spec.cell.folder
    started = read_cell(folder)
    changed = describe_changes(asdict(started.spec), asdict(spec)) if started is not None else []
    if changed:
        raise StudyError(
            f"the study has changed since {spec.cell} was started; nothing was started",
            where=str(folder),
            why="\n".join(changed[:12]),
            hint="another --out, another name of the study, or the study as it was",
        )


def check_data(spec: CellSpec, root: Path, prepared: TokenizedTask) -> None:
    """Data and tokenizer must be those that the cell was started with, and those of the study's other cells.

    One other cell that reads alike stands for all: it was held to those before it.
    """
    own = root / spec.cell.folder
    for cell in (own, *_first_alike(spec, root, apart_from=own)):
        started = read_cell(cell)
        if started is None or not _reads_alike(started.spec.recipe, spec.recipe):
            continue
        for name, text in (("data", "the data are not those"), ("tokenizer", "the tokenizer is not the one")):
            before, now = getattr(started.start.data, name), getattr(prepared.facts, name)
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
    if find_source(task_named(data.task), path).fingerprint() != record.start.data.files:
        raise StudyError(
            f"the data are not those that {root / spec.cell.folder} was made with; nothing was started",
            where=str(path),
            hint="another --out, or the files as they were",
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
    """Apply every arm's treatment once, so that one that does not fit the model is refused before hours of others."""
    from oelm.train.signals import catch_signals

    with catch_signals() as stop:
        try:
            _check_treatments(arms, progress)
        except KeyboardInterrupt:
            raise Stopped("stopped at once; no cell was started", signal=stop.signal or signal.SIGINT) from None


def _check_treatments(arms: list[CellSpec], progress: Progress) -> None:
    from oelm.heads.apply import apply
    from oelm.train.cell import build_cell_model, load_data

    models: dict[str, nn.Module] = {}
    for spec in arms:
        recipe = spec.recipe
        key = repr((recipe.model, recipe.data))
        if key not in models:
            models[key] = build_cell_model(recipe, load_data(recipe, progress), seed=spec.seed)
        try:
            apply(models[key], spec.treatment, seed=spec.seed).undo()
        except OelmError as error:
            raise StudyError(f"arm '{spec.arm}' does not fit the model", why=str(error)) from error
