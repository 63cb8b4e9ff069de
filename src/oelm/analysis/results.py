"""Results: the records of a study, read back; what could not be read is excluded with its reason, never silently."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Generic, Literal, TypeVar

import numpy as np

from oelm.analysis.stats.timed_pairs import bench_mismatch
from oelm.analysis.tuning import best_point, missing_cells
from oelm.errors import CellError, OelmError, StudyError, did_you_mean
from oelm.message import Message, verbatim
from oelm.metrics import MEASURED, find_metric
from oelm.runs.bench import Bench, read_bench
from oelm.runs.cell_start import read_cell
from oelm.runs.files import FileDigest
from oelm.runs.layout import (
    BENCH,
    CELL,
    ENDED,
    LOCK,
    PREDICTIONS,
    SIMPLE_BASELINE,
    STEPS,
    STUDY,
    find_cell_folders,
    find_started_studies,
)
from oelm.runs.lock import Lock, LockChanges, find_changes, locked_study, make_lock, read_lock
from oelm.runs.predictions import Predictions, read_predictions
from oelm.runs.record import LrTrace, Record, Which, read_record
from oelm.runs.simple_baseline import SimpleBaseline, read_simple_baselines
from oelm.runs.status import read_state
from oelm.runs.steps import Steps, read_steps
from oelm.study.cells import (
    Cell,
    both_stages,
    compared_cells,
    flatten,
    is_nested,
    restrict_study,
    tuning_cells,
)
from oelm.study.load import load_study, study_from_dict
from oelm.study.study import LR, Study, Value, as_number

if TYPE_CHECKING:
    import pandas as pd

    from oelm.analysis.checks.registry import Issues
    from oelm.analysis.design import Design
    from oelm.analysis.evidence import ArmMean
    from oelm.analysis.hypotheses import JudgedHypothesis
    from oelm.analysis.verdicts import Comparison

# Beyond any measurement, and small enough for its square and for a sum of many to be numbers still.
LARGEST = 1e100
_MOST_BYTES = 128 * 2**20  # of arrays that are kept in memory; those beyond are read again
_K = TypeVar("_K")
_V = TypeVar("_V")


@dataclass(frozen=True, kw_only=True)
class Excluded:
    """Something that is not among the results, and why."""

    where: str
    why: Message
    is_damaged: bool = False
    """Whether it should be there and cannot be believed. Else it is not finished, or of something else."""

    def __str__(self) -> str:
        return f"{self.where}: {self.why}"


class AllExcluded(tuple[Excluded, ...]):
    """Everything that is not among the results."""

    def _repr_html_(self) -> str:
        import pandas as pd

        html: str = pd.DataFrame([{"where": out.where, "why": str(out.why)} for out in self]).to_html(index=False)
        return html


class RecentlyRead(Generic[_K, _V]):
    """What was read last, by key: thousands of cells are gone through one after the other, and not kept."""

    def __init__(self) -> None:
        self._kept: dict[_K, _V] = {}
        self._bytes = 0

    def get(self, key: _K, read: Callable[[], _V]) -> _V:
        if key in self._kept:
            value = self._kept.pop(key)
        else:
            value = read()
            self._bytes += _bytes_of(value)
        self._kept[key] = value  # last in the order now
        while self._bytes > _MOST_BYTES and len(self._kept) > 1:
            self._bytes -= _bytes_of(self._kept.pop(next(iter(self._kept))))
        return value


@dataclass(frozen=True, kw_only=True)
class FilesRead:
    """Of cells, beside their records. All are read once, to see whether they are whole, and most are kept."""

    steps: RecentlyRead[Cell, Steps] = field(default_factory=RecentlyRead)
    predictions: RecentlyRead[tuple[Cell, Which, str | None], Predictions | None] = field(default_factory=RecentlyRead)


@dataclass(frozen=True, kw_only=True, repr=False)
class Results:
    """What the cells of a study left behind, arm by arm and seed by seed."""

    study: Study
    folder: Path
    records: dict[Cell, Record]
    """Of the cells that are compared, in the order in which they are run."""
    tuning: dict[Cell, Record] = field(default_factory=dict)
    excluded: AllExcluded = field(default_factory=AllExcluded)
    bench: Bench | None = None
    """Step times that were measured in turns, if they were."""
    simple_baselines: tuple[SimpleBaseline, ...] = ()
    """What models without attention reach on the same rows."""
    files_read: FilesRead = field(default_factory=FilesRead, compare=False)
    """Logs and predictions that were read last."""
    whole: Results | None = field(default=None, compare=False)
    """Of a part of the results: all of them."""
    lock: Lock | None = None
    """What was planned when the first cell was started; as far as `lock.json` tells."""
    changes: LockChanges = field(default_factory=LockChanges)
    """What the study in the folder has more than that, which is in `study` too, and what is another there, which is
    not."""
    missing: tuple[Cell, ...] = ()
    """Planned cells that have not come to an end. While there are any, no test number is here."""
    second_stage: tuple[str, ...] = ()
    """Arms whose second stage has come to an end, as has that of the baseline. Of the others, no test number of it is
    here."""

    @property
    def sealed(self) -> Message | None:
        """Why there are no test numbers, while there are none: who sees them before the study is complete can stop, or
        change something, when they like what they see."""
        return Message("sealed", number=len(self.missing)) if self.missing else None

    @cached_property
    def planned(self) -> Study:
        """The study with all its arms and seeds, of which these may be a part, and without what was added after the
        first cell was started: what is tested together."""
        study, added = (self.whole or self).study, self.changes
        return replace(
            study,
            arms={name: arm for name, arm in study.arms.items() if name not in added.arms},
            seeds=tuple(seed for seed in study.seeds if seed not in added.seeds),
            second_stage=tuple(seed for seed in study.second_stage if seed not in added.seeds),
            hypotheses=tuple(one for one in study.hypotheses if one.name not in added.hypotheses),
        )

    @property
    def arms(self) -> list[str]:
        """Those with a record, in the order of the study."""
        there = {cell.arm for cell in self.records}
        return [name for name in self.study.arms if name in there]

    def counted(self, *arms: str) -> tuple[int, ...]:
        """Planned seeds that are compared: of the second stage, if it has come to an end in all of these arms."""
        second = self.planned.second_stage if set(arms) <= set(self.second_stage) else ()
        return (*self.planned.seeds, *second)

    def of(self, arm: str) -> dict[int, Record]:
        """An arm's records by seed."""
        return dict(self._by_arm.get(arm, {}))

    @cached_property
    def _by_arm(self) -> dict[str, dict[int, Record]]:
        found: dict[str, dict[int, Record]] = {}
        for cell, record in sorted(self.records.items(), key=lambda item: item[0].seed):
            found.setdefault(cell.arm, {})[cell.seed] = record
        return found

    def values(self, arm: str, metric: str, *, model: Which = "final", split: str | None = None) -> dict[int, float]:
        """A measurement of an arm by seed; cells without it, or with no number there, are not among them.

        Of quality, it is that on the first test split, which is compared, or on another.
        """
        if metric == "lr_sensitivity":
            from oelm.analysis.lr_sensitivity import lr_sensitivities

            return lr_sensitivities(self, arm)
        if metric == "tuned_lr":
            chosen = self.tuned(arm).get(LR, {}) if is_nested(self.study) else {}
            return {seed: number for seed, value in chosen.items() if (number := as_number(value)) is not None}
        found = {seed: self._value(record, metric, model, split) for seed, record in self._by_arm.get(arm, {}).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    @cached_property
    def measured(self) -> dict[str, tuple[str, ...]]:
        """Every test split, the one that is compared first, and what was measured on it, the primary metric first."""
        found: dict[str, dict[str, None]] = {}
        for record in self.records.values():
            for split, metrics in record.test["final"].splits.items() if "final" in record.test else ():
                found.setdefault(split, {self.study.compare.metric: None}).update(dict.fromkeys(metrics))
        return {split: tuple(metrics) for split, metrics in found.items()}

    def attention_kl(self, arm: str, moment: Literal["start", "final"]) -> dict[int, float]:
        """By seed: how far attention is from that of the untreated model, after the treatment or after the training."""
        found = {seed: record.kl(moment) for seed, record in self.of(arm).items()}
        return {seed: value for seed, value in found.items() if value is not None}

    def mean(self, arm: str, metric: str, *, model: Which = "final", split: str | None = None) -> ArmMean | None:
        """What an arm reaches, with an interval over seeds and, where they were kept, examples."""
        from oelm.analysis.evidence import arm_mean

        key = arm, metric, model, split
        if key not in self._means:
            self._means[key] = arm_mean(self, arm, metric, model=model, split=split)
        return self._means[key]

    def trained_share(self, arm: str) -> float | None:
        """See `Counts.trained_share`."""
        counts = next((record.counts for record in self.of(arm).values() if record.counts is not None), None)
        return counts.trained_share if counts is not None else None

    @cached_property
    def _means(self) -> dict[tuple[str, str, Which, str | None], ArmMean | None]:
        return {}

    def _value(self, record: Record, metric: str, model: Which, split: str | None = None) -> float | None:
        if metric in ("trainable", "frozen", "total"):
            return float(getattr(record.counts, metric)) if record.counts is not None else None
        if record.status != "done":
            return None
        if metric == "training_seconds":
            return finite_number(record.seconds.get("training"))
        if metric == "peak_memory":
            return finite_number(getattr(record.peak_memory, self._memory))
        if metric == "step_seconds":
            return finite_number(self.steps(record.spec.cell).step_seconds)
        if metric == "curve_loss":
            losses = [one.metrics["loss"] for one in record.evaluations if "loss" in one.metrics]
            return finite_number(fmean(losses)) if losses else None
        return finite_number(record.value(metric, model=model, split=split))

    @cached_property
    def _memory(self) -> str:
        """Memory of a GPU and of a process are not one measurement: the GPU's, if any cell has one."""
        return "gpu" if any(record.peak_memory.gpu for record in self.records.values()) else "process"

    def predictions(self, cell: Cell, *, model: Which = "final", split: str | None = None) -> Predictions | None:
        """What a cell kept of every example of the first test split, or another; None if nothing, or it is damaged."""
        digest = self._digest(cell, PREDICTIONS)
        if digest is None:  # sealed, perhaps, whatever was read
            return None
        first = self.records[cell].first_split if cell in self.records else None
        split = None if split == first else split
        return self.files_read.predictions.get(
            (cell, model, split),
            lambda: read_predictions(self.folder / cell.folder, digest, model=model, split=split),
        )

    def steps(self, cell: Cell) -> Steps:
        """The log of a cell's training; an empty one if it is damaged."""
        digest = self._digest(cell, STEPS)
        return self.files_read.steps.get(cell, lambda: read_steps(self.folder / cell.folder, digest))

    def _digest(self, cell: Cell, name: str) -> FileDigest | None:
        """Of a file of a cell, unless that is damaged, or the cell has no record."""
        record = self.records.get(cell) or self.tuning.get(cell)
        if record is None or (self.damaged and f"{cell}/{name}" in self.damaged):
            return None
        return record.files.get(name)

    @cached_property
    def collapsed(self) -> dict[Cell, Message]:
        """Cells that learned nothing, and how that shows."""
        from oelm.analysis.evidence import find_collapsed

        return find_collapsed(self)

    @cached_property
    def damaged(self) -> set[str]:
        """By name."""
        return {out.where for out in self.excluded if out.is_damaged}

    def lacking(self, arms: Collection[str], metric: str) -> tuple[str, ...]:
        """What is damaged, and a judgment of these arms on this metric would have rested on, by name."""
        if not self.damaged:
            return ()
        kind = find_metric(metric).kind
        both = both_stages(self.study)
        trials = tuning_cells(both) if kind == "tuning" else compared_cells(both)
        is_quality = find_metric(metric).is_quality
        shared = (SIMPLE_BASELINE,) if is_quality else (BENCH,) if kind == "time" else ()
        files = (PREDICTIONS,) if is_quality else (STEPS,) if kind in ("time", "tuning") else ()
        cells = [str(cell) for cell in trials if cell.arm in arms]
        names = (*shared, *(name for cell in cells for name in (cell, *(f"{cell}/{file}" for file in files))))
        return tuple(name for name in names if name in self.damaged)

    def tuned(self, arm: str) -> dict[str, dict[int, Value]]:
        """What the tuning has chosen for an arm, by path and seed."""
        if self.study.tune is None:
            return {}
        settings = {seed: flatten(record.spec.recipe.to_dict()) for seed, record in self.of(arm).items()}
        return {path: {seed: row.get(path) for seed, row in settings.items()} for path in self.study.tune.grid}  # type: ignore[misc]

    # -- what is read from them --------------------------------------------------------------------------------

    @cached_property
    def checks(self) -> Issues:
        """What the checks found, the worst first."""
        from oelm.analysis.checks.assay import check_assay
        from oelm.analysis.checks.registry import Issues, by_severity
        from oelm.analysis.stats.timed_pairs import check_timed

        of_verdicts = [*check_timed(self.bench, self.compared), *check_assay(self)]
        return Issues(by_severity([*self.checks_of_records, *of_verdicts]))

    @cached_property
    def checks_of_records(self) -> Issues:
        """Of these what the records gave reason for; the rest is about the bench and the verdicts themselves."""
        from oelm.analysis.checks.design import check_results
        from oelm.analysis.checks.registry import Issues

        return Issues(check_results(self))

    @cached_property
    def compared(self) -> list[tuple[str, str]]:
        """The comparisons that the study itself makes, (arm, against)."""
        return self.design.compared

    @cached_property
    def design(self) -> Design:
        """The design as it was really run."""
        from oelm.analysis.observed_design import observed_design

        return observed_design(self)

    @cached_property
    def comparisons(self) -> dict[str, Comparison]:
        """Every arm against the one that is compared against, on the primary metric: the same in every view."""
        from oelm.analysis.verdicts import comparisons

        return comparisons(self)

    @cached_property
    def hypotheses(self) -> list[JudgedHypothesis]:
        """What the study set out to show, judged."""
        from oelm.analysis.hypotheses import judge_hypotheses

        return judge_hypotheses(self)

    def compare(
        self, arm: str, *, against: str | None = None, metric: str | None = None, model: Which = "final"
    ) -> Comparison:
        """One arm with another. Anything but the study's own question is exploratory."""
        from oelm.analysis.verdicts import explore, in_terms_of

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
        if metric is not None and find_metric(metric).kind == "tuning" and not self.study.tunes_lr:
            raise StudyError(
                f"there is no {metric}",
                where=str(self.folder),
                why="the study did not tune the learning rate",
                hint="tune: {optimizer.lr: [...]} in the study",
            )
        if metric == "tuned_lr":
            raise StudyError(
                "no learning rate is better than another",
                why="tuned_lr is what every seed took of the grid, and accuracy or loss say what it was good for",
                hint=f"results.tuned('{arm}'), or a hypothesis: tuned_lr({arm}) / tuned_lr({against})",
            )
        if arm == against:
            raise StudyError(f"'{arm}' is compared with itself", hint=f"another of {', '.join(self.arms)}")
        if (against, model) == (self.study.compare.baseline, "final"):
            own = self.comparisons[arm]
            same = own if metric in (None, primary) else in_terms_of(own, metric)
            if same is not None:
                return same
        return explore(self, arm, against=against, metric=metric or primary, model=model)

    def table(self) -> pd.DataFrame:
        """One row a cell: what it was, and everything that was measured."""
        import pandas as pd

        return pd.DataFrame(list(self._rows()))

    def _rows(self) -> Iterator[dict[str, Value]]:
        sensitivity = {arm: self.values(arm, "lr_sensitivity") for arm in self.arms if is_nested(self.study)}
        for cell, record in self.records.items():
            row: dict[str, Value] = {"arm": cell.arm, "seed": cell.seed, "status": record.status}
            row |= record.scores("final")
            row |= {f"{metric} (best)": value for metric, value in record.scores("best").items()}
            if self.sealed is not None:
                row |= {f"{metric} (validation)": value for metric, value in record.last_evaluation.items()}
            for split in list(self.measured)[1:]:
                row |= {f"{name} ({split})": value for name, value in record.scores("final", split=split).items()}
                best = record.scores("best", split=split)
                row |= {f"{name} ({split}, best)": value for name, value in best.items()}
            for count in ("trainable", "frozen", "total"):
                row[count] = getattr(record.counts, count, None)
            row["lr"] = record.spec.recipe.optimizer.lr
            row |= {"kl_start": record.kl("start"), "kl_final": record.kl("final")}
            for metric in ("step_seconds", "training_seconds", "peak_memory"):
                row[metric] = self._value(record, metric, "final")
            if self.study.tunes_lr:
                row["lr_sensitivity"] = sensitivity.get(cell.arm, {}).get(cell.seed)
            yield row

    def restricted(self, *, arms: list[str] | None = None, seeds: list[int] | None = None) -> Results:
        """A part of the results."""
        kept = {
            cell: record
            for cell, record in self.records.items()
            if (arms is None or cell.arm in arms) and (seeds is None or cell.seed in seeds)
        }
        study = restrict_study(self.study, arms=arms, seeds=seeds)
        bench = self.bench.restricted(study.arms) if self.bench is not None else None
        return replace(self, study=study, records=kept, bench=bench, whole=self.whole or self)

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
    folders = find_started_studies(runs)
    if len(folders) > 1:
        raise CellError(
            f"{runs} holds {len(folders)} studies",
            why=", ".join(folder.name for folder in folders[:8]),
            hint=f"one of them: {folders[0]}",
        )
    return read_results(folders[0])


@contextmanager
def without_collecting() -> Iterator[None]:
    """Records are millions of objects and no garbage: to look for some again and again takes time for nothing."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


@without_collecting()
def read_results(folder: Path) -> Results:
    """The results of the study in this folder."""
    found: dict[Cell, Record] = {}
    excluded: list[Excluded] = []

    def refuse(error: OSError) -> None:
        where = os.path.relpath(error.filename or folder, folder)
        excluded.append(Excluded(where=where, why=verbatim(error.strerror or str(error)), is_damaged=True))

    traces: dict[LrTrace, LrTrace] = {}  # cells of one recipe share theirs, which is half of a record
    for place in find_cell_folders(folder, on_error=refuse):
        where = str(place.relative_to(folder))
        try:
            record = _read_cell_record(place)
            state = read_state(place) if record is None else record.status
        except OelmError as error:
            excluded.append(_damaged(where, error, folder))
            continue
        if record is None:
            why = Message("excluded-unfinished", status=Message(f"status-{state}"))
            excluded.append(Excluded(where=where, why=why))
        elif str(record.spec.cell) != where:
            excluded.append(Excluded(where=where, why=Message("excluded-moved", cell=str(record.spec.cell))))
        else:
            found[record.spec.cell] = replace(record, lr=traces.setdefault(record.lr, record.lr))
    study, lock, changes = _locked_in(folder, excluded)
    both = both_stages(study)
    known = {*compared_cells(both), *tuning_cells(both)}
    for cell in [cell for cell in found if cell not in known]:
        del found[cell]
        excluded.append(Excluded(where=str(cell), why=Message("excluded-other")))
    for cell in [cell for cell, record in found.items() if record.spec.study != study.name]:
        name = found.pop(cell).spec.study
        excluded.append(Excluded(where=str(cell), why=Message("excluded-study", name=name)))
    files_read = FilesRead()
    for cell, record in found.items():
        excluded += _damaged_files(folder, cell, record, files_read)
    bench = _bench_in(folder, study, excluded)
    simple: tuple[SimpleBaseline, ...] = ()
    try:
        simple = read_simple_baselines(folder)
    except OelmError as error:
        excluded.append(_damaged(SIMPLE_BASELINE, error, folder))
    results = Results(
        study=study,
        folder=folder,
        records={cell: found[cell] for cell in compared_cells(both) if cell in found},
        tuning={cell: found[cell] for cell in tuning_cells(both) if cell in found},
        excluded=AllExcluded(excluded),
        bench=bench,
        simple_baselines=simple,
        files_read=files_read,
        lock=lock,
        changes=changes,
    )
    there = {str(cell) for cell, record in found.items() if record.status in ENDED}
    best = partial(best_point, study, records=results.tuning)
    waiting = set(missing_cells(both, there, results.damaged, best))
    second = results.planned.second_stage
    missing = tuple(cell for cell in compared_cells(results.planned) if cell in waiting)
    arms = _complete_arms(study, second, waiting) if second else ()
    sealed = [cell for cell in results.records if missing or (cell.seed in second and cell.arm not in arms)]
    return _seal(replace(results, missing=missing, second_stage=arms), sealed)


def _complete_arms(study: Study, second: Collection[int], waiting: Collection[Cell]) -> tuple[str, ...]:
    """Whose second stage is complete, with that of what they are compared with: one side alone says how to go on."""
    open_arms = {cell.arm for cell in waiting if cell.seed in second}
    arms = tuple(arm for arm in study.arms if arm not in open_arms)
    return arms if study.compare.baseline in arms and len(arms) > 1 else ()


def _seal(results: Results, cells: Collection[Cell]) -> Results:
    """Without the test numbers of these cells, and without the predictions that they could be made from again."""
    records = dict(results.records)
    for cell in cells:
        files = {name: digest for name, digest in records[cell].files.items() if name != PREDICTIONS}
        records[cell] = replace(records[cell], test={}, files=files)
    return replace(results, records=records)


def _damaged_files(folder: Path, cell: Cell, record: Record, files_read: FilesRead) -> Iterator[Excluded]:
    """Files of a cell that are not what its record says."""
    place = folder / cell.folder
    for name in (STEPS, PREDICTIONS) if cell.point is None else (STEPS,):  # a trial sees no test split
        digest = record.files.get(name)
        try:
            if digest is None and record.status == "done":
                raise CellError(f"{name} is missing", why="its record does not name one")
            # Not by its digest alone: whether a file holds what it should does not follow from that.
            if name == STEPS:
                files_read.steps.get(cell, partial(read_steps, place, digest))
            else:
                files_read.predictions.get((cell, "final", None), partial(read_predictions, place, digest))
        except OelmError as error:
            yield _damaged(f"{cell}/{name}", error, folder)


def _bench_in(folder: Path, study: Study, excluded: list[Excluded]) -> Bench | None:
    """What `oelm bench` measured of this study; what is of no use is added to what is excluded."""
    try:
        bench = read_bench(folder)
    except OelmError as error:
        excluded.append(_damaged(BENCH, error, folder))
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


def _damaged(where: str, error: OelmError, folder: Path) -> Excluded:
    """What happened, without where the study lies on this machine: reports are shown around."""
    why = verbatim(" ".join(str(error).split()).replace(f"{folder}/", ""))
    return Excluded(where=where, why=why, is_damaged=True)


def _read_cell_record(folder: Path) -> Record | None:
    """The record of a cell, with what it was started with beside it."""
    started, record = read_cell(folder), read_record(folder)
    if record is None:
        return None
    if started is None and record.start is not None:
        raise CellError(f"there is no {CELL} beside the record")
    if started is not None and started.spec.cell != record.spec.cell:
        raise CellError("the record is of another cell than the folder was started for")
    if started is not None and record.start is not None and started.start.lock != record.start.lock:
        raise CellError("the record names another lock than the one that the cell was started under")
    return record


def _locked_in(folder: Path, excluded: list[Excluded]) -> tuple[Study, Lock, LockChanges]:
    """The study as it was planned, with what was added since; the lock; how the study in the folder departs from it.

    Where there is no lock to be read, the study in the folder is taken for it: cells of another lock disagree.
    """
    written = load_study(folder / STUDY) if os.path.lexists(folder / STUDY) else None
    try:
        lock = read_lock(folder, written.name if written is not None else None)
        if lock is not None:
            changes = find_changes(lock, written) if written is not None else LockChanges()
            study = _as_planned(lock, written, changes, where=str(folder / LOCK))
            if written is None:
                excluded.append(Excluded(where=STUDY, why=Message("excluded-no-study"), is_damaged=True))
            return study, lock, changes
        if find_cell_folders(folder):  # a bench locks nothing
            excluded.append(Excluded(where=LOCK, why=Message("excluded-no-lock"), is_damaged=True))
    except OelmError as error:
        if written is None:
            raise
        excluded.append(_damaged(LOCK, error, folder))
    if written is None:
        raise CellError(f"{folder} has neither {STUDY} nor {LOCK}", hint="oelm run STUDY writes down what is compared")
    return written, make_lock(written), LockChanges()


def _as_planned(lock: Lock, written: Study | None, changes: LockChanges, *, where: str) -> Study:
    if written is not None and not changes.changed:
        return written
    study = locked_study(lock)
    if written is not None:
        back = {change.arm: study.arms[change.arm] for change in changes.changed if change.arm is not None}
        study = replace(
            study,
            plugins=written.plugins,
            notes=written.notes,
            arms=written.arms | back,
            seeds=(*study.seeds, *(seed for seed in written.seeds if seed in changes.seeds)),
            hypotheses=(*study.hypotheses, *(one for one in written.hypotheses if one.name in changes.hypotheses)),
        )
    return study_from_dict(study.to_dict(), where=where)  # what was edited may make no sense


def _metrics(record: Record) -> list[str]:
    tested = (name for model in record.test.values() for row in model.splits.values() for name in row)
    return [*tested, *record.last_evaluation]


def finite_number(value: float | None) -> float | None:
    """A measurement, or None for what cannot be one: not finite, or beyond all measure."""
    return float(value) if value is not None and abs(value) <= LARGEST else None


def _bytes_of(value: object) -> int:
    return sum(part.nbytes for part in vars(value).values() if isinstance(part, np.ndarray)) if value else 0
