"""Sharded tensors (FSDP): gather them from all processes, or shard a full tensor.

Gathering is collective: all processes must gather the same tensors in the same order.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    """Whether a tensor is a DTensor."""
    return hasattr(tensor, "full_tensor")  # not every torch is built with the class


def full_tensor(tensor: Tensor) -> Tensor:
    """The tensor itself, or a full copy of a sharded one in CPU memory, which is larger than the GPU's."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor.detach()
    gathered: Tensor = sharded.full_tensor().cpu()
    return gathered


def shard_like(tensor: Tensor, other: Tensor) -> Tensor:
    """This process's shard of a full tensor, sharded like `other`; the tensor itself if `other` is not sharded."""
    if not is_sharded(other):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


@contextmanager
def gather_params(module: nn.Module, parameters: Iterable[nn.Parameter] | None = None) -> Iterator[None]:
    """Inside, sharded parameters of a module and its submodules are full tensors: all, or the given ones. Read-only."""
    some = module.parameters() if parameters is None else parameters
    full = {id(p): (p, nn.Parameter(full_tensor(p), requires_grad=p.requires_grad)) for p in some if is_sharded(p)}
    slots = [
        (inner._parameters, name)
        for inner in (module.modules() if full else ())
        for name, parameter in inner._parameters.items()
        if id(parameter) in full
    ]
    kept = [owner[name] for owner, name in slots]
    for (owner, name), parameter in zip(slots, kept, strict=True):
        owner[name] = full[id(parameter)][1]
    try:
        yield
    finally:
        for (owner, name), parameter in zip(slots, kept, strict=True):
            owner[name] = parameter
