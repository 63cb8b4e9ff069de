"""Classification with causal attention: our GPT reads an example from left to right, and its last token decides."""

import numpy as np
import torch

import oelm
import tiny_study
from oelm.data.tasks import task_named
from oelm.models.build import build_model
from oelm.study.recipe import ModelConfig
from oelm.train.progress import Progress


def test_the_last_token_decides_and_padding_does_not(tmp_path, monkeypatch):
    from oelm.data.batches import collate
    from oelm.train.cell import load_data

    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    study = oelm.load_study(tiny_study.make(tmp_path, model={"name": "oelm-gpt", "preset": "mini-128"}))
    assert (study.recipe.model.causal, study.recipe.model.pooling) == (True, "last"), "what our GPT is by default"
    prepared = load_data(study.recipe, Progress())
    recipe = ModelConfig(name="oelm-gpt", preset="mini-128", causal=True, dropout=0.0)
    made = {"task": task_named("sst2"), "tokenizer": prepared.tokenizer, "max_length": 32, "seed": 0}
    model = build_model(recipe, **made).eval()
    rows = np.argsort(prepared.train.lengths)[[0, -1]]  # the shortest beside the longest
    options = {"pad": prepared.tokenizer.pad_token_id, "device": torch.device("cpu")}
    together, alone = (collate(prepared.train, some, **options).inputs for some in (rows, rows[:1]))
    with torch.no_grad():
        assert together["attention_mask"][0].sum() < together["attention_mask"].shape[1]
        assert torch.allclose(model(**together).logits[:1], model(**alone).logits, atol=1e-5)
        hidden = model.model(**alone).last_hidden_state[:, -1]
        assert torch.allclose(model.classifier(hidden), model(**alone).logits, atol=1e-6)
        shorter = {name: tensor[:, :-1] for name, tensor in alone.items()}
        before = model.model(**alone).last_hidden_state[:, :-1]
        assert torch.allclose(model.model(**shorter).last_hidden_state, before, atol=1e-5), "none sees what follows"


def test_a_study_of_it(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    file = tiny_study.make(tmp_path, model={"name": "oelm-gpt", "preset": "mini-128", "causal": True})
    results = oelm.run(oelm.load_study(file), out=tmp_path / "runs")
    for record in results.records.values():
        assert record.status == "done"
        assert all(audit.passed for audit in record.audits)
        assert record.steps == 12
    found = results.compare("oelm-freeze", against="baseline", metric="accuracy")
    assert found.estimate.examples is not None
    assert not {issue.code for issue in results.checks} & {"UNPAIRED", "NOT-REPRODUCED", "AUDIT-FAILED"}
    saved, _ = oelm.from_pretrained(tmp_path / "runs/tiny/oelm-freeze/seed-0/model")
    assert (saved.config.causal, saved.config.pooling) == (True, "last")
