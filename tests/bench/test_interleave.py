"""Nobody is favored by when they are timed."""

import itertools
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oelm.bench.interleave import rounds

SEEDS = st.integers(min_value=0, max_value=2**63 - 1)


def first(num: int, arms: str, *, seed: int) -> list[str]:
    return ["".join(turns) for turns in itertools.islice(rounds(list(arms), seed=seed), num)]


@given(seed=SEEDS, num_arms=st.integers(1, 6))
def test_in_a_round_steady_drift_costs_all_arms_the_same(seed, num_arms):
    arms = "abcdef"[:num_arms]
    for turns in first(5, arms, seed=seed):
        assert Counter(turns) == dict.fromkeys(arms, 2)
        assert len({sum(place for place, arm in enumerate(turns) if arm == name) for name in arms}) == 1


@given(seed=SEEDS, num_arms=st.integers(2, 6))
def test_in_two_rounds_every_arm_is_as_often_before_as_after_every_other(seed, num_arms):
    """The middle of the round is not the same as its ends, so who is in the middle must change."""
    turns = first(8, "abcdef"[:num_arms], seed=seed)
    for one, other in zip(turns[::2], turns[1::2], strict=True):
        assert one[:num_arms] == other[:num_arms][::-1]


def test_two_arms_are_abba_and_its_mirror_equally_often_and_either_first():
    firsts = Counter()
    for seed in range(400):
        turns = first(6, "ab", seed=seed)
        assert Counter(turns) == {"abba": 3, "baab": 3}
        firsts[turns[0]] += 1
    # 200 of 400 are expected, 10 is a standard deviation
    assert 160 < firsts["abba"] < 240


def test_all_orders_of_three_arms_are_equally_common():
    counts = Counter(turns[:3] for turns in first(6000, "abc", seed=0))
    assert len(counts) == 6
    assert all(860 < count < 1140 for count in counts.values()), counts


def test_the_order_is_the_seeds():
    assert first(50, "abc", seed=3) == first(50, "abc", seed=3)
    assert first(50, "abc", seed=3) != first(50, "abc", seed=4)


@pytest.mark.parametrize("arms", [[], ["a", "a"]])
def test_arms_that_cannot_take_turns_are_refused_at_once(arms):
    with pytest.raises(ValueError, match="arms"):
        rounds(arms, seed=0)
