"""Whole: tensors of which several processes keep a shard each (FSDP), put together.

All processes must ask for the same ones in the same order, since each needs the others' shards.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")  # a DTensor; not every torch is built with its class


def whole(tensor: Tensor) -> Tensor:
    """The tensor, or of a sharded one a copy of all of it in the memory of the CPU, where there is room."""
    if not is_sharded(tensor):
        return tensor
    sharded: Any = tensor.detach()
    put_together: Tensor = sharded.full_tensor().cpu()
    return put_together


def sharded_as(tensor: Tensor, other: Tensor) -> Tensor:
    """What this process keeps of a whole tensor, where of `other` it keeps a shard."""
    if not is_sharded(other):
        return tensor
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(other, DTensor)
    return distribute_tensor(tensor.to(other.device), other.device_mesh, other.placements, src_data_rank=None)


@contextmanager
def gathered(module: nn.Module, parameters: Iterable[nn.Parameter] | None = None) -> Iterator[None]:
    """Inside, sharded parameters of a module and of those in it are whole: all, or the given ones. To be read only."""
    some = module.parameters() if parameters is None else parameters
    wholes = {id(p): (p, nn.Parameter(whole(p), requires_grad=p.requires_grad)) for p in some if is_sharded(p)}
    places = [
        (inner._parameters, name)
        for inner in (module.modules() if wholes else ())
        for name, parameter in inner._parameters.items()
        if id(parameter) in wholes
    ]
    kept = [held[name] for held, name in places]
    for (held, name), parameter in zip(places, kept, strict=True):
        held[name] = wholes[id(parameter)][1]
    try:
        yield
    finally:
        for (held, name), parameter in zip(places, kept, strict=True):
            held[name] = parameter
