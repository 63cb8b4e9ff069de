"""Load a study: from a file or the name of a shipped one, with all its problems reported together.

Pydantic is used at this border, and beyond it everything is a plain frozen dataclass.
"""

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from pathlib import Path
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from oelm.data.tasks import TASKS
from oelm.errors import StudyError, TreatmentError, did_you_mean
from oelm.study import yaml
from oelm.study.hypothesis import MEASURED, Hypothesis, Rule, parse_estimand
from oelm.study.recipe import CHOICES_OF_BUDGET, Recipe
from oelm.study.shipped import shipped_studies
from oelm.study.study import Arm, Compare, Study, Tune, Value
from oelm.treatment import Treatment

FIELDS = ("study", "version", "notes", "recipe", "arms", "tune", "seeds", "compare", "hypotheses")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")  # becomes the name of a folder
_LARGEST = 1e300  # of a margin; whole numbers in a file may be beyond all floats
_recipe = TypeAdapter(Recipe)
_compare = TypeAdapter(Compare)
_T = TypeVar("_T")


class _Problems(list[tuple[str, str]]):
    """(path, what is wrong there), in the order they are found."""

    def add(self, path: str, text: str) -> None:
        self.append((path, text))


def load_study(path: str | Path, overrides: Iterable[str] = ()) -> Study:
    """A study from a file, or a shipped one by its name; `overrides` are as after `--set`: `"seeds=[0, 1]"`."""
    file = _find(path)
    raw = yaml.read(file)
    if not isinstance(raw, dict):
        raise StudyError(f"{file} is not a study", why="it is not a mapping with `study:`, `recipe:` and `arms:`")
    problems, overrides = _Problems(), list(overrides)
    for text in overrides:
        _override(raw, text, problems)
    return _checked(raw, problems, where=f"{file}{' with --set' if overrides else ''}")


def study_from_dict(raw: Mapping[str, Any], *, where: str = "the study") -> Study:
    """A study from plain data in the form of the file."""
    try:
        return _checked(json.loads(json.dumps(raw)), _Problems(), where=where)
    except RecursionError:
        raise StudyError(f"{where} is no study", why="it is nested without end") from None


def with_changes(recipe: Recipe, changes: Mapping[str, Value]) -> Recipe:
    """The recipe with dotted paths set to other values. Raises a StudyError if it is then no recipe."""
    data, problems = asdict(recipe), _Problems()
    for path, value in changes.items():
        _set(data, path, value, problems, at=path)
    changed = _validated(_recipe, data, "recipe", problems)
    if problems or changed is None:
        raise _error(problems, "the recipe")
    return changed


def _find(path: str | Path) -> Path:
    file = Path(path)
    try:
        if file.is_file():
            return file
    except OSError as error:  # a name that is too long, or a folder that may not be looked into
        raise StudyError(f"{path} cannot be read", why=error.strerror) from error
    shipped = shipped_studies()
    if str(path) in shipped:
        return shipped[str(path)]
    if file.is_dir():
        raise StudyError(f"{path} is a folder, not a study file")
    raise StudyError(f"there is no study file {path}{did_you_mean(file.stem, shipped)}", hint="oelm studies ls")


def _checked(raw: dict[str, Any], problems: _Problems, *, where: str) -> Study:
    _unknown(raw, FIELDS, "", problems)
    name = raw.get("study")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problems.add("study", f"must be a name of at most 100 letters, digits, '.', '_', '+' or '-', got {name!r}")
    if raw.get("version") != 1 or isinstance(raw.get("version"), bool):
        problems.add("version", f"must be 1, the form of file this oelm reads, got {raw.get('version')!r}")
    recipe = _validated(_recipe, raw.get("recipe"), "recipe", problems)
    if recipe is not None:
        _check_recipe(recipe, problems)
    else:
        _check_task(raw.get("recipe"), problems)
    arms = _arms(raw.get("arms"), recipe, problems)
    _check_parallel(recipe, arms, problems)
    seeds = _seeds(raw.get("seeds"), "seeds", problems)
    tune = _tune(raw.get("tune"), recipe, arms, seeds, problems)
    compare = _validated(_compare, raw.get("compare"), "compare", problems)
    if compare is not None:
        _check_compare(compare, arms, recipe, problems)
    hypotheses = _hypotheses(raw.get("hypotheses"), arms, recipe, problems)
    notes = raw.get("notes") or []
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        problems.add("notes", f"must be a list of texts (in quotation marks, if there is a colon), got {notes!r}")
    if problems:
        raise _error(problems, where)
    assert recipe is not None
    assert compare is not None
    return Study(
        name=str(name),
        version=1,
        notes=tuple(notes),
        recipe=recipe,
        arms=arms,
        seeds=seeds,
        tune=tune,
        compare=compare,
        hypotheses=hypotheses,
    )


def _check_recipe(recipe: Recipe, problems: _Problems) -> None:
    data = recipe.data
    task = TASKS.get(data.task)
    if task is None:
        problems.add("recipe.data.task", f"unknown task '{data.task}'{did_you_mean(data.task, TASKS)}")
        return
    if data.select is None and task.select is None:
        problems.add(
            "recipe.data.select",
            f"task '{task.name}' has no split to select on: say how many training examples to hold out, e.g. 1000",
        )
    if task.name == "text" and data.path is None:
        problems.add("recipe.data.path", "task 'text' needs a folder or file of text")
    if data.joiner is not None and not task.pairs:
        problems.add("recipe.data.joiner", f"task '{task.name}' has no pairs to join")
    ours = recipe.model.name == "oelm-gpt"
    for field in ("preset", "pooling", "causal"):
        if not ours and getattr(recipe.model, field) != type(recipe.model).__dataclass_fields__[field].default:
            problems.add(f"recipe.model.{field}", f"goes with the model 'oelm-gpt', not with '{recipe.model.name}'")
    if ours and recipe.model.preset is None:
        problems.add("recipe.model.preset", "is missing: mini-128, mini-256 or medium-512")
    if ours and data.tokenizer is None:
        problems.add(
            "recipe.data.tokenizer", "'oelm-gpt' has none of its own: {train: bpe, vocab: 8192} or {name: ...}"
        )
    if ours and task.kind == "language-modelling" and not recipe.model.causal:
        problems.add("recipe.model.causal", f"task '{task.name}' predicts the next token: it needs causal attention")


def _check_task(recipe: Any, problems: _Problems) -> None:
    """Of a recipe that is wrong elsewhere too, so that both are said at once."""
    data = recipe.get("data") if isinstance(recipe, dict) else None
    task = data.get("task") if isinstance(data, dict) else None
    if isinstance(task, str) and task and task not in TASKS:
        problems.add("recipe.data.task", f"unknown task '{task}'{did_you_mean(task, TASKS)}")


def _arms(raw: Any, recipe: Recipe | None, problems: _Problems) -> dict[str, Arm]:
    if not isinstance(raw, dict):
        problems.add("arms", f"must be a mapping from names to treatments, got {raw!r}" if raw else "is missing")
        return {}
    if len(raw) < 2:
        problems.add("arms", f"a comparison needs at least two, got {len(raw)}")
    arms = {}
    for name, fields_of_arm in raw.items():
        at = f"arms.{name}"
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            problems.add(at, "the name must be of at most 100 letters, digits, '.', '_', '+' or '-'")
            continue
        if not isinstance(fields_of_arm, dict):
            problems.add(at, f"must be a mapping such as {{init: keep, freeze: none}}, got {fields_of_arm!r}")
            continue
        known = {field.name for field in fields(Treatment)} | {"changes"}
        _unknown(fields_of_arm, known, f"{at}.", problems)
        treatment = Treatment()
        try:
            treatment = Treatment.from_dict({k: v for k, v in fields_of_arm.items() if k in known - {"changes"}})
        except (TreatmentError, TypeError) as error:
            problems.add(at, " ".join(str(error).split()))
        changes = _changes(fields_of_arm.get("changes"), f"{at}.changes", recipe, problems)
        arms[name] = Arm(name=name, treatment=treatment, changes=changes)
    return arms


def _check_parallel(recipe: Recipe | None, arms: Mapping[str, Arm], problems: _Problems) -> None:
    for arm in arms.values():
        parallel = arm.changes.get("parallel", recipe.parallel if recipe is not None else None)
        if parallel == "fsdp" and arm.treatment.unfreeze is not None:
            problems.add(
                f"arms.{arm.name}.unfreeze",
                "does not go with recipe.parallel 'fsdp', which fixes at the start what learns; 'ddp' does not",
            )


def _changes(raw: Any, at: str, recipe: Recipe | None, problems: _Problems) -> dict[str, Value]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        problems.add(at, f"must be a mapping such as {{optimizer.lr: 3e-4}}, got {raw!r}")
        return {}
    changes = {str(path): value for path, value in raw.items()}
    if recipe is not None:
        _check_changes(recipe, changes, {path: f"{at}.{path}" for path in changes}, at, problems)
    return changes


def _check_changes(
    recipe: Recipe, changes: Mapping[str, Any], places: Mapping[str, str], at: str, problems: _Problems
) -> None:
    """All of them together, for one may make sense only with another. `places` has where in the file each is said."""
    found = _Problems()
    data = asdict(recipe)
    for path, value in changes.items():
        if isinstance(value, dict | list):
            found.add(places.get(path, at), "must be a single value; give the paths of its parts one by one")
        else:
            _set(data, path, value, found, at=places.get(path, at))
    budgets = [path for path in changes if path.removeprefix("budget.") in CHOICES_OF_BUDGET]
    if len(budgets) > 1:
        found.add(at, f"{' and '.join(budgets)} are one choice")
    if not found:
        changed = _validated(_recipe, data, "recipe", found)
        if changed is not None:
            _check_recipe(changed, found)
            already = _Problems()
            _check_recipe(recipe, already)
            found = _Problems(problem for problem in found if problem not in already)
        only = next(iter(places.values())) if len(places) == 1 else at
        found = _Problems((places.get(path.removeprefix("recipe."), only), text) for path, text in found)
    problems.extend(found)


def _tune(
    raw: Any, recipe: Recipe | None, arms: Mapping[str, Arm], seeds: Sequence[int], problems: _Problems
) -> Tune | None:
    if raw is None:
        return None
    if not isinstance(raw, dict):
        problems.add("tune", f"must be a mapping such as {{optimizer.lr: [1e-4, 3e-4], seeds: [100]}}, got {raw!r}")
        return None
    own = _seeds(raw.get("seeds"), "tune.seeds", problems)
    both = sorted(set(own) & set(seeds))
    if both:
        problems.add("tune.seeds", f"must be seeds of its own, but {both} are also compared")
    grid = {str(path): values for path, values in raw.items() if path != "seeds"}
    if not grid:
        problems.add("tune", "names nothing to tune")
    for path, values in grid.items():
        if not isinstance(values, list) or len(values) < 2 or any(values.count(value) > 1 for value in values):
            problems.add(f"tune.{path}", f"must be a list of at least two different values, got {values!r}")
            continue
        for value in values:
            if recipe is not None:
                place = f"tune.{path}"
                _check_changes(recipe, {path: value}, {path: place}, place, problems)
        for arm in arms.values():
            if path in arm.changes:
                problems.add(f"arms.{arm.name}.changes.{path}", "is tuned as well; an arm has one or the other")
    if recipe is not None and not problems:
        _check_corners(recipe, grid, arms, problems)
    return Tune(grid={path: tuple(v) if isinstance(v, list) else (v,) for path, v in grid.items()}, seeds=own)


def _check_corners(
    recipe: Recipe, grid: Mapping[str, Sequence[Value]], arms: Mapping[str, Arm], problems: _Problems
) -> None:
    """Settings that make sense by themselves may make none together, or with the changes of an arm."""
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        for arm in arms.values():
            _check_changes(recipe, {**arm.changes, **point}, {}, f"tune, at {point}, arm '{arm.name}'", problems)
            if problems:
                return


def _seeds(raw: Any, at: str, problems: _Problems) -> tuple[int, ...]:
    good = isinstance(raw, list) and raw and all(type(seed) is int and 0 <= seed < 2**63 for seed in raw)
    if not good:
        problems.add(at, f"must be a list of whole numbers from 0 on, such as [0, 1, 2], got {raw!r}")
        return ()
    if len(set(raw)) < len(raw):
        problems.add(at, f"names a seed twice: {raw}")
    return tuple(raw)


def _check_compare(compare: Compare, arms: Mapping[str, Arm], recipe: Recipe | None, problems: _Problems) -> None:
    if arms and compare.against not in arms:
        problems.add("compare.against", f"'{compare.against}' is no arm{did_you_mean(compare.against, arms)}")
    task = TASKS.get(recipe.data.task) if recipe else None
    metric = compare.primary.metric
    if task is not None and metric not in task.metrics:
        known = f"; task '{task.name}' has {', '.join(task.metrics)}"
        problems.add(
            "compare.primary.metric", f"'{metric}' is not measured{did_you_mean(metric, task.metrics) or known}"
        )
    better = "lower" if metric in ("loss", "perplexity") else "higher"
    if compare.primary.better != better and task is not None and metric in task.metrics:
        problems.add("compare.primary.better", f"of {metric}, '{better}' is better")
    smallest = compare.primary.smallest_interesting
    if smallest is not None and not smallest > 0:
        problems.add("compare.primary.smallest_interesting", f"must be greater than 0, got {smallest}")


def _hypotheses(
    raw: Any, arms: Mapping[str, Arm], recipe: Recipe | None, problems: _Problems
) -> tuple[Hypothesis, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, dict):
        problems.add("hypotheses", f"must be a mapping from names to hypotheses, got {_short(raw)}")
        return ()
    found = (_hypothesis(str(name), row, arms, recipe, problems) for name, row in raw.items())
    return tuple(hypothesis for hypothesis in found if hypothesis is not None)


def _hypothesis(
    name: str, raw: Any, arms: Mapping[str, Arm], recipe: Recipe | None, problems: _Problems
) -> Hypothesis | None:
    at, before = f"hypotheses.{name}", len(problems)
    known = ("statement", "estimand", "rule", "margin")
    if not isinstance(raw, dict):
        problems.add(at, f"must be a mapping of {', '.join(known)}, got {_short(raw)}")
        return None
    _unknown(raw, known, f"{at}.", problems)
    statement, text, rule, margin = (raw.get(field) for field in known)
    if not isinstance(statement, str) or not statement:
        problems.add(f"{at}.statement", f"must be a sentence, got {_short(statement)}")
    if rule not in get_args(Rule):
        problems.add(
            f"{at}.rule", f"{rule!r} is not known{did_you_mean(rule, get_args(Rule))}; one of below, above, within"
        )
    if isinstance(margin, bool) or not isinstance(margin, int | float) or not abs(margin) <= _LARGEST:
        problems.add(f"{at}.margin", f"must be a number, got {_short(margin)}")
    elif rule == "within" and margin <= 0:
        problems.add(f"{at}.margin", f"must be greater than 0, got {margin}")
    try:
        estimand = parse_estimand(str(text))
    except ValueError as error:
        problems.add(f"{at}.estimand", str(error))
        return None
    for arm in (estimand.arm, estimand.against):
        if arm is not None and arms and arm not in arms:
            problems.add(f"{at}.estimand", f"'{arm}' is no arm{did_you_mean(arm, arms)}")
    if estimand.arm == estimand.against:
        problems.add(f"{at}.estimand", f"compares '{estimand.arm}' with itself")
    task = TASKS.get(recipe.data.task) if recipe else None
    metrics = (*(task.metrics if task else ()), *MEASURED)
    if task is not None and estimand.metric not in metrics:
        told = did_you_mean(estimand.metric, metrics) or f"; there are {', '.join(metrics)}"
        problems.add(f"{at}.estimand", f"'{estimand.metric}' is not measured{told}")
    if estimand.form == "value" and rule == "within":
        problems.add(f"{at}.rule", "'within' needs two arms: metric(a) - metric(b), or metric(a) / metric(b)")
    if len(problems) > before:
        return None
    return Hypothesis(name=name, statement=statement, estimand=estimand, rule=rule, margin=float(margin))  # type: ignore[arg-type]


def _override(raw: dict[str, Any], text: str, problems: _Problems) -> None:
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        problems.add(f"--set {text}", "must be of the form recipe.budget.steps=100")
        return
    parsed = yaml.parse(value, where=f"--set {text}")
    arms = raw.get("arms")
    keys = _split(raw, path.strip())
    if keys[0] == "arms" and len(keys) > 2 and isinstance(arms, dict) and keys[1] not in arms:
        problems.add(f"--set {path.strip()}", f"there is no arm '{keys[1]}'{did_you_mean(keys[1], map(str, arms))}")
        return
    _set(raw, path.strip(), parsed, problems, at=f"--set {path.strip()}")


def _set(data: dict[str, Any], path: str, value: Any, problems: _Problems, *, at: str) -> None:
    """Set a dotted path in place. Budgets are one choice: a new one takes the place of the other."""
    *parents, last = _split(data, path)
    for part in parents:
        inner = data.get(part)
        if inner is None:
            inner = data[part] = {}
        if not isinstance(inner, dict):
            problems.add(at, f"'{part}' has no parts")
            return
        data = inner
    if parents and parents[-1] == "budget" and last in CHOICES_OF_BUDGET:
        data.clear()
    data[last] = value


def _split(data: dict[str, Any], path: str) -> list[str]:
    """Keys along a path. Paths of changes and grids have dots themselves, so they are one key."""
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
    if rest.startswith("changes."):
        return [head, name, "changes", rest.removeprefix("changes.")]
    return [head, name, *(rest.split(".") if rest else [])]


def checked(
    raw: Any, adapter: TypeAdapter[_T], root: type, *, where: str, also: Callable[[_T], Iterable[tuple[str, str]]]
) -> _T:
    """Plain data of another file than a study as what `root` says, or a StudyError with all its problems.

    `also` finds those that pydantic does not see, as (path, what is wrong there).
    """
    problems = _Problems()
    made = _validated(adapter, raw, "", problems, root=root)
    if made is not None:
        problems.extend(also(made))
    if made is None or problems:
        raise _error(problems, where)
    return made


def _validated(
    adapter: TypeAdapter[_T], data: Any, at: str, problems: _Problems, *, root: type | None = None
) -> _T | None:
    if data is None:
        problems.add(at, "is missing")
        return None
    try:
        # Through JSON: there, strict means that a number is a number, and a list is still good for a tuple.
        return adapter.validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        root = root or (Recipe if at == "recipe" else Compare)
        for item in error.errors(include_url=False):
            path = [str(part) for part in item["loc"]]
            place = ".".join(filter(None, [at, *_plain(path)]))
            if not problems or problems[-1][0] != place:
                problems.add(place, _said(item, root, path))
        return None


def _said(item: Any, root: type, path: list[str]) -> str:
    """What pydantic found, in our words."""
    kind, seen, context = item["type"], item["input"], item.get("ctx") or {}
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        siblings = _fields_at(root, path[:-1])
        return f"unknown field{did_you_mean(path[-1], siblings) or '; known are ' + ', '.join(siblings)}"
    if kind in ("missing", "missing_argument"):
        return "is missing"
    if kind == "value_error":
        return str(context.get("error", item["msg"]))
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return f"{seen!r} is not known{did_you_mean(seen, choices)}; one of {', '.join(choices)}"
    text = item["msg"].removeprefix("Input ").removeprefix("should ").replace("Input should ", "")
    return f"must {text[0].lower()}{text[1:]}, got {_short(seen)}"


def _plain(path: list[str]) -> list[str]:
    """A location without pydantic's names for the branches of a union."""
    return [
        part for part in path if not re.fullmatch(r"(str|int|float|bool|dict\[.*|constrained-.*|function-.*)", part)
    ]


def _fields_at(root: Any, path: Sequence[str]) -> list[str]:
    for part in path:
        if get_origin(root) in (dict, tuple):  # values by any name, or one after the other
            root = get_args(root)[get_origin(root) is dict]
        else:
            hints = get_type_hints(root) if is_dataclass(root) else {}
            root = hints.get(part, root)
        if get_origin(root) in (Union, UnionType):
            root = next((choice for choice in get_args(root) if is_dataclass(choice)), root)
    return [field.name for field in fields(root)] if is_dataclass(root) else []


def _unknown(data: Mapping[str, Any], known: Iterable[str], prefix: str, problems: _Problems) -> None:
    names = sorted(known)
    for name in data:
        if name not in names:
            told = did_you_mean(name, names) or "; known are " + ", ".join(names)
            problems.add(f"{prefix}{name}", f"unknown field{told}")


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _error(problems: _Problems, where: str) -> StudyError:
    width = min(max(len(path) for path, _ in problems), 44)
    lines = [f"  {path:<{width}}  {text}" for path, text in problems]
    number = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return StudyError("\n".join([f"{where} has {number}; nothing was started.", *lines]))
