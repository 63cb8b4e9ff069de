"""The audit finds what is wrong: every finding is provoked once, on a separate and on a fused model."""

import pytest
import torch

import oelm
from zoo import FAMILIES

BERT, GPT2 = (next(f for f in FAMILIES if f.name == name) for name in ("bert", "gpt2"))
both = pytest.mark.parametrize("family", [BERT, GPT2], ids=lambda family: family.name)


def treated(family, **fields):
    model = family.model()
    applied = oelm.apply(model, **({"init": "orthogonalize", "freeze": "qk"} | fields))
    return model, applied


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=1e-2, weight_decay=0.1)


def learning(model):
    return [p for p in model.parameters() if p.requires_grad]


def codes(audit):
    return {finding.code for finding in audit.findings}


@both
def test_a_good_model_passes_at_every_stage(family):
    model, applied = treated(family)
    assert applied.audit().ok
    optimizer = adamw(learning(model))
    assert applied.audit(optimizer=optimizer).ok
    family.loss(model).backward()
    audit = applied.audit(optimizer=optimizer)
    assert audit.ok
    assert "have one" in audit.examined["gradients"]
    optimizer.step()
    audit = applied.audit(optimizer=optimizer)
    assert audit.check() is audit
    assert set(audit.examined) == {
        "counts",
        "frozen bits",
        "geometry",
        "requires_grad",
        "task head",
        "gradients",
        "optimizer",
        "movement",
    }
    assert str(audit).startswith("audit passed")


@both
@pytest.mark.parametrize("what", ["one bit", "one bias"])
def test_frozen_moved(family, what):
    _, applied = treated(family)
    param_slice = next(r for r in applied.frozen if r.kind == ("weight" if what == "one bit" else "bias"))
    row = param_slice.rows(1)
    row.view(torch.int32).view(-1)[3] ^= 1  # the last bit of one number
    audit = applied.audit()
    assert codes(audit) == {"FROZEN-MOVED"}
    (finding,) = audit.findings
    assert finding.where == param_slice.key
    assert finding.expected != finding.measured
    with pytest.raises(oelm.AuditFailed, match=r"1 finding\b.*\n.*FROZEN-MOVED"):
        audit.check()
    assert audit.to_dict()["findings"][0]["code"] == "FROZEN-MOVED"


@both
def test_every_finding_is_listed(family):
    _, applied = treated(family)
    for param_slice in applied.frozen:
        param_slice.rows(0).add_(1.0)
    audit = applied.audit()
    assert len(audit.findings) == len(applied.frozen)
    with pytest.raises(oelm.AuditFailed) as error:
        audit.check()
    assert all(param_slice.key in str(error.value) for param_slice in applied.frozen)


def test_a_weight_cast_after_apply_is_a_finding():
    model, applied = treated(BERT)
    model.to(torch.bfloat16)
    findings = applied.audit().findings
    assert {f.code for f in findings} == {"FROZEN-MOVED"}
    assert "bfloat16" in findings[0].measured


@both
def test_not_orthonormal_and_wrong_scale(family):
    """Geometry is judged by the weights themselves, not by the promise that they were written."""
    _, applied = treated(family)
    param_slice = next(r for r in applied.frozen if r.kind == "weight")
    param_slice.rows(2)[0].mul_(1.5)
    applied.hashes_at_apply[param_slice.key] = applied.frozen_hashes[param_slice.key] = param_slice.sha256()
    audit = applied.audit()
    assert codes(audit) == {"NOT-ORTHONORMAL", "WRONG-SCALE"}
    assert all("layer 0, head 2" in finding.where for finding in audit.findings)


def test_scale_of_a_matched_treatment():
    _, applied = treated(BERT, scale="match")
    param_slice = next(r for r in applied.frozen if r.kind == "weight")
    param_slice.rows(2).mul_(1.5)
    applied.hashes_at_apply[param_slice.key] = applied.frozen_hashes[param_slice.key] = param_slice.sha256()
    assert codes(applied.audit()) == {"WRONG-SCALE"}


def test_head_frozen():
    model, applied = treated(BERT)
    model.classifier.weight.requires_grad_(False)
    model.bert.pooler.dense.bias.requires_grad_(False)
    findings = applied.audit().findings
    assert {f.where for f in findings if f.code == "HEAD-FROZEN"} == {"classifier.weight", "bert.pooler.dense.bias"}
    assert {f.code for f in findings} == {"HEAD-FROZEN", "LEARNING-CHANGED", "COUNT-DIFFERS"}


def test_head_frozen_before_the_treatment():
    model = BERT.model()
    model.classifier.requires_grad_(False)
    assert codes(oelm.apply(model, freeze="qk").audit()) == {"HEAD-FROZEN"}


def test_tied_lm_head_frozen():
    model, applied = treated(GPT2)
    model.lm_head.weight.requires_grad_(False)
    assert "HEAD-FROZEN" in codes(applied.audit())


@both
def test_requires_grad_of_something_else_changed(family):
    model, applied = treated(family)
    name, parameter = next((n, p) for n, p in model.named_parameters() if "LayerNorm" in n or "ln_1" in n)
    parameter.requires_grad_(False)
    assert {f.where for f in applied.audit().findings if f.code == "LEARNING-CHANGED"} == {name}


@both
def test_frozen_learns(family):
    _, applied = treated(family)
    applied.frozen[0].parameter.requires_grad_(True)
    assert {"FROZEN-LEARNS", "COUNT-DIFFERS"} <= codes(applied.audit())


@both
def test_optimizer_groups(family):
    model, applied = treated(family)
    trainable = learning(model)
    frozen = [p for p in model.parameters() if not p.requires_grad]
    assert codes(applied.audit(optimizer=adamw(model.parameters()))) == {"OPTIMIZER-HAS-FROZEN"}
    assert codes(applied.audit(optimizer=adamw(trainable[1:]))) == {"OPTIMIZER-MISSES"}
    twice = adamw(trainable)
    twice.param_groups.append({**twice.param_groups[0], "params": trainable[:1]})
    assert codes(applied.audit(optimizer=twice)) == {"OPTIMIZER-TWICE"}
    stateful = adamw(trainable)
    stateful.state[frozen[0]] = {"step": torch.tensor(1.0)}
    assert "FROZEN-HAS-STATE" in codes(applied.audit(optimizer=stateful, stepped=False))


def test_an_optimizer_from_before_a_split_is_stale():
    model = GPT2.model()
    optimizer = adamw(model.parameters())
    applied = oelm.apply(model, freeze="qk")
    assert codes(applied.audit(optimizer=optimizer)) == {"OPTIMIZER-STALE", "OPTIMIZER-MISSES"}


@both
def test_gradients(family):
    model, applied = treated(family)
    family.loss(model).backward()
    applied.frozen[0].parameter.grad = torch.zeros_like(applied.frozen[0].parameter)
    assert codes(applied.audit()) == {"FROZEN-HAS-GRADIENT"}
    applied.frozen[0].parameter.grad = None
    next(p for p in model.parameters() if p.requires_grad).grad = None
    assert codes(applied.audit()) == {"NO-GRADIENT"}


@both
def test_not_moved(family):
    model, applied = treated(family)
    optimizer = adamw(learning(model))
    kept = next(p for p in model.parameters() if p.requires_grad and p.ndim == 2)
    copy = kept.detach().clone()
    family.loss(model).backward()
    optimizer.step()
    kept.data.copy_(copy)
    findings = applied.audit(optimizer=optimizer).findings
    assert {f.code for f in findings} == {"NOT-MOVED"}
    assert len(findings) == 1


def test_steps_of_plain_sgd_leave_no_state_but_can_be_declared():
    model, applied = treated(BERT)
    optimizer = torch.optim.SGD(learning(model), lr=0.0)
    BERT.loss(model).backward()
    optimizer.step()
    assert applied.audit(optimizer=optimizer).ok
    assert codes(applied.audit(optimizer=optimizer, stepped=True)) == {"NOT-MOVED"}


@both
def test_counts_follow_unfrozen_layers(family):
    model, applied = treated(family)
    frozen = applied.counts.frozen
    applied.unfreeze(layers="last:0.5")
    assert applied.counts.frozen == frozen // 2
    applied.audit().check()
    applied.refreeze()
    assert applied.counts.frozen == frozen
    applied.audit(optimizer=adamw(learning(model))).check()
    with pytest.raises(oelm.TreatmentError, match="frozen again"):
        applied.refreeze()
    applied.unfreeze()
    with pytest.raises(oelm.TreatmentError, match="none of them is frozen"):
        applied.unfreeze()


@both
def test_an_unfrozen_layer_must_move_too(family):
    model, applied = treated(family)
    optimizer = adamw(learning(model))
    given = applied.unfreeze(layers=[1], optimizer=optimizer)
    before = [parameter.detach().clone() for parameter in given]
    family.loss(model).backward()
    optimizer.step()
    for parameter, kept in zip(given, before, strict=True):
        parameter.data.copy_(kept)
    names = {name for name, p in model.named_parameters() if any(p is other for other in given) and p.ndim > 1}
    findings = applied.audit(optimizer=optimizer).findings
    assert {finding.code for finding in findings} == {"NOT-MOVED"}
    assert {finding.where for finding in findings} >= names


@both
def test_a_layer_frozen_again_loses_its_gradient(family):
    model, applied = treated(family)
    applied.unfreeze()
    family.loss(model).backward()
    taken = applied.refreeze()
    assert all(parameter.grad is None for parameter in taken)
    applied.audit().check()


def test_the_schedule_unfreezes_layers():
    model, applied = treated(BERT, unfreeze={"start": 0.5, "end": 1.0})
    optimizer = adamw(learning(model))
    assert applied.advance(0.4, optimizer=optimizer) == []
    given = applied.advance(0.5, optimizer=optimizer)
    assert {id(p) for p in given} == {id(p) for p in model.bert.encoder.layer[1].attention.self.query.parameters()} | {
        id(p) for p in model.bert.encoder.layer[1].attention.self.key.parameters()
    }
    assert applied.advance(0.5, optimizer=optimizer) == []
    applied.audit(optimizer=optimizer).check()
    assert applied.advance(1.0, optimizer=optimizer)
    assert applied.frozen == []


def test_matrices_join_the_group_of_matrices():
    """So weight decay goes where it went, and learning-rate schedulers know the group."""
    model, applied = treated(BERT)
    matrices = [p for p in learning(model) if p.ndim > 1]
    vectors = [p for p in learning(model) if p.ndim == 1]
    optimizer = torch.optim.AdamW([{"params": vectors, "weight_decay": 0.0}, {"params": matrices}], lr=1e-2)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
    given = applied.unfreeze(optimizer=optimizer)
    for parameter in given:
        group = optimizer.param_groups[0 if parameter.ndim == 1 else 1]
        assert any(parameter is other for other in group["params"])
    optimizer.step()
    scheduler.step()
    assert [group["lr"] for group in optimizer.param_groups] == [5e-3, 5e-3]
