"""Store: the folder of a cell, what lies where in it, and how files get there."""

import errno
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from oelm.errors import CellError, DiskError

Status = Literal["done", "running", "stopped", "diverged", "audit-failed", "failed", "pending"]
FINISHED = ("done", "diverged", "audit-failed")
"""Never run again. A cell that failed is tried again by the next command."""

RECORD, CELL_SPEC, STEPS, PREDICTIONS = "record.json", "cell.json", "steps.jsonl", "predictions.parquet"
STUDY = "study.json"  # in the folder of the study
RUNS = Path("runs")
"""Where cells are kept, unless another place is named."""
CHECKPOINTS, MODEL, LOG = "checkpoints", "model", "log.txt"
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


def find_cell_folders(runs: Path) -> list[Path]:
    """All cells at or below a folder, in the order of their names."""
    return sorted(path.parent for path in runs.rglob(CELL_SPEC))


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn a full disk or a missing permission into one clear error."""
    try:
        yield
    except OSError as error:
        if error.errno in _NO_ROOM:
            raise disk_full(place) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise DiskError(f"no permission to write to {place}", hint="another place: --out FOLDER") from error
        if isinstance(error, NotADirectoryError | FileExistsError):
            file = next((part for part in (place, *place.parents) if part.is_file()), place)
            raise DiskError(f"{file} is in the way: a file, not a folder", hint="--out FOLDER") from error
        raise DiskError(f"cannot write to {place}", why=error.strerror or str(error), hint="--out FOLDER") from error


def disk_full(place: Path) -> DiskError:
    return DiskError(
        f"the disk is full at {place}",
        why="what was written last is left out; the checkpoints before it are whole",
        hint="make room and give the same command, which goes on from there",
    )


def write_json(path: Path, data: Any) -> None:
    """Written beside its place and moved there: it is there whole or not at all."""
    write_text(path, json.dumps(data, indent=2, allow_nan=True) + "\n")


def write_text(path: Path, text: str) -> None:
    with writing(path.parent):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            Path(name).chmod(0o666 & ~_umask())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_json(path: Path) -> dict[str, Any] | None:
    """The content, or None if there is no such file. A damaged one is an error that says so."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (OSError, ValueError, RecursionError) as error:
        raise CellError(
            f"{path} cannot be read",
            why=f"{type(error).__name__}: {str(error)[:200]}",
            hint="move it away; oelm run makes what is missing again",
        ) from error
    if not isinstance(data, dict):
        raise CellError(f"{path} is damaged", why="it holds no mapping")
    return data
