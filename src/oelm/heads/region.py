"""Region: the weights, or the biases, of one projection: the unit that is frozen, hashed and recorded."""

import hashlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from oelm.errors import ModelError
from oelm.heads.view import Projection
from oelm.heads.whole import gathered, is_sharded


@dataclass(frozen=True, eq=False)
class Region:
    projection: Projection
    kind: Literal["weight", "bias"]

    @property
    def key(self) -> str:
        """Its name in records: the parameter's path, with `[q]` or `[k]` where it is only a part of it."""
        projection = self.projection
        if self.kind == "weight":
            path, part_only = projection.name, projection.shares_matrix
        else:
            path = projection.bias_path
            part_only = projection.shares_matrix or projection.bias_name == "in_proj_bias"
        return f"{path}[{projection.role}]" if part_only else path

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter it is, or is a part of, as things are now."""
        return self.projection.weight_parameter if self.kind == "weight" else self.projection.bias_parameter

    @property
    def numel(self) -> int:
        projection = self.projection
        return projection.num_heads * projection.head_dim * (projection.width if self.kind == "weight" else 1)

    def rows(self, head: int) -> Tensor:
        rows = self.projection.weight_rows(head) if self.kind == "weight" else self.projection.bias_rows(head)
        return rows.detach()

    def copy(self) -> Tensor:
        """All heads, (H, D, M) for weights and (H, D) for biases."""
        return torch.stack([self.rows(head) for head in range(self.projection.num_heads)])

    @torch.no_grad()
    def restore_(self, copy: Tensor) -> None:
        for head in range(self.projection.num_heads):
            self.rows(head).copy_(copy[head])

    def norms(self) -> list[float]:
        """The Frobenius norm of every head's rows."""
        heads = range(self.projection.num_heads)
        return [torch.linalg.vector_norm(self.rows(head).cpu(), dtype=torch.float64).item() for head in heads]

    def sha256(self) -> str:
        """Of the bytes of all heads' rows in order: for a whole matrix, the bytes of that matrix."""
        digest = hashlib.sha256()
        with gathered(self.projection.owner, [self.parameter]):
            if type(self.parameter.data) is not Tensor:
                raise ModelError(
                    f"the bits of a {type(self.parameter.data).__name__} cannot be hashed",
                    where=self.key,
                    why="the model was quantised after the treatment",
                    hint="audit it before",
                )
            for head in range(self.projection.num_heads):
                digest.update(self.rows(head).contiguous().cpu().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def regions_of(projection: Projection) -> list[Region]:
    return [Region(projection, "weight")] + ([Region(projection, "bias")] if projection.has_bias else [])


def hashes_of(regions: Sequence[Region]) -> dict[str, str]:
    """SHA-256 by key, several regions at a time: hashing leaves the interpreter free for other threads."""
    if any(is_sharded(region.parameter) for region in regions):  # all processes must take them in one order
        return {region.key: region.sha256() for region in regions}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return dict(zip([region.key for region in regions], pool.map(Region.sha256, regions), strict=True))
