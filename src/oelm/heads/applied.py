"""Applied: a treatment applied to a model; audit, unfreeze, undo, save and print it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, TreatmentError
from oelm.facts import Counts
from oelm.format import format_columns, html_lines, html_table
from oelm.heads.count import count
from oelm.heads.find import num_layers
from oelm.heads.freeze import add_to_optimizer, remove_from_optimizer, set_requires_grad
from oelm.heads.init import orthonormalize_rows
from oelm.heads.projection import ParamSlice, parameter_hashes, slice_hashes
from oelm.heads.sharded import full_tensor, is_sharded
from oelm.heads.split import Unsplit, join_
from oelm.treatment import Treatment, select_layers

if TYPE_CHECKING:
    from oelm.heads.audit import Audit


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """The model before the treatment, for `undo`."""

    requires_grad: dict[str, bool]
    """By parameter name."""
    copies: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """The replaced or trainable weights and biases, by slice."""
    unsplits: list[Unsplit] = field(default_factory=list, repr=False)
    """Fused modules that were split."""
    nested: list[nn.TransformerEncoder] = field(default_factory=list, repr=False)
    """Encoders of torch that used nested tensors."""

    def restore_(self, model: nn.Module, slices: Iterable[ParamSlice]) -> None:
        """Restore the model, as far as it is in the snapshot."""
        for unsplit in self.unsplits:
            join_(unsplit)
        for param_slice in slices:
            if param_slice.key in self.copies:
                param_slice.restore_(self.copies[param_slice.key])
            param_slice.projection.attention.__dict__.pop("_oelm_treated", None)
        for encoder in self.nested:
            encoder.use_nested_tensor = True
        for name, parameter in model.named_parameters():
            if name in self.requires_grad:  # leave parameters added since, e.g. by an adapter
                parameter.requires_grad_(self.requires_grad[name])


class Applied:
    """What `oelm.apply` returns. It refers to the model and never replaces it."""

    def __init__(
        self,
        model: nn.Module,
        *,
        treatment: Treatment,
        seed: int,
        slices: Sequence[ParamSlice],
        freezable: Iterable[str],
        norms: dict[str, list[float]],
        counts: Counts,
        snapshot: Snapshot | None,
    ) -> None:
        self.model = model
        self.treatment = treatment
        self.seed = seed
        self.slices = tuple(slices)
        """Weights and biases of every treated projection, frozen or trainable."""
        self.norms = norms
        """For scale `match`: the norm that every head has, by slice."""
        self.freezable = tuple(freezable)
        """Keys of the slices that the treatment froze."""
        self._snapshot = snapshot
        self._undone = False
        self.counts_at_apply = counts
        parameters = dict(model.named_parameters())
        self.requires_grad_at_apply = {name: parameter.requires_grad for name, parameter in parameters.items()}
        self.hashes_at_apply = slice_hashes(self.slices)
        self.frozen_at_apply = frozenset(param_slice.key for param_slice in self.frozen)
        self.frozen_hashes = {one.key: self.hashes_at_apply[one.key] for one in self.frozen}
        """SHA-256 of every frozen slice when it was last frozen."""
        self.other_hashes = parameter_hashes(self.other_frozen)
        """SHA-256 of every other parameter that was frozen already, by an adapter method or by hand."""
        self.frozen_by_design: frozenset[str] = frozenset()
        """Names of parameters that are frozen on purpose: of a task head or pooler, the audit would report it."""
        self.fingerprints = {
            name: fingerprint(parameter) for name, parameter in parameters.items() if parameter.requires_grad
        }
        """Of every trainable parameter when it became trainable: a different one means that it has moved."""
        for param_slice in self.slices:
            param_slice.projection.attention.__dict__["_oelm_treated"] = True
        self._row_lengths = {one.key: _row_lengths(one, treatment) for one in self.kept_orthonormal}

    @property
    def frozen(self) -> list[ParamSlice]:
        """The treated slices that are frozen now."""
        return [param_slice for param_slice in self.slices if not param_slice.parameter.requires_grad]

    @property
    def other_frozen(self) -> dict[str, nn.Parameter]:
        """The parameters that are frozen now and are more than what was treated, by name."""
        treated: dict[int, int] = {}
        for param_slice in self.slices:
            key = id(param_slice.parameter)
            treated[key] = treated.get(key, 0) + param_slice.numel
        return {
            name: parameter
            for name, parameter in self.model.named_parameters()
            if not parameter.requires_grad and treated.get(id(parameter), 0) < parameter.numel()
        }

    @property
    def kept_orthonormal(self) -> list[ParamSlice]:
        """The weights that `retract` makes orthonormal again."""
        return [one for one in self.slices if one.kind == "weight" and self.treatment.keep_orthonormal]

    @torch.no_grad()
    def retract(self) -> None:
        """Make trainable rows orthonormal again, at their length: call it after every step (`keep_orthonormal`)."""
        self._check_not_undone()
        if self.treatment.keep_orthonormal:
            self._check_not_sharded("keep_orthonormal needs whole heads in every process: DistributedDataParallel")
        for param_slice in self.kept_orthonormal:
            lengths_H11 = self._row_lengths[param_slice.key]
            rows_HDM = param_slice.copy()
            rows_HDM = rows_HDM.cpu() if rows_HDM.device.type == "mps" else rows_HDM  # which has no float64
            rows_HDM = orthonormalize_rows(rows_HDM.double())
            param_slice.restore_(rows_HDM * lengths_H11.to(rows_HDM))

    @property
    def counts(self) -> Counts:
        """Numbers of weights, now."""
        return count(self.model)

    @property
    def layers(self) -> list[int]:
        """The treated layers."""
        return sorted({param_slice.projection.layer for param_slice in self.slices})

    def audit(self, *, optimizer: torch.optim.Optimizer | None = None, stepped: bool | None = None) -> Audit:
        """Verify everything the treatment promises. `.check()` on the result raises if anything does not hold.

        With the optimizer, its groups are audited too. If it has taken steps (`stepped`; by default, if it has state),
        every trainable tensor must have moved; if there are gradients, every trainable tensor must have one.
        """
        from oelm.heads.audit import audit

        self._check_not_undone()
        return audit(self, optimizer=optimizer, stepped=stepped)

    def unfreeze(
        self, layers: str | Sequence[int] = "all", *, optimizer: torch.optim.Optimizer | None = None
    ) -> list[nn.Parameter]:
        """Unfreeze layers; returns the unfrozen parameters.

        Pass the optimizer to add them to its groups, or add them yourself.
        """
        slices = [param_slice for param_slice in self._slices_in(layers) if not param_slice.parameter.requires_grad]
        if not slices:
            raise TreatmentError(
                f"layers {layers!r}: none of them is frozen by the treatment",
                hint=f"frozen layers: {self._frozen_layers() or 'none'}",
            )
        if self._snapshot is not None:  # unchanged slices have no copy yet, and training may change them now
            for param_slice in slices:
                self._snapshot.copies.setdefault(param_slice.key, param_slice.copy())
        parameters = set_requires_grad(slices, True)
        for param_slice in slices:
            self.frozen_hashes.pop(param_slice.key, None)
        unfrozen = {id(parameter) for parameter in parameters}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in unfrozen:
                self.fingerprints[name] = fingerprint(parameter)
        if optimizer is not None:
            alike = {id(r.parameter): list(r.projection.attention.parameters()) for r in slices}
            add_to_optimizer(optimizer, parameters, alike=alike)
        return parameters

    def refreeze(
        self, layers: str | Sequence[int] = "all", *, optimizer: torch.optim.Optimizer | None = None
    ) -> list[nn.Parameter]:
        """Freeze layers again with their current weights; returns the frozen parameters.

        Pass the optimizer to remove them from its groups.
        """
        slices = [param_slice for param_slice in self._slices_in(layers) if param_slice.parameter.requires_grad]
        if not slices:
            raise TreatmentError(f"layers {layers!r}: none of them can be frozen again")
        parameters = set_requires_grad(slices, False)
        self.frozen_hashes |= slice_hashes(slices)
        frozen = {id(parameter) for parameter in parameters}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in frozen:
                self.fingerprints.pop(name, None)
        if optimizer is not None:
            remove_from_optimizer(optimizer, parameters)
        return parameters

    def advance(self, progress: float, *, optimizer: torch.optim.Optimizer | None = None) -> list[nn.Parameter]:
        """Follow the treatment's `unfreeze` schedule to `progress` (0 to 1); returns the unfrozen parameters."""
        if not 0 <= progress <= 1:
            raise TreatmentError(f"progress must be a fraction of the budget from 0 to 1, got {progress!r}")
        schedule = self.treatment.unfreeze
        if schedule is None:
            return []
        due = set(schedule.unfrozen_layers(self.layers, progress)) & set(self._frozen_layers())
        return self.unfreeze(sorted(due), optimizer=optimizer) if due else []

    def undo(self) -> None:
        """Restore queries and keys, bit for bit, and every `requires_grad` to what they were before `apply`.

        `apply` changes nothing else, so without training in between that restores the model; other weights that
        training changed stay as they are.
        """
        self._check_not_undone()
        if self._snapshot is None:
            raise ModelError(
                "cannot undo: there is no copy of the original weights",
                why="the model was treated with keep_undo=False, or loaded from a folder",
                hint="load the untreated model again",
            )
        self._check_not_sharded()
        self._snapshot.restore_(self.model, self.slices)
        self._undone = True

    def save_pretrained(self, folder: str | Path) -> None:
        """`model.save_pretrained(folder)`, and `oelm.json`: treatment, seed, hashes of the frozen tensors."""
        from oelm.heads.save import save_pretrained

        self._check_not_undone()
        save_pretrained(self, folder)

    def _check_not_undone(self) -> None:
        if self._undone:
            raise ModelError("the treatment was undone", hint="call oelm.apply(model, ...) again")

    def _check_not_sharded(self, hint: str = "unfreeze, refreeze or undo first, then shard the model") -> None:
        for param_slice in self.slices:
            if is_sharded(param_slice.parameter):
                raise ModelError(
                    "cannot change a sharded model: sharding fixes the weights and what is trainable",
                    where=param_slice.key,
                    hint=hint,
                )

    def _slices_in(self, layers: str | Sequence[int]) -> list[ParamSlice]:
        """The slices of these layers that the treatment froze."""
        self._check_not_undone()
        self._check_not_sharded()
        selected = set(select_layers(layers, num_layers(self.model)))
        return [
            param_slice
            for param_slice in self.slices
            if param_slice.projection.layer in selected and param_slice.key in self.freezable
        ]

    def _frozen_layers(self) -> list[int]:
        return sorted(
            {param_slice.projection.layer for param_slice in self.frozen if param_slice.key in self.freezable}
        )

    def __str__(self) -> str:
        """Per role and in total: layers, heads, layout, and numbers of frozen and trainable weights."""
        return "\n".join([_title(self), *format_columns(_rows(self), left=_LEFT), *_notes(self)])

    def _repr_html_(self) -> str:
        return html_lines(_title(self)) + html_table(_rows(self), left=_LEFT) + html_lines(*_notes(self))

    def __repr__(self) -> str:
        return f"<Applied {self.treatment}, seed {self.seed}, on {type(self.model).__name__}>"


def _row_lengths(param_slice: ParamSlice, treatment: Treatment) -> Tensor:
    """The length of the orthonormal rows of every head, (H, 1, 1)."""
    norms_H = torch.tensor(param_slice.norms(), dtype=torch.float64, device="cpu")
    lengths_H = (
        torch.ones_like(norms_H) if treatment.scale == "unit" else norms_H / param_slice.projection.head_dim**0.5
    )
    return lengths_H[:, None, None]


def fingerprint(parameter: Tensor) -> int:
    """A fast checksum of a tensor, to detect movement; what must not move is hashed with SHA-256."""
    bits = full_tensor(parameter).detach().contiguous().view(-1).view(torch.uint8)
    aligned = bits.numel() - bits.numel() % 8
    words = bits[:aligned].view(torch.int64) if bits.storage_offset() % 8 == 0 else bits[:aligned]
    return int(words.sum().item()) ^ int(bits[aligned:].sum().item())


_COLUMNS: tuple[str, ...] = ("", "layers", "heads", "head", "layout", "frozen", "trainable", "total", "share")
_LEFT = ("", "head", "layout")


def _title(applied: Applied) -> str:
    return f"{type(applied.model).__name__}: {applied.treatment}, seed {applied.seed}"


def _rows(applied: Applied) -> list[tuple[str, ...]]:
    counts = applied.counts
    rows = [_COLUMNS, *(_role_row(applied, role, counts.total) for role in ("q", "k"))]
    qk_frozen = sum(param_slice.numel for param_slice in applied.frozen)
    qk = sum(param_slice.numel for param_slice in applied.slices)
    rest = ("other", "", "", "", "", counts.frozen - qk_frozen, counts.trainable - (qk - qk_frozen), counts.total - qk)
    rows.append((*map(_format_cell, rest), _percent(counts.total - qk, counts.total)))
    total = ("all", "", "", "", "", counts.frozen, counts.trainable, counts.total)
    rows.append((*map(_format_cell, total), _percent(counts.total, counts.total)))
    return rows


def _notes(applied: Applied) -> list[str]:
    counts = applied.counts
    notes = [f"frozen {counts.frozen:,} of {counts.total:,} weights ({_percent(counts.frozen, counts.total)})"]
    adapted = {param_slice.projection.role for param_slice in applied.frozen if param_slice.projection.is_adapted}
    if adapted:
        roles = " and ".join(role for role in ("q", "k") if role in adapted)
        notes.append(
            f"adapters on {roles} are trainable: the base weights are frozen, their sum with the adapter is not"
        )
    return notes


def _role_row(applied: Applied, role: str, total: int) -> tuple[str, ...]:
    slices = [param_slice for param_slice in applied.slices if param_slice.projection.role == role]
    projections = [param_slice.projection for param_slice in slices if param_slice.kind == "weight"]
    numel = sum(param_slice.numel for param_slice in slices)
    frozen = sum(param_slice.numel for param_slice in applied.frozen if param_slice.projection.role == role)
    heads = sorted({projection.num_heads for projection in projections})
    shapes = sorted({f"{projection.head_dim}x{projection.width}" for projection in projections})
    layouts = sorted({projection.arrangement for projection in projections})
    cells = (role, len(projections), _join(heads), _join(shapes), _join(layouts), frozen, numel - frozen, numel)
    return (*map(_format_cell, cells), _percent(numel, total))


def _format_cell(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _join(values: list[int] | list[str]) -> str:
    return ", ".join(map(str, values))


def _percent(part: int, total: int) -> str:
    return f"{100 * part / total:.3f} %"
