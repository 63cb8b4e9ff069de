"""Mutate: a file that was good, damaged in one way of many."""

import json
import os
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

NASTY: tuple[Any, ...] = (
    None,
    True,
    -1,
    -5,
    0,
    1.3,
    -1e308,
    1e308,
    float("nan"),
    float("inf"),
    10**400,
    2**63,
    "",
    "x" * 100_000,
    "../../../etc/passwd",
    "-oProxyCommand=touch /tmp/owned",
    "\x1b[2J\u202etxt",
    "$(touch owned)",
    "<script>alert(1)</script>",
    [],
    {},
    [[]],
    {"": {}},
)
DEEP = 50_000


def mutate_bytes(choose: random.Random, data: bytes) -> tuple[bytes, str]:
    """Other content than before; what was done, in words."""
    way = choose.choice(("truncate", "flip", "zero", "insert", "digit", "random", "empty", "repeat", "deep", "binary"))
    at = choose.randrange(len(data)) if data else 0
    if way == "truncate":
        return data[:at], f"cut after {at} of {len(data)} bytes"
    if way == "flip" and data:
        flipped = bytes([data[at] ^ (1 << choose.randrange(8))])
        return data[:at] + flipped + data[at + 1 :], f"a bit of byte {at} flipped"
    if way == "zero":
        number = choose.randint(1, 1 + len(data))
        return data[:at] + bytes(number) + data[at + number :], f"{number} zeros from byte {at} on"
    if way == "insert":
        junk = choose.randbytes(choose.randint(1, 50))
        return data[:at] + junk + data[at:], f"{junk!r} put in at byte {at}"
    if way == "digit":
        return _change_digit(choose, data)
    if way == "random":
        return choose.randbytes(len(data)), "random bytes"
    if way == "repeat":
        return data * 2, "written twice"
    if way == "deep":
        return b"[" * DEEP + b"]" * DEEP, f"{DEEP} levels deep"
    if way == "binary":
        return data[:at] + b"\xff\xfe\x80" + data[at:], f"not UTF-8 at byte {at}"
    return b"", "empty"


def _change_digit(choose: random.Random, data: bytes) -> tuple[bytes, str]:
    digits = [found.start() for found in re.finditer(rb"\d", data)]
    if not digits:
        return b"7" + data, "a digit in front"
    at = choose.choice(digits)
    new = str((int(data[at : at + 1]) + choose.randint(1, 9)) % 10).encode()
    return data[:at] + new + data[at + 1 :], f"digit {at} is {new.decode()}"


def mutate_json(choose: random.Random, data: Any) -> tuple[Any, str]:
    """Plain data with one value replaced, removed, added or renamed."""
    copy = json.loads(json.dumps(data))
    places = list(_places(copy))
    if not places:
        return choose.choice(NASTY), "all of it replaced"
    holder, key, path = choose.choice(places)
    way = choose.choice(("replace", "replace", "remove", "add", "rename"))
    value = choose.choice(NASTY)
    if way == "remove":
        del holder[key]
        return copy, f"{path} removed"
    if way == "add" and isinstance(holder, dict):
        holder[choose.choice(("", "new", "format", "__class__", "$ref"))] = value
        return copy, f"something added beside {path}"
    if way == "rename" and isinstance(holder, dict):
        holder[f"{key}x"] = holder.pop(key)
        return copy, f"{path} renamed"
    holder[key] = value
    return copy, f"{path} is {repr(value)[:60]}"


def _places(data: Any, path: str = "") -> Any:
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in list(items):
        yield data, key, f"{path}.{key}".strip(".")
        yield from _places(value, f"{path}.{key}")


def _as_folder(path: Path) -> None:
    path.unlink()
    (path / "inside").mkdir(parents=True)


def _as_fifo(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _as_loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.name)


def _as_dangling(path: Path) -> None:
    path.unlink()
    path.symlink_to("gone")


def _as_device(path: Path) -> None:
    path.unlink()
    path.symlink_to("/dev/zero")


STRANGE: dict[str, Callable[[Path], object]] = {
    "gone": Path.unlink,
    "a folder": _as_folder,
    "a FIFO": _as_fifo,
    "a link to itself": _as_loop,
    "a dangling link": _as_dangling,
    "a link to /dev/zero": _as_device,
}
if os.geteuid():  # root reads it all the same
    STRANGE["not to be read"] = lambda path: path.chmod(0)


def damage(choose: random.Random, path: Path) -> str:
    """Damage a file in its place: its content, or what it is at all. Says how."""
    if choose.random() < 0.35:
        kind = choose.choice(list(STRANGE))
        STRANGE[kind](path)
        return f"{path.name} is {kind}"
    before = path.read_bytes()
    data, what = mutate_bytes(choose, before)
    path.write_bytes(data if data != before else before + b"x")
    return f"{path.name}: {what}"
