"""Example by example: exact counts, and intervals that hold when both the seeds and the examples are drawn anew.

Shape suffixes: R = repetitions, S = seeds, E = examples.
"""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays
from scipy import stats

from oelm.analysis.stats.crossed import by_weight, crossed, example_bootstrap, mcnemar
from oelm.analysis.stats.estimate import Estimate, VarianceSource, from_seeds

pytestmark = pytest.mark.slow

REPEATS = 4000
CHANCE = 3 * math.sqrt(0.05 * 0.95 / REPEATS)
# Variances of seed, example and rest, each as a share of the variance that the grand mean has.
REGIMES = {"seeds": (0.97, 0.02, 0.01), "examples": (0.02, 0.93, 0.05), "balanced": (0.5, 0.25, 0.25)}

answers = st.lists(st.tuples(st.booleans(), st.booleans()), max_size=30)
tables = arrays(np.int64, array_shapes(min_dims=2, max_dims=2, min_side=2, max_side=6), elements=st.integers(-1, 1))


def drawn(S: int, E: int, *, regime: str, repeats: int = REPEATS) -> np.ndarray:
    """Differences whose true mean is 0 and whose grand mean has variance 1."""
    seed, example, rest = REGIMES[regime]
    generator = np.random.default_rng([S, E, *regime.encode()])
    d_RSE = generator.normal(0, math.sqrt(rest * S * E), size=(repeats, S, E))
    d_RSE += generator.normal(0, math.sqrt(seed * S), size=(repeats, S, 1))
    d_RSE += generator.normal(0, math.sqrt(example * E), size=(repeats, 1, E))
    return d_RSE


def estimates_from_mean_squares(S: int, E: int, *, regime: str) -> list[Estimate]:
    """What `crossed` finds in such differences, drawn straight from the known distributions of its mean squares."""
    seed, example, rest = REGIMES[regime]
    generator = np.random.default_rng([S, E, *regime.encode()])
    mean = generator.normal(size=REPEATS)
    seeds = (seed + rest) * generator.chisquare(S - 1, REPEATS) / (S - 1)
    examples = (example + rest) * generator.chisquare(E - 1, REPEATS) / (E - 1)
    rests = rest * generator.chisquare((S - 1) * (E - 1), REPEATS) / ((S - 1) * (E - 1))
    return [
        Estimate(
            mean=float(mean[r]),
            seeds=VarianceSource(se=math.sqrt(seeds[r]), df=S - 1),
            examples=VarianceSource(se=math.sqrt(max(examples[r] - rests[r], 0)), df=E - 1),
        )
        for r in range(REPEATS)
    ]


class TestMcNemar:
    def test_by_hand(self):
        right_a = [True] * 8 + [False] * 1 + [True] * 5 + [False] * 2
        right_b = [False] * 8 + [True] * 1 + [True] * 5 + [False] * 2
        found = mcnemar(right_a, right_b)
        assert (found.both, found.only_a, found.only_b, found.neither) == (5, 8, 1, 2)
        assert found.p == pytest.approx(2 * (1 + 9) / 2**9)

    def test_no_disagreement_is_no_evidence(self):
        assert mcnemar([True, False], [True, False]).p == 1.0
        assert mcnemar([], []).p == 1.0

    def test_other_examples_are_refused(self):
        with pytest.raises(ValueError, match="shapes"):
            mcnemar([True], [True, False])

    @given(answers)
    def test_swapping_the_models_swaps_the_counts(self, pairs):
        a, b = [x for x, _ in pairs], [y for _, y in pairs]
        found, swapped = mcnemar(a, b), mcnemar(b, a)
        assert (found.only_a, found.only_b, found.p) == (swapped.only_b, swapped.only_a, swapped.p)
        assert found.both + found.only_a + found.only_b + found.neither == len(pairs)

    def test_false_findings_are_rare(self):
        generator = np.random.default_rng(0)
        right_RE = generator.random((2, 1000, 100)) < 0.8
        assert np.mean([mcnemar(a, b).p <= 0.05 for a, b in zip(*right_RE, strict=True)]) <= 0.05 + CHANCE


class TestCrossed:
    def test_by_hand(self):
        found = crossed([[1, 2], [3, 6]])
        # Seed means 1.5 and 4.5, example means 2 and 4, and what is left is +-0.5 everywhere.
        assert found.estimate.mean == 3
        assert (found.seed_se**2, found.example_se**2) == pytest.approx((4.5 / 2, 2 / 2))
        assert found.estimate.se**2 == pytest.approx(4.5 / 2 + 2 / 2 - 1 / 4)
        assert (found.num_seeds, found.num_examples) == (2, 2)

    def test_the_variance_is_that_of_the_grand_mean(self):
        """Method of moments: right on average, whichever source rules."""
        for regime in REGIMES:
            d_RSE = drawn(5, 40, regime=regime, repeats=1000)
            assert np.mean([crossed(d_SE).estimate.se ** 2 for d_SE in d_RSE]) == pytest.approx(1.0, abs=0.1)

    def test_examples_that_all_agree_leave_the_t_test(self):
        d_S = np.array([0.3, -0.1, 0.4])
        found = crossed(np.repeat(d_S[:, None], 50, axis=1))
        assert found.example_se == 0
        assert found.estimate.interval().low == pytest.approx(from_seeds(d_S).interval().low)
        assert found.estimate.p_above(0) == pytest.approx(from_seeds(d_S).p_above(0))

    def test_one_seed_decides_nothing_but_shows_its_examples(self):
        d_E = np.random.default_rng(0).integers(-1, 2, size=100)
        found = crossed(d_E[None])
        assert found.estimate.p_differs() == 1
        assert math.isinf(found.seed_se)
        assert found.example_se == pytest.approx(stats.sem(d_E))

    def test_one_example_decides_nothing(self):
        assert crossed([[1.0], [2.0]]).estimate.p_differs() == 1

    def test_arms_that_never_differ_have_no_variation(self):
        assert crossed(np.zeros((3, 20))).estimate.no_variation

    def test_seeds_that_agree_to_the_last_example_have_no_variation(self):
        found = crossed([[1, 0, 0, 1], [0, 1, 1, 0]])
        assert found.estimate.mean == 0.5
        assert found.estimate.no_variation

    @pytest.mark.parametrize("d_SE", [[1.0, 2.0], np.zeros((0, 4)), np.zeros((3, 0)), [[1.0, math.nan]]])
    def test_what_is_no_table_is_refused(self, d_SE):
        with pytest.raises(ValueError, match="differences"):
            crossed(d_SE)

    @given(tables)
    def test_never_narrower_than_seeds_alone(self, d_SE):
        both, seeds = crossed(d_SE).estimate.interval(), from_seeds(d_SE.mean(axis=1)).interval()
        assert both.low <= seeds.low + 1e-9
        assert both.high >= seeds.high - 1e-9

    @given(tables, st.randoms(use_true_random=False))
    def test_order_and_sign(self, d_SE, random):
        S, E = d_SE.shape
        shuffled = d_SE[random.sample(range(S), S)][:, random.sample(range(E), E)]
        one, two = crossed(d_SE).estimate.interval(), crossed(-shuffled).estimate.interval()
        # Of a variance that is zero but for rounding, the root is 1e-8.
        assert (two.low, two.high) == pytest.approx((-one.high, -one.low), abs=1e-6)


class TestCoverage:
    """Over-coverage up to 99 % is known, with 2 seeds and both sources about as large; under-coverage is not."""

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize(("S", "E"), [(2, 200), (3, 200), (10, 50)])
    def test_of_differences(self, S, E, regime):
        estimates = [crossed(d_SE).estimate for d_SE in drawn(S, E, regime=regime)]
        self.check(estimates, most=0.97 if S >= 5 or regime == "seeds" else 0.99)

    @pytest.mark.parametrize("regime", REGIMES)
    @pytest.mark.parametrize("E", [200, 872, 2000])
    @pytest.mark.parametrize("S", [2, 3, 5, 10])
    def test_of_mean_squares(self, S, E, regime):
        self.check(estimates_from_mean_squares(S, E, regime=regime), most=0.97 if S >= 5 or regime == "seeds" else 0.99)

    def check(self, estimates: list[Estimate], *, most: float) -> None:
        intervals = [estimate.interval() for estimate in estimates]
        assert 0.94 <= np.mean([interval.contains(0.0) for interval in intervals]) <= most
        assert np.mean([interval.low > 0 for interval in intervals]) <= 0.025 + CHANCE

    @pytest.mark.parametrize("S", [3, 5])
    def test_each_source_alone_is_not_enough(self, S):
        """Why both are taken: seeds alone miss what other examples would do, examples alone what other seeds would."""
        estimates = estimates_from_mean_squares(S, 872, regime="balanced")
        for alone in ("seeds", "examples"):
            narrow = [Estimate(mean=one.mean, seeds=getattr(one, alone)) for one in estimates]
            assert np.mean([one.interval().contains(0.0) for one in narrow]) < 0.94

    @pytest.mark.parametrize("S", [3, 5])
    def test_false_equivalence_at_the_margin_is_rare(self, S):
        margin = 8.0
        shifted = drawn(S, 100, regime="balanced", repeats=1000) + margin
        rate = np.mean([crossed(d_SE).estimate.p_within(margin) <= 0.05 for d_SE in shifted])
        assert rate <= 0.05 + 2 * CHANCE

    @pytest.mark.parametrize(("S", "seed_effect"), [(2, 0.0), (3, 0.0), (3, 0.1)])
    def test_of_right_and_wrong_answers(self, S, seed_effect):
        """Differences of -1, 0 and 1, hard and easy examples; seeds that agree exactly are refused, not counted."""
        E = 200
        generator = np.random.default_rng(S)
        disagree_R1E = generator.beta(0.5, 2.0, size=(REPEATS, 1, E))
        favor_RSE = 0.5 + generator.uniform(-0.4, 0.4, size=(REPEATS, 1, E))
        favor_RSE = favor_RSE + seed_effect * generator.uniform(-1, 1, size=(REPEATS, S, 1))
        sign_RSE = np.where(generator.random((REPEATS, S, E)) < favor_RSE, 1, -1)
        d_RSE = sign_RSE * (generator.random((REPEATS, S, E)) < disagree_R1E)
        estimates = [crossed(d_SE).estimate for d_SE in d_RSE]
        told = [estimate for estimate in estimates if not estimate.no_variation]
        assert len(told) > 0.9 * REPEATS
        assert 0.94 <= np.mean([estimate.interval().contains(0.0) for estimate in told]) <= 0.99


class TestByWeight:
    """Documents: their summed losses, and their tokens. Shape suffix: W = windows."""

    def test_equal_weights_change_nothing(self):
        d_SE = np.random.default_rng(0).normal(size=(3, 40))
        weighted, plain = crossed(7 * d_SE, np.full(40, 7)), crossed(d_SE)
        assert weighted.estimate.interval().low == pytest.approx(plain.estimate.interval().low)
        assert weighted.estimate.examples == pytest.approx(plain.estimate.examples)
        assert (weighted.seed_se, weighted.example_se) == pytest.approx((plain.seed_se, plain.example_se))

    def test_every_seed_has_the_mean_of_all_its_tokens(self):
        generator = np.random.default_rng(1)
        sums_SE, tokens_E = generator.normal(size=(4, 30)), generator.integers(1, 90, 30)
        assert by_weight(sums_SE, tokens_E).mean(axis=1) == pytest.approx(sums_SE.sum(axis=1) / tokens_E.sum())

    def test_by_hand(self):
        """Two documents that agree token by token say the same, however long they are."""
        found = crossed([[0.5, 1.5], [1.0, 3.0]], [1, 3])
        assert found.estimate.mean == pytest.approx(0.75)
        assert found.example_se == pytest.approx(0, abs=1e-12)

    def test_it_is_the_jackknife(self):
        """The standard error from documents is that of leaving each out in turn."""
        generator = np.random.default_rng(2)
        sums_E, tokens_E = generator.normal(size=30), generator.integers(1, 900, 30)
        without_E = [np.delete(sums_E, one).sum() / np.delete(tokens_E, one).sum() for one in range(30)]
        assert crossed([sums_E, sums_E], tokens_E).example_se == pytest.approx(np.std(without_E) * math.sqrt(29))

    def test_few_long_documents_are_worth_few(self):
        sums_SE = np.random.default_rng(3).normal(size=(3, 40))
        assert crossed(sums_SE, [1] * 40).estimate.examples.df == 39
        assert crossed(sums_SE, [1] * 38 + [1000, 1000]).estimate.examples.df == 1

    @pytest.mark.parametrize("weights", [[1, 2], [1, 0, 1], [[1, 1, 1]]])
    def test_what_are_no_weights_is_refused(self, weights):
        with pytest.raises(ValueError, match="weights"):
            crossed(np.ones((2, 3)), weights)

    @pytest.mark.parametrize(("S", "documents"), [(3, 20), (10, 20), (5, 300)])
    def test_documents_cover_and_windows_do_not(self, S, documents):
        """Lengths are lognormal, arms differ by seed, by document and by both; the true difference is 0.

        t over windows takes the parts of a long document for so many, and finds differences that are not there.
        """
        repeats, window = 1000, 128
        generator = np.random.default_rng([S, documents])
        covered: dict[str, list[bool]] = {"documents": [], "windows": [], "seeds": []}
        for _ in range(repeats):
            tokens_E = np.ceil(generator.lognormal(6, 0.8, documents))
            per_token_SE = 0.02 * generator.standard_normal((S, 1)) + 0.5 * generator.standard_normal(documents)
            per_token_SE = per_token_SE + 0.1 * generator.standard_normal((S, documents))
            sums_SE = per_token_SE * tokens_E
            ends_E = np.concatenate([[0], np.cumsum(tokens_E)])
            cuts_W = np.arange(0, ends_E[-1], window)
            cumulative_SE = np.concatenate([np.zeros((S, 1)), np.cumsum(sums_SE, axis=1)], axis=1)
            windows_SW = np.diff([np.interp(cuts_W, ends_E, seed) for seed in cumulative_SE], axis=1) / window
            estimates = {
                "documents": crossed(sums_SE, tokens_E).estimate,
                "windows": crossed(windows_SW).estimate,
                "seeds": from_seeds(sums_SE.sum(axis=1) / tokens_E.sum()),
            }
            for name, estimate in estimates.items():
                covered[name].append(estimate.interval().contains(0.0))
        share = {name: np.mean(values) for name, values in covered.items()}
        assert 0.93 <= share["documents"] <= 0.99, share
        assert share["windows"] < 0.85, share
        assert share["seeds"] < 0.85, share


class TestBootstrap:
    @pytest.mark.parametrize("kind", ["answers", "losses"])
    def test_it_is_the_uncertainty_from_examples(self, kind):
        generator = np.random.default_rng(1)
        d_SE = generator.integers(-1, 2, size=(3, 900)) if kind == "answers" else generator.normal(size=(3, 900))
        found = example_bootstrap(d_SE, level=0.9)
        half = stats.norm.ppf(0.95) * crossed(d_SE).example_se
        assert found.level == 0.9
        assert (found.low, found.high) == pytest.approx((d_SE.mean() - half, d_SE.mean() + half), abs=0.1 * half)

    def test_counting_and_drawing_agree(self):
        """Few values are counted and many are drawn: nearly the same values give nearly the same interval."""
        d_SE = np.random.default_rng(2).integers(-1, 2, size=(2, 500)).astype(float)
        nearly = d_SE + np.random.default_rng(3).uniform(-1e-6, 1e-6, size=d_SE.shape)
        counted, drew = example_bootstrap(d_SE, resamples=20_000), example_bootstrap(nearly, resamples=20_000)
        assert (counted.low, counted.high) == pytest.approx((drew.low, drew.high), abs=0.004)

    def test_the_seed_is_all_its_randomness(self):
        d_SE = np.random.default_rng(4).normal(size=(2, 60))
        assert example_bootstrap(d_SE, seed=1) == example_bootstrap(d_SE, seed=1) != example_bootstrap(d_SE, seed=2)

    def test_it_covers_over_examples(self):
        d_RSE = np.random.default_rng(5).integers(-1, 2, size=(1000, 2, 200))
        assert 0.93 <= np.mean([example_bootstrap(d_SE, resamples=400).contains(0.0) for d_SE in d_RSE]) <= 0.97
