"""Tuning: the expected best by counting, without bias; responses by the t test; edges."""

import math
from itertools import combinations, pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from oelm.analysis.checks.design import at_edge
from oelm.analysis.tuning import best_of_k_curve, expected_best, response

trials = st.lists(st.floats(-100, 100), min_size=1, max_size=7)


class TestExpectedBest:
    @given(trials, st.data())
    def test_it_is_the_mean_over_all_choices(self, values, data):
        k = data.draw(st.integers(1, len(values)))
        chosen = list(combinations(values, k))
        assert expected_best(values, k, better="higher") == pytest.approx(np.mean([max(c) for c in chosen]))
        assert expected_best(values, k, better="lower") == pytest.approx(np.mean([min(c) for c in chosen]))

    @given(trials)
    def test_a_curve_goes_from_the_mean_to_the_best(self, values):
        curve = best_of_k_curve(values, better="higher")
        assert len(curve) == len(values)
        assert curve[0] == pytest.approx(np.mean(values))
        assert curve[-1] == max(values)
        assert all(a <= b + 1e-9 for a, b in pairwise(curve))

    @given(trials)
    def test_a_loss_is_an_accuracy_turned_around(self, values):
        turned = best_of_k_curve([-value for value in values], better="higher")
        assert best_of_k_curve(values, better="lower") == pytest.approx([-value for value in turned])

    def test_it_has_no_bias(self):
        """The largest of three normal numbers is 3 / (2 sqrt(pi)) on average; five trials are made each time."""
        rows = np.random.default_rng(0).normal(size=(6000, 5))
        truth = 3 / (2 * math.sqrt(math.pi))
        assert np.mean([expected_best(row, 3, better="higher") for row in rows]) == pytest.approx(truth, abs=0.025)
        with_replacement = np.sort(rows) @ np.diff((np.arange(6) / 5) ** 3)
        assert with_replacement.mean() < truth - 0.1

    def test_a_trial_that_diverged_was_a_trial(self):
        curve = best_of_k_curve([2.0, math.nan, 1.0], better="lower")
        assert curve == [math.inf, pytest.approx(4 / 3), 1.0]
        assert best_of_k_curve([0.5, math.nan], better="higher") == [-math.inf, 0.5]

    @pytest.mark.parametrize("k", [0, 3])
    def test_more_than_was_tried_is_refused(self, k):
        with pytest.raises(ValueError, match=f"best of {k} out of 2"):
            expected_best([1.0, 2.0], k, better="higher")

    def test_nothing_tried_is_an_empty_curve(self):
        assert best_of_k_curve([], better="higher") == []


def test_response_is_in_order_with_t_intervals():
    scores = {1e-3: [0.7, 0.8, 0.75], 1e-5: [0.5], 1e-4: [0.9, 0.9]}
    low, middle, high = response(scores, level=0.9)
    assert [point.value for point in (low, middle, high)] == [1e-5, 1e-4, 1e-3]
    assert (low.mean, low.low, low.high, low.n) == (0.5, -math.inf, math.inf, 1)
    assert (middle.low, middle.high, middle.n) == (0.9, 0.9, 2)
    known = stats.ttest_1samp(scores[1e-3], 0.0).confidence_interval(0.9)
    assert (high.mean, high.low, high.high) == pytest.approx((0.75, known.low, known.high))


@pytest.mark.parametrize(
    ("chosen", "grid", "edge"),
    [
        (1e-5, [1e-3, 1e-5, 1e-4], "lowest"),
        (1e-3, [1e-3, 1e-5, 1e-4], "highest"),
        (1e-4, [1e-3, 1e-5, 1e-4], None),
        (1e-4, [1e-5, 1e-4], "highest"),
        (1e-5, [1e-5, 1e-4], "lowest"),
        (1e-4, [1e-4], "lowest"),
        (1.0, [1e-3, 1e-5, 1e-4], "highest"),
    ],
)
def test_edges(chosen, grid, edge):
    assert at_edge(chosen, grid) == edge
