"""Sync: bring what was written to the disk, so that it outlasts a power cut."""

import errno
import os
from pathlib import Path

_NOT_OF_FOLDERS = (errno.EINVAL, errno.ENOTSUP, errno.ENOSYS)  # as some network file systems say


def sync(path: Path) -> None:
    """Bring a file to the disk; or the names in a folder, where the file system can do that."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if not (path.is_dir() and error.errno in _NOT_OF_FOLDERS):
            raise
    finally:
        os.close(descriptor)
