"""The loss in chunks is the loss, for every language model, and its gradients are the gradients."""

import pytest
import torch
import torch.nn.functional as F
import transformers

from oelm.train import objective as module
from oelm.train.objective import Objective, has_plain_head
from zoo import FAMILIES

SMALL = dict(vocab_size=64, hidden_size=32, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2)
SMALL |= dict(intermediate_size=32, head_dim=8, max_position_embeddings=16, pad_token_id=0)
# Not asked of the models here: every process that collects tests would build all of them.
ENCODERS = {"bert", "roberta", "xlm-roberta", "electra", "distilbert", "mpnet", "albert", "deberta-v2", "camembert"}
OTHERS = {"vit", "clip-text", "modernbert", "torch-encoder", "oelm-gpt-classifier", "t5", "mt5", "bart"}
LANGUAGE = [one for one in FAMILIES if one.name not in ENCODERS | OTHERS]
BERT = transformers.BertForSequenceClassification(
    transformers.BertConfig(
        vocab_size=64,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        num_labels=3,
    )
).eval()


def windows(seed=0, vocab=64):
    tokens = torch.randint(3, vocab, (3, 8), generator=torch.Generator().manual_seed(seed))
    return {"input_ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()


def gradients(model, loss):
    model.zero_grad()
    loss.backward()
    return {name: one.grad.clone() for name, one in model.named_parameters() if one.grad is not None}


@pytest.fixture(autouse=True)
def few_at_a_time(monkeypatch):
    monkeypatch.setattr(module, "_CHUNK", 64 * 5)  # 21 tokens in chunks of 5: the last one is shorter


def test_these_are_all_language_models():
    assert [one for one in FAMILIES if type(one.model()).__name__.endswith(("ForCausalLM", "LMHeadModel"))] == LANGUAGE


@pytest.mark.parametrize("family", LANGUAGE, ids=lambda one: one.name)
def test_loss_and_gradients_are_those_of_all_logits_at_once(family):
    model = family.model()
    inputs, targets = windows()
    logits = model(**inputs, use_cache=False).logits
    each = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    whole = gradients(model, each.sum())
    objective = Objective(model)
    loss = objective(inputs, targets)
    torch.testing.assert_close(loss, each.sum())
    found = gradients(model, loss)
    assert found.keys() == whole.keys()
    for name, gradient in whole.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-4, atol=1e-5, msg=name)
    with torch.inference_mode():
        losses, logits = objective.each(inputs, targets)
    assert logits is None
    torch.testing.assert_close(losses, each.detach())


def test_most_of_them_go_in_chunks():
    plain = [family.name for family in LANGUAGE if has_plain_head(family.model())]
    assert len(LANGUAGE) > 10
    assert len(plain) >= len(LANGUAGE) - 2, plain


@pytest.mark.parametrize(
    "model",
    [
        transformers.Gemma2ForCausalLM(transformers.Gemma2Config(**SMALL, final_logit_softcapping=2.0)),
        transformers.GraniteForCausalLM(transformers.GraniteConfig(**SMALL, logits_scaling=3.0)),
        BERT,
        torch.nn.Linear(3, 3),
    ],
    ids=lambda one: type(one).__name__,
)
def test_logits_that_are_more_than_a_linear_map_are_left_to_the_model(model):
    assert not has_plain_head(model)
    if hasattr(model, "lm_head"):
        inputs, targets = windows()
        model.eval()
        logits = model(**inputs, use_cache=False).logits
        expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="sum")
        torch.testing.assert_close(Objective(model)(inputs, targets), expected)


def test_looking_at_the_head_leaves_no_trace():
    model = transformers.GPT2LMHeadModel(
        transformers.GPT2Config(n_layer=1, n_embd=16, n_head=2, vocab_size=64, bos_token_id=0, eos_token_id=0)
    ).train()
    before = torch.random.get_rng_state()
    assert has_plain_head(model)
    assert model.training
    assert torch.equal(torch.random.get_rng_state(), before)
    assert all(parameter.grad is None for parameter in model.parameters())


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_that_of_all_logits_at_once(dtype):
    """Sums over thousands of tokens must not be made in 8 or 11 bits."""
    torch.manual_seed(0)
    model = next(one for one in LANGUAGE if one.name == "gpt2").model()
    tokens = torch.randint(3, 64, (40, 31))
    inputs, targets = {"input_ids": tokens[:, :-1].contiguous()}, tokens[:, 1:].contiguous()
    objective = Objective(model)
    with torch.autocast("cpu", dtype=dtype):
        logits = model(**inputs, use_cache=False).logits.float()
        plain = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
        loss = objective(inputs, targets)
        with torch.inference_mode():
            losses, _ = objective.each(inputs, targets)
    assert loss.dtype == losses.dtype == torch.float32
    torch.testing.assert_close(loss, plain.sum(), rtol=1e-5, atol=0)
    torch.testing.assert_close(losses, plain.detach(), rtol=1e-4, atol=0)
    whole, found = gradients(model, plain.sum()), gradients(model, loss)
    for name, gradient in whole.items():
        torch.testing.assert_close(found[name], gradient, rtol=1e-2, atol=1e-3, msg=name)


def test_classes():
    inputs, targets = {"input_ids": torch.randint(64, (4, 5))}, torch.tensor([0, 2, 1, 1])
    losses, logits = Objective(BERT).each(inputs, targets)
    assert logits.shape == (4, 3)
    torch.testing.assert_close(losses, -logits.log_softmax(1)[torch.arange(4), targets])
    torch.testing.assert_close(Objective(BERT)(inputs, targets), losses.sum())
