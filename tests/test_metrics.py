"""Metrics: one table, of which everything else asks name, kind, direction and value."""

import ast
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import oelm
from oelm import metrics
from oelm.data.tasks import TASKS, task_named
from oelm.errors import StudyError
from oelm.metrics import MEASURED, TIMES, class_metrics, find_metric, is_higher_better, metric_names

SOURCES = Path(metrics.__file__).parent


@pytest.fixture
def own_metrics() -> Iterator[None]:
    """Those that a test registers are forgotten after it."""
    before = dict(metrics._METRICS)
    yield
    metrics._METRICS.clear()
    metrics._METRICS.update(before)


def balanced_accuracy(labels, predicted, classes):
    return np.mean([(predicted[labels == one] == one).mean() for one in range(classes) if (labels == one).any()])


def test_kinds():
    assert MEASURED == (
        "trainable",
        "frozen",
        "total",
        "step_seconds",
        "training_seconds",
        "peak_memory",
        "curve_loss",
        "lr_sensitivity",
        "tuned_lr",
    )
    assert TIMES == ("step_seconds", "training_seconds")
    own = ("entity_f1", "token_accuracy", "exact_match", "answer_f1", "rouge1", "rouge2", "rougeL")
    assert metric_names("predictions") == ("accuracy", "macro_f1", "f1", "matthews", *own)
    assert metric_names("correlation") == ("pearson", "spearman")
    for name in (*metric_names("predictions", "correlation", "loss"), *MEASURED):
        metric, is_quality = find_metric(name), find_metric(name).kind in ("predictions", "correlation")
        assert (metric.compute is not None) == ((is_quality and name not in own) or name == "mse")
        assert is_higher_better(name) == (is_quality or name in ("frozen", "total"))


def test_all_that_tasks_measure_is_in_the_table():
    for task in TASKS.values():
        assert {find_metric(name).kind for name in task.metrics} <= {"predictions", "correlation", "loss"}


def test_no_other_module_knows_a_direction():
    """Others may ask whether it is "higher" or "lower", and never say so of a metric."""
    found = []
    for path in SOURCES.rglob("*.py"):
        if path == Path(metrics.__file__):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            pairs = zip(node.keys, node.values, strict=True) if isinstance(node, ast.Dict) else ()
            for key, value in pairs:
                if isinstance(value, ast.Constant) and value.value in ("higher", "lower"):
                    found.append((path.name, ast.unparse(key) if key else "**"))
    assert not found


def test_a_metric_of_ones_own_is_measured_by_every_classification(own_metrics):
    metric = oelm.register_metric("balanced_accuracy", balanced_accuracy, direction="higher")
    assert find_metric("balanced_accuracy") is metric
    assert is_higher_better("balanced_accuracy")
    assert task_named("sst2").metrics == ("accuracy", "macro_f1", "f1", "balanced_accuracy", "loss")
    assert task_named("text").metrics == ("perplexity", "loss")
    labels, predicted = np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])
    assert class_metrics(["balanced_accuracy"], labels, predicted, 2)["balanced_accuracy"] == pytest.approx(5 / 6)


@pytest.mark.parametrize(
    ("name", "compute", "direction", "why"),
    [
        ("accuracy", balanced_accuracy, "higher", "metric 'accuracy' exists already"),
        ("my metric", balanced_accuracy, "higher", "cannot be the name"),
        ("mine", balanced_accuracy, "up", "direction 'up'"),
        ("mine", lambda labels, predicted: 0.5, "higher", "TypeError"),
        ("mine", lambda labels, predicted, classes: "much", "higher", "could not convert"),
    ],
)
def test_a_metric_that_cannot_be_registered(name, compute, direction, why, own_metrics):
    with pytest.raises(StudyError, match=why):
        oelm.register_metric(name, compute, direction=direction)


def test_an_unknown_metric():
    with pytest.raises(StudyError, match="unknown metric 'acuracy'; did you mean 'accuracy'"):
        find_metric("acuracy")
