"""Git: ask about a working copy, and run nothing that its own configuration names.

A folder from somebody else comes with its `.git/config`, and `git status` starts what is named there: a file system
monitor, hooks, filters of contents, a transport for objects that are missing. What the user's own configuration names
stays as it is.
"""

import os
import subprocess
from pathlib import Path

# Counts more than any file. Filters are added by name.
_CONFIG = {"core.fsmonitor": "false", "core.hooksPath": os.devnull, "core.sshCommand": "false"}
_ENVIRONMENT = {
    "GIT_OPTIONAL_LOCKS": "0",  # the index is not written, so no hook hears of it
    "GIT_ALLOW_PROTOCOL": "none",  # over this list, `protocol.*.allow` of a repository has no say
    "GIT_NO_LAZY_FETCH": "1",
    "GIT_TERMINAL_PROMPT": "0",
}
_OWN = ("system", "global", "command")  # scopes that a repository cannot write to
_NO_SETTING, _NO_OPTION = 1, 129  # how git ends when it has none of these settings, or does not know an option


def git_output(folder: Path, *words: str, timeout: float = 10) -> bytes:
    """What git says in a folder. Raises an OSError or a SubprocessError where it says nothing."""
    return _run(folder, words, {**_CONFIG, **_filters(folder, timeout)}, timeout)


def git_status(folder: Path, *words: str, timeout: float = 10) -> bytes:
    """`git status` for programs. Git is not started anew in submodules, where all of this would not count."""
    return git_output(folder, "status", "--porcelain", "--ignore-submodules=dirty", *words, timeout=timeout)


def _filters(folder: Path, timeout: float, ask: tuple[str, ...] = ("--show-scope",)) -> dict[str, str]:
    """Every setting of a filter as the user has it; without one, empty, which is no filter.

    A git before 2.26 does not say whose a setting is: then all of them are empty.
    """
    words = ("config", "--null", *ask, "--get-regexp", r"^filter\.")
    try:
        rows = _run(folder, words, _CONFIG, timeout).decode(errors="surrogateescape").split("\0")
    except subprocess.CalledProcessError as error:
        if error.returncode == _NO_SETTING:
            return {}
        if error.returncode == _NO_OPTION and ask:
            return _filters(folder, timeout, ask=())
        raise
    if not ask:
        return {row.partition("\n")[0]: "" for row in rows if row}
    found: dict[str, str] = {}
    for scope, row in zip(rows[::2], rows[1::2], strict=False):
        name, _, value = row.partition("\n")
        if scope in _OWN:
            found[name] = value
        else:
            found.setdefault(name, "")
    return found


def _run(folder: Path, words: tuple[str, ...], config: dict[str, str], timeout: float) -> bytes:
    """With settings as arguments: a git before 2.31 does not read them from the environment."""
    if any("=" in name for name in config):  # where git would end the name: another setting would be set
        raise ValueError("the name of a setting has a '=' in it")
    settings = [word for name, value in config.items() for word in ("-c", f"{name}={value}")]
    return subprocess.run(
        ["git", *settings, *words],
        cwd=folder,
        env={**os.environ, **_ENVIRONMENT},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=timeout,
        check=True,
    ).stdout
