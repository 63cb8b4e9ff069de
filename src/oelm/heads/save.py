"""Save and load a treated model: a vanilla checkpoint, and `oelm.json` that says what was done and proves it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import nn

from oelm.errors import AuditFailed, FolderError, ModelError, OelmError
from oelm.heads.find import projections_in
from oelm.heads.freeze import freezes, set_learning, split_fused
from oelm.heads.integrity import has_adapters
from oelm.heads.region import Region, hashes_of, regions_of
from oelm.treatment import Treatment
from oelm.version import __version__

if TYPE_CHECKING:
    from oelm.heads.applied import Applied

RECORD = "oelm.json"
FORMAT = 1


def save_pretrained(applied: Applied, folder: str | Path) -> None:
    model = applied.model
    save = getattr(model, "save_pretrained", None)
    if save is None:
        raise ModelError(
            f"{type(model).__name__} has no save_pretrained",
            hint="safetensors.torch.save_model(model, path); its state_dict has the vanilla names and tensors",
        )
    if has_adapters(model) or hasattr(model, "peft_config"):
        raise ModelError(
            "PEFT saves the adapter alone, which would lose the treated weights below it",
            hint="model.merge_and_unload().save_pretrained(folder), or save the base model before adding the adapter",
        )
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file, not a folder")
    held = [r for r in applied.regions if r.key in applied.frozen_hashes and freezes(applied.treatment, r)]
    now = hashes_of(applied.regions)
    frozen = {region.key: now[region.key] for region in held}
    learn = {region.key for region in held if region.parameter.requires_grad}
    moved = [key for key, digest in frozen.items() if digest != applied.frozen_hashes[key] or key in learn]
    if moved:
        raise AuditFailed(
            f"{len(moved)} frozen tensors have moved, or began to learn, since they were frozen; nothing was saved",
            where="\n".join(moved[:8]),
            hint="applied.audit().check() says more",
        )
    record = {
        "format": FORMAT,
        "oelm": __version__,
        "treatment": applied.treatment.to_dict(),
        "seed": applied.seed,
        "frozen": frozen,
        "given_back": [key for key in applied.freezable if key not in frozen],
        "written": [key for key, digest in now.items() if digest == applied.hashes_at_apply[key]],
        "counts": applied.counts.to_dict(),
    }
    # An old record must not vouch for new weights, should writing them be interrupted.
    (folder / RECORD).unlink(missing_ok=True)
    save(folder)
    partial = folder / f"{RECORD}.partial"
    partial.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    partial.replace(folder / RECORD)


def from_pretrained(folder: str | Path, auto_class: Any = None, **kwargs: Any) -> tuple[nn.Module, Applied]:
    """Load a folder written by `applied.save_pretrained`: frozen as it was, and verified against its hashes.

    The class is the one that was saved; `auto_class` (any `transformers.Auto...` or model class) chooses another.
    Further keywords go to its `from_pretrained`.
    """
    from oelm.heads.applied import Applied
    from oelm.models.load import load_model

    saved = read_saved(folder)
    model = load_model(folder, auto_class, **kwargs)
    regions, frozen = saved_regions(model, saved, folder)
    differing = [key for key, digest in hashes_of(frozen).items() if digest != saved.frozen[key]]
    if differing:
        raise FolderError(
            f"{len(differing)} of {len(frozen)} frozen tensors are not those that were saved",
            where="\n".join([f"{Path(folder) / RECORD}", *differing[:8], *(["..."] if len(differing) > 8 else [])]),
            why="the weights were changed after saving, or loaded in another dtype than they were saved in",
            hint="`oelm audit FOLDER --against BASE` shows what still agrees",
        )
    freezable = [region for region in regions if freezes(saved.treatment, region)]
    for _ in split_fused([region.projection for region in freezable if region.kind == "weight"]):
        pass
    set_learning(frozen, False)
    applied = Applied(
        model,
        treatment=saved.treatment,
        seed=saved.seed,
        regions=regions,
        freezable=[region.key for region in freezable],
        norms={},  # of the weights that were replaced, nothing is left
        before=None,
    )
    # Orthonormality and scale are promised of what the treatment wrote, not of what training made of it.
    for region in regions:
        if region.key not in saved.written:
            applied.hashes_at_apply[region.key] = "trained before it was saved"
    return model, applied


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What `oelm.json` says of the weights beside it."""

    treatment: Treatment
    seed: int
    frozen: dict[str, str]
    """SHA-256 by region."""
    given_back: list[str]
    """Regions that the treatment froze and that learnt again when it was saved."""
    written: list[str]
    """Regions that were still as the treatment left them."""
    oelm: str


def saved_regions(model: nn.Module, saved: Saved, folder: str | Path) -> tuple[list[Region], list[Region]]:
    """(all treated regions, those that were saved frozen) of a model loaded from the folder."""
    projections = projections_in(model, saved.treatment.layers)
    regions = [region for projection in projections for region in regions_of(projection)]
    by_key = {region.key: region for region in regions}
    unknown = sorted(saved.frozen.keys() - by_key.keys())
    if unknown:
        raise FolderError(
            f"{len(unknown)} frozen tensors of {RECORD} are not in the model",
            where=f"{Path(folder) / RECORD}: {unknown[0]}",
            why=f"it was loaded as {type(model).__name__}, whose heads have other names, or the file was changed",
            hint="load the class that was saved",
        )
    promised = {region.key for region in regions if freezes(saved.treatment, region)}
    if promised != saved.frozen.keys() | set(saved.given_back):
        raise FolderError(
            f"{Path(folder) / RECORD} is damaged",
            why=f"its treatment freezes {len(promised)} tensors; it has {len(saved.frozen)} hashes, "
            f"and {len(saved.given_back)} tensors given back",
        )
    return regions, [by_key[key] for key in saved.frozen]


def read_saved(folder: str | Path) -> Saved:
    """Read and check the `oelm.json` of a folder."""
    path = Path(folder) / RECORD
    if not Path(folder).is_dir():
        raise FolderError(f"there is no folder {folder}")
    if not path.is_file():
        cell = (Path(folder) / "model" / RECORD).is_file()  # of a study, with the model inside
        raise FolderError(
            f"{folder} has no {RECORD}: it was not saved by applied.save_pretrained",
            hint=f"oelm audit {Path(folder) / 'model'}"
            if cell
            else "load it with transformers and oelm.apply(...), or compare it: oelm audit FOLDER --against BASE",
        )
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, OSError) as error:
        raise FolderError(f"{path} cannot be read", why=str(error)) from error
    if not isinstance(data, dict) or not isinstance(data.get("format"), int):
        raise FolderError(f"{path} is damaged", why="it has no format number")
    if data["format"] > FORMAT:
        raise FolderError(
            f"{path} has format {data['format']}; oelm {__version__} reads up to {FORMAT}",
            why=f"it was written by oelm {data.get('oelm', 'of a later version')}",
            hint="pip install --upgrade oelm",
        )
    frozen, seed, treated = data.get("frozen"), data.get("seed"), data.get("treatment")
    given_back, written = data.get("given_back"), data.get("written")
    hashes = isinstance(frozen, dict) and all(isinstance(v, str) and len(v) == 64 for v in frozen.values())
    lists = all(isinstance(v, list) and all(isinstance(key, str) for key in v) for v in (given_back, written))
    if not (hashes and lists and isinstance(seed, int) and isinstance(treated, dict)):
        raise FolderError(f"{path} is damaged", why="treatment, seed or the hashes of frozen tensors are missing")
    try:
        treatment = Treatment.from_dict(treated)
    except OelmError as error:
        raise FolderError(f"{path} is damaged", why=str(error)) from error
    return Saved(
        treatment=treatment,
        seed=seed,
        frozen=data["frozen"],
        given_back=data["given_back"],
        written=data["written"],
        oelm=str(data.get("oelm")),
    )
