"""Signals: a request to stop is kept; the second Ctrl-C means now."""

import os
import signal
import threading

import pytest

from oelm.train.signals import catch_signals


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGUSR1])
def test_a_request_is_kept_and_the_handlers_come_back(number):
    before = signal.getsignal(number)
    with catch_signals() as stop:
        assert stop.signal is None
        stop.at_once = False
        os.kill(os.getpid(), number)
        assert stop.signal == number
    assert signal.getsignal(number) is before


def test_the_second_ctrl_c_means_now():
    with catch_signals() as stop:
        stop.at_once = False
        os.kill(os.getpid(), signal.SIGTERM)
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)


def test_before_training_any_of_them_means_now():
    with catch_signals() as stop:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM


def test_outside_the_main_thread_nothing_is_changed():
    before = signal.getsignal(signal.SIGINT)
    seen = []

    def work():
        with catch_signals() as stop:
            seen.append((stop.signal, signal.getsignal(signal.SIGINT)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [(None, before)]
