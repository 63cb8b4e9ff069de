"""Applied: a treatment that has been applied to a model, and everything one can ask of it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, TreatmentError
from oelm.heads.count import Counts, count
from oelm.heads.find import num_layers
from oelm.heads.freeze import set_learning
from oelm.heads.optimizer import add_to_optimizer, remove_from_optimizer
from oelm.heads.region import Region, hashes_of
from oelm.heads.split import Unsplit, join_
from oelm.heads.whole import is_sharded, whole
from oelm.treatment import Treatment, select_layers

if TYPE_CHECKING:
    from oelm.heads.audit import Audit


@dataclass(frozen=True)
class Before:
    """What the model was before the treatment, for `undo`."""

    flags: dict[str, bool]
    """`requires_grad` by parameter name."""
    copies: dict[str, Tensor] = field(default_factory=dict, repr=False)
    """The weights that were replaced, by region."""
    unsplits: list[Unsplit] = field(default_factory=list, repr=False)
    nested: list[nn.TransformerEncoder] = field(default_factory=list, repr=False)
    """torch encoders that used nested tensors."""

    def restore_(self, model: nn.Module, regions: Iterable[Region]) -> None:
        """Make the model what it was, as far as this remembers."""
        for unsplit in self.unsplits:
            join_(unsplit)
        for region in regions:
            if region.key in self.copies:
                region.restore_(self.copies[region.key])
            region.projection.attention.__dict__.pop("_oelm_treated", None)
        for encoder in self.nested:
            encoder.use_nested_tensor = True
        for name, parameter in model.named_parameters():
            if name in self.flags:  # what was added since, an adapter for example, is not ours
                parameter.requires_grad_(self.flags[name])


class Applied:
    """What `oelm.apply` returns. It refers to the model and never replaces it."""

    def __init__(
        self,
        model: nn.Module,
        *,
        treatment: Treatment,
        seed: int,
        regions: Sequence[Region],
        freezable: Iterable[str],
        norms: dict[str, list[float]],
        before: Before | None,
    ) -> None:
        self.model = model
        self.treatment = treatment
        self.seed = seed
        self.regions = tuple(regions)
        """Weights and biases of every treated projection, frozen or not."""
        self.norms = norms
        """For scale `match`: the norm of every head that was replaced, by region."""
        self.freezable = tuple(freezable)
        """Regions that learnt until the treatment froze them."""
        self._before = before
        self._undone = False
        self.counts_at_apply = count(model)
        self.flags_at_apply = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
        self.hashes_at_apply = hashes_of(self.regions)
        self.frozen_at_apply = frozenset(region.key for region in self.frozen)
        self.frozen_hashes = {region.key: self.hashes_at_apply[region.key] for region in self.frozen}
        """SHA-256 of every frozen region since it was last frozen."""
        self.fingerprints = {
            name: fingerprint(parameter) for name, parameter in model.named_parameters() if parameter.requires_grad
        }
        """Of every trainable parameter since it last began to learn: a different one means it has moved."""
        for region in self.regions:
            region.projection.attention.__dict__["_oelm_treated"] = True

    @property
    def frozen(self) -> list[Region]:
        """The treated regions that do not learn, as things are now."""
        return [region for region in self.regions if not region.parameter.requires_grad]

    @property
    def counts(self) -> Counts:
        return count(self.model)

    @property
    def layers(self) -> list[int]:
        """The treated layers."""
        return sorted({region.projection.layer for region in self.regions})

    def audit(self, *, optimizer: torch.optim.Optimizer | None = None, stepped: bool | None = None) -> Audit:
        """Measure everything the treatment promises. `.check()` on the result raises if anything does not hold.

        With the optimizer, its groups are audited too. Where it has taken steps (`stepped`; by default, where it has
        state), every trainable tensor must have moved; where gradients are there, every trainable tensor must have one.
        """
        from oelm.heads.audit import audit

        self._alive()
        return audit(self, optimizer=optimizer, stepped=stepped)

    def unfreeze(
        self, layers: str | Sequence[int] = "all", *, optimizer: torch.optim.Optimizer | None = None
    ) -> list[nn.Parameter]:
        """Let frozen layers learn again; returns the parameters given back.

        An optimizer does not know them yet: pass it here to have them added to its groups, or add them yourself.
        """
        regions = [region for region in self._regions_in(layers) if not region.parameter.requires_grad]
        if not regions:
            raise TreatmentError(
                f"layers {layers!r}: the treatment holds none of them frozen",
                hint=f"layers it holds frozen: {self._frozen_layers() or 'none'}",
            )
        if self._before is not None:  # what was only frozen has no copy yet, and may be trained away now
            for region in regions:
                self._before.copies.setdefault(region.key, region.copy())
        parameters = set_learning(regions, True)
        for region in regions:
            self.frozen_hashes.pop(region.key, None)
        given_back = {id(parameter) for parameter in parameters}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in given_back:
                self.fingerprints[name] = fingerprint(parameter)
        if optimizer is not None:
            alike = {id(r.parameter): list(r.projection.attention.parameters()) for r in regions}
            add_to_optimizer(optimizer, parameters, alike=alike)
        return parameters

    def refreeze(
        self, layers: str | Sequence[int] = "all", *, optimizer: torch.optim.Optimizer | None = None
    ) -> list[nn.Parameter]:
        """Freeze layers again as they are now; returns the parameters taken. An optimizer given here forgets them."""
        regions = [region for region in self._regions_in(layers) if region.parameter.requires_grad]
        if not regions:
            raise TreatmentError(f"layers {layers!r}: nothing of them is there to be frozen again")
        parameters = set_learning(regions, False)
        self.frozen_hashes |= hashes_of(regions)
        taken = {id(parameter) for parameter in parameters}
        for name, parameter in self.model.named_parameters():
            if id(parameter) in taken:
                self.fingerprints.pop(name, None)
        if optimizer is not None:
            remove_from_optimizer(optimizer, parameters)
        return parameters

    def advance(self, progress: float, *, optimizer: torch.optim.Optimizer | None = None) -> list[nn.Parameter]:
        """Follow the treatment's `unfreeze` schedule to `progress` (0 to 1) of the budget; returns what it gave."""
        if not 0 <= progress <= 1:
            raise TreatmentError(f"progress is a fraction of the budget from 0 to 1, got {progress!r}")
        schedule = self.treatment.unfreeze
        if schedule is None:
            return []
        due = set(schedule.layers_back(self.layers, progress)) & set(self._frozen_layers())
        return self.unfreeze(sorted(due), optimizer=optimizer) if due else []

    def undo(self) -> None:
        """Make queries and keys bit for bit what they were before `apply`, learning as they did.

        `apply` touched nothing else, so without training in between that is the whole model; what training
        changed elsewhere stays.
        """
        self._alive()
        if self._before is None:
            raise ModelError(
                "there is nothing to go back to",
                why="the model was treated with keep_undo=False, or loaded as it was saved",
                hint="load the untreated model again",
            )
        self._in_one_piece()
        self._before.restore_(self.model, self.regions)
        self._undone = True

    def save_pretrained(self, folder: str | Path) -> None:
        """`model.save_pretrained(folder)` and beside it `oelm.json`: treatment, seed, hashes of the frozen tensors."""
        from oelm.heads.save import save_pretrained

        self._alive()
        save_pretrained(self, folder)

    def _alive(self) -> None:
        if self._undone:
            raise ModelError("this treatment has been undone", hint="oelm.apply(model, ...) again")

    def _in_one_piece(self) -> None:
        for region in self.regions:
            if is_sharded(region.parameter):
                raise ModelError(
                    "the model was sharded after the treatment, which fixes its weights and what learns",
                    where=region.key,
                    hint="change the treatment first, then shard the model",
                )

    def _regions_in(self, layers: str | Sequence[int]) -> list[Region]:
        """The regions of these layers that learnt until the treatment froze them."""
        self._alive()
        self._in_one_piece()
        chosen = set(select_layers(layers, num_layers(self.model)))
        return [region for region in self.regions if region.projection.layer in chosen and region.key in self.freezable]

    def _frozen_layers(self) -> list[int]:
        return sorted({region.projection.layer for region in self.frozen if region.key in self.freezable})

    def __str__(self) -> str:
        from oelm.heads.table import applied_table

        return applied_table(self)

    def __repr__(self) -> str:
        return f"<Applied {self.treatment}, seed {self.seed}, on {type(self.model).__name__}>"


def fingerprint(parameter: Tensor) -> int:
    """A fast sum over the bits of a tensor. Only for 'has it moved?': what must not move is hashed with SHA-256."""
    bits = whole(parameter).detach().contiguous().view(-1).view(torch.uint8)
    wide = bits.numel() - bits.numel() % 8
    head = bits[:wide].view(torch.int64).sum().item() if bits.storage_offset() % 8 == 0 else bits[:wide].sum().item()
    return int(head) ^ int(bits[wide:].sum().item())
