"""Power: held to the definition by simulation and by an integral, and quick to ask for."""

import math
import subprocess
import sys
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats

from oelm.analysis.stats.power import USUAL, USUAL_DETECTABLE, computed_detectable, detectable, seeds_needed


def found_by_integral(n: int, size: float, level: float) -> float:
    """The power of the t test, from nothing but the normal and the chi distribution."""
    critical = stats.t.ppf((1 + level) / 2, n - 1)

    def given_spread(u: float) -> float:
        bound, shift = critical * u / math.sqrt(n - 1), size * math.sqrt(n)
        return stats.chi.pdf(u, n - 1) * (stats.norm.sf(bound - shift) + stats.norm.cdf(-bound - shift))

    top = stats.chi.isf(1e-12, n - 1)
    return integrate.quad(given_spread, 0, top, limit=200)[0]


@pytest.mark.parametrize(("level", "power"), [(0.95, 0.8), (0.9, 0.5), (0.99, 0.95)])
@pytest.mark.parametrize("n", [2, 3, 5, 10, 30])
def test_by_integral(n, level, power):
    assert found_by_integral(n, detectable(n, level=level, power=power), level) == pytest.approx(power, abs=1e-5)


@pytest.mark.parametrize("n", [2, 3, 5, 10])
def test_by_simulation(n):
    spread = 0.3
    d = np.random.default_rng(n).normal(detectable(n, spread=spread), spread, size=(20_000, n))
    assert (stats.ttest_1samp(d, 0.0, axis=1).pvalue < 0.05).mean() == pytest.approx(0.8, abs=0.01)


def test_the_table_is_what_is_computed():
    level, power = USUAL
    computed = {n: computed_detectable(n, level=level, power=power) for n in USUAL_DETECTABLE}
    assert pytest.approx(computed, rel=1e-5) == USUAL_DETECTABLE


def test_the_usual_question_needs_no_scipy():
    code = (
        "import sys; from oelm.analysis.stats.power import detectable; detectable(5, spread=0.2);"
        "assert not {'numpy', 'scipy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_one_seed_finds_nothing():
    assert detectable(1) == math.inf
    assert detectable(0) == math.inf


@pytest.mark.parametrize("power", [0.05, 1.0])
def test_a_power_that_cannot_be_is_refused(power):
    with pytest.raises(ValueError, match="power"):
        detectable(5, power=power)


def test_more_seeds_find_less():
    sizes = [detectable(n) for n in range(2, 60)]
    assert all(a > b for a, b in pairwise(sizes))
    assert detectable(1000) == pytest.approx((1.959964 + 0.841621) / math.sqrt(1000), rel=0.01)


@given(st.integers(2, 200), st.sampled_from([0.9, 0.95, 0.99]), st.sampled_from([0.5, 0.8, 0.9]))
def test_seeds_needed_turns_detectable_around(n, level, power):
    size = detectable(n, level=level, power=power)
    assert seeds_needed(-size * 1.001, spread=1.0, level=level, power=power) == n
    assert seeds_needed(size * 0.999, spread=1.0, level=level, power=power) == n + 1


def test_seeds_needed_at_the_ends():
    assert seeds_needed(1.0, spread=0.0) == 2
    assert seeds_needed(1e9, spread=1.0) == 2  # where nothing is missed, scipy's probability of a miss is NaN
    assert seeds_needed(40.0, spread=1.0, most=5) == 2
    assert seeds_needed(0.0, spread=1.0) is None
    assert seeds_needed(0.01, spread=1.0) is None
    assert seeds_needed(1.0, spread=1.0, most=9) is None
    assert seeds_needed(1.0, spread=1.0, most=10) == 10
