"""Batches: the same for equal seeds, every example once an epoch, with little padding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from oelm.data.batches import BatchSampler, batches_by_length, collate
from oelm.data.tokenize import Examples, Windows

CPU = torch.device("cpu")
LENGTHS = np.random.default_rng(0).integers(3, 60, size=1000)


def order(lengths=LENGTHS, *, batch_size=8, accumulate=1, seed=0):
    return BatchSampler(lengths, batch_size=batch_size, accumulate=accumulate, seed=seed)


def seen(order, steps):
    """The examples of every forward pass, in order."""
    return [rows.tolist() for step in steps for rows in order.at(step)]


def test_equal_seeds_see_equal_batches():
    first, second = order(), order()
    assert seen(first, range(300)) == seen(second, range(300))
    assert seen(order(seed=1), range(125)) != seen(first, range(125))


def test_epochs_differ():
    epochs = order()
    assert epochs.steps_per_epoch == 125
    assert seen(epochs, range(125)) != seen(epochs, range(125, 250))


def test_a_resumed_order_goes_on_where_it_stopped():
    assert seen(order(), [180, 3, 181]) == [seen(order(), [step])[0] for step in (180, 3, 181)]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=200),
    st.integers(1, 9),
    st.integers(1, 4),
    st.integers(0, 2**63 - 1),
    st.integers(0, 3),
)
def test_every_example_exactly_once_an_epoch(lengths, batch_size, accumulate, seed, epoch):
    batches = order(np.array(lengths), batch_size=batch_size, accumulate=accumulate, seed=seed)
    steps = batches.steps_per_epoch
    passes = seen(batches, range(epoch * steps, (epoch + 1) * steps))
    assert sorted(row for rows in passes for row in rows) == list(range(len(lengths)))
    assert all(len(batches.at(epoch * steps + step)) in range(1, accumulate + 1) for step in range(steps))
    assert max(map(len, passes)) <= batch_size
    assert sum(len(rows) < batch_size for rows in passes) <= 1


def padding(batches):
    """Share of padding."""
    total = sum(len(rows) * LENGTHS[rows].max() for rows in batches)
    return 1 - LENGTHS.sum() / total


def test_little_padding():
    random = np.random.default_rng(0).permutation(1000)
    assert padding(map(np.array, seen(order(), range(125)))) < 0.05
    assert padding(random[start : start + 8] for start in range(0, 1000, 8)) > 0.3


def test_the_order_of_batches_is_not_that_of_their_lengths():
    longest = [LENGTHS[rows].max() for rows in map(np.array, seen(order(), range(125)))]
    assert abs(np.corrcoef(longest, np.arange(125))[0, 1]) < 0.3


def test_steps_of_a_budget():
    sst2 = order(np.full(67_349, 20), batch_size=32)
    assert sst2.steps_for(epochs=3, steps=None, tokens=None) == 6315
    assert sst2.steps_for(epochs=None, steps=77, tokens=None) == 77
    assert sst2.steps_for(epochs=0.5, steps=None, tokens=None) == round(2105 / 2)
    assert sst2.steps_for(epochs=1e-9, steps=None, tokens=None) == 1
    assert order(batch_size=8, accumulate=4).steps_for(epochs=2, steps=None, tokens=None) == 2 * 32


@pytest.mark.parametrize("accumulate", [1, 3])
@pytest.mark.parametrize("tokens", [1, 500, int(LENGTHS.sum()), int(2.5 * LENGTHS.sum())])
def test_a_budget_of_tokens_is_just_reached(tokens, accumulate):
    batches = order(accumulate=accumulate)
    steps = batches.steps_for(epochs=None, steps=None, tokens=tokens)
    trained = [sum(LENGTHS[rows].sum() for rows in batches.at(step)) for step in range(steps)]
    assert sum(trained[:-1]) < tokens <= sum(trained)


def test_evaluation_sees_all_once_the_longest_first():
    batches = batches_by_length(LENGTHS, 7)
    assert sorted(np.concatenate(batches)) == list(range(1000))
    assert (np.diff(LENGTHS[np.concatenate(batches)]) <= 0).all()


def test_examples_are_padded_and_masked():
    split = Examples(
        tokens=np.array([5, 6, 7, 8, 9, 4], dtype=np.int32),
        types=np.array([0, 1, 1, 0, 1, 0], dtype=np.int8),
        offsets=np.array([0, 3, 5, 6]),
        labels=np.array([2, 1, 0]),
        rows=np.arange(3),
    )
    batch = collate(split, np.array([1, 0]), pad=99, device=CPU)
    assert batch.inputs["input_ids"].tolist() == [[8, 9, 99], [5, 6, 7]]
    assert batch.inputs["attention_mask"].tolist() == [[1, 1, 0], [1, 1, 1]]
    assert batch.inputs["token_type_ids"].tolist() == [[0, 1, 0], [0, 1, 1]]
    assert batch.targets.tolist() == [1, 2]
    without = Examples(**split.__dict__ | {"types": None})
    assert set(collate(without, np.array([2]), pad=0, device=CPU).inputs) == {"input_ids", "attention_mask"}


@pytest.mark.parametrize(("tokens", "windows"), [(20, 4), (21, 5), (22, 5), (5, 1), (4, 0)])
def test_windows_predict_every_token_once(tokens, windows):
    """All but the very first, and what is left at the end."""
    split = Windows(tokens=np.arange(tokens, dtype=np.uint16), length=4, end=0)
    assert len(split) == windows
    if windows:
        batch = collate(split, np.arange(windows), pad=0, device=CPU)
        assert batch.inputs["input_ids"].flatten().tolist() == list(range(4 * windows))
        assert batch.targets.flatten().tolist() == list(range(1, 4 * windows + 1))
