"""Paired: the t test's own numbers, intervals that cover, and error rates that are what they say."""

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy import stats

from oelm.analysis.stats.estimate import Estimate, Interval, VarianceSource, bca_interval, from_seeds, holm

pytestmark = pytest.mark.slow

REPEATS = 4000
# Three standard errors of a rate of 5 % from that many repetitions.
CHANCE = 3 * math.sqrt(0.05 * 0.95 / REPEATS)

numbers = st.floats(-100, 100).map(lambda value: round(value, 3))
differences = st.lists(numbers, min_size=2, max_size=8)
values = st.floats(-100, 100).map(lambda value: round(value, 2))


def normal_seeds(n: int, *, mean: float = 0.0, seed: int = 0) -> list[Estimate]:
    drawn = np.random.default_rng([seed, n]).normal(mean, 1.0, size=(REPEATS, n))
    return [from_seeds(row) for row in drawn]


def both_sources(mean: float, seed_se: float, example_se: float) -> Estimate:
    return Estimate(mean=mean, seeds=VarianceSource(se=seed_se, df=2), examples=VarianceSource(se=example_se, df=199))


class TestExact:
    @pytest.mark.parametrize("n", [2, 3, 5, 10])
    def test_it_is_the_paired_t_test(self, n):
        d = np.random.default_rng(n).normal(0.3, 1.0, size=n)
        estimate = from_seeds(d)
        interval = estimate.interval(0.9)
        known = stats.ttest_1samp(d, 0.1).confidence_interval(0.9)
        assert (interval.low, interval.high) == pytest.approx((known.low, known.high))
        assert estimate.p_differs(0.1) == pytest.approx(stats.ttest_1samp(d, 0.1).pvalue)
        assert estimate.p_above(0.1) == pytest.approx(stats.ttest_1samp(d, 0.1, alternative="greater").pvalue)
        assert estimate.p_below(0.1) == pytest.approx(stats.ttest_1samp(d, 0.1, alternative="less").pvalue)
        assert estimate.n == n

    def test_by_hand(self):
        estimate = from_seeds([1, 2, 3])
        assert (estimate.mean, estimate.se) == pytest.approx((2, 1 / math.sqrt(3)))
        assert estimate.interval().high == pytest.approx(2 + 4.302653 / math.sqrt(3), abs=1e-6)

    def test_equivalence_is_the_worse_of_two_one_sided_tests(self):
        d = [0.1, -0.2, 0.15, 0.05]
        above = stats.ttest_1samp(d, -0.5, alternative="greater").pvalue
        below = stats.ttest_1samp(d, 0.5, alternative="less").pvalue
        assert below > above
        assert from_seeds(d).p_within(0.5) == pytest.approx(below)
        with pytest.raises(ValueError, match="margin"):
            from_seeds(d).p_within(0.0)

    def test_two_sources_add_in_quadrature(self):
        half = math.hypot(4.302653 * 0.3, 1.971957 * 0.2)
        assert both_sources(1.0, 0.3, 0.2).interval().high == pytest.approx(1 + half, abs=1e-5)

    def test_far_tails_are_small_and_not_an_error(self):
        assert 0 < both_sources(1e6, 1.0, 1.0).p_above(0) < 1e-11
        assert from_seeds(1 + 1e-7 * np.arange(200)).p_above(0) == 0


class TestLittleToGoOn:
    def test_one_seed_decides_nothing(self):
        estimate = from_seeds([0.25])
        assert estimate.interval() == Interval(low=-math.inf, high=math.inf, level=0.95)
        assert estimate.mean == 0.25
        ps = [estimate.p_above(-9), estimate.p_below(9), estimate.p_differs(), estimate.p_within(9)]
        assert ps == [1, 1, 1, 1]
        assert not estimate.no_variation

    # What the subtraction of equal accuracies leaves: the same to all but the last bits.
    @pytest.mark.parametrize("d", [[0.0, 0.0, 0.0], [0.91 - 0.9, 0.81 - 0.8, 0.71 - 0.7]])
    def test_no_variation_is_said(self, d):
        estimate = from_seeds(d)
        assert estimate.no_variation
        interval = estimate.interval()
        assert interval.low == interval.high == estimate.mean
        assert (estimate.p_above(-1), estimate.p_above(1), estimate.p_within(1)) == (0, 1, 0)
        assert estimate.p_differs(estimate.mean) == 1
        assert bca_interval(d) is None

    @pytest.mark.parametrize("d", [[], [[1.0, 2.0]], [1.0, math.nan], [math.inf, 1.0]])
    def test_what_is_not_a_difference_a_seed_is_refused(self, d):
        with pytest.raises(ValueError, match="differences"):
            from_seeds(d)


class TestInvariance:
    @given(differences, values)
    def test_swapping_the_arms_swaps_the_tails(self, d, value):
        estimate, swapped = from_seeds(d), from_seeds([-one for one in d])
        assert swapped.p_below(-value) == pytest.approx(estimate.p_above(value))
        assert swapped.p_within(1.0) == pytest.approx(estimate.p_within(1.0))
        assert swapped.interval().low == pytest.approx(-estimate.interval().high)

    @given(differences, st.randoms(use_true_random=False))
    def test_the_order_of_seeds_does_not_matter(self, d, random):
        shuffled = random.sample(d, len(d))
        assert from_seeds(shuffled).p_differs() == pytest.approx(from_seeds(d).p_differs())
        assert bca_interval(shuffled, resamples=99) == bca_interval(d, resamples=99)

    @given(differences, values)
    def test_a_shift_shifts(self, d, shift):
        estimate, shifted = from_seeds(d), from_seeds([one + shift for one in d])
        assert shifted.interval().low == pytest.approx(estimate.interval().low + shift, abs=1e-6)
        assume(estimate.se > 0)  # without variation all depends on the last bits of the mean
        assert shifted.p_above(shift) == pytest.approx(estimate.p_above(0), abs=1e-6)

    @given(differences, st.sampled_from([1e-6, 0.01, 100.0, 1e9]))
    def test_the_unit_does_not_matter(self, d, unit):
        estimate, scaled = from_seeds(d), from_seeds([one * unit for one in d])
        assert scaled.no_variation == estimate.no_variation
        assert scaled.p_above(0) == pytest.approx(estimate.p_above(0))

    @settings(max_examples=200)
    @given(values, st.floats(0.01, 10), st.floats(0, 10), values, st.floats(0.5, 0.999))
    def test_p_values_and_intervals_agree(self, mean, seed_se, example_se, value, level):
        estimate = both_sources(mean, seed_se, example_se)
        p = estimate.p_differs(value)
        assume(abs(p - (1 - level)) > 1e-6)
        assert (p < 1 - level) == (not estimate.interval(level).contains(value))

    @given(values, st.floats(0.01, 10), st.floats(0.01, 10), values)
    def test_a_second_source_never_makes_it_more_certain(self, mean, seed_se, example_se, value):
        one, two = both_sources(mean, seed_se, 0.0), both_sources(mean, seed_se, example_se)
        assert two.p_differs(value) >= one.p_differs(value) - 1e-9
        assert one.p_above(value) + one.p_below(value) == pytest.approx(1)
        assert two.p_above(value) + two.p_below(value) == pytest.approx(1)


def test_inside_and_contains():
    interval = Interval(low=-1.0, high=1.0, level=0.9)
    assert interval.contains(1.0)
    assert not interval.contains(1.1)
    assert interval.inside(-1.5, 1.5)
    assert not interval.inside(-1.0, 1.5)
    assert not interval.inside(-0.5, 1.5)


class TestRates:
    """By simulation: how often an interval holds the truth, and how often there is a false finding."""

    @pytest.mark.parametrize("n", [2, 3, 5, 10])
    def test_intervals_cover_and_better_is_rare(self, n):
        estimates = normal_seeds(n)
        intervals = [estimate.interval() for estimate in estimates]
        assert 0.93 <= np.mean([interval.contains(0.0) for interval in intervals]) <= 0.97
        assert np.mean([interval.low > 0 for interval in intervals]) <= 0.025 + CHANCE
        assert np.mean([estimate.p_above(0) <= 0.025 for estimate in estimates]) <= 0.025 + CHANCE

    @pytest.mark.parametrize("n", [2, 3, 5, 10])
    def test_false_equivalence_at_the_margin_is_rare(self, n):
        # With two seeds of spread 1, a margin of 30 is what two one-sided tests can at all succeed at.
        margin = 30.0 if n == 2 else 5.0
        estimates = normal_seeds(n, mean=margin, seed=1)
        rate = np.mean([estimate.p_within(margin) <= 0.05 for estimate in estimates])
        assert 0.03 <= rate <= 0.05 + CHANCE

    @pytest.mark.parametrize("n", [3, 5])
    def test_false_non_inferiority_at_the_margin_is_rare(self, n):
        rate = np.mean([estimate.p_above(-2.0) <= 0.05 for estimate in normal_seeds(n, mean=-2.0, seed=2)])
        assert 0.04 <= rate <= 0.05 + CHANCE

    def test_holm_keeps_the_whole_family(self):
        """Four arms against one baseline, whose noise they share; no arm differs."""
        generator = np.random.default_rng(3)
        d = generator.normal(size=(REPEATS, 4, 5)) - generator.normal(size=(REPEATS, 1, 5))
        families = [{str(arm): from_seeds(row).p_differs() for arm, row in enumerate(rows)} for rows in d]
        unadjusted = np.mean([min(family.values()) <= 0.05 for family in families])
        adjusted = np.mean([min(holm(family).values()) <= 0.05 for family in families])
        assert unadjusted > 0.1
        assert 0.02 <= adjusted <= 0.05 + CHANCE


class TestBootstrap:
    def test_two_seeds_have_none(self):
        assert bca_interval([0.1, 0.4]) is None
        assert bca_interval([0.1, 0.4, 0.3]) is not None

    def test_it_is_near_the_t_interval_for_many_seeds(self):
        d = np.random.default_rng(4).normal(1.0, 1.0, size=100)
        t, bca = from_seeds(d).interval(0.9), bca_interval(d, level=0.9)
        assert bca is not None
        assert bca.level == 0.9
        assert (bca.low, bca.high) == pytest.approx((t.low, t.high), abs=0.03)

    @pytest.mark.parametrize("n", [3, 8, 40])
    def test_it_is_that_of_scipy(self, n):
        """Whose import takes longer than all else that is computed."""
        d = np.random.default_rng(n).exponential(size=n)
        one = stats.bootstrap((np.sort(d),), np.mean, method="BCa", rng=np.random.default_rng(3))
        bca, theirs = bca_interval(d, seed=3), one.confidence_interval
        assert bca is not None
        assert (bca.low, bca.high) == pytest.approx((theirs.low, theirs.high), rel=1e-12)

    def test_it_leans_with_the_data(self):
        d = np.random.default_rng(5).exponential(size=30)
        bca = bca_interval(d)
        assert bca is not None
        assert bca.high - d.mean() > 1.1 * (d.mean() - bca.low)

    def test_it_is_narrower_than_it_should_be_with_few_seeds(self):
        """Why it is never shown alone."""
        rows = np.random.default_rng(6).normal(size=(400, 3))
        found = [bca_interval(row, resamples=199) for row in rows]
        covered = np.mean([interval is not None and interval.contains(0.0) for interval in found])
        assert 0.6 < covered < 0.85

    def test_the_seed_is_all_its_randomness(self):
        d = np.random.default_rng(7).normal(size=20)
        assert bca_interval(d, seed=1) == bca_interval(d, seed=1) != bca_interval(d, seed=2)


class TestHolm:
    def test_by_hand(self):
        assert holm({"a": 0.04, "b": 0.01, "c": 0.03}) == pytest.approx({"a": 0.06, "b": 0.03, "c": 0.06})
        assert holm({"a": 0.9, "b": 0.8}) == {"a": 1.0, "b": 1.0}
        assert holm({}) == {}

    @given(st.dictionaries(st.text(), st.floats(0, 1), max_size=6))
    def test_between_the_p_value_and_bonferroni(self, ps):
        adjusted = holm(ps)
        assert list(adjusted) == list(ps)
        for name, p in ps.items():
            assert p <= adjusted[name] <= min(1, len(ps) * p)
        ordered = sorted(ps, key=lambda name: ps[name])
        assert all(adjusted[a] <= adjusted[b] for a, b in pairwise(ordered))
