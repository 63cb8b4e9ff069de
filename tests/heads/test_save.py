"""Saving and loading: verified against the hashes, refused when anything is off."""

import json
from dataclasses import make_dataclass
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import oelm
from oelm.runs.files import FileType
from zoo import FAMILIES

BERT, GPT2 = (next(f for f in FAMILIES if f.name == name) for name in ("bert", "gpt2"))


@pytest.fixture
def folder(tmp_path):
    model = GPT2.model()
    oelm.apply(model, init="orthogonalize", freeze="qk", seed=2).save_pretrained(tmp_path)
    return tmp_path


def forge(folder, change, *, format=2):
    """Change the record, and have its checksum match."""
    path = folder / "oelm.json"
    data = json.loads(path.read_text())
    del data["format"], data["sha256"]
    change(data)
    content = make_dataclass("Forged", [(name, Any) for name in data])
    path.write_text(FileType("oelm.json", content, format=format, has_checksum=True).dumps(content(**data)))


def test_the_record_says_everything(folder):
    record = json.loads((folder / "oelm.json").read_text())
    assert record["format"] == 2
    assert record["oelm"] == oelm.__version__
    assert record["seed"] == 2
    assert record["treatment"]["init"] == "orthogonalize"
    assert len(record["frozen"]) == 8
    assert record["frozen"].keys() >= {"transformer.h.0.attn.c_attn.weight[q]", "transformer.h.1.attn.c_attn.bias[k]"}
    counts = record["counts"]
    assert counts["total"] - counts["trainable"] == counts["qk"]
    assert sorted(p.name for p in folder.iterdir() if p.suffix in (".bin", ".pt", ".pkl", ".partial")) == []


def test_a_hash_of_a_whole_matrix_is_the_hash_of_its_bytes(tmp_path):
    import hashlib

    oelm.apply(BERT.model(), freeze="qk").save_pretrained(tmp_path)
    frozen = json.loads((tmp_path / "oelm.json").read_text())["frozen"]
    tensors = load_file(tmp_path / "model.safetensors")
    for name, digest in frozen.items():
        assert hashlib.sha256(tensors[name].numpy().tobytes()).hexdigest() == digest


@pytest.mark.parametrize(
    "auto", ["AutoModelForSequenceClassification", "AutoModel", "BertForSequenceClassification", None]
)
def test_any_auto_class(tmp_path, auto):
    model = BERT.model()
    if auto == "AutoModel":  # other names for the same tensors: the base model was saved
        model = model.bert
    oelm.apply(model, freeze="qk").save_pretrained(tmp_path)
    again, applied = oelm.from_pretrained(tmp_path, getattr(transformers, auto) if auto else None)
    assert type(again) is type(model)
    applied.audit().check()
    with pytest.raises(oelm.ModelError, match="cannot undo"):
        applied.undo()


def test_a_class_with_other_names_is_refused(tmp_path):
    oelm.apply(BERT.model(), freeze="qk").save_pretrained(tmp_path)
    with pytest.raises(oelm.FolderError, match=r"are not in the model[\s\S]*BertModel"):
        oelm.from_pretrained(tmp_path, transformers.AutoModel)


def test_layers_given_back_before_saving_stay_given_back(tmp_path):
    applied = oelm.apply(GPT2.model(), init="orthogonal", freeze="qk")
    applied.unfreeze(layers=[1])
    applied.save_pretrained(tmp_path)
    model, again = oelm.from_pretrained(tmp_path)
    assert {param_slice.projection.layer for param_slice in again.frozen} == {0}
    again.audit().check()
    again.refreeze(layers=[1])
    assert model.transformer.h[1].attn.c_attn.weight_rest.requires_grad
    again.audit().check()
    assert again.counts.frozen == again.counts.qk


def test_weights_changed_after_saving(folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["transformer.h.1.attn.c_attn.weight"][0, 0] += 1
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(oelm.FolderError, match=r"1 of 8 frozen tensors[\s\S]*h\.1\.attn\.c_attn\.weight\[q\]"):
        oelm.from_pretrained(folder)


def test_another_dtype(folder):
    with pytest.raises(oelm.FolderError, match="another dtype"):
        oelm.from_pretrained(folder, dtype=torch.bfloat16)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"seed": "2"}, r"is damaged[\s\S]*seed"),
        ({"frozen": {"a": 1}}, r"is damaged[\s\S]*frozen\.a"),
        ({"frozen": {"a": "z" * 64}}, r"is damaged[\s\S]*frozen\.a"),
        ({"frozen": {"no.such.tensor": "0" * 64}}, r"not in the model[\s\S]*no\.such\.tensor"),
        ({"written": ["no.such.tensor"]}, r"not in the model[\s\S]*no\.such\.tensor"),
        ({"treatment": {"init": "sideways"}}, r"is damaged[\s\S]*treatment\.init"),
        ({"treatment": {"layers": [7]}}, "asks for layer 7"),
        ({"something": 1}, r"is damaged[\s\S]*something"),
    ],
)
def test_records_that_cannot_be_believed(folder, changes, says):
    forge(folder, lambda data: data.update(changes))
    with pytest.raises(oelm.OelmError, match=says):
        oelm.from_pretrained(folder)


@pytest.mark.parametrize("format", [1, 3])
def test_records_of_another_format(folder, format):
    forge(folder, lambda data: None, format=format)
    with pytest.raises(oelm.FolderError, match=f"has format {format}; this oelm reads format 2"):
        oelm.from_pretrained(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "\x00", '{"format": 2}', "\udcff"])
def test_files_that_are_no_records(folder, text):
    (folder / "oelm.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(oelm.FolderError, match=r"cannot read|is damaged"):
        oelm.from_pretrained(folder)


def test_folders_that_are_none(tmp_path):
    with pytest.raises(oelm.FolderError, match="does not exist"):
        oelm.from_pretrained(tmp_path / "nowhere")
    with pytest.raises(oelm.FolderError, match=r"no oelm\.json"):
        oelm.from_pretrained(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(oelm.FolderError, match="is a file"):
        oelm.apply(BERT.model(), freeze="qk").save_pretrained(tmp_path / "file")


def test_weights_that_are_missing_or_torn(folder):
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(oelm.FolderError, match="cannot load a model"):
        oelm.from_pretrained(folder)
    path.unlink()
    with pytest.raises(oelm.FolderError, match="cannot load a model"):
        oelm.from_pretrained(folder)


def test_pickles_are_not_read(folder):
    """A checkpoint that is only there as a pickle is refused, whatever it holds."""
    (folder / "model.safetensors").unlink()
    torch.save(GPT2.model().state_dict(), folder / "pytorch_model.bin")
    with pytest.raises(oelm.FolderError, match="safetensors"):
        oelm.from_pretrained(folder)


def test_an_old_record_does_not_vouch_for_a_save_that_failed(folder, monkeypatch):
    model, applied = oelm.from_pretrained(folder)

    def full(*_, **__):
        raise OSError("No space left on device")

    monkeypatch.setattr(model, "save_pretrained", full)
    with pytest.raises(OSError, match="No space"):
        applied.save_pretrained(folder)
    assert not (folder / "oelm.json").exists()


def test_state_dicts_are_enough_for_plain_torch_models(tmp_path):
    encoder = next(f for f in FAMILIES if f.name == "torch-encoder")
    model = encoder.model()
    oelm.apply(model, init="orthogonal", freeze="qk")
    save_file(dict(model.state_dict()), tmp_path / "model.safetensors")
    plain = encoder.model(seed=1)
    plain.load_state_dict(load_file(tmp_path / "model.safetensors"))
    assert torch.allclose(encoder.logits(plain), encoder.logits(model), atol=1e-6)


def test_a_frozen_tensor_that_has_moved_is_not_saved(tmp_path):
    """Hashing it again would make the record vouch for the wrong bits."""
    applied = oelm.apply(BERT.model(), freeze="qk")
    applied.frozen[0].rows(0).add_(1.0)
    with pytest.raises(oelm.AuditFailed, match=r"1 frozen tensors have moved[\s\S]*query\.weight"):
        applied.save_pretrained(tmp_path)
    assert list(tmp_path.iterdir()) == []
