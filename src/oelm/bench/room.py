"""Room: how much memory is free, and whether all arms fit into it at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

_PLANNED = 0.8  # of what is free: longer batches may come, and allocators keep some for themselves
_SYSTEM, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Limit and use of a group of processes, in both versions of the system.
_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))
# What PyTorch says where it has no exception of its own for it: on a CPU, in Linux and in Windows.
_SAID = ("can't allocate memory", "not enough memory")


class NoRoom(MemoryError):
    """The arms would not fit into memory together."""


def why_apart(arms: Sequence[Mapping[str, Any]], *, device: str, there: int = 0) -> str | None:
    """Why these arms cannot be in memory together; None if they can, or if nobody says what is free.

    `arms` are bytes by what they are for, as `memory.Memory` has them; `there` of them are taken already.
    """
    need, free = needed(arms) - there, free_bytes(device)
    if free is None or need <= _PLANNED * free:
        return None
    may_be = f"of {_shown(free)} that are free {_PLANNED:.0%} may be used"
    return f"all {len(arms)} arms need {_shown(need)} more, and {may_be}"


def needed(arms: Sequence[Mapping[str, Any]]) -> int:
    """Bytes of several arms in one process: all weights and moments, but gradients and activations of one at a time."""
    passing = max(arm["gradients"] + (arm["activations"] or 0) for arm in arms)
    return int(sum(arm["parameters"] + arm["optimizer"] for arm in arms) + passing)


def free_bytes(device: str) -> int | None:
    """What a process could still take, on a GPU or of the machine's memory; None where the system does not tell."""
    if device == "cuda":
        import torch

        return int(torch.cuda.mem_get_info()[0])
    return min((*_left_by_machine(), *_left_by_groups()), default=None)


def is_out_of_memory(error: BaseException) -> bool:
    import torch

    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(text in str(error) for text in _SAID)


def _left_by_machine() -> Iterator[int]:
    for line in _read(_SYSTEM / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _left_by_groups() -> Iterator[int]:
    """What the limits of containers and batch systems leave: that of our own group, and of all groups around it."""
    for line in _read(_SYSTEM / "self" / "cgroup").splitlines():
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        root = _GROUPS / kinds
        own = root / path.lstrip("/")  # seen from inside a container, it may not be there: then only its root is
        for folder in (own, *own.parents):
            if not folder.is_relative_to(root):
                break
            for limit, used in _LIMITS:
                numbers = [_read(folder / name).strip() for name in (limit, used)]
                if all(number.isdigit() for number in numbers):
                    most, now = map(int, numbers)
                    yield max(0, most - now + _files_in(folder))


def _files_in(folder: Path) -> int:
    """Bytes of a group that are only files kept at hand, and given up when memory is short."""
    rows = (line.split() for line in _read(folder / "memory.stat").splitlines())
    return next((int(row[1]) for row in rows if row[0] in ("inactive_file", "total_inactive_file")), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _shown(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
