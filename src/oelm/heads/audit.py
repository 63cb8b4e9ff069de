"""Audit: verify everything a treatment promises, of a model in memory or of a saved folder, and list what fails."""

from __future__ import annotations

import copy
import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from oelm.errors import AuditFailed, FolderError, ModelError
from oelm.facts import Counts
from oelm.format import html_lines, html_table
from oelm.heads.applied import Applied, fingerprint
from oelm.heads.apply import choose_treatable
from oelm.heads.attention import find_norm
from oelm.heads.count import count
from oelm.heads.find import by_layer, find_projections
from oelm.heads.freeze import task_head_parameters
from oelm.heads.measure import cosines, gram, orthonormal_tolerance
from oelm.heads.projection import ParamSlice, param_slices, parameter_hashes, slice_hashes
from oelm.heads.save import OELM_JSON, SavedTreatment, counts_as_loaded, load_saved, read_oelm_json, saved_slices
from oelm.heads.write import write_heads
from oelm.models.load import load_model
from oelm.treatment import DRAWN, Treatment


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One promise that does not hold."""

    code: str
    """Its name, explained in docs/how-it-works.md."""
    expected: str
    measured: str
    where: str

    def __str__(self) -> str:
        return f"{self.code}  {self.where}: expected {self.expected}, measured {self.measured}"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result: what was checked, and every finding."""

    findings: tuple[Finding, ...]
    examined: dict[str, str]
    """What each part of the audit covered."""

    @property
    def ok(self) -> bool:
        return not self.findings

    def check(self) -> Audit:
        """Raise `AuditFailed` with every finding, or return the audit."""
        if self.findings:
            number = len(self.findings)
            raise AuditFailed(
                f"the audit has {number} finding{'s' if number > 1 else ''}",
                where="\n".join(map(str, self.findings)),
            )
        return self

    def to_dict(self) -> dict[str, object]:
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings], "examined": self.examined}

    @property
    def _verdict(self) -> str:
        return "audit passed" if self.ok else f"audit FAILED, {len(self.findings)} findings"

    def _repr_html_(self) -> str:
        html = html_lines(self._verdict) + html_table([("part", "checked"), *self.examined.items()], left=_LEFT)
        if self.findings:
            rows = [(one.code, one.where, one.expected, one.measured) for one in self.findings]
            html += html_table([("finding", "where", "expected", "measured"), *rows], left=_LEFT)
        return html

    def __str__(self) -> str:
        lines = [self._verdict]
        width = max(map(len, self.examined), default=0)
        lines += [f"  {part:<{width}}  {covered}" for part, covered in self.examined.items()]
        return "\n".join([*lines, *(f"  ! {finding}" for finding in self.findings)])


_LEFT = ("part", "checked", "finding", "where", "expected", "measured")
_Part = tuple[str, str, list[Finding]]  # name, what was covered, findings


def audit(applied: Applied, *, optimizer: torch.optim.Optimizer | None, stepped: bool | None) -> Audit:
    """See `Applied.audit`."""
    hashes = slice_hashes(applied.slices)
    parts: list[_Part] = [
        _counts(applied),
        _frozen_bits(applied, hashes),
        _geometry(applied, hashes),
        _requires_grad(applied),
        _task_head(applied),
    ]
    if optimizer is not None:
        parts.append(_optimizer(applied, optimizer))
    parts.append(_gradients(applied))
    if stepped or (stepped is None and optimizer is not None and optimizer.state):
        parts.append(_moved(applied, optimizer))
    return Audit(
        findings=tuple(finding for _, _, findings in parts for finding in findings),
        examined={name: covered for name, covered, _ in parts},
    )


def _counts(applied: Applied) -> _Part:
    now, then = applied.counts, applied.counts_at_apply
    # Layers may have been unfrozen, or frozen again, since.
    sizes = {param_slice.key: param_slice.numel for param_slice in applied.slices}
    frozen = then.frozen + sum(sizes[key] for key in applied.frozen_hashes.keys() - applied.frozen_at_apply)
    frozen -= sum(sizes[key] for key in applied.frozen_at_apply - applied.frozen_hashes.keys())
    counted = (("total", then.total, now.total), ("qk", then.qk, now.qk), ("frozen", frozen, now.frozen))
    where = type(applied.model).__name__
    findings = [
        Finding(code="COUNT-DIFFERS", expected=f"{expected:,} {name} weights", measured=f"{measured:,}", where=where)
        for name, expected, measured in counted
        if expected != measured
    ]
    share = 100 * now.frozen / now.total
    return "counts", f"{now.frozen:,} frozen of {now.total:,} ({share:.3f} %), {now.qk:,} Q/K", findings


def _frozen_bits(applied: Applied, hashes: dict[str, str]) -> _Part:
    findings = []
    for param_slice in applied.frozen:
        key, dtype = param_slice.key, str(param_slice.parameter.dtype).removeprefix("torch.")
        expected, measured = applied.frozen_hashes.get(key, applied.hashes_at_apply[key]), hashes[key]
        if measured != expected:
            wanted, found = f"sha256 {expected[:12]}", f"{measured[:12]} ({dtype})"
            findings.append(Finding(code="FROZEN-MOVED", expected=wanted, measured=found, where=key))
    parameters = dict(applied.model.named_parameters())
    others = parameter_hashes({name: parameters[name] for name in applied.other_hashes if name in parameters})
    for name, measured in others.items():
        if measured != (expected := applied.other_hashes[name]):
            wanted = f"sha256 {expected[:12]}"
            findings.append(Finding(code="FROZEN-MOVED", expected=wanted, measured=measured[:12], where=name))
    return "frozen bits", f"{len(applied.frozen) + len(others)} tensors by SHA-256", findings


def _geometry(applied: Applied, hashes: dict[str, str]) -> _Part:
    """Rows and scale of every head that still has the weights that the treatment wrote, or is kept orthonormal."""
    weights = [one for one in applied.slices if one.kind == "weight"]
    kept = {one.key for one in applied.kept_orthonormal}
    written = [one for one in weights if one.key in kept or hashes[one.key] == applied.hashes_at_apply[one.key]]
    covered, findings = _check_geometry(written, applied.treatment, norms=applied.norms)
    return "geometry", covered, findings


def _check_geometry(
    weights: Sequence[ParamSlice], treatment: Treatment, *, norms: dict[str, list[float]] | None = None
) -> tuple[str, list[Finding]]:
    """(what was covered, findings): heads whose rows are not orthonormal, or whose norm is wrong."""
    orthonormal = treatment.rows == "orthonormal"
    findings: list[Finding] = []
    worst = 0.0
    for param_slice in weights:
        projection = param_slice.projection
        tolerance = orthonormal_tolerance(param_slice.parameter.dtype)
        eye_DD = torch.eye(projection.head_dim, dtype=torch.float64, device="cpu")
        for head, gram_DD in enumerate(gram(projection)):
            where = f"{param_slice.key}, layer {projection.layer}, head {head}"
            measured = gram_DD.trace().sqrt().item()
            expected = norms[param_slice.key][head] if norms and param_slice.key in norms else None
            if orthonormal and treatment.scale == "unit":
                expected = projection.head_dim**0.5
            elif treatment.init == "zero" and treatment.blend == 1:
                expected = 0.0
            if expected is not None and not abs(measured - expected) <= tolerance * expected:
                wanted = f"norm {expected:.6g}"
                findings.append(Finding(code="WRONG-SCALE", expected=wanted, measured=f"{measured:.6g}", where=where))
            if treatment.rows != "any":
                if orthonormal:
                    square = measured**2
                    unit_DD = gram_DD * (projection.head_dim / square) if square > 0 else gram_DD
                    deviation = (unit_DD - eye_DD).abs().max().item()
                    code, expected_rows = "NOT-ORTHONORMAL", f"max |W W^T - I| <= {tolerance:.1e}"
                else:
                    deviation = cosines(gram_DD).max().item()
                    code, expected_rows = "NOT-ORTHOGONAL", f"|cosine| of two rows <= {tolerance:.1e}"
                worst = max(worst, deviation)
                if not deviation <= tolerance:
                    findings.append(
                        Finding(code=code, expected=expected_rows, measured=f"{deviation:.1e}", where=where)
                    )
    heads = sum(param_slice.projection.num_heads for param_slice in weights)
    layers = len({param_slice.projection.layer for param_slice in weights})
    rows = "no orthonormality claimed" if treatment.rows == "any" else f"{treatment.rows} to {worst:.1e}"
    return f"{heads} heads in {layers} layers, {rows}; scale {treatment.scale or 'kept'}", findings


def _requires_grad(applied: Applied) -> _Part:
    """Every parameter is trainable or frozen as at `apply`, except for unfrozen layers."""
    ours = {id(param_slice.parameter) for param_slice in applied.slices}
    others = [(name, p) for name, p in applied.model.named_parameters() if id(p) not in ours]
    findings = []
    for name, parameter in others:
        then, now = applied.requires_grad_at_apply.get(name), parameter.requires_grad
        if then is not None and now != then:
            expected, measured = ("trainable" if learns else "frozen" for learns in (then, now))
            findings.append(
                Finding(code="LEARNING-CHANGED", expected=f"{expected}, as at apply", measured=measured, where=name)
            )
    for param_slice in applied.slices:
        if param_slice.key in applied.frozen_hashes and param_slice.parameter.requires_grad:
            measured = "requires_grad True, but not by applied.unfreeze"
            where = param_slice.key
            findings.append(
                Finding(code="FROZEN-LEARNS", expected="requires_grad False", measured=measured, where=where)
            )
    return "requires_grad", f"{len(others)} other parameters as at apply", findings


def _task_head(applied: Applied) -> _Part:
    head = task_head_parameters(applied.model)
    findings = [
        Finding(code="HEAD-FROZEN", expected="trainable task head and pooler", measured="frozen", where=name)
        for name, parameter in head.items()
        if not parameter.requires_grad and name not in applied.frozen_by_design
    ]
    return "task head", f"{len(head)} tensors of task head and pooler", findings


def _gradients(applied: Applied) -> _Part:
    parameters = list(applied.model.named_parameters())
    have = [name for name, p in parameters if p.grad is not None]
    findings = []
    for name, parameter in parameters:
        if not parameter.requires_grad and parameter.grad is not None:
            findings.append(Finding(code="FROZEN-HAS-GRADIENT", expected="no gradient", measured="one", where=name))
        if have and parameter.requires_grad and parameter.grad is None:
            findings.append(
                Finding(code="NO-GRADIENT", expected="a gradient, like others", measured="none", where=name)
            )
    return "gradients", f"{len(have)} tensors have one" if have else "none", findings


def _optimizer(applied: Applied, optimizer: torch.optim.Optimizer) -> _Part:
    groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    times = Counter(map(id, groups))

    def findings() -> Iterator[Finding]:
        for name, parameter in applied.model.named_parameters():
            number = times[id(parameter)]
            if parameter.requires_grad and number != 1:
                code = "OPTIMIZER-MISSES" if number == 0 else "OPTIMIZER-TWICE"
                yield Finding(code=code, expected="in exactly one group", measured=f"in {number}", where=name)
            if not parameter.requires_grad and number:
                yield Finding(code="OPTIMIZER-HAS-FROZEN", expected="in no group", measured=f"in {number}", where=name)
            if not parameter.requires_grad and optimizer.state.get(parameter):
                yield Finding(code="FROZEN-HAS-STATE", expected="no optimizer state", measured="some", where=name)
        foreign = times.keys() - set(map(id, applied.model.parameters()))
        if foreign:
            yield Finding(
                code="OPTIMIZER-STALE",
                expected="only parameters of this model",
                measured=f"{len(foreign)} others (built before apply?)",
                where=f"{len(optimizer.param_groups)} groups",
            )

    return "optimizer", f"{len(groups)} tensors in {len(optimizer.param_groups)} groups", list(findings())


def _moved(applied: Applied, optimizer: torch.optim.Optimizer | None) -> _Part:
    # Attention is invariant to a shift of all keys, so a key bias may not move.
    exempt = {id(s.parameter) for s in applied.slices if s.kind == "bias" and s.projection.role == "k"}
    exempt |= {
        id(p.bias_parameter)
        for p in find_projections(applied.model)
        if p.role == "k" and p.has_bias and not p.shares_matrix and p.bias_name == "bias"
    }
    if applied.treatment.init == "zero":  # and the norms of what is zero get no gradient
        norms = [find_norm(one.projection) for one in applied.frozen]
        exempt |= {id(parameter) for norm in norms if norm is not None for parameter in norm.parameters()}
    due = [
        (name, parameter)
        for name, parameter in applied.model.named_parameters()
        if parameter.requires_grad
        and id(parameter) not in exempt
        and parameter.dtype not in (torch.bfloat16, torch.float16)  # small steps may be lost to rounding
        # a layer unfrozen since the last step has no state yet
        and (optimizer is None or not optimizer.state or parameter in optimizer.state)
    ]
    findings = [
        Finding(code="NOT-MOVED", expected="moved by training", measured="unchanged", where=name)
        for name, parameter in due
        if applied.fingerprints.get(name) == fingerprint(parameter)
    ]
    return "movement", f"{len(due)} trainable tensors compared with their initial values", findings


def audit_folder(folder: str | Path, *, against: str | Path | None = None) -> Audit:
    """Audit a saved model, with or without an `oelm.json`.

    With an `oelm.json`, its counts and hashes must be those of the model, and what it says was written must be what the
    treatment makes: of the base model `against`, or, if it draws new weights, of any model. Without an `oelm.json`,
    every query and key must be as in the base.
    """
    folder = Path(folder)
    treated = (folder / OELM_JSON).is_file()
    saved = read_oelm_json(folder) if treated or against is None else None  # raises if there is none
    model = load_model(folder) if saved is None else load_saved(folder, saved)
    projections = find_projections(model)  # raises if the layout is unknown
    examined, findings = _saved_counts(model, folder)
    if saved is not None:
        slices, frozen = saved_slices(model, saved, folder)
        examined["treatment"] = f"{saved.treatment}, seed {saved.seed}, by oelm {saved.oelm}"
        findings += _against_counts(counts_as_loaded(model, frozen), saved)
        findings += _against_hashes(frozen, saved)
        examined["frozen bits"] = f"{len(frozen)} tensors by SHA-256 against {OELM_JSON}"
        promised = saved.treatment.keep_orthonormal  # whatever was trained since
        written = [one for one in slices if one.kind == "weight" and (promised or one.key in saved.written)]
        examined["geometry"], found = _check_geometry(written, saved.treatment)
        findings += found
    else:
        slices = [param_slice for projection in projections for param_slice in param_slices(projection)]
    if against is not None:
        base = load_model(against, type(model), dtype=next(model.parameters()).dtype)
        made = "as in the base" if saved is None else "as the treatment makes them from the base"
        examined["base"], found = _against_base(slices, saved, base, made)
        findings += found
    elif saved is not None and saved.treatment.init in DRAWN and saved.treatment.blend == 1:
        # Weights that are drawn do not depend on those that they replace: the model itself will do for a base.
        weights = [one for one in slices if one.kind == "weight"]
        examined["draws"], found = _against_base(weights, saved, copy.deepcopy(model), "as the seed draws them")
        findings += found
    return Audit(findings=tuple(findings), examined=examined)


def _saved_counts(model: nn.Module, folder: Path) -> tuple[dict[str, str], list[Finding]]:
    counts = count(model)
    in_files = 0
    names: set[str] = set()
    for path in sorted(folder.glob("*.safetensors")):
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118  (a safetensors file is not a mapping)
                    names.add(name)
                    if not file.get_slice(name).get_dtype().startswith(("F", "BF")):
                        continue  # position ids and the like are not weights
                    in_files += math.prod(file.get_slice(name).get_shape())
        except (SafetensorError, OSError) as error:
            raise FolderError(f"cannot read {path}", why=str(error)) from error
    examined = {
        "model": type(model).__name__,
        "counts": f"{counts.total:,} weights, {counts.buffers:,} of them in buffers, {counts.qk or 0:,} Q/K",
        "files": f"{in_files:,} numbers in {len(names)} tensors",
    }
    findings = []
    if names and in_files > counts.total:
        findings.append(
            Finding(
                code="COUNT-MISSES-BUFFERS",
                expected=f"{in_files:,} weights, as in the files",
                measured=f"{counts.total:,} in the loaded model",
                where=str(folder),
            )
        )
    return examined, findings


def _against_hashes(frozen: list[ParamSlice], saved: SavedTreatment) -> list[Finding]:
    return [
        Finding(
            code="FROZEN-MOVED",
            expected=f"sha256 {saved.frozen[key][:12]} of {OELM_JSON}",
            measured=digest[:12],
            where=key,
        )
        for key, digest in slice_hashes(frozen).items()
        if digest != saved.frozen[key]
    ]


def _against_counts(counts: Counts, saved: SavedTreatment) -> list[Finding]:
    if counts == saved.counts:
        return []
    expected, measured = (
        f"{one.total:,} weights, {one.trainable:,} trainable, {one.buffers:,} in buffers, {one.qk or 0:,} Q/K"
        for one in (saved.counts, counts)
    )
    return [Finding(code="COUNT-DIFFERS", expected=expected, measured=measured, where=OELM_JSON)]


def _against_base(
    slices: list[ParamSlice], saved: SavedTreatment | None, base: nn.Module, made: str
) -> tuple[str, list[Finding]]:
    """(what was covered, findings): tensors that are said to be as they were made and are not; and the reverse."""
    found = find_projections(base)
    if saved is not None and saved.treatment.init != "keep":
        # That attention is what it was is proved by `apply`; here it is compared what was written.
        write_heads(base, by_layer(choose_treatable(base, found, saved.treatment)), saved.treatment, saved.seed)
    theirs = {one.key: one for projection in found for one in param_slices(projection)}
    if not theirs.keys() >= {one.key for one in slices}:
        raise ModelError("cannot compare with the base: its heads differ from those of the audited model")
    exact = saved is None or saved.treatment.init == "keep"
    compared = [one for one in slices if saved is None or one.key in saved.written]
    differing = [one for one in compared if not _is_same(one, theirs[one.key], exact=exact)]
    findings = [
        Finding(code="DIFFERS-FROM-BASE", expected=made, measured="different", where=one.key) for one in differing
    ]
    findings += [
        Finding(code="WRITTEN-DIFFERS", expected=f"trained since, by {OELM_JSON}", measured=made, where=one.key)
        for one in slices
        if one not in compared and _is_same(one, theirs[one.key], exact=True)
    ]
    return f"{len(compared) - len(differing)} of {len(compared)} tensors {made}", findings


def _is_same(mine: ParamSlice, theirs: ParamSlice, *, exact: bool) -> bool:
    """Bit for bit; or, if the treatment was recomputed, up to rounding with another number of threads."""
    first, second = mine.copy(), theirs.copy()
    if first.shape != second.shape or torch.equal(first, second):
        return first.shape == second.shape
    bound = 4 * torch.finfo(first.dtype).eps * second.abs().max().item()
    return not exact and bool(((first - second).abs() <= bound).all())
