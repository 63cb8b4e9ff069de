"""Bench: time the arms of a study against each other, in short turns, until the ratio is known.

All arms are in one process, if they fit into memory together; else every block of steps runs in its own. Everything but
the steps themselves is outside the clock: loading, tokenizing, making batches, warming up.
"""

import functools
import json
import os
import tempfile
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from oelm.bench.arms import ArmFactory, baseline_pairs, first_cell, timed_hypothesis_pairs
from oelm.bench.interleave import run_interleaved
from oelm.bench.memory import measure_peak_memory
from oelm.bench.ratios import FEWEST
from oelm.bench.system import MUCH, summarize_load
from oelm.errors import CellError, Stopped, StudyError, did_you_mean
from oelm.format import format_duration
from oelm.runs.bench import BENCH_FILE, OF_A_STEP, Bench, MeasuredMemory, PairTiming
from oelm.runs.files import write_text, writing
from oelm.runs.layout import RUNS, STUDY
from oelm.runs.provenance import collect_provenance
from oelm.study.cells import resolve_cell, restrict_study
from oelm.study.study import Study
from oelm.train.progress import Progress
from oelm.train.signals import StopRequest, catch_signals

_DEVICE = "ACCELERATE_TORCH_DEVICE"  # the one way to ask for a device: Accelerate's own


def bench(
    study: Study,
    *,
    arms: Sequence[str] | None = None,
    precision: float = 0.01,
    budget: float = 300.0,
    seed: int = 0,
    memory: bool = True,
    isolate: bool | None = None,
    out: str | Path = RUNS,
    progress: Progress | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Bench:
    """Time the arms until the interval of every ratio is within `precision`, or `budget` seconds are used.

    `isolate` says whether every block of steps runs in a process of its own; None lets the memory decide.
    """
    progress = progress or Progress()
    part, folder = select_arms(study, arms), Path(out) / study.name
    check_request(part, precision=precision, budget=budget)
    check_writable(folder)
    with catch_signals() as stop:
        peaks = _peaks(study, part.arms, progress, stop) if memory else {}
        turns = functools.partial(
            run_interleaved,
            pairs=[*baseline_pairs(part), *timed_hypothesis_pairs(part)],
            precision=precision,
            budget=budget,
            seed=seed,
            progress=progress,
            stop=stop,
            now=now,
        )
        factory = ArmFactory(study=study, names=tuple(part.arms), turns=turns, progress=progress, stop=stop, now=now)
        measured = factory.measure(isolate, peaks)
    taken, facts = measured.taken, collect_provenance()
    found = Bench(
        study=study.name,
        against=study.compare.baseline,
        seed=seed,
        precision=precision,
        stopped_by=taken.stopped_by,
        rounds=len(taken.samples),
        steps=taken.steps,
        seconds=taken.seconds,
        batch=study.recipe.batch.size,
        length=taken.length,
        device=f"{measured.device} ({(facts.gpu if measured.device == 'cuda' else facts.cpu) or 'unnamed'})",
        isolated=measured.isolated,
        arms=measured.timings(study.compare.baseline, seed=seed, peaks=peaks),
        pairs=tuple(
            PairTiming(arm=arm, against=other, ratio=taken.ratio((arm, other), seed=seed))
            for arm, other in timed_hypothesis_pairs(part)
        ),
        spec={name: resolve_cell(study, first_cell(study, name)) for name in part.arms},
        system=summarize_load(taken.samples),
        warnings=(),
        provenance=facts,
    )
    found = replace(found, warnings=tuple(_warnings(found)))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    BENCH_FILE.write(folder, found)
    write_text(folder / STUDY, json.dumps(study.to_dict(), indent=2) + "\n", once=True)  # by which it is read
    return found


def _peaks(study: Study, names: Collection[str], progress: Progress, stop: StopRequest) -> dict[str, MeasuredMemory]:
    """Peak and parts of memory, of every arm in a fresh process."""
    found = {}
    stop.at_once = False  # so that no process is left behind
    for number, name in enumerate(names):
        progress.on_prepare("measuring memory", number, len(names))
        found[name] = measure_peak_memory(study, name, stop=stop)
    stop.at_once = True
    if stop.signal is not None:
        raise Stopped("stopped before anything was timed", signal=stop.signal, hint=None)
    return found


def _warnings(found: Bench) -> Iterator[str]:
    share = found.system.others
    if share is not None and share > MUCH:
        yield f"other processes used {share:.0%} of the cores meanwhile"
    if found.rounds < FEWEST and found.stopped_by == "budget":
        longer = format_duration(FEWEST * found.seconds / found.rounds)
        yield f"{found.rounds} rounds give no interval; {FEWEST} take about {longer}: --budget"
    for name, arm in found.arms.items():
        if arm.above_ceiling:
            yield (
                f"SPEEDUP-ABOVE-CEILING: {name} is {arm.saving:.1%} faster, and freezing can save {arm.at_most:.1%} at "
                "most: something else was timed"
            )
        if arm.outliers:
            yield f"{arm.outliers} steps of {name} took more than 3 times the median; they are counted in"
        if arm.step is not None and arm.step.block_length > 3:
            yield f"the ratio of {name} wandered: its interval may be too narrow"


# -- what is refused before anything is measured ----------------------------------------------------------------------


def select_arms(study: Study, arms: Sequence[str] | None) -> Study:
    """The study with these arms alone, and the one that all are compared with."""
    names = list(study.arms) if arms is None else list(dict.fromkeys([study.compare.baseline, *arms]))
    for name in names:
        if name not in study.arms:
            close = did_you_mean(name, study.arms)
            raise StudyError(f"the study has no arm '{name}'{close}", hint=f"one of {', '.join(study.arms)}")
    return restrict_study(study, arms=names)


def check_request(study: Study, *, precision: float, budget: float) -> None:
    if len(study.arms) < 2:
        raise StudyError(f"one arm, '{study.compare.baseline}', cannot be compared", hint="--arms with another one")
    if not 0 < precision < 1:
        raise StudyError(f"a precision of {precision:g} is not between 0 and 1", hint="--precision 0.01")
    if not budget > 0:
        raise StudyError(f"invalid budget of {budget:g} s", hint="--budget 5m")
    _check_device()
    for arm in study.arms.values():
        other = [path for path in arm.overrides if path.split(".")[0] in OF_A_STEP]
        if other:
            raise StudyError(
                f"arm '{arm.name}' is of another shape",
                where=f"arms.{arm.name}.overrides.{other[0]}",
                why="its steps would be compared with those of another model, batch, clipping or precision",
            )


def _check_device() -> None:
    """Accelerate accepts any device name, and fails at the first tensor."""
    name = os.environ.get(_DEVICE)
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise CellError(
            f"there is no device '{name}' here",
            where=_DEVICE,
            why=str(error).partition("\n")[0],
            hint=f"unset {_DEVICE} takes the GPU if there is one, and else the CPU",
        ) from error


def check_writable(folder: Path) -> None:
    """Before minutes of measuring, whether the results can be saved afterwards. Nothing is left behind."""
    with writing(folder):
        parent = next(path for path in (folder, *folder.absolute().parents) if path.exists())
        tempfile.TemporaryFile(dir=parent).close()
