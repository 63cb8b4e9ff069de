"""Shards: with FSDP, each of several processes keeps a part of every weight, its gradient and its optimiser state.

Block by block, weights are put together where they are needed, and let go of again. So a model is trained that does
not fit into one GPU, at the price of sending all of it around twice in a pass.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.distributed.tensor import DTensor


def shard_(model: nn.Module, device: torch.device) -> None:
    """Keep this process's part of a model on its device; what learns and what does not is settled from then on."""
    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*_blocks(model), model):
        # That of the whole as well: else, after an evaluation, what is around the blocks would stay as it is used.
        fully_shard(module, mesh=mesh, reshard_after_forward=True)


def _blocks(model: nn.Module) -> Iterable[nn.Module]:
    """The longest list of modules there is; one may stand in it several times."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    longest: list[nn.Module] = max(lists, key=len, default=[])
    return dict.fromkeys(longest)


@contextmanager
def not_adding_up(model: nn.Module) -> Iterator[None]:
    """Inside, each process adds to a gradient of its own, which is whole: a later pass adds them all up."""
    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def held(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, dict[str, int]]:
    """Bytes of weights, gradients and optimiser state that this process keeps, and that one alone would."""
    weights = list(model.parameters())
    kinds: dict[str, list[Tensor]] = {
        "weights": [*weights],
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimizer": [value for weight in weights for value in optimizer.state.get(weight, {}).values()],
    }
    return {
        "held_bytes": {kind: sum(map(_local_bytes, tensors)) for kind, tensors in kinds.items()},
        "whole_bytes": {kind: sum(map(_bytes, tensors)) for kind, tensors in kinds.items()},
    }


def _local_bytes(tensor: Tensor) -> int:
    return _bytes(tensor.to_local() if isinstance(tensor, DTensor) else tensor)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
