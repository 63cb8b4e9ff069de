"""Split: a fused projection whose frozen rows and trainable rows are parameters of their own.

Masking the gradient of a fused matrix saves nothing and lets weight decay move the frozen rows. So its rows are
kept in two parts, the *reservoir* (rows to be frozen) and the *rest*. Only `state_dict` still shows the fused
tensor, under its own name, so what is saved is what an untreated model would save.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from oelm.heads.whole import sharded_as, whole


@dataclass(frozen=True)
class RowPlan:
    """Which rows of a fused tensor are the reservoir's: runs of rows, the same in every repeat."""

    repeats: int
    runs: tuple[tuple[bool, int], ...]
    """(in the reservoir?, number of rows), in the order of the fused tensor."""

    @classmethod
    def from_blocks(cls, in_reservoir: Sequence[bool], block_rows: int) -> Self:
        """A plan from one flag per block of `block_rows` rows, as short as it can be said."""
        number = len(in_reservoir)
        period = next(
            size
            for size in range(1, number + 1)
            if number % size == 0 and list(in_reservoir[:size]) * (number // size) == list(in_reservoir)
        )
        runs = tuple((flag, len(list(run)) * block_rows) for flag, run in groupby(in_reservoir[:period]))
        return cls(number // period, runs)

    def join(self, reservoir: Tensor, rest: Tensor, *, dim: int) -> Tensor:
        """The fused tensor from its two parts, whose rows lie along `dim` (0 or -1)."""
        inner = 1 if dim == 0 else -1
        parts = {True: _unflatten(reservoir, dim, self.repeats), False: _unflatten(rest, dim, self.repeats)}
        taken = {True: 0, False: 0}
        pieces = []
        for flag, rows in self.runs:
            pieces.append(parts[flag].narrow(inner, taken[flag], rows))
            taken[flag] += rows
        joined = torch.cat(pieces, inner)
        return joined.flatten(0, 1) if dim == 0 else joined.flatten(-2, -1)

    def parts(self, fused: Tensor) -> tuple[Tensor, Tensor]:
        """(reservoir, rest) as copies, from a fused tensor whose rows lie along dimension 0."""
        pieces = torch.split(_unflatten(fused, 0, self.repeats), [rows for _, rows in self.runs], dim=1)
        return tuple(  # type: ignore[return-value]
            torch.cat([piece for piece, (flag, _) in zip(pieces, self.runs, strict=True) if flag is part], 1).flatten(
                0, 1
            )
            for part in (True, False)
        )

    def place(self, row: int) -> tuple[bool, int]:
        """Where row `row` of the fused tensor went: (in the reservoir?, row of that part)."""
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


class Split(nn.Module):
    """A module with tensors kept in two parts: `weight` as `weight_reservoir` and `weight_rest`.

    A module becomes one by `split_` and stops being one by `join_`, in place: who holds a reference keeps it.
    """

    plan: RowPlan
    fused_names: tuple[str, ...]
    transposed: bool

    def _rows_first(self, tensor: Tensor) -> Tensor:
        return tensor.mT if self.transposed and tensor.ndim == 2 else tensor

    def part_at(self, name: str, row: int) -> tuple[nn.Parameter, int]:
        """The part that holds row `row` of the fused tensor `name`, and its row there."""
        in_reservoir, place = self.plan.place(row)
        parameter = getattr(self, f"{name}_reservoir" if in_reservoir else f"{name}_rest")
        assert isinstance(parameter, nn.Parameter)
        return parameter, place

    def fused(self, name: str) -> Tensor | None:
        """The tensor `name` as the untreated module has it, put together anew: reading it is fine, writing is lost."""
        if name not in self.fused_names:
            return None
        reservoir, rest = whole(getattr(self, f"{name}_reservoir")), whole(getattr(self, f"{name}_rest"))
        return self._rows_first(self.plan.join(reservoir, rest, dim=0))

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        for name in self.fused_names:
            fused = self.fused(name)
            assert fused is not None
            destination[prefix + name] = fused if keep_vars else fused.detach()
        own: dict[str, Any] = {}
        super()._save_to_state_dict(own, prefix, keep_vars)
        parts = {f"{prefix}{name}_{part}" for name in self.fused_names for part in ("reservoir", "rest")}
        destination.update((key, tensor) for key, tensor in own.items() if key not in parts)

    def _load_from_state_dict(
        self,
        state_dict: dict[str, Any],
        prefix: str,
        local_metadata: dict[str, Any],
        strict: bool,
        missing_keys: list[str],
        unexpected_keys: list[str],
        error_msgs: list[str],
    ) -> None:
        absent = set()
        for name in self.fused_names:
            for part in (f"{prefix}{name}_reservoir", f"{prefix}{name}_rest"):
                if state_dict.pop(part, None) is not None and strict:
                    unexpected_keys.append(part)  # to the outside there are no parts
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
                state_dict[f"{prefix}{name}_{part}"] = sharded_as(values, getattr(self, f"{name}_{part}"))
        missing: list[str] = []
        super()._load_from_state_dict(state_dict, prefix, local_metadata, strict, missing, unexpected_keys, error_msgs)
        missing_keys.extend(key for key in missing if key not in absent)


class SplitLinear(Split):
    """A fused `nn.Linear` (or transposed `Conv1D`) in two parts; its output has the fused order."""

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


class SplitMultiheadAttention(Split, nn.MultiheadAttention):
    """`nn.MultiheadAttention` in two parts, through torch's own mode of separate q, k and v weights."""

    # torch reads these as attributes; in this mode it takes the three weights and the one bias
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
        part, place = self.part_at("in_proj_weight", index * self.embed_dim)
        return part[place : place + self.embed_dim]


@dataclass(frozen=True)
class Unsplit:
    """What a module was before it was split, for `join_`."""

    module: nn.Module
    cls: type[nn.Module]
    parameters: dict[str, nn.Parameter | None]
    attributes: dict[str, Any]


def split_(module: nn.Module, plan: RowPlan, *, transposed: bool) -> Unsplit:
    """Turn a fused projection into a `Split`, in place. Every part starts with the fused tensor's `requires_grad`."""
    attention = isinstance(module, nn.MultiheadAttention)
    names = ("in_proj_weight", "in_proj_bias") if attention else ("weight", "bias")
    before = Unsplit(module, type(module), dict(module._parameters), {})
    fused_names = tuple(name for name in names if before.parameters.get(name) is not None)
    parts = {}
    for name in fused_names:
        tensor = before.parameters[name].detach()  # type: ignore[union-attr]
        parts[name] = plan.parts(tensor.mT if transposed and tensor.ndim == 2 else tensor)
    # nothing can fail from here on
    for name in ("q_proj_weight", "k_proj_weight", "v_proj_weight", *names):
        module._parameters.pop(name, None)
    if attention:
        before.attributes["_qkv_same_embed_dim"] = module._qkv_same_embed_dim
        # The module's own and not the class's: torch fills it in where a copied module has none.
        module._qkv_same_embed_dim = False  # type: ignore[assignment]
    module.__class__ = SplitMultiheadAttention if attention else SplitLinear
    assert isinstance(module, Split)
    module.plan = plan
    module.transposed = transposed
    module.fused_names = fused_names
    for name, (reservoir, rest) in parts.items():
        parameter = before.parameters[name]
        assert parameter is not None
        module.register_parameter(f"{name}_reservoir", nn.Parameter(reservoir, parameter.requires_grad))
        module.register_parameter(f"{name}_rest", nn.Parameter(rest, parameter.requires_grad))
        parameter.data = parameter.new_empty(0)  # the parts hold the weights now; the object waits for `join_`
    return before


@torch.no_grad()
def join_(before: Unsplit) -> None:
    """Make a split module what it was, with the weights it has now."""
    module = before.module
    assert isinstance(module, Split)
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
