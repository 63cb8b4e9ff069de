"""System: what else the machine did while something was timed."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

# So many cores' worth of work by other processes, of those this one may use, is worth a warning.
MUCH = 0.1


@dataclass(frozen=True, kw_only=True)
class SystemSample:
    """Of a stretch of time."""

    seconds: float
    own_cores: float
    """CPU time of this process and of those it has started and seen end, in cores."""
    others_cores: float | None
    """CPU time of all others; None where the system does not tell."""
    load: float | None
    """Load average of the last minute."""
    gpu_clock: float | None = None
    """MHz"""
    gpu_temperature: float | None = None
    """degrees Celsius"""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


class SystemMonitor:
    """Samples the machine, from one call to the next."""

    def __init__(self) -> None:
        self._before = _now()

    def sample(self) -> SystemSample:
        before, after = self._before, _now()
        self._before = after
        seconds = max(after["time"] - before["time"], 1e-9)
        own = (after["own"] - before["own"]) / seconds
        busy = after["busy"] - before["busy"] if after["busy"] is not None and before["busy"] is not None else None
        return SystemSample(
            seconds=seconds,
            own_cores=own,
            others_cores=None if busy is None else max(0.0, busy / seconds - own),
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            **gpu_now(),
        )


def interference(samples: list[SystemSample]) -> float | None:
    """Cores that others used, on average over time, as a share of those this process may use."""
    known = [(one.others_cores, one.seconds) for one in samples if one.others_cores is not None]
    if not known:
        return None
    mean = sum(cores * seconds for cores, seconds in known) / sum(seconds for _, seconds in known)
    return mean / usable_cores()


def summary(samples: list[SystemSample]) -> dict[str, Any]:
    """The threads and cores of this process, and from the lowest to the highest what was sampled."""
    import torch

    return {
        "threads": torch.get_num_threads(),
        "interop_threads": torch.get_num_interop_threads(),
        "affinity": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else None,
        "cores": usable_cores(),
        "others": interference(samples),
        "load": _range(one.load for one in samples),
        "gpu_clock": _range(one.gpu_clock for one in samples),
        "gpu_temperature": _range(one.gpu_temperature for one in samples),
    }


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _range(values: Iterable[float | None]) -> list[float] | None:
    known = [value for value in values if value is not None]
    return [min(known), max(known)] if known else None


def gpu_now() -> dict[str, float]:
    """Clock and temperature, where there is a GPU that tells."""
    import torch

    if not torch.cuda.is_available():
        return {}
    try:
        return {"gpu_clock": float(torch.cuda.clock_rate()), "gpu_temperature": float(torch.cuda.temperature())}
    except (ImportError, RuntimeError):  # the library that asks the driver is not installed
        return {}


def _now() -> dict[str, Any]:
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return {"time": time.perf_counter(), "own": own, "busy": _busy()}


def _busy() -> float | None:
    """CPU seconds of everybody since the machine was started, other machines on the same cores (steal) among them."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
