"""As run: the design of a study as its records tell it, not as it was planned."""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from oelm.analysis.design import Design, Side, hypothesis_pairs, is_pretrained, model_width, settings_of
from oelm.analysis.results import Results, finite_number
from oelm.errors import OelmError
from oelm.runs.record import Record
from oelm.study.cells import Cell
from oelm.treatment import Treatment

# Provenance that may differ between cells, and where it is found in a record.
_SURROUNDINGS = {
    "commit": ("code", "commit"),
    "device": ("device",),
    "cpu": ("cpu",),
    "gpu": ("gpu",),
    "threads": ("threads",),
    "versions": ("versions",),
}


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
            treatment=treatment_of(first) or study.arms[name].treatment,
            settings=_settings({seed: records[seed] for seed in shared if seed in records} or records),
            declared=frozenset(study.arms[name].overrides),
            grid=_grid(trials) if study.tune is not None else None,
            tuned=results.tuned(name),
            trials=len(trials) if study.tune is not None else None,
            seeds=tuple(results.values(name, study.compare.metric)),
            head_norm=_mean_of(first, "norm"),
            logit_spread=_mean_of(first, "logit_spread"),
        )
    return Design(
        sides=sides,
        against=study.compare.baseline,
        pairs=hypothesis_pairs(study),
        pretrained=next((is_pretrained(record.spec.get("recipe")) for record in results.records.values()), None),
        width=model_width(study.recipe.model.preset),
        same_split=_same_split(results),
        min_effect=study.compare.min_effect,
        spreads=_spreads(results),
    )


def _settings(records: dict[int, Record]) -> dict[str, Any]:
    """Of all cells of an arm. Where they differ among themselves, all values are named, with their seeds."""
    rows = {}
    for seed, record in records.items():
        recipe = record.spec.get("recipe")
        row = settings_of(recipe) if isinstance(recipe, dict) else {}
        row |= {"steps": record.start.get("steps"), "data": record.data.get("data")}
        row |= {"tokenizer": record.data.get("tokenizer")}
        for name, parts in _SURROUNDINGS.items():
            value: Any = record.provenance
            for part in parts:
                value = value.get(part) if isinstance(value, dict) else None
            if isinstance(value, dict):
                row |= {f"{name}.{key}": inner for key, inner in value.items()}
            else:
                row[name] = _over_starts(record, name, value)
        rows[seed] = row
    merged = {}
    for path in dict.fromkeys(path for row in rows.values() for path in row):
        seeds: dict[str, list[int]] = {}
        for seed, row in rows.items():
            seeds.setdefault(repr(row.get(path)), []).append(seed)
        named = " / ".join(f"{value} (seed {', '.join(map(str, some))})" for value, some in seeds.items())
        merged[path] = next(iter(rows.values())).get(path) if len(seeds) == 1 else named
    return merged


def _over_starts(record: Record, name: str, last: Any) -> Any:
    """Of a cell that was started more than once, everywhere it has been."""
    starts = record.provenance.get("starts")
    values = [start[name] for start in starts if isinstance(start, dict) and name in start] if starts else []
    named = list(dict.fromkeys(map(str, values)))
    return " + ".join(named) if len(named) > 1 else last


def _grid(trials: list[Cell]) -> dict[str, tuple[Any, ...]]:
    found: dict[str, dict[Any, None]] = {}
    for cell in trials:
        for path, value in cell.point or ():
            found.setdefault(path, {})[value] = None
    return {path: tuple(values) for path, values in found.items()}


def _mean_of(record: Record, name: str) -> float | None:
    """A measurement of the heads before the first step, over all of them."""
    start = record.heads.get("start")
    values = start.get(name) if isinstance(start, dict) else None
    numbers = list(_numbers_in(values))
    return statistics.fmean(numbers) if numbers else None


def _numbers_in(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for inner in value:
            yield from _numbers_in(inner)
    elif (found := finite_number(value)) is not None:
        yield found


def _same_split(results: Results) -> str | None:
    """A file that is in two splits of a record."""
    for record in results.records.values():
        files = record.data.get("files")
        seen: dict[str, str] = {}
        for split, hashes in files.items() if isinstance(files, dict) else ():
            for digest in hashes if isinstance(hashes, list) else ():
                if seen.setdefault(str(digest), split) != split:
                    return f"{seen[str(digest)]} = {split}"
    return None


def _spreads(results: Results) -> dict[str, float]:
    """By arm: standard deviation of the differences to the baseline seed by seed."""
    metric, against = results.study.compare.metric, results.study.compare.baseline
    base = results.values(against, metric) if against in results.arms else {}
    found = {}
    for arm in results.arms:
        values = results.values(arm, metric) if arm != against else {}
        differences = [values[seed] - base[seed] for seed in values if seed in base]
        if len(differences) > 1 and statistics.stdev(differences) > 0:
            found[arm] = statistics.stdev(differences)
    return found


def treatment_of(record: Record) -> Treatment | None:
    """As it was really applied; None if the record does not say."""
    try:
        return Treatment.from_dict(record.spec.get("treatment"))  # type: ignore[arg-type]
    except (OelmError, TypeError):
        return None
