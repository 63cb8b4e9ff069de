"""Power: what so many seeds and examples can find, or show to be absent, and how many it takes.

For the test of `Estimate`: t over the seeds, and where examples count as chance too, the two half-widths in quadrature.
Tests of a family share their 5 %: under Holm's correction of m tests, `alpha` = 0.05 / m is what each has for certain.
In plain Python: a study file is checked in a blink, without the third of a second that importing scipy takes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

ALPHA = 0.05
POWER = 0.8
_MOST_SEEDS = 1000


def power_to_find(effect: float, *, n: int, spread: float, example_se: float = 0.0, alpha: float = ALPHA) -> float:
    """How often a true mean difference of this size is found.

    `spread` is the standard deviation of the differences seed by seed, `example_se` the standard error that the
    examples give their mean. That no difference is shown to be above `-effect` is as likely.
    """
    if n < 2:
        return 0.0
    se = math.hypot(spread / math.sqrt(n), example_se)
    if se == 0:
        return 1.0 if effect else 0.0

    def given(half: float) -> float:
        return _normal_cdf((effect - half) / se) + _normal_cdf((-effect - half) / se)

    return _mean_over_half_widths(given, n=n, spread=spread, example_se=example_se, tail=alpha / 2)


def power_to_equate(margin: float, *, n: int, spread: float, example_se: float = 0.0, alpha: float = ALPHA) -> float:
    """How often no true difference is shown to be within the margin (two one-sided tests)."""
    if n < 2:
        return 0.0
    se = math.hypot(spread / math.sqrt(n), example_se)
    if se == 0:
        return 1.0

    def given(half: float) -> float:
        return max(0.0, 2 * _normal_cdf((margin - half) / se) - 1)

    return _mean_over_half_widths(given, n=n, spread=spread, example_se=example_se, tail=alpha)


def power_to_decide(margin: float, *, n: int, spread: float, example_se: float = 0.0, alpha: float = ALPHA) -> float:
    """How often a verdict is reached at least, be the true difference none or the margin."""
    find = power_to_find(margin, n=n, spread=spread, example_se=example_se, alpha=alpha)
    return min(find, power_to_equate(margin, n=n, spread=spread, example_se=example_se, alpha=alpha))


def detectable(
    n: int, *, spread: float = 1.0, example_se: float = 0.0, alpha: float = ALPHA, power: float = POWER
) -> float:
    """The smallest true mean difference that is found with this power; infinite for one seed.

    Without `spread`, the answer is in units of it.
    """
    return _smallest(power_to_find, n, spread, example_se, alpha, power)


def decidable(
    n: int, *, spread: float = 1.0, example_se: float = 0.0, alpha: float = ALPHA, power: float = POWER
) -> float:
    """The smallest margin at which a verdict is reached with this power: a difference of it found, or none shown."""
    return _smallest(power_to_decide, n, spread, example_se, alpha, power)


def seeds_needed(
    margin: float, *, spread: float, example_se: float = 0.0, alpha: float = ALPHA, power: float = POWER
) -> int | None:
    """The fewest seeds that decide on this margin with this power; None if a thousand are too few."""

    def is_enough(n: int) -> bool:
        return power_to_decide(margin, n=n, spread=spread, example_se=example_se, alpha=alpha) >= power

    if not margin > 0 or not is_enough(_MOST_SEEDS):
        return None
    low, high = 1, 2
    while not is_enough(high):
        low, high = high, min(2 * high, _MOST_SEEDS)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _smallest(
    power_of: Callable[..., float], n: int, spread: float, example_se: float, alpha: float, power: float
) -> float:
    if not alpha < power < 1:
        raise ValueError(f"a power of {power}: between {alpha:g} and 1 is possible")
    if n < 2:
        return math.inf
    unit = math.hypot(spread, example_se)
    if unit == 0:
        return 0.0
    # In units of all the chance there is, so that how it is measured does not matter.
    return unit * _smallest_of_unit(power_of, n, spread / unit, example_se / unit, alpha, power)


@lru_cache(maxsize=256)
def _smallest_of_unit(
    power_of: Callable[..., float], n: int, spread: float, example_se: float, alpha: float, power: float
) -> float:
    def is_enough(size: float) -> bool:
        return power_of(size, n=n, spread=spread, example_se=example_se, alpha=alpha) >= power

    low, high = 0.0, 1.0
    while not is_enough(high):
        low, high = high, 2 * high
    while high - low > 1e-7 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def _mean_over_half_widths(
    given: Callable[[float], float], *, n: int, spread: float, example_se: float, tail: float
) -> float:
    """Of a probability that depends on the half-width of the interval, which depends on the spread that the seeds show.

    That is the true one times chi / sqrt(df), and independent of their mean.
    """
    df = n - 1
    by_seeds = t_quantile(tail, df) * spread / math.sqrt(n * df)
    by_examples = t_quantile(tail, math.inf) * example_se
    points, step = _chi_density(df)
    total = 0.0
    for chi, weight in points:
        total += weight * given(math.hypot(by_seeds * chi, by_examples))
    return total * step / 3


@lru_cache(maxsize=256)
def _chi_density(df: int) -> tuple[tuple[tuple[float, float], ...], float]:
    """(values of chi, each with its density times its weight in Simpson's rule; the step between them)."""
    low, high = max(0.0, math.sqrt(df) - 7), math.sqrt(df) + 7
    points = 128 if df > 2 else 512  # of Simpson's rule; with 2 seeds the quantile is large, and so is the slope
    step = (high - low) / points
    log_scale = (df / 2 - 1) * math.log(2) + math.lgamma(df / 2)
    weighted = []
    for number in range(points + 1):
        chi = low + number * step
        if chi == 0:
            density = math.exp(-log_scale) if df == 1 else 0.0
        else:
            density = math.exp((df - 1) * math.log(chi) - chi * chi / 2 - log_scale)
        weight = 1 if number in (0, points) else 4 if number % 2 else 2
        weighted.append((chi, weight * density))
    return tuple(weighted), step


@lru_cache(maxsize=1024)
def t_quantile(tail: float, df: float) -> float:
    """What t exceeds with this probability, for a whole number of degrees of freedom, or infinitely many."""
    low, high = 0.0, 1.0
    while _t_tail(high, df) > tail:
        low, high = high, 2 * high
    while high - low > 1e-12 * high:
        middle = (low + high) / 2
        low, high = (low, middle) if _t_tail(middle, df) <= tail else (middle, high)
    return high


def _t_tail(t: float, df: float) -> float:
    """How often t is above; Abramowitz and Stegun 26.7.3 and 26.7.4."""
    if math.isinf(df):
        return _normal_cdf(-t)
    angle = math.atan2(t, math.sqrt(df))
    cos = df / (df + t * t)  # squared
    term = total = 1.0 if df % 2 == 0 else math.sqrt(cos)
    for k in range(2 if df % 2 == 0 else 3, int(df) - 1, 2):
        term *= cos * (k - 1) / k
        total += term
    if df % 2 == 0:
        return (1 - math.sin(angle) * total) / 2
    inner = math.sin(angle) * total if df > 1 else 0.0
    return 0.5 - (angle + inner) / math.pi


def _normal_cdf(x: float) -> float:
    return math.erfc(-x / math.sqrt(2)) / 2
