"""Origin: the cell of another study whose model a cell starts from, found and checked before anything is trained."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.data.tokenize import TokenizedTask, load_tokenizer, tokenizer_fingerprint, unbounded_fingerprint
from oelm.errors import OelmError, StudyError, did_you_mean
from oelm.models.folder import CONFIG, check_model_folder
from oelm.runs.cell_start import Origin, read_cell
from oelm.runs.files import digest_file
from oelm.runs.layout import MODEL, RECORD, STUDY
from oelm.runs.lock import read_lock
from oelm.runs.record import Record, read_record
from oelm.runs.status import read_state
from oelm.study.cells import Cell, CellSpec, origin_arm
from oelm.study.load import load_study
from oelm.study.study import Study
from oelm.treatment import Treatment

if TYPE_CHECKING:
    from oelm.heads.applied import Applied

_AT = "recipe.model.from"
_PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_HASHED = 2**20  # bytes at a time


@dataclass(frozen=True, kw_only=True)
class FoundOrigin:
    folder: Path
    """Of the cell."""
    record: Record
    """It is done."""

    @property
    def model(self) -> Path:
        return self.folder / MODEL


def check_origins(specs: Iterable[CellSpec]) -> None:
    """Refuse cells of which the model to start from is not there, all of them at once and before the first is run."""
    problems: dict[str, OelmError] = {}
    number = 0
    for spec in specs:
        number += 1
        try:
            check_model_folder(find_origin(spec).model)
        except OelmError as error:
            problems[str(spec.cell)] = error
    if not problems:
        return
    first = next(iter(problems.values()))
    if len({str(error) for error in problems.values()}) == 1:
        raise first
    lines = [f"{cell}: {str(error).splitlines()[0]}" for cell, error in problems.items()]
    raise StudyError(
        f"{len(problems)} of {number} cells have no model to start from; nothing was started",
        where=_AT,
        why="\n".join([*lines[:12], *(["..."] if len(lines) > 12 else [])]),
        hint="finish the first study, or run those that have one: --arm, --seed",
    ) from first


def find_origin(spec: CellSpec) -> FoundOrigin:
    """The cell that a cell starts from. One that is not there, has not come to its end or kept no model is refused."""
    study, folder = _open_study(spec)
    arm = origin_arm(spec.recipe.model, spec.arm)
    cell = Cell(arm=arm, seed=spec.seed)
    name, at = f"{cell} of {folder}", folder / cell.folder
    if arm not in study.arms:
        raise StudyError(
            f"{folder} has no arm '{arm}'{did_you_mean(arm, study.arms)}",
            where=f"recipe.model.arm, for the arm '{spec.arm}'",
            hint=f"one of {', '.join(study.arms)}: recipe.model.arm for all, or overrides: {{model.arm: NAME}} for one",
        )
    if spec.seed not in (*study.seeds, *study.second_stage):
        raise StudyError(
            f"{folder} has no seed {spec.seed}: every seed starts from the model of the same seed there",
            where="seeds",
            hint=f"--set seeds={list(study.seeds)}",
        )
    record = read_record(at)
    if record is None:
        raise StudyError(
            f"{name} has not come to its end: it is {read_state(at)}",
            where=_AT,
            hint=f"finish the first study: oelm run {study.name} --out {folder.parent}",
        )
    if record.status != "done":
        raise StudyError(
            f"{name} is no model to start from: it is {record.status}",
            where=_AT,
            why=record.error.first_line if record.error is not None else None,
            hint="another arm or seed of it, or none: --arm, --seed",
        )
    _check_kept(at / MODEL, record, name)
    return FoundOrigin(folder=at, record=record)


def _open_study(spec: CellSpec) -> tuple[Study, Path]:
    """The study that a cell starts from, and its run folder."""
    given = spec.recipe.model.from_
    assert given is not None
    try:
        folder = Path(given).expanduser()
        if not folder.is_dir():
            beside = sorted(one.parent.name for one in folder.parent.glob(f"*/{STUDY}"))
            raise StudyError(
                f"there is no run folder {given}{did_you_mean(folder.name, beside)}",
                where=_AT,
                why="a path is relative to the folder where oelm is started",
                hint=f"run the first study, or say where it is: --set {_AT}=RUNS/STUDY",
            )
        if not (folder / STUDY).is_file():
            studies = sorted(str(one.parent) for one in folder.glob(f"*/{STUDY}"))
            hint = f"--set {_AT}={studies[0]}" if studies else "the folder that oelm run made: RUNS/STUDY"
            is_model = (folder / CONFIG).is_file()
            raise StudyError(
                f"{given} is not the run folder of a study",
                where=_AT,
                why=f"it has no {STUDY}",
                hint=f"the folder of a model is its name: recipe.model.name={given}" if is_model else hint,
            )
    except (OSError, RuntimeError) as error:  # a name that is too long, a home that nobody has
        raise StudyError(f"{given[:200]} cannot be read", where=_AT, why=str(error)[:200]) from error
    return load_study(folder / STUDY, skip_plugins=True), folder


def _check_kept(model: Path, record: Record, name: str) -> None:
    if not model.is_dir():
        if record.spec.recipe.checkpoint.keep == "none":
            raise StudyError(
                f"{name} kept no model",
                where=_AT,
                why="recipe.checkpoint.keep is none there",
                hint="the first study once more: --set recipe.checkpoint.keep=best --out ANOTHER-FOLDER",
            )
        raise StudyError(
            f"the model of {name} is missing", where=str(model), hint="oelm fetch --models, if it was trained elsewhere"
        )
    if not list(model.glob("*.safetensors")):
        pickles = sorted(one.name for one in model.iterdir() if one.suffix in _PICKLES)
        raise StudyError(
            f"the model of {name} has no safetensors",
            where=str(model),
            why=f"{pickles[0]} is a pickle, which can run arbitrary code when loaded: oelm never loads one"
            if pickles
            else None,
            hint="the folder as that study left it: run its cell once more, in another --out",
        )


def describe_origin(spec: CellSpec) -> Origin | None:
    """What is kept of where a cell starts from; None of one that starts from no other study."""
    if spec.recipe.model.from_ is None:
        return None
    found = find_origin(spec)
    record, digest = found.record, digest_file(found.folder / RECORD)
    assert record.start is not None
    assert digest is not None
    lock = read_lock(Path(spec.recipe.model.from_).expanduser(), None)
    return Origin(
        spec=record.spec,
        lock=record.start.lock,
        record=digest.sha256,
        weights=_hash_weights(found.model),
        kept=record.spec.recipe.checkpoint.keep,
        steps=record.start.steps,
        data=record.start.data.data,
        tokenizer=record.start.data.tokenizer,
        validation=record.last_evaluation,
        tuned=tuple(lock.tune.grid) if lock is not None and lock.tune is not None else (),
    )


def _hash_weights(model: Path) -> str:
    """SHA-256 of the files of weights, by name."""
    digest = hashlib.sha256()
    for path in sorted(model.glob("*.safetensors")):
        digest.update(path.name.encode())
        with path.open("rb") as file:
            while block := file.read(_HASHED):
                digest.update(block)
    return digest.hexdigest()


def check_origin_unchanged(spec: CellSpec, root: Path, origin: Origin | None) -> None:
    """Refuse to go on with a cell that was started from another model than the one that is there now."""
    started = read_cell(root / spec.cell.folder)
    before = started.start.origin if started is not None else None
    if started is None or before == origin:
        return
    changed = [
        f"{name} was {getattr(before, name, None)}, is {getattr(origin, name, None)}"
        for name in ("weights", "record", "lock")
        if getattr(before, name, None) != getattr(origin, name, None)
    ]
    raise StudyError(
        f"the model that {spec.cell} was started from has changed; nothing was started",
        where=str(spec.recipe.model.from_),
        why="\n".join(changed) or "its record says something else",
        hint="another --out, or the first study as it was",
    )


def check_record_of_origin(spec: CellSpec, record: Record) -> None:
    """A finished cell may not pass for one from another model. Where that is gone, there is nothing to say."""
    if spec.recipe.model.from_ is None or record.start is None or record.start.origin is None:
        return
    origin = record.start.origin
    cell = Path(spec.recipe.model.from_).expanduser() / Cell(arm=origin.spec.arm, seed=origin.spec.seed).folder
    now = digest_file(cell / RECORD)
    if now is not None and now.sha256 != origin.record:
        raise StudyError(
            f"the model that {spec.cell} was made from has been trained again since; nothing was started",
            where=str(cell),
            hint="another --out, or the first study as it was",
        )


def check_tokenizer(origin: Origin | None, prepared: TokenizedTask) -> None:
    """A model reads the tokens that it was trained on."""
    now = prepared.facts.tokenizer
    if origin is not None and now != origin.tokenizer and not _is_saved_from(prepared.tokenizer, origin):
        raise StudyError(
            "the tokenizer beside the model to start from is not the one that it was trained with",
            where=f"{Cell(arm=origin.spec.arm, seed=origin.spec.seed)} of the study {origin.spec.study}",
            why=f"fingerprint was {origin.tokenizer}, is {now}",
            hint="the folder as that study left it: run its cell once more, in another --out",
        )


def _is_saved_from(tokenizer: Any, origin: Origin) -> bool:
    """Whether it is the tokenizer that the first study names, but for truncation, which it is saved without."""
    from oelm.models.folder import resolve_name

    try:
        recipe = locate_origin(origin.spec).recipe
        chosen = recipe.data.tokenizer or recipe.model
        if chosen.name is None:  # it was trained
            return False
        name = resolve_name(chosen.name)
        check_model_folder(name)
        named = load_tokenizer(name, revision=chosen.revision)
    except OelmError:  # it is not on this machine
        return False
    is_named = tokenizer_fingerprint(named) == origin.tokenizer
    return is_named and unbounded_fingerprint(named) == unbounded_fingerprint(tokenizer)


def check_frozen_as_saved(spec: CellSpec, applied: Applied) -> None:
    """What stays frozen must be what the first study froze, by the hashes in its `oelm.json`."""
    if spec.recipe.model.from_ is None or spec.recipe.model.freeze == "none":
        return
    from oelm.heads.save import read_oelm_json

    model, frozen = find_origin(spec).model, applied.frozen_hashes
    saved = read_oelm_json(model).frozen
    names = {key: _name_in(frozen, key) for key in saved}
    differing = [key for key, digest in saved.items() if frozen.get(names[key]) != digest]
    if differing:
        raise StudyError(
            f"{len(differing)} weights to keep frozen are not those that the first study froze",
            where="\n".join([str(model), *differing[:8]]),
            why="they were changed after they were saved, or are not frozen here",
            hint="the folder as that study left it: run its cell once more, in another --out",
        )


def _name_in(frozen: Collection[str], key: str) -> str:
    """What a saved weight is called here, where the model, or the one saved, may be inside another or an adapter."""
    alike = (one for one in frozen if f".{one}".endswith(f".{key}") or f".{key}".endswith(f".{one}"))
    return key if key in frozen else next(alike, key)


def locate_origin(spec: CellSpec) -> CellSpec:
    """The cell as it is built: its model is a folder, and what was frozen there is frozen by its treatment.

    A cell that starts from no other study is as it was.
    """
    if spec.recipe.model.from_ is None:
        return spec
    found = find_origin(spec)
    model = replace(spec.recipe.model, name=str(found.model))
    recipe = replace(spec.recipe, model=model)
    return replace(spec, recipe=recipe, treatment=_treatment(spec, found))


def _treatment(spec: CellSpec, found: FoundOrigin) -> Treatment:
    frozen = _frozen_there(found) if spec.recipe.model.freeze == "keep" else None
    if frozen is None:
        return spec.treatment
    if spec.treatment != Treatment():
        raise StudyError(
            f"arm '{spec.arm}' has a treatment of its own ({spec.treatment}), and what was frozen there stays so",
            where="recipe.model.freeze: keep",
            why=f"arm '{found.record.spec.arm}' of the first study: {found.record.spec.treatment}",
            hint="an arm without a treatment, or overrides: {model.freeze: none}",
        )
    return frozen


def _frozen_there(found: FoundOrigin) -> Treatment | None:
    """The freezing of a saved model as a treatment: its layers that were still frozen at the end. None if none were."""
    from oelm.heads.save import read_oelm_json, saved_slices
    from oelm.models.load import load_config, meta_model

    saved = read_oelm_json(found.model)
    if not saved.frozen:
        return None
    layers = saved.treatment.layers
    if saved.unfrozen:  # whole layers are; their numbers are not those in names, where a block has several attentions
        _, frozen = saved_slices(meta_model(load_config(found.model)), saved, found.model)
        layers = tuple(sorted({one.projection.layer for one in frozen}))
    return Treatment(freeze=saved.treatment.freeze, bias=saved.treatment.bias, layers=layers)
