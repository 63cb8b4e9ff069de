"""Every combination of fields that makes sense works, on separate, fused and grouped projections."""

import itertools

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

import oelm
from oelm.treatment import Init
from zoo import FAMILIES

NAMES = ["bert", "gpt2", "gpt-neox", "falcon-new", "torch-encoder"]
INITS = [init for init in Init.__args__ if init not in ("frames", "zero")]  # test_frames.py, test_controls.py
COMBINATIONS = [
    {"init": init, "scale": scale, "freeze": freeze, "bias": bias, "layers": layers}
    for init, scale, freeze, bias, layers in itertools.product(
        INITS, ["unit", "match", 0.02], ["none", "q", "k", "qk"], ["freeze", "train"], ["all", "last:0.5"]
    )
    if (init == "keep") <= (scale == "unit")
    and (scale == 0.02) <= (init == "gaussian")
    and (bias == "train") <= (freeze != "none")
]


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_every_combination_trains_and_passes_its_audit(name):
    """Every one on two families, and every family with two fifths of them: what they do is theirs, one by one."""
    family = next(f for f in FAMILIES if f.name == name)
    mine = {NAMES.index(name), (NAMES.index(name) + 1) % len(NAMES)}
    for fields in [fields for number, fields in enumerate(COMBINATIONS) if number % len(NAMES) in mine]:
        fields = {key: value for key, value in fields.items() if key != "scale" or fields["init"] != "keep"}
        model = family.model()
        applied = oelm.apply(model, **fields)
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)
        family.loss(model).backward()
        optimizer.step()
        audit = applied.audit(optimizer=optimizer)
        assert audit.ok, f"{fields}\n{audit}"
        roles = {param_slice.projection.role for param_slice in applied.frozen if param_slice.kind == "weight"}
        assert roles == {role for role in ("q", "k") if role in fields["freeze"]}
        biases = [param_slice for param_slice in applied.frozen if param_slice.kind == "bias"]
        assert bool(biases) == (
            fields["freeze"] != "none" and fields["bias"] == "freeze" and any(r.kind == "bias" for r in applied.slices)
        )
        assert {r.projection.layer for r in applied.slices} == ({0, 1} if fields["layers"] == "all" else {1})
    assert len(COMBINATIONS) == 224


@pytest.mark.parametrize("name", ["bert", "gpt2", "gpt-neox", "phi3", "torch-encoder"])
def test_freezing_spares_exactly_the_weight_gradients(name):
    """Counted in multiply-adds: backward loses those of the Q/K weight gradients, forward loses nothing."""
    family = next(f for f in FAMILIES if f.name == name)
    work = {}
    for freeze in ("none", "qk"):
        model = family.model().train()
        oelm.apply(model, freeze=freeze)
        with FlopCounterMode(display=False) as forward:
            loss = family.loss(model)
        with FlopCounterMode(display=False) as backward:
            loss.backward()
        work[freeze] = forward.get_total_flops(), backward.get_total_flops()
    tokens = family.batch()["input_ids"].numel()
    weights = sum(v.weight.numel() for v in oelm.find_heads(family.model()))
    assert work["none"][0] == work["qk"][0]
    assert work["none"][1] - work["qk"][1] == 2 * tokens * weights
