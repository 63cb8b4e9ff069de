"""Tasks: the table holds together."""

import re
from collections.abc import Iterator
from dataclasses import replace

import pytest

import oelm
from oelm.data.sources import find_source, split_names
from oelm.data.tasks import TASKS, Hub, Task, task_named
from oelm.errors import DataError


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_a_task_holds_together(task):
    assert task.test or task.held_out, "something is reported on"
    assert task.validation not in task.test, "what is selected on is never reported"
    assert bool(task.labels) == (task.kind == "classification" and not task.is_own)
    assert task.metric in task.metrics
    assert len(set(task.metrics)) == len(task.metrics)
    if task.hub is not None:
        assert re.fullmatch("[0-9a-f]{40}", task.hub.revision), "a commit, which cannot change"
        assert set(task.hub.files) == set(split_names(task))


def test_an_unknown_task():
    assert task_named("cola").metrics == ("accuracy", "macro_f1", "f1", "matthews", "loss")
    with pytest.raises(DataError, match=r"unknown task 'wikitext2'; did you mean 'wikitext-2'\?"):
        task_named("wikitext2")


@pytest.fixture
def own_tasks() -> Iterator[None]:
    """Those that a test registers are forgotten after it."""
    before = dict(TASKS)
    yield
    TASKS.clear()
    TASKS.update(before)


MINE = Task(name="mine", kind="classification", columns=("body",), labels=("no", "maybe", "yes"), test=("test",))


def test_a_task_of_ones_own(own_tasks, tmp_path):
    for split in ("train", "test"):
        (tmp_path / f"{split}.csv").write_text("body,label\na good one,yes\na bad one,no\n")
    task = oelm.register_task(replace(MINE, path=str(tmp_path)))
    assert task_named("mine") is task
    assert task.metrics == ("accuracy", "macro_f1", "loss")
    source = find_source(task, None)
    assert set(source.files) == {"train", "test"}
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for split in ("train", "test"):
        (elsewhere / f"{split}.csv").write_text("text,label\none,1\n")
    assert find_source(task, str(elsewhere)).files["train"][0].parent == elsewhere, "that of the study goes before"


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"name": "sst2"}, "name: task 'sst2' exists already"),
        ({"name": "a/b"}, "name: must be of at most 100 letters"),
        ({"kind": "translation"}, "kind: 'translation' is not known"),
        ({"labels": ("one",)}, "labels: a classification has at least two"),
        ({"labels": ("one", "one")}, "all different"),
        ({"kind": "language-modeling", "metric": "perplexity"}, "others have none"),
        ({"kind": "regression", "metric": "mse"}, "others have none"),
        ({"kind": "regression", "labels": ()}, "metric: 'accuracy' is not known; one of mse, pearson, spearman, loss"),
        ({"columns": ("a", "b", "c")}, "columns: one of text, or two"),
        ({"metric": "acuracy"}, "metric: 'acuracy' is not known; did you mean 'accuracy'?"),
        ({"metric": "peak_memory"}, "metric: 'peak_memory' is not known"),
        ({"test": ()}, "test: name the test split"),
        ({"validation": "test"}, "'test' is also the test split"),
        ({"hub": Hub(repo="a/b", revision="main", files={"train": "x"})}, "hub.revision: must be a commit"),
        (
            {"hub": Hub(repo="a/b", revision="main", files={"train": "x"})},
            "hub.files: must name the files of test, train",
        ),
    ],
)
def test_a_task_that_cannot_be_registered(changes, why, own_tasks):
    with pytest.raises(DataError, match="cannot be registered") as error:
        oelm.register_task(replace(MINE, **changes))
    assert why in str(error.value)
    assert "mine" not in TASKS
