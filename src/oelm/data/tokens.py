"""Tokens: a task tokenised once, split into what is trained, selected and reported on, and memory-mapped from then on.

Examples of a classification task are kept in Arrow files, text for language modelling as one long row of tokens.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from oelm.data.cache import key_of, made_once
from oelm.data.reading import Reading
from oelm.data.sources import Source
from oelm.data.tasks import Task
from oelm.data.tokenizer import tokenizer_fingerprint
from oelm.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

Watch = Callable[[str, int, int], None]
"""Told (what, done, of how many) while something takes its time."""

_FORMAT = 1  # of the cache; a change of what is written here needs a new number
_CHUNK = 1000  # texts tokenised at a time


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Tokenised examples with labels. Example `i` is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: NDArray[np.int32]
    types: NDArray[np.int8] | None
    """Which part of a pair a token belongs to, where the tokenizer says so."""
    offsets: NDArray[np.int64]
    labels: NDArray[np.int64]
    rows: NDArray[np.int64]
    """Row of each example in the published split."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


@dataclass(frozen=True, kw_only=True)
class Windows:
    """A long row of tokens in windows of `length`, each with the token that follows it."""

    tokens: NDArray[Any]
    length: int

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.full(len(self), self.length, dtype=np.int64)


Split = Examples | Windows


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A task, ready to be trained on."""

    task: Task
    train: Split
    select: Split
    report: dict[str, Split]
    tokenizer: Any
    facts: dict[str, Any]
    """Sizes, fingerprints of data and tokenizer, how many examples were cut."""


def prepare(
    source: Source,
    *,
    tokenizer: Callable[[Callable[[], Iterable[str]], Any], Any],
    max_length: int,
    select: int | None,
    joiner: str | None = None,
    watch: Watch = lambda what, done, total: None,
) -> Prepared:
    """Tokenise a task, or find it tokenised already.

    `tokenizer` makes one from (texts of the training split, what they are), and may not look at them.
    """
    task = source.task
    files = source.fingerprint()
    _check_apart(files, source)
    data = {"task": task.name, "files": files, "local": source.local, "select": select, "joiner": joiner}
    reading = Reading(source, select)
    chosen = tokenizer(reading.training_texts, data)
    tokens = tokenizer_fingerprint(chosen)
    facts = {"format": _FORMAT, "data": data, "tokenizer": tokens, "max_length": max_length}

    def make(folder: Path) -> None:
        write = _write_examples if task.kind == "classification" else _write_tokens
        write(folder, reading, chosen, max_length=max_length, joiner=joiner, watch=watch)

    folder = made_once("tokens", facts, make)
    try:
        meta = json.loads((folder / "meta.json").read_text(encoding="utf-8"))
        splits = {name: _read(folder, name, task, max_length, meta) for name in meta["splits"]}
    except (OSError, ValueError, LookupError, TypeError) as error:  # Arrow's errors are among them
        why = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise DataError("the tokens in the cache are damaged", why=why, hint=f"rm -r {folder}") from error
    report = {name.removeprefix("report-"): split for name, split in splits.items() if name.startswith("report-")}
    sizes = {name: len(split) for name, split in splits.items()}
    return Prepared(
        task=task,
        train=splits["train"],
        select=splits["select"],
        report=report,
        tokenizer=chosen,
        facts={"data": key_of(data), "tokenizer": tokens, "files": data["files"], "sizes": sizes, "cut": meta["cut"]},
    )


def _check_apart(files: dict[str, list[str]], source: Source) -> None:
    """The same rows may not be trained, selected and reported on."""
    seen: dict[str, str] = {}
    for split, hashes in files.items():
        for number, digest in enumerate(hashes):
            other = seen.setdefault(digest, split)
            if other != split:
                raise DataError(
                    f"the splits '{other}' and '{split}' are the same file",
                    where=str(source.files[split][number]),
                    why="what is selected or trained on cannot be reported on",
                )


def _write_examples(
    folder: Path, reading: Reading, tokenizer: Any, *, max_length: int, joiner: str | None, watch: Watch
) -> None:
    import pyarrow as pa

    splits = reading.tables()
    total = sum(table.num_rows for table in splits.values())
    done, cut = 0, {}
    for name, table in splits.items():
        if table.num_rows == 0:
            raise DataError(f"the split '{name}' of task '{reading.task.name}' is empty")
        parts, cut[name] = [], 0
        for start in range(0, table.num_rows, _CHUNK):
            rows = table.slice(start, _CHUNK)
            encoded, types, long = _encode(tokenizer, rows, max_length, joiner)
            cut[name] += long
            columns = {"tokens": pa.array(encoded, pa.list_(pa.int32()))}
            if types is not None:
                columns["types"] = pa.array(types, pa.list_(pa.int8()))
            parts.append(pa.table({**columns, "label": rows["label"], "row": rows["row"]}))
            done += rows.num_rows
            watch("tokenizing", done, total)
        whole = pa.concat_tables(parts).combine_chunks()
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
            writer.write_table(whole, max_chunksize=whole.num_rows)
    _write_meta(folder, list(splits), cut)


def _encode(tokenizer: Any, rows: pa.Table, max_length: int, joiner: str | None) -> tuple[Any, Any, int]:
    """(tokens, token types if there are any, how many examples were cut)."""
    if "text" in rows.column_names:
        texts: list[Any] = [rows["text"].to_pylist()]
    else:
        texts = [rows["text_a"].to_pylist(), rows["text_b"].to_pylist()]
        if joiner is not None:
            texts = [[a + joiner + b for a, b in zip(*texts, strict=True)]]
        elif tokenizer.num_special_tokens_to_add(pair=True) == 0:
            raise DataError(
                "the tokenizer has no form for pairs: nothing would stand between the two texts",
                where="recipe.data.joiner",
                hint="joiner: ' [SEP] '",
            )
    special = tokenizer.num_special_tokens_to_add(pair=len(texts) == 2)
    if max_length <= special:  # the tokenizer would then not cut at all
        raise DataError(
            f"max_length {max_length} leaves no room for text",
            where="recipe.data.max_length",
            why=f"the tokenizer adds {special} tokens of its own",
        )
    encoded = tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False)
    tokens = encoded["input_ids"]
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.pad_token_id
    tokens = [ids or [end] for ids in tokens]  # an empty text is the end of a text
    types = encoded.get("token_type_ids") if len(texts) == 2 else None
    long = sum(bool(one.overflowing) for one in encoded.encodings)
    return tokens, types, long


def _write_tokens(
    folder: Path, reading: Reading, tokenizer: Any, *, max_length: int, joiner: str | None, watch: Watch
) -> None:
    if tokenizer.eos_token_id is None:
        raise DataError("the tokenizer has no token for the end of a text", hint="another data.tokenizer")
    kind = np.uint16 if len(tokenizer) <= 2**16 else np.uint32
    written: dict[str, int] = {}
    done = 0
    with ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for name, chunk in _chunks(reading.documents()):
            if name not in files:
                files[name] = stack.enter_context((folder / f"{name}.tokens").open("wb"))
            encoded = tokenizer(chunk, add_special_tokens=False, return_attention_mask=False)["input_ids"]
            flat = np.array([token for ids in encoded for token in (*ids, tokenizer.eos_token_id)], dtype=kind)
            files[name].write(flat.tobytes())
            written[name] = written.get(name, 0) + len(flat)
            done += len(chunk)
            watch("tokenizing", done, 0)
    written.setdefault("train", 0)  # every document may be the same as one held out
    for name, number in written.items():
        if number <= max_length:
            raise DataError(
                f"the split '{name}' has {number} tokens: not one window of {max_length}",
                hint="more text, a shorter max_length, or another select",
            )
    _write_meta(folder, list(written), {}, dtype=np.dtype(kind).name)


def _chunks(documents: Iterable[tuple[str, str]]) -> Iterator[tuple[str, list[str]]]:
    """Documents of one split, many at a time."""
    waiting: dict[str, list[str]] = {}
    for name, document in documents:
        chunk = waiting.setdefault(name, [])
        chunk.append(document)
        if len(chunk) == _CHUNK:
            yield name, chunk
            waiting[name] = []
    yield from ((name, chunk) for name, chunk in waiting.items() if chunk)


def _write_meta(folder: Path, splits: list[str], cut: dict[str, int], **more: str) -> None:
    meta = {"splits": splits, "cut": cut, **more}
    (folder / "meta.json").write_text(json.dumps(meta) + "\n", encoding="utf-8")


def _read(folder: Path, name: str, task: Task, max_length: int, meta: dict[str, Any]) -> Split:
    if task.kind == "language-modelling":
        tokens = np.memmap(folder / f"{name}.tokens", dtype=meta["dtype"], mode="r")
        return Windows(tokens=tokens, length=max_length)
    import pyarrow as pa

    table = pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow"))).read_all()
    lists = table["tokens"].chunk(0)
    types = table["types"].chunk(0).values.to_numpy() if "types" in table.column_names else None
    return Examples(
        tokens=lists.values.to_numpy(),
        types=types,
        offsets=lists.offsets.to_numpy().astype(np.int64),
        labels=table["label"].to_numpy(),
        rows=table["row"].to_numpy(),
    )
