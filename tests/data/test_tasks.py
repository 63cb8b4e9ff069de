"""Tasks: the table holds together."""

import re

import pytest

from oelm.data.sources import splits_of
from oelm.data.tasks import TASKS, task_named
from oelm.errors import DataError


@pytest.mark.parametrize("task", TASKS.values(), ids=list(TASKS))
def test_a_task_holds_together(task):
    assert task.report or task.held_out, "something is reported on"
    assert task.select not in task.report, "what is selected on is never reported"
    assert bool(task.labels) == (task.kind == "classification")
    assert task.metric in task.metrics
    assert len(set(task.metrics)) == len(task.metrics)
    if task.hub is not None:
        assert re.fullmatch("[0-9a-f]{40}", task.hub.revision), "a commit, which cannot change"
        assert set(task.hub.files) == set(splits_of(task))


def test_an_unknown_task():
    assert task_named("cola").metrics == ("accuracy", "macro_f1", "f1", "matthews", "loss")
    with pytest.raises(DataError, match=r"unknown task 'wikitext2'; did you mean 'wikitext-2'\?"):
        task_named("wikitext2")
