"""Memory budget: whether all arms of a bench fit at once into the memory that is free."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from oelm.runs.bench import StepMemory

_USABLE = 0.8  # of what is free: longer batches may come, and allocators keep some for themselves
_SYSTEM, _GROUPS = Path("/proc"), Path("/sys/fs/cgroup")
# Limit and use of a group of processes, in both versions of the system.
_LIMITS = (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes"))


class InsufficientMemory(MemoryError):
    """The arms would not fit into memory together."""


def reason_to_isolate(arms: Sequence[StepMemory], *, device: str, allocated: int = 0) -> str | None:
    """Why these arms cannot be in memory together; None if they can, or if nobody says what is free.

    `allocated` bytes of them are taken already.
    """
    need, free = needed_bytes(arms) - allocated, free_bytes(device)
    if free is None or need <= _USABLE * free:
        return None
    limit = f"{_USABLE:.0%} of the {_format_bytes(free)} that are free may be used"
    return f"all {len(arms)} arms need {_format_bytes(need)} more, and {limit}"


def needed_bytes(arms: Sequence[StepMemory]) -> int:
    """Bytes of several arms in one process: all weights and moments, but gradients and activations of one at a time."""
    passing = max(arm.gradients + (arm.activations or 0) for arm in arms)
    return sum(arm.parameters + arm.optimizer for arm in arms) + passing


def free_bytes(device: str) -> int | None:
    """What a process could still take, on a GPU or of the machine's memory; None where the system does not say."""
    if device == "cuda":
        return int(torch.cuda.mem_get_info()[0])
    return min((*_free_on_machine(), *_free_in_cgroups()), default=None)


def _free_on_machine() -> Iterator[int]:
    for line in _read(_SYSTEM / "meminfo").splitlines():
        if line.startswith("MemAvailable:"):
            yield int(line.split()[1]) * 1024


def _free_in_cgroups() -> Iterator[int]:
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
                    yield max(0, most - now + _page_cache(folder))


def _page_cache(folder: Path) -> int:
    """Bytes of a group that are only files kept at hand, and given up when memory is short."""
    rows = (line.split() for line in _read(folder / "memory.stat").splitlines())
    return next((int(row[1]) for row in rows if row[0] in ("inactive_file", "total_inactive_file")), 0)


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _format_bytes(number: int) -> str:
    return f"{number / 2**30:.1f} GiB" if number >= 2**30 else f"{number / 2**20:.0f} MiB"
