"""Arms: what a bench times, together in one process or each block of steps in its own, and what it took."""

import gc
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from oelm.bench.flops import Ceiling, Work, work_of
from oelm.bench.interleave import InterleavedTimes, Pair, TimedArmRunner
from oelm.bench.isolate import IsolatedArm, is_out_of_memory
from oelm.bench.memory import theoretical_memory
from oelm.bench.memory_budget import InsufficientMemory, reason_to_isolate
from oelm.bench.ratios import count_outliers, ratio_of
from oelm.bench.stepper import Stepper
from oelm.data.kinds.kind import Encoded
from oelm.errors import CellError
from oelm.runs.bench import PARTS, ArmTiming, MeasuredMemory
from oelm.study.cells import Cell, resolve_cell
from oelm.study.study import Study
from oelm.train.cell import build_loop
from oelm.train.loop import Loop
from oelm.train.progress import Progress
from oelm.train.signals import StopRequest


@dataclass(frozen=True, kw_only=True)
class BenchMeasurement:
    taken: InterleavedTimes
    work: dict[str, Work]
    """Of a step of every arm, at the mean length of the batches."""
    device: str
    isolated: str | None = None
    """Why every block of steps was a process of its own, if it was."""

    def timings(self, against: str, *, seed: int, peaks: Mapping[str, MeasuredMemory]) -> dict[str, ArmTiming]:
        """Every arm in units of `against`."""
        work, parts = self.work, {name: self.taken.parts(name) for name in self.work}
        base = parts[against]
        share = float(np.median(base[..., 2]) / np.median(base.sum(-1)))
        found = {}
        for name, seconds in parts.items():
            step = seconds.sum(-1)
            timing = ArmTiming(
                step_seconds=float(np.median(step)),
                outliers=count_outliers(step),
                ratios={},
                memory=peaks.get(name),
            )
            if name != against:
                ratios = {"step": ratio_of(step, base.sum(-1), seed=seed)}
                ratios |= {
                    part: ratio_of(seconds[..., number], base[..., number], seed=seed)
                    for number, part in enumerate(PARTS)
                }
                ceiling = Ceiling(baseline=work[against], treated=work[name])
                timing = replace(timing, ratios=ratios, ceiling=ceiling.saving, at_most=ceiling.at_most(share))
            found[name] = timing
        return found


@dataclass(frozen=True, kw_only=True)
class ArmFactory:
    """The arms of a study, and how they take turns."""

    study: Study
    names: tuple[str, ...]
    """Of those that are timed."""
    turns: Callable[[dict[str, TimedArmRunner]], InterleavedTimes]
    progress: Progress
    stop: StopRequest
    now: Callable[[], float]

    def measure(self, isolate: bool | None, peaks: Mapping[str, MeasuredMemory]) -> BenchMeasurement:
        """In one process where they fit, as far as that is known; isolated where they do not, or turn out not to."""
        why = "--isolate" if isolate else None
        if isolate is None and peaks:
            why = reason_to_isolate(list(peaks.values()), device=next(iter(peaks.values())).device)
        if why is None:
            try:
                return self._measure_together(check=isolate is None)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                if isolate is False:
                    raise CellError(
                        "the arms do not fit into memory together",
                        why=str(error).partition("\n")[0],
                        hint="--isolate, which has one of them in memory at a time",
                    ) from error
                why = str(error) if isinstance(error, InsufficientMemory) else "all arms together ran out of memory"
            gc.collect()  # the error held what was there
            torch.cuda.empty_cache()
        self.progress.on_message(f"every block of steps runs in a process of its own: {why}")
        return self._measure_isolated(why)

    def _measure_together(self, *, check: bool) -> BenchMeasurement:
        with tempfile.TemporaryDirectory() as folder:
            loops: dict[str, Loop] = {}
            for name in self.names:
                loops[name] = build_arm_loop(self.study, name, Path(folder), self.progress, self.stop)
                if check:
                    _check_memory(list(loops.values()), len(self.names))
            self.stop.at_once = False
            taken = self.turns({name: Stepper(loop, now=self.now) for name, loop in loops.items()})
        work = {name: count_step_work(loop, taken.length) for name, loop in loops.items()}
        return BenchMeasurement(taken=taken, work=work, device=_device(loops[self.study.compare.baseline]))

    def _measure_isolated(self, why: str) -> BenchMeasurement:
        self.stop.at_once = False
        taken = self.turns({name: IsolatedArm(self.study, name, stop=self.stop) for name in self.names})
        work, device = {}, ""
        for name in self.names:
            with tempfile.TemporaryDirectory() as folder:
                loop = build_arm_loop(self.study, name, Path(folder), self.progress, self.stop)
                work[name], device = count_step_work(loop, taken.length), _device(loop)
            del loop  # before there is the next
        return BenchMeasurement(taken=taken, work=work, device=device, isolated=why)


def baseline_pairs(study: Study) -> list[Pair]:
    """Every other arm with the one that the study compares with."""
    return [(name, study.compare.baseline) for name in study.arms if name != study.compare.baseline]


def timed_hypothesis_pairs(study: Study) -> list[Pair]:
    """Other arms whose step times a hypothesis divides."""
    found = [one.estimand for one in study.hypotheses]
    pairs = [(one.arm, one.against) for one in found if (one.form, one.metric) == ("ratio", "step_seconds")]
    base = study.compare.baseline
    return [
        (arm, other)
        for arm, other in dict.fromkeys(pairs)
        if other is not None and base not in (arm, other) and {arm, other} <= set(study.arms)
    ]


def first_cell(study: Study, name: str) -> Cell:
    return Cell(arm=name, seed=study.seeds[0])


def build_arm_loop(study: Study, name: str, folder: Path, progress: Progress, stop: StopRequest) -> Loop:
    cell = first_cell(study, name)
    return build_loop(resolve_cell(study, cell), folder, progress, stop)


def _check_memory(loops: list[Loop], number: int) -> None:
    """Whether what the arms that are loaded will still need, and the others, fits into memory by arithmetic."""
    loaded = [theoretical_memory(loop.model, loop.recipe.optimizer) for loop in loops]
    largest = max(loaded, key=lambda memory: memory.parameters + memory.learning)
    all_arms = [*loaded, *[largest] * (number - len(loaded))]
    why = reason_to_isolate(all_arms, device=_device(loops[0]), allocated=sum(memory.parameters for memory in loaded))
    if why is not None:
        raise InsufficientMemory(why)


def _device(loop: Loop) -> str:
    return str(loop.accelerator.device.type)


def count_step_work(loop: Loop, length: float) -> Work:
    """Of a step of this training, with rows of so many tokens."""
    batch, train = loop.recipe.batch, loop.prepared.train
    return work_of(
        loop.model,
        batch=batch.size * batch.accumulate,
        length=max(1, round(length)),
        target_length=train.target_length if isinstance(train, Encoded) else None,
    )
