"""Observed design: that of a study as its records tell it, not as it was planned."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping

from oelm.analysis.design import (
    Design,
    Side,
    alpha_of,
    count_tests,
    hypothesis_pairs,
    is_pretrained,
    model_width,
    origin_of,
    settings_of,
)
from oelm.analysis.evidence import seed_outcomes
from oelm.analysis.results import Results, finite_number
from oelm.runs.provenance import Provenance
from oelm.runs.record import Launch, Record
from oelm.study.cells import Cell, is_nested
from oelm.study.study import Value


def observed_design(results: Results) -> Design:
    """The design as it was really run: what the records say, not what the study planned."""
    study = results.study
    sides = {}
    shared = set.intersection(*(set(results.of(name)) for name in results.arms)) if results.arms else set()
    for name in results.arms:
        records = results.of(name)
        first = next(iter(records.values()))
        trials = [cell for cell in results.tuning if cell.arm == name]
        sides[name] = Side(
            name=name,
            treatment=first.spec.treatment,
            training=study.arms[name].training,
            origin=origin_of(first.spec.recipe.model, name),
            settings=_settings({seed: records[seed] for seed in shared if seed in records} or records),
            declared=frozenset(study.arms[name].overrides),
            grid=_grid(trials) if study.tune is not None else None,
            tuned=results.tuned(name),
            trials=_trials(trials, is_nested(study)) if study.tune is not None else 1,
            seeds=_seeds(results, name),
            head_norm=_mean_norm(first),
            logit_spread=_mean_spread(first),
        )
    return Design(
        sides=sides,
        against=study.compare.baseline,
        pairs=hypothesis_pairs(study),
        pretrained=next((is_pretrained(record.spec.recipe.model) for record in results.records.values()), None),
        width=model_width(study.recipe.model),
        same_split=_same_split(results),
        metric=study.compare.metric,
        min_effect=study.compare.margin,
        family=len(results.planned.arms) - 1,
        hypotheses=count_tests(results.planned),
        alpha=alpha_of(results.planned),
        spreads=_spreads(results),
    )


def _settings(records: dict[int, Record]) -> dict[str, object]:
    """Of all cells of an arm. Where they differ among themselves, all values are named, with their seeds."""
    rows: dict[int, dict[str, object]] = {}
    recipe, settings = None, {}
    for seed, record in records.items():
        if record.spec.recipe != recipe:  # mostly all are alike
            recipe, settings = record.spec.recipe, settings_of(record.spec.recipe)
        rows[seed] = settings | _surroundings(record) | _origin(record)
    paths = dict.fromkeys(path for row in rows.values() for path in row)
    return {path: merge_seeds({seed: row.get(path) for seed, row in rows.items()}) for path in paths}


def merge_seeds(values: Mapping[int, object]) -> object:
    """What is the same in all seeds; else every value as text, with its seeds."""
    first = next(iter(values.values()), "")
    if all(value is first or (type(value) is str and value == first) for value in values.values()):
        return first
    seeds: dict[str, list[int]] = {}
    for seed, value in values.items():
        seeds.setdefault(repr(value), []).append(seed)
    if len(seeds) == 1:
        return first
    return " / ".join(f"{value} (seed {', '.join(map(str, some))})" for value, some in seeds.items())


def _surroundings(record: Record) -> dict[str, object]:
    """What a cell was trained on and with, beside its recipe. Of one that was started more than once, at last."""
    data = record.data
    return {
        "steps": record.steps,
        "data": data.data if data is not None else None,
        "tokenizer": data.tokenizer if data is not None else None,
        "cpu": record.provenance.cpu,
        "gpu": record.provenance.gpu,
        "processes": record.processes and record.processes.number,
        **_started_with(record.provenance),
    }


def _origin(record: Record) -> dict[str, object]:
    """What the model that a cell starts from was trained with, beside its treatment and what was tuned for it."""
    origin = record.start.origin if record.start is not None else None
    if origin is None:
        return {}
    spec = origin.spec
    trained = {"steps": origin.steps, "data": origin.data, "kept": origin.kept, **settings_of(spec.recipe)}
    own = {path: value for path, value in trained.items() if path not in origin.tuned}
    own |= {"study": spec.study, "seed": "same" if spec.seed == record.spec.seed else spec.seed}
    return {f"origin.{path}": value for path, value in own.items()}


def all_starts(record: Record) -> list[dict[str, object]]:
    """What a cell was trained with at every start, the last one last."""
    starts = [{**_started_with(launch), "processes": launch.processes} for launch in record.launches]
    return starts or [_started_with(record.provenance)]


def _started_with(start: Launch | Provenance) -> dict[str, object]:
    found = {"oelm": start.oelm, "commit": start.code and str(start.code), "python": start.python}
    versions = {f"versions.{package}": version for package, version in start.versions.items()}
    return {**found, "device": start.device, "threads": start.threads, **versions}


def _trials(trials: list[Cell], nested: bool) -> int:
    """Of a nested tuning, those of one seed."""
    return len({cell.point for cell in trials}) if nested else len(trials)


def _grid(trials: list[Cell]) -> dict[str, tuple[Value, ...]]:
    found: dict[str, dict[Value, None]] = {}
    for cell in trials:
        for path, value in cell.point or ():
            found.setdefault(path, {})[value] = None
    return {path: tuple(values) for path, values in found.items()}


def _mean_norm(record: Record) -> float | None:
    """Of all heads, before the first step."""
    blocks = record.start.heads.norm.values() if record.start is not None else ()
    return _mean([value for layers in blocks for layer in layers for value in layer])


def _mean_spread(record: Record) -> float | None:
    """Of the attention logits, before the first step."""
    return _mean(record.start.heads.logit_spread) if record.start is not None else None


def _mean(values: Iterable[float | None]) -> float | None:
    known = [number for value in values if (number := finite_number(value)) is not None]
    return statistics.fmean(known) if known else None


def _same_split(results: Results) -> str | None:
    """A file that is in two splits of a record."""
    for record in results.records.values():
        seen: dict[str, str] = {}
        for split, hashes in record.data.files.items() if record.data is not None else ():
            for digest in hashes:
                if seen.setdefault(digest, split) != split:
                    return f"{seen[digest]} = {split}"
    return None


def _seeds(results: Results, arm: str) -> tuple[int, ...]:
    """Those that are compared; while test numbers are sealed, those that will be."""
    metric = results.study.compare.metric
    return tuple(seed_outcomes(results, arm, metric).values if results.sealed is None else results.of(arm))


def _spreads(results: Results) -> dict[str, float]:
    """By arm: standard deviation of the differences to the baseline seed by seed, of seeds that did not fail."""
    metric, against = results.study.compare.metric, results.study.compare.baseline
    values = {arm: seed_outcomes(results, arm, metric).values for arm in (*results.arms, against)}
    found = {}
    for arm in results.arms:
        shared = [seed for seed in values[arm] if seed in values[against] and arm != against]
        differences = [values[arm][seed] - values[against][seed] for seed in shared]
        if len(differences) > 1 and statistics.stdev(differences) > 0:
            found[arm] = statistics.stdev(differences)
    return found
