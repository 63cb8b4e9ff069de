"""Bench: time the arms of a study against each other, in short turns, until the ratio is known.

All arms are in one process, if they fit into memory together; else every visit is a process of its own. Everything but
the steps themselves is outside the clock: loading, tokenising, making batches, warming up.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from oelm.bench.arms import Arms, against_base, cell_of, hypothesis_pairs
from oelm.bench.checks import check_asked, check_place, chosen_arms
from oelm.bench.memory import peak_of
from oelm.bench.ratios import FEWEST
from oelm.bench.surroundings import MUCH, summary
from oelm.bench.timing import Bench, PairTiming
from oelm.bench.turns import take_turns
from oelm.errors import Stopped
from oelm.records.provenance import provenance
from oelm.records.store import RUNS, writing
from oelm.study.plan import resolve
from oelm.study.study import Study
from oelm.times import duration
from oelm.train.signals import Stop as Signals
from oelm.train.signals import listening
from oelm.train.watch import Watch


def bench(
    study: Study,
    *,
    arms: Sequence[str] | None = None,
    precision: float = 0.01,
    budget: float = 300.0,
    seed: int = 0,
    memory: bool = True,
    apart: bool | None = None,
    out: str | Path = RUNS,
    watch: Watch | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Bench:
    """Time the arms until the interval of every ratio is within `precision`, or `budget` seconds are used.

    `apart` says whether every visit is a process of its own; None lets the memory decide.
    """
    watch = watch or Watch()
    part, folder = chosen_arms(study, arms), Path(out) / study.name
    check_asked(part, precision=precision, budget=budget)
    check_place(folder)
    with listening() as stop:
        peaks = _peaks(study, part.arms, watch, stop) if memory else {}
        turns = functools.partial(
            take_turns,
            pairs=[*against_base(part), *hypothesis_pairs(part)],
            precision=precision,
            budget=budget,
            seed=seed,
            watch=watch,
            stop=stop,
            now=now,
        )
        together = Arms(study=study, names=tuple(part.arms), turns=turns, watch=watch, stop=stop, now=now)
        measured = together.measured(apart, peaks)
    taken, facts = measured.taken, provenance()
    found = Bench(
        study=study.name,
        against=study.compare.against,
        seed=seed,
        precision=precision,
        stopped_by=taken.stopped_by,
        rounds=len(taken.samples),
        steps=taken.steps,
        seconds=taken.seconds,
        batch=study.recipe.batch.size,
        length=taken.length,
        device=f"{measured.device} ({facts['gpu' if measured.device == 'cuda' else 'cpu'] or 'unnamed'})",
        apart=measured.why_apart,
        arms=measured.timings(study.compare.against, seed=seed, peaks=peaks),
        pairs=tuple(
            PairTiming(arm=arm, against=other, ratio=taken.ratio((arm, other), seed=seed))
            for arm, other in hypothesis_pairs(part)
        ),
        made_with={name: resolve(study, cell_of(study, name)).to_dict() for name in part.arms},
        surroundings=summary(taken.samples),
        warnings=(),
        provenance=facts,
    )
    found = replace(found, warnings=tuple(_warnings(found)))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    found.save(folder)
    return found


def _peaks(study: Study, names: Collection[str], watch: Watch, stop: Signals) -> dict[str, dict[str, Any]]:
    """Peak and parts of memory, of every arm in a fresh process."""
    found = {}
    stop.at_once = False  # so that no process is left behind
    for number, name in enumerate(names):
        watch.prepares("measuring memory", number, len(names))
        found[name] = peak_of(study.to_dict(), name, study.seeds[0], stop=stop)
    stop.at_once = True
    if stop.signal is not None:
        raise Stopped("stopped before anything was timed", signal=stop.signal, hint=None)
    return found


def _warnings(found: Bench) -> Iterator[str]:
    share = found.surroundings["others"]
    if share is not None and share > MUCH:
        yield f"other processes used {share:.0%} of the cores meanwhile"
    if found.rounds < FEWEST and found.stopped_by == "budget":
        longer = duration(FEWEST * found.seconds / found.rounds)
        yield f"{found.rounds} rounds give no interval; {FEWEST} take about {longer}: --budget"
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
