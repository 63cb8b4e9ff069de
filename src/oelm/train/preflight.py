"""Checks: what would make the cells of a study something else than one comparison is refused before it is run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import TokenizedTask
from oelm.errors import OelmError, Stopped, StudyError
from oelm.runs.layout import CELL_SPEC, find_cell_folders, read_json
from oelm.runs.record import Record
from oelm.study.cells import CellSpec, describe_changes
from oelm.train.progress import Progress


def check_spec_unchanged(resolved: CellSpec, root: Path) -> None:
    """Refuse to mix a cell with one that was made differently."""
    folder = root / resolved.cell.folder
    content = read_json(folder / CELL_SPEC)
    if content is None:
        return
    now = resolved.to_dict()
    changed = describe_changes({name: content.get(name) for name in now}, now)
    if changed:
        raise StudyError(
            f"the study has changed since {resolved.cell} was started; nothing was started",
            where=str(folder),
            why="\n".join(changed[:12]),
            hint="another --out, another name of the study, or the study as it was",
        )


def check_data(resolved: CellSpec, root: Path, prepared: TokenizedTask) -> None:
    """Data and tokenizer must be those that the cell was started with, and those of the study's other cells."""
    mine = resolved.to_dict()["recipe"]
    for cell in find_cell_folders(root):
        content = read_json(cell / CELL_SPEC) or {}
        before, recipe = content.get("data"), content.get("recipe")
        if not isinstance(before, dict) or not isinstance(recipe, dict) or not _reads_alike(recipe, mine):
            continue
        for name, text in (("data", "the data are not those"), ("tokenizer", "the tokenizer is not the one")):
            if before.get(name) != getattr(prepared.facts, name):
                raise StudyError(
                    f"{text} that {cell} was started with; nothing was started",
                    why=f"fingerprint was {before.get(name)}, is {getattr(prepared.facts, name)}",
                    hint="another --out, or the files as they were",
                )


def check_files_unchanged(resolved: CellSpec, root: Path, record: Record) -> None:
    """A finished cell may not pass for one on other files. Where they are gone, there is nothing to say."""
    data = resolved.recipe.data
    path = data.path or task_named(data.task).path
    if isinstance(path, str) and not Path(path).expanduser().exists():
        return
    if path is not None and find_source(task_named(data.task), path).fingerprint() != record.data["files"]:
        raise StudyError(
            f"the data are not those that {root / resolved.cell.folder} was made with; nothing was started",
            where=str(path),
            hint="another --out, or the files as they were",
        )


def _reads_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two recipes ask for the same tokens, wherever the files lie."""
    data = [{**(recipe.get("data") or {}), "path": None} for recipe in (one, other)]
    return data[0] == data[1] and one.get("model") == other.get("model")


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
    from oelm.train.preparation import build_cell_model, load_data

    models: dict[str, Any] = {}
    for resolved in arms:
        recipe = resolved.recipe
        key = repr((recipe.model, recipe.data))
        if key not in models:
            models[key] = build_cell_model(recipe, load_data(recipe, progress), seed=resolved.cell.seed)
        try:
            apply(models[key], resolved.arm.treatment, seed=resolved.cell.seed).undo()
        except OelmError as error:
            raise StudyError(f"arm '{resolved.arm.name}' does not fit the model", why=str(error)) from error
