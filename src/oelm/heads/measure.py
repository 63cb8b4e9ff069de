"""Measure heads: how orthonormal their rows are, and how large.

Shape suffixes: H = heads, D = rows of a head, M = model width.
"""

from dataclasses import asdict, dataclass

import torch
from torch import Tensor, nn

from oelm.heads.find import find_projections
from oelm.heads.projection import Projection
from oelm.heads.sharded import gather_params
from oelm.treatment import Role


@dataclass(frozen=True, kw_only=True)
class Orthonormality:
    """How close one head's block is to orthonormal rows."""

    layer: int
    role: Role
    head: int
    name: str
    """Path of the weight in the untreated model."""
    deviation: float
    """max |W W^T - I|."""
    cosine: float
    """The largest |cosine| of the angle between two of its rows: 0 where they are orthogonal, whatever their length."""
    smallest: float
    """Smallest singular value."""
    largest: float
    """Largest singular value."""
    norm: float
    """Frobenius norm."""

    def to_dict(self) -> dict[str, int | float | str]:
        return asdict(self)


def orthonormality(model: nn.Module) -> list[Orthonormality]:
    """One row per layer, role and head, measured in float64."""
    return [row for projection in find_projections(model) for row in measure(projection)]


def measure(projection: Projection) -> list[Orthonormality]:
    """One row per head."""
    gram_HDD = gram(projection)
    eye_DD = torch.eye(projection.head_dim, dtype=torch.float64, device="cpu")
    deviation_H = (gram_HDD - eye_DD).abs().amax((-2, -1))
    length_HD = gram_HDD.diagonal(dim1=-2, dim2=-1).sqrt()
    cosine_H = cosines(gram_HDD).amax((-2, -1))
    finite = bool(gram_HDD.isfinite().all())
    values_HD = (
        torch.linalg.eigvalsh(gram_HDD).clamp(min=0).sqrt()
        if finite
        else gram_HDD.new_full(gram_HDD.shape[:2], torch.nan)
    )
    norm_H = length_HD.square().sum(-1).sqrt()
    return [
        Orthonormality(
            layer=projection.layer,
            role=projection.role,
            head=head,
            name=projection.name,
            deviation=deviation_H[head].item(),
            cosine=cosine_H[head].item(),
            smallest=values_HD[head, 0].item(),
            largest=values_HD[head, -1].item(),
            norm=norm_H[head].item(),
        )
        for head in range(projection.num_heads)
    ]


def cosines(gram_DD: Tensor) -> Tensor:
    """|cosine| of the angle between every two rows, (..., D, D), and 0 on the diagonal."""
    length_D = gram_DD.diagonal(dim1=-2, dim2=-1).sqrt()
    some_D = length_D.where(length_D > 0, 1)  # a row of zeros is orthogonal to all others
    cosine_DD = gram_DD / (some_D[..., :, None] * some_D[..., None, :])
    return cosine_DD.masked_fill(torch.eye(gram_DD.shape[-1], dtype=torch.bool, device=gram_DD.device), 0).abs()


def gram(projection: Projection) -> Tensor:
    """W W^T of every head, (H, D, D), in float64 on the CPU."""
    with gather_params(projection.owner):
        blocks = (projection.weight_rows(head).detach().cpu().double() for head in range(projection.num_heads))
        return torch.stack([block_DM @ block_DM.mT for block_DM in blocks])


def orthonormal_tolerance(dtype: torch.dtype) -> float:
    """The largest max |W W^T - I| of orthonormal rows: rounding entries to `dtype` changes it by one eps."""
    return max(1e-5, 2 * torch.finfo(dtype).eps)
