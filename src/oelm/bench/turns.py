"""Turns: arms take short turns at training the same steps, until the ratio of their times is known."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from oelm.bench.order import rounds
from oelm.bench.ratios import Ratio, enough, is_look, ratio_of
from oelm.bench.surroundings import Sample, Watching
from oelm.bench.timing import Stop
from oelm.errors import Stopped, StudyError
from oelm.train.signals import Stop as Signals
from oelm.train.watch import Watch

Seconds = NDArray[np.float64]
Pair = tuple[str, str]
"""An arm, and the one whose time is the unit."""

WARM_UP = 3  # steps of every arm before the clock counts
_VISIT = 0.5  # seconds that a visit should take: long enough for the clock, short enough for the machine to stay itself
_FEWEST_STEPS, _MOST_STEPS = 2, 20
_OF_COMING = 1 / 3  # where coming and going takes long, as it does in processes, a visit takes at least so much of that


@dataclass(frozen=True, kw_only=True)
class Visit:
    """Some steps of one arm, in a row."""

    seconds: Seconds
    """Of each step forward, backward and optimiser: (steps, 3)."""
    lengths: tuple[int, ...]
    """Tokens of a row, of every pass."""
    gpu: dict[str, float] = field(default_factory=dict)
    """Its clock and temperature at the end, where whoever looks later would see it idle."""


class Visited(Protocol):
    """An arm that can be timed, here or in a process of its own."""

    def visit(self, first: int, steps: int) -> Visit:
        """Train on the batches of the study's steps `first`, `first + 1`, ..., which are the same for every arm."""


@dataclass
class Taken:
    """What has been measured so far."""

    steps: int
    """Of a visit."""
    times: dict[str, list[list[Seconds]]]
    """By arm: rounds of two visits, each (steps, 3 parts)."""
    lengths: list[int] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    stopped_by: Stop = "budget"
    seconds: float = 0.0

    @property
    def length(self) -> float:
        """Mean tokens of a row, padding with it."""
        return float(np.mean(self.lengths))

    def parts(self, name: str) -> Seconds:
        """(rounds, 2 visits, steps, 3 parts)"""
        return np.array(self.times[name])

    def ratio(self, pair: Pair, *, seed: int) -> Ratio:
        """Of whole steps of the first in units of the second's."""
        arm, against = (self.parts(name).sum(-1) for name in pair)
        return ratio_of(arm, against, seed=seed)


def take_turns(
    arms: Mapping[str, Visited],
    *,
    pairs: Collection[Pair],
    precision: float,
    budget: float,
    seed: int,
    watch: Watch,
    stop: Signals,
    now: Callable[[], float] = time.perf_counter,
) -> Taken:
    """Round after round, until the interval of the ratio of every pair is within `precision`, or `budget` seconds are
    used."""
    usual, around = _warmed_up(arms, stop, now)
    longer = max(1.0, _OF_COMING * around / _VISIT)
    steps = int(np.clip(round(longer * _VISIT / usual), _FEWEST_STEPS, longer * _MOST_STEPS))
    shortest = 2 * len(arms) * (steps * usual + around)
    if shortest > budget:
        raise StudyError(
            f"a budget of {budget:g} s is too short for one round, which takes {shortest:.1f} s",
            hint="--budget 5m, or fewer --arms",
        )
    taken = Taken(steps=steps, times={name: [] for name in arms})
    watching, began = Watching(), now()
    for number, order in enumerate(rounds(list(arms), seed=seed)):
        # Every arm sees the same batches, on the way there and on the way back.
        there = WARM_UP + 2 * number * steps
        seen: dict[str, list[Visit]] = {name: [] for name in arms}
        for place, name in enumerate(order):
            if stop.signal is None:
                seen[name].append(arms[name].visit(there if place < len(arms) else there + steps, steps))
        if stop.signal is not None:  # a round that is not whole is left out
            taken.stopped_by = "interrupted"
            break
        for name, visits in seen.items():
            taken.times[name].append([visit.seconds for visit in visits])
        taken.lengths += [length for visit in seen[order[0]] for length in visit.lengths]
        taken.samples.append(replace(watching.sample(), **seen[order[-1]][-1].gpu))
        done, taken.seconds = len(taken.samples), now() - began
        watch.stepped(done, loss=math.nan)
        if is_look(done) and all(enough(taken.ratio(pair, seed=0), precision) for pair in pairs):
            taken.stopped_by = "precision"
            break
        if taken.seconds * (1 + 1 / done) > budget:  # another round would be too much
            break
    if not taken.samples:
        raise _nothing_measured(stop)
    return taken


def _warmed_up(arms: Mapping[str, Visited], stop: Signals, now: Callable[[], float]) -> tuple[float, float]:
    """Run every arm until nothing is done for the first time any more; the usual seconds of a step, and those of a
    visit that are not in its steps."""
    usual, around = [], []
    for arm in arms.values():
        began = now()
        seconds = arm.visit(0, WARM_UP).seconds
        if stop.signal is not None:
            raise _nothing_measured(stop)
        usual.append(seconds[-1].sum())
        around.append(max(0.0, now() - began - seconds.sum()))
    return float(np.median(usual)), float(np.median(around))


def _nothing_measured(stop: Signals) -> Stopped:
    return Stopped(
        "stopped before the first round was over; nothing was measured", signal=int(stop.signal or 2), hint=None
    )
