"""Freeze and give back: which parameters of a projection learn."""

from collections.abc import Iterator, Sequence

from torch import nn

from oelm.heads.region import Region
from oelm.heads.split import RowPlan, Split, Unsplit, split_
from oelm.heads.view import Projection
from oelm.treatment import Treatment


def freezes(treatment: Treatment, region: Region) -> bool:
    """Whether the treatment wants this region frozen."""
    return region.projection.role in treatment.frozen_roles and (region.kind == "weight" or treatment.bias == "freeze")


def split_fused(projections: Sequence[Projection]) -> Iterator[Unsplit]:
    """Split every fused matrix of `projections` so that these can be frozen apart from what they are fused with."""
    fused: dict[int, list[Projection]] = {}
    for projection in projections:
        if needs_split(projection):
            fused.setdefault(id(projection.owner), []).append(projection)
    for together in fused.values():
        yield _split(together)


def needs_split(projection: Projection) -> bool:
    """A fused matrix that learns; one that an adapter method froze as a whole stays whole."""
    owner = projection.owner
    if not projection.shares_matrix or isinstance(owner, Split):
        return False
    return bool(getattr(owner, projection.weight_name).requires_grad)


def _split(projections: Sequence[Projection]) -> Unsplit:
    first = projections[0]
    owner, head_dim = first.owner, first.head_dim
    matrix = getattr(owner, first.weight_name)
    rows = matrix.shape[1] if first.layout.transposed else matrix.shape[0]
    chosen = {start for projection in projections for start in projection.starts}
    in_reservoir = [block * head_dim in chosen for block in range(rows // head_dim)]
    plan = RowPlan.from_blocks(in_reservoir, head_dim)
    return split_(owner, plan, transposed=first.layout.transposed)


def set_learning(regions: Sequence[Region], learning: bool) -> list[nn.Parameter]:
    """Let regions learn or not; returns the parameters whose flag changed, each once."""
    changed: dict[int, nn.Parameter] = {}
    for region in regions:
        parameter = region.parameter
        if parameter.requires_grad != learning:
            parameter.requires_grad_(learning)
            if not learning:
                parameter.grad = None
            changed[id(parameter)] = parameter
    return list(changed.values())
