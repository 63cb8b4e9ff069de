"""The command line: what it prints, and its exit codes."""

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tokenizers
import torch
import transformers
from safetensors.torch import load_file, save_file

import oelm
from oelm.cli.main import COMMANDS, main
from zoo import FAMILIES, attentive

BERT, GPT2 = (next(f for f in FAMILIES if f.name == name) for name in ("bert", "gpt2"))


@pytest.fixture
def run(capsys, monkeypatch):
    """`oelm WORDS` in this process: (exit code, stdout, stderr)."""

    def call(*words):
        monkeypatch.setattr(sys, "argv", ["oelm", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            main()
        out, errors = capsys.readouterr()
        return subprocess.CompletedProcess(words, stopped.value.code, out, errors)

    return call


@pytest.fixture
def base(tmp_path):
    GPT2.model().save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.fixture
def treated(base, tmp_path):
    model = transformers.GPT2LMHeadModel.from_pretrained(base)
    applied = oelm.apply(model, init="orthogonalize", freeze="qk", seed=5)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    GPT2.loss(model).backward()
    optimizer.step()
    applied.save_pretrained(tmp_path / "treated")
    return tmp_path / "treated"


@pytest.mark.parametrize("words", [["--help"], ["--version"], ["inspect", "--help"], ["audit", "--help"]])
def test_help_does_not_wait_for_torch(words, tmp_path):
    """torch and transformers cannot even be imported here."""
    for name in ("torch", "transformers"):
        (tmp_path / f"{name}.py").write_text("raise ImportError('imported')")
    done = subprocess.run(
        [Path(sys.executable).with_name("oelm"), *words],
        env=os.environ | {"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert "oelm" in done.stdout
    assert oelm.__version__ in done.stdout or "--help" in words


def test_every_command_is_listed_and_there(run):
    listed = run("--help").stdout
    for name, (module, told) in COMMANDS.items():
        found = importlib.import_module(f"oelm.cli.{module}")
        assert hasattr(found, f"{name}_app") or callable(getattr(found, name))
        assert name in listed
        assert told.split()[0] in listed
        assert f"oelm {name}" in run(name, "--help").stdout
    bad = run("inspcet")
    assert bad.returncode == 2
    assert "did you mean 'inspect'" in bad.stderr


def test_the_list_of_commands_waits_for_none_of_them():
    code = "import sys; sys.argv = ['oelm', '--help']; from oelm.cli.main import app; app(standalone_mode=False);"
    heavy = ("pydantic", "yaml", "numpy", "rich", "jinja2", "oelm.study", "oelm.records")
    done = subprocess.run(
        [sys.executable, "-c", f"{code} print([name for name in {heavy} if name in sys.modules])"],
        capture_output=True,
        text=True,
    )
    assert done.stdout.splitlines()[-1] == "[]", done.stderr


def test_inspect_shows_layout_heads_counts_and_savings(run, base):
    done = run("inspect", base)
    assert done.returncode == 0, done.stderr
    counts = oelm.count(GPT2.model())
    assert f"{counts.total:,} weights, {counts.qk:,} of them Q/K" in done.stdout
    assert "transformer.h.1.attn.c_attn.weight" in done.stdout
    assert "stacked" in done.stdout
    assert f"{counts.qk:,} weights frozen" in done.stdout
    assert "singular values" in done.stdout


def test_inspect_as_json(run, base):
    facts = json.loads(run("inspect", base, "--json", "--freeze", "k", "--layers", "first:0.5").stdout)
    assert facts["class"] == "GPT2LMHeadModel"
    assert facts["counts"] == oelm.count(GPT2.model()).to_dict()
    assert facts["saving"]["frozen"] == facts["counts"]["qk"] // 4
    assert [p["role"] for p in facts["projections"]] == ["q", "k", "q", "k"]
    expected = oelm.orthonormality(GPT2.model())
    assert [row["deviation"] for row in facts["orthonormality"]] == pytest.approx([r.deviation for r in expected])


def test_inspect_says_of_a_treated_model_that_it_is(run, treated, base):
    done = run("inspect", treated)
    assert "\ntreated when it was saved: orthogonalize, scale unit, freeze qk, layers all\n" in done.stdout
    assert "treated when" not in run("inspect", base).stdout
    (treated / "oelm.json").write_text("{}")
    assert "treated when it was saved: unknown, as its oelm.json cannot be read" in run("inspect", treated).stdout


def save_tokenizer(folder, words="a b c d e f g h"):
    vocabulary = {word: number for number, word in enumerate(["<pad>", *words.split()])}
    inner = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<pad>"))
    inner.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    transformers.PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>").save_pretrained(folder)


def test_inspect_shows_spectra_on_sentences_of_ones_own(run, base, tmp_path):
    made_up = run("inspect", base, "--spectrum")
    assert made_up.returncode == 0, made_up.stderr
    assert "made-up inputs, as the model has no tokenizer" in made_up.stdout
    assert "frames unit: not for this model: nothing can be proved of attention that is so flat" in made_up.stdout
    attentive(GPT2).save_pretrained(base)
    save_tokenizer(base)
    text, figure = tmp_path / "text.txt", tmp_path / "spectrum.svg"
    text.write_text("a b c d e\n\nf a g b\n")
    words = ("inspect", base, "--spectrum", "--text", text, "--figure", figure)
    done = run(*words)
    assert done.returncode == 0, done.stderr
    assert "2 sentences of yours, 9 tokens" in done.stdout
    assert "frames match" in done.stdout
    spectra = json.loads(run(*words, "--json").stdout)["spectra"]
    heads = spectra["heads"]
    assert [(one["layer"], one["head"]) for one in heads] == [(n, m) for n in range(2) for m in range(4)]
    assert all(one["largest"] == one["spectrum"][0] and one["kl"]["unit"] >= 0 for one in heads)
    assert spectra["refused"] == {}
    drawn = ElementTree.parse(figure).getroot()
    assert any("KL" in (one.text or "") for one in drawn.iter("{http://www.w3.org/2000/svg}text"))
    assert json.loads(run("inspect", base, "--json").stdout)["spectra"] is None


def test_spectra_of_what_has_none_say_why(run, tmp_path):
    next(f for f in FAMILIES if f.name == "llama").model().to(torch.bfloat16).save_pretrained(tmp_path / "llama")
    done = run("inspect", tmp_path / "llama", "--spectrum", "--figure", tmp_path / "new.svg")
    assert done.returncode == 0, done.stderr
    assert "frames match: not for this model: rotary positions" in done.stdout


@pytest.mark.parametrize(
    ("text", "words", "says"),
    [
        ("", ["--spectrum", "--text", "TEXT"], "has no sentences in it"),
        (" \n\t\n", ["--spectrum", "--text", "TEXT"], "has no sentences in it"),
        ("a " * 40, ["--spectrum", "--text", "TEXT"], "a sentence has 40 tokens, and the model takes 32"),
        ("a b c\n" * 200, ["--spectrum", "--text", "TEXT"], "600 tokens together, more than 512"),
        ("a" * 200_000, ["--spectrum", "--text", "TEXT"], "is too long"),
        (b"\xff\xfe\xff", ["--spectrum", "--text", "TEXT"], "is not text in UTF-8"),
        (None, ["--spectrum", "--text", "TEXT"], "there is no file"),
        (None, ["--spectrum", "--text", "."], "try    --text FILE: a few sentences, one a line"),
        ("a", ["--text", "TEXT"], "--text goes with --spectrum"),
        (None, ["--figure", "a.svg"], "--figure goes with --spectrum"),
        (None, ["--spectrum", "--figure", "a.png"], "is not the name of an SVG file"),
        (None, ["--spectrum", "--figure", "/proc/a.svg"], "try    --figure FILE.svg"),
    ],
)
def test_spectra_that_cannot_be_made_are_one_message(run, base, tmp_path, text, words, says):
    save_tokenizer(base)
    if text is not None:
        (tmp_path / "text.txt").write_bytes(text if isinstance(text, bytes) else text.encode())
    done = run("inspect", base, *(str(tmp_path / "text.txt") if word == "TEXT" else word for word in words))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


def test_text_needs_a_tokenizer_and_a_spectrum_weights(run, base, tmp_path):
    (tmp_path / "text.txt").write_text("a b c")
    done = run("inspect", base, "--spectrum", "--text", tmp_path / "text.txt")
    assert done.returncode == 2
    assert "--text needs a tokenizer" in done.stderr
    done = run("inspect", "--config", base, "--spectrum")
    assert done.returncode == 2
    assert "--spectrum needs weights" in done.stderr


def test_inspect_names_what_was_drawn_and_what_was_dropped(run, tmp_path):
    """A class that is not here is shown as its plain model, which has a pooler and no other head."""
    model = transformers.BertForMaskedLM(BERT.model().config)
    model.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {"architectures": ["SomebodysOwnBert"]}))
    facts = json.loads(run("inspect", tmp_path, "--json").stdout)
    assert [name.removeprefix("bert.") for name in facts["new_weights"]] == ["pooler.dense.bias", "pooler.dense.weight"]
    assert len(facts["dropped_weights"]) == 5
    done = run("inspect", tmp_path)
    assert f"not in the files, drawn at random: {', '.join(facts['new_weights'])}" in done.stdout
    assert f"in the files, and not in this class: {', '.join(facts['dropped_weights'])}" in done.stdout


def test_inspect_of_a_configuration_needs_no_weights(run, base):
    (base / "model.safetensors").unlink()
    for place in (base, base / "config.json"):
        done = run("inspect", "--config", place)
        assert done.returncode == 0, done.stderr
        assert "without weights" in done.stdout
        assert f"{oelm.count(GPT2.model()).qk:,} weights frozen" in done.stdout
    facts = json.loads(run("inspect", "--config", base, "--json").stdout)
    assert facts["orthonormality"] is None


def test_audit_passes_for_what_we_saved(run, treated, base):
    done = run("audit", treated)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "audit passed" in done.stdout
    assert "8 tensors by SHA-256" in done.stdout
    done = run("audit", treated, "--against", base, "--json")
    assert done.returncode == 0, done.stderr + done.stdout
    result = json.loads(done.stdout)
    assert result["ok"] is True
    assert result["examined"]["base"] == "8 of 8 tensors as the treatment makes them from the base"


def test_audit_finds_a_bit_that_moved(run, treated, base):
    tensors = load_file(treated / "model.safetensors")
    weight = tensors["transformer.h.0.attn.c_attn.weight"]  # (width, rows): column 0 is a query row
    weight.view(torch.int32)[0, 0] ^= 1 << 20
    save_file(tensors, treated / "model.safetensors", metadata={"format": "pt"})
    done = run("audit", treated, "--against", base)
    assert done.returncode == 1
    assert "FROZEN-MOVED  transformer.h.0.attn.c_attn.weight[q]" in done.stdout
    assert "DIFFERS-FROM-BASE  transformer.h.0.attn.c_attn.weight[q]" in done.stdout


def test_audit_finds_another_base_or_seed(run, treated, tmp_path):
    GPT2.model(seed=1).save_pretrained(tmp_path / "other")
    done = run("audit", treated, "--against", tmp_path / "other")
    assert done.returncode == 1
    assert done.stdout.count("DIFFERS-FROM-BASE") == 8


def test_a_base_with_other_heads_is_refused(run, treated, tmp_path):
    config = GPT2.model().config
    config.n_layer = 1
    transformers.GPT2LMHeadModel(config).save_pretrained(tmp_path / "short")
    done = run("audit", treated, "--against", tmp_path / "short")
    assert done.returncode == 2
    assert "its heads differ" in done.stderr


def test_audit_of_anyones_model(run, base, tmp_path):
    """Fine-tuned by someone with frozen queries and keys, or not."""
    model = transformers.GPT2LMHeadModel.from_pretrained(base)
    model.transformer.wte.weight.data.add_(0.1)
    model.save_pretrained(tmp_path / "frozen")
    done = run("audit", tmp_path / "frozen", "--against", base)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "8 of 8 tensors as in the base" in done.stdout
    model.transformer.h[1].attn.c_attn.weight.data[:, 0] += 0.1
    model.save_pretrained(tmp_path / "moved")
    done = run("audit", tmp_path / "moved", "--against", base)
    assert done.returncode == 1
    assert done.stdout.count("DIFFERS-FROM-BASE") == 1


def test_audit_counts_what_is_in_the_files(run, treated):
    """Weights kept in tensors that the class does not know are lost on loading: that is said."""
    tensors = load_file(treated / "model.safetensors")
    tensors["reservoir.weight"] = torch.zeros(24, 24)
    save_file(tensors, treated / "model.safetensors", metadata={"format": "pt"})
    done = run("audit", treated)
    assert done.returncode == 1
    assert "COUNT-MISSES-BUFFERS" in done.stdout
    tensors["transformer.h.0.attn.reservoir"] = tensors.pop("reservoir.weight")
    save_file(tensors, treated / "model.safetensors", metadata={"format": "pt"})
    done = run("audit", treated)
    assert done.returncode == 2, "a part of the model itself is not read"
    assert "unexpected  transformer.h.0.attn.reservoir" in done.stderr


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["inspect"], "say which model"),
        (["inspect", "a", "--config", "b"], "say which model"),
        (["inspect", "no/such-model"], "no model configuration found"),
        (["inspect", "BASE", "--freeze", "qq"], "did you mean 'q'"),
        (["inspect", "BASE", "--layers", "0-9"], "asks for layer 2"),
        (["inspect", "EMPTY"], "no model configuration found"),
        (["audit", "BASE"], "has no oelm.json"),
        (["audit", "NOWHERE"], "does not exist"),
        (["audit", "BASE", "--against", "NOWHERE"], "no model configuration found"),
        (["audit", "BASE", "--agianst", "NOWHERE"], "--against"),
        (["inspekt"], "did you mean 'inspect'"),
    ],
)
def test_bad_input_is_one_message_and_exit_code_2(run, words, says, base, tmp_path):
    (tmp_path / "empty").mkdir()
    places = {"BASE": base, "EMPTY": tmp_path / "empty", "NOWHERE": tmp_path / "nowhere"}
    done = run(*(places.get(word, word) for word in words))
    assert done.returncode == 2
    assert says in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["inspect", "PICKLE"],
        ["inspect", "--config", "PICKLE"],
        ["audit", "PICKLE"],
        ["audit", "BASE", "--against", "PICKLE"],
    ],
)
def test_a_pickle_is_not_read_and_it_is_said_how_to_get_a_folder(run, words, base, tmp_path):
    pickle = tmp_path / "best_model.pt"
    torch.save(GPT2.model().state_dict(), pickle)
    done = run(*({"PICKLE": pickle, "BASE": base}.get(word, word) for word in words))
    assert done.returncode == 2
    assert "never loads" in done.stderr
    assert "model.save_pretrained(FOLDER)" in done.stderr
    assert "--config" not in done.stderr


def test_a_file_of_a_folder_leads_to_what_works(run, base):
    done = run("inspect", base / "config.json")
    assert f"oelm inspect --config {base / 'config.json'}" in done.stderr.replace("\n", " ")
    done = run("inspect", base / "model.safetensors")
    assert done.returncode == 2
    assert str(base) in done.stderr.split("try")[1]


@pytest.mark.parametrize(("world_size", "ends"), [("1", "tidied up"), ("2", "")])
def test_one_of_several_processes_ends_at_once(world_size, ends):
    """The interpreter's own end is where they may wait for each other for ever."""
    code = "import atexit, sys; atexit.register(print, 'tidied up'); sys.argv = ['oelm', '--version']\n"
    code += "from oelm.cli.main import main; main()"
    env = {**os.environ, "WORLD_SIZE": world_size}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n", 1) == [f"oelm {oelm.__version__}", f"{ends}\n" if ends else ""]
