"""Sweep: time the arms of a study in one shape after the other.

The study's own model is made wider and narrower, with random weights, which times do not depend on. Its layers and its
vocabulary stay, so embedding and head keep their part of a step. Batches are random tokens, every row as long as the
shape says: nothing is padding.
"""

from __future__ import annotations

import copy
import itertools
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from oelm.bench.arms import Measured, against_base, cell_of, loop_of, step_work
from oelm.bench.checks import check_asked, check_place, chosen_arms
from oelm.bench.memory import theory
from oelm.bench.resize import resized, skeleton, width_of, width_step
from oelm.bench.room import is_out_of_memory, why_apart
from oelm.bench.shapes import Shape, Shapes, ShapeTiming
from oelm.bench.stepper import Stepper
from oelm.bench.surroundings import Sample, summary
from oelm.bench.turns import take_turns
from oelm.data.tokens import Examples, Prepared, Split, Windows
from oelm.errors import Stopped, StudyError
from oelm.heads.apply import apply
from oelm.heads.find import num_layers
from oelm.models.dropout import quicken_dropout_
from oelm.records.provenance import provenance
from oelm.records.store import RUNS
from oelm.seeds import seed_for
from oelm.study.plan import resolve
from oelm.study.study import Study
from oelm.train.loop import Loop
from oelm.train.signals import Stop as Signals
from oelm.train.signals import listening
from oelm.train.watch import Watch

_STEPS = 32  # of random tokens, seen again and again


def bench_shapes(
    study: Study,
    *,
    arms: Sequence[str] | None = None,
    widths: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
    precision: float = 0.01,
    budget: float = 300.0,
    seed: int = 0,
    out: str | Path = RUNS,
    watch: Watch | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Shapes:
    """Time the arms in every shape of a grid, each as `bench` does in that of the study.

    The smallest shape is the first, and every shape may take an equal part of the time that the ones before it left.
    What was measured is written after every shape.
    """
    watch = watch or Watch()
    part, folder = chosen_arms(study, arms), Path(out) / study.name
    check_asked(part, precision=precision, budget=budget)
    check_place(folder)
    with tempfile.TemporaryDirectory() as place, listening() as stop:
        first = loop_of(study, study.compare.against, Path(place), watch, stop)
        own, step = _shape_of(first), width_step(first.model)
        todo = grid(own, step=step, widths=widths, lengths=lengths, batches=batches)
        cast = _Cast.of(first, part, todo)
        del first
        found = Shapes(
            study=study.name,
            against=study.compare.against,
            seed=seed,
            precision=precision,
            seconds=0.0,
            stopped="interrupted",
            points=(),
            left_out=(),
            made_with={name: resolve(study, cell_of(study, name)).to_dict() for name in part.arms},
            surroundings={},
            provenance=provenance(),
        )
        samples: list[Sample] = []
        stop.at_once = False
        began = now()
        for number, shape in enumerate(todo):
            watch.says(f"[{number + 1}/{len(todo)}] {shape}")
            share = (budget - (now() - began)) / (len(todo) - number)
            try:
                point, more = cast.timed(shape, precision=precision, budget=share, seed=seed, now=now)
            except Stopped:
                if not found.points:
                    raise
                break
            except _LeftOut as reason:
                found = replace(found, left_out=(*found.left_out, (shape, str(reason))))
                watch.says(f"  left out: {reason}")
                continue
            samples += more
            found = replace(found, points=(*found.points, point), seconds=now() - began, surroundings=summary(samples))
            found.save(folder)
            watch.says(f"  {point}")
            if point.stopped_by == "interrupted":
                break
        else:
            found = replace(found, stopped="done")
    if not found.points:
        shape, why = found.left_out[0]
        raise StudyError("none of the shapes could be measured", where=str(shape), why=why, hint="--budget 1h")
    found.save(folder)
    return found


def grid(
    own: Shape,
    *,
    step: int,
    widths: Sequence[int] | None = None,
    lengths: Sequence[int] | None = None,
    batches: Sequence[int] | None = None,
) -> list[Shape]:
    """All combinations, the least work first.

    What is not asked for is the study's own. If nothing is, it is half, one and two times its width, as far as that is
    a multiple of `step`, and its longest rows and half of them.
    """
    if not (widths or lengths or batches):
        widths = [width for width in (own.width // 2, own.width, 2 * own.width) if width and width % step == 0]
        lengths = [max(1, own.length // 2), own.length]
    sizes = itertools.product(widths or [own.width], lengths or [own.length], batches or [own.batch])
    found = {Shape(width=width, length=length, batch=batch) for width, length, batch in sizes}
    return sorted(found, key=lambda shape: (shape.work, shape.width, shape.length))


def _shape_of(loop: Loop) -> Shape:
    recipe = loop.recipe
    return Shape(width=width_of(loop.model), length=recipe.data.max_length, batch=recipe.batch.size)


class _LeftOut(Exception):
    """A shape cannot be measured here; the others can."""


@dataclass(frozen=True, kw_only=True)
class _Cast:
    """What the arms of every shape are made from: the study, its task, and its model in all widths."""

    study: Study
    kind: type[nn.Module]
    configs: dict[int, Any]
    """By width."""
    prepared: Prepared
    accelerator: Any
    folder: Path
    watch: Watch
    stop: Signals

    @classmethod
    def of(cls, own: Loop, study: Study, shapes: Sequence[Shape]) -> _Cast:
        """What the model cannot be or read is refused here, before anything is timed."""
        longest = getattr(own.model.config, "max_position_embeddings", None)
        length = max(shape.length for shape in shapes)
        if longest is not None and length > longest:
            raise StudyError(
                f"a length of {length} is more than the {longest} tokens that the model can read",
                hint=f"--lengths {longest}",
            )
        return cls(
            study=study,
            kind=type(own.model),
            configs={width: resized(own.model, width) for width in sorted({shape.width for shape in shapes})},
            prepared=own.prepared,
            accelerator=own.accelerator,
            folder=own.folder,
            watch=own.watch,
            stop=own.stop,
        )

    def loop(self, shape: Shape, name: str) -> Loop:
        """An arm of the study in this shape, with everything else as the study has it."""
        cell = cell_of(self.study, name)
        resolved, config = resolve(self.study, cell), self.configs[shape.width]
        recipe = replace(resolved.recipe, batch=replace(resolved.recipe.batch, size=shape.batch))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(cell.seed, "weights"))
            model = self.kind(copy.deepcopy(config)).train()
        quicken_dropout_(model)  # as in every training
        rows = random_rows(
            self.prepared,
            shape,
            number=_STEPS * recipe.batch.accumulate * shape.batch,
            vocab=config.vocab_size,
            random=np.random.default_rng(seed_for(cell.seed, "shapes")),
        )
        return Loop(
            replace(resolved, recipe=recipe),
            prepared=replace(self.prepared, train=rows),
            applied=apply(model, resolved.arm.treatment, seed=cell.seed, keep_undo=False),
            accelerator=self.accelerator,
            folder=self.folder,
            watch=self.watch,
            stop=self.stop,
        )

    def timed(
        self, shape: Shape, *, precision: float, budget: float, seed: int, now: Callable[[], float]
    ) -> tuple[ShapeTiming, list[Sample]]:
        if budget <= 0:
            raise _LeftOut("no time was left for it")
        self.accelerator.free_memory()  # of the shape before this one
        against = self.study.compare.against
        try:
            self._check_room(shape)
            loops = {name: self.loop(shape, name) for name in self.study.arms}
            taken = take_turns(
                {name: Stepper(loop, now=now) for name, loop in loops.items()},
                pairs=against_base(self.study),
                precision=precision,
                budget=budget,
                seed=seed,
                watch=self.watch,
                stop=self.stop,
                now=now,
            )
        except StudyError as error:  # there is no time for one round
            raise _LeftOut(str(error).partition("\n")[0]) from error
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise _LeftOut("its arms do not fit into memory together") from error
        work = {name: step_work(loop, shape.length) for name, loop in loops.items()}
        measured = Measured(taken=taken, work=work, device=self.accelerator.device.type)
        point = ShapeTiming(
            shape=shape,
            layers=num_layers(loops[against].model),
            rounds=len(taken.samples),
            stopped_by=taken.stopped_by,
            arms=measured.timings(against, seed=seed, peaks={}),
        )
        return point, taken.samples

    def _check_room(self, shape: Shape) -> None:
        """By weights, gradients and moments: what activations need is seen when they are there."""
        one = theory(skeleton(self.kind, self.configs[shape.width])).to_dict()
        why = why_apart([one] * len(self.study.arms), device=self.accelerator.device.type)
        if why is not None:
            raise _LeftOut(why)


def random_rows(like: Prepared, shape: Shape, *, number: int, vocab: int, random: np.random.Generator) -> Split:
    """So many rows of random tokens, each as long as the shape says, in the form of a task's training split."""
    if isinstance(like.train, Windows):
        return Windows(tokens=random.integers(vocab, size=number * shape.length + 1), length=shape.length)
    tokens = random.integers(vocab, size=number * shape.length, dtype=np.int32)
    return Examples(
        tokens=tokens,
        types=None if like.train.types is None else np.zeros(len(tokens), dtype=np.int8),
        offsets=np.arange(number + 1) * shape.length,
        labels=random.integers(len(like.task.labels), size=number),
        rows=np.arange(number),
    )
