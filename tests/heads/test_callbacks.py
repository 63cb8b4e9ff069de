"""AuditCallback in a real `transformers.Trainer`."""

import pytest
import torch
import transformers

import oelm
from zoo import FAMILIES

BERT, GPT2 = (next(f for f in FAMILIES if f.name == name) for name in ("bert", "gpt2"))


class Meddler(transformers.TrainerCallback):
    """Does something to the model after step 2."""

    def __init__(self, meddle):
        self.meddle = meddle

    def on_optimizer_step(self, args, state, control, **kwargs):
        if state.global_step == 1:  # the second step is under way
            self.meddle()


def trainer(family, applied, tmp_path, *, callbacks=(), **settings):
    model = applied.model
    generator = torch.Generator().manual_seed(0)
    rows = [
        {
            "input_ids": (ids := torch.randint(3, 64, (7,), generator=generator)),
            "labels": ids if family is GPT2 else torch.tensor(index % 3),
        }
        for index in range(16)
    ]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path),
        max_steps=6,
        save_steps=3,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        weight_decay=0.1,
        warmup_steps=2,
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        logging_strategy="no",
        dataloader_pin_memory=False,
        **settings,
    )
    return transformers.Trainer(
        model=model, args=arguments, train_dataset=rows, callbacks=[*callbacks, oelm.AuditCallback(applied)]
    )


@pytest.fixture(params=[BERT, GPT2], ids=lambda family: family.name)
def family(request):
    return request.param


def test_a_training_is_audited_at_the_start_at_every_save_and_at_the_end(family, tmp_path, monkeypatch):
    applied = oelm.apply(family.model(), init="orthogonalize", freeze="qk")
    audits = []
    real = applied.audit
    monkeypatch.setattr(applied, "audit", lambda **kwargs: audits.append(real(**kwargs)) or audits[-1])
    run = trainer(family, applied, tmp_path)
    run.train()
    assert len(audits) == 4  # start, step 3, step 6, end
    assert all(audit.ok for audit in audits)
    assert all("optimizer" in audit.examined for audit in audits)
    assert ["movement" in audit.examined for audit in audits] == [False, True, True, True]
    # and what Trainer saved is a vanilla checkpoint
    plain = type(applied.model).from_pretrained(tmp_path / "checkpoint-6", attn_implementation="eager")
    assert list(plain.state_dict()) == list(applied.model.state_dict())


@pytest.mark.parametrize("hidden", [False, True], ids=["in place", "through .data"])
def test_a_frozen_bit_that_moves_fails_the_training_at_once(family, tmp_path, hidden):
    applied = oelm.apply(family.model(), init="orthogonalize", freeze="qk")

    def meddle():
        with torch.no_grad():
            parameter = applied.frozen[0].parameter
            (parameter.data if hidden else parameter)[0, 0] += 1e-6

    run = trainer(family, applied, tmp_path, callbacks=[Meddler(meddle)])
    with pytest.raises(oelm.AuditFailed, match="FROZEN-MOVED"):
        run.train()
    assert run.state.global_step == 2


def test_a_write_that_changes_nothing_is_no_finding(family, tmp_path):
    applied = oelm.apply(family.model(), init="orthogonalize", freeze="qk")

    def meddle():
        with torch.no_grad():
            applied.frozen[0].parameter.mul_(1.0)

    trainer(family, applied, tmp_path, callbacks=[Meddler(meddle)]).train()


def test_a_wrong_optimizer_fails_at_the_start(family, tmp_path):
    applied = oelm.apply(family.model(), freeze="qk")
    run = trainer(family, applied, tmp_path)
    run.optimizer = torch.optim.AdamW(applied.model.parameters(), lr=1e-3)
    with pytest.raises(oelm.AuditFailed, match="OPTIMIZER-HAS-FROZEN"):
        run.train()
    assert run.state.global_step == 0


def test_the_schedule_is_followed(family, tmp_path):
    """Half-way through, layer 1 is unfrozen and trained, under Trainer's own learning-rate schedule."""
    applied = oelm.apply(
        family.model(), init="orthogonal", freeze="qk", unfreeze=oelm.Unfreeze(start=0.5, end=1.0, order="top-down")
    )
    before = {param_slice.key: param_slice.sha256() for param_slice in applied.slices}
    run = trainer(family, applied, tmp_path)
    run.train()
    moved = {r.projection.layer for r in applied.slices if r.kind == "weight" and r.sha256() != before[r.key]}
    assert moved == {1}
    assert {param_slice.projection.layer for param_slice in applied.frozen} == {0}


def test_gradient_accumulation_and_checkpointing(family, tmp_path):
    applied = oelm.apply(family.model(), init="orthogonalize", freeze="qk")
    settings = {"gradient_accumulation_steps": 2, "gradient_checkpointing": True, "bf16": True}
    trainer(family, applied, tmp_path, **settings).train()
    applied.audit().check()


def test_resuming_from_trainers_checkpoint_keeps_the_frozen_bits(family, tmp_path):
    applied = oelm.apply(family.model(), init="orthogonalize", freeze="qk")
    run = trainer(family, applied, tmp_path)
    run.train()
    again = oelm.apply(family.model(), init="orthogonalize", freeze="qk")
    resumed = trainer(family, again, tmp_path)
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    assert all(a.sha256() == b.sha256() for a, b in zip(applied.frozen, again.frozen, strict=True))
