"""The luck of tuning: arms that are the same, tuned on a grid, come out different as rarely as the level says.

Judged as whole studies are, with Holm's correction, by `benchmarks/error_rates.py`, which `test_error_rates` holds to
the real verdicts.

Shape suffixes: R = repetitions of a study, A = arms, S = seeds, K = points of the grid.
"""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import t

with pytest.MonkeyPatch.context() as patch:  # not for longer: its names are not for the other tests
    patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from error_rates import judge

REPETITIONS = 4000
# True accuracy over the grid: all points alike, the best a little better, the best far better.
RESPONSES = {
    "flat": (0.90, 0.90, 0.90, 0.90),
    "medium": (0.895, 0.90, 0.897, 0.88),
    "steep": (0.80, 0.90, 0.85, 0.60),
}
TRAINING = 0.006  # how far trainings of one point scatter, over seeds; their test and validation share it
VALIDATION, TEST = 0.009, 0.006  # what the examples of a split add to it, training by training
COMMON = 0.005  # and what they add to a point of the grid in every training, as all are measured on the same examples


def train(response, random, *, arms, seeds):
    """(R, A, S, K): what all trainings of arms that are the same would truly give."""
    return np.array(response) + TRAINING * random.standard_normal((REPETITIONS, arms, seeds, len(response)))


def measured(trained_RASK, noise, random, common_R11K):
    return trained_RASK + noise * random.standard_normal(trained_RASK.shape) + common_R11K


def common_luck(response, random):
    return COMMON * random.standard_normal((REPETITIONS, 1, 1, len(response)))


def is_wrong(test_RASK, chosen_RAS):
    """(R): whether any arm is called better or worse than the first, each trained at the point that was chosen."""
    at = np.broadcast_to(chosen_RAS[..., None], (*test_RASK.shape[:3], 1))
    taken_RAS = np.take_along_axis(test_RASK, at, -1)[..., 0]
    return np.isin(judge(taken_RAS[:, 1:] - taken_RAS[:, :1], 1e-9), (1, -1)).any(1)


def most(share):
    """That a share of so many may be, by the luck of a simulation."""
    return share + 3 * math.sqrt(share * (1 - share) / REPETITIONS)


@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("name", RESPONSES)
def test_a_nested_choice_finds_no_difference_between_twins(name, seeds, arms):
    random, response = np.random.default_rng([seeds, len(name), arms]), RESPONSES[name]
    trained = train(response, random, arms=arms, seeds=seeds)
    validation = measured(trained, VALIDATION, random, common_luck(response, random))
    test = measured(trained, TEST, random, common_luck(response, random))
    wrong = is_wrong(test, validation.argmax(-1)).mean()
    assert wrong <= most(0.05), "its luck is in the spread over seeds"
    assert wrong > 0.03, "and it does test something"


@pytest.mark.parametrize("name", RESPONSES)
def test_a_choice_that_all_seeds_share_finds_many_and_is_warned_of(name):
    """What nested tuning is there to end: the same choice, right or wrong, is in every difference. `TUNING-NOISE`."""
    random, response = np.random.default_rng(len(name)), RESPONSES[name]
    common = common_luck(response, random)
    tuning = measured(train(response, random, arms=3, seeds=3), VALIDATION, random, common)
    test = measured(train(response, random, arms=3, seeds=10), TEST, random, common_luck(response, random))
    wrong = is_wrong(test, tuning.mean(2).argmax(-1)[..., None])
    if name != "steep":
        assert wrong.mean() > 0.1
    assert (wrong & ~is_within_noise(tuning)).mean() <= most(0.05)
    if name == "steep":
        assert is_within_noise(tuning).mean() < 0.7, "where the best is clear, that is seen"


def is_within_noise(tuning_RASK):
    """(R): whether the best two points of any arm are not apart, by a 95 % interval over the tuning seeds."""
    order_RAK = np.argsort(-tuning_RASK.mean(2), -1)
    best, second = (np.take_along_axis(tuning_RASK, order_RAK[:, :, None, [k]], -1)[..., 0] for k in (0, 1))
    apart_RAS = best - second
    n = apart_RAS.shape[-1]
    half_RA = t.isf(0.025, n - 1) * apart_RAS.std(-1, ddof=1) / math.sqrt(n)
    return (apart_RAS.mean(-1) <= half_RA).any(1)
