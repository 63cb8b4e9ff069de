"""Installation: where this oelm came from, and so what adds a part to it or makes it newer.

Never its name alone: on a package index, that name is not ours.
"""

import shlex
from pathlib import Path

UPDATE = "a newer oelm, from where this one came"


def oelm_source_tree() -> Path | None:
    """The source tree that oelm runs from; None if it was installed as a package."""
    package = Path(__file__).resolve().parent
    tree = package.parents[1]
    return tree if package.parent.name == "src" and (tree / "pyproject.toml").is_file() else None


def install_command(extra: str) -> str:
    """What adds an extra to this installation."""
    tree = oelm_source_tree()
    if tree is not None:
        return f"pip install -e {shlex.quote(f'{tree}[{extra}]')}"
    origin = _origin()
    if origin is not None:
        return f"pip install {shlex.quote(f'{origin}[{extra}]')}"
    return f"install oelm again, as you did before, with its extra '{extra}'"


def _origin() -> Path | None:
    """The folder or wheel that pip has installed it from, if it is still there."""
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        url = urlsplit(json.loads(metadata.distribution("oelm").read_text("direct_url.json") or "{}").get("url", ""))
    except (metadata.PackageNotFoundError, ValueError, AttributeError):
        return None
    path = Path(unquote(url.path))
    return path if url.scheme == "file" and path.exists() else None
