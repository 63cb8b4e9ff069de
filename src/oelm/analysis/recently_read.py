"""Recently read: arrays of files that are kept in memory up to a number of bytes, and read again beyond that."""

from collections.abc import Callable
from typing import Generic, TypeVar

import numpy as np

_K = TypeVar("_K")
_V = TypeVar("_V")
_MOST_BYTES = 128 * 2**20


class RecentlyRead(Generic[_K, _V]):
    """What was read last, by key: thousands of cells are gone through one after the other, and not kept."""

    def __init__(self) -> None:
        self._kept: dict[_K, _V] = {}
        self._bytes = 0

    def get(self, key: _K, read: Callable[[], _V]) -> _V:
        if key not in self._kept:
            self._kept[key] = read()
            self._bytes += _bytes_of(self._kept[key])
        value = self._kept[key] = self._kept.pop(key)  # last in the order now
        while self._bytes > _MOST_BYTES and len(self._kept) > 1:
            self._bytes -= _bytes_of(self._kept.pop(next(iter(self._kept))))
        return value


def _bytes_of(value: object) -> int:
    return sum(part.nbytes for part in vars(value).values() if isinstance(part, np.ndarray)) if value else 0
