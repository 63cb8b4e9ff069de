"""Hostile folders of models: one message for each, soon, and nothing that they name is run."""

import json
import os
import socket
import stat
import sys
from pathlib import Path

import pytest
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import BertConfig, BertForSequenceClassification

import oelm
from oelm.cli.main import main
from oelm.data.tasks import task_named
from oelm.heads.audit import audit_folder
from oelm.models.build import build_model
from oelm.models.load import load_config, load_model, meta_model
from oelm.study.recipe import ModelConfig
from oelm.train.cell import load_data
from oelm.train.progress import Progress
from tiny_study import study, write_data, write_study
from zoo import FAMILIES

SIZES = dict(vocab_size=60, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
DEEP = '{"a":' * 50_000 + "1" + "}" * 50_000
WAYS = {
    "inspect": load_model,
    "inspect --config": lambda folder: meta_model(load_config(folder)),
    "audit": audit_folder,
    "from_pretrained": oelm.from_pretrained,
    "a study from scratch": lambda folder: build(folder, from_scratch=True),
    "a study": lambda folder: build(folder),
}
in_any_way = pytest.mark.parametrize("way", WAYS)


class Vocabulary:
    pad_token_id, eos_token_id = 0, 1

    def __len__(self):
        return 60


def build(folder, **recipe):
    recipe = ModelConfig(name=str(folder), **recipe)
    return build_model(recipe, task=task_named("sst2"), tokenizer=Vocabulary(), max_length=16, seed=0)


@pytest.fixture(scope="module")
def treated(tmp_path_factory):
    """What a folder holds, by name."""
    folder = tmp_path_factory.mktemp("treated")
    oelm.apply(BertForSequenceClassification(BertConfig(**SIZES)), init="orthogonal", freeze="qk").save_pretrained(
        folder
    )
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.fixture
def folder(treated, tmp_path):
    for name, content in treated.items():
        (tmp_path / name).write_bytes(content)
    return tmp_path


def configure(folder, **settings):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | settings))


@pytest.mark.parametrize("way", [way for way in WAYS if not way.startswith("a study")])
@pytest.mark.parametrize(
    "names", [["Trainer"], [5], ["AutoTokenizer"], ["BertConfig"], ["pipeline"], ["__dict__"], "BertModel", 5, {"a": 1}]
)
def test_a_class_that_is_no_model(folder, way, names):
    configure(folder, architectures=names)
    with pytest.raises(oelm.FolderError):
        WAYS[way](folder)


def test_a_class_that_transformers_does_not_have_is_its_plain_model(folder):
    configure(folder, architectures=["SomebodysOwnBert"])
    assert type(load_model(folder)).__name__ == "BertModel"


@in_any_way
@pytest.mark.parametrize(
    "settings",
    [
        {"num_hidden_layers": 10**9},
        {"num_hidden_layers": 10**30},
        {"num_hidden_layers": -1},
        {"num_hidden_layers": "2"},
        {"hidden_size": 10**9, "num_attention_heads": 1},
        {"hidden_size": -16},
        {"hidden_size": "16"},
        {"num_attention_heads": 10**9},
        {"num_attention_heads": 0},
        {"intermediate_size": 10**12},
        {"max_position_embeddings": 10**12},
        {"type_vocab_size": 10**12},
        {"num_labels": 10**9},
        {"text_config": {"num_hidden_layers": 10**9}},
    ],
    ids=lambda settings: "-".join(f"{key}={value}" for key, value in settings.items())[:60],
)
def test_a_size_that_cannot_be(folder, way, settings):
    """A billion layers were built one by one, until the machine had no memory left."""
    configure(folder, **settings)
    with pytest.raises(oelm.OelmError):
        WAYS[way](folder)


@pytest.mark.parametrize("size", [10**9, 10**30, -60, "60"])
def test_a_vocabulary_that_cannot_be(folder, size):
    """From scratch it is that of the tokenizer."""
    configure(folder, vocab_size=size)
    for way in set(WAYS) - {"a study from scratch", "inspect --config"}:
        with pytest.raises(oelm.OelmError):
            WAYS[way](folder)


@pytest.mark.parametrize(
    ("family", "settings"),
    [
        ("qwen2", {"num_hidden_layers": 10**9}),  # its configuration lists every layer
        ("gpt-neo", {"attention_types": [[["global", "local"], 10**9]]}),
        ("gptj", {"n_positions": 10**9}),  # a table of all positions
        ("albert", {"inner_group_num": 10**9}),
        ("mixtral", {"num_local_experts": 10**9}),
        ("mixtral", {"num_local_experts": 10_000}),  # each was several modules
        ("mixtral", {"num_local_experts": 4_000, "num_hidden_layers": 500}),
        ("llama", {"text_config": {"n_routed_experts": 4_000, "num_layers": 500}}),
        ("bert", {"num_labels": 10**6}),  # each has a name
    ],
)
def test_sizes_of_other_families(tmp_path, family, settings):
    next(f for f in FAMILIES if f.name == family).model().save_pretrained(tmp_path)
    configure(tmp_path, **settings)
    with pytest.raises(oelm.FolderError, match=r"no model has|asks for a model of more than"):
        load_model(tmp_path)


def test_names_of_a_million_labels(folder):
    configure(folder, id2label={str(number): f"L{number}" for number in range(10**5)})
    with pytest.raises(oelm.FolderError, match="more than 100,000 settings"):
        load_model(folder)


def test_nothing_is_drawn_for_a_model_that_is_only_looked_at(folder):
    """A draw on the meta device is a millisecond of Python; a mixture of experts has tens of thousands."""
    seen = []

    class Watching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func.__name__)
            return func(*args, **(kwargs or {}))

    with Watching():
        meta_model(load_config(folder))
    assert "empty.memory_format" in seen
    assert not {"normal_.default", "uniform_.default"} & set(seen)


def test_more_layers_than_the_files_hold_are_noticed_after_a_few(folder):
    configure(folder, num_hidden_layers=512)
    with pytest.raises(oelm.FolderError, match=r"more than [\d,]+ modules"):
        load_model(folder)


def test_a_configuration_names_no_code(folder):
    configure(folder, attn_implementation="someone/kernel")
    with pytest.raises(oelm.FolderError, match=r"asks for code from the hub \(someone/kernel\)"):
        load_model(folder)


@in_any_way
@pytest.mark.parametrize("text", [DEEP, "[" * 50_000, b"\xff\xfe\x00", "", "[]", "null", "5", '{"model_type": 5}'])
def test_a_configuration_that_is_none(folder, way, text):
    (folder / "config.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(oelm.OelmError):
        WAYS[way](folder)


@pytest.mark.parametrize("way", ["audit", "from_pretrained"])
@pytest.mark.parametrize("text", [DEEP, "[" * 50_000, b"\xff\xfe\x00", "", "[]"])
def test_an_oelm_json_that_is_none(folder, way, text):
    (folder / "oelm.json").write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(oelm.FolderError):
        WAYS[way](folder)


def test_deep_json_beside_the_weights(folder):
    weights = folder / "model.safetensors"
    content = weights.read_bytes()
    header = (DEEP + " " * (-len(DEEP) % 8)).encode()
    weights.write_bytes(len(header).to_bytes(8, "little") + header)
    with pytest.raises(oelm.FolderError, match="cannot load a model"):
        load_model(folder)
    weights.write_bytes((2**63 - 1).to_bytes(8, "little") + content[8:])
    with pytest.raises(oelm.FolderError, match="cannot load a model"):
        load_model(folder)
    weights.unlink()
    (folder / "model.safetensors.index.json").write_text(DEEP)
    with pytest.raises(oelm.FolderError, match="cannot load a model"):
        load_model(folder)


@pytest.mark.parametrize("damage", ["deep tokenizer.json", "deep tokenizer_config.json", "a billion layers", "a pipe"])
def test_a_tokenizer_reads_the_folder_first(folder, tmp_path, damage):
    if damage.startswith("deep"):
        (folder / damage.split()[1]).write_text(DEEP)
    elif damage == "a pipe":
        os.mkfifo(folder / "tokenizer.json")
    else:
        configure(folder, num_hidden_layers=10**9)
    model = {"name": str(folder), "from_scratch": True}
    content = study(write_data(tmp_path / "data"), model=model)
    del content["recipe"]["data"]["tokenizer"]
    recipe = oelm.load_study(write_study(tmp_path, content)).recipe
    with pytest.raises(oelm.OelmError):
        load_data(recipe, Progress())


def put(kind, path):
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "folder":
        path.mkdir()
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "link to nothing":
        path.symlink_to("nowhere")
    elif kind == "device":
        path.symlink_to("/dev/zero")
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listener:
            here = Path.cwd()
            os.chdir(path.parent)  # a path of a socket is short
            listener.bind(path.name)
            os.chdir(here)


@pytest.mark.parametrize("name", ["config.json", "oelm.json", "model.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "folder", "loop", "link to nothing", "device", "socket"])
def test_no_file_in_the_place_of_one(folder, kind, name):
    put(kind, folder / name)
    for way in ("inspect", "audit", "from_pretrained", "a study"):
        with pytest.raises(oelm.FolderError, match=name.replace(".", r"\.")):
            WAYS[way](folder)
    with pytest.raises(oelm.FolderError):
        audit_folder(folder, against=folder)
    if name == "config.json":
        for place in (folder, folder / name):
            with pytest.raises(oelm.FolderError):
                load_config(place)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
@pytest.mark.parametrize("name", ["config.json", "oelm.json", "model.safetensors", "."])
def test_a_file_that_may_not_be_read(folder, name):
    place = folder / name
    mode = stat.S_IMODE(place.stat().st_mode)
    place.chmod(0)
    try:
        with pytest.raises(oelm.FolderError):
            oelm.from_pretrained(folder)
    finally:
        place.chmod(mode)


@pytest.mark.parametrize("name", ["a" * 5000, "a\0b", "/" * 5000])
def test_names_that_no_file_can_have(name):
    with pytest.raises(oelm.FolderError):
        load_model(name)


@pytest.mark.parametrize(
    "words",
    [
        "inspect FOLDER",
        "inspect --config FOLDER",
        "inspect --config FOLDER/config.json",
        "audit FOLDER",
        "audit FOLDER --against FOLDER",
    ],
)
def test_on_the_command_line_it_is_one_message(folder, words, monkeypatch, capsys):
    configure(folder, num_hidden_layers=10**9)
    monkeypatch.setattr(sys, "argv", ["oelm", *words.replace("FOLDER", str(folder)).split()])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert "num_hidden_layers is 1,000,000,000, and no model has" in said
    assert said.startswith("FolderError: ")
