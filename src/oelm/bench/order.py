"""Order: who is timed when."""

from collections.abc import Iterator, Sequence

import numpy as np


def rounds(arms: Sequence[str], *, seed: int) -> Iterator[tuple[str, ...]]:
    """Rounds without end. In each, every arm has two visits: all arms in a random order, then in the mirrored one.

    With two arms that is ABBA or BAAB. The two visits of every arm lie around the same middle, so a machine that drifts
    steadily slows all arms alike within the round. Rounds come in pairs: after an order its reverse, so what
    bends upwards (a machine that warms up) favours an arm in one of the two and not in the other.
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
