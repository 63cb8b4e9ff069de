"""Saving: what freezing spares, by arithmetic. What it spares in practice is measured, never assumed."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torch import nn

from oelm.heads.find import projections_in
from oelm.heads.freeze import freezes
from oelm.heads.region import Region, regions_of
from oelm.treatment import Treatment


@dataclass(frozen=True, kw_only=True)
class Saving:
    frozen: int
    """weights that would be frozen"""
    memory_bytes: int
    """gradient and two Adam moments of the frozen weights"""
    linear_work: float
    """The most that a training step can get faster, as a share of the work in linear layers: of forward, input
    gradient and weight gradient, which cost the same, frozen weights spare the last."""

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def saving(model: nn.Module, treatment: Treatment) -> Saving:
    """What a treatment would freeze and spare; works without weights (on the meta device)."""
    treated = projections_in(model, treatment.layers)
    regions = [region for projection in treated for region in regions_of(projection) if freezes(treatment, region)]
    # Each Linear counts as often as it stands in the model: a tied output head is work, its embedding is not.
    linear = sum(
        parameter.numel()
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim == 2
    )
    return Saving(
        frozen=sum(region.numel for region in regions),
        memory_bytes=sum(3 * region.numel * region.rows(0).element_size() for region in regions),
        linear_work=_matrices(regions) / (3 * linear),
    )


def _matrices(regions: Sequence[Region]) -> int:
    return sum(region.numel for region in regions if region.kind == "weight")
