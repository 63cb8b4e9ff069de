"""Results: the records of a study, read back; what could not be read is left out with its reason, never silently."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oelm.analysis.stats.step_times import (
    BENCH,
    Timed,
    bench_mismatch,
    read_bench,
)
from oelm.errors import CellError, OelmError, StudyError, did_you_mean
from oelm.message import Message, verbatim
from oelm.metrics import MEASURED
from oelm.runs.layout import CELL_SPEC, RECORD, STUDY, read_json
from oelm.runs.predictions import Predictions, read_predictions
from oelm.runs.record import Record, read_record
from oelm.runs.status import read_state
from oelm.runs.steps import Steps, read_steps
from oelm.study.cells import Cell, compared_cells, tuning_cells
from oelm.study.cells import restrict_study as part_of
from oelm.study.load import study_from_dict
from oelm.study.study import Study

if TYPE_CHECKING:
    import pandas as pd

    from oelm.analysis.checks.registry import Issues
    from oelm.analysis.hypotheses import JudgedHypothesis
    from oelm.analysis.verdicts import Comparison
    from oelm.runs.simple_baseline import SimpleBaseline

BASELINE = "baseline"
# Beyond any measurement, and small enough for its square and for a sum of many to be numbers still.
LARGEST = 1e100
_DEEPEST = 20  # levels of lists and mappings in a record; ours have 6


@dataclass(frozen=True, kw_only=True)
class Excluded:
    """Something that is not among the results, and why."""

    where: str
    why: Message

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class AllExcluded(tuple[Excluded, ...]):
    """Everything that is not among the results."""

    def _repr_html_(self) -> str:
        import pandas as pd

        html: str = pd.DataFrame([{"where": out.where, "why": str(out.why)} for out in self]).to_html(index=False)
        return html


@dataclass(frozen=True, kw_only=True, repr=False)
class Results:
    """What the cells of a study left behind, arm by arm and seed by seed."""

    study: Study
    folder: Path
    records: dict[Cell, Record]
    """Of the cells that are compared, in the order in which they are run."""
    tuning: dict[Cell, Record] = field(default_factory=dict)
    excluded: AllExcluded = field(default_factory=AllExcluded)
    bench: Timed | None = None
    """Step times that were measured in turns, if they were."""

    @property
    def arms(self) -> list[str]:
        """Those with a record, in the order of the study."""
        there = {cell.arm for cell in self.records}
        return [name for name in self.study.arms if name in there]

    def of(self, arm: str) -> dict[int, Record]:
        """An arm's records by seed."""
        found = {cell.seed: record for cell, record in self.records.items() if cell.arm == arm}
        return dict(sorted(found.items()))

    def values(self, arm: str, metric: str, *, model: str = "final") -> dict[int, float]:
        """A measurement of an arm by seed; cells without it, or with no number there, are not among them."""
        found = {seed: self._value(arm, seed, metric, model) for seed in self.of(arm)}
        return {seed: value for seed, value in found.items() if value is not None}

    def _value(self, arm: str, seed: int, metric: str, model: str) -> float | None:
        record = self.records[Cell(arm=arm, seed=seed)]
        if metric in ("trainable", "frozen", "total"):
            return finite_number(record.counts.get(metric))
        if record.status != "done":
            return None
        if metric == "training_seconds":
            return finite_number(record.seconds.get("training"))
        if metric == "peak_memory":
            return finite_number(record.peak_memory.get(self._memory))
        if metric == "step_seconds":
            return finite_number(self.steps(Cell(arm=arm, seed=seed)).step_seconds)
        return finite_number(record.value(metric, model=model))

    @cached_property
    def _memory(self) -> str:
        """Memory of a GPU and of a process are not one measurement: the GPU's, if any cell has one."""
        return "gpu" if any(record.peak_memory.get("gpu") for record in self.records.values()) else "process"

    def predictions(self, cell: Cell, *, model: str = "final") -> Predictions | None:
        """What a cell kept of every example on the first reported split; None if it kept nothing."""
        if (cell, model) not in self._predictions:
            self._predictions[cell, model] = read_predictions(self.folder / cell.folder, model=model)
        return self._predictions[cell, model]

    @cached_property
    def _predictions(self) -> dict[tuple[Cell, str], Predictions | None]:
        return {}

    def steps(self, cell: Cell) -> Steps:
        """The log of a cell's training."""
        if cell not in self._steps:
            self._steps[cell] = read_steps(self.folder / cell.folder)
        return self._steps[cell]

    @cached_property
    def _steps(self) -> dict[Cell, Steps]:
        return {}

    def tuned(self, arm: str) -> dict[str, Any]:
        """What the tuning has chosen for an arm, by path."""
        tune, record = self.study.tune, next(iter(self.of(arm).values()), None)
        if tune is None or record is None:
            return {}
        return {path: _at(record.spec.get("recipe"), path) for path in tune.grid}

    # -- what is read from them --------------------------------------------------------------------------------

    @cached_property
    def simple_baselines(self) -> list[SimpleBaseline]:
        from oelm.runs.simple_baseline import read_simple_baselines

        return read_simple_baselines(self.folder)

    @cached_property
    def checks(self) -> Issues:
        """What the checks found, the worst first."""
        from oelm.analysis.checks.registry import Issues, by_severity
        from oelm.analysis.stats.step_times import check_timed

        return Issues(by_severity([*self.checks_of_records, *check_timed(self.bench, self.compared)]))

    @cached_property
    def checks_of_records(self) -> Issues:
        """Of these what the records gave reason for; the rest is about the bench."""
        from oelm.analysis.checks.design import check_results
        from oelm.analysis.checks.registry import Issues

        return Issues(check_results(self))

    @cached_property
    def compared(self) -> list[tuple[str, str]]:
        """The comparisons that the study itself makes, (arm, against)."""
        from oelm.analysis.checks.observed import observed_design

        return observed_design(self).compared

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """Every arm against the one that is compared against, on the primary metric."""
        from oelm.analysis.verdicts import comparisons

        return comparisons(self)

    @cached_property
    def hypotheses(self) -> list[JudgedHypothesis]:
        """What the study set out to show, judged."""
        from oelm.analysis.hypotheses import judge_hypotheses

        return judge_hypotheses(self)

    def compare(
        self, arm: str, *, against: str | None = None, metric: str | None = None, model: str = "final"
    ) -> Comparison:
        """One arm with another. On the study's own question, it is corrected for all the arms that were compared."""
        from oelm.analysis.verdicts import compare_arms

        against = against or self.study.compare.baseline
        for name in (arm, against):
            if name not in self.arms:
                raise StudyError(
                    f"there are no results of an arm '{name}'{did_you_mean(name, self.arms)}",
                    where=str(self.folder),
                    hint=f"one of {', '.join(self.arms)}",
                )
        primary = self.study.compare.metric
        known = [*MEASURED, *dict.fromkeys(name for record in self.records.values() for name in _metrics(record))]
        if metric is not None and metric not in known:
            raise StudyError(
                f"there are no results of a metric '{metric}'{did_you_mean(metric, known)}",
                where=str(self.folder),
                hint=f"one of {', '.join(known)}",
            )
        if arm == against:
            raise StudyError(f"'{arm}' is compared with itself", hint=f"another of {', '.join(self.arms)}")
        if (against, metric or primary, model) == (self.study.compare.baseline, primary, "final"):
            return self.comparisons[arm]
        return compare_arms(self, arm, against=against, metric=metric or primary, model=model)

    def table(self) -> pd.DataFrame:
        """One row a cell: what it was, and everything that was measured."""
        import pandas as pd

        return pd.DataFrame(list(self._rows()))

    def _rows(self) -> Iterator[dict[str, Any]]:
        for cell, record in self.records.items():
            row: dict[str, Any] = {"arm": cell.arm, "seed": cell.seed, "status": record.status}
            for model, measured in record.report.items():
                first: dict[str, float] = next(iter(measured["splits"].values()), {})
                row |= {metric if model == "final" else f"{metric} ({model})": value for metric, value in first.items()}
            row |= {name: record.counts.get(name) for name in ("trainable", "frozen", "total")}
            row["lr"] = _at(record.spec.get("recipe"), "optimizer.lr")
            for metric in ("step_seconds", "training_seconds", "peak_memory"):
                row[metric] = self._value(cell.arm, cell.seed, metric, "final")
            yield row

    def restricted(self, *, arms: list[str] | None = None, seeds: list[int] | None = None) -> Results:
        """A part of the results."""
        kept = {
            cell: record
            for cell, record in self.records.items()
            if (arms is None or cell.arm in arms) and (seeds is None or cell.seed in seeds)
        }
        study = part_of(self.study, arms=arms, seeds=seeds)
        bench = self.bench.restricted(study.arms) if self.bench is not None else None
        return replace(self, study=study, records=kept, bench=bench)

    def __repr__(self) -> str:
        return f"<Results of {self.study.name}: {len(self.records)} cells of {len(self.arms)} arms in {self.folder}>"

    def __str__(self) -> str:
        from oelm.analysis.text_table import format_results

        return format_results(self)

    def _repr_html_(self) -> str:
        html: str = self.table().to_html(index=False)
        return html


def load(runs: str | Path) -> Results:
    """The results of a study from its folder, or from a folder that holds that one study."""
    folders = study_folders(runs)
    if len(folders) > 1:
        raise CellError(
            f"{runs} holds {len(folders)} studies",
            why=", ".join(folder.name for folder in folders[:8]),
            hint=f"one of them: {folders[0]}",
        )
    return read_results(folders[0])


def study_folders(runs: str | Path) -> list[Path]:
    """The folders of all studies at or below a folder."""
    runs = Path(runs)
    try:
        there = runs.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or a folder that may not be looked into
        raise CellError(f"{str(runs)[:200]} cannot be read", why=str(error)[:200]) from error
    if not there:
        raise CellError(f"there is no folder {runs}", hint="oelm run STUDY makes one")
    places, unread = _places(runs)
    found = dict.fromkeys(_root_of(folder, runs) for folder in places)
    if not found:
        if unread:
            raise CellError(f"{unread[0].where} cannot be read", why=str(unread[0].why))
        raise CellError(f"there are no cells below {runs}", hint="oelm run STUDY makes some")
    return list(found)


def _places(folder: Path) -> tuple[list[Path], list[Excluded]]:
    """Where cells are or have been, and what may not be looked into."""
    unread: list[Excluded] = []

    def refused(error: OSError) -> None:
        where = os.path.relpath(error.filename or folder, folder)
        unread.append(Excluded(where=where, why=verbatim(error.strerror or str(error))))

    found = [Path(at) for at, _, files in os.walk(folder, onerror=refused) if CELL_SPEC in files or RECORD in files]
    return sorted(found), unread


def _root_of(folder: Path, runs: Path) -> Path:
    """The study's folder of a cell: the nearest with a study in it, or else by where the cell lies.

    That is ARM/seed-N, or ARM/tune/POINT/seed-N. Only points have a '='.
    """
    above = [parent for parent in folder.parents if parent == runs or runs in parent.parents]
    kept = next((parent for parent in above if (parent / STUDY).is_file()), None)
    if kept is not None:
        return kept
    depth = 4 if "=" in folder.absolute().parent.name else 2
    place = folder if len(folder.parts) >= depth else folder.absolute()  # asked for from inside of the study
    return place.parents[min(depth, len(place.parents)) - 1]


def read_results(folder: Path) -> Results:
    """The results of the study in this folder."""
    found: dict[Cell, Record] = {}
    places, excluded = _places(folder)
    for place in places:
        where = str(place.relative_to(folder))
        try:
            content = read_json(place / CELL_SPEC)
            record = read_record(place)
            if record is None:
                why = Message("excluded-unfinished", status=Message(f"status-{read_state(place)}"))
                excluded.append(Excluded(where=where, why=why))
                continue
            cell = _cell_of(record, content)
        except OelmError as error:
            excluded.append(Excluded(where=where, why=_on_one_line(error)))
            continue
        if str(cell.folder) != where:
            excluded.append(Excluded(where=where, why=Message("excluded-moved", cell=str(cell))))
        else:
            found[cell] = record
    study = _study_in(folder, found)
    known = {*compared_cells(study), *tuning_cells(study)}
    for cell in [cell for cell in found if cell not in known]:
        del found[cell]
        excluded.append(Excluded(where=str(cell), why=Message("excluded-other")))
    for cell in [cell for cell, record in found.items() if record.spec.get("study") != study.name]:
        name = found.pop(cell).spec.get("study")
        excluded.append(Excluded(where=str(cell), why=Message("excluded-study", name=name)))
    bench = _bench_in(folder, study, excluded)
    return Results(
        study=study,
        folder=folder,
        records={cell: found[cell] for cell in compared_cells(study) if cell in found},
        tuning={cell: found[cell] for cell in tuning_cells(study) if cell in found},
        excluded=AllExcluded(excluded),
        bench=bench,
    )


def _bench_in(folder: Path, study: Study, excluded: list[Excluded]) -> Timed | None:
    """What `oelm bench` measured of this study; what is of no use is added to what is left out."""
    try:
        bench = read_bench(folder)
    except OelmError as error:
        excluded.append(Excluded(where=BENCH, why=_on_one_line(error)))
        return None
    if bench is None:
        return None
    reason = bench_mismatch(bench, study)
    if reason is not None:
        excluded.append(Excluded(where=BENCH, why=reason))
        return None
    unknown = [name for name in bench.arms if name not in study.arms]
    excluded += [Excluded(where=f"{BENCH}, {name}", why=Message("excluded-other")) for name in unknown]
    return bench.restricted(study.arms)


def _on_one_line(error: OelmError) -> Message:
    return verbatim(" ".join(str(error).split()))


def _cell_of(record: Record, content: Mapping[str, Any] | None) -> Cell:
    if not all(_is_sound(value) for value in vars(record).values()):
        raise CellError("the record is damaged", why="it has a number that nothing can be, or is nested without end")
    arm, seed, tuning = (record.spec.get(name) for name in ("arm", "seed", "tuning"))
    values = tuning.values() if isinstance(tuning, dict) else ()
    if any(isinstance(value, dict | list) for value in values):
        raise CellError("the record does not say which point of the grid it is of")
    if not isinstance(arm, str) or type(seed) is not int or not isinstance(tuning, dict | None):
        raise CellError("the record does not say which cell it is of")
    if content is None:
        raise CellError(f"there is no {CELL_SPEC} beside the record")
    if content.get("arm") != arm or content.get("seed") != seed:
        raise CellError("the record is of another cell than the folder was started for")
    return Cell(arm=arm, seed=seed, point=tuple(tuning.items()) if tuning else None)


def _study_in(folder: Path, found: Mapping[Cell, Record]) -> Study:
    """The study as it was last run here; where that is not written down, as far as its records tell."""
    kept = read_json(folder / STUDY)
    if kept is not None:
        return study_from_dict(kept, where=str(folder / STUDY))
    compared = {cell: record for cell, record in found.items() if cell.point is None}
    if not compared:
        raise CellError(f"no cell of {folder} has come to its end", hint=f"oelm status {folder}")
    first = next(iter(compared.values())).spec
    arms = {}
    for cell, record in compared.items():
        treatment = record.spec.get("treatment")
        arms[cell.arm] = {
            **(treatment if isinstance(treatment, dict) else {}),
            "overrides": record.spec.get("overrides"),
        }
    if len(arms) < 2:
        raise CellError(
            f"{folder} has cells of one arm only, and does not say what it is compared with",
            hint="oelm run STUDY writes that down",
        )
    raw = {
        "study": first.get("study"),
        "version": 1,
        "recipe": first.get("recipe"),
        "arms": arms,
        "seeds": sorted({cell.seed for cell in compared}),
        "compare": {**(first.get("compare") or {}), "baseline": BASELINE if BASELINE in arms else next(iter(arms))},
    }
    return study_from_dict(raw, where=str(folder))


def _metrics(record: Record) -> list[str]:
    return [name for model in record.report.values() for row in model["splits"].values() for name in row]


def _at(data: Any, path: str) -> Any:
    for part in path.split("."):
        data = data.get(part) if isinstance(data, Mapping) else None
    return data


def _is_sound(value: Any, depth: int = 0) -> bool:
    """Whether plain data can be worked with: no whole number beyond all floats, no nesting without end."""
    if isinstance(value, dict | list):
        inner = value.values() if isinstance(value, dict) else value
        return depth < _DEEPEST and all(_is_sound(one, depth + 1) for one in inner)
    return not isinstance(value, int) or abs(value) <= LARGEST


def finite_number(value: Any) -> float | None:
    """A measurement, or None for what cannot be one: no number, not finite, or beyond all measure."""
    if not isinstance(value, int | float) or isinstance(value, bool) or not abs(value) <= LARGEST:
        return None
    return float(value)
