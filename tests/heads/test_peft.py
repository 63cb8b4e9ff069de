"""Models that PEFT has wrapped: the base weight below the adapter is treated."""

import peft
import pytest
import torch

import oelm
from zoo import FAMILIES, attentive


def wrapped(name, targets, task):
    family = next(f for f in FAMILIES if f.name == name)
    config = peft.LoraConfig(r=2, target_modules=targets, task_type=task, fan_in_fan_out=name == "gpt2")
    return family, peft.get_peft_model(family.model(), config)


CASES = [
    ("bert", ["query", "value"], "SEQ_CLS"),
    ("llama", ["q_proj", "k_proj", "v_proj"], "CAUSAL_LM"),
    ("gpt2", ["c_attn"], "CAUSAL_LM"),
    ("gpt-neox", ["query_key_value"], "CAUSAL_LM"),
    ("llama", ["v_proj"], "CAUSAL_LM"),
]


@pytest.mark.parametrize(("name", "targets", "task"), CASES)
def test_the_base_weight_is_treated(name, targets, task):
    family, model = wrapped(name, targets, task)
    plain = family.model()
    oelm.apply(plain, init="orthogonal", freeze="qk", seed=1)
    names = [name for name, _ in model.named_modules()]
    trainable = {name for name, p in model.named_parameters() if p.requires_grad}
    applied = oelm.apply(model, init="orthogonal", freeze="qk", seed=1)
    # the same reservoir as on the model without adapters, under the same names; and PEFT's structure untouched
    for mine, theirs in zip(oelm.find_heads(model), oelm.find_heads(plain), strict=True):
        assert mine.name == theirs.name
        assert torch.equal(mine.weight, theirs.weight)
    assert [name for name, _ in model.named_modules()] == names
    assert {name for name, p in model.named_parameters() if p.requires_grad} == trainable

    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(2):
        family.loss(model.train()).backward()
        optimizer.step()
        optimizer.zero_grad()
    applied.audit(optimizer=optimizer).check()
    with pytest.raises(oelm.TreatmentError, match="none of them is frozen"):
        applied.unfreeze()  # PEFT froze the base, not the treatment
    applied.undo()
    assert {name for name, p in model.named_parameters() if p.requires_grad} == trainable


def test_merging_keeps_the_treated_weights():
    _, model = wrapped("gpt2", ["c_proj"], "CAUSAL_LM")
    applied = oelm.apply(model, init="orthogonal", freeze="qk")
    hashes = {param_slice.key: param_slice.sha256() for param_slice in applied.slices}
    merged = model.merge_and_unload()
    again = oelm.find_heads(merged)
    assert {view.name for view in again} == {key.split("[")[0] for key in hashes if "weight" in key}
    assert all(row.deviation < 1e-5 for row in oelm.orthonormality(merged))


def test_saving_the_adapter_alone_is_refused(tmp_path):
    _, model = wrapped("bert", ["value"], "SEQ_CLS")
    with pytest.raises(oelm.ModelError, match=r"weights would be lost[\s\S]*merge_and_unload"):
        oelm.apply(model, init="orthogonalize", freeze="qk").save_pretrained(tmp_path)


def test_a_merged_adapter_is_refused():
    _, model = wrapped("bert", ["query"], "SEQ_CLS")
    model.merge_adapter()
    with pytest.raises(oelm.ModelError, match=r"merged[\s\S]*unmerge_adapter"):
        oelm.apply(model, init="orthogonalize", freeze="qk")


def test_a_fused_weight_that_learns_below_an_adapter_is_refused():
    _, model = wrapped("gpt2", ["c_attn"], "CAUSAL_LM")
    for name, parameter in model.named_parameters():
        if name.endswith("base_layer.weight"):
            parameter.requires_grad_(True)
    with pytest.raises(oelm.ModelError, match="inside an adapter"):
        oelm.apply(model, init="orthogonalize", freeze="qk")


def test_frames_below_an_adapter():
    """A new adapter adds nothing yet; a trained one adds to the coordinates that were."""
    family = FAMILIES[0]
    config = peft.LoraConfig(r=2, target_modules=["query", "value"], task_type="SEQ_CLS")
    model = peft.get_peft_model(attentive(family), config).eval()
    applied = oelm.apply(model, init="frames", freeze="qk", inputs=family.batch())
    applied.audit().check()
    applied.undo()
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                parameter.add_(0.1)
    with pytest.raises(oelm.TreatmentError, match=r"adapter that has been trained[\s\S]*merge the trained adapter"):
        oelm.apply(model, init="frames", freeze="qk", inputs=family.batch())
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items() if "lora" not in name)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"init": "zero", "freeze": "qk"}, r"without adapters[\s\S]*adapt other modules"),
        (
            {"init": "orthogonalize", "keep_orthonormal": True},
            r"weights that are trainable[\s\S]*omit keep_orthonormal",
        ),
    ],
)
def test_promises_that_an_adapter_would_break(fields, message):
    _, model = wrapped("bert", ["query", "value"], "SEQ_CLS")
    with pytest.raises(oelm.TreatmentError, match=message):
        oelm.apply(model, **fields)


def test_the_table_says_that_an_adapter_still_learns():
    _, model = wrapped("llama", ["q_proj", "v_proj"], "CAUSAL_LM")
    assert "adapters on q are trainable" in str(oelm.apply(model, init="orthogonal", freeze="qk"))
    _, model = wrapped("llama", ["v_proj"], "CAUSAL_LM")
    assert "adapters" not in str(oelm.apply(model, init="orthogonal", freeze="qk"))
