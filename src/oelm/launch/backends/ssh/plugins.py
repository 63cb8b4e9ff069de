"""Plugins of a study on another machine: a single file is copied there, a package must be installed there."""

from collections.abc import Iterable
from pathlib import Path

from oelm.errors import LaunchError
from oelm.launch.backends.ssh.host import SshHost, run_remote, upload
from oelm.study.plugins import plugin_file


def upload_plugins(machine: SshHost, plugins: Iterable[str], *, to: str) -> list[str]:
    """Copy those that are files into the folder `to` there, and return the options that allow all of them."""
    words = []
    for name in plugins:
        file = plugin_file(name)
        if file is not None:
            answer = run_remote(machine, 'mkdir -p -- "$1"', f"{to}/plugins")
            if answer.code:
                raise LaunchError(f"plugin '{name}' cannot be copied", where=machine.at(f"{to}/plugins"))
            upload(machine, Path(file), f"{to}/plugins", ["-t"], what=file)
        words += ["--plugin", name if file is None else f"{to}/plugins/{name}.py"]
    return words
