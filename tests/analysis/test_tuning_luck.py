"""The luck of tuning: arms that are the same, tuned on a grid, come out different as rarely as the level says.

Whole studies by `benchmarks/error_rates.py`, which does the same with many more; `test_error_rates` holds its verdicts
to the real ones.
"""

import math
from pathlib import Path

import numpy as np
import pytest

with pytest.MonkeyPatch.context() as patch:  # not for longer: its names are not for the other tests
    patch.syspath_prepend(Path(__file__).parents[2] / "benchmarks")
    from error_rates import RESPONSES, tune_twins

NUMBER = 4000
MOST = 0.05 + 3 * math.sqrt(0.05 * 0.95 / NUMBER)


@pytest.mark.parametrize("arms", [2, 3])
@pytest.mark.parametrize("n", [3, 5, 10])
@pytest.mark.parametrize("name", RESPONSES)
def test_a_nested_choice_finds_no_difference_between_twins(name, n, arms):
    wrong, _ = tune_twins(np.random.default_rng([n, len(name), arms]), NUMBER, RESPONSES[name], arms=arms, n=n)
    assert wrong.mean() <= MOST, "its luck is in the spread over seeds"
    assert wrong.mean() > 0.03, "and it does test something"


@pytest.mark.parametrize("name", RESPONSES)
def test_a_choice_that_all_seeds_share_finds_many_and_is_warned_of(name):
    """What nested tuning is there to end: the same choice, right or wrong, is in every difference."""
    wrong, warned = tune_twins(np.random.default_rng(len(name)), NUMBER, RESPONSES[name], arms=3, n=10, shared=3)
    assert (wrong & ~warned).mean() <= MOST
    if name == "steep":
        assert wrong.mean() <= MOST, "where the best is clear, it is taken"
        assert warned.mean() < 0.7
    else:
        assert wrong.mean() > 0.1
