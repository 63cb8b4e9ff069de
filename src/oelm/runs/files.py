"""Files of a run folder: written whole or not at all, with a format number, and validated when they are read."""

import errno
import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from oelm.errors import CellError, DiskError, OelmError
from oelm.installation import UPDATE

_T = TypeVar("_T")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@dataclass(frozen=True)
class FileType(Generic[_T]):
    """One kind of file: its name, the dataclass of its content, and the number of its format."""

    name: str
    content: type[_T]
    format: int
    hint: str = "move it away; oelm run makes what is missing again"
    """What to do with a damaged one."""
    has_checksum: bool = False
    """Whether a single changed digit must be noticed."""

    def read(self, folder: Path) -> _T | None:
        """The content of the file in this folder; None if there is no such file."""
        path = folder / self.name
        try:
            text = path.read_bytes()
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise CellError(f"{path} cannot be read", why=error.strerror or str(error), hint=self.hint) from error
        return self.parse(text, where=path)

    def write(self, folder: Path, content: _T) -> None:
        write_text(folder / self.name, self.dumps(content))

    def dumps(self, content: _T, *, indent: int | None = 2) -> str:
        # Names of files may hold bytes that are no text: those are replaced, or nobody could read the rest again.
        data = json.loads(json.dumps(asdict(content), ensure_ascii=False).encode("utf-8", "replace"))  # type: ignore[call-overload]
        head = {"format": self.format, **({"sha256": _checksum(data)} if self.has_checksum else {})}
        return json.dumps({**head, **data}, indent=indent) + "\n"

    def parse(self, text: bytes, *, where: Path) -> _T:
        """The content of a text. Anything but this format, complete and with nothing else in it, is an error."""
        try:
            data = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise self._damaged(where, f"{type(error).__name__}: {error}") from error
        if not isinstance(data, dict) or type(data.get("format")) is not int:
            raise self._damaged(where, "it has no format number")
        found = data.pop("format")
        if found != self.format:
            newer = UPDATE if found > self.format else "the oelm that wrote it; or run it again"
            raise CellError(f"{where} has format {found}; this oelm reads format {self.format}", hint=newer)
        if self.has_checksum and data.pop("sha256", None) != _checksum(data):
            raise self._damaged(where, "its checksum does not match")
        try:
            # Through JSON: there, strict means that a number is a number, and a list is still good for a tuple.
            return self._adapter.validate_json(json.dumps(data), strict=True, extra="forbid")
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"]))
            raise self._damaged(
                where, f"{place}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")
            ) from error
        except OelmError as error:  # a treatment that makes no sense
            raise self._damaged(where, str(error).splitlines()[0]) from error

    def _damaged(self, where: Path, why: str) -> CellError:
        return CellError(f"{where} is damaged", why=why[:200], hint=self.hint)

    @cached_property
    def _adapter(self) -> TypeAdapter[_T]:
        return TypeAdapter(self.content)


def _checksum(data: object) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()


@contextmanager
def writing(place: Path) -> Iterator[None]:
    """Turn a full disk or a missing permission into one clear error."""
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
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
        why="what was being written is left out; the checkpoints before it are complete",
        hint="make room and rerun the same command to resume",
    )


def write_text(path: Path, text: str) -> None:
    """Written beside its place and moved there: it is there whole or not at all."""
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
