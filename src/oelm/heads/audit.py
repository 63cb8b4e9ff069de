"""Audit: measure everything an applied treatment promises, and list what does not hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import torch

from oelm.errors import AuditFailed
from oelm.heads.find import find_projections
from oelm.heads.integrity import task_head
from oelm.heads.measure import gram, orthonormal_tolerance
from oelm.heads.region import Region, hashes_of
from oelm.treatment import ORTHONORMAL, Treatment

if TYPE_CHECKING:
    from oelm.heads.applied import Applied


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One promise that does not hold."""

    code: str
    expected: str
    measured: str
    where: str

    def __str__(self) -> str:
        return f"{self.code}  {self.where}: expected {self.expected}, measured {self.measured}"


@dataclass(frozen=True, kw_only=True)
class Audit:
    """The result: what was looked at, and every finding."""

    findings: tuple[Finding, ...]
    looked_at: dict[str, str]
    """What each part of the audit covered, in words."""

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

    def to_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, "findings": [asdict(finding) for finding in self.findings], "looked_at": self.looked_at}

    def __str__(self) -> str:
        lines = ["audit passed" if self.ok else f"audit FAILED, {len(self.findings)} findings"]
        width = max(map(len, self.looked_at), default=0)
        lines += [f"  {part:<{width}}  {covered}" for part, covered in self.looked_at.items()]
        return "\n".join([*lines, *(f"  ! {finding}" for finding in self.findings)])


_Part = tuple[str, str, Iterator[Finding]]  # name, what was covered, findings


def audit(applied: Applied, *, optimizer: torch.optim.Optimizer | None, stepped: bool | None) -> Audit:
    hashes = hashes_of(applied.regions)
    parts: list[_Part] = [
        _counts(applied),
        _bits(applied, hashes),
        _geometry(applied, hashes),
        _learning(applied),
        _task_head(applied),
    ]
    if optimizer is not None:
        parts.append(_optimizer(applied, optimizer))
    parts.append(_gradients(applied))
    if stepped or (stepped is None and optimizer is not None and optimizer.state):
        parts.append(_moved(applied, optimizer))
    return Audit(
        findings=tuple(finding for _, _, findings in parts for finding in findings),
        looked_at={name: covered for name, covered, _ in parts},
    )


def _counts(applied: Applied) -> _Part:
    now, then = applied.counts, applied.counts_at_apply
    # Layers may have been given back, or taken again, since.
    sizes = {region.key: region.numel for region in applied.regions}
    frozen = then.frozen + sum(sizes[key] for key in applied.frozen_hashes.keys() - applied.frozen_at_apply)
    frozen -= sum(sizes[key] for key in applied.frozen_at_apply - applied.frozen_hashes.keys())

    def findings() -> Iterator[Finding]:
        for name, expected, measured in (
            ("total", then.total, now.total),
            ("qk", then.qk, now.qk),
            ("frozen", frozen, now.frozen),
        ):
            if expected != measured:
                yield Finding(
                    code="COUNT-DIFFERS",
                    expected=f"{expected:,} {name} weights",
                    measured=f"{measured:,}",
                    where=type(applied.model).__name__,
                )

    share = 100 * now.frozen / now.total
    return "counts", f"{now.frozen:,} frozen of {now.total:,} ({share:.3f} %), {now.qk:,} Q/K", findings()


def _bits(applied: Applied, hashes: dict[str, str]) -> _Part:
    frozen = applied.frozen

    def findings() -> Iterator[Finding]:
        for region in frozen:
            expected = applied.frozen_hashes.get(region.key, applied.hashes_at_apply[region.key])
            measured = hashes[region.key]
            if measured != expected:
                dtype = str(region.parameter.dtype).removeprefix("torch.")
                yield Finding(
                    code="FROZEN-MOVED",
                    expected=f"sha256 {expected[:12]}",
                    measured=f"{measured[:12]} ({dtype})",
                    where=region.key,
                )

    return "frozen bits", f"{len(frozen)} tensors by SHA-256", findings()


def _geometry(applied: Applied, hashes: dict[str, str]) -> _Part:
    """Orthonormality and scale of every head whose weights are still those that were written."""
    weights = [region for region in applied.regions if region.kind == "weight"]
    written = [region for region in weights if hashes[region.key] == applied.hashes_at_apply[region.key]]
    covered, findings = geometry_of(written, applied.treatment, norms=applied.norms)
    return "geometry", covered, iter(findings)


def geometry_of(
    weights: Sequence[Region], treatment: Treatment, *, norms: dict[str, list[float]] | None = None
) -> tuple[str, list[Finding]]:
    """What was covered, and the heads whose rows are not orthonormal or not of the right size."""
    orthonormal = treatment.init in ORTHONORMAL
    findings: list[Finding] = []
    worst = 0.0
    for region in weights:
        projection = region.projection
        tolerance = orthonormal_tolerance(region.parameter.dtype)
        eye_DD = torch.eye(projection.head_dim, dtype=torch.float64, device="cpu")
        for head, gram_DD in enumerate(gram(projection)):
            where = f"{region.key}, layer {projection.layer}, head {head}"
            measured = gram_DD.trace().sqrt().item()
            expected = norms[region.key][head] if norms and region.key in norms else None
            if orthonormal and treatment.scale == "unit":
                expected = projection.head_dim**0.5
            if expected is not None and not abs(measured - expected) <= tolerance * expected:
                findings.append(
                    Finding(
                        code="WRONG-SCALE", expected=f"norm {expected:.6g}", measured=f"{measured:.6g}", where=where
                    )
                )
            if orthonormal:
                deviation = (gram_DD * (projection.head_dim / measured**2) - eye_DD).abs().max().item()
                worst = max(worst, deviation)
                if not deviation <= tolerance:
                    findings.append(
                        Finding(
                            code="NOT-ORTHONORMAL",
                            expected=f"max |W W^T - I| <= {tolerance:.1e}",
                            measured=f"{deviation:.1e}",
                            where=where,
                        )
                    )
    heads = sum(region.projection.num_heads for region in weights)
    layers = len({region.projection.layer for region in weights})
    rows = f"orthonormal to {worst:.1e}" if orthonormal else "no orthonormality claimed"
    return f"{heads} heads in {layers} layers, {rows}; scale {treatment.scale or 'kept'}", findings


def _learning(applied: Applied) -> _Part:
    """Every parameter learns or not as it did right after `apply`, but for layers given back."""
    ours = {id(region.parameter) for region in applied.regions}
    others = [(name, p) for name, p in applied.model.named_parameters() if id(p) not in ours]

    def findings() -> Iterator[Finding]:
        for name, parameter in others:
            expected = applied.flags_at_apply.get(name)
            if expected is not None and parameter.requires_grad != expected:
                yield Finding(
                    code="LEARNING-CHANGED",
                    expected="trainable, as at apply" if expected else "frozen, as at apply",
                    measured="trainable" if parameter.requires_grad else "frozen",
                    where=name,
                )
        for region in applied.regions:
            if region.key in applied.frozen_hashes and region.parameter.requires_grad:
                yield Finding(
                    code="FROZEN-LEARNS",
                    expected="requires_grad False",
                    measured="requires_grad True, and not by applied.unfreeze",
                    where=region.key,
                )

    return "learning", f"{len(others)} other parameters learn as at apply", findings()


def _task_head(applied: Applied) -> _Part:
    head = task_head(applied.model)

    def findings() -> Iterator[Finding]:
        for name, parameter in head.items():
            if not parameter.requires_grad:
                yield Finding(
                    code="HEAD-FROZEN", expected="trainable task head and pooler", measured="frozen", where=name
                )

    return "task head", f"{len(head)} tensors of task head and pooler looked at", findings()


def _gradients(applied: Applied) -> _Part:
    parameters = list(applied.model.named_parameters())
    have = [name for name, p in parameters if p.grad is not None]

    def findings() -> Iterator[Finding]:
        for name, parameter in parameters:
            if not parameter.requires_grad and parameter.grad is not None:
                yield Finding(code="FROZEN-HAS-GRADIENT", expected="no gradient", measured="one", where=name)
            if have and parameter.requires_grad and parameter.grad is None:
                yield Finding(code="NO-GRADIENT", expected="a gradient, as others have", measured="none", where=name)

    return "gradients", f"{len(have)} tensors have one" if have else "none at the moment", findings()


def _optimizer(applied: Applied, optimizer: torch.optim.Optimizer) -> _Part:
    groups = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    times: dict[int, int] = {}
    for parameter in groups:
        times[id(parameter)] = times.get(id(parameter), 0) + 1
    names = {id(parameter): name for name, parameter in applied.model.named_parameters()}

    def findings() -> Iterator[Finding]:
        for name, parameter in applied.model.named_parameters():
            number = times.get(id(parameter), 0)
            if parameter.requires_grad and number != 1:
                code = "OPTIMIZER-MISSES" if number == 0 else "OPTIMIZER-TWICE"
                yield Finding(code=code, expected="in exactly one group", measured=f"in {number}", where=name)
            if not parameter.requires_grad and number:
                yield Finding(code="OPTIMIZER-HAS-FROZEN", expected="in no group", measured=f"in {number}", where=name)
            if not parameter.requires_grad and optimizer.state.get(parameter):
                yield Finding(code="FROZEN-HAS-STATE", expected="no optimizer state", measured="some", where=name)
        strangers = {id(parameter) for parameter in groups} - names.keys()
        if strangers:
            yield Finding(
                code="OPTIMIZER-STALE",
                expected="only parameters of this model",
                measured=f"{len(strangers)} that are not (built before apply?)",
                where=f"{len(optimizer.param_groups)} groups",
            )

    return "optimizer", f"{len(groups)} tensors in {len(optimizer.param_groups)} groups", findings()


def _moved(applied: Applied, optimizer: torch.optim.Optimizer | None) -> _Part:
    from oelm.heads.applied import fingerprint

    # Attention does not see a shift of all keys, so a key bias may rightly stay where it is.
    exempt = {id(r.parameter) for r in applied.regions if r.kind == "bias" and r.projection.role == "k"}
    exempt |= {
        id(p.bias_parameter)
        for p in find_projections(applied.model)
        if p.role == "k" and p.has_bias and not p.shares_matrix and p.bias_name == "bias"
    }
    due = [
        (name, parameter)
        for name, parameter in applied.model.named_parameters()
        if parameter.requires_grad
        and id(parameter) not in exempt
        and parameter.dtype not in (torch.bfloat16, torch.float16)  # small steps may be lost in rounding
        # a layer given back since the last step has no state yet
        and (optimizer is None or not optimizer.state or parameter in optimizer.state)
    ]

    def findings() -> Iterator[Finding]:
        for name, parameter in due:
            if applied.fingerprints.get(name) == fingerprint(parameter):
                yield Finding(code="NOT-MOVED", expected="moved by training", measured="the same bits", where=name)

    return "movement", f"{len(due)} trainable tensors compared with their start", findings()
