"""Shapes: how the ratio of the arms' step times depends on the size of the model and of its batches.

    python benchmarks/shapes.py minilm-sst2 --arms oelm-freeze --widths 192,384,768 --lengths 64,128 --batches 8,32

Every shape is timed as `oelm bench` times the study's own. The study's model is made wider and narrower, with random
weights, which times do not depend on. Its layers and its vocabulary stay, so embedding and head keep their part of a
step. Batches are random tokens, every row as long as the shape says: nothing is padding. Numbers and a figure lie in
`bench-shapes.json` and `bench-shapes.svg` beside the study's records; `--draw` draws the figure again.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from oelm.bench.arms import BenchMeasurement, baseline_pairs, build_arm_loop, count_step_work, first_cell
from oelm.bench.interleave import run_interleaved
from oelm.bench.isolate import is_out_of_memory
from oelm.bench.memory import theoretical_memory
from oelm.bench.memory_budget import reason_to_isolate
from oelm.bench.ratios import FEWEST
from oelm.bench.run import check_request, check_writable, select_arms
from oelm.bench.stepper import Stepper
from oelm.bench.system import MUCH, SystemSample, summarize_load
from oelm.data.tokenize import Examples, Split, TokenizedTask, Windows
from oelm.errors import OelmError, Stopped, StudyError
from oelm.heads.apply import apply
from oelm.heads.find import num_layers
from oelm.models.dropout import use_fast_dropout_
from oelm.runs.bench import SystemLoad
from oelm.runs.files import writing
from oelm.runs.layout import RUNS
from oelm.runs.provenance import collect_provenance
from oelm.seeds import seed_for
from oelm.study.cells import resolve_cell
from oelm.study.load import load_study
from oelm.study.study import Study
from oelm.train.loop import Loop
from oelm.train.progress import LineProgress, Progress
from oelm.train.signals import StopRequest, catch_signals
from resize import config_width, meta_model, resize_config, width_step
from shape_figure import draw_shapes
from shapes_file import SHAPES_FILE, ExcludedShape, Shape, Shapes, ShapeTiming

_STEPS = 32  # of random tokens, seen again and again


def shape_warnings(points: Sequence[ShapeTiming], system: SystemLoad) -> Iterator[str]:
    if system.others is not None and system.others > MUCH:
        yield f"other processes used {system.others:.0%} of the cores meanwhile"
    few = sum(point.rounds < FEWEST for point in points)
    if few:
        yield f"{few} of {len(points)} shapes have fewer than {FEWEST} rounds, too few: --budget"
    for point in points:
        for name, arm in point.arms.items():
            if arm.above_ceiling:
                yield (
                    f"SPEEDUP-ABOVE-CEILING: {point.shape}: {name} is {arm.saving:.1%} faster, and freezing can save "
                    f"{arm.at_most:.1%} at most: something else was timed"
                )


# -- measuring -----------------------------------------------------------------------------------------------------


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
    progress: Progress | None = None,
    now: Callable[[], float] = time.perf_counter,
) -> Shapes:
    """Time the arms in every shape of a grid, each as `bench` does in that of the study.

    The smallest shape is the first, and every shape may take an equal part of the time that the ones before it left.
    What was measured is written after every shape.
    """
    progress = progress or Progress()
    part, folder = select_arms(study, arms), Path(out) / study.name
    check_request(part, precision=precision, budget=budget)
    check_writable(folder)
    with tempfile.TemporaryDirectory() as scratch, catch_signals() as stop:
        first = build_arm_loop(study, study.compare.baseline, Path(scratch), progress, stop)
        own, step = own_shape(first), width_step(first.model)
        todo = shape_grid(own, step=step, widths=widths, lengths=lengths, batches=batches)
        shaped = ShapedArms.of(first, part, todo)
        del first
        found = Shapes(
            study=study.name,
            against=study.compare.baseline,
            seed=seed,
            precision=precision,
            seconds=0.0,
            stopped="interrupted",
            points=(),
            excluded=(),
            spec={name: resolve_cell(study, first_cell(study, name)) for name in part.arms},
            system=summarize_load([]),
            warnings=(),
            provenance=collect_provenance(),
        )
        samples: list[SystemSample] = []
        stop.at_once = False
        began = now()
        for number, shape in enumerate(todo):
            progress.on_message(f"[{number + 1}/{len(todo)}] {shape}")
            share = (budget - (now() - began)) / (len(todo) - number)
            try:
                point, more = shaped.measure(shape, precision=precision, budget=share, seed=seed, now=now)
            except Stopped:
                if not found.points:
                    raise
                break
            except _Excluded as reason:
                found = replace(found, excluded=(*found.excluded, ExcludedShape(shape=shape, why=str(reason))))
                progress.on_message(f"  excluded: {reason}")
                continue
            samples += more
            found = _with_point(found, point, seconds=now() - began, system=summarize_load(samples))
            _save(found, folder)
            progress.on_message(f"  {point}")
            if point.stopped_by == "interrupted":
                break
        else:
            found = replace(found, stopped="done")
    if not found.points:
        first_out = found.excluded[0]
        where = str(first_out.shape)
        raise StudyError("none of the shapes could be measured", where=where, why=first_out.why, hint="--budget 1h")
    _save(found, folder)
    return found


def _with_point(found: Shapes, point: ShapeTiming, *, seconds: float, system: SystemLoad) -> Shapes:
    points = (*found.points, point)
    return replace(found, points=points, seconds=seconds, system=system, warnings=tuple(shape_warnings(points, system)))


def _save(found: Shapes, folder: Path) -> None:
    """Beside the records of the study."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    SHAPES_FILE.write(folder, found)


def shape_grid(
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


def own_shape(loop: Loop) -> Shape:
    recipe = loop.recipe
    return Shape(width=config_width(loop.model), length=recipe.data.max_length, batch=recipe.batch.size)


class _Excluded(Exception):
    """A shape cannot be measured here; the others can."""


@dataclass(frozen=True, kw_only=True)
class ShapedArms:
    """What the arms of every shape are made from: the study, its task, and its model in all widths."""

    study: Study
    kind: type[nn.Module]
    configs: dict[int, Any]
    """By width."""
    prepared: TokenizedTask
    accelerator: Any
    folder: Path
    progress: Progress
    stop: StopRequest

    @classmethod
    def of(cls, own: Loop, study: Study, shapes: Sequence[Shape]) -> ShapedArms:
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
            configs={width: resize_config(own.model, width) for width in sorted({shape.width for shape in shapes})},
            prepared=own.prepared,
            accelerator=own.accelerator,
            folder=own.folder,
            progress=own.progress,
            stop=own.stop,
        )

    def loop(self, shape: Shape, name: str) -> Loop:
        """An arm of the study in this shape, with everything else as the study has it."""
        cell = first_cell(self.study, name)
        spec, config = resolve_cell(self.study, cell), self.configs[shape.width]
        recipe = replace(spec.recipe, batch=replace(spec.recipe.batch, size=shape.batch))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed_for(cell.seed, "weights"))
            model = self.kind(copy.deepcopy(config)).train()
        use_fast_dropout_(model)  # as in every training
        rows = random_rows(
            self.prepared,
            shape,
            number=_STEPS * recipe.batch.accumulate * shape.batch,
            vocab=config.vocab_size,
            random=np.random.default_rng(seed_for(cell.seed, "shapes")),
        )
        return Loop(
            replace(spec, recipe=recipe),
            prepared=replace(self.prepared, train=rows),
            applied=apply(model, spec.treatment, seed=cell.seed, keep_undo=False),
            accelerator=self.accelerator,
            folder=self.folder,
            progress=self.progress,
            stop=self.stop,
        )

    def measure(
        self, shape: Shape, *, precision: float, budget: float, seed: int, now: Callable[[], float]
    ) -> tuple[ShapeTiming, list[SystemSample]]:
        if budget <= 0:
            raise _Excluded("no time was left for it")
        self.accelerator.free_memory()  # of the shape before this one
        against = self.study.compare.baseline
        try:
            self._check_memory(shape)
            loops = {name: self.loop(shape, name) for name in self.study.arms}
            taken = run_interleaved(
                {name: Stepper(loop, now=now) for name, loop in loops.items()},
                pairs=baseline_pairs(self.study),
                precision=precision,
                budget=budget,
                seed=seed,
                progress=self.progress,
                stop=self.stop,
                now=now,
            )
        except StudyError as error:  # there is no time for one round
            raise _Excluded(str(error).partition("\n")[0]) from error
        except (RuntimeError, MemoryError) as error:
            if not is_out_of_memory(error):
                raise
            raise _Excluded("its arms do not fit into memory together") from error
        work = {name: count_step_work(loop, shape.length) for name, loop in loops.items()}
        measured = BenchMeasurement(taken=taken, work=work, device=self.accelerator.device.type)
        point = ShapeTiming(
            shape=shape,
            layers=num_layers(loops[against].model),
            rounds=len(taken.samples),
            stopped_by=taken.stopped_by,
            arms=measured.timings(against, seed=seed, peaks={}),
        )
        return point, taken.samples

    def _check_memory(self, shape: Shape) -> None:
        """By weights, gradients and moments: what activations need is seen when they are there."""
        one = theoretical_memory(meta_model(self.kind, self.configs[shape.width]))
        why = reason_to_isolate([one] * len(self.study.arms), device=self.accelerator.device.type)
        if why is not None:
            raise _Excluded(why)


def random_rows(like: TokenizedTask, shape: Shape, *, number: int, vocab: int, random: np.random.Generator) -> Split:
    """So many rows of random tokens, each as long as the shape says, in the form of a task's training split."""
    if isinstance(like.train, Windows):
        tokens = random.integers(vocab, size=number * shape.length + 1)
        return Windows(tokens=tokens, length=shape.length, end=0)
    tokens = random.integers(vocab, size=number * shape.length, dtype=np.int32)
    return Examples(
        tokens=tokens,
        types=None if like.train.types is None else np.zeros(len(tokens), dtype=np.int8),
        offsets=np.arange(number + 1) * shape.length,
        labels=random.integers(len(like.task.labels), size=number),
        rows=np.arange(number),
    )


# -- the command ---------------------------------------------------------------------------------------------------


def parse_sizes(text: str | None, option: str) -> list[int] | None:
    """Positive integers with a comma between two of them; each once, from the smallest."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not re.fullmatch(r"0*[1-9][0-9]{0,8}", part)), None)
    if wrong is not None:
        raise StudyError(
            f"invalid sizes: --{option} '{text}'",
            why=f"'{wrong}' is not a positive integer" if wrong else "there is nothing between two commas",
            hint=f"--{option} 64,128",
        )
    return sorted({int(part) for part in parts})


def parse_options(argv: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("study", help="a file, or the name of a shipped study")
    parser.add_argument("--arms", help="only these, and the baseline: oelm-freeze")
    parser.add_argument("--widths", help="256,512,768")
    parser.add_argument("--lengths", help="in tokens: 64,128")
    parser.add_argument("--batches", help="8,32")
    parser.add_argument("--precision", type=float, default=0.01, help="half-width of the interval (%(default)g)")
    parser.add_argument("--budget", type=float, default=300.0, help="seconds for all shapes (%(default)g)")
    parser.add_argument("--seed", type=int, default=0, help="of the order of the arms")
    parser.add_argument("--set", action="append", default=[], dest="overrides", help="recipe.optimizer.lr=1e-4")
    parser.add_argument("--out", type=Path, default=Path(RUNS), help="folder of the runs (%(default)s)")
    parser.add_argument("--draw", action="store_true", help="measure nothing; draw the figure of what was measured")
    return parser.parse_args(argv)


def main(argv: Sequence[str] | None = None) -> int:
    """The exit code: 2 for what a user can mend, 130 after Ctrl-C."""
    options = parse_options(argv)
    try:
        return _run(options)
    except Stopped as error:
        sys.stderr.write(f"{error}\n")
        return 128 + error.signal
    except OelmError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        return 2


def _run(options: argparse.Namespace) -> int:
    sizes = {name: parse_sizes(getattr(options, name), name) for name in ("widths", "lengths", "batches")}
    study = load_study(options.study, options.overrides)
    folder = options.out / study.name
    if options.draw:
        print(f"Figure:       {draw_shapes(study, folder)}")
        return 0
    arms = None if options.arms is None else [name.strip() for name in options.arms.split(",") if name.strip()]
    common = {name: getattr(options, name) for name in ("precision", "budget", "seed", "out")}
    progress = LineProgress(1, lambda text: print(text, file=sys.stderr, flush=True))
    found = bench_shapes(study, arms=arms, **sizes, **common, progress=progress)
    print(f"{found}\n\nMeasurements: {folder / SHAPES_FILE.name}\nFigure:       {draw_shapes(study, folder)}")
    return 130 if found.stopped == "interrupted" else 0


if __name__ == "__main__":
    sys.exit(main())
