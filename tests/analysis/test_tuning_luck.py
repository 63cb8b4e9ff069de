"""The luck of tuning: two arms that are the same, tuned on a grid, come out different as rarely as the level says.

Shape suffixes: R = repetitions of a study, A = arms, S = seeds, K = points of the grid.
"""

import numpy as np
import pytest

from oelm.analysis.stats.estimate import from_seeds

REPETITIONS = 1500
# True accuracy over the grid: all points alike, the best a little better, the best far better.
RESPONSES = {
    "flat": (0.90, 0.90, 0.90, 0.90),
    "medium": (0.895, 0.90, 0.897, 0.88),
    "steep": (0.80, 0.90, 0.85, 0.60),
}
TRAINING = 0.006  # how far trainings of one point scatter, over seeds; their test and validation share it
VALIDATION, TEST = 0.009, 0.006  # and what the examples of a split add to it


def simulate(response, seeds, random):
    """(validation, test), each (R, A, S, K), of two arms that are the same."""
    shape = (REPETITIONS, 2, seeds, len(response))
    trained = np.array(response) + TRAINING * random.standard_normal(shape)
    return tuple(trained + noise * random.standard_normal(shape) for noise in (VALIDATION, TEST))


def share_of_differences(test_RAS):
    """How often a paired t test at 5 % finds one."""
    return np.mean([from_seeds(one - other).p_differs() < 0.05 for one, other in test_RAS])


@pytest.mark.parametrize("seeds", [3, 5, 10])
@pytest.mark.parametrize("name", RESPONSES)
def test_a_nested_choice_finds_no_difference_between_twins(name, seeds):
    validation, test = simulate(RESPONSES[name], seeds, np.random.default_rng([seeds, len(name)]))
    chosen_RAS1 = validation.argmax(-1)[..., None]
    found = share_of_differences(np.take_along_axis(test, chosen_RAS1, -1)[..., 0])
    allowed = 0.05 + 3 * np.sqrt(0.05 * 0.95 / REPETITIONS)
    assert found <= allowed, "its luck is in the spread over seeds"


def test_a_choice_of_one_tuning_seed_for_all_finds_many():
    """What nested tuning is there to end: the same choice, right or wrong, is in every difference."""
    random = np.random.default_rng(0)
    validation, _ = simulate(RESPONSES["medium"], 1, random)
    _, test = simulate(RESPONSES["medium"], 10, random)
    chosen_RA11 = validation[:, :, :1].argmax(-1)[..., None]
    taken_RAS1 = np.take_along_axis(test, np.broadcast_to(chosen_RA11, (*test.shape[:3], 1)), -1)
    assert share_of_differences(taken_RAS1[..., 0]) > 0.1
