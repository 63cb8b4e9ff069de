"""Wheel: oelm as it is installed here, packed again, so that another machine runs the same code.

It is made from the files that the installation lists, without a network, and of the same files it has the same bytes.
"""

import base64
import hashlib
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from oelm.errors import LaunchError

_LEFT_HERE = ("RECORD", "INSTALLER", "REQUESTED", "direct_url.json")  # of the installation, not of the package
_EPOCH = (1980, 1, 1, 0, 0, 0)


def build_wheel(folder: Path, name: str = "oelm") -> Path:
    """Pack an installed distribution of pure Python into a wheel in a folder."""
    distribution = metadata.distribution(name)
    files = dict(_package_files(distribution))
    info = next((path.partition("/")[0] for path in files if path.endswith(".dist-info/WHEEL")), None)
    if info is None:
        raise LaunchError(
            f"{name} is not installed in a way that can be copied",
            why="its installation does not list its files",
            hint="`venv:` in cluster.yaml, for an environment there that has oelm",
        )
    files[f"{info}/RECORD"] = _record(files, f"{info}/RECORD")
    wheel = folder / f"{info.removesuffix('.dist-info')}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, content in sorted(files.items()):
            entry = zipfile.ZipInfo(path, date_time=_EPOCH)
            entry.external_attr = 0o644 << 16
            archive.writestr(entry, content)
    return wheel


def _package_files(distribution: metadata.Distribution) -> Iterator[tuple[str, bytes]]:
    for file in distribution.files or ():
        is_info = file.parts[0].endswith(".dist-info")
        if file.parts[0] == ".." or "__pycache__" in file.parts or (is_info and file.name in _LEFT_HERE):
            continue  # scripts, too: pip makes them again
        yield file.as_posix(), Path(str(file.locate())).read_bytes()


def _record(files: dict[str, bytes], own: str) -> bytes:
    rows = [f"{path},sha256={_digest(content)},{len(content)}" for path, content in sorted(files.items())]
    return "\n".join([*rows, f"{own},,", ""]).encode()


def _digest(content: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
