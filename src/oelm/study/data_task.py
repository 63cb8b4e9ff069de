"""The task of a recipe's data: the one it names, with the columns and the data set of the hub that it says."""

from dataclasses import replace

from oelm.data.own import HubName, find_on_hub, name_columns
from oelm.data.sources import Source, find_source
from oelm.data.tasks import Task, task_named
from oelm.study.recipe import DataConfig, SyntheticConfig


def task_of(data: DataConfig) -> Task:
    """A data set that is on this machine is not asked for again."""
    task = name_columns(task_named(data.task), data.columns or {})
    if data.max_target is not None:
        task = replace(task, max_target=data.max_target)
    if data.hub is None:
        return task
    name = HubName(repo=data.hub, config=data.config, revision=data.revision, splits=data.splits or {})
    return find_on_hub(task, name)


def source_of(data: DataConfig) -> Source:
    """The task and its files."""
    made = data.synthetic or SyntheticConfig()
    return find_source(
        task_of(data), data.path, pairs=made.pairs, seed=made.seed, limit=data.limit, validation=data.validation
    )
