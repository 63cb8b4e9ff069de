"""Load a study: from a file or the name of a shipped one, with all its problems reported together.

Pydantic is used at this border, and beyond it everything is a plain frozen dataclass.
"""

import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

from oelm import yaml
from oelm.data.tasks import TASKS
from oelm.errors import StudyError, TreatmentError, did_you_mean
from oelm.metrics import MEASURED, metric_names
from oelm.study.adapter import Trains, rank_steps_problem, read_adapter
from oelm.study.hypothesis import Hypothesis, Rule, estimand_problems, parse_estimand
from oelm.study.overrides import apply_override
from oelm.study.plugins import agree_to_plugins, import_plugins, is_plugin_name
from oelm.study.problems import Problems, report_unknown, shorten, study_error, validate
from oelm.study.recipe import Recipe
from oelm.study.recipe_checks import check_names, check_overrides, check_recipe
from oelm.study.shipped import shipped_studies
from oelm.study.study import LR, Arm, Compare, Study, Tune, Value
from oelm.treatment import Treatment

FIELDS = (
    *("study", "version", "plugins", "notes", "recipe", "arms", "tune"),
    *("seeds", "second_stage", "compare", "hypotheses"),
)
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}")  # becomes the name of a folder
FEWEST_TUNING_SEEDS = 3
_LARGEST = 1e300  # of a margin; whole numbers in a file may be beyond all floats


def load_study(
    path: str | Path, overrides: Iterable[str] = (), *, plugins: Iterable[str] = (), skip_plugins: bool = False
) -> Study:
    """A study from a file, or a shipped one by its name; `overrides` are as after `--set`: `"seeds=[0, 1]"`.

    Of the modules that the file names as its plugins, those in `plugins` may be imported, as after `--plugin`. With
    `skip_plugins` none is, and names that they may register are not looked up: enough to list the cells.
    """
    agree_to_plugins(plugins)
    file = _find(path)
    raw = yaml.read(file)
    if not isinstance(raw, dict):
        raise StudyError(f"{file} is not a study", why="it is not a mapping with `study:`, `recipe:` and `arms:`")
    problems, overrides = Problems(), list(overrides)
    for text in overrides:
        apply_override(raw, text, problems)
    where = f"{file}{' with --set' if overrides else ''}"
    return _validate_study(raw, problems, where=where, skip_plugins=skip_plugins)


def study_from_dict(raw: Mapping[str, Any], *, where: str = "the study") -> Study:
    """A study from plain data in the form of the file."""
    try:
        return _validate_study(json.loads(json.dumps(raw)), Problems(), where=where)
    except RecursionError:
        raise StudyError(f"{where} is not a study", why="it is nested without end") from None


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
        inside = next(_study_files(file), None)
        hint = f"a study file: {inside}" if inside else "a study file, or the name of a shipped one: oelm studies ls"
        raise StudyError(f"{path} is a folder, not a study file", hint=hint)
    if os.path.lexists(file):
        raise StudyError(f"{path} is not a study file", why="it is a link to nothing, a pipe or something else")
    beside = did_you_mean(file.name, (one.name for one in _study_files(file.parent)))
    guess = beside or did_you_mean(file.stem, shipped)
    raise StudyError(f"there is no study file {path}{guess}", hint=None if beside else "oelm studies ls")


def _study_files(folder: Path) -> Iterator[Path]:
    """What looks like a study in a folder."""
    with suppress(OSError, ValueError):  # it is not there, or may not be looked into
        yield from sorted(one for one in folder.iterdir() if one.suffix in (".yaml", ".yml"))


def _validate_study(raw: dict[str, Any], problems: Problems, *, where: str, skip_plugins: bool = False) -> Study:
    report_unknown(raw, FIELDS, "", problems)
    plugins = _plugins(raw.get("plugins"), problems)
    if not skip_plugins:  # before anything is looked up that they may register
        import_plugins(plugins)
    name = raw.get("study")
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        problems.add("study", f"must be a name of at most 100 letters, digits, '.', '_', '+' or '-', got {name!r}")
    if raw.get("version") != 1 or isinstance(raw.get("version"), bool):
        problems.add("version", f"must be 1, the form of file this oelm reads, got {raw.get('version')!r}")
    recipe = validate(Recipe, raw.get("recipe"), "recipe", problems)
    if recipe is not None:
        check_recipe(recipe, problems)
    else:
        check_names(raw.get("recipe"), problems)
    arms = _arms(raw.get("arms"), recipe, problems)
    _check_parallel(recipe, arms, problems)
    seeds = _seeds(raw.get("seeds"), "seeds", problems)
    second_stage = _second_stage(raw.get("second_stage"), seeds, problems)
    tune = _tune(raw.get("tune"), recipe, arms, (*seeds, *second_stage), problems)
    grid = tune.grid if tune is not None else {}
    _check_rates(recipe, arms, grid, problems)
    _check_ranks(recipe, arms, grid, problems)
    compare = validate(Compare, raw.get("compare"), "compare", problems)
    if compare is not None:
        _check_compare(compare, arms, recipe, problems)
    hypotheses = _hypotheses(raw.get("hypotheses"), arms, recipe, problems)
    for one in hypotheses:
        metric = one.estimand.metric
        if metric in metric_names("tuning") and (tune is None or LR not in tune.grid):
            problems.add(f"hypotheses.{one.name}.estimand", f"there is no {metric} unless {LR} is tuned")
    notes = raw.get("notes") or []
    if not isinstance(notes, list) or not all(isinstance(note, str) for note in notes):
        problems.add("notes", f"must be a list of texts (in quotation marks, if there is a colon), got {notes!r}")
    if plugins and skip_plugins:
        problems = problems.without_unknown()
    if problems:
        raise study_error(problems, where)
    assert recipe is not None
    assert compare is not None
    return Study(
        name=str(name),
        version=1,
        plugins=plugins,
        notes=tuple(notes),
        recipe=recipe,
        arms=arms,
        seeds=seeds,
        second_stage=second_stage,
        tune=tune,
        compare=compare,
        hypotheses=hypotheses,
    )


def _plugins(raw: Any, problems: Problems) -> tuple[str, ...]:
    names = raw or []
    if not isinstance(names, list) or not all(map(is_plugin_name, names)):
        problems.add("plugins", f"must be a list of modules such as [my_module], got {shorten(raw)}")
        return ()
    return tuple(names)


def _arms(raw: Any, recipe: Recipe | None, problems: Problems) -> dict[str, Arm]:
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
        own = {field.name for field in fields(Treatment)}
        report_unknown(fields_of_arm, own | {"adapter", "trains", "overrides"}, f"{at}.", problems)
        treatment = Treatment()
        try:
            treatment = Treatment.from_dict({k: v for k, v in fields_of_arm.items() if k in own})
        except (TreatmentError, TypeError) as error:
            problems.add(at, " ".join(str(error).split()))
        overrides = _overrides(fields_of_arm.get("overrides"), f"{at}.overrides", recipe, problems)
        adapter, trains = read_adapter(fields_of_arm.get("adapter"), f"{at}.adapter", problems), "all"
        if (given := fields_of_arm.get("trains", "all")) in get_args(Trains):
            trains = given
        else:
            guess = did_you_mean(given, get_args(Trains))
            problems.add(f"{at}.trains", f"{given!r} is not known{guess}; one of {', '.join(get_args(Trains))}")
        arms[name] = Arm(name=name, treatment=treatment, overrides=overrides, adapter=adapter, trains=trains)  # type: ignore[arg-type]
        _check_trained(arms[name], at, problems)
    return arms


def _check_trained(arm: Arm, at: str, problems: Problems) -> None:
    """Refuse what says two things about the same weights."""
    if not arm.freezes_backbone:
        return
    if arm.adapter is not None and arm.trains != "all":
        problems.add(f"{at}.trains", "does not go with an adapter, which is trained instead of the model itself")
    instead = "its adapter" if arm.adapter is not None else f"trains: {arm.trains}"
    if arm.treatment.unfreeze is not None:
        problems.add(f"{at}.unfreeze", f"does not go with {instead}, which leaves queries and keys frozen")
    if arm.treatment.keep_orthonormal:
        problems.add(f"{at}.keep_orthonormal", f"does not go with {instead}, which leaves queries and keys frozen")


def _check_parallel(recipe: Recipe | None, arms: Mapping[str, Arm], problems: Problems) -> None:
    for arm in arms.values():
        parallel = arm.overrides.get("parallel", recipe.parallel if recipe is not None else None)
        if parallel == "fsdp" and arm.adapter is not None:
            problems.add(
                f"arms.{arm.name}.adapter",
                "does not go with recipe.parallel 'fsdp', which shards all weights of a block alike; use 'ddp'",
            )
        if parallel == "fsdp" and arm.treatment.unfreeze is not None:
            problems.add(
                f"arms.{arm.name}.unfreeze",
                "does not go with recipe.parallel 'fsdp', which fixes at the start what learns; 'ddp' does not",
            )
        if parallel == "fsdp" and arm.treatment.keep_orthonormal:
            problems.add(
                f"arms.{arm.name}.keep_orthonormal",
                "does not go with recipe.parallel 'fsdp', where no process has whole heads; use 'ddp'",
            )


def _check_rates(
    recipe: Recipe | None, arms: Mapping[str, Arm], grid: Mapping[str, Sequence[Value]], problems: Problems
) -> None:
    path = "optimizer.qk_lr"
    given = recipe.optimizer.qk_lr if recipe is not None else None
    remedy = "leave that out of tune" if path in grid else f"overrides: {{{path}: null}} leaves that out"
    for arm in arms.values():
        if arm.adapter is not None and any(value is not None for value in _values(path, arm, grid, given=given)):
            problems.add(
                f"arms.{arm.name}.adapter",
                f"does not go with {path}, as it is trained instead of queries and keys; {remedy}",
            )


def _check_ranks(
    recipe: Recipe | None, arms: Mapping[str, Arm], grid: Mapping[str, Sequence[Value]], problems: Problems
) -> None:
    """Of a budget in steps. How many another one has is known when its data are."""
    for arm in arms.values():
        if arm.adapter is None or arm.adapter.kind != "adalora":
            continue
        is_other = not {"budget.epochs", "budget.tokens"}.isdisjoint({*arm.overrides, *grid})
        given = recipe.budget.steps if recipe is not None and not is_other else None
        totals = [value for value in _values("budget.steps", arm, grid, given=given) if type(value) is int]
        tinit, tfinal = (arm.adapter.options.get(name, 0) for name in ("tinit", "tfinal"))
        if totals and type(tinit) is type(tfinal) is int:
            problem = rank_steps_problem(tinit=tinit, tfinal=tfinal, total=min(totals))
            if problem is not None:
                problems.add(f"arms.{arm.name}.adapter", problem)


def _values(path: str, arm: Arm, grid: Mapping[str, Sequence[Value]], *, given: Value) -> Sequence[Value]:
    """All that a setting is in the trainings of an arm; `given` is that of the recipe."""
    return grid[path] if path in grid else (arm.overrides.get(path, given),)


def _overrides(raw: Any, at: str, recipe: Recipe | None, problems: Problems) -> dict[str, Value]:
    if raw is None:
        return {}
    if not isinstance(raw, dict):
        problems.add(at, f"must be a mapping such as {{optimizer.lr: 3e-4}}, got {raw!r}")
        return {}
    overrides = {str(path): value for path, value in raw.items()}
    if recipe is not None:
        check_overrides(recipe, overrides, {path: f"{at}.{path}" for path in overrides}, at, problems)
    return overrides


def _tune(
    raw: Any, recipe: Recipe | None, arms: Mapping[str, Arm], seeds: Sequence[int], problems: Problems
) -> Tune | None:
    if raw is None:
        return None
    if not isinstance(raw, dict):
        problems.add("tune", f"must be a mapping such as {{optimizer.lr: [1e-4, 3e-4]}}, got {raw!r}")
        return None
    own = _seeds(raw["seeds"], "tune.seeds", problems) if raw.get("seeds") is not None else None
    both = sorted(set(own or ()) & set(seeds))
    if both:
        problems.add("tune.seeds", f"must be seeds of its own, but {both} are also compared")
    if own and len(own) < FEWEST_TUNING_SEEDS:
        problems.add(
            "tune.seeds",
            f"are {len(own)}, and the luck of so few would decide for all compared seeds: at least "
            f"{FEWEST_TUNING_SEEDS}, or none, and every compared seed tunes itself",
        )
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
                check_overrides(recipe, {path: value}, {path: place}, place, problems)
        for arm in arms.values():
            if path in arm.overrides:
                problems.add(f"arms.{arm.name}.overrides.{path}", "is tuned as well; an arm has one or the other")
    if recipe is not None and not problems:
        _check_corners(recipe, grid, arms, problems)
    return Tune(grid={path: tuple(v) if isinstance(v, list) else (v,) for path, v in grid.items()}, seeds=own)


def _check_corners(
    recipe: Recipe, grid: Mapping[str, Sequence[Value]], arms: Mapping[str, Arm], problems: Problems
) -> None:
    """Settings that make sense by themselves may make none together, or with the overrides of an arm."""
    for values in itertools.product(*grid.values()):
        point = dict(zip(grid, values, strict=True))
        for arm in arms.values():
            check_overrides(recipe, {**arm.overrides, **point}, {}, f"tune, at {point}, arm '{arm.name}'", problems)
            if problems:
                return


def _seeds(raw: Any, at: str, problems: Problems) -> tuple[int, ...]:
    good = isinstance(raw, list) and raw and all(type(seed) is int and 0 <= seed < 2**63 for seed in raw)
    if not good:
        problems.add(at, f"must be a list of whole numbers from 0 on, such as [0, 1, 2], got {raw!r}")
        return ()
    if len(set(raw)) < len(raw):
        problems.add(at, f"names a seed twice: {raw}")
    return tuple(raw)


def _second_stage(raw: Any, first: Sequence[int], problems: Problems) -> tuple[int, ...]:
    if raw is None or raw == []:
        return ()
    seeds = _seeds(raw, "second_stage", problems)
    both = sorted(set(seeds) & set(first))
    if both:
        problems.add("second_stage", f"must be seeds of its own, but {both} are also in seeds")
    return seeds


def _check_compare(compare: Compare, arms: Mapping[str, Arm], recipe: Recipe | None, problems: Problems) -> None:
    if arms and compare.baseline not in arms:
        problems.add("compare.baseline", f"unknown arm '{compare.baseline}'{did_you_mean(compare.baseline, arms)}")
    task = TASKS.get(recipe.data.task) if recipe else None
    if task is not None and compare.metric not in task.metrics:
        others = [one.name for one in TASKS.values() if not one.has_files and compare.metric in one.metrics]
        known = f"; task '{task.name}' has {', '.join(task.metrics)}"
        known += f"; data: {{task: {' or '.join(others)}}} measures it" if others else ""
        guess = did_you_mean(compare.metric, task.metrics) or known
        problems.add_unknown("compare.metric", f"'{compare.metric}' is not measured{guess}")
    if compare.min_effect is not None and not compare.min_effect > 0:
        problems.add("compare.min_effect", f"must be greater than 0, got {compare.min_effect}")
    elif compare.min_effect is not None and compare.metric == "perplexity" and compare.min_effect >= 1:
        problems.add(
            "compare.min_effect",
            f"must be less than 1, for it is a share of the perplexity: 0.05 is 5 %, got {compare.min_effect:g}",
        )


def _hypotheses(raw: Any, arms: Mapping[str, Arm], recipe: Recipe | None, problems: Problems) -> tuple[Hypothesis, ...]:
    if raw is None:
        return ()
    if not isinstance(raw, dict):
        problems.add("hypotheses", f"must be a mapping from names to hypotheses, got {shorten(raw)}")
        return ()
    found = (_hypothesis(str(name), row, arms, recipe, problems) for name, row in raw.items())
    return tuple(hypothesis for hypothesis in found if hypothesis is not None)


def _hypothesis(
    name: str, raw: Any, arms: Mapping[str, Arm], recipe: Recipe | None, problems: Problems
) -> Hypothesis | None:
    at, before = f"hypotheses.{name}", len(problems)
    known = ("statement", "estimand", "rule", "margin")
    if not isinstance(raw, dict):
        problems.add(at, f"must be a mapping of {', '.join(known)}, got {shorten(raw)}")
        return None
    report_unknown(raw, known, f"{at}.", problems)
    statement, text, rule, margin = (raw.get(field) for field in known)
    if not isinstance(statement, str) or not statement:
        problems.add(f"{at}.statement", f"must be a sentence, got {shorten(statement)}")
    if rule not in get_args(Rule):
        problems.add(
            f"{at}.rule", f"{rule!r} is not known{did_you_mean(rule, get_args(Rule))}; one of below, above, within"
        )
    is_number = not isinstance(margin, bool) and isinstance(margin, int | float) and abs(margin) <= _LARGEST
    if not is_number:
        problems.add(f"{at}.margin", f"must be a number, got {shorten(margin)}")
    try:
        estimand = parse_estimand(str(text))
    except ValueError as error:
        problems.add(f"{at}.estimand", str(error))
        return None
    for field, wrong in estimand_problems(estimand, rule, margin if is_number else None, arms=arms):  # type: ignore[arg-type]
        problems.add(f"{at}.{field}", wrong)
    task = TASKS.get(recipe.data.task) if recipe else None
    metrics = (*(task.metrics if task else ()), *MEASURED)
    if task is not None and estimand.metric not in metrics:
        guess = did_you_mean(estimand.metric, metrics) or f"; there are {', '.join(metrics)}"
        problems.add_unknown(f"{at}.estimand", f"'{estimand.metric}' is not measured{guess}")
    if len(problems) > before:
        return None
    return Hypothesis(name=name, statement=statement, estimand=estimand, rule=rule, margin=float(margin))  # type: ignore[arg-type]
