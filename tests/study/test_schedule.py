"""Schedule: the learning rate of every step."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.study.recipe import ScheduleConfig
from oelm.study.schedule import lr_at


def rates(total, schedule, peak=1.0):
    return [lr_at(step, total=total, peak=peak, schedule=schedule) for step in range(total)]


@pytest.mark.parametrize("warmup", [10, 0.1])
@pytest.mark.parametrize("name", ["linear", "cosine", "constant"])
def test_up_and_down(name, warmup):
    curve = rates(100, ScheduleConfig(name=name, warmup=warmup))
    assert curve[:10] == pytest.approx([(step + 1) / 11 for step in range(10)])
    assert curve[10] == 1.0
    if name == "constant":
        assert set(curve[10:]) == {1.0}
    else:
        assert curve[10:] == sorted(curve[10:], reverse=True)
        assert 0 < curve[-1] < 0.02
        assert curve[55] == pytest.approx(0.5)
    if name == "linear":
        assert curve[-1] == pytest.approx(1 / 90)
    if name == "cosine":
        assert curve[77] == pytest.approx((1 + math.cos(math.pi * 67 / 90)) / 2)


@given(
    st.sampled_from(["linear", "cosine", "constant"]),
    st.integers(1, 300),
    st.floats(0, 0.99) | st.integers(1, 400).map(float),
    st.floats(0, 1),
    st.floats(1e-7, 1),
)
def test_every_rate_is_positive_and_at_most_the_peak(name, total, warmup, floor, peak):
    floor = 0.0 if name == "constant" else floor
    curve = rates(total, ScheduleConfig(name=name, warmup=warmup, floor=floor), peak)
    assert all(0 < rate <= peak * (1 + 1e-12) for rate in curve)
    steps = round(warmup if warmup >= 1 else warmup * total)
    if steps <= total - 1:
        near = 1 / max(1, total - steps)
        assert max(curve) == curve[steps] == pytest.approx(peak), "the peak is reached"
        if name != "constant":
            assert floor * peak * (1 - 1e-12) <= curve[-1]
    if name == "linear" and steps <= total - 1:
        assert curve[-1] <= peak * (floor + (1 - floor) * near) * (1 + 1e-9)
