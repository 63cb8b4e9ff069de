"""Bench: time the arms of a study against each other, in short turns in one process, until the ratio is known.

Everything but the steps themselves is outside the clock: loading, tokenising, making batches, warming up.
"""

from __future__ import annotations

import itertools
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from oelm.bench.ceiling import Ceiling, work_of
from oelm.bench.memory import peak_of
from oelm.bench.order import rounds
from oelm.bench.ratios import Ratio, enough, is_look, outliers, ratio_of
from oelm.bench.stepper import PARTS, Stepper
from oelm.bench.surroundings import MUCH, Sample, Watching, interference, usable_cores
from oelm.bench.timing import ArmTiming, Bench, Stop
from oelm.data.batches import Batch, collate
from oelm.errors import Stopped, StudyError
from oelm.records.provenance import provenance
from oelm.records.store import RUNS, writing
from oelm.study.plan import Cell, resolve, restricted
from oelm.study.study import Study
from oelm.train.cell import assembled
from oelm.train.loop import Loop
from oelm.train.signals import Stop as Signals
from oelm.train.signals import listening
from oelm.train.watch import Watch

Seconds = NDArray[np.float64]

_WARM_UP = 3  # steps of every arm before the clock counts
_VISIT = 0.5  # seconds that a visit should take: long enough for the clock, short enough for the machine to stay itself
_FEWEST_STEPS, _MOST_STEPS = 2, 20
# What changes the shape of a step, so that times would compare two models.
_SHAPES = ("model", "data", "batch", "precision", "compile", "gradient_checkpointing")


@dataclass
class _Taken:
    """What has been measured so far."""

    steps: int
    """Of a visit."""
    times: dict[str, list[list[Seconds]]]
    """By arm: rounds of two visits, each (steps, 3 parts)."""
    lengths: list[int] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    stopped_by: Stop = "budget"
    seconds: float = 0.0


def bench(
    study: Study,
    *,
    arms: Sequence[str] | None = None,
    precision: float = 0.01,
    budget: float = 300.0,
    seed: int = 0,
    memory: bool = True,
    out: str | Path = RUNS,
    watch: Watch | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Bench:
    """Time the arms until the interval of every ratio is within `precision`, or `budget` seconds are used."""
    watch = watch or Watch()
    part = _chosen(study, arms)
    _check(part, precision=precision, budget=budget)
    with tempfile.TemporaryDirectory() as place, listening() as stop:
        loops = {name: _loop(study, name, Path(place), watch, stop) for name in part.arms}
        stop.at_once = False
        limits = {"precision": precision, "budget": budget}
        taken = _measure(loops, against=study.compare.against, **limits, seed=seed, watch=watch, stop=stop, now=now)
    first, length = loops[study.compare.against], float(np.mean(taken.lengths))
    found = Bench(
        study=study.name,
        against=study.compare.against,
        seed=seed,
        precision=precision,
        stopped_by=taken.stopped_by,
        rounds=len(taken.samples),
        steps=taken.steps,
        seconds=taken.seconds,
        batch=first.recipe.batch.size,
        length=length,
        arms=_timings(loops, taken.times, study.compare.against, seed, length),
        surroundings=_summary(taken.samples),
        warnings=(),
        provenance=provenance(),
    )
    if memory and taken.stopped_by != "interrupted":
        found = _with_memory(found, study, watch)
    found = replace(found, warnings=tuple(_warnings(found)))
    folder = Path(out) / study.name
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    found.save(folder)
    return found


def _measure(
    loops: dict[str, Loop],
    *,
    against: str,
    precision: float,
    budget: float,
    seed: int,
    watch: Watch,
    stop: Signals,
    now: Callable[[], float],
) -> _Taken:
    """Round after round, until it is enough."""
    steppers = {name: Stepper(loop, now=now) for name, loop in loops.items()}
    batches = _batches(loops[against])
    usual = _warmed_up(steppers, _next(batches, 1))
    taken = _Taken(
        steps=int(np.clip(round(_VISIT / usual), _FEWEST_STEPS, _MOST_STEPS)), times={name: [] for name in loops}
    )
    shortest = 2 * len(loops) * taken.steps * usual
    if shortest > budget:
        raise StudyError(
            f"a budget of {budget:g} s is too short for one round, which takes {shortest:.1f} s",
            hint="--budget 5m, or fewer --arms",
        )
    watching, began = Watching(), now()
    for order in rounds(list(loops), seed=seed):
        # Every arm sees the same batches, on the way there and on the way back.
        there, back = _next(batches, taken.steps), _next(batches, taken.steps)
        measured: dict[str, list[Seconds]] = {name: [] for name in loops}
        for number, name in enumerate(order):
            if stop.signal is None:
                measured[name].append(steppers[name].visit(there if number < len(loops) else back))
        if stop.signal is not None:  # a round that is not whole is left out
            taken.stopped_by = "interrupted"
            break
        for name, visits in measured.items():
            taken.times[name].append(visits)
        taken.lengths += [batch.inputs["input_ids"].shape[1] for passes in (*there, *back) for batch in passes]
        taken.samples.append(watching.sample())
        done, taken.seconds = len(taken.samples), now() - began
        watch.stepped(done, loss=math.nan)
        if is_look(done) and all(enough(one, precision) for one in _ratios(taken.times, against).values()):
            taken.stopped_by = "precision"
            break
        if taken.seconds * (1 + 1 / done) > budget:  # another round would be too much
            break
    if not taken.samples:
        raise Stopped("stopped before the first round was over; nothing was measured", signal=int(stop.signal or 2))
    return taken


def _chosen(study: Study, arms: Sequence[str] | None) -> Study:
    names = list(study.arms) if arms is None else list(dict.fromkeys([study.compare.against, *arms]))
    for name in names:
        if name not in study.arms:
            raise StudyError(f"the study has no arm '{name}'", hint=f"one of {', '.join(study.arms)}")
    return restricted(study, arms=names)


def _check(study: Study, *, precision: float, budget: float) -> None:
    if len(study.arms) < 2:
        raise StudyError(f"one arm, '{study.compare.against}', cannot be compared", hint="--arms with another one")
    if not 0 < precision < 1:
        raise StudyError(f"a precision of {precision:g} is not between 0 and 1", hint="--precision 0.01")
    if not budget > 0:
        raise StudyError(f"a budget of {budget:g} s is no time", hint="--budget 5m")
    for arm in study.arms.values():
        other = [path for path in arm.changes if path.split(".")[0] in _SHAPES]
        if other:
            raise StudyError(
                f"arm '{arm.name}' is of another shape",
                where=f"arms.{arm.name}.changes.{other[0]}",
                why="its steps would be compared with those of another model, batch or precision",
            )


def _loop(study: Study, name: str, place: Path, watch: Watch, stop: Signals) -> Loop:
    cell = Cell(arm=name, seed=study.seeds[0])
    (place / cell.folder).mkdir(parents=True)
    return assembled(resolve(study, cell), place, watch, stop)


def _batches(loop: Loop) -> Iterator[list[Batch]]:
    """The steps of the study's own training: the passes of each, as tensors on the device."""
    for step in itertools.count():
        rows = loop.order.at(step)
        yield [collate(loop.prepared.train, one, pad=loop.pad, device=loop.accelerator.device) for one in rows]


def _next(batches: Iterator[list[Batch]], steps: int) -> list[list[Batch]]:
    return list(itertools.islice(batches, steps))


def _warmed_up(steppers: dict[str, Stepper], steps: list[list[Batch]]) -> float:
    """Run every arm until nothing is done for the first time any more; the usual seconds of a step."""
    seen = [stepper.visit(steps * _WARM_UP) for stepper in steppers.values()]
    return float(np.median([visit[-1].sum() for visit in seen]))


def _ratios(times: dict[str, list[list[Seconds]]], against: str, *, seed: int = 0) -> dict[str, Ratio]:
    """Of whole steps."""
    whole = {name: np.array(visits).sum(-1) for name, visits in times.items()}
    return {name: ratio_of(one, whole[against], seed=seed) for name, one in whole.items() if name != against}


def _timings(
    loops: dict[str, Loop], times: dict[str, list[list[Seconds]]], against: str, seed: int, length: float
) -> dict[str, ArmTiming]:
    parts = {name: np.array(visits) for name, visits in times.items()}  # (rounds, 2, steps, 3)
    base = parts[against]
    share = float(np.median(base[..., 2]) / np.median(base.sum(-1)))
    work = {
        name: work_of(loop.model, batch=loop.recipe.batch.size, length=max(1, round(length)))
        for name, loop in loops.items()
    }
    found = {}
    for name, seconds in parts.items():
        whole = seconds.sum(-1)
        timing = ArmTiming(step_seconds=float(np.median(whole)), outliers=outliers(whole), ratios={})
        if name != against:
            ratios = {"step": ratio_of(whole, base.sum(-1), seed=seed)}
            ratios |= {
                part: ratio_of(seconds[..., number], base[..., number], seed=seed) for number, part in enumerate(PARTS)
            }
            ceiling = Ceiling(baseline=work[against], treated=work[name])
            timing = replace(timing, ratios=ratios, ceiling=ceiling.saving, at_most=ceiling.at_most(share))
        found[name] = timing
    return found


def _with_memory(found: Bench, study: Study, watch: Watch) -> Bench:
    """Peak and parts of memory, of every arm in a fresh process."""
    arms = {}
    for number, (name, arm) in enumerate(found.arms.items()):
        watch.prepares("measuring memory", number, len(found.arms))
        arms[name] = replace(arm, memory=peak_of(study.to_dict(), name, study.seeds[0]))
    return replace(found, arms=arms)


def _summary(samples: list[Sample]) -> dict[str, Any]:
    share = interference(samples)
    loads = [one.load for one in samples if one.load is not None]
    clocks = [one.gpu_clock for one in samples if one.gpu_clock is not None]
    heat = [one.gpu_temperature for one in samples if one.gpu_temperature is not None]
    return {
        "cores": usable_cores(),
        "others": share,
        "load": [min(loads), max(loads)] if loads else None,
        "gpu_clock": [min(clocks), max(clocks)] if clocks else None,
        "gpu_temperature": [min(heat), max(heat)] if heat else None,
    }


def _warnings(found: Bench) -> Iterator[str]:
    share = found.surroundings["others"]
    if share is not None and share > MUCH:
        yield f"other processes used {share:.0%} of the cores meanwhile"
    for name, arm in found.arms.items():
        if arm.above_ceiling:
            yield (
                f"SPEEDUP-ABOVE-CEILING: {name} is {arm.saving:.1%} faster, and freezing can save {arm.at_most:.1%} at "
                "most: something else was timed"
            )
        if arm.outliers:
            yield f"{arm.outliers} steps of {name} took more than 3 times the median; they are counted in"
        if arm.ratios and arm.ratios["step"].block_length > 3:
            yield f"the ratio of {name} wandered: its interval may be too narrow"
