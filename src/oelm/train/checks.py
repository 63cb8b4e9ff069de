"""Checks: what would make the cells of a study something else than one comparison is refused before it is run."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokens import Prepared
from oelm.errors import OelmError, Stopped, StudyError
from oelm.records.record import Record
from oelm.records.store import MAKINGS, cell_folders, read_json
from oelm.study.plan import Resolved, what_changed
from oelm.train.watch import Watch


def check_makings(resolved: Resolved, root: Path) -> None:
    """Refuse to mix a cell with one that was made differently."""
    folder = root / resolved.cell.folder
    makings = read_json(folder / MAKINGS)
    if makings is None:
        return
    now = resolved.to_dict()
    changed = what_changed({name: makings.get(name) for name in now}, now)
    if changed:
        raise StudyError(
            f"the study has changed since {resolved.cell} was started; nothing was started",
            where=str(folder),
            why="\n".join(changed[:12]),
            hint="another --out, another name of the study, or the study as it was",
        )


def check_data(resolved: Resolved, root: Path, prepared: Prepared) -> None:
    """Data and tokenizer must be those that the cell was started with, and those of the study's other cells."""
    mine = resolved.to_dict()["recipe"]
    for cell in cell_folders(root):
        makings = read_json(cell / MAKINGS) or {}
        before, recipe = makings.get("data"), makings.get("recipe")
        if not isinstance(before, dict) or not isinstance(recipe, dict) or not _reads_alike(recipe, mine):
            continue
        for name, text in (("data", "the data are not those"), ("tokenizer", "the tokenizer is not the one")):
            if before.get(name) != prepared.facts[name]:
                raise StudyError(
                    f"{text} that {cell} was started with; nothing was started",
                    why=f"fingerprint was {before.get(name)}, is {prepared.facts[name]}",
                    hint="another --out, or the files as they were",
                )


def check_files(resolved: Resolved, root: Path, record: Record) -> None:
    """A finished cell may not pass for one on other files. Where they are gone, there is nothing to say."""
    data = resolved.recipe.data
    if isinstance(data.path, str) and not Path(data.path).expanduser().exists():
        return
    if data.path is not None and find_source(task_named(data.task), data.path).fingerprint() != record.data["files"]:
        raise StudyError(
            f"the data are not those that {root / resolved.cell.folder} was made with; nothing was started",
            where=str(data.path),
            hint="another --out, or the files as they were",
        )


def _reads_alike(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two recipes ask for the same tokens, wherever the files lie."""
    data = [{**(recipe.get("data") or {}), "path": None} for recipe in (one, other)]
    return data[0] == data[1] and one.get("model") == other.get("model")


def check_arms(arms: list[Resolved], *, watch: Watch) -> None:
    """Apply every arm's treatment once, so that one that does not fit the model is refused before hours of others."""
    from oelm.train.signals import listening

    with listening() as stop:
        try:
            _check_arms(arms, watch)
        except KeyboardInterrupt:
            raise Stopped("stopped at once; no cell was started", signal=stop.signal or signal.SIGINT) from None


def _check_arms(arms: list[Resolved], watch: Watch) -> None:
    from oelm.heads.apply import apply
    from oelm.train.preparation import model_for, prepared_for

    models: dict[str, Any] = {}
    for resolved in arms:
        recipe = resolved.recipe
        key = repr((recipe.model, recipe.data))
        if key not in models:
            models[key] = model_for(recipe, prepared_for(recipe, watch), seed=resolved.cell.seed)
        try:
            apply(models[key], resolved.arm.treatment, seed=resolved.cell.seed).undo()
        except OelmError as error:
            raise StudyError(f"arm '{resolved.arm.name}' does not fit the model", why=str(error)) from error
