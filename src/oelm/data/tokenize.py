"""Tokenize a task once, by role (train, validation, test), and memory-map it from then on; load or train a tokenizer.

Examples are stored as Arrow files, text for language modeling as one array of tokens.
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from textwrap import shorten
from typing import IO, Any, Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from oelm.data.cache import MessageCallback, cache_key, cached_dir
from oelm.data.chunking import TextChunker
from oelm.data.documents import END_OF_TEXT
from oelm.data.kinds.kind import Encoded, check_scorer
from oelm.data.kinds.table import TASK_KINDS
from oelm.data.limit import LESS, Limit
from oelm.data.parts import Chunks, PartCache, split_batches, split_parts
from oelm.data.sources import Source, shown_path
from oelm.data.splits import Division, SplitReader
from oelm.data.tasks import SHIPPED_TASKS, Task
from oelm.errors import DataError
from oelm.facts import Overlap, TaskFacts
from oelm.hub import why_not_fetched

PrepareCallback = Callable[[str, int, int], None]
"""Called with (description, done, total) during a long computation; `total` is 0 where it is unknown."""

_FORMAT = 3  # of the cache; a change of what is written here needs a new number
# Of a task that is registered: what decides about its rows, as its name may stand for something else tomorrow.
_DEFINED = ("kind", "columns", "label", "labels", "validation", "test", "held_out", "has_phrases", "rows")
_BATCH_TEXTS = 1000  # tokenized at a time
_BLOCK = 2**20  # tokens looked at together
_UNKNOWN = "<|unknown|>"  # a word that no training text has
_STRETCHES = 50  # at most, of a text without documents


@dataclass(frozen=True, kw_only=True)
class Examples:
    """Tokenized examples with labels. Example `i` is `tokens[offsets[i]:offsets[i + 1]]`."""

    tokens: NDArray[np.int32]
    types: NDArray[np.int8] | None
    """Segment of a pair that each token belongs to (`token_type_ids`), if the tokenizer has them."""
    offsets: NDArray[np.int64]
    labels: NDArray[np.int64] | NDArray[np.float64]
    """Indices of classes, or the numbers of a regression."""
    rows: NDArray[np.int64]
    """Row of each example in the published split."""

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.diff(self.offsets)


@dataclass(frozen=True, kw_only=True)
class Windows:
    """An array of tokens in windows of `length`, each with the token that follows it."""

    tokens: NDArray[Any]
    length: int
    end: int
    """The token that ends a document."""

    def __len__(self) -> int:
        return (len(self.tokens) - 1) // self.length

    @cached_property
    def lengths(self) -> NDArray[np.int64]:
        return np.full(len(self), self.length, dtype=np.int64)

    @cached_property
    def document_ends(self) -> NDArray[np.int64]:
        """Where the last predicted token of every document is; the first token of all is not predicted.

        A text without documents is cut into stretches of whole windows: few, so that each is long and neighbors share
        little ("batch means").
        """
        last = len(self) * self.length
        starts = range(1, last, _BLOCK)  # in blocks, so that the tokens are never all in memory
        ends = [start + np.flatnonzero(self.tokens[start : min(start + _BLOCK, last)] == self.end) for start in starts]
        if not sum(map(len, ends)):
            stretch = -(-len(self) // _STRETCHES) * self.length
            return np.minimum(np.arange(stretch, last + stretch, stretch), last)
        return np.concatenate([*ends, [last]])


Split = Examples | Windows | Encoded


@dataclass(frozen=True, kw_only=True)
class TokenizedTask:
    """A task, ready for training."""

    task: Task
    train: Split
    validation: Split
    test: dict[str, Split]
    """By published split."""
    tokenizer: Any
    facts: TaskFacts


def tokenize_task(
    source: Source,
    *,
    tokenizer: Callable[[Callable[[], Iterable[str]], Any], Any],
    max_length: int,
    validation: int | None,
    pair_separator: str | None = None,
    overlap: Literal["drop", "keep"] = "drop",
    group: str | None = None,
    limit: Limit | None = None,
    progress: PrepareCallback = lambda what, done, total: None,
    log: MessageCallback = lambda text: None,
) -> TokenizedTask:
    """Tokenize a task, or load it from the cache.

    `tokenizer` returns one, given (texts of the training split, JSON data that identifies them); it may ignore both.
    """
    reader = SplitReader(source, validation, overlap=overlap, group=group, limit=limit, progress=progress)
    source = reader.source  # with the labels that are found in its rows
    task = source.task
    if task.kind in TASK_KINDS:
        check_scorer(TASK_KINDS[task.kind])
    files = source.fingerprint(log=log)
    _check_disjoint(files, source)
    data = {
        "task": task.name,
        "files": files,
        "local": source.local,
        "validation": validation,
        "pair_separator": pair_separator,
        "overlap": overlap,
        "group": group,
        **({} if limit is None else {"limit": {limit.unit: limit.number}}),
        **({"columns": [*task.columns, task.label]} if task.only_these_columns else {}),
        **({"max_target": task.max_target} if task.kind == "seq2seq" else {}),
        **({} if task.name in SHIPPED_TASKS else {"defined": {name: getattr(task, name) for name in _DEFINED}}),
    }

    def check_unchanged() -> None:
        if source.fingerprint(log=log) != files:
            raise DataError("the data changed while they were read", hint="rerun when they are complete")

    def training_texts() -> Iterator[str]:
        yield from reader.training_texts()
        check_unchanged()

    part = reader.one_text_in() if limit is None else 1  # of what a limit leaves, the limit says it
    chosen = tokenizer(training_texts, data if part == 1 else {**data, "one_text_in": part})
    fingerprint = tokenizer_fingerprint(chosen)
    key = {"format": _FORMAT, "data": data, "tokenizer": fingerprint, "max_length": max_length}

    def make(folder: Path) -> None:
        if task.kind == "language-modeling":
            _write_tokens(folder, reader, chosen, parts, max_length=max_length, progress=progress)
        else:
            _write_examples(
                folder, reader, chosen, max_length=max_length, pair_separator=pair_separator, progress=progress
            )
        check_unchanged()
        for line in _describe(reader.division):
            log(line)

    parts = PartCache(fingerprint, _token_dtype(chosen), log=log)
    folder = cached_dir("tokens", key, make, log=log)
    parts.clear()
    try:
        meta = _Meta(**json.loads((folder / "meta.json").read_text(encoding="utf-8")))
        task = replace(task, labels=tuple(meta.labels or task.labels))
        splits = {name: _read(folder, name, task, max_length, meta, chosen) for name in meta.splits}
    except OSError as error:  # whatever is there was verified a moment ago
        raise DataError("cannot read the cached tokens", where=str(folder), why=error.strerror or str(error)) from error
    test = {name.removeprefix("test-"): split for name, split in splits.items() if name.startswith("test-")}
    sizes = {name: split.num_examples if isinstance(split, Encoded) else len(split) for name, split in splits.items()}
    return TokenizedTask(
        task=task,
        train=splits["train"],
        validation=splits["validation"],
        test=test,
        tokenizer=chosen,
        facts=TaskFacts(
            data=cache_key(data),
            tokenizer=fingerprint,
            files=files,
            sizes=sizes,
            cut=meta.cut,
            overlap=tuple(Overlap(**one) for one in meta.overlap),
            labels=task.labels if task.has_found_labels else None,
            hub=task.hub.commit if task.hub is not None and not task.hub.is_pinned else None,
        ),
    )


def _check_disjoint(files: dict[str, tuple[str, ...]], source: Source) -> None:
    """Refuse a file that serves two roles."""
    seen: dict[str, str] = {}
    for split, hashes in files.items():
        for number, digest in enumerate(hashes):
            other = seen.setdefault(digest, split)
            if other != split:
                raise DataError(
                    f"the splits '{other}' and '{split}' are the same file",
                    where=shown_path(source.files[split][number]),
                    why="a model cannot be tested on data it was trained or selected on",
                )


def _describe(division: Division) -> Iterator[str]:
    """What the splits have in common, in a line each."""
    for one in division.overlap:
        if one.exact or one.near or one.dropped:
            does = f"; {one.dropped:,} training texts are dropped for it" if one.dropped else ""
            kept = " (recipe.data.overlap: keep)" if one.other == "train" and not one.dropped else ""
            what = f"{one.exact:,} of {one.texts:,} texts of {one.split} are also in {one.other}, {one.near:,} nearly"
            yield f"{what}{does}{kept}"


def _write_examples(
    folder: Path,
    reader: SplitReader,
    tokenizer: Any,
    *,
    max_length: int,
    pair_separator: str | None,
    progress: PrepareCallback,
) -> None:
    splits, task, kind = reader.tables(), reader.task, TASK_KINDS.get(reader.task.kind)
    labels = reader.find_labels()
    total = sum(table.num_rows for table in splits.values())
    done, cut = 0, {}
    for name, table in splits.items():
        if table.num_rows == 0:
            raise DataError(f"the split '{name}' of task '{task.name}' is empty")
        parts, cut[name] = [], 0
        for start in range(0, table.num_rows, _BATCH_TEXTS):
            rows = table.slice(start, _BATCH_TEXTS)
            if kind is not None:
                _check_room(tokenizer, max_length)
                where = f"the split '{name}'"
                encoded_rows = kind.encode(
                    tokenizer, rows, replace(task, labels=labels), max_length=max_length, where=where
                )
                cut[name] += sum(encoded_rows["cut"].to_pylist())
                parts.append(encoded_rows)
            else:
                encoded, types, truncated = _encode(tokenizer, rows, max_length, pair_separator)
                cut[name] += truncated
                columns = {"tokens": pa.array(encoded, pa.list_(pa.int32()))}
                if types is not None:
                    columns["types"] = pa.array(types, pa.list_(pa.int8()))
                parts.append(pa.table({**columns, "label": rows["label"], "row": rows["row"]}))
            done += rows.num_rows
            progress("tokenizing", done, total)
        if cut[name] and task.synthetic:
            raise DataError(
                f"max_length {max_length} cuts examples of task '{task.name}', which end with what they ask for",
                where="recipe.data.max_length",
                hint="a longer one, and tokenizer: {train: words}",
            )
        combined = pa.concat_tables(parts).combine_chunks()
        with pa.OSFile(str(folder / f"{name}.arrow"), "wb") as sink, pa.ipc.new_file(sink, combined.schema) as writer:
            writer.write_table(combined, max_chunksize=combined.num_rows)
    found = None if labels == task.labels else list(labels)
    _write_meta(folder, _Meta(splits=list(splits), cut=cut, overlap=reader.division.overlap, labels=found))


def _encode(tokenizer: Any, rows: pa.Table, max_length: int, pair_separator: str | None) -> tuple[Any, Any, int]:
    """(tokens, token types if any, number of truncated examples)."""
    if "text" in rows.column_names:
        texts: list[Any] = [rows["text"].to_pylist()]
    else:
        texts = [rows["text_a"].to_pylist(), rows["text_b"].to_pylist()]
        if pair_separator is not None:
            texts = [[a + pair_separator + b for a, b in zip(*texts, strict=True)]]
        elif tokenizer.num_special_tokens_to_add(pair=True) == 0:
            raise DataError(
                "the tokenizer does not support pairs: nothing would separate the two texts",
                where="recipe.data.pair_separator",
                hint="pair_separator: ' [SEP] '",
            )
    _check_room(tokenizer, max_length, pair=len(texts) == 2)
    encoded = tokenizer(*texts, truncation=True, max_length=max_length, return_attention_mask=False)
    tokens = encoded["input_ids"]
    end = tokenizer.eos_token_id if tokenizer.eos_token_id is not None else tokenizer.pad_token_id
    tokens = [ids or [end] for ids in tokens]  # an empty text becomes the end-of-text token
    types = encoded.get("token_type_ids") if len(texts) == 2 else None
    truncated = sum(bool(one.overflowing) for one in encoded.encodings)
    return tokens, types, truncated


def _check_room(tokenizer: Any, max_length: int, *, pair: bool = False) -> None:
    special = tokenizer.num_special_tokens_to_add(pair=pair)
    if max_length <= special:  # the tokenizer would then not truncate at all
        raise DataError(
            f"max_length {max_length} leaves no room for text",
            where="recipe.data.max_length",
            why=f"the tokenizer adds {special} special tokens",
        )


def _write_tokens(
    folder: Path,
    reader: SplitReader,
    tokenizer: Any,
    cache: PartCache,
    *,
    max_length: int,
    progress: PrepareCallback,
) -> None:
    if tokenizer.eos_token_id is None:
        raise DataError(
            "the tokenizer has no end-of-text token",
            where="recipe.data.tokenizer",
            hint="a decoder's tokenizer; with a model from scratch, data.tokenizer: {train: bpe, vocab: 8192}",
        )
    dtype = _token_dtype(tokenizer)
    written: dict[str, int] = {}
    done, most = 0, {"train": reader.limit.tokens} if reader.limit is not None and reader.limit.tokens else {}
    with ExitStack() as stack:
        files: dict[str, IO[bytes]] = {}
        for name, chunks, is_full in split_parts(reader.documents(), TextChunker(tokenizer)):
            if name not in files:
                files[name] = stack.enter_context((folder / f"{name}.tokens").open("wb"))
            left = most[name] - written.get(name, 0) if name in most else None
            if left != 0:
                tokenize = partial(_tokens, tokenizer, dtype=dtype, progress=progress, done=done)
                flat = (cache.tokens(chunks, tokenize) if is_full else tokenize(chunks))[:left]
                files[name].write(flat.tobytes())
                written[name] = written.get(name, 0) + len(flat)
            done += sum(last for _, last in chunks)
            progress("tokenizing", done, 0)
    written.setdefault("train", 0)  # every document may equal a held-out one
    if written["train"] < most.get("train", 0):
        raise DataError(f"there are only {written['train']:,} training tokens", where="recipe.data.limit", hint=LESS)
    for name, number in written.items():
        if number <= max_length:
            raise DataError(
                f"the split '{name}' has {number} tokens, fewer than one window of {max_length}",
                hint="use more text, a shorter max_length, or another validation",
            )
    overlap = reader.division.overlap
    _write_meta(folder, _Meta(splits=list(written), cut={}, overlap=overlap, dtype=np.dtype(dtype).name))


def _token_dtype(tokenizer: Any) -> type[np.unsignedinteger[Any]]:
    return np.uint16 if len(tokenizer) <= 2**16 else np.uint32


def _tokens(
    tokenizer: Any, chunks: Chunks, *, dtype: type[np.unsignedinteger[Any]], progress: PrepareCallback, done: int
) -> NDArray[Any]:
    """The tokens of chunks, with the end-of-text token after the last chunk of every document. Before them, `done`
    documents were tokenized."""
    # What a call of the tokenizer does, but for the place of every token in its text: that takes a fifth of the time.
    backend = tokenizer.backend_tokenizer
    backend.no_truncation()
    backend.no_padding()
    backend.encode_special_tokens = tokenizer.split_special_tokens
    end = np.array([tokenizer.eos_token_id], dtype=dtype)
    parts = []
    for batch in split_batches(chunks):  # which has as many threads as there are cores
        encoded = backend.encode_batch_fast([text for text, _ in batch], add_special_tokens=False)
        for one, (_, last) in zip(encoded, batch, strict=True):
            parts += [np.array(one.ids, dtype=dtype), end] if last else [np.array(one.ids, dtype=dtype)]
            done += last
        progress("tokenizing", done, 0)
    return np.concatenate(parts)


@dataclass(frozen=True, kw_only=True)
class _Meta:
    """The content of `meta.json` beside the tokens."""

    splits: list[str]
    cut: dict[str, int]
    overlap: tuple[Any, ...]
    """Each an `Overlap`, read as its fields."""
    dtype: str | None = None
    """Of the tokens of text; examples have their own in Arrow."""
    labels: list[str] | None = None
    """Those that were found, where the task does not say them."""


def _write_meta(folder: Path, meta: _Meta) -> None:
    content = {name: value for name, value in asdict(meta).items() if value is not None}
    (folder / "meta.json").write_text(json.dumps(content) + "\n", encoding="utf-8")


def _read(folder: Path, name: str, task: Task, max_length: int, meta: _Meta, tokenizer: Any) -> Split:
    if task.kind == "language-modeling":
        assert meta.dtype is not None
        tokens = np.memmap(folder / f"{name}.tokens", dtype=meta.dtype, mode="r")
        return Windows(tokens=tokens, length=max_length, end=tokenizer.eos_token_id)
    table = pa.ipc.open_file(pa.memory_map(str(folder / f"{name}.arrow"))).read_all()
    if task.kind in TASK_KINDS:
        return TASK_KINDS[task.kind].load(table, task=task, tokenizer=tokenizer)
    lists = table["tokens"].chunk(0)
    types = table["types"].chunk(0).values.to_numpy() if "types" in table.column_names else None
    return Examples(
        tokens=lists.values.to_numpy(),
        types=types,
        offsets=lists.offsets.to_numpy().astype(np.int64),
        labels=table["label"].to_numpy(),
        rows=table["row"].to_numpy(),
    )


def load_tokenizer(name: str | Path, *, revision: str | None = None) -> Any:
    """A fast tokenizer from a folder or hub name, with a padding token."""
    from transformers import AutoTokenizer

    if not Path(name).exists() and str(name).startswith((".", "/", "~")):
        raise DataError(f"tokenizer folder {name} does not exist")
    hint = "data.tokenizer: {name: FOLDER}, or {train: bpe, vocab: 8192}"
    if why := why_not_fetched(name):
        raise DataError(f"cannot load a tokenizer from {name}", why=why, hint=hint)
    options = {"revision": revision} if revision else {}
    try:
        tokenizer = AutoTokenizer.from_pretrained(str(name), trust_remote_code=False, **options)
    except Exception as error:  # a library may raise anything about a folder
        why = f"{type(error).__name__}: {shorten(str(error), 200, placeholder=' ...')}"
        raise DataError(f"cannot load a tokenizer from {name}", why=why, hint=hint) from error
    if len(tokenizer.get_vocab().keys() - set(tokenizer.all_special_tokens)) < 2:
        raise DataError(
            f"there is no tokenizer in {name}",
            why="transformers makes one of its configuration then, whose every word is unknown",
            hint="a folder with tokenizer.json; data.tokenizer: {name: FOLDER}, or {train: bpe, vocab: 8192}",
        )
    if not tokenizer.is_fast:
        raise DataError(f"the tokenizer of {name} is not a fast tokenizer", hint="use a folder with tokenizer.json")
    if tokenizer.pad_token_id is None:
        if tokenizer.eos_token_id is None:
            raise DataError(f"the tokenizer of {name} has neither a padding nor an end-of-text token")
        tokenizer.pad_token = tokenizer.eos_token  # padding is masked, so any token works
    return tokenizer


def train_tokenizer(
    texts: Callable[[], Iterable[str]],
    *,
    kind: Literal["bpe", "words"] = "bpe",
    vocab: int,
    made_from: Any,
    log: MessageCallback = lambda text: None,
) -> Any:
    """A byte-level BPE, or a vocabulary of words, trained on `texts`; cached by `made_from`, JSON data that identifies
    them."""

    def make(folder: Path) -> None:
        tokenizer, trainer = _untrained(kind, vocab)
        tokenizer.train_from_iterator(texts(), trainer)
        tokenizer.save(str(folder / "tokenizer.json"))

    folder = cached_dir("tokenizers", {kind: vocab, "from": made_from}, make, log=log)
    from transformers import PreTrainedTokenizerFast

    unknown = {"unk_token": _UNKNOWN} if kind == "words" else {}
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_file=str(folder / "tokenizer.json"), eos_token=END_OF_TEXT, pad_token=END_OF_TEXT, **unknown
    )


def _untrained(kind: Literal["bpe", "words"], vocab: int) -> tuple[Any, Any]:
    """(tokenizer, what trains it)."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if kind == "words":
        tokenizer = Tokenizer(models.WordLevel(unk_token=_UNKNOWN))
        tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        special = [END_OF_TEXT, _UNKNOWN]
        return tokenizer, trainers.WordLevelTrainer(vocab_size=vocab, special_tokens=special, show_progress=False)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer, trainers.BpeTrainer(
        vocab_size=vocab,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )


def tokenizer_fingerprint(tokenizer: Any) -> str:
    """SHA-256 of everything that determines the tokens of a text."""
    return _fingerprint(tokenizer, tokenizer.backend_tokenizer.to_str())


def unbounded_fingerprint(tokenizer: Any) -> str:
    """The same without truncation and padding, which tokenizing sets and a model is saved without."""
    content = json.loads(tokenizer.backend_tokenizer.to_str()) | {"truncation": None, "padding": None}
    return _fingerprint(tokenizer, json.dumps(content))


def _fingerprint(tokenizer: Any, backend: str) -> str:
    text = backend + repr(sorted(tokenizer.special_tokens_map.items()))
    return hashlib.sha256(text.encode()).hexdigest()
