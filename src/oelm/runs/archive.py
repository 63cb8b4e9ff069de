"""records.tar.xz: what the reading needs of the finished cells of a study, in one small file. The same cells give the
same bytes."""

import io
import lzma
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from oelm.errors import CellError, OelmError, StudyError
from oelm.runs.files import read_regular, read_unchanged, write_bytes, writing
from oelm.runs.layout import (
    ARCHIVE,
    BENCH,
    CELL,
    FINISHED,
    LOCK,
    PREDICTIONS,
    RECORD,
    SIMPLE_BASELINE,
    STEPS,
    STUDY,
    find_cell_folders,
)
from oelm.runs.record import read_record

_OF_STUDY = (LOCK, STUDY, SIMPLE_BASELINE, BENCH)
_OF_CELL = (CELL, STEPS, PREDICTIONS, RECORD)
_PRESET = 7 | lzma.PRESET_EXTREME  # finds what is alike within 16 MiB, and takes 190 MB to do so
_LARGEST = 2**30  # bytes, unpacked


def pack(folder: Path, archive: Path) -> int:
    """Add the finished cells in the folder of a study to its archive, and return how many cells that has then.

    What an archive has stays in it. A cell with a traceback, which names folders of this machine, is not added, and
    neither is one that is damaged.
    """
    before = read_archive(archive)
    found = {name: content for name in _OF_STUDY if (content := read_regular(folder / name)) is not None}
    _check_lock(archive, before.get(LOCK), found.get(LOCK))
    for cell in find_cell_folders(folder):
        name = cell.relative_to(folder).as_posix()
        if f"{name}/{RECORD}" not in before:
            with suppress(OelmError):
                found |= {f"{name}/{file}": content for file, content in _files_of(cell).items()}
    files = {**before, **found}
    cells = sum(name.endswith(f"/{RECORD}") for name in files)
    if (cells or BENCH in files) and files != before:
        write_bytes(archive, lzma.compress(_tar(files), preset=_PRESET))
    return cells


def _files_of(cell: Path) -> dict[str, bytes]:
    """Of a finished cell; of any other none."""
    record = read_record(cell)
    if record is None or record.status not in FINISHED or (record.error is not None and record.error.traceback):
        return {}
    for name, digest in record.files.items():
        read_unchanged(cell / name, digest)
    return {name: content for name in _OF_CELL if (content := read_regular(cell / name)) is not None}


def _tar(files: Mapping[str, bytes]) -> bytes:
    """Files of one kind side by side, where they compress best; nothing in it tells when or by whom it was made."""
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name in sorted(files, key=lambda name: (name.rpartition("/")[2], name)):
            entry = tarfile.TarInfo(name)
            entry.size = len(files[name])
            tar.addfile(entry, io.BytesIO(files[name]))
    return made.getvalue()


def read_archive(archive: Path) -> dict[str, bytes]:
    """The files in an archive by name, which is that below the folder of the study; none if there is no archive."""
    packed = read_regular(archive)
    if packed is None:
        return {}
    files = {}
    try:
        unpacker = lzma.LZMADecompressor()
        content = unpacker.decompress(packed, max_length=_LARGEST)
        if not unpacker.eof or unpacker.unused_data:
            raise ValueError("it is cut off, or there is more than should be")
        with tarfile.open(fileobj=io.BytesIO(content), mode="r:") as tar:
            for entry in tar:
                if not _is_kept(entry):
                    raise ValueError(f"there is {entry.name[:200]!r} in it, which is no file of a study")
                file = tar.extractfile(entry)
                assert file is not None
                files[entry.name] = file.read()
    except (lzma.LZMAError, tarfile.TarError, EOFError, ValueError) as error:
        hint = f"what is in it is in git: git checkout {archive}"
        raise CellError(f"{archive} is damaged; nothing was unpacked", why=str(error), hint=hint) from error
    return files


def _is_kept(entry: tarfile.TarInfo) -> bool:
    """Whether it is a file that `pack` may have put there, and leads nowhere else."""
    *folders, name = entry.name.split("/")
    return entry.isreg() and name in (_OF_CELL if folders else _OF_STUDY) and not {"", ".", ".."} & {*folders}


def unpack(archive: Path, folder: Path) -> None:
    """Write what the folder of a study lacks: the lock beside the archive, and the cells in it."""
    files, lock = read_archive(archive), read_regular(archive.with_name(LOCK))
    _check_lock(archive, files.get(LOCK), lock, read_regular(folder / LOCK))
    files |= {LOCK: lock} if lock is not None else {}
    there = {cell for cell in find_cell_folders(folder) if (cell / RECORD).exists()}
    for name in sorted(files, key=lambda name: name.endswith(RECORD)):  # which says that a cell is complete
        place = folder / name
        if place.parent not in there and not (place.parent == folder and place.exists()):
            with writing(folder):
                place.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(place, files[name])


def _check_lock(archive: Path, *locks: bytes | None) -> None:
    if len({lock for lock in locks if lock is not None}) > 1:
        raise StudyError(
            f"{archive} is of another plan (CHANGED-AFTER-START); nothing was written",
            where=str(archive.with_name(LOCK)),
            why=f"{LOCK} in the archive, the one beside it and the one in the folder of runs must be the same",
            hint="another name of the study, or the lock as it was: git log",
        )


@contextmanager
def unpacked(evidence: Path) -> Iterator[Path]:
    """A temporary folder with the studies of all archives in a folder."""
    with tempfile.TemporaryDirectory(prefix="oelm-") as name:
        for archive in sorted(evidence.glob(f"*/{ARCHIVE}")):
            unpack(archive, Path(name) / archive.parent.name)
        yield Path(name)
