"""Files of a run folder: written whole or not at all, with a format number, and validated when they are read."""

import errno
import hashlib
import json
import os
import re
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property
from io import FileIO
from pathlib import Path
from typing import IO, Generic, TypeVar

from pydantic import TypeAdapter, ValidationError

from oelm.errors import CellError, DiskError, OelmError
from oelm.facts import Count
from oelm.installation import UPDATE

_T = TypeVar("_T")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_NO_FILE = (errno.ELOOP, errno.ENXIO, errno.EISDIR)  # a loop of links, a socket or a pipe, a folder
_LARGEST = 2**28  # bytes; nothing of ours that is read at once comes near
_SEAL = re.compile(rb'\{\s*"format": (\d{1,9}),\s*"sha256": "([0-9a-f]{64})",')


class NewerFormat(CellError):
    """A file that a newer oelm wrote: nothing is wrong with it, and nothing is to be written in its place."""


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
        text = read_regular(path, hint=self.hint, largest=_LARGEST)
        return self.parse(text, where=path) if text is not None else None

    def write(self, folder: Path, content: _T) -> None:
        write_text(folder / self.name, self.dumps(content))

    def dumps(self, content: _T, *, indent: int | None = 2) -> str:
        # Names of files may hold bytes that are no text: those are replaced, or nobody could read the rest again.
        # Faster than `dataclasses.asdict`, to the same bytes; fields have the names that they have in a study.
        plain = self._adapter.dump_python(content, warnings=False, by_alias=True)
        data = json.loads(json.dumps(plain, ensure_ascii=False).encode("utf-8", "replace"))
        if not self.has_checksum:
            return json.dumps({"format": self.format, **data}, indent=indent) + "\n"
        rest = json.dumps(data, indent=indent).removeprefix("{") + "\n"
        head = json.dumps({"format": self.format, "sha256": _checksum(rest.encode())}, indent=indent)
        return head.removesuffix("}").rstrip() + "," + rest

    def parse(self, text: bytes, *, where: Path) -> _T:
        """The content of a text. Anything but this format, complete and with nothing else in it, is an error."""
        seal = _SEAL.match(text) if self.has_checksum else None
        if seal is not None and int(seal[1]) == self.format:
            rest = text[seal.end() :]
            if _checksum(rest) != seal[2].decode():
                raise self._damaged(where, "its checksum does not match")
            return self._validate(b"{" + rest, where)
        try:
            data = json.loads(text)
            if not isinstance(data, dict) or type(data.get("format")) is not int:
                raise self._damaged(where, "it has no format number")
            found = data.pop("format")
            plain = json.dumps(data).encode()
        except (ValueError, RecursionError) as error:
            raise self._damaged(where, f"{type(error).__name__}: {error}") from error
        if found != self.format:
            what = f"{where} has format {found}; this oelm reads format {self.format}"
            if found > self.format:
                raise NewerFormat(what, hint=UPDATE)
            raise CellError(what, hint=f"the oelm that wrote it; or {self.hint}")
        if self.has_checksum:
            raise self._damaged(where, "its checksum does not match")
        return self._validate(plain, where)

    def _validate(self, text: bytes, where: Path) -> _T:
        try:
            # From JSON, strict means that a number is a number, and a list is still good for a tuple.
            return self._adapter.validate_json(text, strict=True, extra="forbid")
        except ValidationError as error:
            raise self._damaged(where, first_problem(error)) from error
        except OelmError as error:  # a treatment that makes no sense
            raise self._damaged(where, str(error).splitlines()[0]) from error

    def _damaged(self, where: Path, why: str) -> CellError:
        return CellError(f"{where} is damaged", why=why[:200], hint=self.hint)

    @cached_property
    def _adapter(self) -> TypeAdapter[_T]:
        return TypeAdapter(self.content)


def _checksum(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def first_problem(error: ValidationError) -> str:
    """What is wrong with a content, and where in it."""
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"]))
    return f"{place}: {first['msg'].removeprefix('Value error, ')}".removeprefix(": ")


# -- reading -------------------------------------------------------------------------------------------------------


def open_regular(path: Path) -> FileIO:
    """A file, open for reading, whoever has put something into its place: nobody waits for the other end of a pipe.

    What can never be read is a CellError. An OSError is one of the moment: too many open files, no permission.
    """
    descriptor, _ = _open_descriptor(path)
    return os.fdopen(descriptor, "rb", buffering=0)  # it is read as a whole


def _open_descriptor(path: Path) -> tuple[int, int]:
    """(descriptor, bytes of the file)."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise CellError(f"{path} is not a file", why=error.strerror, hint="move it away") from error
        raise
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode):
        os.close(descriptor)
        raise CellError(f"{path} is not a file", hint="move it away")
    return descriptor, found.st_size


def read_regular(path: Path, *, hint: str | None = None, largest: int | None = None, start: int = 0) -> bytes | None:
    """What is in a file, from `start` on, or so far from its end; None if there is no such file.

    All else is a CellError.
    """
    try:
        # By its descriptor: a file object asks the system twice as often, for thousands of cells.
        descriptor, size = _open_descriptor(path)
        try:
            if largest is not None and size > largest:
                raise CellError(f"{path} is damaged", why=f"it has more than {largest:,} bytes", hint=hint)
            if start:
                os.lseek(descriptor, start if start > 0 else max(0, size + start), os.SEEK_SET)
            parts = []
            while part := os.read(descriptor, size + 1):  # until there is no more: it may grow
                parts.append(part)
            return b"".join(parts)
        finally:
            os.close(descriptor)
    except (FileNotFoundError, NotADirectoryError) as error:
        if path.is_symlink():
            raise CellError(f"{path} cannot be read", why="it is a link to nothing", hint=hint) from error
        return None
    except OSError as error:
        raise CellError(f"{path} cannot be read", why=error.strerror or str(error), hint=hint) from error


@dataclass(frozen=True, kw_only=True)
class FileDigest:
    """By which a file is known again."""

    size: Count
    """In bytes."""
    sha256: str
    """Of its content."""


def digest_file(path: Path) -> FileDigest | None:
    """None if there is no such file."""
    content = read_regular(path)
    return FileDigest(size=len(content), sha256=_checksum(content)) if content is not None else None


def read_unchanged(path: Path, digest: FileDigest) -> bytes:
    """What is in a file that must be the one of this digest."""
    content = read_regular(path, largest=digest.size)
    if content is None:
        raise CellError(f"{path} is missing", why="there was one when the record was written")
    if len(content) != digest.size or _checksum(content) != digest.sha256:
        raise CellError(f"{path} is damaged", why="it is not what it was when the record was written")
    return content


# -- writing -------------------------------------------------------------------------------------------------------


@contextmanager
def writing(place: Path, *, instead: str | None = None) -> Iterator[None]:
    """Turn a full disk or a missing permission into one clear error; `instead` is the option that names another place,
    if that is not `--out FOLDER`."""
    elsewhere = instead or "--out FOLDER"
    try:
        yield
    except OSError as error:
        if error.errno in _DISK_FULL:
            raise disk_full(place) from error
        if isinstance(error, PermissionError) or error.errno == errno.EROFS:
            raise DiskError(f"no permission to write to {place}", hint=f"another place: {elsewhere}") from error
        if isinstance(error, NotADirectoryError | FileExistsError):
            named = error.filename2 or error.filename or place
            file = next((part for part in (place, *place.parents) if part.is_file()), named)
            raise DiskError(f"{file} is in the way: a file, not a folder", hint=elsewhere) from error
        if isinstance(error, IsADirectoryError):
            name = error.filename2 or error.filename or place
            raise DiskError(f"{name} is in the way: a folder, not a file", hint=instead or "move it away") from error
        raise DiskError(f"cannot write to {place}", why=error.strerror or str(error), hint=elsewhere) from error


def disk_full(place: Path) -> DiskError:
    return DiskError(
        f"the disk is full at {place}",
        why="what was being written is left out; the checkpoints before it are complete",
        hint="make room and rerun the same command to resume",
    )


def write_text(path: Path, text: str, *, once: bool = False, instead: str | None = None) -> None:
    """See `write_bytes`."""
    write_bytes(path, text.encode(), once=once, instead=instead)


def write_bytes(path: Path, content: bytes, *, once: bool = False, instead: str | None = None) -> None:
    """Written beside its place and moved there: it is there whole or not at all.

    With `once`, what is there stays: of several who write at the same time, the first wins. `instead`: see `writing`.
    """
    with writing(path.parent, instead=instead):
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            with suppress(OSError):  # not every file system has permissions
                Path(name).chmod(0o666 & ~_umask())
            if once:
                _link_or_move(Path(name), path)
            else:
                Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _link_or_move(made: Path, path: Path) -> None:
    """A link fails where there is something. Where there are no links, two may come at the same moment; the later one
    wins then."""
    try:
        path.hardlink_to(made)
    except FileExistsError:
        pass
    except OSError:
        if not os.path.lexists(path):
            made.replace(path)
            return
    made.unlink()


def open_to_append(path: Path) -> IO[str]:
    """A text, open at its end. Nobody waits for a reader of what somebody has put into its place, or writes to a file
    elsewhere that it is a link to."""
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
    with writing(path.parent):
        try:
            descriptor = os.open(path, flags, 0o666)
        except OSError as error:
            if error.errno in _NO_FILE:
                raise DiskError(f"{path} is in the way: not a file", hint="move it away") from error
            raise
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            os.close(descriptor)
            raise DiskError(f"{path} is in the way: not a file", hint="move it away")
        return os.fdopen(descriptor, "a", encoding="utf-8")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
