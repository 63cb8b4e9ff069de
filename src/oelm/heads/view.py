"""Windows onto a model's queries and keys: a `Projection` is one role of one attention, a `HeadView` one head.

Shape suffixes: H = heads, D = rows of a head, M = model width.
"""

from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from oelm.heads.layouts import Layout
from oelm.heads.split import Split
from oelm.treatment import Role


@dataclass(frozen=True, kw_only=True, eq=False)
class Projection:
    """All heads of one role in one attention module. What it shows is the model's own storage."""

    layer: int
    """The number of the attention module in the model's own order, from 0."""
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
        """The name of the order of rows, `custom` for one that a function says."""
        return self.layout.arrangement.split(":")[0]

    @property
    def shares_matrix(self) -> bool:
        """Whether the matrix holds other rows than this projection's."""
        return self.layout.query == self.layout.key or (self.layout.arrangement == "key-value" and self.role == "k")

    @property
    def path(self) -> str:
        """The submodule or parameter of the attention module that holds the weight."""
        return self.layout.query if self.role == "q" else self.layout.key

    @property
    def is_adapted(self) -> bool:
        """Whether an adapter (PEFT) wraps the module that holds the weight."""
        held = getattr(self.attention, self.path, None)
        return isinstance(held, nn.Module) and held is not self.owner

    @property
    def owner(self) -> nn.Module:
        """The module that has the weight as a parameter; looked up anew, since freezing may split it."""
        return owner_of(self.attention, self.path)

    @property
    def weight_name(self) -> str:
        return weight_name_of(self.attention, self.path)

    @property
    def bias_name(self) -> str:
        return "in_proj_bias" if self.weight_name != "weight" else "bias"

    @property
    def bias_path(self) -> str:
        """Path of the bias in the untreated model, as `name` is of the weight."""
        return self.name.removesuffix(self.weight_name) + self.bias_name

    @property
    def has_bias(self) -> bool:
        owner = self.owner
        if isinstance(owner, Split):
            return self.bias_name in owner.fused_names
        return getattr(owner, self.bias_name, None) is not None

    @property
    def is_parameter(self) -> bool:
        """Whether the weight can learn at all; some models keep frozen weights in buffers."""
        owner = self.owner
        return isinstance(owner, Split) or isinstance(getattr(owner, self.weight_name), nn.Parameter)

    @property
    def weight_parameter(self) -> nn.Parameter:
        """The parameter that the rows are a part of."""
        return self._parameter(self.weight_name)

    @property
    def bias_parameter(self) -> nn.Parameter:
        return self._parameter(self.bias_name)

    def _parameter(self, name: str) -> nn.Parameter:
        owner = self.owner
        if isinstance(owner, Split):
            return owner.part_at(name, self.starts[0])[0]
        parameter = getattr(owner, name)
        assert isinstance(parameter, nn.Parameter)
        return parameter

    def weight_rows(self, head: int) -> Tensor:
        """Head `head`'s weights, (D, M), sharing storage with the model."""
        return self._rows(self.weight_name, self.starts[head])

    def bias_rows(self, head: int) -> Tensor:
        """Head `head`'s biases, (D,), sharing storage with the model."""
        start = self.starts[head]
        if self.weight_name == "k_proj_weight":  # weights of their own, but one bias for q, k and v
            assert isinstance(self.attention, nn.MultiheadAttention)
            start += self.attention.embed_dim
        return self._rows(self.bias_name, start)

    def _rows(self, name: str, start: int) -> Tensor:
        owner = self.owner
        if isinstance(owner, Split):
            tensor, start = owner.part_at(name, start)
        else:
            tensor = getattr(owner, name)
            if self.layout.transposed and tensor.ndim == 2:
                tensor = tensor.mT
        return tensor[start : start + self.head_dim]

    @torch.no_grad()
    def write_(self, head: int, block_DM: Tensor) -> None:
        self.weight_rows(head).copy_(block_DM)


@dataclass(frozen=True, eq=False)
class HeadView:
    """A window onto one head's Q or K block, always (head_dim, width), sharing storage with the model."""

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


def owner_of(attention: nn.Module, path: str) -> nn.Module:
    """The module whose parameter is the weight at `path`, below any adapter that wraps it (PEFT)."""
    found = getattr(attention, path, None)
    if not isinstance(found, nn.Module):
        return attention  # `path` is a parameter of the attention module itself
    while isinstance(inner := getattr(found, "base_layer", None), nn.Module):
        found = inner
    return found


def weight_name_of(attention: nn.Module, path: str) -> str:
    return "weight" if isinstance(getattr(attention, path, None), nn.Module) else path
