"""The instrument, on machines where the truth is known: it resolves one percent, and knows when it does not."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.signal import lfilter
from scipy.stats import binom, trim_mean

from bench.machine_made import MACHINES
from bench.protocols import CEILING, PRECISION, Told, ours, predecessors
from oelm.bench import ratios
from oelm.bench.interleave import rounds
from oelm.bench.ratios import block_length, count_outliers, is_look, is_precise_enough, ratio_of
from oelm.runs.bench import Ratio

pytestmark = pytest.mark.slow

SIMULATIONS = {1.0: 200, CEILING: 100}


@pytest.fixture(scope="module")
def told() -> dict[tuple[str, float], Told]:
    """What our protocol tells, stopped when it is precise enough, of no difference and of the most there can be."""
    return {
        (name, truth): ours(replace(machine, seed=machine.seed + 10 * simulations), truth, simulations=simulations)
        for name, machine in MACHINES.items()
        for truth, simulations in SIMULATIONS.items()
    }


def most_by_chance(simulations: int) -> float:
    """False alarms that 5 % of them give at most, 999 times in 1000."""
    return float(binom.isf(0.001, simulations, 0.05)) / simulations


@pytest.mark.parametrize("name", MACHINES)
def test_what_freezing_can_save_is_recovered_within_one_percent(name, told):
    result = told[name, CEILING]
    assert abs(np.median(result.ratio) / CEILING - 1) < 0.002
    assert (result.half_width <= PRECISION).mean() >= 0.95, "and in time"
    assert result.near(CEILING) >= 0.95
    assert result.differs.mean() > 0.99, "it is never taken for nothing"


@pytest.mark.parametrize("name", MACHINES)
def test_where_there_is_no_difference_one_is_seen_in_five_percent(name, told):
    alarms = told[name, 1.0].differs
    assert alarms.mean() <= most_by_chance(len(alarms))


def test_where_there_is_no_difference_one_is_seen_in_five_percent_over_all_machines(told):
    alarms = np.concatenate([told[name, 1.0].differs for name in MACHINES])
    assert 0.02 < alarms.mean() <= most_by_chance(len(alarms))


def test_the_predecessors_protocol_works_on_a_machine_of_ones_own():
    assert predecessors(MACHINES["quiet"], CEILING, simulations=100).near(CEILING) > 0.95
    assert not predecessors(MACHINES["quiet"], 1.0, simulations=100).differs.any()


@pytest.mark.parametrize("name", [name for name in MACHINES if name != "quiet"])
def test_the_predecessors_protocol_fails_on_a_shared_machine(name, told):
    """With more steps than ours takes: it sees what is not there, and its interval could not show what can be."""
    assert predecessors(MACHINES[name], 1.0, simulations=100).differs.mean() > 0.4
    true = predecessors(MACHINES[name], CEILING, simulations=100)
    assert true.near(CEILING) < 0.5
    assert np.median(true.half_width) > 4 * np.median(told[name, CEILING].half_width)
    assert true.steps.mean() > told[name, CEILING].steps.max()


def one_visit_a_step(round_ratios: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    base = np.ones((len(round_ratios), 2, 1))
    return base * np.reshape(round_ratios, (-1, 1, 1)), base


def test_rounds_that_resemble_their_neighbors_say_less(monkeypatch):
    """A neighbor's job that slows one arm more than the other, for many rounds."""
    draw = np.random.default_rng(0)
    waves = 0.01 * lfilter([1.0], [1.0, -0.6], draw.standard_normal((300, 228)))[:, 100:]

    def coverage() -> float:
        told = [ratio_of(*one_visit_a_step(np.exp(logs)), seed=0) for logs in waves]
        return float(np.mean([ratio.low <= 1 <= ratio.high for ratio in told]))

    # In 2000 simulations it is 0.898, and 0.735 without blocks; these are passed by chance by 1 in 1000 sets of 300.
    assert coverage() > 0.84
    monkeypatch.setattr(ratios, "block_length", lambda series: 1.0)
    assert coverage() < 0.82, "what a plain bootstrap gives"


def test_block_lengths_follow_the_autocorrelation():
    draw = np.random.default_rng(1)
    noise = draw.standard_normal((60, 356))
    lengths = []
    for keep in (-0.5, 0.0, 0.4, 0.7, 0.9):
        series = lfilter([1.0], [1.0, -keep], noise)[:, 100:]
        lengths.append(np.mean([block_length(row) for row in series]))
    assert max(lengths[:2]) < 1.2
    assert lengths[1] + 1 < lengths[2] < lengths[3] < lengths[4] < 40
    spoiled = series[0] + 1000 * (np.arange(256) == 100)
    assert block_length(spoiled) > 0.5 * block_length(series[0]) > 3, "a burst hides nothing"
    assert block_length(np.ones(64)) == 1


seconds = st.floats(min_value=1e-4, max_value=1e4)


@st.composite
def visits(draw: st.DrawFn) -> tuple[np.ndarray, np.ndarray]:
    shape = (draw(st.integers(1, 20)), 2, draw(st.integers(1, 3)))
    sizes = st.lists(seconds, min_size=math.prod(shape), max_size=math.prod(shape))
    return np.reshape(draw(sizes), shape), np.reshape(draw(sizes), shape)


def numbers(ratio: Ratio) -> list[float]:
    return [ratio.median, ratio.trimmed, ratio.floor, ratio.low, ratio.high or 0.0]


@settings(max_examples=50)
@given(both=visits(), factor=st.floats(min_value=0.01, max_value=100))
def test_an_arm_that_takes_longer_by_a_factor_has_ratios_larger_by_it(both, factor):
    arm, base = both
    plain, longer = ratio_of(arm, base, seed=1), ratio_of(factor * arm, base, seed=1)
    assert numbers(longer) == pytest.approx([factor * number for number in numbers(plain)], rel=1e-6)


@settings(max_examples=50)
@given(both=visits())
def test_base_over_arm_is_the_inverse(both):
    arm, base = both
    there, back = ratio_of(arm, base, seed=1), ratio_of(base, arm, seed=1)
    assert back.median == pytest.approx(1 / there.median)
    assert back.trimmed == pytest.approx(1 / there.trimmed)
    assert back.floor == pytest.approx(1 / there.floor)
    assert there.low <= there.median
    assert there.high is None or there.median <= there.high


@settings(max_examples=50)
@given(both=visits(), data=st.data())
def test_a_machine_that_changes_between_rounds_changes_nothing(both, data):
    arm, base = both
    speeds = data.draw(st.lists(st.sampled_from([0.25, 1.0, 2.0]), min_size=len(arm), max_size=len(arm)))
    speed = np.reshape(speeds, (-1, 1, 1))
    there = ratio_of(speed * arm, speed * base, seed=2)
    assert replace(there, floor=0) == replace(ratio_of(arm, base, seed=2), floor=0)


def test_steady_drift_within_rounds_changes_nothing():
    costs = {"a": 1.0, "b": 0.9, "c": 1.3}
    clock = itertools.count(1000)  # every step takes a thousandth longer than the first did
    taken: dict[str, list[list[float]]] = {arm: [] for arm in costs}
    for turns in itertools.islice(rounds(list(costs), seed=5), 16):
        for arm in turns:
            taken[arm].append([costs[arm] * next(clock) for _ in range(5)])
    shaped = {arm: np.reshape(steps, (16, 2, 5)) for arm, steps in taken.items()}
    for arm, cost in costs.items():
        ratio = ratio_of(shaped[arm], shaped["a"], seed=0)
        assert [ratio.median, ratio.low, ratio.high, ratio.trimmed] == pytest.approx([cost] * 4, rel=1e-12)


def test_trimmed_and_floor():
    draw = np.random.default_rng(2)
    base = np.ones((50, 2, 10))
    arm = 0.9 * base
    disturbed = np.where(draw.random((2, 50, 2, 10)) < 0.8, 1 + draw.pareto(1.0, (2, 50, 2, 10)), 1)
    ratio = ratio_of(arm * disturbed[0], base * disturbed[1], seed=0)
    assert ratio.floor == pytest.approx(0.9), "what is left in peace is enough"
    times = np.median(np.stack([arm, base]) * disturbed, axis=3).sum(axis=2)
    assert ratio.trimmed == pytest.approx(math.exp(trim_mean(np.log(times[0] / times[1]), 0.2)))


def test_a_burst_in_one_visit_of_many_is_counted_and_moves_nothing():
    arm, base = one_visit_a_step(np.random.default_rng(3).normal(0.95, 0.002, 64))
    burst = arm.copy()
    burst[10] *= 50
    assert count_outliers(arm) == 0
    assert count_outliers(burst) == 2
    assert count_outliers([1, 1, 1, 3, 3.01]) == 1
    before, after = ratio_of(arm, base, seed=0), ratio_of(burst, base, seed=0)
    assert after.median == pytest.approx(before.median, abs=2e-4)
    assert after.half_width == pytest.approx(before.half_width, rel=0.3)
    assert after.trimmed == pytest.approx(before.trimmed, abs=2e-4)


def test_too_few_rounds_cannot_say():
    for n in range(1, 6):
        ratio = ratio_of(*one_visit_a_step(np.full(n, 0.9)), seed=0)
        assert (ratio.low, ratio.high, ratio.half_width, ratio.rounds) == (0, None, None, n)
        assert ratio.median == pytest.approx(0.9)
    draw = np.random.default_rng(4)
    six = [ratio_of(*one_visit_a_step(np.exp(draw.standard_normal(6))), seed=0) for _ in range(300)]
    assert np.mean([ratio.low <= 1 <= ratio.high for ratio in six]) > 0.93


def test_it_stops_only_where_it_looks_and_only_if_precise():
    assert [n for n in range(300) if is_look(n)] == [16, 32, 64, 128, 256]
    narrow = ratio_of(*one_visit_a_step(np.full(40, 0.9)), seed=0)
    assert narrow.half_width < 1e-12
    assert not is_precise_enough(narrow, 0.01)
    for n in (16, 32):
        ratio = replace(narrow, rounds=n, low=0.89, high=0.91)
        assert is_precise_enough(ratio, 0.0101)
        assert not is_precise_enough(ratio, 0.0099)


def test_the_interval_is_the_seeds():
    both = one_visit_a_step(np.random.default_rng(5).normal(1, 0.1, 30))
    assert ratio_of(*both, seed=1) == ratio_of(*both, seed=1)
    assert ratio_of(*both, seed=1) != ratio_of(*both, seed=2)


@pytest.mark.parametrize(
    ("arm", "base", "message"),
    [
        (np.ones((3, 2, 1)), np.ones((4, 2, 1)), "3 rounds of the arm and 4 of the base"),
        (np.ones((3, 2)), np.ones((3, 2)), r"shape \(3, 2\)"),
        (np.ones((3, 3, 1)), np.ones((3, 3, 1)), r"shape \(3, 3, 1\)"),
        (np.ones((0, 2, 1)), np.ones((0, 2, 1)), r"shape \(0, 2, 1\)"),
        (np.zeros((3, 2, 1)), np.ones((3, 2, 1)), "took no time"),
        (np.ones((3, 2, 1)), np.full((3, 2, 1), np.nan), "took no time"),
    ],
)
def test_what_is_no_timing_is_refused(arm, base, message):
    with pytest.raises(ValueError, match=message):
        ratio_of(arm, base, seed=0)
