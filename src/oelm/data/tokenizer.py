"""Tokenizers: loaded by name, or trained on the training split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from oelm.data.cache import made_once
from oelm.data.sources import END_OF_TEXT
from oelm.errors import DataError


def load_tokenizer(name: str | Path, *, revision: str | None = None) -> Any:
    """A fast tokenizer from a folder or hub name, with a token to pad with."""
    from transformers import AutoTokenizer

    if not Path(name).exists() and str(name).startswith((".", "/", "~")):
        raise DataError(f"there is no folder {name} with a tokenizer")
    options: dict[str, Any] = {"trust_remote_code": False} | ({"revision": revision} if revision else {})
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(name), **options)
    except Exception as error:  # a library may say anything about a folder
        why = " ".join(str(error).split())[:200]
        raise DataError(
            f"no tokenizer could be loaded from {name}",
            why=f"{type(error).__name__}: {why}",
            hint="data.tokenizer: {name: FOLDER}, or {train: bpe, vocab: 8192}",
        ) from error
    if not tokenizer.is_fast:
        raise DataError(f"the tokenizer of {name} is not a fast one", hint="a folder with tokenizer.json")
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise DataError(f"the tokenizer of {name} has no token to pad with and none for the end of a text")
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token will do
    return tokenizer


def train_tokenizer(texts: Callable[[], Iterable[str]], *, vocab: int, made_from: Any) -> Any:
    """A byte-level BPE trained on `texts`; made once for `made_from`."""

    def make(folder: Path) -> None:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

        tokenizer = Tokenizer(models.BPE())
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab,
            special_tokens=[END_OF_TEXT],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(texts(), trainer)
        tokenizer.save(str(folder / "tokenizer.json"))

    folder = made_once("tokenizers", {"bpe": vocab, "from": made_from}, make)
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"), eos_token=END_OF_TEXT, pad_token=END_OF_TEXT
    )


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """SHA-256 of everything that decides which tokens a text gets."""
    text = tokenizer.backend_tokenizer.to_str() + repr(sorted(tokenizer.special_tokens_map.items()))
    return hashlib.sha256(text.encode()).hexdigest()
