"""Evaluate: metrics as scikit-learn has them; every example counted once, whatever the batch size."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics as sklearn
from torch import nn

from oelm.data.tasks import task_named
from oelm.data.tokenize import Examples, Windows
from oelm.metrics import class_metrics
from oelm.train.evaluate import evaluate
from oelm.train.objective import Objective

SST2, MNLI, COLA, AG, TEXT = map(task_named, ("sst2", "mnli", "cola", "ag_news", "text"))
CPU = torch.device("cpu")


@settings(deadline=None)  # scikit-learn on a busy machine
@given(st.data(), st.sampled_from([SST2, MNLI, COLA, AG]), st.integers(1, 40))
def test_metrics_agree_with_scikit_learn(data, task, number):
    """Classes that are neither there nor predicted have no F1, there as here."""
    classes = st.lists(st.integers(0, len(task.labels) - 1), min_size=number, max_size=number)
    labels, predicted = np.array(data.draw(classes)), np.array(data.draw(classes))
    expected = {
        "accuracy": sklearn.accuracy_score(labels, predicted),
        "macro_f1": sklearn.f1_score(labels, predicted, average="macro", zero_division=0.0),
    }
    if len(task.labels) == 2:
        expected["f1"] = sklearn.f1_score(labels, predicted, average="binary", zero_division=0.0)
    if task is COLA:
        one = len({*labels, *predicted}) == 1  # there scikit-learn warns, and says 0
        expected["matthews"] = 0.0 if one else sklearn.matthews_corrcoef(labels, predicted)
    assert class_metrics(task.metrics, labels, predicted, len(task.labels)) == pytest.approx(expected, abs=1e-12)
    assert {*expected, "loss"} == set(task.metrics)


def test_three_classes_by_hand():
    labels, predicted = np.array([0, 0, 1, 1, 2, 2]), np.array([0, 1, 1, 1, 0, 2])
    found = class_metrics(MNLI.metrics, labels, predicted, 3)
    assert found == pytest.approx({"accuracy": 4 / 6, "macro_f1": (1 / 2 + 4 / 5 + 2 / 3) / 3})


class Counts(nn.Module):
    """Logits from the unmasked tokens of an example alone: their mean, and one."""

    def forward(self, input_ids, attention_mask):
        assert not self.training
        mean = (input_ids * attention_mask).sum(1) / attention_mask.sum(1)
        return SimpleNamespace(logits=torch.stack([torch.ones_like(mean), mean], dim=1))


def examples(lengths):
    random = np.random.default_rng(0)
    return Examples(
        tokens=random.integers(0, 3, sum(lengths)).astype(np.int32),
        types=None,
        offsets=np.cumsum([0, *lengths]),
        labels=random.integers(0, 2, len(lengths)),
        rows=np.arange(len(lengths)) * 10,
    )


@pytest.mark.parametrize("batch_size", [1, 3, 7, 100])
def test_examples(batch_size):
    split = examples([3, 1, 6, 2, 2, 9, 4])
    ticks = []
    model = Counts().train()
    measured = evaluate(
        Objective(model),
        split,
        task=SST2,
        batch_size=batch_size,
        pad=77,
        device=CPU,
        tick=lambda *now: ticks.append(now),
    )
    means = np.array([split.tokens[a:b].mean() for a, b in zip(split.offsets[:-1], split.offsets[1:], strict=True)])
    logits = np.stack([np.ones(7), means], axis=1)
    loss = np.log(np.exp(logits).sum(1)) - logits[np.arange(7), split.labels]
    assert measured.predictions.loss == pytest.approx(loss, rel=1e-5)
    assert measured.predictions.prediction.tolist() == (means > 1).astype(int).tolist()
    assert measured.predictions.row.tolist() == split.rows.tolist()
    assert measured.metrics["loss"] == pytest.approx(loss.mean(), rel=1e-5)
    assert measured.metrics["accuracy"] == ((means > 1) == split.labels).mean()
    assert ticks[-1] == (7, 7)
    assert model.training, "left as it was"


class Wrong(nn.Module):
    def forward(self, input_ids, use_cache):
        return SimpleNamespace(logits=1e4 * nn.functional.one_hot(input_ids, 8).float())  # never the same again


class Forecast(nn.Module):
    """Logits that depend on the token before alone."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(8, 8, generator=torch.Generator().manual_seed(0)))

    def forward(self, input_ids, use_cache):
        return SimpleNamespace(logits=self.table[input_ids])


# The first and the last document are cut: nothing predicts the first token, and the last ones fill no window.
TEXT_OF_FOUR = np.array([5, 6, 0, 1, 2, 3, 4, 5, 6, 7, 0, 0, 3, 1, 0, 2, 2, 0, 7, 7, 7, 0, 6], dtype=np.uint16)


@pytest.mark.parametrize("batch_size", [1, 2, 100])
@pytest.mark.parametrize("length", [1, 4, 5, 9])
def test_documents(batch_size, length):
    """A window holds several, and a document is in several; each token counts once, in its own."""
    split = Windows(tokens=TEXT_OF_FOUR, length=length, end=0)
    model = Forecast()
    measured = evaluate(Objective(model), split, task=TEXT, batch_size=batch_size, pad=0, device=CPU)
    logp = model.table.detach().double().log_softmax(1).numpy()
    sums, tokens, document = {}, {}, 0
    for place in range(1, len(split) * length + 1):
        sums[document] = sums.get(document, 0) - logp[TEXT_OF_FOUR[place - 1], TEXT_OF_FOUR[place]]
        tokens[document] = tokens.get(document, 0) + 1
        document += TEXT_OF_FOUR[place] == 0
    kept = measured.predictions
    assert kept.row.tolist() == list(sums)
    assert kept.tokens.tolist() == list(tokens.values())
    assert kept.loss == pytest.approx(list(sums.values()), rel=1e-5)
    assert kept.tokens.sum() == len(split) * length
    loss = sum(sums.values()) / sum(tokens.values())
    assert measured.metrics == pytest.approx({"perplexity": math.exp(loss), "loss": loss}, rel=1e-5)
    assert measured.metrics["loss"] == kept.mean("loss")


def test_a_perplexity_beyond_all_numbers_is_infinite():
    split = Windows(tokens=np.arange(9, dtype=np.uint16) % 8, length=4, end=0)
    measured = evaluate(Objective(Wrong()), split, task=TEXT, batch_size=2, pad=0, device=CPU)
    assert measured.metrics == {"perplexity": math.inf, "loss": pytest.approx(1e4)}


def test_an_error_leaves_the_mode_as_it_was():
    def stop(done, total):
        raise KeyboardInterrupt

    model = Counts().train()
    with pytest.raises(KeyboardInterrupt):
        evaluate(Objective(model), examples([2, 2]), task=SST2, batch_size=1, pad=0, device=CPU, tick=stop)
    assert model.training
