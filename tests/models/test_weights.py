"""No weight of a pretrained model is drawn at random or dropped, but those of a task head, which are kept by name."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForSequenceClassification,
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    GPT2Model,
    T5Config,
    T5ForConditionalGeneration,
    T5Model,
)

import oelm
import tiny_study
from oelm.heads.audit import audit_folder
from oelm.models.load import load_model, replaced_head
from oelm.runs.record import read_record
from zoo import FAMILIES

SIZES = dict(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
QUERY = "encoder.layer.0.attention.self.query.weight"
BERT, GPT2 = BertConfig(**SIZES), GPT2Config(vocab_size=60, n_embd=16, n_layer=2, n_head=2, n_positions=32)
T5 = T5Config(vocab_size=60, d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
CLASSIFIER = AutoModelForSequenceClassification


def saved(model, folder, *, change=lambda tensors: tensors, **settings):
    """The folder of a model, with other weights or settings than it was saved with."""
    model.save_pretrained(folder)
    path = folder / "model.safetensors"
    tensors = {name: tensor.clone() for name, tensor in load_file(path).items()}
    save_file(change(tensors), path, metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | settings))
    return folder


def renamed(ending, new="x.y"):
    def change(tensors):
        name = next(name for name in tensors if name.endswith(ending))
        return {(new if key == name else key): tensor for key, tensor in tensors.items()}

    return change


def without(part):
    return lambda tensors: {name: tensor for name, tensor in tensors.items() if part not in name}


@pytest.mark.parametrize(
    ("model", "auto", "damage", "says"),
    [
        (BertModel, None, renamed(QUERY), rf"1 weights.*BertModel[\s\S]*missing     {QUERY}"),
        (BertModel, CLASSIFIER, renamed(QUERY), QUERY),
        (BertForMaskedLM, AutoModel, renamed(QUERY), QUERY),
        (BertForMaskedLM, AutoModelForCausalLM, without("word_embeddings"), "missing.*word_embeddings"),
        (BertForSequenceClassification, None, without("classifier"), r"missing     classifier\.bias"),
        (BertForSequenceClassification, CLASSIFIER, without("classifier"), r"missing     classifier\.bias"),
        (BertModel, None, without("pooler"), r"missing     pooler\.dense\.bias"),
        (GPT2LMHeadModel, None, without("wte"), r"missing.*wte\.weight"),
        # its output embeddings are a task head, and are these
        (GPT2Model, AutoModelForCausalLM, without("wte"), r"missing.*wte\.weight"),
        (T5Model, T5ForConditionalGeneration, without("decoder.block.1"), r"missing.*decoder\.block\.1"),
    ],
)
def test_a_missing_weight_is_refused_by_name(tmp_path, model, auto, damage, says):
    """It was drawn at random, and shown as the model's own."""
    config = {"Bert": BERT, "GPT2": GPT2, "T5Fo": T5, "T5Mo": T5}[model.__name__[:4]]
    with pytest.raises(oelm.FolderError, match=says):
        load_model(saved(model(config), tmp_path, change=damage), auto)


@pytest.mark.parametrize("auto", [None, AutoModel, CLASSIFIER])
@pytest.mark.parametrize("model", [BertModel, BertForSequenceClassification])
def test_layers_that_the_configuration_has_no_place_for_are_refused(tmp_path, model, auto):
    folder = saved(model(BERT), tmp_path, num_hidden_layers=1)
    with pytest.raises(oelm.FolderError, match=r"16 weights[\s\S]*unexpected  .*encoder\.layer\.1\.[\s\S]*\.\.\."):
        load_model(folder, auto)


def test_weights_of_another_size_are_refused_by_name(tmp_path):
    folder = saved(BertForSequenceClassification(BERT), tmp_path, intermediate_size=24)
    says = r"other size  bert\.encoder\.layer\.0\.intermediate\.dense\.bias: saved \(32,\), configured \(24,\)"
    for options in ({}, {"ignore_mismatched_sizes": True}):
        with pytest.raises(oelm.FolderError, match=says):
            load_model(folder, **options)


def test_a_head_of_another_size_is_new_only_where_that_is_asked_for(tmp_path):
    folder = saved(BertForSequenceClassification(BERT), tmp_path, id2label={n: str(n) for n in range(5)})
    with pytest.raises(oelm.FolderError, match=r"other size  classifier\.bias: saved \(2,\), configured \(5,\)"):
        load_model(folder)
    model = load_model(folder, ignore_mismatched_sizes=True)
    assert replaced_head(model).new == ("classifier.bias", "classifier.weight")


@pytest.mark.parametrize(
    ("model", "auto", "new", "dropped"),
    [
        (BertModel(BERT), CLASSIFIER, ("classifier.bias", "classifier.weight"), ()),
        (BertForSequenceClassification(BERT), None, (), ()),
        (BertForSequenceClassification(BERT), AutoModel, (), ("classifier.bias", "classifier.weight")),
        (BertForMaskedLM(BERT), AutoModel, 2, 5),
        (BertForMaskedLM(BERT), CLASSIFIER, 4, 5),
        (BertModel(BERT), AutoModelForCausalLM, 6, ("pooler.dense.bias", "pooler.dense.weight")),
        (GPT2Model(GPT2), AutoModelForCausalLM, (), ()),  # tied
        (GPT2LMHeadModel(GPT2), CLASSIFIER, ("score.weight",), ()),
        (T5Model(T5), T5ForConditionalGeneration, (), ()),  # tied
    ],
)
def test_only_a_task_head_is_new_or_dropped(tmp_path, model, auto, new, dropped):
    model.save_pretrained(tmp_path)
    head = replaced_head(load_model(tmp_path, auto))
    assert new in (head.new, len(head.new))
    assert dropped in (head.dropped, len(head.dropped))


def test_a_checkpoint_with_two_heads_loads_as_either(tmp_path):
    """As that of google-bert/bert-base-uncased, which says that it is a BertForMaskedLM."""
    extra = {"cls.seq_relationship.weight": torch.zeros(2, 16), "bert.pooler.dense.weight": torch.zeros(16, 16)}
    folder = saved(BertForMaskedLM(BERT), tmp_path, change=lambda tensors: tensors | extra)
    assert replaced_head(load_model(folder)).dropped == tuple(sorted(extra))


@pytest.mark.parametrize(
    ("model", "tables"),
    [
        (BertModel(BERT), ["embeddings.position_ids"]),
        (GPT2LMHeadModel(GPT2), ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"]),
        (
            next(f for f in FAMILIES if f.name == "gptj").model(),
            ["transformer.h.0.attn.bias", "transformer.h.1.attn.masked_bias"],
        ),
        (
            next(f for f in FAMILIES if f.name == "gpt-neo").model(),
            ["transformer.h.0.attn.attention.bias", "transformer.h.1.attn.attention.masked_bias"],
        ),
        (next(f for f in FAMILIES if f.name == "llama").model(), ["model.layers.0.self_attn.rotary_emb.inv_freq"]),
    ],
)
def test_tables_that_older_versions_saved_are_no_weights(tmp_path, model, tables):
    folder = saved(model, tmp_path, change=lambda tensors: tensors | {name: torch.ones(1) for name in tables})
    assert replaced_head(load_model(folder)).dropped == ()


@pytest.mark.slow
@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_nothing_is_new_in_a_model_that_was_saved_whole(tmp_path, family):
    model = family.model()
    if not hasattr(model, "save_pretrained"):
        pytest.skip("not of transformers")
    model.save_pretrained(tmp_path)
    again = load_model(tmp_path)
    assert (replaced_head(again).new, replaced_head(again).dropped) == ((), ())
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


@pytest.mark.slow
def test_a_record_names_the_new_head_and_a_damaged_model_starts_no_cell(tmp_path, monkeypatch):
    """A study with a renamed tensor ended `done`."""
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    sizes = BertConfig(**SIZES | {"vocab_size": 320, "max_position_embeddings": 32})
    steps = {"budget": {"steps": 1}, "evaluate": {"every": 1}, "checkpoint": {"every": 1}}
    for name, change in (("whole", lambda tensors: tensors), ("damaged", renamed(QUERY))):
        folder = saved(BertModel(sizes), tmp_path / "model", change=change)
        study = oelm.load_study(tiny_study.make(tmp_path, model={"name": str(folder)}, **steps))
        study = replace(study, seeds=(0,))
        if name == "whole":
            oelm.run(study, out=tmp_path / name)
        else:
            with pytest.raises(oelm.OelmError, match=QUERY):
                oelm.run(study, out=tmp_path / name)
    record = read_record(tmp_path / "whole" / "tiny" / "baseline" / "seed-0")
    assert (record.status, record.start.dropped_weights) == ("done", ())
    assert record.start.new_weights == ("classifier.bias", "classifier.weight")
    assert not list((tmp_path / "damaged").rglob("record.json"))


def test_an_adapter_beside_a_model_is_refused(tmp_path):
    """With PEFT it is loaded and without it is not: what came out depended on what was installed."""
    BertModel(BERT).save_pretrained(tmp_path)
    (tmp_path / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/else"}))
    with pytest.raises(oelm.FolderError, match=r"adapter beside its model[\s\S]*merge_and_unload"):
        load_model(tmp_path)


def test_an_adapter_without_a_model_says_which_model_is_below_it(tmp_path):
    """The result of an arm with an adapter: "remove adapter_config.json" was the advice, and would have ruined it."""
    folder = tmp_path / "lora" / "seed-0" / "model"
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "someone/bert"}))
    message = r"model holds an adapter \(PEFT\), and no model\n.*trained on someone/bert\n.*try +someone/bert"
    for refuse in (lambda: load_model(folder), lambda: audit_folder(folder), lambda: audit_folder(folder.parent)):
        with pytest.raises(oelm.FolderError, match=message) as refused:
            refuse()
        assert "remove" not in str(refused.value)
    (folder / "adapter_config.json").write_text("[]")
    with pytest.raises(oelm.FolderError, match="does not say which model"):
        load_model(folder)
