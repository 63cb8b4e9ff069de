"""The cache: folders computed once from data and settings, keyed by a hash of both. What is damaged is made again."""

import errno
import hashlib
import json
import os
import shutil
import stat
import uuid
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from oelm.errors import DiskError
from oelm.sync import sync

MessageCallback = Callable[[str], None]
"""Called with a line for the user."""

_MANIFEST = "manifest.json"
_TRIES = 4  # another process may find, remove and make the same folder
_verified: dict[Path, object] = {}
"""What the files of a folder looked like when they were last hashed in this process."""


def cache_folder() -> Path:
    """`$OELM_CACHE`, or `oelm` in the user's own cache folder."""
    own = os.environ.get("OELM_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "oelm"


def cache_key(facts: Any) -> str:
    """A hash of JSON data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def cached_dir(
    kind: str, facts: Any, make: Callable[[Path], None], *, log: MessageCallback = lambda text: None
) -> Path:
    """The folder for `facts`, created by `make` unless it exists. It appears complete or not at all.

    Nothing in it is believed without its hash. A damaged folder is made again, and `log` hears of it.
    """
    folder = cache_folder() / kind / cache_key(facts)
    problem: str | None = None
    try:
        for left in reversed(range(_TRIES)):
            found = _number_of(folder)
            problem = "it is gone" if found is None else _problem_of(folder)
            if problem is None:
                return folder
            if left == 0:
                break
            if found is not None:
                log(f"{folder} is damaged: {problem}; it is made again")
                _remove(folder, found)
            _make(folder, facts, make)
    except OSError as error:
        raise DiskError(
            f"cannot write to the cache: {error.strerror or error}",
            where=str(folder.parent),
            hint="set OELM_CACHE=FOLDER to use another folder",
        ) from error
    raise DiskError(
        "the cache does not keep what is written to it",
        where=str(folder),
        why=problem,
        hint="set OELM_CACHE=FOLDER to use another disk",
    )


def file_hash(path: Path, *, log: MessageCallback = lambda text: None) -> str:
    """SHA-256 of a file's content, cached until its size or modification time changes."""
    path = path.resolve()
    facts = [str(path), path.stat().st_size, path.stat().st_mtime_ns]
    note = cache_folder() / "hashes" / f"{cache_key(facts)}.json"
    found = None
    with suppress(OSError):
        found = _number_of(note)
    if found is not None:
        try:
            return str(_read_sealed(note, cache_key(facts))["sha256"])
        except (OSError, ValueError) as error:
            log(f"the hash of {path} in the cache is damaged: {_reason(error)}; the file is hashed again")
    digest = _sha256(path)
    with suppress(OSError):  # the hash is computed again next time
        if found is not None:
            _remove(note, found)
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f"{note.name}.{uuid.uuid4().hex}.partial")
        _write_sealed(partial, {"made_from": facts, "sha256": digest})
        partial.replace(note)
    return digest


def _problem_of(folder: Path) -> str | None:
    """Why the content of a folder is not what was written there; None if it is."""
    try:
        if not stat.S_ISDIR(folder.lstat().st_mode):
            return "it is not a folder"
        expected = _read_sealed(folder / _MANIFEST, folder.name)["files"]
        with os.scandir(folder) as entries:
            found = {entry.name: entry for entry in entries if entry.name != _MANIFEST}
        for name in sorted(found.keys() ^ expected.keys()):
            return f"{name!r} does not belong there" if name in found else f"{name} is missing"
        stats = {name: entry.stat(follow_symlinks=False) for name, entry in found.items()}
        for name, (size, _) in expected.items():
            if not stat.S_ISREG(stats[name].st_mode):
                return f"{name} is not a file"
            if stats[name].st_size != size:
                return f"{name} has {stats[name].st_size:,} bytes instead of {size:,}"
        # The time of the last change of anything is set by the system alone, also where someone sets the other times.
        seen = {name: (one.st_ino, one.st_mtime_ns, one.st_ctime_ns) for name, one in stats.items()}
        if _verified.get(folder) != seen:
            for name, (_, digest) in expected.items():
                if _sha256(folder / name) != digest:
                    return f"the hash of {name} is not the one that was written"
            _verified[folder] = seen
    except (OSError, ValueError) as error:
        return _reason(error)
    return None


def _make(folder: Path, facts: Any, make: Callable[[Path], None]) -> None:
    partial = folder.with_name(f"{folder.name}.{uuid.uuid4().hex}.partial")
    try:
        partial.mkdir(parents=True)
        make(partial)
        files = {}
        for path in sorted(partial.iterdir()):
            sync(path)
            files[path.name] = (path.stat().st_size, _sha256(path))
        _write_sealed(partial / _MANIFEST, {"made_from": facts, "files": files})
        sync(partial)
        try:
            partial.rename(folder)
        except OSError:  # another process created the same folder first
            if not folder.is_dir():
                raise
        sync(folder.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _number_of(path: Path) -> int | None:
    """The inode of what is at this path, whatever it is."""
    try:
        return path.lstat().st_ino
    except FileNotFoundError:
        return None


def _remove(path: Path, number: int) -> None:
    """Remove what was found to be damaged, at once for all who look; not what another process has put there since."""
    aside = path.with_name(f"{path.name}.{uuid.uuid4().hex}.damaged")
    try:
        path.rename(aside)
    except FileNotFoundError:  # another process was faster
        return
    if _number_of(aside) != number:
        with suppress(OSError):  # there is a third one already
            aside.rename(path)
            return
    if aside.is_dir() and not aside.is_symlink():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)


def _write_sealed(path: Path, content: dict[str, Any]) -> None:
    """JSON with its own checksum, synced."""
    path.write_text(json.dumps({"checksum": cache_key(content), **content}, indent=2) + "\n", encoding="utf-8")
    sync(path)


def _read_sealed(path: Path, key: str) -> dict[str, Any]:
    """What `_write_sealed` wrote, made from the facts with this key; anything else is an OSError or a ValueError."""
    if not stat.S_ISREG(path.lstat().st_mode):  # before it is opened: nobody may ever write to a named pipe
        raise OSError(errno.EINVAL, "not a file", str(path))
    try:
        content = json.loads(path.read_bytes())
        if content.pop("checksum") == cache_key(content) and cache_key(content["made_from"]) == key:
            return dict(content)
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        pass  # other JSON, or none
    raise ValueError(f"{path.name} is not what was written")


def _reason(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"{Path(error.filename).name if error.filename else 'a file'}: {error.strerror}"
    return str(error)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
