"""Signals: a request to stop is kept until the loop is at a place where nothing is lost."""

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class Stop:
    """Whether, and by which signal, a stop was asked for."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at_once = True
        """Before training there is nothing to lose, and nobody who would look."""

    def ask(self, number: int, frame: FrameType | None) -> None:
        again = self.signal is not None and number == signal.SIGINT  # the second Ctrl-C means now
        self.signal = number
        if self.at_once or again:
            raise KeyboardInterrupt


@contextmanager
def listening() -> Iterator[Stop]:
    """Outside the main thread no signals arrive, and nothing is changed."""
    stop = Stop()
    try:
        before = {number: signal.signal(number, stop.ask) for number in _ASKS}
    except ValueError:
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
