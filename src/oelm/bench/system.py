"""System: what else the machine did while something was timed."""

import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from oelm.runs.bench import SystemLoad

# So many cores' worth of work by other processes, of those this one may use, is worth a warning.
MUCH = 0.1


@dataclass(frozen=True, kw_only=True)
class GpuSample:
    clock: float
    """MHz"""
    temperature: float
    """degrees Celsius"""


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
    gpu: GpuSample | None
    """At the end of it."""


class SystemMonitor:
    """Samples the machine, from one call to the next."""

    def __init__(self) -> None:
        self._time, self._own, self._busy = _now()

    def sample(self) -> SystemSample:
        now, own, busy = _now()
        seconds = max(now - self._time, 1e-9)
        own_cores = (own - self._own) / seconds
        others = None
        if busy is not None and self._busy is not None:
            others = max(0.0, (busy - self._busy) / seconds - own_cores)
        self._time, self._own, self._busy = now, own, busy
        return SystemSample(
            seconds=seconds,
            own_cores=own_cores,
            others_cores=others,
            load=os.getloadavg()[0] if hasattr(os, "getloadavg") else None,
            gpu=sample_gpu(),
        )


def interference(samples: list[SystemSample]) -> float | None:
    """Cores that others used, on average over time, as a share of those this process may use."""
    known = [(one.others_cores, one.seconds) for one in samples if one.others_cores is not None]
    if not known:
        return None
    mean = sum(cores * seconds for cores, seconds in known) / sum(seconds for _, seconds in known)
    return mean / usable_cores()


def summarize_load(samples: list[SystemSample]) -> SystemLoad:
    import torch

    return SystemLoad(
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        affinity=tuple(sorted(os.sched_getaffinity(0))) if hasattr(os, "sched_getaffinity") else None,
        cores=usable_cores(),
        others=interference(samples),
        load=_range(one.load for one in samples),
        gpu_clock=_range(one.gpu.clock for one in samples if one.gpu),
        gpu_temperature=_range(one.gpu.temperature for one in samples if one.gpu),
    )


def usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _range(values: Iterable[float | None]) -> tuple[float, float] | None:
    known = [value for value in values if value is not None]
    return (min(known), max(known)) if known else None


def sample_gpu() -> GpuSample | None:
    """Where there is a GPU that tells."""
    import torch

    if not torch.cuda.is_available():
        return None
    try:
        return GpuSample(clock=float(torch.cuda.clock_rate()), temperature=float(torch.cuda.temperature()))
    except (ImportError, RuntimeError):  # the library that asks the driver is not installed
        return None


def _now() -> tuple[float, float, float | None]:
    """(time, our own CPU seconds, everybody's)"""
    times = os.times()
    own = times.user + times.system + times.children_user + times.children_system
    return time.perf_counter(), own, _busy()


def _busy() -> float | None:
    """CPU seconds of everybody since the machine was started, other machines on the same cores (steal) among them."""
    try:
        fields = Path("/proc/stat").read_text(encoding="ascii").split("\n", 1)[0].split()[1:]
    except OSError:
        return None
    user, nice, system, _, _, irq, softirq, steal = (int(field) for field in fields[:8])
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")
