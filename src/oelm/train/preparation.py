"""Prepare what a cell is made of: the tokens of a recipe, and its model before any treatment."""

from typing import Any

from torch import nn

from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import task_named
from oelm.data.tokenize import TokenizedTask, load_tokenizer, tokenize_task, train_tokenizer
from oelm.models.build import build_model, resolve_name
from oelm.models.folder import check_model_folder
from oelm.study.recipe import Recipe
from oelm.train.progress import Progress


def load_data(recipe: Recipe, progress: Progress) -> TokenizedTask:
    """The tokens of a recipe's data, for its model."""
    data = recipe.data
    chosen = data.tokenizer

    def tokenizer(texts: Any, made_from: Any) -> Any:
        if chosen is not None and chosen.train is not None:
            progress.on_prepare("training a tokenizer", 0, 0)
            return train_tokenizer(texts, vocab=chosen.vocab, made_from=made_from, log=progress.on_message)
        name = resolve_name(recipe.model.name) if chosen is None else str(chosen.name)
        check_model_folder(name)  # it may read the model's configuration, before anyone else does
        return load_tokenizer(name, revision=recipe.model.revision if chosen is None else None)

    return tokenize_task(
        find_source(task_named(data.task), data.path),
        tokenizer=tokenizer,
        max_length=data.max_length,
        validation=data.validation,
        pair_separator=data.pair_separator,
        overlap=data.overlap,
        group=data.group,
        progress=progress.on_prepare,
        log=progress.on_message,
    )


def open_splits(recipe: Recipe) -> SplitReader:
    """The rows of a recipe's data, as texts."""
    data = recipe.data
    source = find_source(task_named(data.task), data.path)
    return SplitReader(source, data.validation, overlap=data.overlap, group=data.group)


def build_cell_model(recipe: Recipe, prepared: TokenizedTask, *, seed: int) -> nn.Module:
    """The model of a recipe for its data; all that is not pretrained is drawn from the seed."""
    return build_model(
        recipe.model,
        task=prepared.task,
        tokenizer=prepared.tokenizer,
        max_length=recipe.data.max_length,
        seed=seed,
    )
