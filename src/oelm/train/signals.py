"""Signals: a request to stop is kept until the loop is at a point where nothing is lost."""

import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_ASKS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


class StopRequest:
    """Whether, and by which signal, a stop was asked for."""

    def __init__(self) -> None:
        self.signal: int | None = None
        self.at_once = True
        """Before training there is nothing to lose, and nobody who would look."""
        self.hears = True
        """Whether signals arrive here."""

    def ask(self, number: int, frame: FrameType | None) -> None:
        again = self.signal is not None and number == signal.SIGINT  # the second Ctrl-C means now
        self.signal = number
        if self.at_once or again:
            raise KeyboardInterrupt

    def ask_from_outside(self) -> None:
        """For another thread of this process: as if the process had been sent SIGTERM."""
        if self.hears:
            os.kill(os.getpid(), signal.SIGTERM)
        else:
            self.signal = signal.SIGTERM


@contextmanager
def catch_signals() -> Iterator[StopRequest]:
    """Outside the main thread no signals arrive, and nothing is changed."""
    stop = StopRequest()
    try:
        before = {number: signal.signal(number, stop.ask) for number in _ASKS}
    except ValueError:
        stop.hears = False
        yield stop
        return
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
