"""The hub: whether it is there to be asked. Its client tries for half a minute, and writes a dozen lines about it."""

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
