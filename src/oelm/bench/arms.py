"""Arms: what takes turns in a bench, together in one process or each visit in its own, and what it took."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from oelm.analysis.timed import PARTS
from oelm.bench.apart import Apart
from oelm.bench.ceiling import Ceiling, Work, work_of
from oelm.bench.memory import theory
from oelm.bench.ratios import outliers, ratio_of
from oelm.bench.room import NoRoom, is_out_of_memory, why_apart
from oelm.bench.stepper import Stepper
from oelm.bench.timing import ArmTiming
from oelm.bench.turns import Pair, Taken, Visited
from oelm.errors import CellError
from oelm.study.plan import Cell, resolve
from oelm.study.study import Study
from oelm.train.cell import assembled
from oelm.train.loop import Loop
from oelm.train.signals import Stop as Signals
from oelm.train.watch import Watch


@dataclass(frozen=True, kw_only=True)
class Measured:
    taken: Taken
    work: dict[str, Work]
    """Of a step of every arm, at the mean length of the batches."""
    device: str
    why_apart: str | None = None

    def timings(self, against: str, *, seed: int, peaks: Mapping[str, dict[str, Any]]) -> dict[str, ArmTiming]:
        """Every arm in units of `against`."""
        work, parts = self.work, {name: self.taken.parts(name) for name in self.work}
        base = parts[against]
        share = float(np.median(base[..., 2]) / np.median(base.sum(-1)))
        found = {}
        for name, seconds in parts.items():
            whole = seconds.sum(-1)
            timing = ArmTiming(
                step_seconds=float(np.median(whole)), outliers=outliers(whole), ratios={}, memory=peaks.get(name, {})
            )
            if name != against:
                ratios = {"step": ratio_of(whole, base.sum(-1), seed=seed)}
                ratios |= {
                    part: ratio_of(seconds[..., number], base[..., number], seed=seed)
                    for number, part in enumerate(PARTS)
                }
                ceiling = Ceiling(baseline=work[against], treated=work[name])
                timing = replace(timing, ratios=ratios, ceiling=ceiling.saving, at_most=ceiling.at_most(share))
            found[name] = timing
        return found


@dataclass(frozen=True, kw_only=True)
class Arms:
    """The arms of a study, and how they take turns."""

    study: Study
    names: tuple[str, ...]
    """Of those that are timed."""
    turns: Callable[[dict[str, Visited]], Taken]
    watch: Watch
    stop: Signals
    now: Callable[[], float]

    def measured(self, apart: bool | None, peaks: dict[str, dict[str, Any]]) -> Measured:
        """In one process if they fit, as far as that is known, and else, or when they turn out not to, apart."""
        why = "it was asked for" if apart else None
        if apart is None and peaks:
            why = why_apart(list(peaks.values()), device=next(iter(peaks.values()))["device"])
        if why is None:
            try:
                return self._together(check=apart is None)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if apart is False:
                    raise CellError(
                        "the arms do not fit into memory together",
                        why=str(error).partition("\n")[0],
                        hint="--apart, which has one of them in memory at a time",
                    ) from error
                why = str(error) if isinstance(error, NoRoom) else "all arms together ran out of memory"
            gc.collect()  # the error held what was there
            torch.cuda.empty_cache()
        self.watch.says(f"every visit is a process of its own: {why}")
        return self._apart(why)

    def _together(self, *, check: bool) -> Measured:
        with tempfile.TemporaryDirectory() as place:
            loops: dict[str, Loop] = {}
            for name in self.names:
                loops[name] = loop_of(self.study, name, Path(place), self.watch, self.stop)
                if check:
                    _check_room(list(loops.values()), len(self.names))
            self.stop.at_once = False
            taken = self.turns({name: Stepper(loop, now=self.now) for name, loop in loops.items()})
        work = {name: step_work(loop, taken.length) for name, loop in loops.items()}
        return Measured(taken=taken, work=work, device=_device(loops[self.study.compare.against]))

    def _apart(self, why: str) -> Measured:
        self.stop.at_once = False
        content, seed = self.study.to_dict(), self.study.seeds[0]
        taken = self.turns({name: Apart(content, name, seed, stop=self.stop) for name in self.names})
        work, device = {}, ""
        for name in self.names:
            with tempfile.TemporaryDirectory() as place:
                loop = loop_of(self.study, name, Path(place), self.watch, self.stop)
                work[name], device = step_work(loop, taken.length), _device(loop)
            del loop  # before there is the next
        return Measured(taken=taken, work=work, device=device, why_apart=why)


def against_base(study: Study) -> list[Pair]:
    """Every other arm with the one that the study compares with."""
    return [(name, study.compare.against) for name in study.arms if name != study.compare.against]


def hypothesis_pairs(study: Study) -> list[Pair]:
    """Other arms whose step times a hypothesis divides."""
    found = [one.estimand for one in study.hypotheses]
    pairs = [(one.arm, one.against) for one in found if (one.form, one.metric) == ("ratio", "step_seconds")]
    base = study.compare.against
    return [
        (arm, other)
        for arm, other in dict.fromkeys(pairs)
        if other is not None and base not in (arm, other) and {arm, other} <= set(study.arms)
    ]


def cell_of(study: Study, name: str) -> Cell:
    return Cell(arm=name, seed=study.seeds[0])


def loop_of(study: Study, name: str, place: Path, watch: Watch, stop: Signals) -> Loop:
    cell = cell_of(study, name)
    return assembled(resolve(study, cell), place, watch, stop)


def _check_room(loops: list[Loop], number: int) -> None:
    """Whether there is room, by arithmetic, for what the arms that are there will still need, and for the others."""
    known = [theory(loop.model) for loop in loops]
    largest = max(known, key=lambda memory: memory.parameters + memory.learning)
    all_of_them = [memory.to_dict() for memory in (*known, *[largest] * (number - len(known)))]
    why = why_apart(all_of_them, device=_device(loops[0]), there=sum(memory.parameters for memory in known))
    if why is not None:
        raise NoRoom(why)


def _device(loop: Loop) -> str:
    return str(loop.accelerator.device.type)


def step_work(loop: Loop, length: float) -> Work:
    """Of a step of this training, with rows of so many tokens."""
    batch = loop.recipe.batch
    return work_of(loop.model, batch=batch.size * batch.accumulate, length=max(1, round(length)))
