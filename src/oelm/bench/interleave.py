"""Interleave: arms take short turns at training the same steps, until the ratio of their times is known."""

import math
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from oelm.bench.ratios import is_look, is_precise_enough, ratio_of
from oelm.bench.system import GpuSample, SystemMonitor, SystemSample
from oelm.errors import Stopped, StudyError
from oelm.runs.bench import Ratio, StopReason
from oelm.train.progress import Progress
from oelm.train.signals import StopRequest

Seconds = NDArray[np.float64]
Pair = tuple[str, str]
"""An arm, and the one whose time is the unit."""

WARM_UP = 3  # steps of every arm before the clock counts
_BLOCK = 0.5  # seconds that a block should take: long enough for the clock, short enough for the machine to stay itself
_FEWEST_STEPS, _MOST_STEPS = 2, 20
_OF_OVERHEAD = 1 / 3  # where starting takes long, as it does in processes, a block takes at least so much of that


@dataclass(frozen=True, kw_only=True)
class TimedBlock:
    """Some steps of one arm, in a row."""

    seconds: Seconds
    """Of each step forward, backward and optimizer: (steps, 3)."""
    lengths: tuple[int, ...]
    """Tokens of a row, of every pass."""
    gpu: GpuSample | None = None
    """At the end, where whoever looks later would see it idle."""


class TimedArmRunner(Protocol):
    """An arm that can be timed, here or in a process of its own."""

    def time_steps(self, first: int, steps: int) -> TimedBlock:
        """Train on the batches of the study's steps `first`, `first + 1`, ..., which are the same for every arm."""


@dataclass
class InterleavedTimes:
    """What has been measured so far."""

    steps: int
    """Of a block."""
    times: dict[str, list[list[Seconds]]]
    """By arm: rounds of two blocks, each (steps, 3 parts)."""
    lengths: list[int] = field(default_factory=list)
    samples: list[SystemSample] = field(default_factory=list)
    stopped_by: StopReason = "budget"
    seconds: float = 0.0

    @property
    def length(self) -> float:
        """Mean tokens of a row, padding with it."""
        return float(np.mean(self.lengths))

    def parts(self, name: str) -> Seconds:
        """(rounds, 2 blocks, steps, 3 parts)"""
        return np.array(self.times[name])

    def ratio(self, pair: Pair, *, seed: int) -> Ratio:
        """Of full steps of the first in units of the second's."""
        arm, against = (self.parts(name).sum(-1) for name in pair)
        return ratio_of(arm, against, seed=seed)


def run_interleaved(
    arms: Mapping[str, TimedArmRunner],
    *,
    pairs: Collection[Pair],
    precision: float,
    budget: float,
    seed: int,
    progress: Progress,
    stop: StopRequest,
    now: Callable[[], float] = time.perf_counter,
) -> InterleavedTimes:
    """Round after round, until the interval of the ratio of every pair is within `precision`, or `budget` seconds are
    used."""
    usual, overhead = _warm_up(arms, stop, now)
    longer = max(1.0, _OF_OVERHEAD * overhead / _BLOCK)
    steps = int(np.clip(round(longer * _BLOCK / usual), _FEWEST_STEPS, longer * _MOST_STEPS))
    shortest = 2 * len(arms) * (steps * usual + overhead)
    if shortest > budget:
        raise StudyError(
            f"a budget of {budget:g} s is too short for one round, which takes {shortest:.1f} s",
            hint="--budget 5m, or fewer --arms",
        )
    taken = InterleavedTimes(steps=steps, times={name: [] for name in arms})
    monitor, began = SystemMonitor(), now()
    for number, order in enumerate(rounds(list(arms), seed=seed)):
        # Every arm sees the same batches, on the way there and on the way back.
        there = WARM_UP + 2 * number * steps
        seen: dict[str, list[TimedBlock]] = {name: [] for name in arms}
        for turn, name in enumerate(order):
            if stop.signal is None:
                seen[name].append(arms[name].time_steps(there if turn < len(arms) else there + steps, steps))
        if stop.signal is not None:  # a round that is not complete is dropped
            taken.stopped_by = "interrupted"
            break
        for name, blocks in seen.items():
            taken.times[name].append([block.seconds for block in blocks])
        taken.lengths += [length for block in seen[order[0]] for length in block.lengths]
        sample = monitor.sample()
        taken.samples.append(replace(sample, gpu=seen[order[-1]][-1].gpu or sample.gpu))
        done, taken.seconds = len(taken.samples), now() - began
        progress.on_step(done, loss=math.nan)
        if is_look(done) and all(is_precise_enough(taken.ratio(pair, seed=0), precision) for pair in pairs):
            taken.stopped_by = "precision"
            break
        if taken.seconds * (1 + 1 / done) > budget:  # another round would be too much
            break
    if not taken.samples:
        raise _nothing_measured(stop)
    return taken


def _warm_up(arms: Mapping[str, TimedArmRunner], stop: StopRequest, now: Callable[[], float]) -> tuple[float, float]:
    """Run every arm until nothing is done for the first time any more; the usual seconds of a step, and those of a
    block that are not in its steps."""
    usual, overhead = [], []
    for arm in arms.values():
        began = now()
        seconds = arm.time_steps(0, WARM_UP).seconds
        if stop.signal is not None:
            raise _nothing_measured(stop)
        usual.append(seconds[-1].sum())
        overhead.append(max(0.0, now() - began - seconds.sum()))
    return float(np.median(usual)), float(np.median(overhead))


def _nothing_measured(stop: StopRequest) -> Stopped:
    return Stopped(
        "stopped before the first round was over; nothing was measured", signal=int(stop.signal or 2), hint=None
    )


# -- the order -----------------------------------------------------------------------------------------------------


def rounds(arms: Sequence[str], *, seed: int) -> Iterator[tuple[str, ...]]:
    """Rounds without end. In each, every arm has two blocks: all arms in a random order, then in the mirrored one.

    With two arms that is ABBA or BAAB. The two blocks of every arm lie around the same middle, so a machine that drifts
    steadily slows all arms alike within the round. Rounds come in pairs: after an order its reverse, so what
    bends upwards (a machine that warms up) favors an arm in one of the two and not in the other.
    """
    if not arms or len(set(arms)) < len(arms):
        raise ValueError(f"arms must be there, and each once: {list(arms)}")
    return _rounds(arms, np.random.default_rng(seed))


def _rounds(arms: Sequence[str], draw: np.random.Generator) -> Iterator[tuple[str, ...]]:
    while True:
        there = tuple(arms[i] for i in draw.permutation(len(arms)))
        back = there[::-1]
        yield there + back
        yield back + there
