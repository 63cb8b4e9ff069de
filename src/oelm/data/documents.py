"""Documents: the text of a source for language modeling, streamed in parts, however long it is."""

import codecs
import io
import itertools
from collections.abc import Iterable, Iterator
from operator import itemgetter
from pathlib import Path

from oelm.data.sources import TEXTS, Source, shown_path
from oelm.data.tables import explain_encoding, stream_rows
from oelm.errors import DataError

END_OF_TEXT = "<|endoftext|>"
PIECE_CHARACTERS = 2000  # characters: few long documents are split into chunks, so that some can be held out
_BLOCK = 2**20  # bytes or characters of a text at a time
_ROWS = 1000  # converted to strings at a time


def read_documents(source: Source, split: str) -> Iterator[Iterable[str]]:
    """Stream the documents of a split for language modeling, each as parts to concatenate, before the next is read."""
    texts = (text for path in source.files[split] for text in _documents(path, source))
    is_empty = True
    for document in filter(None, map(_unless_blank, [_join_lines(texts)] if source.task.rows == "lines" else texts)):
        is_empty = False
        yield document
    if is_empty:
        raise DataError(
            f"the split '{split}' of task '{source.task.name}' is empty",
            where=", ".join(map(shown_path, source.files[split][:3])),
        )


def _join_lines(texts: Iterable[Iterable[str]]) -> Iterator[str]:
    """The single document whose lines the texts are."""
    for text in texts:
        last = ""
        for last in filter(None, text):
            yield last
        if not last.endswith("\n"):
            yield "\n"


def _unless_blank(document: Iterable[str]) -> Iterable[str] | None:
    """The same document, or None if it is nothing but spaces."""
    parts = iter(document)
    start = []
    for part in parts:
        start.append(part)
        if part.strip():
            return itertools.chain(start, parts)
    return None


def chunk_documents(documents: Iterable[Iterable[str]]) -> Iterator[Iterable[str]]:
    """Split few long documents into many short ones, at line ends."""
    for document in documents:
        yield from _by_number(_number_chunks(document))


def _number_chunks(document: Iterable[str]) -> Iterator[tuple[int, str]]:
    """The parts of a document, each with the number of the chunk that it belongs to."""
    number, length, text = 0, 0, ""
    for line, ends in _lines(document):
        text += line
        if not ends:
            yield number, text
            length, text = length + len(text), ""
        elif length + len(text) >= PIECE_CHARACTERS:
            yield number, text
            number, length, text = number + 1, 0, ""
    if text:
        yield number, text


def _lines(parts: Iterable[str]) -> Iterator[tuple[str, bool]]:
    """`splitlines` of the concatenation, streamed: (a line or a part of a long one, whether the line ends with it)."""
    rest = ""
    for part in parts:
        for start in range(0, len(part), _BLOCK):
            # The last line is held back: the next block may belong to it, if only the second half of a line end.
            *lines, rest = (rest + part[start : start + _BLOCK]).splitlines(keepends=True)
            yield from ((line, True) for line in lines)
            if len(rest) > _BLOCK and rest.splitlines() == [rest]:
                yield rest, False
                rest = ""
    if rest:
        yield rest, True


def _by_number(parts: Iterable[tuple[int, str]]) -> Iterator[Iterable[str]]:
    """Numbered parts of texts as texts."""
    for _, text in itertools.groupby(parts, key=itemgetter(0)):
        yield map(itemgetter(1), text)


def _documents(path: Path, source: Source) -> Iterator[Iterable[str]]:
    if path.suffix.lower() in TEXTS:
        yield from map(_strip_newlines, _by_number(_number_texts(path)))
        return
    for table in stream_rows(source, path):
        for batch in table.to_batches(max_chunksize=_ROWS):
            yield from ((text,) for text in batch["text"].to_pylist())


def _number_texts(path: Path) -> Iterator[tuple[int, str]]:
    """The text of a file without its end-of-text marks, each part with the number of marks before it."""
    number, rest = 0, ""
    for block in _decoded(path):
        *ended, rest = (rest + block).split(END_OF_TEXT)
        for text in ended:
            yield number, text
            number += 1
        safe = max(0, len(rest) - len(END_OF_TEXT) + 1)  # what follows may be the beginning of a mark
        yield number, rest[:safe]
        rest = rest[safe:]
    yield number, rest


def _strip_newlines(parts: Iterable[str]) -> Iterator[str]:
    """`strip("\\n")` of the concatenation, streamed."""
    started, newlines = False, 0
    for part in parts:
        part = part if started else part.lstrip("\n")
        text = part.rstrip("\n")
        if text:
            yield "\n" * newlines + text
            started, newlines = True, 0
        newlines += len(part) - len(text)


def _decoded(path: Path) -> Iterator[str]:
    """The text of a file in blocks, with all line ends as "\\n"."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines = io.IncrementalNewlineDecoder(None, translate=True)
    done = 0
    try:
        # Not mapped into memory: what was read of a mapped file would count as the memory of this process.
        with path.open("rb") as file:
            while block := file.read(_BLOCK):
                held_back = len(decoder.getstate()[0])
                yield lines.decode(decoder.decode(block))
                done += len(block)
            held_back = len(decoder.getstate()[0])
            yield lines.decode(decoder.decode(b"", final=True), final=True)
    except OSError as error:
        raise DataError(f"cannot read {shown_path(path)}", why=error.strerror) from error
    except UnicodeDecodeError as error:
        why = f"byte {done - held_back + error.start}: {error.reason}"
        raise DataError(f"{shown_path(path)} is not valid UTF-8", why=why, hint=explain_encoding(path)) from error
