"""Audit a saved model, ours or anyone's: against its own record, or against the model it came from."""

from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from oelm.errors import FolderError, ModelError
from oelm.heads.apply import apply
from oelm.heads.audit import Audit, Finding, geometry_of
from oelm.heads.count import count
from oelm.heads.find import find_projections
from oelm.heads.region import Region, hashes_of, regions_of
from oelm.heads.save import RECORD, Saved, read_saved, saved_regions
from oelm.models.load import load_model


def audit_folder(folder: str | Path, *, against: str | Path | None = None) -> Audit:
    """Compare the frozen bits of a saved model with what they should be.

    With an `oelm.json`, its hashes say what they should be; with `against`, so does the same treatment applied anew to
    that base model. Without an `oelm.json`, every query and key should be as in the base.
    """
    folder = Path(folder)
    ours = (folder / RECORD).is_file()
    if not ours and against is None:
        read_saved(folder)  # says that there is none, and what to try
    model = load_model(folder)
    projections = find_projections(model)  # says at once if the layout is not known
    looked_at, findings = _counts(model, folder)
    if ours:
        saved = read_saved(folder)
        _, frozen = saved_regions(model, saved, folder)
        looked_at["treatment"] = f"{saved.treatment}, seed {saved.seed}, by oelm {saved.oelm}"
        findings += _against_record(frozen, saved)
        looked_at["frozen bits"] = f"{len(frozen)} tensors by SHA-256 against {RECORD}"
        covered, found = geometry_of(
            [region for region in frozen if region.kind == "weight" and region.key in saved.written], saved.treatment
        )
        looked_at["geometry"] = covered
        findings += found
    else:
        saved = None
        frozen = [region for projection in projections for region in regions_of(projection)]
    if against is not None:
        looked_at["base"], found = _against_base(model, frozen, saved, against)
        findings += found
    return Audit(findings=tuple(findings), looked_at=looked_at)


def _counts(model: nn.Module, folder: Path) -> tuple[dict[str, str], list[Finding]]:
    counts = count(model)
    in_files = 0
    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (a safetensors file is no mapping)
                    names.add(name)
                    if not file.get_slice(name).get_dtype().startswith(("F", "BF")):
                        continue  # position numbers and the like are no weights
                    shape = file.get_slice(name).get_shape()
                    size = 1
                    for length in shape:
                        size *= length
                    in_files += size
        except SafetensorError as error:
            raise FolderError(f"{path} cannot be read", why=str(error)) from error
    looked_at = {
        "model": type(model).__name__,
        "counts": f"{counts.total:,} weights, {counts.buffers:,} of them in buffers, {counts.qk or 0:,} Q/K",
        "files": f"{in_files:,} numbers in {len(names)} tensors",
    }
    findings = []
    if names and in_files > counts.total:
        findings.append(
            Finding(
                code="COUNT-MISSES-BUFFERS",
                expected=f"{in_files:,} weights, as many as in the files",
                measured=f"{counts.total:,} in the model that was loaded",
                where=str(folder),
            )
        )
    return looked_at, findings


def _against_record(frozen: list[Region], saved: Saved) -> list[Finding]:
    return [
        Finding(
            code="FROZEN-MOVED",
            expected=f"sha256 {saved.frozen[key][:12]} of {RECORD}",
            measured=digest[:12],
            where=key,
        )
        for key, digest in hashes_of(frozen).items()
        if digest != saved.frozen[key]
    ]


def _against_base(
    model: nn.Module, frozen: list[Region], saved: Saved | None, against: str | Path
) -> tuple[str, list[Finding]]:
    base = load_model(against, type(model), dtype=next(model.parameters()).dtype)
    if saved is not None:
        apply(base, saved.treatment, seed=saved.seed, keep_undo=False)
    theirs = {region.key: region for projection in find_projections(base) for region in regions_of(projection)}
    if not theirs.keys() >= {region.key for region in frozen}:
        raise ModelError(f"{against} has other heads than the audited model, so they cannot be compared")
    expected = "as the treatment makes them from the base" if saved is not None else "as in the base"
    exact = saved is None or saved.treatment.init == "keep"
    compared = [region for region in frozen if saved is None or region.key in saved.written]
    differing = [region for region in compared if not _same(region, theirs[region.key], exact=exact)]
    findings = [
        Finding(code="DIFFERS-FROM-BASE", expected=expected, measured="other bits", where=region.key)
        for region in differing
    ]
    return f"{len(compared) - len(differing)} of {len(compared)} tensors {expected}", findings


def _same(mine: Region, theirs: Region, *, exact: bool) -> bool:
    """Bit for bit; or, where the treatment was computed anew, up to how another number of threads rounds."""
    first, second = mine.copy(), theirs.copy()
    if torch.equal(first, second):
        return True
    bound = 4 * torch.finfo(first.dtype).eps * second.abs().max().item()
    return not exact and bool(((first - second).abs() <= bound).all())
