"""The cache: folders computed once from data and settings, keyed by a hash of both."""

import hashlib
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from oelm.errors import DiskError


def cache_folder() -> Path:
    """`$OELM_CACHE`, or `oelm` in the user's own cache folder."""
    own = os.environ.get("OELM_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(own) if own else Path(base) / "oelm"


def cache_key(facts: Any) -> str:
    """A hash of JSON data."""
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def cached_dir(kind: str, facts: Any, make: Callable[[Path], None]) -> Path:
    """The folder for `facts`, created by `make` unless it exists. It appears complete or not at all."""
    folder = cache_folder() / kind / cache_key(facts)
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # in containers, a killed process may have had the same PID
    try:
        partial.mkdir(parents=True)
        make(partial)
        (partial / "made-from.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        try:
            partial.rename(folder)
        except OSError:  # another process created the same folder first
            if not folder.is_dir():
                raise
    except OSError as error:
        raise DiskError(
            f"cannot write to the cache: {error.strerror or error}",
            where=str(folder.parent),
            hint="set OELM_CACHE=FOLDER to use another folder",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content, cached until its size or modification time changes."""
    path = path.resolve()
    stat = path.stat()
    note = cache_folder() / "hashes" / cache_key([str(path), stat.st_size, stat.st_mtime_ns])
    try:
        return note.read_text(encoding="ascii")
    except (OSError, ValueError):
        pass
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        partial = note.with_name(f"{note.name}.{os.getpid()}")
        partial.write_text(digest, encoding="ascii")
        partial.replace(note)
    except OSError:
        pass  # the hash is computed again next time
    return digest
