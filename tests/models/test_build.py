"""The model of a recipe: in float32, from its seed alone, and one that can do the task."""

from dataclasses import replace

import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
)

import oelm
from oelm.data.tasks import Task, task_named
from oelm.errors import FolderError, ModelError, TreatmentError
from oelm.models.build import build_model
from oelm.study.recipe import ModelConfig


class Vocabulary:
    """What is asked of a tokenizer here."""

    pad_token_id, eos_token_id = 0, 1

    def __len__(self):
        return 60


def build(folder, task="sst2", **recipe):
    model = ModelConfig(name=str(folder), **recipe)
    task = task if isinstance(task, Task) else task_named(task)
    return build_model(model, task=task, tokenizer=Vocabulary(), max_length=16, seed=0)


@pytest.fixture
def bert(tmp_path):
    config = BertConfig(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertForMaskedLM(config).to(torch.bfloat16).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def gpt2(tmp_path):
    config = GPT2Config(
        vocab_size=60, n_positions=32, n_embd=16, n_layer=1, n_head=2, pad_token_id=5, bos_token_id=1, eos_token_id=1
    )
    GPT2ForSequenceClassification(config).save_pretrained(tmp_path / "gpt2")
    return tmp_path / "gpt2"


@pytest.mark.parametrize("scratch", [False, True])
def test_weights_are_in_float32_whatever_was_saved(bert, scratch):
    assert {p.dtype for p in build(bert, from_scratch=scratch).parameters()} == {torch.float32}


def test_the_seed_decides_and_the_global_generator_stays(bert):
    before = torch.get_rng_state()
    one, other = build(bert), build(bert)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))


def test_an_encoder_does_not_see_what_it_predicts(bert):
    model = build(bert, task="text").eval()
    tokens = torch.randint(2, 60, (1, 8))
    changed = tokens.clone()
    changed[0, -1] = 2 if tokens[0, -1] != 2 else 3
    with torch.no_grad():
        assert torch.equal(model(tokens).logits[0, :-1], model(changed).logits[0, :-1])


def test_dropout_is_every_dropout(gpt2):
    model = build(gpt2, dropout=0.25)
    assert {module.p for module in model.modules() if isinstance(module, torch.nn.Dropout)} == {0.25}


def test_padding_does_not_change_an_example(gpt2):
    model = build(gpt2).eval()
    tokens = torch.tensor([[7, 8, 9]])
    padded = torch.tensor([[7, 8, 9, 0, 0]])
    with torch.no_grad():
        alone = model(tokens, attention_mask=torch.ones_like(tokens)).logits
        with_padding = model(padded, attention_mask=(padded != 0).long()).logits
    assert torch.allclose(alone, with_padding, atol=1e-5)


def test_texts_longer_than_the_model_are_refused(gpt2):
    with pytest.raises(ModelError, match="maximum of 32 tokens"):
        build_model(ModelConfig(name=str(gpt2)), task=task_named("sst2"), tokenizer=Vocabulary(), max_length=33, seed=0)


def test_a_larger_vocabulary_than_the_models_is_refused(gpt2):
    class Larger(Vocabulary):
        def __len__(self):
            return 61

    with pytest.raises(ModelError, match="61 tokens"):
        build_model(ModelConfig(name=str(gpt2)), task=task_named("sst2"), tokenizer=Larger(), max_length=16, seed=0)


def test_a_head_for_other_classes_is_refused_in_words(tmp_path):
    """It was a RuntimeError about sizes, reported as if the folder had no model in it."""
    sizes = dict(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    BertForSequenceClassification(BertConfig(**sizes, num_labels=6)).save_pretrained(tmp_path / "six")
    with pytest.raises(ModelError, match=r"has 6 classes[\s\S]*'sst2' has 2[\s\S]*try[\s\S]*AutoModel") as error:
        build(tmp_path / "six")
    assert str(tmp_path / "six") in str(error.value)
    # what it says to try
    AutoModel.from_pretrained(tmp_path / "six").save_pretrained(tmp_path / "none")
    assert build(tmp_path / "none").classifier.out_features == 2
    assert build(tmp_path / "six", from_scratch=True).classifier.out_features == 2


def test_a_head_with_the_same_classes_in_another_order_is_refused(tmp_path):
    sizes = dict(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    config = BertConfig(**sizes, id2label={0: "POSITIVE", 1: "NEGATIVE"}, label2id={"POSITIVE": 0, "NEGATIVE": 1})
    BertForSequenceClassification(config).save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"has 2 \(negative, positive\), in another order"):
        build(tmp_path)


def test_a_tagger_is_fine_tuned_again(tmp_path):
    tags = replace(task_named("tokens"), labels=("O", "B-X", "I-X"))
    sizes = dict(vocab_size=60, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    saved = BertForTokenClassification(BertConfig(**sizes, num_labels=3))
    saved.save_pretrained(tmp_path)
    assert torch.equal(build(tmp_path, tags).classifier.weight, saved.classifier.weight)
    with pytest.raises(ModelError, match=r"has 3 classes[\s\S]*'tokens' has 2"):
        build(tmp_path, replace(tags, labels=("O", "B-X")))


def test_a_real_classifier_of_two_classes_is_refused_for_three(shared_model):
    with pytest.raises(ModelError, match=r"has 2 classes[\s\S]*'mnli' has 3"):
        build(shared_model("bert-tiny-question-classifier"), task="mnli")


def test_a_home_that_nobody_has_is_one_message():
    with pytest.raises(FolderError, match="there is no folder ~nobody-of-this-name/model"):
        build("~nobody-of-this-name/model")


def test_the_small_gpt_has_norms_of_queries_and_keys_if_the_recipe_says_so():
    plain, normed = (build("oelm-gpt", preset="mini-128", qk_norm=says) for says in (False, True))
    assert not any("q_norm" in name or "k_norm" in name for name in plain.state_dict())
    assert hasattr(normed.model.blocks[0].attention, "q_norm")
    with pytest.raises(TreatmentError, match="q/k norms"):
        oelm.apply(normed, init="frames", freeze="qk")


def test_sizes_go_before_those_of_a_preset():
    """What is left out is that of the preset, or follows from the rest."""
    sizes = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size", "max_position_embeddings")

    def built(**recipe):
        config = build("oelm-gpt", **recipe).config
        return tuple(getattr(config, name) for name in sizes)

    assert built(preset="mini-128") == (2, 128, 4, 512, 256)
    assert built(preset="mini-128", layers=1, context=64) == (1, 128, 4, 512, 64)
    assert built(preset="mini-128", width=32) == (2, 32, 4, 128, 256)
    assert built(layers=1, width=16, heads=2) == (1, 16, 2, 64, 16), "as long as the data"
    assert built(layers=1, width=16, heads=2, ffn=24, context=4096) == (1, 16, 2, 24, 4096)


@pytest.mark.parametrize("task", ["sst2", "tinystories"])
def test_a_saved_small_gpt_keeps_its_pooling_unless_another_is_said(task, tmp_path):
    sizes = dict(layers=1, width=16, heads=2)
    saved = build("oelm-gpt", task=task, pooling="mean", **sizes).eval()
    own = saved.config.pooling
    assert own == ("mean" if task == "sst2" else "last")
    saved.save_pretrained(tmp_path / "saved")
    loaded = build(tmp_path / "saved").eval()
    assert loaded.config.pooling == own
    tokens = torch.arange(12).view(2, 6) + 2
    if task == "sst2":
        assert torch.equal(loaded(tokens).logits, saved(tokens).logits)
    assert build(tmp_path / "saved", pooling="mean").config.pooling == "mean"
    assert build("oelm-gpt", **sizes).config.pooling == "last"


def test_a_long_sequence_takes_no_square_of_memory_and_is_the_same_with_checkpointing():
    model = build("oelm-gpt", layers=1, width=16, heads=2, context=4096, dropout=0.0)
    assert model.config._attn_implementation == "sdpa"
    model.train()
    tokens = torch.arange(4096)[None] % 50
    kept = []
    # What autograd saves for the backward pass; a map of 2 heads would be 2 * 4096**2 numbers.
    with torch.autograd.graph.saved_tensors_hooks(
        lambda saved: kept.append(saved.numel()) or saved, lambda saved: saved
    ):
        plain = model(input_ids=tokens).logits
    assert max(kept) < 4096 * 200
    model.gradient_checkpointing_enable({"use_reentrant": False})
    assert torch.equal(model(input_ids=tokens).logits, plain)


TOPICS = ("food", "music", "sport", "travel", "work")


def test_the_head_is_that_of_the_labels_that_were_found(bert, gpt2):
    found = replace(task_named("classification"), labels=TOPICS, has_found_labels=True)
    model = build(bert, found)
    assert model.classifier.out_features == 5
    assert tuple(model.config.id2label.values()) == TOPICS, "by their names, for whoever loads it"
    number = build(bert, "stsb")
    assert (number.classifier.out_features, number.config.problem_type) == (1, "regression")
    with pytest.raises(
        ModelError, match=r"has 2 classes .*the task 'classification' has 5 \(food, music, sport, travel"
    ):
        build(gpt2, found)
    with pytest.raises(ModelError, match=r"the task 'stsb' has a number"):
        build(gpt2, "stsb")
