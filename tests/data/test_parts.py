"""Parts: who is interrupted while a long text is tokenized resumes after those that are complete."""

import numpy as np
import pytest

from oelm.data import parts
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import tokenize_task, train_tokenizer


@pytest.fixture
def text(tmp_path):
    words = np.random.default_rng(0).integers(0, 10**6, 40_000).astype(str)
    documents = [" ".join(words[start : start + 100]) for start in range(0, len(words), 100)]
    (tmp_path / "text.txt").write_text("<|endoftext|>".join([*documents, " ".join(words[::-1])]))
    return tmp_path


def tokenize(folder, cache, monkeypatch, *, stop_at=None):
    """(tokens by split, lines for the user); interrupted when so many documents are tokenized."""
    monkeypatch.setenv("OELM_CACHE", str(folder / cache))
    lines = []

    def watch(what, done, total):
        if what == "tokenizing" and stop_at is not None and done >= stop_at:
            raise KeyboardInterrupt

    made = tokenize_task(
        find_source(task_named("text"), str(folder / "text.txt")),
        tokenizer=lambda texts, made_from: train_tokenizer(lambda: ["12 345 6789"], vocab=300, made_from="x"),
        max_length=8,
        validation=20,
        progress=watch,
        log=lines.append,
    )
    return {"train": made.train.tokens, "validation": made.validation.tokens, **_tests(made)}, lines


def _tests(made):
    return {name: split.tokens for name, split in made.test.items()}


def kept(folder):
    return {path.name: path.stat().st_ino for path in (folder / "cut" / "parts").glob("*")}


def test_an_interrupted_tokenization_resumes_after_the_parts_that_are_complete(text, monkeypatch):
    whole, _ = tokenize(text, "whole", monkeypatch)
    monkeypatch.setattr(parts, "_PART", (20_000, 10_000))
    monkeypatch.setattr(parts, "_BATCH", (5_000, 1000))
    with pytest.raises(KeyboardInterrupt):
        tokenize(text, "cut", monkeypatch, stop_at=150)
    first = kept(text)
    assert len(first) >= 3
    with pytest.raises(KeyboardInterrupt):
        tokenize(text, "cut", monkeypatch, stop_at=300)
    second = kept(text)
    assert first.items() < second.items(), "what was complete is not made again"

    damaged = text / "cut" / "parts" / next(iter(first)) / "part.tokens"
    content = bytearray(damaged.read_bytes())
    content[7] ^= 1
    damaged.write_bytes(content)
    resumed, lines = tokenize(text, "cut", monkeypatch)
    assert any(f"{damaged.parent} is damaged: the hash of part.tokens" in line for line in lines)
    assert whole.keys() == resumed.keys()
    assert all((whole[name] == resumed[name]).all() and len(whole[name]) == len(resumed[name]) for name in whole)
    assert kept(text) == {}, "nothing is left of it"
    name = [path.name for path in (text / "whole" / "tokens").iterdir()]
    assert name == [path.name for path in (text / "cut" / "tokens").iterdir()], "by the same key"
