"""Chunking: in chunks, a text has the same tokens as in one call, in little memory."""

import json
import os
import random
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from tokenizers import AddedToken, Regex, Tokenizer, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from conftest import SHARED
from oelm.data import chunking
from oelm.data.chunking import TextChunker, splits_at_spaces
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import load_tokenizer, tokenize_task, train_tokenizer

WIKI = task_named("wikitext-2")
TEXTS = [" = A title = \n", "some words, and  more\n\n", "don't; 1,234 <mask>\n", "été 中 文 \t x\n"]
SPACES = ["a  \n b", "a \n  b", "a   b", "a\t \n\n b", "a. \n \n "]
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))


def made(pre_tokenizer, normalizer=None, added=()):
    """A BPE with these rules, whose merges go over spaces and the ends of lines wherever the rules let them."""
    tokenizer = Tokenizer(models.BPE(unk_token="?"))
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    if pre_tokenizer is not None:
        tokenizer.pre_tokenizer = pre_tokenizer
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        show_progress=False,
        special_tokens=["?"],
        initial_alphabet=[*pre_tokenizers.ByteLevel.alphabet(), *" \n\tabe中é\u0301▁"],
    )
    tokenizer.train_from_iterator([*TEXTS, "".join(TEXTS), "a b . b\n \n a  b ", *SPACES] * 3, trainer)
    tokenizer.add_tokens(list(added))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def isolated(pattern):
    return pre_tokenizers.Split(Regex(pattern), "isolated")


byte_level, sequence = pre_tokenizers.ByteLevel, pre_tokenizers.Sequence
SAFE = {
    "GPT-2": lambda: made(byte_level(add_prefix_space=False)),
    "RoBERTa": lambda: made(byte_level(add_prefix_space=True), added=[AddedToken("<mask>", lstrip=True)]),
    "NeoX": lambda: made(byte_level(add_prefix_space=False), normalizers.NFC()),
    "Llama 3": lambda: made(sequence([isolated(LLAMA3), byte_level(add_prefix_space=False, use_regex=False)])),
    "digits": lambda: made(sequence([pre_tokenizers.Digits(), byte_level()])),
    "BERT": lambda: made(pre_tokenizers.BertPreTokenizer(), normalizers.BertNormalizer()),
    "Metaspace": lambda: made(pre_tokenizers.Metaspace(), normalizers.NFKC()),
    "first": lambda: made(pre_tokenizers.Metaspace(prepend_scheme="first"), added=[AddedToken("<mask>")]),
    "stripped": lambda: made(
        byte_level(add_prefix_space=False), normalizers.Sequence([normalizers.NFKD(), normalizers.StripAccents()])
    ),
}
UNSAFE = {
    "one word": lambda: made(None),
    "no regex": lambda: made(byte_level(use_regex=False)),
    "bytes first": lambda: made(sequence([byte_level(use_regex=False), pre_tokenizers.Whitespace()])),
    "Llama 2": lambda: made(None, normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])),
    "lines": lambda: made(isolated(r"[^\n]+|\n")),
    "strip": lambda: made(byte_level(), normalizers.Strip()),
    "BERT and bytes": lambda: made(byte_level(), normalizers.BertNormalizer()),
    "rstrip": lambda: made(byte_level(), added=[AddedToken("<mask>", rstrip=True)]),
    "a space inside": lambda: made(byte_level(), added=[AddedToken("A title")]),
}
TOKENIZERS = {}


def tokenizer_named(name):
    if name not in TOKENIZERS:
        TOKENIZERS[name] = (SAFE | UNSAFE)[name]()
    return TOKENIZERS[name]


def ids(tokenizer, texts):
    encoded = tokenizer(texts, add_special_tokens=False)["input_ids"]
    return [token for one in encoded for token in one]


def chunk(tokenizer, parts):
    found = list(TextChunker(tokenizer).chunks(parts))
    assert [last for _, last in found] == [False] * (len(found) - 1) + [True]
    return [chunk for chunk, _ in found]


@pytest.mark.slow
@pytest.mark.parametrize("name", SAFE)
@settings(deadline=None, max_examples=80, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.text(alphabet="ab .,'1\n\t\r\u3000\u00a0é\u0301中\u00b4\uff9e\ufffd", max_size=12)
        | st.sampled_from([" ", "<mask>", "  \n", "don't"]),
        max_size=12,
    )
)
def test_the_rules_alone_keep_the_tokens_of_any_text(monkeypatch, name, parts):
    monkeypatch.setattr(chunking, "CHUNK_CHARACTERS", 3)
    monkeypatch.setattr(TextChunker, "_keeps_tokens", lambda self, text, at: True)
    tokenizer = tokenizer_named(name)
    chunks = chunk(tokenizer, parts)
    assert "".join(chunks) == "".join(parts)
    assert ids(tokenizer, chunks) == ids(tokenizer, ["".join(parts)])


@pytest.mark.parametrize("name", SAFE)
def test_a_long_text_is_chunked(monkeypatch, name):
    monkeypatch.setattr(chunking, "CHUNK_CHARACTERS", 50)
    tokenizer = tokenizer_named(name)
    for parts in (TEXTS * 20, ["".join(TEXTS * 20)]):
        chunks = chunk(tokenizer, parts)
        assert len(chunks) > 20
        assert ids(tokenizer, chunks) == ids(tokenizer, ["".join(parts)])


@pytest.mark.parametrize("name", UNSAFE)
def test_a_text_stays_one_chunk_where_the_tokens_might_change(monkeypatch, name):
    monkeypatch.setattr(chunking, "CHUNK_CHARACTERS", 50)
    assert chunk(tokenizer_named(name), TEXTS * 20) == ["".join(TEXTS * 20)]


def test_a_cut_that_would_change_tokens_is_not_made(monkeypatch):
    monkeypatch.setattr(chunking, "CHUNK_CHARACTERS", 50)
    monkeypatch.setattr(chunking, "splits_at_spaces", lambda rules: True)
    text = "".join(TEXTS * 20)
    assert chunk(tokenizer_named("Llama 2"), [text]) == [text], "found by tokenizing, without the rules"


def test_without_a_split_the_chunk_grows(monkeypatch):
    monkeypatch.setattr(chunking, "CHUNK_CHARACTERS", 8)
    assert chunk(tokenizer_named("GPT-2"), ["a" * 50, "\n\n  \n", "b" * 50 + " c d e f g h i"])[0].startswith("a" * 50)
    assert chunk(tokenizer_named("GPT-2"), ["x" * 100]) == ["x" * 100]


@pytest.fixture
def wikitext(tmp_path):
    folder = SHARED / "data" / "wikitext2"
    if not folder.is_dir():
        pytest.skip("there is no wikitext2 beside the repository")
    for file in folder.glob("*.parquet"):  # a tenth of each: what is cut and joined there is the same
        rows = parquet.read_table(file)
        parquet.write_table(rows.slice(0, len(rows) // 10), tmp_path / file.name)
    return tmp_path


def text_of(folder, split):
    (file,) = folder.glob(f"{split}*.parquet")
    rows = parquet.read_table(file)["text"].to_pylist()
    return "".join(row if row.endswith("\n") else row + "\n" for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["trained", "tokenizer-gpt2", "tokenizer-bert-base-uncased"])
def test_wikitext_gets_the_tokens_of_one_call(name, wikitext, shared_model, monkeypatch):
    texts = {split: text_of(wikitext, split) for split in ("train", "validation", "test")}
    if name == "trained":
        tokenizer = train_tokenizer(lambda: [texts["train"]], vocab=2000, made_from="one text")
    else:
        tokenizer = load_tokenizer(shared_model(name))
        if tokenizer.eos_token is None:
            tokenizer.eos_token = tokenizer.sep_token
    expected = ids(tokenizer, [texts["test"]])
    monkeypatch.setattr(chunking, "CHUNK_CHARACTERS", 100)
    chunks = chunk(tokenizer, [texts["test"]])
    assert len(chunks) > len(texts["test"]) / 200
    assert ids(tokenizer, chunks) == expected
    monkeypatch.undo()

    chosen = []

    def choose(training_texts, made_from):
        chosen.append(train_tokenizer(training_texts, vocab=2000, made_from=made_from))
        return chosen[0] if name == "trained" else tokenizer

    data = tokenize_task(find_source(WIKI, str(wikitext)), tokenizer=choose, max_length=64, validation=None)
    for split, tokens in {"train": data.train, "validation": data.validation, "test": data.test["test"]}.items():
        assert tokens.tokens.tolist() == [*ids(tokenizer, [texts[split]]), tokenizer.eos_token_id]
    if name == "trained":
        assert chosen[0].backend_tokenizer.to_str() == tokenizer.backend_tokenizer.to_str(), "and learns the same"


@pytest.mark.parametrize("name", ["tokenizer-gpt2", "tokenizer-bert-base-uncased"])
def test_real_tokenizers_can_be_cut_for(name, shared_model):
    assert splits_at_spaces(json.loads((shared_model(name) / "tokenizer.json").read_text()))


MEMORY = """
import pathlib, sys
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import tokenize_task, train_tokenizer
made = lambda texts, made_from: train_tokenizer(texts, vocab=1000, made_from=made_from)
validation = int(sys.argv[3]) or None
tokenize_task(find_source(task_named(sys.argv[1]), sys.argv[2]), tokenizer=made, max_length=64, validation=validation)
# Not getrusage: what it says includes the process that forked this one.
status = pathlib.Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("task", "ending", "validation"), [("wikitext-2", ".parquet", 0), ("text", ".txt", 10)])
def test_tokenizing_5_mb_of_text_takes_little_memory(tmp_path, task, ending, validation):
    """The entire process, with the interpreter and the training of the tokenizer."""
    draw, folder = random.Random(0), tmp_path / "data"
    folder.mkdir()
    words = ["".join(draw.choices("abcdefghijklmnop", k=draw.randint(2, 9))) for _ in range(3000)]
    for split, size in {"train": 5_000_000, "validation": 100_000, "test": 100_000}.items():
        rows = [f" {' '.join(draw.choices(words, k=80))} . \n" for _ in range(size // 520)]
        file = folder / f"{split}{ending}"
        if ending == ".parquet":
            parquet.write_table(pa.table({"text": rows}), file)
        else:
            file.write_text("".join(rows))
    path = folder / ("train.txt" if task == "text" else "")
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, task, path, str(validation)],
        env=os.environ | {"OELM_CACHE": str(tmp_path / "cache"), "TOKENIZERS_PARALLELISM": "true"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) / 1024 < 500, "MB"
