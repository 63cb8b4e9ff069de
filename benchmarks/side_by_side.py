"""Side by side: pieces of work take turns in one process, and what is told is the ratio of their times.

Order and statistics are those of `oelm bench`.
"""

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from oelm.bench.interleave import rounds
from oelm.bench.ratios import FEWEST, ratio_of
from oelm.bench.system import MUCH, SystemMonitor, interference
from result import Result, Target


@dataclass(frozen=True, kw_only=True)
class Turns:
    times: dict[str, NDArray[np.float64]]
    """Seconds by name, each (rounds, 2 visits, 1)."""
    others: float | None
    """The share of the cores that other processes used meanwhile."""

    def result(
        self, over: str, under: str, *, question: str, what: str, target: Target | None = None, note: str = ""
    ) -> Result:
        """The time of `over` in units of that of `under`. Whoever is under the line is so many times as fast."""
        ratio = ratio_of(self.times[over], self.times[under], seed=0)
        low, high = ratio.bounds or (None, None)
        disturbed = self.others is not None and self.others > MUCH
        notes = [note] if note else []
        notes += [f"other processes used {self.others:.0%} of the cores meanwhile"] if disturbed else []
        return Result(
            question=question,
            what=what,
            value=ratio.median,
            low=low,
            high=high,
            target=target,
            seconds={name: float(np.median(self.times[name])) for name in (over, under)},
            rounds=ratio.rounds,
            note="; ".join(notes),
        )


def take_turns(visits: Mapping[str, Callable[[], float]], *, budget: float, seed: int = 0) -> Turns:
    """Round after round until about `budget` seconds are used, and until there are enough for an interval.

    Without a budget it is one round. A visit says how many seconds a step of its work took; the first visit of each
    warms up and does not count.
    """
    for visit in visits.values():
        visit()
    times: dict[str, list[list[list[float]]]] = {name: [] for name in visits}
    watching, samples, began = SystemMonitor(), [], time.perf_counter()
    for order in rounds(list(visits), seed=seed):
        taken: dict[str, list[list[float]]] = {name: [] for name in visits}
        for name in order:
            taken[name].append([visits[name]()])
        for name, two in taken.items():
            times[name].append(two)
        samples.append(watching.sample())
        done = len(samples)
        if done >= (FEWEST if budget else 1) and (time.perf_counter() - began) * (1 + 1 / done) > budget:
            break  # another round would be too much
    return Turns(times={name: np.array(each) for name, each in times.items()}, others=interference(samples))


def seconds_of(work: Callable[[], object], number: int = 1) -> float:
    """Of one time, when done `number` times in a row; until a GPU is done with them, too."""
    _wait()
    began = time.perf_counter()
    for _ in range(number):
        work()
    _wait()
    return (time.perf_counter() - began) / number


def _wait() -> None:
    if torch.accelerator.is_available():
        torch.accelerator.synchronize()
