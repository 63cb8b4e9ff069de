"""Ranks: the processes that train one cell together. Of one process alone, all of this is nothing.

Each has its share of every batch, and all hold the same weights: drawn by each from the seed, and compared.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
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

from oelm.data.batches import Rows

STORE = "OELM_STORE"
"""Names the file by which the processes find each other. Without it they go by what torchrun says, over a socket."""
_PATIENCE = timedelta(hours=2)  # for the first process to prepare data


@dataclass(frozen=True, kw_only=True)
class Ranks:
    number: int = 1
    mine: int = 0

    @property
    def leads(self) -> bool:
        """Whether this process is the one that writes and tells."""
        return self.mine == 0

    def share(self, rows: Rows) -> Rows:
        """The rows of a batch that are this process's; there may be none."""
        return np.array_split(rows, self.number)[self.mine]

    def add_(self, tensor: Tensor) -> Tensor:
        """The sum over all processes, in place."""
        if self.number > 1:
            dist.all_reduce(tensor)
        return tensor

    def add_each_(self, *arrays: NDArray[Any]) -> None:
        """The same for arrays of which every process has filled in a part, and left the rest at 0."""
        if self.number > 1:
            for array in arrays:
                array[:] = self.add_(torch.from_numpy(array).to(_device())).cpu().numpy()

    def any(self, flag: bool) -> bool:
        """Whether it is so for any process."""
        if self.number == 1:
            return flag
        return bool(self.add_(torch.tensor(int(flag), device=_device())))

    def are_same(self, value: str) -> bool:
        """Whether all processes have the same."""
        values = [value] * self.number
        if self.number > 1:
            dist.all_gather_object(values, value)
        return len(set(values)) == 1

    @contextmanager
    def first_the_first(self) -> Iterator[None]:
        """What is inside is done by the first process, and then by the others, which find it done."""
        if self.number > 1 and not self.leads:
            dist.barrier()
        yield
        if self.number > 1 and self.leads:
            dist.barrier()


ALONE = Ranks()


def _device() -> torch.device | None:
    return torch.accelerator.current_accelerator() if dist.get_backend() != "gloo" else None


@contextmanager
def joined() -> Iterator[Ranks]:
    """The processes that were started together with this one; they part at the end."""
    number = int(os.environ.get("WORLD_SIZE", "1"))
    if number == 1:
        yield ALONE
        return
    store = os.environ.get(STORE)
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
        yield Ranks(number=number, mine=dist.get_rank())
        dist.barrier()  # nobody leaves while another still asks for something
    finally:
        dist.destroy_process_group()


def spare_frozen(module: nn.Module) -> None:
    """Have DDP neither copy to the other processes nor add up what does not learn: each has drawn the same."""
    names = [name for name, p in module.named_parameters(remove_duplicate=False) if not p.requires_grad]
    names += [name for name, _ in module.named_buffers(remove_duplicate=False)]
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(module, names)  # type: ignore[no-untyped-call]


def traffic(runner: nn.Module) -> dict[str, int]:
    """Bytes that DDP adds up over the processes in a step, as it has counted them, and what freezing spares."""
    assert isinstance(runner, DistributedDataParallel)
    told = runner._get_ddp_logging_data()  # type: ignore[no-untyped-call]
    sizes = str(told.get("rebuilt_bucket_sizes") or told["bucket_sizes"])  # it arranges them anew after the first step
    frozen = [p for p in runner.parameters() if not p.requires_grad]
    return {
        "reduced_bytes": sum(int(size) for size in sizes.split(",")),
        "spared_bytes": sum(p.numel() * p.element_size() for p in frozen),
    }
