"""Save and load a treated model: a vanilla checkpoint, and `oelm.json` with the treatment and hashes that prove it."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from pydantic import StringConstraints
from torch import nn

from oelm.errors import AuditFailed, CellError, FolderError, ModelError
from oelm.facts import Counts
from oelm.heads.applied import Applied
from oelm.heads.count import count
from oelm.heads.find import projections_in
from oelm.heads.freeze import has_adapters, set_requires_grad, should_freeze, split_fused
from oelm.heads.projection import ParamSlice, param_slices, slice_hashes
from oelm.runs.files import FileType
from oelm.treatment import Treatment
from oelm.version import __version__

OELM_JSON = "oelm.json"
_Hash = Annotated[str, StringConstraints(pattern="^[0-9a-f]{64}$")]


@dataclass(frozen=True, kw_only=True)
class SavedTreatment:
    """The content of `oelm.json`."""

    oelm: str
    """The version that wrote it."""
    treatment: Treatment
    seed: int
    frozen: dict[str, _Hash]
    """SHA-256 by slice."""
    unfrozen: tuple[str, ...]
    """Slices that the treatment froze and that were unfrozen when saved."""
    written: tuple[str, ...]
    """Slices that still had the weights that the treatment wrote."""
    counts: Counts
    """Of the model as it is loaded again: what the treatment froze is frozen, and nothing else."""

    def __post_init__(self) -> None:
        for name in ("unfrozen", "written"):
            if len(set(getattr(self, name))) < len(getattr(self, name)):
                raise FolderError(f"{name} names a tensor twice")
        if both := self.frozen.keys() & set(self.unfrozen):
            raise FolderError(f"{min(both)} is both frozen and unfrozen")


_OELM_FILE = FileType(
    OELM_JSON,
    SavedTreatment,
    format=2,
    has_checksum=True,
    hint="compare the model with its base: oelm audit FOLDER --against BASE, without this file",
)


def counts_as_loaded(model: nn.Module, frozen: Sequence[ParamSlice]) -> Counts:
    """Numbers of weights if these slices are frozen and nothing else is."""
    counts = count(model)
    return replace(counts, trainable=counts.total - counts.buffers - sum(one.numel for one in frozen))


def save_pretrained(applied: Applied, folder: str | Path, *, below: nn.Module | None = None) -> None:
    """The model's own `save_pretrained`, then `oelm.json`; refused if a frozen tensor has moved.

    `below` is the model below its adapters, by itself: then that is saved.
    """
    model = applied.model if below is None else below
    save = getattr(model, "save_pretrained", None)
    if save is None:
        raise ModelError(
            f"{type(model).__name__} has no save_pretrained",
            hint="use safetensors.torch.save_model(model, path); state_dict has the vanilla names and tensors",
        )
    if has_adapters(model) or hasattr(model, "peft_config"):
        raise ModelError(
            "PEFT saves only the adapter, so the treated base weights would be lost",
            hint="call model.merge_and_unload().save_pretrained(folder), or save the base before adding the adapter",
        )
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder} is a file, not a folder")
    held = [s for s in applied.slices if s.key in applied.frozen_hashes and should_freeze(applied.treatment, s)]
    now = slice_hashes(applied.slices)
    frozen = {param_slice.key: now[param_slice.key] for param_slice in held}
    trainable = {param_slice.key for param_slice in held if param_slice.parameter.requires_grad}
    moved = [key for key, digest in frozen.items() if digest != applied.frozen_hashes[key] or key in trainable]
    if moved:
        raise AuditFailed(
            f"{len(moved)} frozen tensors have moved or become trainable since they were frozen; nothing was saved",
            where="\n".join(moved[:8]),
            hint="run applied.audit().check() for details",
        )
    record = SavedTreatment(
        oelm=__version__,
        treatment=applied.treatment,
        seed=applied.seed,
        frozen=frozen,
        unfrozen=tuple(key for key in applied.freezable if key not in frozen),
        written=tuple(key for key, digest in now.items() if digest == applied.hashes_at_apply[key]),
        counts=counts_as_loaded(model, held),
    )
    # An old file must not describe new weights if writing them is interrupted.
    (folder / OELM_JSON).unlink(missing_ok=True)
    save(folder)
    _OELM_FILE.write(folder, record)


def from_pretrained(folder: str | Path, auto_class: Any = None, **kwargs: Any) -> tuple[nn.Module, Applied]:
    """Load a folder written by `applied.save_pretrained`: frozen as it was saved, and verified against its hashes.

    The class is the saved one; `auto_class` (any `transformers.Auto...` or model class) selects another. Further
    keywords go to its `from_pretrained`.
    """
    saved = read_oelm_json(folder)
    model = load_saved(folder, saved, auto_class, **kwargs)
    slices, frozen = saved_slices(model, saved, folder)
    differing = [key for key, digest in slice_hashes(frozen).items() if digest != saved.frozen[key]]
    if differing:
        raise FolderError(
            f"{len(differing)} of {len(frozen)} frozen tensors differ from those that were saved",
            where="\n".join([f"{Path(folder) / OELM_JSON}", *differing[:8], *(["..."] if len(differing) > 8 else [])]),
            why="the weights were changed after saving, or loaded in another dtype",
            hint="run `oelm audit FOLDER --against BASE` to see what still agrees",
        )
    freezable = [param_slice for param_slice in slices if should_freeze(saved.treatment, param_slice)]
    for _ in split_fused([param_slice.projection for param_slice in freezable if param_slice.kind == "weight"]):
        pass
    set_requires_grad(frozen, False)
    applied = Applied(
        model,
        treatment=saved.treatment,
        seed=saved.seed,
        slices=slices,
        freezable=[param_slice.key for param_slice in freezable],
        norms={},  # the replaced weights were not saved
        counts=count(model),
        snapshot=None,
    )
    # Orthonormality and scale are promised for what the treatment wrote, not for what was trained since.
    for param_slice in slices:
        if param_slice.key not in saved.written:
            applied.hashes_at_apply[param_slice.key] = "trained before it was saved"
    return model, applied


def load_saved(folder: str | Path, saved: SavedTreatment, auto_class: Any = None, **kwargs: Any) -> nn.Module:
    """The model that was saved with an `oelm.json`."""
    from oelm.models.load import load_model, sentence_transformer_class

    # A SentenceTransformer's weights are in the same file as its inner model's would be: only the names differ.
    keys = [*saved.frozen, *saved.unfrozen, *saved.written]
    numbered = bool(keys) and all(key.split(".")[0].isdecimal() for key in keys)
    if auto_class is None and numbered and (Path(folder) / "modules.json").is_file():
        auto_class = sentence_transformer_class(folder)
    return load_model(folder, auto_class, **kwargs)


def saved_slices(
    model: nn.Module, saved: SavedTreatment, folder: str | Path
) -> tuple[list[ParamSlice], list[ParamSlice]]:
    """(all treated slices, those saved as frozen) of a model loaded from the folder."""
    projections = projections_in(model, saved.treatment.layers)
    slices = [param_slice for projection in projections for param_slice in param_slices(projection)]
    by_key = {param_slice.key: param_slice for param_slice in slices}
    unknown = sorted((saved.frozen.keys() | set(saved.written)) - by_key.keys())
    if unknown:
        raise FolderError(
            f"{len(unknown)} treated tensors in {OELM_JSON} are not in the model",
            where=f"{Path(folder) / OELM_JSON}: {unknown[0]}",
            why=f"the model was loaded as {type(model).__name__}, with other names of heads, or the file was modified",
            hint="load it with the class that was saved",
        )
    promised = {param_slice.key for param_slice in slices if should_freeze(saved.treatment, param_slice)}
    if promised != saved.frozen.keys() | set(saved.unfrozen):
        raise FolderError(
            f"{Path(folder) / OELM_JSON} is damaged",
            why=f"its treatment freezes {len(promised)} tensors, but it has {len(saved.frozen)} hashes "
            f"and {len(saved.unfrozen)} unfrozen tensors",
        )
    return slices, [by_key[key] for key in saved.frozen]


def read_oelm_json(folder: str | Path) -> SavedTreatment:
    """Read and validate the `oelm.json` of a folder."""
    from oelm.models.folder import BASE, check_model_folder

    path = Path(folder) / OELM_JSON
    check_model_folder(folder)
    if not Path(folder).is_dir():
        raise FolderError(f"folder {folder} does not exist")
    if not path.is_file():
        inside = [Path(folder) / "model", Path(folder) / "model" / BASE]  # of a cell, and of one with an adapter
        saved_in = next((one for one in inside if (one / OELM_JSON).is_file()), None)
        if saved_in is None:
            check_model_folder(inside[0])  # which may hold an adapter alone
        raise FolderError(
            f"{folder} has no {OELM_JSON}: it was not saved with applied.save_pretrained",
            hint=f"oelm audit {saved_in}"
            if saved_in is not None
            else "load it with transformers and oelm.apply(...), or compare it with oelm audit FOLDER --against BASE",
        )
    try:
        saved = _OELM_FILE.read(Path(folder))
    except CellError as error:
        raise FolderError(str(error)) from error
    assert saved is not None
    return saved
