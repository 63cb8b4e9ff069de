"""Build the model of a recipe, pretrained or from scratch, with the same weights for every arm of a seed."""

import logging as levels
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

import torch
from torch import nn

from oelm.data.kinds.table import TASK_KINDS
from oelm.data.tasks import Task
from oelm.errors import ModelError
from oelm.models.dropout import set_dropout_, use_fast_dropout_
from oelm.models.folder import Bounds, memory_bytes, resolve_name
from oelm.models.load import check_size, load_config, load_model
from oelm.seeds import seed_for
from oelm.study.recipe import ModelConfig
from oelm.study.sizes import gpt_sizes


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
        options |= {"pooling": recipe.pooling}
        config = OelmGPTConfig(**options)
        _set_outputs_(config, task)
        return OelmGPTForSequenceClassification(config)
    except ValueError as error:
        raise ModelError(str(error), where="recipe.model") from error


def _transformers_model(recipe: ModelConfig, task: Task, tokenizer: Any) -> nn.Module:
    import transformers
    from transformers.utils import logging

    name = resolve_name(str(recipe.name))
    options = {"revision": recipe.revision} if recipe.revision else {}
    kind = TASK_KINDS.get(task.kind)
    plain = "AutoModelForCausalLM" if task.kind == "language-modeling" else "AutoModelForSequenceClassification"
    auto: Any = getattr(transformers, plain if kind is None else kind.auto_model)
    config = load_config(name, **options)
    of_example = kind is None and task.kind != "language-modeling"  # a class or a number
    head = "ForSequenceClassification" if of_example else kind.head if kind is not None else None
    if head is not None and not recipe.from_scratch:
        _check_classes(config, task, name, head=head)
    if kind is not None:
        kind.configure(config, task, tokenizer)
    elif of_example:
        _set_outputs_(config, task)
    if recipe.dropout is not None:
        set_dropout_(config, recipe.dropout)
    if recipe.pooling != "last":  # the default, which says nothing of a saved model: it keeps its own
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
    if of_example:
        config.pad_token_id = tokenizer.pad_token_id  # some models use it to find the last token of an example
    elif task.kind == "language-modeling" and hasattr(config, "is_decoder"):
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
    if kind is not None:
        kind.finish(model, task)
    use_fast_dropout_(model)
    return model


def _set_outputs_(config: Any, task: Task) -> None:
    """As many outputs as the task has. Those of labels that were found in the data are named by them."""
    config.num_labels = task.num_outputs
    if task.has_found_labels:
        config.id2label = dict(enumerate(task.labels))
        config.label2id = {name: number for number, name in enumerate(task.labels)}
    if task.kind == "regression":
        config.problem_type = "regression"


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


def _check_classes(config: Any, task: Task, name: str, *, head: str) -> None:
    """Refuse a classification head with another number of classes: it would be dropped and newly initialized. With
    the same ones in another order, it would begin with the wrong ones."""
    has_classifier = any(str(cls).endswith(head) for cls in config.architectures or ())
    theirs, ours = ([str(one).casefold() for one in names] for names in (config.id2label.values(), task.labels))
    in_another_order = theirs != ours and sorted(theirs) == sorted(ours)
    if has_classifier and (config.num_labels != task.num_outputs or in_another_order):
        has = f"{len(task.labels)} ({_join(task.labels)})" if task.labels else "a number, which is one output"
        raise ModelError(
            f"the checkpoint has {config.num_labels} classes ({_join(config.id2label.values())}), "
            f"the task '{task.name}' has {has}" + (", in another order" if in_another_order else ""),
            where=f"{name}: the classification head of {config.architectures[0]}",
            why="its classification head does not fit the task, and is never dropped silently",
            hint="drop the head: transformers.AutoModel.from_pretrained(MODEL).save_pretrained(FOLDER), and "
            "recipe.model.name=FOLDER;\nor use from_scratch: true, or a task with these classes",
        )


def _join(names: Iterable[object]) -> str:
    texts = [str(name) for name in names]
    return ", ".join(texts[:4] + (["..."] if len(texts) > 4 else []))
