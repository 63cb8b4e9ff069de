"""Frozen tensors are bitwise unchanged however a model is trained, on separate and on fused projections."""

import copy
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import oelm
from zoo import FAMILIES, Family

NAMES = ["bert", "oelm-gpt", "gpt2", "gpt-neox", "falcon-new", "torch-encoder"]
some_families = pytest.mark.parametrize("family", [f for f in FAMILIES if f.name in NAMES], ids=lambda f: f.name)

OPTIMIZERS = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.5),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, weight_decay=0.5, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=1e-1, momentum=0.9, weight_decay=0.1),
    "adafactor": lambda p: torch.optim.Adafactor(p, lr=1e-2, weight_decay=0.1),
}


def treated(family: Family, **fields) -> tuple[nn.Module, oelm.Applied]:
    model = family.model()
    return model, oelm.apply(model, **({"init": "orthogonalize", "freeze": "qk"} | fields))


def learning(model: nn.Module) -> list[nn.Parameter]:
    return [p for p in model.parameters() if p.requires_grad]


def train(family: Family, model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int = 3) -> None:
    for _ in range(steps):
        family.loss(model.train()).backward()
        optimizer.step()
        optimizer.zero_grad()


def check_frozen_and_moved(applied: oelm.Applied, optimizer: torch.optim.Optimizer) -> None:
    audit = applied.audit(optimizer=optimizer, stepped=True)
    audit.check()
    assert "movement" in audit.examined
    assert not any(optimizer.state.get(param_slice.parameter) for param_slice in applied.frozen)


@some_families
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_optimizers(family, optimizer):
    model, applied = treated(family)
    optimizer = OPTIMIZERS[optimizer](learning(model))
    train(family, model, optimizer)
    check_frozen_and_moved(applied, optimizer)


@some_families
def test_autocast_accumulation_and_clipping(family):
    model, applied = treated(family)
    optimizer = OPTIMIZERS["adamw"](learning(model))
    for step in range(6):
        with torch.autocast("cpu", torch.bfloat16):
            loss = family.loss(model.train()) / 2
        loss.backward()
        if step % 2:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad()
    check_frozen_and_moved(applied, optimizer)


@pytest.mark.parametrize("name", ["bert", "oelm-gpt", "gpt2", "gpt-neox"])
def test_gradient_checkpointing(name):
    family = next(f for f in FAMILIES if f.name == name)
    model, applied = treated(family)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    model.config.use_cache = False
    optimizer = OPTIMIZERS["adamw"](learning(model))
    train(family, model, optimizer)
    check_frozen_and_moved(applied, optimizer)


@some_families
def test_averaged_copies(family):
    """An exponential moving average of the model has the same frozen bits as the model."""
    model, applied = treated(family)
    average = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    optimizer = OPTIMIZERS["adamw"](learning(model))
    start = copy.deepcopy(model.state_dict())
    for _ in range(3):
        train(family, model, optimizer, steps=1)
        average.update_parameters(model)
    check_frozen_and_moved(applied, optimizer)
    averaged = average.module.state_dict()
    assert any(not torch.equal(averaged[name], tensor) for name, tensor in start.items())
    for mine, theirs in zip(oelm.find_heads(model), oelm.find_heads(average.module), strict=True):
        # (1 - a) w + a w rounds; the average may differ in the last bit, and no more
        assert torch.allclose(mine.weight, theirs.weight, rtol=1e-6, atol=0)
        assert mine.weight.data_ptr() != theirs.weight.data_ptr()


def compile_all(model: nn.Module) -> None:
    model.compile(backend="aot_eager")


def compile_last_attention(model: nn.Module) -> None:
    """That of the layer that is unfrozen below, down to C++, of which a layer has three times as much; without vectors,
    whose headers take longer to compile than all else."""
    attention = model.get_submodule(oelm.find_heads(model)[-1].name.rsplit(".", 2)[0])
    attention.compile(options={"cpp.vec_isa_ok": False, "cpp.simdlen": 1})


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")  # torch looks at its input
@pytest.mark.parametrize(
    ("name", "compiled"), [("oelm-gpt", compile_all), ("gpt2", compile_all), ("gpt2", compile_last_attention)]
)
def test_compiled_models_freeze_and_unfreeze(name, compiled):
    """`torch.compile` traced while a layer was frozen: unfrozen afterwards, the layer really trains."""
    family = next(f for f in FAMILIES if f.name == name)
    model, applied = treated(family)
    model.config.use_cache = False
    compiled(model)
    optimizer = OPTIMIZERS["adamw"](learning(model))

    def steps(number: int) -> None:
        for _ in range(number):
            family.loss(model.train()).backward()
            optimizer.step()
            optimizer.zero_grad()

    steps(3)
    check_frozen_and_moved(applied, optimizer)
    given = applied.unfreeze(layers=[1], optimizer=optimizer)
    before = [p.clone() for p in given]
    steps(2)
    assert not any(torch.equal(p, b) for p, b in zip(given, before, strict=True) if p.ndim > 1)
    check_frozen_and_moved(applied, optimizer)
    applied.refreeze(layers=[1], optimizer=optimizer)
    steps(2)
    check_frozen_and_moved(applied, optimizer)


DDP_SCRIPT = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from zoo import FAMILIES
import oelm

rank, store, *names = int(sys.argv[1]), *sys.argv[2:]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
for name in names:
    family = next(f for f in FAMILIES if f.name == name)
    model = family.model()
    applied = oelm.apply(model, init="orthogonal", freeze="qk", seed=4)
    frozen = {param_slice.key: param_slice.sha256() for param_slice in applied.frozen}
    wrapped = DistributedDataParallel(model)  # and no find_unused_parameters
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
    for step in range(3):
        batch = {"input_ids": torch.randint(3, 64, (2, 7), generator=torch.Generator().manual_seed(2 * step + rank))}
        out = wrapped(**batch)
        logits = out if isinstance(out, torch.Tensor) else out.logits
        logits.float().pow(2).mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    applied.audit(optimizer=optimizer).check()
    assert {param_slice.key: param_slice.sha256() for param_slice in applied.frozen} == frozen, name
    both = [None, None]
    dist.all_gather_object(both, {n: oelm.heads.applied.fingerprint(p) for n, p in model.named_parameters()})
    assert both[0] == both[1], f"{name}: ranks differ"
    dist.all_gather_object(both, frozen)
    assert both[0] == both[1], f"{name}: ranks drew different reservoirs"
    print(name, "ok", flush=True)
dist.barrier()
dist.destroy_process_group()
# Everything is printed. gloo's threads may outlive the interpreter and abort it ("terminate called without an active
# exception"), which says nothing about the training.
os._exit(0)
"""


@pytest.mark.slow
def test_two_processes(tmp_path, forked_python):
    """DDP over gloo: frozen bits stay, ranks agree, no find_unused_parameters."""
    names = ["bert", "gpt2", "torch-encoder"]
    script = tmp_path / "ddp.py"
    script.write_text(DDP_SCRIPT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "GLOO_SOCKET_IFNAME": "lo"}
    workers = [
        subprocess.Popen(
            [sys.executable, str(script), str(rank), str(tmp_path / "store"), *names],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for worker in workers:
        out, errors = worker.communicate(timeout=120)
        assert worker.returncode == 0, errors
        assert out.splitlines() == [f"{name} ok" for name in names]


@some_families
def test_biases_may_learn(family):
    model, applied = treated(family, bias="train")
    biases = [param_slice for param_slice in applied.slices if param_slice.kind == "bias"]
    assert all(param_slice.parameter.requires_grad for param_slice in biases)
    assert {param_slice.kind for param_slice in applied.frozen} == {"weight"}
    optimizer = OPTIMIZERS["adamw"](learning(model))
    before = {param_slice.key: param_slice.copy() for param_slice in biases}
    train(family, model, optimizer)
    check_frozen_and_moved(applied, optimizer)
    assert all(not torch.equal(r.copy(), before[r.key]) for r in biases if r.projection.role == "q")


def test_the_reservoir_is_linear_in_its_input_and_nothing_more():
    """The gradient that flows through a frozen fused projection to its input is the untreated model's."""
    family = next(f for f in FAMILIES if f.name == "gpt2")
    plain, (model, _) = family.model(), treated(family, init="keep")
    for m in (plain, model):
        family.loss(m.train(False)).backward()
    mine = model.transformer.wte.weight.grad
    assert torch.allclose(mine, plain.transformer.wte.weight.grad, rtol=1e-5, atol=1e-9)
