"""The cache: what was made once from data and settings, under a key that names both."""

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


def key_of(facts: Any) -> str:
    return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()[:32]


def made_once(kind: str, facts: Any, make: Callable[[Path], None]) -> Path:
    """The folder for `facts`, filled by `make` if there is none yet. It appears whole or not at all."""
    folder = cache_folder() / kind / key_of(facts)
    if folder.is_dir():
        return folder
    partial = folder.with_name(f"{folder.name}.{os.getpid()}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # in containers, a process that was killed had the same number
    try:
        partial.mkdir(parents=True)
        make(partial)
        (partial / "made-from.json").write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
        try:
            partial.rename(folder)
        except OSError:  # another process was faster, and made the same
            if not folder.is_dir():
                raise
    except OSError as error:
        raise DiskError(
            f"cannot write to the cache: {error.strerror or error}",
            where=str(folder.parent),
            hint="OELM_CACHE=FOLDER chooses another place",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return folder


def file_hash(path: Path) -> str:
    """SHA-256 of a file's content, remembered as long as its size and time of change stay the same."""
    path = path.resolve()
    stat = path.stat()
    note = cache_folder() / "hashes" / key_of([str(path), stat.st_size, stat.st_mtime_ns])
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
        pass  # only slower next time
    return digest
