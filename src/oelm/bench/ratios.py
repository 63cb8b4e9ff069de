"""Ratio: how long an arm's step takes in units of the base's, and how sure that is.

A machine that others use gets slower and faster by itself: steadily, in waves, in two clock rates, in bursts. All of it
multiplies the time of whoever is running, so it is taken out by a ratio of times that were measured close together, in
an order that favors nobody (`interleave.rounds`). What remains of it is symmetric around the true ratio, and a median
over rounds does not mind how far out a disturbed round lies.

Shape suffixes: R = rounds, V = visits (timed blocks) of a round, which are two, S = steps of a visit.
"""

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from oelm.runs.bench import LEVEL, Ratio

# Below this, no two of the round ratios hold the true one 95 times in 100 between them: 2 * 0.5^5 is above 0.05.
FEWEST = 6
FIRST_LOOK = 16
RESAMPLES = 1000
# So many lags without a correlation, and further ones are chance.
UNSEEN = 5


def ratio_of(arm_visits: ArrayLike, base_visits: ArrayLike, *, seed: int) -> Ratio:
    """The ratio of two arms from the seconds of their steps, each of shape (rounds, 2 visits, steps), in order of time.

    The time of a visit is the median of its steps, and a round's ratio is that of the two arms' two visits together.
    The interval is that of a stationary bootstrap: medians of rounds drawn in runs, of `block_length` on average.
    """
    arm_RVS, base_RVS = _seconds(arm_visits), _seconds(base_visits)
    if len(arm_RVS) != len(base_RVS):
        raise ValueError(f"{len(arm_RVS)} rounds of the arm and {len(base_RVS)} of the base")
    logs_R = np.log(_times(arm_RVS) / _times(base_RVS))
    length = block_length(logs_R)
    median = math.exp(np.median(logs_R))
    low, high = _interval(logs_R, length, np.random.default_rng(seed))
    return Ratio(
        median=median,
        low=min(low, median),  # drawn medians may all lie to one side of it
        high=None if high is None else max(high, median),
        trimmed=math.exp(_trimmed_mean(logs_R)),
        floor=float(np.quantile(arm_RVS, 0.05) / np.quantile(base_RVS, 0.05)),
        rounds=len(logs_R),
        block_length=length,
    )


def is_look(rounds: int) -> bool:
    """Whether to look, after so many rounds, if they are enough: at 16, 32, 64, ...

    Whoever stops at a narrow interval prefers those that chance has made narrow. Few looks, and none before 16 rounds,
    keep what that costs small: tests/bench/protocols.py counts it.
    """
    return rounds >= FIRST_LOOK and rounds & (rounds - 1) == 0


def is_precise_enough(ratio: Ratio, precision: float) -> bool:
    """Whether to stop here: it is time to look, and the interval reaches no further than `precision` to each side."""
    return is_look(ratio.rounds) and ratio.half_width is not None and ratio.half_width <= precision


def count_outliers(steps: ArrayLike) -> int:
    """How many of an arm's steps took more than 3 times their median. They are counted, and stay in."""
    seconds = np.asarray(steps, dtype=float)
    return int((seconds > 3 * np.median(seconds)).sum())


def block_length(series: NDArray[np.float64]) -> float:
    """How many in a row to keep together, by the autocorrelation of the series: longer the further apart two still
    resemble each other, 1 where no autocorrelation is seen or it is negative.

    It is the rule of Politis and White (2004, corrected with Patton in 2009) for the stationary bootstrap, made of the
    ranks, so that a few rounds in a burst cannot hide what the others have in common. Where neighbors do resemble
    each other (correlation 0.6), an interval of 95 % holds the truth in 81, 87 and 90 % with 32, 64 and 128 rounds,
    in 2000 simulations each; without blocks in 75, 75 and 74 %.
    """
    n = len(series)
    ranks = np.unique(series, return_inverse=True)[1]
    apart = ranks - ranks.mean()
    if n < FEWEST or not apart.any():
        return 1.0
    lags = min(math.ceil(math.sqrt(n)) + UNSEEN, n - 1)
    correlation = np.array([apart[: n - lag] @ apart[lag:] for lag in range(lags + 1)]) / (apart @ apart)
    reach = _reach(np.abs(correlation) > 2 * math.sqrt(math.log10(n) / n))
    lag = np.arange(1, min(2 * reach, lags) + 1)
    weighted = np.minimum(1.0, 2 - lag / max(reach, 1)) * correlation[lag]
    variance = 1 + 2 * weighted.sum()
    slope = 2 * (lag * weighted).sum()
    if variance <= 0 or slope <= 0:
        return 1.0
    return float(np.clip((slope / variance) ** (2 / 3) * n ** (1 / 3), 1.0, min(3 * math.sqrt(n), n / 3)))


def _reach(seen: NDArray[np.bool_]) -> int:
    """The last lag at which a correlation is seen, before `UNSEEN` lags in a row at which none is."""
    reach = 0
    for lag in np.flatnonzero(seen[1:]) + 1:
        if lag - reach > UNSEEN:
            break
        reach = int(lag)
    return reach


def _seconds(visits: ArrayLike) -> NDArray[np.float64]:
    seconds_RVS = np.asarray(visits, dtype=float)
    if seconds_RVS.ndim != 3 or seconds_RVS.shape[1] != 2 or not seconds_RVS.size:
        raise ValueError(f"visits of shape {seconds_RVS.shape}, not (rounds, 2, steps)")
    if not (np.isfinite(seconds_RVS) & (seconds_RVS > 0)).all():
        raise ValueError("a step took no time, or no number of seconds")
    return seconds_RVS


def _times(seconds_RVS: NDArray[np.float64]) -> NDArray[np.float64]:
    times_R: NDArray[np.float64] = np.median(seconds_RVS, axis=2).sum(axis=1)
    return times_R


def _trimmed_mean(logs_R: NDArray[np.float64]) -> float:
    cut = len(logs_R) // 5
    return float(np.sort(logs_R)[cut : len(logs_R) - cut].mean())


def _interval(logs_R: NDArray[np.float64], length: float, draw: np.random.Generator) -> tuple[float, float | None]:
    n = len(logs_R)
    if n < FEWEST:
        return 0.0, None
    medians = np.median(logs_R[_resamples(n, length, draw)], axis=1)
    tail = _tail(n / length)
    low, high = np.quantile(medians, [tail, 1 - tail])
    return math.exp(low), math.exp(high)


def _resamples(n: int, length: float, draw: np.random.Generator) -> NDArray[np.int64]:
    """Which rounds each resample is made of: runs of rounds that follow each other, of random length and start."""
    starts = draw.integers(n, size=(RESAMPLES, n))
    if length == 1:
        return starts
    index = np.arange(n)
    begins = draw.random((RESAMPLES, n)) < 1 / length
    begins[:, 0] = True
    starts_of_runs = np.maximum.accumulate(np.where(begins, index, 0), axis=1)
    return (np.take_along_axis(starts, starts_of_runs, axis=1) + index - starts_of_runs) % n


def _tail(n: float) -> float:
    """The share of resamples to leave out at each end.

    Resamples of n vary as if the sample were all there is: too little by (n - 1) / n, and by normal instead of t
    quantiles. What is left out is chosen so that the interval of a mean would be right (Hesterberg 2015).
    """
    from scipy.special import ndtr, stdtrit

    n = max(n, 2.0)
    return float(ndtr(math.sqrt(n / (n - 1)) * stdtrit(n - 1, (1 - LEVEL) / 2)))
