"""What happens in between: undo after training, saving what was trained, models that share or pack."""

import json

import pytest
import torch
import transformers
from torch import nn

import oelm
from zoo import FAMILIES

BERT, GPT2 = (next(f for f in FAMILIES if f.name == name) for name in ("bert", "gpt2"))
both = pytest.mark.parametrize("family", [BERT, GPT2], ids=lambda family: family.name)


def steps(family, model, number=2):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(number):
        family.loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@both
@pytest.mark.parametrize(
    "fields",
    [
        {"init": "orthogonal"},
        {"init": "keep", "freeze": "q"},
        {"init": "orthogonal", "freeze": "qk", "bias": "train"},
        {"init": "keep", "freeze": "qk"},
    ],
)
def test_undo_after_training_restores_queries_and_keys(family, fields):
    """Weights and biases, also those that were trained, and those unfrozen on the way."""
    model = family.model()
    applied = oelm.apply(model, **fields)
    if fields.get("freeze") == "qk":
        applied.unfreeze(layers=[1])
    steps(family, model)
    applied.undo()
    plain = oelm.apply(family.model())  # untreated, for its slices
    again = oelm.apply(model)
    for mine, theirs in zip(again.slices, plain.slices, strict=True):
        assert torch.equal(mine.copy(), theirs.copy()), mine.key


def test_undo_leaves_alone_what_was_added_since():
    model = BERT.model()
    applied = oelm.apply(model, freeze="qk")
    model.added = nn.Linear(2, 2)
    applied.undo()
    assert all(p.requires_grad for p in model.parameters())


def test_layers_cannot_be_treated_one_after_the_other():
    model = GPT2.model()
    oelm.apply(model, freeze="qk", layers=[0])
    with pytest.raises(oelm.ModelError, match="already treated"):
        oelm.apply(model, freeze="qk", layers=[1])


def test_a_fused_weight_that_layers_share_is_refused():
    model = GPT2.model()
    first, second = (block.attn.c_attn for block in model.transformer.h)
    second.weight, second.bias = first.weight, first.bias
    before = first.weight.clone()
    with pytest.raises(oelm.ModelError, match="several modules share"):
        oelm.apply(model, init="orthogonal", freeze="qk")
    assert torch.equal(second.weight, before)


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_torch_encoder_with_padding_in_evaluation():
    """The default encoder packs padded batches into nested tensors, for a path that a split attention does not take."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(24, 4, 32, batch_first=True), 2).eval()
    x, mask = torch.randn(2, 5, 24), torch.tensor([[False] * 5, [False] * 3 + [True] * 2])
    with torch.no_grad():
        expected = encoder(x, src_key_padding_mask=mask)[~mask]
        applied = oelm.apply(encoder, freeze="qk")
        assert torch.allclose(encoder(x, src_key_padding_mask=mask)[~mask], expected, atol=1e-5)
        applied.undo()
        assert encoder.use_nested_tensor
        assert torch.equal(encoder(x, src_key_padding_mask=mask)[~mask], expected)


@both
def test_a_frozen_tensor_made_to_learn_is_not_saved(family, tmp_path):
    applied = oelm.apply(family.model(), freeze="qk")
    applied.frozen[0].parameter.requires_grad_(True)
    with pytest.raises(oelm.AuditFailed, match="become trainable"):
        applied.save_pretrained(tmp_path)


@both
@pytest.mark.parametrize("how", ["never frozen", "unfrozen", "frozen again"])
def test_what_was_trained_before_saving_is_not_asked_to_be_orthonormal(family, how, tmp_path):
    from oelm.heads.audit import audit_folder

    model = family.model()
    applied = oelm.apply(model, init="orthogonal", freeze="none" if how == "never frozen" else "qk")
    if how != "never frozen":
        applied.unfreeze(layers=[1])
    steps(family, model)
    if how == "frozen again":
        applied.refreeze(layers=[1])
    applied.audit().check()
    applied.save_pretrained(tmp_path)
    _, again = oelm.from_pretrained(tmp_path)
    again.audit().check()
    family.model().save_pretrained(tmp_path / "base")
    audit_folder(tmp_path, against=tmp_path / "base").check()


@pytest.mark.parametrize("change", ["no hashes", "one less", "another treatment"])
def test_a_record_that_says_less_than_its_treatment_is_refused(tmp_path, change):
    oelm.apply(BERT.model(), init="orthogonalize", freeze="qk").save_pretrained(tmp_path)
    record = json.loads((tmp_path / "oelm.json").read_text())
    if change == "no hashes":
        record["frozen"] = {}
    elif change == "one less":
        record["frozen"].popitem()
    else:
        record["treatment"]["freeze"] = "q"
    (tmp_path / "oelm.json").write_text(json.dumps(record))
    with pytest.raises(oelm.FolderError, match="is damaged"):
        oelm.from_pretrained(tmp_path)


def test_unfrozen_layers_join_the_group_of_their_own_attention():
    """Not that of the head, though it holds matrices too and comes first."""
    model = BERT.model()
    applied = oelm.apply(model, freeze="qk")
    head = list(model.classifier.parameters())
    body = [p for p in model.parameters() if p.requires_grad and all(p is not other for other in head)]
    optimizer = torch.optim.AdamW([{"params": head, "lr": 1e-3}, {"params": body, "lr": 2e-5}])
    given = applied.unfreeze(optimizer=optimizer)
    assert all(any(p is other for other in optimizer.param_groups[1]["params"]) for p in given)


def test_progress_is_a_fraction():
    applied = oelm.apply(BERT.model(), freeze="qk", unfreeze={"start": 0.5, "end": 1.0})
    for progress in (50, -1, float("nan")):
        with pytest.raises(oelm.TreatmentError, match="fraction of the budget"):
            applied.advance(progress)


def test_small_steps_in_low_precision_are_no_finding():
    """In bfloat16 a small step may round to nothing: that is how the type is, not a fault of the training."""
    model = BERT.model().to(torch.bfloat16)
    applied = oelm.apply(model, freeze="qk")
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-7, weight_decay=0)
    BERT.loss(model).backward()
    optimizer.step()
    applied.audit(optimizer=optimizer).check()


def test_a_default_device_does_not_matter():
    model = BERT.model()
    with torch.device("meta"):  # any device that is not the CPU
        for init in ("orthogonalize", "orthogonal", "identity", "polar", "gaussian"):
            applied = oelm.apply(model, init=init, freeze="qk")
            applied.audit().check()
            applied.undo()
        assert len(oelm.orthonormality(model)) == 16


def test_weights_that_are_not_finite_can_be_measured():
    model = BERT.model()
    oelm.find_heads(model)[0].weight[0, 0] = float("nan")
    assert oelm.orthonormality(model)[0].norm != oelm.orthonormality(model)[0].norm


def test_separate_matrices_with_swapped_names_are_found_out(monkeypatch):
    from oelm.heads import layouts

    monkeypatch.setattr(layouts, "_layouts", dict(layouts._layouts))
    family = next(f for f in FAMILIES if f.name == "gptj")
    model = family.model()
    oelm.register_layout(transformers.models.gptj.modeling_gptj.GPTJAttention, query="k_proj", key="q_proj")
    with pytest.raises(oelm.UnknownLayout, match="registered as 'q' act as 'k'"):
        oelm.prove_layout(model, maps=family.maps)
    layouts._layouts["transformers.models.gptj.modeling_gptj.GPTJAttention"].pop(0)
