"""Clock: seconds go to the kind they were spent on, once."""

import pytest

from oelm.train.loop import Clock


class Time:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


@pytest.fixture
def time():
    return Time()


def test_an_inner_kind_is_taken_out_of_the_outer(time):
    clock = Clock(now=time)
    with clock.measure("training"):
        time.now += 1
        with clock.measure("data"):
            time.now += 10
            with clock.measure("checkpoints"):
                time.now += 100
        with clock.measure("evaluation"):
            time.now += 1000
        time.now += 2
    time.now += 5000
    with clock.measure("training"):
        time.now += 4
    assert clock.seconds == {"training": 7, "data": 10, "checkpoints": 100, "evaluation": 1000}


def test_time_counts_when_something_goes_wrong(time):
    clock = Clock({"training": 3.0}, now=time)

    def fails():
        with clock.measure("training"), clock.measure("data"):
            time.now += 2
            raise KeyError

    with pytest.raises(KeyError):
        fails()
    assert (clock.seconds["training"], clock.seconds["data"]) == (3, 2)
