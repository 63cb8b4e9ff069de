"""A SentenceTransformer that was saved treated is loaded in full. Without the package, a stand-in with its folder."""

import json
import sys
import types

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn
from transformers import AutoModel, BertConfig, BertModel

import oelm
from oelm.heads.audit import audit_folder

SIZES = dict(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)


class Inside(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.auto_model = model


class SentenceTransformer(nn.Sequential):
    """As much of the real one as matters here: what it takes, what it names its parts, what it writes."""

    def __init__(self, name, device=None, model_kwargs=None):
        assert device == "cpu"
        assert model_kwargs["use_safetensors"]
        super().__init__(Inside(AutoModel.from_pretrained(name, **model_kwargs)))

    def save_pretrained(self, folder):
        self[0].auto_model.save_pretrained(folder)
        kinds = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
        (folder / "modules.json").write_text(json.dumps(kinds))


@pytest.fixture
def bert(tmp_path):
    BertModel(BertConfig(**SIZES)).save_pretrained(tmp_path / "bert")
    return tmp_path / "bert"


@pytest.fixture
def stand_in(monkeypatch):
    package = types.ModuleType("sentence_transformers")
    package.SentenceTransformer = SentenceTransformer
    monkeypatch.setitem(sys.modules, "sentence_transformers", package)


def check_trip(model, folder, base):
    applied = oelm.apply(model, init="orthogonalize", freeze="qk", seed=2)
    applied.save_pretrained(folder)
    again, reapplied = oelm.from_pretrained(folder)
    assert type(again) is type(model)
    assert [param_slice.key for param_slice in reapplied.frozen] == [param_slice.key for param_slice in applied.frozen]
    assert all(torch.equal(a.cpu(), b) for a, b in zip(model.parameters(), again.parameters(), strict=True))
    reapplied.audit().check()
    audit_folder(folder, against=base).check()


def test_the_folder_comes_back_as_it_was_saved(stand_in, bert, tmp_path):
    model = SentenceTransformer(str(bert), device="cpu", model_kwargs={"use_safetensors": True})
    check_trip(model, tmp_path / "treated", bert)


def test_a_missing_weight_is_refused_by_name(stand_in, bert, tmp_path):
    """Its class does not say which weights it found."""
    model = SentenceTransformer(str(bert), device="cpu", model_kwargs={"use_safetensors": True})
    oelm.apply(model, freeze="qk").save_pretrained(tmp_path / "treated")
    path = tmp_path / "treated" / "model.safetensors"
    tensors = load_file(path)
    tensors["x.y"] = tensors.pop("encoder.layer.1.output.dense.weight")
    save_file(tensors, path, metadata={"format": "pt"})
    with pytest.raises(oelm.FolderError, match=r"missing     encoder\.layer\.1\.output\.dense\.weight"):
        oelm.from_pretrained(tmp_path / "treated")


def test_without_the_package_it_is_said(stand_in, bert, tmp_path, monkeypatch):
    model = SentenceTransformer(str(bert), device="cpu", model_kwargs={"use_safetensors": True})
    oelm.apply(model, freeze="qk").save_pretrained(tmp_path / "treated")
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(oelm.FolderError, match=r"is a SentenceTransformer[\s\S]*pip install sentence-transformers"):
        oelm.from_pretrained(tmp_path / "treated")


def test_the_model_inside_of_such_a_folder_is_still_a_model(bert, tmp_path):
    """What was saved as a BertModel is one, whatever else lies beside it."""
    (bert / "modules.json").write_text("[]")
    model = BertModel.from_pretrained(bert)
    oelm.apply(model, freeze="qk").save_pretrained(bert)
    again, _ = oelm.from_pretrained(bert)
    assert type(again) is BertModel


def test_the_real_package(tmp_path, shared_model):
    package = pytest.importorskip("sentence_transformers", reason="sentence-transformers is not installed")
    base = shared_model("bert-tiny-question-classifier")
    model = package.SentenceTransformer(str(base), device="cpu")  # with a mean over the tokens
    check_trip(model, tmp_path / "treated", base)
    texts = ["Once upon a time.", "The end."]
    again, _ = oelm.from_pretrained(tmp_path / "treated")
    assert torch.equal(torch.tensor(again.encode(texts)), torch.tensor(model.encode(texts)))
