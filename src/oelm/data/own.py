"""One's own data: a task with the columns that a study names, and with the files of any data set of the hub."""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatch
from glob import escape
from pathlib import Path, PurePosixPath
from textwrap import shorten
from typing import Any

from oelm.data.cache import cached_dir
from oelm.data.sources import TABLES, TEXTS, is_of_split, names_of_split, plain_name, plain_suffix
from oelm.data.tasks import Hub, Task
from oelm.errors import DataError, StudyError, did_you_mean
from oelm.hub import why_unreachable
from oelm.yaml import parse

SPLITS = ("train", "validation", "test")
_LONGEST_CARD = 400_000  # characters about configurations; YAML takes ten seconds for a million


@dataclass(frozen=True, kw_only=True)
class HubName:
    """A data set of the hub, by name."""

    repo: str
    config: str | None = None
    """A subset, as the data set names it."""
    revision: str | None = None
    """Commit, tag or branch; left out, the main branch."""
    splits: Mapping[Any, str] = field(default_factory=dict)
    """By role: the split as it is named there, or a pattern of files. Left out, those of the usual names."""


def name_columns(task: Task, columns: Mapping[Any, str]) -> Task:
    """The task with these columns: of `text`, or `text_a` and `text_b`, and `label`."""
    if not columns:
        return task
    texts = tuple(columns[name] for name in ("text", "text_a", "text_b") if name in columns)
    return replace(task, columns=texts or task.columns, label=columns.get("label", task.label), only_these_columns=True)


def find_on_hub(task: Task, name: HubName) -> Task:
    """The task with the files of a data set, at the commit that its name had when it was first asked for on this
    machine: what was trained on stays what it was."""
    listing = _listing(name)
    found: dict[str, tuple[str, ...]] = {}
    for role in name.splits or SPLITS:
        files = tuple(map(escape, _files_of(role, name, listing)))
        if files:
            found[role] = files
        elif role in name.splits or role == "train":
            raise _no_files(role, name, listing)
    if task.kind == "language-modeling":  # whose validation documents are held out, and perhaps those of the test
        found.pop("validation", None)
        task = replace(task, test=("test",) if "test" in found else ())
    hub = Hub(repo=name.repo, revision=listing.commit, files={**found}, is_pinned=False)
    return replace(task, hub=hub, path=None)


@dataclass(frozen=True, kw_only=True)
class _Listing:
    """What a data set has at a commit."""

    commit: str
    files: list[str]
    configs: list[Any] | None
    """The part of its card that says which files are which split; None if it cannot be read."""


def _listing(name: HubName) -> _Listing:
    def make(folder: Path) -> None:
        (folder / "listing.json").write_text(json.dumps(asdict(_ask(name))) + "\n", encoding="utf-8")

    folder = cached_dir("hub", {"repo": name.repo, "revision": name.revision}, make)
    return _Listing(**json.loads((folder / "listing.json").read_text(encoding="utf-8")))


def _ask(name: HubName) -> _Listing:
    from huggingface_hub import HfApi, hf_hub_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    where = f"{name.repo}{f' at {name.revision}' if name.revision else ''}"
    hint = "use a local copy: data: {path: FOLDER}"
    if why := why_unreachable():
        raise DataError(f"the data set {name.repo} is not on this machine", where=where, why=why, hint=hint)
    try:
        info = HfApi().dataset_info(name.repo, revision=name.revision)
        files, commit = [one.rfilename for one in info.siblings or ()], str(info.sha)
        card = "README.md" in files and hf_hub_download(name.repo, "README.md", repo_type="dataset", revision=commit)
        configs = read_card(Path(card).read_text(encoding="utf-8", errors="replace")) if card else []
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        what = "revision" if isinstance(error, RevisionNotFoundError) else "data set"
        raise DataError(
            f"the hub has no such {what}", where=where, hint="check its name; a private one needs `hf auth login`"
        ) from error
    except Exception as error:  # a client may raise anything about a network
        why = f"{type(error).__name__}: {shorten(str(error), 200, placeholder=' ...')}"
        raise DataError(f"the data set {name.repo} cannot be fetched", where=where, why=why, hint=hint) from error
    tables = _tables(files)
    if not tables:
        raise _script_or_nothing(name, files)
    return _Listing(commit=commit, files=tables, configs=configs)


def _files_of(role: str, name: HubName, listing: _Listing) -> tuple[str, ...]:
    patterns = _patterns(role, name, listing.configs)
    if patterns is not None:
        return tuple(file for file in listing.files if any(fnmatch(file, pattern) for pattern in patterns))
    split = name.splits.get(role, role)
    return tuple(file for file in listing.files if _has_name(file, split, name.config))


def _tables(files: Any) -> list[str]:
    found = sorted(file for file in files if plain_suffix(PurePosixPath(file)) in (*TABLES, *TEXTS) and _is_data(file))
    return [file for file in found if (plain := _plain(file)) == file or plain not in found]


def _plain(file: str) -> str:
    return str(PurePosixPath(file).with_name(plain_name(PurePosixPath(file))))


def _is_data(file: str) -> bool:
    name = PurePosixPath(file).name.lower()
    return (
        not name.startswith(("readme", "license", "dataset_info", "dataset_dict", "state.json", "."))
        and "dataset_infos" not in name
    )


def read_card(text: str) -> list[Any] | None:
    """What a card says of its configurations; nothing where it does not, None where that cannot be read."""
    front = text.split("---\n", 2)[1:2] if text.startswith("---\n") else []
    block = re.search(r"^configs:.*\n?(?:[ \-].*\n?|\n)*", front[0], re.M) if front else None
    if block is None:
        return []
    try:
        configs = parse(block[0], where="the card")["configs"] if len(block[0]) <= _LONGEST_CARD else None
    except StudyError:
        return None
    return [one for one in configs if isinstance(one, dict)] if isinstance(configs, list) else None


def _patterns(role: str, name: HubName, configs: Sequence[Any] | None) -> list[str] | None:
    """The files of a split by pattern, as the study says, or as the card does; None if neither says anything."""
    split = name.splits.get(role, role)
    if "*" in split or plain_suffix(PurePosixPath(split)) in TABLES:
        return [split]
    if configs is None:
        raise DataError(
            f"the card of {name.repo} says which files are which split, and cannot be read",
            hint="name them: data: {splits: {train: 'data/train-*.parquet', ...}}",
        )
    if not configs:
        return None
    names = [str(one.get("config_name")) for one in configs]
    wanted = name.config or (names[0] if len(names) == 1 else "default")
    chosen = next((one for one in configs if str(one.get("config_name")) == wanted), None)
    if chosen is None:
        guess = did_you_mean(name.config, names) if name.config else ""
        has = f"no configuration '{name.config}'{guess}" if name.config else f"{len(names)} configurations"
        raise DataError(
            f"the data set {name.repo} has {has}",
            where="recipe.data.config",
            hint=f"config: one of {shorten(', '.join(names), 200, placeholder=' ...')}",
        )
    return _card_patterns(chosen.get("data_files"), split)


def _card_patterns(files: Any, split: str) -> list[str] | None:
    """None of a card that does not say which files a configuration has; else its answer is all there is: files of the
    same names may be those of other configurations."""
    by_split: dict[str, list[str]] = {}
    for one in files if isinstance(files, list) else [files]:
        row = one if isinstance(one, dict) else {"split": "train", "path": one}
        if row.get("split") and row.get("path"):
            paths = row["path"] if isinstance(row["path"], list) else [row["path"]]
            by_split.setdefault(str(row["split"]).lower(), []).extend(map(str, paths))
    if not by_split:
        return None
    return next((by_split[known] for known in (split.lower(), *names_of_split(split)) if known in by_split), [])


def _has_name(file: str, split: str, config: str | None) -> bool:
    """`train.csv`, `data/train-00000-of-00001.parquet`, `train/0000.parquet`; of a configuration, in its folder."""
    path = PurePosixPath(file)
    folders = path.parts[:-1]
    if config is not None and config not in folders:
        return False
    return is_of_split(Path(path.name), split) or is_of_split(Path(folders[-1] if folders else ""), split)


def _no_files(role: str, name: HubName, listing: _Listing) -> DataError:
    return DataError(
        f"the data set {name.repo} has no files of the split '{name.splits.get(role, role)}'",
        where=f"{name.repo} at commit {listing.commit}{f', configuration {name.config}' if name.config else ''}",
        why=f"its files are {shorten(', '.join(listing.files), 300, placeholder=' ...')}",
        hint="name them: data: {splits: {train: NAME or PATTERN, ...}}, such as {train: 'data/train-*.parquet'}",
    )


def _script_or_nothing(name: HubName, files: Sequence[str]) -> DataError:
    scripts = [file for file in files if file.endswith(".py")]
    return DataError(
        f"the data set {name.repo} has no data files" + (f", only a script ({scripts[0]})" if scripts else ""),
        where=name.repo,
        why="a script would have to be run, and oelm runs no code of data sets" if scripts else None,
        hint="revision: refs/convert/parquet, where the hub keeps a copy of many of them as files; or a local copy",
    )
