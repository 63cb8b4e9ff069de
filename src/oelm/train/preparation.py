"""Prepare what a cell is made of: the tokens of a recipe, and its model before any treatment."""

from typing import Any

from torch import nn

from oelm.data.reading import Reading
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenizer import load_tokenizer, train_tokenizer
from oelm.data.tokens import Prepared, prepare
from oelm.models.build import build_model, place_of
from oelm.study.recipe import Recipe
from oelm.train.watch import Watch


def prepared_for(recipe: Recipe, watch: Watch) -> Prepared:
    """The tokens of a recipe's data, for its model."""
    data = recipe.data
    chosen = data.tokenizer

    def tokenizer(texts: Any, made_from: Any) -> Any:
        if chosen is not None and chosen.train is not None:
            watch.prepares("training a tokenizer", 0, 0)
            return train_tokenizer(texts, vocab=chosen.vocab, made_from=made_from)
        if chosen is not None:
            return load_tokenizer(str(chosen.name))
        return load_tokenizer(place_of(recipe.model.name), revision=recipe.model.revision)

    return prepare(
        find_source(task_named(data.task), data.path),
        tokenizer=tokenizer,
        max_length=data.max_length,
        select=data.select,
        joiner=data.joiner,
        watch=watch.prepares,
    )


def reading_for(recipe: Recipe) -> Reading:
    """The rows of a recipe's data, as texts."""
    return Reading(find_source(task_named(recipe.data.task), recipe.data.path), recipe.data.select)


def model_for(recipe: Recipe, prepared: Prepared, *, seed: int) -> nn.Module:
    """The model of a recipe for its data; all that is not pretrained is drawn from the seed."""
    return build_model(
        recipe.model,
        task=prepared.task,
        tokenizer=prepared.tokenizer,
        max_length=recipe.data.max_length,
        seed=seed,
    )
