"""One of two processes that keep every model of the zoo in shards: `python sharded.py STORE RANK [FAMILY ...]`.

Says a line for each family, and ends with an error if one of them is not what it is in one piece.
"""

import sys
import traceback

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

import oelm
from oelm.heads.attention import measure_heads
from oelm.train.checkpoint import load_optimizer_, load_weights_, optimizer_tensors, weights_of
from oelm.train.distributed import local_bytes, no_sync, shard_
from zoo import FAMILIES, Family

STEPS = 3


def trained(family: Family, applied: oelm.Applied, *, sharded: bool) -> torch.optim.Optimizer:
    """A few steps of two passes each."""
    model = applied.model
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, fused=True)
    for _ in range(STEPS):
        if sharded:
            with no_sync(model):
                family.loss(model).backward()
        else:
            family.loss(model).backward()
        family.loss(model).backward()
        optimizer.step()
        if sharded:
            check_held(model, optimizer)
        optimizer.zero_grad()
    return optimizer


def check_held(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    held, whole = local_bytes(model, optimizer)
    learn = sum(p.numel() for p in model.parameters() if p.grad is not None)
    assert whole["gradients"] == 4 * learn
    assert held["gradients"] <= 0.6 * 4 * learn
    for p in model.parameters():
        assert p.requires_grad or (p.grad is None and p not in optimizer.state)


def same(one: dict[str, Tensor], other: dict[str, Tensor], *, exactly: bool) -> None:
    assert list(one) == list(other)
    for name, tensor in one.items():
        alike = torch.equal(tensor, other[name]) if exactly else torch.allclose(tensor, other[name], atol=2e-5)
        assert alike, f"{name}: {(tensor - other[name]).abs().max()}"


def check(family: Family) -> None:
    treatment = {"init": "orthogonalize", "freeze": "qk", "seed": 1}
    plain = oelm.apply(family.model(), **treatment)
    ours = oelm.apply(family.model(), **treatment)
    shard_(ours.model, torch.device("cpu"))
    start = weights_of(plain.model)
    same(start, weights_of(ours.model), exactly=True)
    assert ours.counts == plain.counts
    assert oelm.orthonormality(ours.model) == oelm.orthonormality(plain.model)
    assert measure_heads(ours.model, family.batch()) == measure_heads(plain.model, family.batch())
    with torch.no_grad():
        assert torch.allclose(family.logits(ours.model), family.logits(plain.model), atol=1e-5)
    ours.audit().check()
    kept = oelm.apply(family.model(), init="orthogonalize", keep_orthonormal=True)
    shard_(kept.model, torch.device("cpu"))
    with pytest.raises(oelm.ModelError, match="DistributedDataParallel"):
        kept.retract()
    optimizers = trained(family, plain, sharded=False), trained(family, ours, sharded=True)
    ours.audit(optimizer=optimizers[1], stepped=False).check()
    end = weights_of(ours.model)
    same(weights_of(plain.model), end, exactly=False)
    states = optimizer_tensors(plain.model, optimizers[0]), optimizer_tensors(ours.model, optimizers[1])
    same(*states, exactly=False)
    load_weights_(ours.model, start)
    same(start, weights_of(ours.model), exactly=True)
    load_weights_(ours.model, end)
    load_optimizer_(ours.model, optimizers[1], states[0])
    same(states[0], optimizer_tensors(ours.model, optimizers[1]), exactly=True)
    family.loss(ours.model).backward()
    optimizers[1].step()
    with torch.no_grad():
        shard = ours.frozen[0].parameter.to_local()
        shard.add_(1e-3)
    assert "FROZEN-MOVED" in {finding.code for finding in ours.audit().findings}


def main(store: str, rank: int, names: list[str]) -> int:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    failed = 0
    for family in FAMILIES:
        if names and family.name not in names:
            continue
        try:
            check(family)
            print(f"{family.name}: same", flush=True)
        except Exception:
            failed += 1
            print(f"{family.name}: {traceback.format_exc()}", flush=True)
    dist.destroy_process_group()
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2]), sys.argv[3:]))
