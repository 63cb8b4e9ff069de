"""Documents: read in parts they are the same, and take no more memory, however long they are."""

import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from oelm.data import documents
from oelm.data.documents import END_OF_TEXT, chunk_documents, read_documents
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.errors import DataError

TEXT = task_named("text")
PIECES = [
    "a",
    "b ",
    "\n",
    "\r\n",
    "\r",
    "\u2028",
    "\x0c",
    "\x85",
    " ",
    "é",
    "中文",
    "\ufeff",
    "<|end",
    END_OF_TEXT,
]


def texts_of(source):
    return ["".join(parts) for parts in read_documents(source, "train")]


def documents_at_once(content):
    texts = content.decode().replace("\r\n", "\n").replace("\r", "\n").split(END_OF_TEXT)
    return [text for text in (text.strip("\n") for text in texts) if text.strip()]


def chunks_at_once(texts):
    chunks = []
    for document in texts:
        chunks.append("")
        for line in document.splitlines(keepends=True):
            chunks[-1] += line
            if len(chunks[-1]) >= documents.PIECE_CHARACTERS:
                chunks.append("")
    return [chunk for chunk in chunks if chunk]


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.sampled_from(PIECES), max_size=60), st.integers(1, 9), st.integers(1, 12))
def test_in_parts_the_documents_and_chunks_are_the_same(tmp_path, monkeypatch, pieces, block, chunk):
    monkeypatch.setattr(documents, "_BLOCK", block)
    monkeypatch.setattr(documents, "PIECE_CHARACTERS", chunk)
    file = tmp_path / "text.txt"
    file.write_bytes("".join(pieces).encode())
    source = find_source(TEXT, str(file))
    expected = documents_at_once(file.read_bytes())
    if not expected:
        with pytest.raises(DataError, match="is empty"):
            texts_of(source)
        return
    assert texts_of(source) == expected
    chunks = ["".join(parts) for parts in chunk_documents(read_documents(source, "train"))]
    assert chunks == chunks_at_once(expected)
    assert len(list(read_documents(source, "train"))) == len(expected), "also if nobody reads them"


@pytest.mark.parametrize("block", [1, 2, 3, 4, 7, 100])
def test_the_place_of_a_bad_byte_does_not_depend_on_the_parts(tmp_path, monkeypatch, block):
    monkeypatch.setattr(documents, "_BLOCK", block)
    file = tmp_path / "text.txt"
    for content, place in {"aé€".encode() + b"\xff": 6, b"ab\r\n\xe2\x82x": 4, b"abc\xe2\x82": 3}.items():
        file.write_bytes(content)
        with pytest.raises(DataError, match=f"byte {place}:"):
            texts_of(find_source(TEXT, str(file)))


PEAK = """
import sys
from pathlib import Path
from oelm.data.chunking import TextChunker
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import task_named
reader = SplitReader(find_source(task_named("text"), sys.argv[1]), 4)
chunker = TextChunker()
assert sum(len(chunk) for _, document in reader.documents() for chunk, _ in chunker.chunks(document)) > 10**6
status = Path("/proc/self/status").read_text().splitlines()
print(next(line.split()[1] for line in status if line.startswith("VmHWM")))
"""


@pytest.mark.slow
@pytest.mark.parametrize(("number", "end"), [(1, "\n"), (25, " ")])
def test_the_memory_for_a_text_does_not_grow_with_it(tmp_path, number, end):
    """One text of many lines, and some long documents of one line each."""

    def peak(size):
        file = tmp_path / "text.txt"
        lines = range(size // number // 40)
        with file.open("w") as out:
            for document in range(number):  # in words of its own: one that is like another is not trained on
                out.writelines(f"some words, and more of them: {document}x{line}{end}" for line in lines)
                out.write(END_OF_TEXT)
        return int(subprocess.run([sys.executable, "-c", PEAK, file], check=True, stdout=subprocess.PIPE).stdout) / 1024

    assert peak(30_000_000) - peak(3_000_000) < 20, "MB"
