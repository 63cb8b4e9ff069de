"""Checks of a recipe: what its fields, each good by itself, must be together, and which names they may have."""

import re
from collections.abc import Mapping
from typing import Any

from oelm.data.tasks import TASKS, Task
from oelm.errors import did_you_mean
from oelm.study.optimizers import OPTIMIZERS
from oelm.study.overrides import in_order, set_path
from oelm.study.problems import Problems, validate
from oelm.study.recipe import BUDGET_FIELDS, SIZE_FIELDS, DataConfig, ModelConfig, OptimizerConfig, Recipe
from oelm.study.sizes import PRESET_SIZES, gpt_sizes, missing_sizes

_MODEL_DEFAULTS = {name: field.default for name, field in ModelConfig.__dataclass_fields__.items()}


def check_recipe(recipe: Recipe, problems: Problems) -> None:
    _check_optimizer(recipe, problems)
    task = TASKS.get(recipe.data.task)
    if task is None:
        _report_unknown_name("data.task", recipe.data.task, TASKS, problems)
        return
    _check_data(recipe.data, task, problems)
    if recipe.parallel == "fsdp" and task.kind == "seq2seq":
        problems.add("recipe.parallel", "shards cannot write texts token by token: 'ddp'")
    if recipe.model.from_ is not None:
        _check_from(recipe, problems)
        return
    for field in ("arm", "freeze"):
        if getattr(recipe.model, field) != _MODEL_DEFAULTS[field]:
            problems.add(f"recipe.model.{field}", "goes with `from`, the run folder of another study")
    if recipe.model.name is None:
        problems.add("recipe.model.name", "is missing: oelm-gpt, a folder or a hub name; or `from`, another study")
        return
    ours = recipe.model.name == "oelm-gpt"
    for field in ("preset", *SIZE_FIELDS, "pooling", "causal", "qk_norm"):
        if not ours and getattr(recipe.model, field) != _MODEL_DEFAULTS[field]:
            problems.add(f"recipe.model.{field}", f"goes with the model 'oelm-gpt', not with '{recipe.model.name}'")
    if ours:
        _check_sizes(recipe, problems)
    if ours and recipe.data.tokenizer is None:
        problems.add(
            "recipe.data.tokenizer", "'oelm-gpt' has none of its own: {train: bpe, vocab: 8192} or {name: ...}"
        )
    if ours and task.kind in ("tokens", "qa", "seq2seq"):
        problems.add(
            "recipe.model.name", f"'oelm-gpt' has no head for task '{task.name}': name a model of transformers"
        )
    if ours and task.kind == "language-modeling" and not recipe.model.causal:
        problems.add("recipe.model.causal", f"task '{task.name}' predicts the next token: it needs causal attention")


def _check_from(recipe: Recipe, problems: Problems) -> None:
    """What a model that another study left behind brings with it."""
    for field in ("name", "revision", "preset", *SIZE_FIELDS, "causal", "qk_norm", "from_scratch"):
        if getattr(recipe.model, field) != _MODEL_DEFAULTS[field]:
            problems.add(f"recipe.model.{field}", "does not go with `from`, whose models are as that study made them")
    if recipe.data.tokenizer is not None:
        problems.add("recipe.data.tokenizer", "does not go with `model.from`: the tokenizer is that of the first study")


def _check_sizes(recipe: Recipe, problems: Problems) -> None:
    model, max_length = recipe.model, recipe.data.max_length
    if missing := missing_sizes(model):
        either = ", ".join(PRESET_SIZES)
        problems.add("recipe.model.preset", f"is missing: {either}; or say {', '.join(missing)}")
        return
    sizes = gpt_sizes(model, max_length=max_length)
    if sizes.width % sizes.heads:
        problems.add("recipe.model.heads", f"width {sizes.width} is not a multiple of {sizes.heads} heads")
    if max_length > sizes.context:
        problems.add(
            "recipe.data.max_length",
            f"{max_length} exceeds the model's context of {sizes.context} tokens: max_length={sizes.context}",
        )


def _check_data(data: DataConfig, task: Task, problems: Problems) -> None:
    if data.validation is None and task.validation is None:
        problems.add(
            "recipe.data.validation",
            f"task '{task.name}' has no split to select on: say how many training examples to hold out, e.g. 1000",
        )
    _check_own(data, task, problems)
    if data.path is None and data.hub is None and not task.has_files:
        what = "text" if task.kind == "language-modeling" else "examples"
        hub = ", or recipe.data.hub, a data set of the hub" if task.validation else ""
        problems.add("recipe.data.path", f"task '{task.name}' needs a folder or file of {what}{hub}")
    if data.path is not None and task.synthetic:
        problems.add("recipe.data.path", f"task '{task.name}' makes its own examples, and reads no files")
    if data.synthetic is not None and not task.synthetic:
        made = ", ".join(name for name, one in TASKS.items() if one.synthetic)
        problems.add("recipe.data.synthetic", f"task '{task.name}' is not made; these are: {made}")
    if data.group is not None and task.synthetic:
        problems.add("recipe.data.group", f"examples of task '{task.name}' are made one by one: they have no groups")
    if data.group is not None and task.kind == "language-modeling":
        problems.add("recipe.data.group", f"task '{task.name}' is text: whole documents are held out")
    if data.limit is not None and (problem := data.limit.problem_for(task)) is not None:
        problems.add("recipe.data.limit", problem)
    if data.max_target is not None and task.kind != "seq2seq":
        problems.add("recipe.data.max_target", f"task '{task.name}' has no targets to write")
    if data.pair_separator is not None and not task.is_own and not (task.pairs and task.kind == "classification"):
        problems.add("recipe.data.pair_separator", f"task '{task.name}' has no pairs to join")


def _check_own(data: DataConfig, task: Task, problems: Problems) -> None:
    """Where one's own data are, and what their columns are called."""
    if data.hub is not None and data.path is not None:
        problems.add("recipe.data.hub", "goes with no path: the data are at one of them")
    if data.hub is not None and (task.has_files or not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", data.hub)):
        own = ", ".join(name for name, one in TASKS.items() if not one.has_files)
        what = f"task '{task.name}' has its own data; these take any: {own}" if task.has_files else "must be owner/name"
        problems.add("recipe.data.hub", what)
    for field in ("config", "revision", "splits") if data.hub is None else ():
        if getattr(data, field) is not None:
            problems.add(f"recipe.data.{field}", "goes with recipe.data.hub, a data set of the hub")
    if data.splits is not None and "train" not in data.splits:
        problems.add("recipe.data.splits", "must say which split is trained on: {train: NAME}")
    texts = {"text", "text_a", "text_b"} & {*(data.columns or ())}
    may_be_one, may_be_two = not task.pairs, task.pairs or (task.is_own and task.columns == ("text",))
    if texts and not ((texts == {"text"} and may_be_one) or (texts == {"text_a", "text_b"} and may_be_two)):
        either = " or ".join(["text"] * may_be_one + ["text_a and text_b"] * may_be_two)
        problems.add("recipe.data.columns", f"task '{task.name}' has {either}, got {' and '.join(sorted(texts))}")
    if data.columns and "label" in data.columns and task.kind == "language-modeling":
        problems.add("recipe.data.columns.label", f"task '{task.name}' is text, and has no labels")
    if data.columns and task.synthetic:
        problems.add("recipe.data.columns", f"examples of task '{task.name}' are made: they have no columns")


def _check_optimizer(recipe: Recipe, problems: Problems) -> None:
    config, at = recipe.optimizer, "recipe.optimizer"
    entry = OPTIMIZERS.get(config.name)
    if entry is None:
        _report_unknown_name("optimizer.name", config.name, OPTIMIZERS, problems)
        return
    for field in ("betas", "eps") if not entry.has_betas else ():
        if getattr(config, field) != OptimizerConfig.__dataclass_fields__[field].default:
            problems.add(f"{at}.{field}", f"'{config.name}' has none; its own settings are in `options`")
    validate(entry.options, config.options, f"{at}.options", problems)
    if recipe.parallel == "fsdp" and not entry.is_elementwise:
        known = ", ".join(name for name, one in OPTIMIZERS.items() if one.is_elementwise)
        problems.add("recipe.parallel", f"optimizer '{config.name}' cannot be sharded by 'fsdp'; these can: {known}")


def check_names(recipe: Any, problems: Problems) -> None:
    """Names in a recipe that is wrong elsewhere too, so that both are said at once."""
    for part, field, known in (("data", "task", TASKS), ("optimizer", "name", OPTIMIZERS)):
        section = recipe.get(part) if isinstance(recipe, dict) else None
        name = section.get(field) if isinstance(section, dict) else None
        if isinstance(name, str) and name and name not in known:
            _report_unknown_name(f"{part}.{field}", name, known, problems)


def _report_unknown_name(path: str, name: str, known: Mapping[str, Any], problems: Problems) -> None:
    what = {"data.task": "task", "optimizer.name": "optimizer"}[path]
    guess = did_you_mean(name, known) or f"; one of {', '.join(known)}"
    problems.add_unknown(f"recipe.{path}", f"unknown {what} '{name}'{guess}")


def check_overrides(
    recipe: Recipe, overrides: Mapping[str, Any], places: Mapping[str, str], at: str, problems: Problems
) -> None:
    """All of them together, for one may make sense only with another. `places` has where in the file each is said."""
    found = Problems()
    data = recipe.to_dict()
    for path, value in in_order(overrides):
        if isinstance(value, dict | list):
            found.add(places.get(path, at), "must be a single value; give the paths of its parts one by one")
        else:
            set_path(data, path, value, found, at=places.get(path, at))
    budgets = [path for path in overrides if path.removeprefix("budget.") in BUDGET_FIELDS]
    if len(budgets) > 1:
        found.add(at, f"{' and '.join(budgets)} are one choice")
    if not found:
        changed = validate(Recipe, data, "recipe", found)
        if changed is not None:
            check_recipe(changed, found)
            already = Problems()
            check_recipe(recipe, already)
            found = Problems(problem for problem in found if problem not in already)
        only = next(iter(places.values())) if len(places) == 1 else at
        found = Problems((places.get(path.removeprefix("recipe."), only), text) for path, text in found)
    problems.extend(found)
