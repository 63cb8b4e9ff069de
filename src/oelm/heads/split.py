"""Split a fused projection: its frozen rows and its trainable rows become separate parameters.

Masking the gradient of a fused matrix saves nothing and lets weight decay move the frozen rows. So its rows are
stored in two parts, the *reservoir* (rows to be frozen) and the *rest*. Only `state_dict` still shows the fused
tensor, under its original name, so a checkpoint is that of an untreated model.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.heads.sharded import full_tensor, shard_like


@dataclass(frozen=True)
class RowPlan:
    """Which rows of a fused tensor belong to the reservoir: runs of rows, the same in every repeat."""

    repeats: int
    runs: tuple[tuple[bool, int], ...]
    """(in the reservoir?, number of rows), in the order of the fused tensor."""

    @classmethod
    def from_blocks(cls, in_reservoir: Sequence[bool], block_rows: int) -> Self:
        """The shortest plan for one flag per block of `block_rows` rows."""
        number = len(in_reservoir)
        period = next(
            size
            for size in range(1, number + 1)
            if number % size == 0 and list(in_reservoir[:size]) * (number // size) == list(in_reservoir)
        )
        runs = tuple((flag, len(list(run)) * block_rows) for flag, run in groupby(in_reservoir[:period]))
        return cls(number // period, runs)

    def join(self, reservoir: Tensor, rest: Tensor, *, dim: int) -> Tensor:
        """The fused tensor from its two parts, whose rows are along `dim` (0 or -1)."""
        inner = 1 if dim == 0 else -1
        parts = {True: _unflatten(reservoir, dim, self.repeats), False: _unflatten(rest, dim, self.repeats)}
        offset = {True: 0, False: 0}
        chunks = []
        for flag, rows in self.runs:
            chunks.append(parts[flag].narrow(inner, offset[flag], rows))
            offset[flag] += rows
        joined = torch.cat(chunks, inner)
        return joined.flatten(0, 1) if dim == 0 else joined.flatten(-2, -1)

    def parts(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        """(reservoir, rest) as copies, from a fused tensor whose rows are along dimension 0."""
        chunks = torch.split(_unflatten(fused, 0, self.repeats), [rows for _, rows in self.runs], dim=1)
        return tuple(  # type: ignore[return-value]
            torch.cat([chunk for chunk, (flag, _) in zip(chunks, self.runs, strict=True) if flag is part], 1).flatten(
                0, 1
            )
            for part in (True, False)
        )

    def locate(self, row: int) -> tuple[bool, int]:
        """The position of row `row` of the fused tensor: (in the reservoir?, row of that part)."""
        period = sum(rows for _, rows in self.runs)
        repeat, within = divmod(row, period)
        per_repeat = {part: sum(rows for flag, rows in self.runs if flag is part) for part in (True, False)}
        before = {True: 0, False: 0}
        for flag, rows in self.runs:
            if within < rows:
                return flag, repeat * per_repeat[flag] + before[flag] + within
            within -= rows
            before[flag] += rows
        raise AssertionError("a row is always in a run")


def _unflatten(tensor: Tensor, dim: int, repeats: int) -> Tensor:
    unflattened: Tensor = tensor.unflatten(dim, (repeats, -1))  # type: ignore[no-untyped-call]
    return unflattened


class FusedSplit(nn.Module):
    """A module with tensors stored in two parts: `weight` as `weight_reservoir` and `weight_rest`.

    `split_` and `join_` change the class of a module in place, so references to it stay valid.
    """

    plan: RowPlan
    fused_names: tuple[str, ...]
    transposed: bool

    def _rows_first(self, tensor: Tensor) -> Tensor:
        return tensor.mT if self.transposed and tensor.ndim == 2 else tensor

    def part_at(self, name: str, row: int) -> tuple[nn.Parameter, int]:
        """The part that holds row `row` of the fused tensor `name`, and the row's index in it."""
        in_reservoir, index = self.plan.locate(row)
        parameter = getattr(self, f"{name}_reservoir" if in_reservoir else f"{name}_rest")
        assert isinstance(parameter, nn.Parameter)
        return parameter, index

    def fused(self, name: str) -> Tensor | None:
        """The tensor `name` as the untreated module has it, joined on every call: writes to it are lost."""
        if name not in self.fused_names:
            return None
        reservoir, rest = full_tensor(getattr(self, f"{name}_reservoir")), full_tensor(getattr(self, f"{name}_rest"))
        return self._rows_first(self.plan.join(reservoir, rest, dim=0))

    def _save_to_state_dict(self, destination: dict[str, Tensor], prefix: str, keep_vars: bool) -> None:
        for name in self.fused_names:
            fused = self.fused(name)
            assert fused is not None
            destination[prefix + name] = fused if keep_vars else fused.detach()
        own: dict[str, Tensor] = {}
        super()._save_to_state_dict(own, prefix, keep_vars)
        parts = {f"{prefix}{name}_{part}" for name in self.fused_names for part in ("reservoir", "rest")}
        destination.update((key, tensor) for key, tensor in own.items() if key not in parts)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Tensor],
        prefix: str,
        local_metadata: dict[str, object],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        absent = set()
        for name in self.fused_names:
            for part in (f"{prefix}{name}_reservoir", f"{prefix}{name}_rest"):
                if state_dict.pop(part, None) is not None and strict:
                    unexpected_keys.append(part)  # parts are internal
            tensor = state_dict.pop(prefix + name, None)
            expected = self.fused(name)
            assert expected is not None
            if tensor is not None and tensor.shape != expected.shape:
                error_msgs.append(
                    f"size mismatch for {prefix}{name}: copying a param with shape {tensor.shape} from checkpoint, "
                    f"the shape in current model is {expected.shape}."
                )
                tensor = None
            elif tensor is None and strict:
                missing_keys.append(prefix + name)
            if tensor is None:
                absent |= {f"{prefix}{name}_reservoir", f"{prefix}{name}_rest"}
                continue
            reservoir, rest = self.plan.parts(self._rows_first(tensor))
            for part, values in (("reservoir", reservoir), ("rest", rest)):
                state_dict[f"{prefix}{name}_{part}"] = shard_like(values, getattr(self, f"{name}_{part}"))
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs)
        missing_keys.extend(key for key in missing if key not in absent)


class SplitLinear(FusedSplit):
    """A fused `nn.Linear` (or transposed `Conv1D`) in two parts; the output has the fused order."""

    weight_reservoir: nn.Parameter
    weight_rest: nn.Parameter
    bias_reservoir: nn.Parameter
    bias_rest: nn.Parameter

    @property
    def weight(self) -> Tensor | None:
        return self.fused("weight")

    @property
    def bias(self) -> Tensor | None:
        return self.fused("bias")

    def forward(self, x: Tensor) -> Tensor:
        biased = "bias" in self.fused_names
        reservoir = F.linear(x, self.weight_reservoir, self.bias_reservoir if biased else None)
        rest = F.linear(x, self.weight_rest, self.bias_rest if biased else None)
        return self.plan.join(reservoir, rest, dim=-1)

    def extra_repr(self) -> str:
        rows = f"{self.weight_reservoir.shape[0]}+{self.weight_rest.shape[0]}"
        return f"in_features={self.weight_rest.shape[1]}, out_features={rows}, bias={'bias' in self.fused_names}"


class SplitMultiheadAttention(FusedSplit, nn.MultiheadAttention):
    """`nn.MultiheadAttention` in two parts, using torch's own mode of separate q, k and v weights."""

    # In this mode, torch reads the three weights and the one bias as attributes.
    in_proj_weight = None  # type: ignore[assignment]

    @property
    def in_proj_bias(self) -> Tensor | None:  # type: ignore[override]
        return self.fused("in_proj_bias")

    @property
    def q_proj_weight(self) -> Tensor:  # type: ignore[override]
        return self._third(0)

    @property
    def k_proj_weight(self) -> Tensor:  # type: ignore[override]
        return self._third(1)

    @property
    def v_proj_weight(self) -> Tensor:  # type: ignore[override]
        return self._third(2)

    def _third(self, index: int) -> Tensor:
        part, start = self.part_at("in_proj_weight", index * self.embed_dim)
        return part[start : start + self.embed_dim]


@dataclass(frozen=True)
class Unsplit:
    """The state of a module before it was split, for `join_`."""

    module: nn.Module
    cls: type[nn.Module]
    parameters: dict[str, nn.Parameter | None]
    attributes: dict[str, object]


def split_(module: nn.Module, plan: RowPlan, *, transposed: bool) -> Unsplit:
    """Turn a fused projection into a `FusedSplit`, in place. Both parts inherit the fused tensor's `requires_grad`."""
    attention = isinstance(module, nn.MultiheadAttention)
    names = ("in_proj_weight", "in_proj_bias") if attention else ("weight", "bias")
    before = Unsplit(module, type(module), dict(module._parameters), {})
    fused_names = tuple(name for name in names if before.parameters.get(name) is not None)
    parts = {}
    for name in fused_names:
        tensor = before.parameters[name].detach()  # type: ignore[union-attr]
        parts[name] = plan.parts(tensor.mT if transposed and tensor.ndim == 2 else tensor)
    # Nothing can fail from here on.
    for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight", *names):
        module._parameters.pop(name, None)
    if attention:
        before.attributes["_qkv_same_embed_dim"] = module._qkv_same_embed_dim
        # On the instance, not on the class: torch sets it on a copied module that has none.
        module._qkv_same_embed_dim = False  # type: ignore[assignment]
    module.__class__ = SplitMultiheadAttention if attention else SplitLinear
    assert isinstance(module, FusedSplit)
    module.plan = plan
    module.transposed = transposed
    module.fused_names = fused_names
    for name, (reservoir, rest) in parts.items():
        parameter = before.parameters[name]
        assert parameter is not None
        module.register_parameter(f"{name}_reservoir", nn.Parameter(reservoir, parameter.requires_grad))
        module.register_parameter(f"{name}_rest", nn.Parameter(rest, parameter.requires_grad))
        parameter.data = parameter.new_empty(0)  # the parts hold the weights now; `join_` reuses the object
    return before


@torch.no_grad()
def join_(before: Unsplit) -> None:
    """Restore a split module to its original class, with its current weights."""
    module = before.module
    assert isinstance(module, FusedSplit)
    fused = {name: module.fused(name) for name in module.fused_names}
    now = dict(module._parameters)
    for attribute in ("plan", "transposed", "fused_names"):
        delattr(module, attribute)
    module.__class__ = before.cls  # type: ignore[assignment]
    module.__dict__.update(before.attributes)
    module._parameters.clear()
    for name, parameter in before.parameters.items():
        tensor = fused.get(name)
        if parameter is not None and tensor is not None:
            parameter.data = tensor.contiguous()
            module._parameters[name] = parameter
        else:
            module._parameters[name] = now.get(name)
