"""Two things timed against each other in one run: short turns in ABBA order, and the ratio of each pair."""

import random
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass


@dataclass(frozen=True)
class Ratio:
    """How long A took in units of B."""

    median: float
    low: float
    high: float
    """95 % bootstrap interval of the median ratio"""
    seconds_a: float
    seconds_b: float
    """median of one turn"""
    pairs: int

    def __str__(self) -> str:
        return (
            f"{self.median:.3f} (95 % interval {self.low:.3f} to {self.high:.3f}, {self.pairs} pairs; "
            f"{self.seconds_a:.3f} s against {self.seconds_b:.3f} s)"
        )


def interleave(
    a: Callable[[], object],
    b: Callable[[], object],
    *,
    pairs: int,
    warmup: int = 2,
    after_a: Callable[[], object] = lambda: None,
) -> Ratio:
    """Time `a` against `b`: A B, B A, A B, ... so that drift of the machine falls on both alike.

    `after_a` clears up after each `a`, outside the clock.
    """
    times_a, times_b = [], []
    for pair in range(warmup + pairs):
        if pair % 2:
            times_b.append(_seconds(b))
        times_a.append(_seconds(a))
        after_a()
        if not pair % 2:
            times_b.append(_seconds(b))
    return ratio_of(times_a[warmup:], times_b[warmup:])


def ratio_of(times_a: list[float], times_b: list[float]) -> Ratio:
    """The ratio of turns that were timed in pairs."""
    pairs = len(times_a)
    ratios = [x / y for x, y in zip(times_a, times_b, strict=True)]
    draw = random.Random(0)
    medians = sorted(statistics.median(draw.choices(ratios, k=pairs)) for _ in range(2000))
    return Ratio(
        median=statistics.median(ratios),
        low=medians[50],
        high=medians[1949],
        seconds_a=statistics.median(times_a),
        seconds_b=statistics.median(times_b),
        pairs=pairs,
    )


def _seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
