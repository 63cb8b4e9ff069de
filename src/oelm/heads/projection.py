"""Views of a model's queries and keys: a `Projection` is one role of one attention module, a `HeadView` one head of it,
a `ParamSlice` the weights or biases of a projection: the unit that is frozen, hashed and recorded.

Shape suffixes: H = heads, D = rows of a head, M = model width.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor, nn

from oelm.errors import ModelError
from oelm.heads.layouts import Layout
from oelm.heads.sharded import full_tensor, gather_params, is_sharded
from oelm.heads.split import FusedSplit
from oelm.treatment import Role

SliceKind = Literal["weight", "bias"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """All heads of one role in one attention module. Rows share storage with the model."""

    layer: int
    """Index of the attention module in the model's own order, from 0."""
    role: Role
    name: str
    """Path of the weight in the untreated model, as in `state_dict`."""
    attention: nn.Module = field(repr=False)
    layout: Layout = field(repr=False)
    head_dim: int
    width: int
    starts: tuple[int, ...]
    """First row of each head in the (rows, width) matrix that holds this projection."""

    @property
    def num_heads(self) -> int:
        return len(self.starts)

    @property
    def arrangement(self) -> str:
        """The name of the order of rows; `custom` if a function computes it."""
        return self.layout.arrangement.split(":")[0]

    @property
    def shares_matrix(self) -> bool:
        """Whether the matrix also holds rows of other projections."""
        return self.layout.query == self.layout.key or (self.layout.arrangement == "key-value" and self.role == "k")

    @property
    def path(self) -> str:
        """The submodule or parameter of the attention module that holds the weight."""
        return self.layout.query if self.role == "q" else self.layout.key

    @property
    def is_adapted(self) -> bool:
        """Whether an adapter (PEFT) wraps the module that holds the weight."""
        return self.module is not self.owner

    @property
    def module(self) -> nn.Module:
        """What the model calls for it: the owner of the weight, or the adapter that wraps it."""
        found = getattr(self.attention, self.path, None)
        return found if isinstance(found, nn.Module) else self.attention

    @property
    def owner(self) -> nn.Module:
        """The module that has the weight as a parameter; not cached, since freezing may split it."""
        return owner_of(self.attention, self.path)

    @property
    def weight_name(self) -> str:
        return weight_name_of(self.attention, self.path)

    @property
    def bias_name(self) -> str:
        return "in_proj_bias" if self.weight_name != "weight" else "bias"

    @property
    def bias_path(self) -> str:
        """Path of the bias in the untreated model, like `name` for the weight."""
        return self.name.removesuffix(self.weight_name) + self.bias_name

    @property
    def has_bias(self) -> bool:
        owner = self.owner
        if isinstance(owner, FusedSplit):
            return self.bias_name in owner.fused_names
        return getattr(owner, self.bias_name, None) is not None

    @property
    def is_parameter(self) -> bool:
        """Whether the weight is trainable at all; some models keep frozen weights in buffers."""
        owner = self.owner
        return isinstance(owner, FusedSplit) or isinstance(getattr(owner, self.weight_name), nn.Parameter)

    @property
    def weight_parameter(self) -> nn.Parameter:
        return self._parameter(self.weight_name)

    @property
    def bias_parameter(self) -> nn.Parameter:
        return self._parameter(self.bias_name)

    def _parameter(self, name: str) -> nn.Parameter:
        owner = self.owner
        if isinstance(owner, FusedSplit):
            return owner.part_at(name, self.starts[0])[0]
        parameter = getattr(owner, name)
        assert isinstance(parameter, nn.Parameter)
        return parameter

    def weight_rows(self, head: int) -> Tensor:
        """Head `head`'s weights, (D, M), sharing storage with the model."""
        return self.rows("weight", (head,))[0]

    def bias_rows(self, head: int) -> Tensor:
        """Head `head`'s biases, (D,), sharing storage with the model."""
        return self.rows("bias", (head,))[0]

    def rows(self, kind: SliceKind, heads: Iterable[int]) -> list[Tensor]:
        """The weights, (D, M), or the biases, (D,), of some heads, sharing storage with the model."""
        owner, name = self.owner, self.weight_name if kind == "weight" else self.bias_name
        starts = [self.starts[head] for head in heads]
        if name == "in_proj_bias" and self.weight_name == "k_proj_weight":  # one bias for q, k and v
            assert isinstance(self.attention, nn.MultiheadAttention)
            starts = [start + self.attention.embed_dim for start in starts]
        if isinstance(owner, FusedSplit):
            parts = [owner.part_at(name, start) for start in starts]
            return [part[start : start + self.head_dim] for part, start in parts]
        tensor = getattr(owner, name)
        if self.layout.transposed and tensor.ndim == 2:
            tensor = tensor.mT
        return [tensor[start : start + self.head_dim] for start in starts]


@dataclass(frozen=True, eq=False)
class HeadView:
    """A view of one head's Q or K block, always (head_dim, width), sharing storage with the model."""

    projection: Projection
    head: int

    @property
    def layer(self) -> int:
        return self.projection.layer

    @property
    def role(self) -> Role:
        return self.projection.role

    @property
    def name(self) -> str:
        return self.projection.name

    @property
    def weight(self) -> Tensor:
        return self.projection.weight_rows(self.head).detach()

    def __repr__(self) -> str:
        shape = f"{self.projection.head_dim}x{self.projection.width}"
        return f"HeadView(layer={self.layer}, role={self.role!r}, head={self.head}, {shape}, {self.name})"


@dataclass(frozen=True, eq=False)
class ParamSlice:
    """The weights, or the biases, of one projection: a parameter, or the projection's rows of a fused one."""

    projection: Projection
    kind: SliceKind

    @property
    def key(self) -> str:
        """Its name in records: the parameter's path, with `[q]` or `[k]` if it is only a part of it."""
        projection = self.projection
        if self.kind == "weight":
            path, is_part = projection.name, projection.shares_matrix
        else:
            path = projection.bias_path
            is_part = projection.shares_matrix or projection.bias_name == "in_proj_bias"
        return f"{path}[{projection.role}]" if is_part else path

    @property
    def parameter(self) -> nn.Parameter:
        """The parameter that currently holds it."""
        return self.projection.weight_parameter if self.kind == "weight" else self.projection.bias_parameter

    @property
    def numel(self) -> int:
        projection = self.projection
        return projection.num_heads * projection.head_dim * (projection.width if self.kind == "weight" else 1)

    def rows(self, head: int) -> Tensor:
        """The rows of one head, sharing storage with the model."""
        return self.projection.rows(self.kind, (head,))[0].detach()

    def all_rows(self) -> list[Tensor]:
        """The rows of every head, sharing storage with the model."""
        return [rows.detach() for rows in self.projection.rows(self.kind, range(self.projection.num_heads))]

    def copy(self) -> Tensor:
        """All heads, (H, D, M) for weights and (H, D) for biases."""
        return torch.stack(self.all_rows())

    @torch.no_grad()
    def restore_(self, copy: Tensor) -> None:
        for rows, kept in zip(self.all_rows(), copy, strict=True):
            rows.copy_(kept)

    def norms(self) -> list[float]:
        """The Frobenius norm of every head's rows."""
        return [torch.linalg.vector_norm(rows.cpu(), dtype=torch.float64).item() for rows in self.all_rows()]

    def sha256(self) -> str:
        """SHA-256 of the bytes of all heads' rows in order: if it is a full matrix, of the bytes of that matrix."""
        digest = hashlib.sha256()
        with gather_params(self.projection.owner, [self.parameter]):
            if type(self.parameter.data) is not Tensor:
                raise ModelError(
                    f"cannot hash a {type(self.parameter.data).__name__}",
                    where=self.key,
                    why="the model was quantized after apply",
                    hint="audit before quantizing",
                )
            for rows in self.all_rows():
                digest.update(rows.contiguous().cpu().view(torch.uint8).numpy().data)
        return digest.hexdigest()


def param_slices(projection: Projection) -> list[ParamSlice]:
    """The weights of a projection, and its biases if it has any."""
    return [ParamSlice(projection, "weight")] + ([ParamSlice(projection, "bias")] if projection.has_bias else [])


def slice_hashes(slices: Sequence[ParamSlice]) -> dict[str, str]:
    """SHA-256 by key, in parallel: hashing releases the GIL."""
    if any(is_sharded(param_slice.parameter) for param_slice in slices):  # all processes must gather them in one order
        return {param_slice.key: param_slice.sha256() for param_slice in slices}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return dict(zip([param_slice.key for param_slice in slices], pool.map(ParamSlice.sha256, slices), strict=True))


def parameter_hashes(parameters: Mapping[str, nn.Parameter]) -> dict[str, str]:
    """SHA-256 of whole parameters by name, of those that have data."""

    def sha256(parameter: nn.Parameter) -> str:
        bits = full_tensor(parameter).detach().contiguous().view(-1).view(torch.uint8).cpu()
        return hashlib.sha256(bits.numpy().data).hexdigest()

    hashed = {name: parameter for name, parameter in parameters.items() if not parameter.is_meta}
    if any(map(is_sharded, hashed.values())):
        return {name: sha256(parameter) for name, parameter in hashed.items()}
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        return dict(zip(hashed, pool.map(sha256, hashed.values()), strict=True))


def owner_of(attention: nn.Module, path: str) -> nn.Module:
    """The module whose parameter is the weight at `path`, below any adapter that wraps it (PEFT)."""
    found = getattr(attention, path, None)
    if not isinstance(found, nn.Module):
        return attention  # `path` is a parameter of the attention module itself
    while isinstance(inner := getattr(found, "base_layer", None), nn.Module):
        found = inner
    return found


def weight_name_of(attention: nn.Module, path: str) -> str:
    """The name of the weight in its owner."""
    return "weight" if isinstance(getattr(attention, path, None), nn.Module) else path
