"""Clock: where the time of a cell goes."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

KINDS = ("training", "evaluation", "data", "checkpoints")


class Clock:
    """Adds up seconds by kind. Kinds do not nest: the inner one is taken out of the outer."""

    def __init__(self, seconds: dict[str, float] | None = None, *, now: Callable[[], float] = time.perf_counter):
        self.seconds = dict.fromkeys(KINDS, 0.0) | (seconds or {})
        self._now = now
        self._inner = 0.0

    @contextmanager
    def measure(self, kind: str) -> Iterator[None]:
        outer, self._inner = self._inner, 0.0
        start = self._now()
        try:
            yield
        finally:
            passed = self._now() - start
            self.seconds[kind] += passed - self._inner
            self._inner = outer + passed
