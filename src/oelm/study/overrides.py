"""Overrides: dotted paths set to other values, in a recipe or (with `--set`) anywhere in a study."""

from collections.abc import Mapping
from typing import Any

from oelm import yaml
from oelm.data.limit import LIMIT_FIELDS
from oelm.errors import did_you_mean
from oelm.masking import HOW_TO_PASS, has_secret, mask_secrets
from oelm.study.problems import Problems, study_error, validate
from oelm.study.recipe import BUDGET_FIELDS, Recipe
from oelm.study.study import Value


def apply_overrides(recipe: Recipe, overrides: Mapping[str, Value]) -> Recipe:
    """The recipe with dotted paths set to other values. Raises a StudyError if it is not a recipe then."""
    data, problems = recipe.to_dict(), Problems()
    for path, value in in_order(overrides):
        set_path(data, path, value, problems, at=path)
    changed = validate(Recipe, data, "recipe", problems)
    if problems or changed is None:
        raise study_error(problems, "the recipe")
    return changed


def apply_override(raw: dict[str, Any], text: str, problems: Problems) -> None:
    """One text as after `--set`, in the plain data of a study."""
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        problems.add(f"--set {mask_secrets(text)}", "must be of the form recipe.budget.steps=100")
        return
    if has_secret(text):  # the study is kept beside its records, and in each of them
        problems.add(f"--set {mask_secrets(text)}", f"looks like a secret, which a study would keep: {HOW_TO_PASS}")
        return
    parsed = yaml.parse(value, where=f"--set {text}")
    arms = raw.get("arms")
    keys = _split_path(raw, path.strip())
    if keys[0] == "arms" and len(keys) > 2 and isinstance(arms, dict) and keys[1] not in arms:
        problems.add(f"--set {path.strip()}", f"there is no arm '{keys[1]}'{did_you_mean(keys[1], map(str, arms))}")
        return
    set_path(raw, path.strip(), parsed, problems, at=f"--set {path.strip()}")


def set_path(data: dict[str, Any], path: str, value: Any, problems: Problems, *, at: str) -> None:
    """Set a dotted path in place. A budget is one choice, as is a limit, so a new one replaces the other; another
    optimizer has other options."""
    *parents, last = _split_path(data, path)
    for part in parents:
        inner = data.get(part)
        if inner is None:
            inner = data[part] = {}
        if not isinstance(inner, dict):
            problems.add(at, f"'{part}' has no parts")
            return
        data = inner
    if parents and last in {"budget": BUDGET_FIELDS, "limit": LIMIT_FIELDS}.get(parents[-1], ()):
        data.clear()
    if parents and parents[-1] == "optimizer" and last == "name" and data.get("name") != value:
        data.pop("options", None)
    data[last] = value


def in_order(overrides: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """The optimizer before its options."""
    return sorted(overrides.items(), key=lambda item: item[0] != "optimizer.name")


def _split_path(data: dict[str, Any], path: str) -> list[str]:
    """Keys along a path. Paths of overrides and grids have dots themselves, so they are one key."""
    head, dot, rest = path.partition(".")
    if head == "tune" and dot:
        return [head, rest]
    if head != "arms" or not dot:
        return path.split(".")
    known = data.get("arms")
    arms = sorted(known, key=lambda arm: len(str(arm)), reverse=True) if isinstance(known, dict) else []
    name = next((arm for arm in arms if f"{rest}.".startswith(f"{arm}.")), None)  # it may have dots
    if name is None:
        name = rest.split(".")[0]
    rest = rest[len(str(name)) + 1 :]
    if rest.startswith("overrides."):
        return [head, name, "overrides", rest.removeprefix("overrides.")]
    return [head, name, *(rest.split(".") if rest else [])]
