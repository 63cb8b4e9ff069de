"""The hub: whether it is there to be asked. Its client tries for half a minute, and writes a dozen lines about it."""

import re
import socket
from pathlib import Path
from urllib.parse import urlsplit
from urllib.request import getproxies

_PATIENCE = 10.0  # seconds for a connection, as the client has


def why_not_fetched(name: str | Path) -> str | None:
    """Why a model of this name cannot be had, where that is certain; None for a folder, and if any of it is cached."""
    from huggingface_hub.constants import HF_HUB_CACHE

    cached = Path(HF_HUB_CACHE) / f"models--{str(name).replace('/', '--')}"
    try:
        if Path(name).exists() or cached.exists():
            return None
    except OSError:  # no name of a file, and who opens it says so
        return None
    why = why_unreachable()
    return None if why is None else f"there is no such folder, and {why}"


def commit_of(name: str, *, revision: str | None = None) -> str | None:
    """`owner/name@commit` of a model or tokenizer that was just loaded by a hub name; None of a folder.

    The client notes to which commit a branch or tag led it.
    """
    from huggingface_hub.constants import HF_HUB_CACHE

    if Path(name).exists():
        return None
    commit = revision
    if commit is None or not re.fullmatch("[0-9a-f]{40}", commit):
        noted = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}" / "refs" / (revision or "main")
        try:
            commit = noted.read_text(encoding="utf-8").strip()
        except OSError:
            return None
    return f"{name}@{commit}"


def why_unreachable() -> str | None:
    """Why the hub cannot be connected to; None if it can, and where the client has to find out: behind a proxy, or
    where it is not to ask (HF_HUB_OFFLINE), which it says by itself and at once."""
    from huggingface_hub import constants

    address = urlsplit(constants.ENDPOINT)
    if constants.HF_HUB_OFFLINE or {address.scheme, "all"} & getproxies().keys():
        return None
    port = address.port or (80 if address.scheme == "http" else 443)
    try:
        socket.create_connection((address.hostname or "", port), timeout=_PATIENCE).close()
    except OSError as error:
        return f"the hub ({address.netloc}) cannot be reached: {error.strerror or error}"
    return None
