"""What may be in the place of a file, and is none."""

import os
import shutil
import socket
from pathlib import Path

PLACED = ("folder", "pipe", "loop", "dangling link", "socket")


def place_in(path: Path, kind: str) -> None:
    """Put something else into the place of a file, or of a folder."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    path.unlink(missing_ok=True)
    if kind == "folder":
        path.mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        path.symlink_to(path.name)
    elif kind == "dangling link":
        path.symlink_to("nowhere")
    else:
        here = Path.cwd()
        os.chdir(path.parent)  # the name of a socket is short
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.bind(path.name)
        finally:
            os.chdir(here)
