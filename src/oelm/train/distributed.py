"""Distributed: the processes that train one cell together. With one process, all of this does nothing.

Each has its share of every batch, and all start from the same weights: drawn by each from the seed, and compared. With
DDP every process keeps all weights. With FSDP each keeps a shard of every weight, its gradient and its optimizer state:
block by block, weights are gathered where they are needed and freed again. So a model is trained that does not fit
into one GPU, at the price of sending all of it around twice in a pass.
"""

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from oelm.data.kinds.kind import Rows
from oelm.heads.sharded import is_sharded

STORE_VARIABLE = "OELM_STORE"
"""Names the file by which the processes find each other. Without it they go by what torchrun says, over a socket."""
_PATIENCE = timedelta(hours=2)  # for the first process to prepare data


@dataclass(frozen=True, kw_only=True)
class ProcessGroup:
    world_size: int = 1
    rank: int = 0

    @property
    def is_main(self) -> bool:
        """Whether this process is the one that writes and tells."""
        return self.rank == 0

    def share(self, rows: Rows) -> Rows:
        """The rows of a batch that are this process's; there may be none."""
        return np.array_split(rows, self.world_size)[self.rank]

    def all_reduce_sum_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.world_size > 1:
            dist.all_reduce(tensor)
        return tensor

    def all_reduce_arrays_(self, *arrays: NDArray[Any]) -> None:
        """The same for arrays of which every process has filled in a part, and left the rest at 0."""
        if self.world_size > 1:
            for array in arrays:
                array[:] = self.all_reduce_sum_(torch.from_numpy(array).to(_device())).cpu().numpy()

    def any(self, flag: bool) -> bool:
        """Whether it is so for any process."""
        if self.world_size == 1:
            return flag
        return bool(self.all_reduce_sum_(torch.tensor(int(flag), device=_device())))

    def all_equal(self, value: str) -> bool:
        """Whether all processes have the same."""
        values = [value] * self.world_size
        if self.world_size > 1:
            dist.all_gather_object(values, value)
        return len(set(values)) == 1

    @contextmanager
    def main_process_first(self) -> Iterator[None]:
        """What is inside is done by the first process, and then by the others, which find it done."""
        if self.world_size > 1 and not self.is_main:
            dist.barrier()
        yield
        if self.world_size > 1 and self.is_main:
            dist.barrier()


SINGLE_PROCESS = ProcessGroup()


def _device() -> torch.device | None:
    return torch.accelerator.current_accelerator() if dist.get_backend() != "gloo" else None


@contextmanager
def init_distributed() -> Iterator[ProcessGroup]:
    """The processes that were started together with this one; they part at the end."""
    number = int(os.environ.get("WORLD_SIZE", "1"))
    if number == 1:
        yield SINGLE_PROCESS
        return
    store = os.environ.get(STORE_VARIABLE)
    device = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    if device is not None:
        torch.accelerator.set_device_index(int(os.environ["LOCAL_RANK"]))
    dist.init_process_group(
        "gloo" if device is None else dist.get_default_backend_for_device(device),
        init_method="env://" if store is None else f"file://{store}",
        rank=int(os.environ["RANK"]),
        world_size=number,
        timeout=_PATIENCE,
    )
    try:
        yield ProcessGroup(world_size=number, rank=dist.get_rank())
        dist.barrier()  # nobody leaves while another still asks for something
    finally:
        dist.destroy_process_group()


def ddp_ignore_frozen(module: nn.Module) -> None:
    """Have DDP neither copy to the other processes nor add up what does not learn: each has drawn the same."""
    names = [name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad]
    names += [name for name, _ in module.named_buffers(remove_duplicate=False)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)  # type: ignore[no-untyped-call]


def allreduce_bytes(wrapped_model: nn.Module) -> tuple[int, int]:
    """Bytes that DDP adds up over the processes in a step, as it has counted them, and what freezing spares."""
    assert isinstance(wrapped_model, DistributedDataParallel)
    logged = wrapped_model._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    sizes = str(
        logged.get("rebuilt_bucket_sizes") or logged["bucket_sizes"]
    )  # it arranges them anew after the first step
    frozen = [p for p in wrapped_model.parameters() if not p.requires_grad]
    return sum(int(size) for size in sizes.split(",")), sum(map(_bytes, frozen))


# -- FSDP ----------------------------------------------------------------------------------------------------------


def shard_(model: nn.Module, device: torch.device) -> None:
    """Keep this process's part of a model on its device; what learns and what does not is settled from then on."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard  # half a second that only those wait for who need it

    mesh = init_device_mesh(device.type, (dist.get_world_size(),))
    for module in (*_blocks(model), model):
        # The model itself too: else, after an evaluation, the weights around the blocks would stay gathered.
        fully_shard(module, mesh=mesh, reshard_after_forward=True)


def _blocks(model: nn.Module) -> Iterable[nn.Module]:
    """The longest list of modules there is; one may stand in it several times."""
    lists = [list(module) for module in model.modules() if isinstance(module, nn.ModuleList)]
    longest: list[nn.Module] = max(lists, key=len, default=[])
    return dict.fromkeys(longest)


@contextmanager
def no_sync(model: nn.Module) -> Iterator[None]:
    """Inside, each process adds to its own unsharded gradient; a later pass reduces them all."""
    from torch.distributed.fsdp import FSDPModule

    assert isinstance(model, FSDPModule)
    model.set_requires_gradient_sync(False)
    try:
        yield
    finally:
        model.set_requires_gradient_sync(True)


def local_bytes(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, int], dict[str, int]]:
    """Bytes of weights, gradients and optimizer state that this process keeps, and that one alone would."""
    weights = list(model.parameters())
    kinds: dict[str, list[Tensor]] = {
        "weights": [*weights],
        "gradients": [weight.grad for weight in weights if weight.grad is not None],
        "optimizer": [
            value
            for weight in weights
            for value in optimizer.state.get(weight, {}).values()
            if isinstance(value, Tensor)
        ],
    }
    held = {kind: sum(map(_local_bytes, tensors)) for kind, tensors in kinds.items()}
    return held, {kind: sum(map(_bytes, tensors)) for kind, tensors in kinds.items()}


def _local_bytes(tensor: Tensor) -> int:
    sharded: Any = tensor
    return _bytes(sharded.to_local() if is_sharded(tensor) else tensor)


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()
