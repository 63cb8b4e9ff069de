"""The GPT: its exact architecture, padding, caching, and that it is a transformers model in every respect."""

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoModelForSequenceClassification

import oelm.models.gpt as gpt
from oelm.models.gpt import (
    PRESETS,
    OelmGPTAttention,
    OelmGPTConfig,
    OelmGPTForCausalLM,
    OelmGPTForSequenceClassification,
    OelmGPTModel,
)

VOCAB = 50
TINY: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 24,
    # Weights of this size make attention far from uniform, so that a wrong mask or position is seen.
    "initializer_range": 0.3,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": 0,
}


def tiny(**changes: Any) -> OelmGPTConfig:
    return OelmGPTConfig(**{**TINY, **changes})


def causal_lm(**changes: Any) -> OelmGPTForCausalLM:
    torch.manual_seed(0)
    return OelmGPTForCausalLM(tiny(**changes)).eval()


def classifier(**changes: Any) -> OelmGPTForSequenceClassification:
    torch.manual_seed(0)
    model = OelmGPTForSequenceClassification(tiny(num_labels=3, **changes)).eval()
    nn.init.normal_(model.classifier.bias)
    return model


def tokens(batch: int, length: int, seed: int = 1) -> Tensor:
    return torch.randint(1, VOCAB, (batch, length), generator=torch.Generator().manual_seed(seed))


def padded(sequences: list[Tensor], side: str, length: int) -> dict[str, Tensor]:
    """A batch of sequences filled up with token 0 on one side, and its attention mask."""
    batch = {"input_ids": torch.zeros(len(sequences), length, dtype=torch.long)}
    batch["attention_mask"] = torch.zeros_like(batch["input_ids"])
    for row, sequence in enumerate(sequences):
        where = slice(0, len(sequence)) if side == "right" else slice(length - len(sequence), length)
        batch["input_ids"][row, where] = sequence
        batch["attention_mask"][row, where] = 1
    return batch


def count(parameters: Any) -> int:
    return sum(parameter.numel() for parameter in parameters)


# Sizes


def test_medium_causal_lm_has_the_exact_parameter_count() -> None:
    with torch.device("meta"):
        model = OelmGPTForCausalLM(OelmGPTConfig.preset("medium-512"))
    assert count(model.parameters()) == 44_896_768
    attentions = [module for module in model.modules() if isinstance(module, OelmGPTAttention)]
    assert count(p for a in attentions for p in (*a.q_proj.parameters(), *a.k_proj.parameters())) == 3_145_728
    assert {(a.num_heads, a.head_dim) for a in attentions} == {(8, 64)}


def test_medium_classifier_has_the_exact_parameter_count() -> None:
    with torch.device("meta"):
        model = OelmGPTForSequenceClassification(OelmGPTConfig.preset("medium-512", num_labels=2))
    assert count(model.parameters()) == 44_897_794


def test_only_the_feed_forward_linears_have_biases() -> None:
    biased = {
        name.split(".")[-1]
        for name, module in causal_lm().named_modules()
        if isinstance(module, nn.Linear) and module.bias is not None
    }
    assert biased == {"up_proj", "down_proj"}


def test_lm_head_shares_the_token_embedding() -> None:
    model = causal_lm()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    untied = causal_lm(tie_word_embeddings=False)
    assert untied.lm_head.weight is not untied.model.embed_tokens.weight


# Architecture


@pytest.mark.parametrize("qk_norm", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_forward_equals_the_architecture_written_out(causal: bool, qk_norm: bool) -> None:
    torch.manual_seed(0)
    model = OelmGPTModel(tiny(causal=causal, qk_norm=qk_norm)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    ids = tokens(2, 7)
    x = model.embed_tokens.weight[ids] + model.embed_positions.weight[:7]
    forbidden = torch.ones(7, 7, dtype=torch.bool).triu(1) if causal else torch.zeros(7, 7, dtype=torch.bool)
    for block in model.blocks:
        norm, attention = block.attention_norm, block.attention
        normed = F.layer_norm(x, (32,), norm.weight, norm.bias, 1e-5)
        heads = []
        for head in range(4):
            rows = slice(8 * head, 8 * (head + 1))
            query, key, value = (
                normed @ projection.weight[rows].T
                for projection in (attention.q_proj, attention.k_proj, attention.v_proj)
            )
            if qk_norm:  # of every head by itself, with one weight for all
                query = query / (query.square().mean(-1, keepdim=True) + 1e-5).sqrt() * attention.q_norm.weight
                key = key / (key.square().mean(-1, keepdim=True) + 1e-5).sqrt() * attention.k_norm.weight
            scores = (query @ key.transpose(1, 2) / 8**0.5).masked_fill(forbidden, -torch.inf)
            heads.append(scores.softmax(-1) @ value)
        x = x + torch.cat(heads, -1) @ attention.o_proj.weight.T
        norm, up, down = block.feed_forward_norm, block.feed_forward.up_proj, block.feed_forward.down_proj
        inner = F.layer_norm(x, (32,), norm.weight, norm.bias, 1e-5) @ up.weight.T + up.bias
        gelu = inner * (1 + torch.erf(inner / 2**0.5)) / 2
        x = x + gelu @ down.weight.T + down.bias
    expected = F.layer_norm(x, (32,), model.final_norm.weight, model.final_norm.bias, 1e-5)
    torch.testing.assert_close(model(ids).last_hidden_state, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
@pytest.mark.parametrize("causal", [True, False])
def test_a_later_token_reaches_earlier_positions_only_without_causality(causal: bool, implementation: str) -> None:
    torch.manual_seed(0)
    model = OelmGPTModel(tiny(causal=causal, attn_implementation=implementation)).eval()
    before = tokens(1, 8)
    after = before.clone()
    after[0, 5] = before[0, 5] % (VOCAB - 1) + 1
    changed = (model(before).last_hidden_state - model(after).last_hidden_state).abs().amax(-1)[0] > 1e-4
    assert changed.tolist() == [not causal] * 5 + [True] * 3


def test_initial_weights() -> None:
    torch.manual_seed(0)
    model = OelmGPTForSequenceClassification(OelmGPTConfig.preset("mini-128", vocab_size=1000, num_labels=200))
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear | nn.Embedding):
            assert abs(module.weight.std().item() - 0.02) < 5e-4, name
            assert abs(module.weight.mean().item()) < 5e-4, name
        if isinstance(module, nn.LayerNorm):
            assert torch.equal(module.weight, torch.ones(128)), name
        if isinstance(module, nn.Linear | nn.LayerNorm) and module.bias is not None:
            assert torch.equal(module.bias, torch.zeros_like(module.bias)), name


def test_norms_of_queries_and_keys_leave_all_else_as_it_is(tmp_path: Path) -> None:
    plain, normed = causal_lm().state_dict(), causal_lm(qk_norm=True)
    own = {name: weight for name, weight in normed.state_dict().items() if name not in plain}
    assert sorted(own) == sorted(f"model.blocks.{n}.attention.{role}_norm.weight" for n in (0, 1) for role in "qk")
    assert all(weight.shape == (8,) and bool((weight == 1).all()) for weight in own.values())
    assert all(torch.equal(normed.state_dict()[name], weight) for name, weight in plain.items())
    normed.save_pretrained(tmp_path)
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    assert loaded.config.qk_norm
    ids = tokens(2, 7)
    assert torch.equal(loaded(ids).logits, normed(ids).logits)
    assert not torch.allclose(causal_lm()(ids).logits, normed(ids).logits, atol=1e-3)


def test_initializer_range_is_used() -> None:
    assert abs(causal_lm(initializer_range=0.5).model.embed_tokens.weight.std().item() - 0.5) < 0.05


# Dropout


def test_dropout_modules_sit_in_the_named_places() -> None:
    layers = [name for name, module in causal_lm(dropout=0.3).named_modules() if isinstance(module, nn.Dropout)]
    blocks = [
        f"model.blocks.{idx}.{layer}"
        for idx in range(2)
        for layer in (
            "attention.output_dropout",
            "feed_forward.activation_dropout",
            "feed_forward.output_dropout",
        )
    ]
    assert layers == ["model.embedding_dropout", *blocks]
    assert all(module.p == 0.3 for module in causal_lm(dropout=0.3).modules() if isinstance(module, nn.Dropout))


def test_dropout_modules_see_what_they_should() -> None:
    model = causal_lm()
    seen: dict[str, Tensor] = {}
    for name, module in model.named_modules():
        module.register_forward_hook(lambda _, args, output, name=name: seen.update({name: (args, output)}))
    ids = tokens(1, 5)
    model(ids)
    embedded = model.model.embed_tokens(ids) + model.model.embed_positions.weight[:5]
    torch.testing.assert_close(seen["model.embedding_dropout"][0][0], embedded)
    block = "model.blocks.0."
    assert seen[block + "attention.output_dropout"][0][0] is seen[block + "attention.o_proj"][1]
    inner = F.gelu(seen[block + "feed_forward.up_proj"][1])
    torch.testing.assert_close(seen[block + "feed_forward.activation_dropout"][0][0], inner)
    assert seen[block + "feed_forward.output_dropout"][0][0] is seen[block + "feed_forward.down_proj"][1]


@pytest.mark.parametrize("device", ["cpu", "meta"])
def test_attention_probabilities_are_dropped_only_in_training(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By torch's fused attention where it can, by ourselves on a CPU, where it cannot."""
    fused: list[float] = []
    ours: list[float] = []
    attend, drop = F.scaled_dot_product_attention, gpt.fast_dropout

    def recording(*args: Any, dropout_p: float, **kwargs: Any) -> Tensor:
        fused.append(dropout_p)
        return attend(*args, dropout_p=dropout_p, **kwargs)

    def dropping(given: Tensor, p: float) -> Tensor:
        ours.append(p)
        return drop(given, p)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recording)
    monkeypatch.setattr(gpt, "fast_dropout", dropping)
    model = causal_lm(dropout=0.3).to(device)
    model(tokens(1, 4).to(device))
    model.train()(tokens(1, 4).to(device))
    assert fused == ([0.0, 0.0] if device == "cpu" else [0.0, 0.0, 0.3, 0.3])
    assert ours == ([0.3, 0.3] if device == "cpu" else [])


@pytest.mark.parametrize("padded", [None, "left", "right"])
@pytest.mark.parametrize("causal", [True, False])
def test_attention_with_dropout_sees_what_attention_without_sees(causal: bool, padded: str | None) -> None:
    """The share is so small that nothing is dropped: what remains is the other way to attend."""
    config = OelmGPTConfig.preset("mini-128", vocab_size=50, num_labels=2, dropout=1e-7, causal=causal)
    torch.manual_seed(0)
    model = gpt.OelmGPTForSequenceClassification(config).eval()
    mask = torch.ones(2, 6, dtype=torch.long)
    if padded is not None:
        mask[0, slice(0, 2) if padded == "left" else slice(4, 6)] = 0
    inputs = {"input_ids": tokens(2, 6), **({} if padded is None else {"attention_mask": mask})}
    without = model(**inputs).logits
    torch.testing.assert_close(model.train()(**inputs).logits, without, rtol=1e-4, atol=1e-5)


def test_eager_attention_drops_probabilities_only_in_training() -> None:
    attention = causal_lm(dropout=0.5, attn_implementation="eager").model.blocks[0].attention
    attention.output_dropout.p = 0.0
    hidden = torch.randn(1, 6, 32)
    assert torch.equal(attention(hidden)[0], attention(hidden)[0])
    attention.train()
    assert not torch.equal(attention(hidden)[0], attention(hidden)[0])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_without_dropout_training_equals_evaluation(implementation: str) -> None:
    ids = tokens(2, 6)
    model = causal_lm(dropout=0.0, attn_implementation=implementation)
    assert torch.equal(model(ids).logits, model.train()(ids).logits)
    model = causal_lm(dropout=0.1, attn_implementation=implementation)
    assert not torch.allclose(model(ids).logits, model.train()(ids).logits)


# Attention implementations and recorded outputs


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("causal", [True, False])
def test_sdpa_equals_eager(causal: bool, side: str) -> None:
    batch = padded([tokens(1, 9)[0], tokens(1, 5)[0]], side, 9)
    torch.manual_seed(0)
    sdpa = OelmGPTModel(tiny(causal=causal)).eval()
    assert sdpa.config._attn_implementation == "sdpa"
    eager = OelmGPTModel(tiny(causal=causal, attn_implementation="eager")).eval()
    eager.load_state_dict(sdpa.state_dict())
    valid = batch["attention_mask"].bool()
    fast, plain = (model(**batch).last_hidden_state[valid] for model in (sdpa, eager))
    torch.testing.assert_close(fast, plain, atol=1e-5, rtol=0)


@pytest.mark.parametrize("causal", [True, False])
def test_no_mask_is_materialized_without_padding(causal: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    masks: list[Tensor | None] = []
    attend = F.scaled_dot_product_attention

    def recording(*args: Any, attn_mask: Tensor | None, **kwargs: Any) -> Tensor:
        masks.append(attn_mask)
        return attend(*args, attn_mask=attn_mask, **kwargs)

    monkeypatch.setattr(F, "scaled_dot_product_attention", recording)
    model = classifier(causal=causal)
    model(tokens(2, 6))
    model(tokens(2, 6), attention_mask=torch.ones(2, 6, dtype=torch.long))
    assert masks == [None] * 4
    model(**padded([tokens(1, 6)[0], tokens(1, 4)[0]], "left", 6))
    assert masks[-1] is not None


def test_hidden_states_and_attentions_are_returned() -> None:
    model = causal_lm(attn_implementation="eager")
    outputs = model(tokens(2, 6), output_hidden_states=True, output_attentions=True)
    assert [tuple(state.shape) for state in outputs.hidden_states] == [(2, 6, 32)] * 3
    assert torch.equal(model.lm_head(outputs.hidden_states[-1]), outputs.logits)
    assert [tuple(attention.shape) for attention in outputs.attentions] == [(2, 4, 6, 6)] * 2
    for attention in outputs.attentions:
        torch.testing.assert_close(attention.sum(-1), torch.ones(2, 4, 6))
        assert torch.equal(attention, attention.tril())
    assert model(tokens(2, 6)).hidden_states is None
    assert isinstance(model(tokens(2, 6), return_dict=False), tuple)


# Causal language modeling


def test_language_modeling_loss_is_the_next_token_cross_entropy() -> None:
    model = causal_lm()
    ids = tokens(2, 6)
    labels = ids.clone()
    labels[0, 3] = -100
    outputs = model(ids, labels=labels)
    expected = F.cross_entropy(outputs.logits[:, :-1].reshape(-1, VOCAB), labels[:, 1:].reshape(-1))
    torch.testing.assert_close(outputs.loss, expected)


def test_logits_to_keep() -> None:
    model = causal_lm()
    ids = tokens(2, 6)
    everything = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=2).logits, everything[:, -2:])
    torch.testing.assert_close(model(ids, logits_to_keep=torch.tensor([1, 4])).logits, everything[:, [1, 4]])


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_generation_with_cache_equals_without(implementation: str) -> None:
    model = causal_lm(attn_implementation=implementation)
    ids = tokens(2, 5)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 12, "do_sample": False}
    cached = model.generate(ids, use_cache=True, **options)
    assert cached.shape == (2, 17)
    assert torch.equal(cached, model.generate(ids, use_cache=False, **options))
    assert len(cached[:, 5:].unique()) > 2


@pytest.mark.parametrize("with_mask", [True, False])
def test_a_cached_continuation_gives_the_logits_of_the_whole_sequence(with_mask: bool) -> None:
    model = causal_lm()
    batch = padded([tokens(1, 9)[0], tokens(1, 6)[0]], "left", 9)
    ids, mask = (batch["input_ids"], batch["attention_mask"]) if with_mask else (tokens(2, 9), None)
    begun = model(ids[:, :5], attention_mask=mask[:, :5] if mask is not None else None, use_cache=True)
    assert begun.past_key_values.get_seq_length() == 5
    continued = model(ids[:, 5:], attention_mask=mask, past_key_values=begun.past_key_values)
    at_once = model(ids, attention_mask=mask)
    torch.testing.assert_close(continued.logits, at_once.logits[:, 5:], atol=1e-5, rtol=1e-5)


def test_only_a_causal_model_makes_a_cache() -> None:
    assert OelmGPTModel(tiny())(tokens(1, 4)).past_key_values is not None
    assert OelmGPTModel(tiny(use_cache=False))(tokens(1, 4)).past_key_values is None
    assert OelmGPTModel(tiny(causal=False))(tokens(1, 4)).past_key_values is None


@pytest.mark.parametrize("use_cache", [True, False])
def test_left_padded_generation_equals_single(use_cache: bool) -> None:
    model = causal_lm()
    prompts = [tokens(1, 7)[0], tokens(1, 3, seed=2)[0], tokens(1, 5, seed=3)[0]]
    options = {"max_new_tokens": 10, "do_sample": False, "use_cache": use_cache}
    together = model.generate(**padded(prompts, "left", 7), **options)[:, 7:]
    for prompt, continuation in zip(prompts, together, strict=True):
        alone = model.generate(prompt[None], attention_mask=torch.ones(1, len(prompt)), **options)
        assert torch.equal(alone[0, len(prompt) :], continuation)


def test_packed_sequences_do_not_see_each_other() -> None:
    model = causal_lm()
    first, second = tokens(1, 4), tokens(1, 6, seed=2)
    position_ids = torch.cat([torch.arange(4), torch.arange(6)])[None]
    packed = model(torch.cat([first, second], 1), position_ids=position_ids, use_cache=False).logits
    alone = torch.cat([model(first).logits, model(second).logits], 1)
    torch.testing.assert_close(packed, alone, atol=1e-5, rtol=1e-5)


def test_inputs_embeds_stand_for_input_ids() -> None:
    model = causal_lm()
    ids = tokens(2, 6)
    embedded = model.get_input_embeddings()(ids)
    assert torch.equal(model(inputs_embeds=embedded).logits, model(ids).logits)
    with pytest.raises(ValueError, match="input_ids or inputs_embeds"):
        model(input_ids=ids, inputs_embeds=embedded)
    with pytest.raises(ValueError, match="input_ids or inputs_embeds"):
        model()


def test_a_sequence_longer_than_the_context_is_refused() -> None:
    model = causal_lm()
    assert model(tokens(1, 24)).logits.shape == (1, 24, VOCAB)
    with pytest.raises(ValueError, match=r"25 tokens.*max_position_embeddings \(24\)"):
        model(tokens(1, 25))
    past = model(tokens(1, 20)).past_key_values
    with pytest.raises(ValueError, match="25 tokens"):
        model(tokens(1, 5), past_key_values=past)


def test_token_embeddings_can_be_resized() -> None:
    model = causal_lm()
    ids = tokens(1, 5)
    before = model(ids).logits
    model.resize_token_embeddings(VOCAB + 6, mean_resizing=False)
    assert model.lm_head.weight is model.model.embed_tokens.weight
    after = model(ids).logits
    assert after.shape == (1, 5, VOCAB + 6)
    torch.testing.assert_close(after[..., :VOCAB], before)


# Sequence classification


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["last", "mean"])
@pytest.mark.parametrize("causal", [True, False])
def test_padding_does_not_change_the_class_logits(causal: bool, pooling: str, side: str) -> None:
    model = classifier(causal=causal, pooling=pooling)
    sequences = [tokens(1, 9)[0], tokens(1, 4, seed=2)[0], tokens(1, 1, seed=3)[0]]
    alone = torch.cat([model(sequence[None]).logits for sequence in sequences])
    together = model(**padded(sequences, side, 12)).logits
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_pooling_takes_the_named_hidden_states(pooling: str) -> None:
    model = classifier(pooling=pooling)
    ids = tokens(2, 6)
    hidden = model.model(ids).last_hidden_state
    pooled = hidden[:, -1] if pooling == "last" else hidden.mean(1)
    torch.testing.assert_close(model(ids).logits, model.classifier(pooled))


@pytest.mark.parametrize("pooling", ["last", "mean"])
def test_without_a_mask_pooling_skips_the_pad_token(pooling: str) -> None:
    model = classifier(pooling=pooling)
    ids = padded([tokens(1, 6)[0], tokens(1, 4)[0]], "right", 6)["input_ids"]
    torch.testing.assert_close(model(ids).logits[1], model(ids[1:, :4]).logits[0], atol=1e-5, rtol=1e-5)
    model.config.pad_token_id = None
    torch.testing.assert_close(
        model(ids).logits, model(ids, attention_mask=torch.ones_like(ids)).logits, atol=1e-5, rtol=1e-5
    )


def test_classification_loss_is_the_cross_entropy() -> None:
    model = classifier()
    labels = torch.tensor([0, 2, 1])
    outputs = model(tokens(3, 6), labels=labels)
    assert outputs.logits.shape == (3, 3)
    torch.testing.assert_close(outputs.loss, F.cross_entropy(outputs.logits, labels))
    halved = model(tokens(3, 6), labels=labels, num_items_in_batch=6).loss
    torch.testing.assert_close(halved, outputs.loss / 2)


def test_a_classifier_keeps_no_cache_and_no_language_modeling_head() -> None:
    model = classifier()
    caches: list[Any] = []
    model.model.register_forward_hook(lambda _, args, output: caches.append(output.past_key_values))
    model(tokens(1, 4))
    model(tokens(1, 4), use_cache=True)
    assert caches == [None, None]
    assert model.get_output_embeddings() is None


# Training


@pytest.mark.parametrize("causal", [True, False])
def test_gradient_checkpointing_gives_equal_gradients(causal: bool) -> None:
    batch = padded([tokens(1, 8)[0], tokens(1, 5)[0]], "left", 8)
    gradients = []
    for checkpointing in (False, True):
        model = classifier(causal=causal, dropout=0.2).train()
        if checkpointing:
            model.gradient_checkpointing_enable({"use_reentrant": False})
        calls: list[int] = []
        model.model.blocks[0].attention.register_forward_hook(lambda *_, calls=calls: calls.append(1))
        torch.manual_seed(1)
        model(**batch, labels=torch.tensor([0, 2])).loss.backward()
        assert len(calls) == 1 + checkpointing
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    plain, checkpointed = gradients
    for name, gradient in plain.items():
        assert gradient.abs().max() > 0, name
        torch.testing.assert_close(checkpointed[name], gradient, msg=name)


# Saving and loading


def test_every_auto_class_loads_what_was_saved(tmp_path: Path) -> None:
    ids = tokens(2, 6)
    language_model, classes = causal_lm(), classifier(causal=False, pooling="mean")
    language_model.save_pretrained(tmp_path / "lm")
    classes.save_pretrained(tmp_path / "classes")
    for folder in ("lm", "classes"):
        assert {path.suffix for path in (tmp_path / folder).iterdir()} == {".json", ".safetensors"}
        assert json.loads((tmp_path / folder / "config.json").read_text())["model_type"] == "oelm-gpt"

    config = AutoConfig.from_pretrained(tmp_path / "classes")
    assert isinstance(config, OelmGPTConfig)
    assert (config.causal, config.pooling, config.num_labels) == (False, "mean", 3)

    loaded = AutoModelForCausalLM.from_pretrained(tmp_path / "lm")
    assert isinstance(loaded, OelmGPTForCausalLM)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    assert torch.equal(loaded(ids).logits, language_model(ids).logits)

    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "classes")
    assert isinstance(loaded, OelmGPTForSequenceClassification)
    assert torch.equal(loaded(ids).logits, classes(ids).logits)

    loaded = AutoModel.from_pretrained(tmp_path / "lm")
    assert isinstance(loaded, OelmGPTModel)
    assert torch.equal(loaded(ids).last_hidden_state, language_model.model(ids).last_hidden_state)


def test_a_classifier_starts_from_a_saved_language_model(tmp_path: Path) -> None:
    language_model = causal_lm()
    language_model.save_pretrained(tmp_path)
    loaded = OelmGPTForSequenceClassification.from_pretrained(tmp_path, num_labels=4, pooling="mean")
    assert (loaded.config.pooling, tuple(loaded.classifier.weight.shape)) == ("mean", (4, 32))
    assert loaded.classifier.weight.std() > 0.1
    assert torch.equal(loaded.classifier.bias, torch.zeros(4))
    for name, parameter in language_model.model.named_parameters():
        assert torch.equal(loaded.model.get_parameter(name), parameter), name


def test_the_module_can_be_imported_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    spec = importlib.util.spec_from_file_location("gpt_again", gpt.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "gpt_again", again)
    try:
        spec.loader.exec_module(again)
        model = AutoModelForCausalLM.from_config(again.OelmGPTConfig(**TINY))
        assert type(model) is again.OelmGPTForCausalLM
        assert AutoConfig.for_model("oelm-gpt").__class__ is again.OelmGPTConfig
    finally:
        for auto, name in (
            (AutoModel, "OelmGPTModel"),
            (AutoModelForCausalLM, "OelmGPTForCausalLM"),
            (AutoModelForSequenceClassification, "OelmGPTForSequenceClassification"),
        ):
            auto.register(OelmGPTConfig, getattr(gpt, name), exist_ok=True)  # the last import counts, as on a reload
    assert type(AutoModelForCausalLM.from_config(tiny())) is OelmGPTForCausalLM


# Config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"num_attention_heads": 5}, "32 is not a multiple of 5 heads"),
        ({"num_attention_heads": 0}, "num_attention_heads must be at least 1"),
        ({"vocab_size": 0}, "vocab_size must be at least 1"),
        ({"pooling": "max"}, "pooling must be one of last, mean, got 'max'"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\)"),
        ({"dropout": -0.1}, r"dropout must be in \[0, 1\)"),
    ],
)
def test_bad_values_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        tiny(**changes)


def test_a_causal_language_model_cannot_be_bidirectional() -> None:
    with pytest.raises(ValueError, match="causal=True"):
        OelmGPTForCausalLM(tiny(causal=False))


def test_bad_values_given_while_loading_are_refused(tmp_path: Path) -> None:
    classifier().save_pretrained(tmp_path)
    with pytest.raises(ValueError, match="pooling"):
        OelmGPTForSequenceClassification.from_pretrained(tmp_path, pooling="max")


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("mini-128", (2, 128, 4, 512, 256)),
        ("mini-256", (4, 256, 8, 1024, 256)),
        ("medium-512", (6, 512, 8, 2048, 512)),
        ("gpt2-768", (12, 768, 12, 3072, 1024)),
        ("gpt2-1024", (24, 1024, 16, 4096, 1024)),
        ("gpt2-1280", (36, 1280, 20, 5120, 1024)),
        ("gpt2-1600", (48, 1600, 25, 6400, 1024)),
    ],
)
def test_presets(name: str, sizes: tuple[int, ...]) -> None:
    config = OelmGPTConfig.preset(name, dropout=0.0)
    assert sizes == (
        config.num_hidden_layers,
        config.hidden_size,
        config.num_attention_heads,
        config.intermediate_size,
        config.max_position_embeddings,
    )
    assert (config.vocab_size, config.dropout) == (50257, 0.0)


def test_changes_override_the_sizes_of_a_preset_and_leave_it_alone() -> None:
    assert OelmGPTConfig.preset("mini-128", hidden_size=64).hidden_size == 64
    assert PRESETS["mini-128"]["hidden_size"] == 128


def test_the_defaults_are_the_medium_preset() -> None:
    assert OelmGPTConfig().to_dict() == OelmGPTConfig.preset("medium-512").to_dict()


def test_an_unknown_preset_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"mini-128, mini-256, medium-512.*did you mean 'medium-512'"):
        OelmGPTConfig.preset("medum-512")
    with pytest.raises(ValueError, match="known presets") as refusal:
        OelmGPTConfig.preset("xyz")
    assert "did you mean" not in str(refusal.value)
