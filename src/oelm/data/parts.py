"""Parts of a long text: each is tokenized by itself and kept until all are, so that who is interrupted resumes.

A part is known by its text and its tokenizer, wherever in the text it is, and believed only with its hash.
"""

import hashlib
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oelm.data.cache import MessageCallback, cached_dir
from oelm.data.chunking import TextChunker

Chunks: TypeAlias = list[tuple[str, bool]]
"""Texts, each with whether a document ends with it."""

_PART = (2**23, 10_000)  # characters, texts: some seconds of work, in little memory
_BATCH = (2**19, 1000)  # tokenized at a time: a million characters take 100 to 200 MB


def split_parts(
    documents: Iterable[tuple[str, Iterable[str]]], chunker: TextChunker
) -> Iterator[tuple[str, Chunks, bool]]:
    """(split, chunks of its documents, whether they are as many as a part has)."""
    pending: dict[str, Chunks] = {}
    sizes: dict[str, int] = {}
    for name, document in documents:
        for chunk in chunker.chunks(document):
            pending.setdefault(name, []).append(chunk)
            sizes[name] = sizes.get(name, 0) + len(chunk[0])
            if sizes[name] >= _PART[0] or len(pending[name]) == _PART[1]:
                yield name, pending.pop(name), True
                del sizes[name]
    for name, chunks in pending.items():
        yield name, chunks, False


def split_batches(chunks: Chunks) -> Iterator[Chunks]:
    start = size = 0
    for number, (text, _) in enumerate(chunks, start=1):
        size += len(text)
        if size >= _BATCH[0] or number - start == _BATCH[1] or number == len(chunks):
            yield chunks[start:number]
            start, size = number, 0


class PartCache:
    """The tokens of parts, for one tokenizer."""

    def __init__(self, fingerprint: str, dtype: Any, *, log: MessageCallback):
        self._facts = {"tokenizer": fingerprint, "dtype": np.dtype(dtype).name}
        self._dtype = dtype
        self._log = log
        self._folders: list[Path] = []

    def tokens(self, chunks: Chunks, tokenize: Callable[[Chunks], NDArray[Any]]) -> NDArray[Any]:
        """Those that were kept, or are made now."""
        digest = hashlib.sha256()
        for text, ends in chunks:
            content = text.encode("utf-8", "surrogatepass")
            digest.update(b"%d %d\n" % (len(content), ends) + content)

        def make(folder: Path) -> None:
            tokenize(chunks).tofile(folder / "part.tokens")

        self._folders.append(cached_dir("parts", {**self._facts, "text": digest.hexdigest()}, make, log=self._log))
        try:
            return np.fromfile(self._folders[-1] / "part.tokens", dtype=self._dtype)
        except OSError:  # another process has all of them, and removed this one
            return tokenize(chunks)

    def clear(self) -> None:
        """Remove what was kept, once all of the text is."""
        for folder in self._folders:
            shutil.rmtree(folder, ignore_errors=True)
