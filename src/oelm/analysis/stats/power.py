"""Power: the smallest difference that so many seeds can find, and how many seeds a difference needs.

For the two-sided paired t test. Nothing is imported until it is computed: a study file is checked in a blink.
"""

from __future__ import annotations

import math

# The smallest detectable difference in standard deviations at the usual level and power, by number of seeds: what a
# check of a study file asks for, without the third of a second that importing scipy takes. A test computes it.
USUAL = (0.95, 0.8)
USUAL_DETECTABLE = {
    2: 11.5499,
    3: 3.26404,
    4: 2.12795,
    5: 1.682,
    6: 1.43454,
    7: 1.27257,
    8: 1.15603,
    9: 1.06697,
    10: 0.996001,
}


def detectable(n: int, *, spread: float = 1.0, level: float = 0.95, power: float = 0.8) -> float:
    """The smallest true mean difference that is found with this power; infinite for one seed.

    `spread` is the standard deviation of the differences seed by seed; without it, the answer is in units of it.
    """
    if n < 2:
        return math.inf
    if (level, power) == USUAL and n in USUAL_DETECTABLE:
        return USUAL_DETECTABLE[n] * spread
    return computed_detectable(n, level=level, power=power) * spread


def computed_detectable(n: int, *, level: float, power: float) -> float:
    """In standard deviations."""
    if not 1 - level < power < 1:
        raise ValueError(f"a power of {power}: between {1 - level:g} and 1 is possible")
    low, high = 0.0, 1.0
    while _power(n, high, level=level) < power:
        low, high = high, 2 * high
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _power(n, middle, level=level) < power else (low, middle)
    return high


def seeds_needed(
    effect: float, *, spread: float, level: float = 0.95, power: float = 0.8, most: int = 1000
) -> int | None:
    """The fewest seeds with which such a true mean difference is found with this power; none if `most` are too few."""
    if effect == 0:
        return None
    if spread == 0:
        return 2
    size = min(abs(effect) / spread, 1e6)  # any more is found just as surely, and its square is still a number
    if _power(most, size, level=level) < power:
        return None
    low, high = 1, most
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if _power(middle, size, level=level) < power else (low, middle)
    return high


def _power(n: int, size: float, *, level: float) -> float:
    """How often a true mean difference of `size` standard deviations is found."""
    from scipy.special import ncfdtr, stdtrit

    critical = float(stdtrit(n - 1, (1 + level) / 2))
    # t squared is F, so both sides are in one number. It is NaN where it is too small to be computed (below 1e-30).
    missed = float(ncfdtr(1, n - 1, n * size**2, critical**2))
    return 1.0 if math.isnan(missed) else 1 - missed
