"""Times: the step times that `oelm bench` measured in turns, beside those of whole trainings."""

from __future__ import annotations

import math

from oelm.analysis.paired import from_seeds
from oelm.analysis.results import Results
from oelm.analysis.timed import (
    BENCH,
    PARTS,
    Timed,
    TimedArm,
    TimedMemory,
    TimedRatio,
    check_timed,
    rounds_told,
    timed_pair,
)
from oelm.data.tasks import TASKS
from oelm.records.store import STUDY
from oelm.report.plot import DASH
from oelm.report.sections import Block, Bullets, Cell, Prose, Row, number, table, words
from oelm.report.shown import finite
from oelm.study.recipe import Recipe
from oelm.words.text import Text, joined, plain, say

_CHECK = "SPEEDUP-ABOVE-CEILING"
_MIB = 2**20


def times(results: Results) -> list[Block]:
    bench = results.bench
    if bench is None:
        why = [say("times-left-out", why=one.why) for one in results.left_out if one.where == BENCH]
        study = f"{results.folder.name}/{STUDY}"
        return [Prose(text=say("times-none", study=study)), *_bullets([*why, *_shapes_said(results)])]
    blocks: list[Block] = [
        Prose(text=say("times-how")),
        table(_columns(bench.against), [_row(results, bench, name) for name in bench.arms]),
        Prose(text=_circumstances(bench, results.study.recipe)),
        *_bullets([*_said(results, bench), *_shapes_said(results)]),
    ]
    memories = {name: arm.memory for name, arm in bench.arms.items() if arm.memory is not None}
    if memories:
        columns = [(say("column-arm"), False)]
        columns += [(say(f"column-{name}"), True) for name in ("learning", "learning-theory", "checkpoint", "peak")]
        rows = [_memory_row(name, memory) for name, memory in memories.items()]
        blocks += [Prose(text=say("times-memory")), table(columns, rows)]
    return blocks


def _columns(against: str) -> list[tuple[Text, bool]]:
    columns = [
        (say("column-arm"), False),
        (say("column-step-time"), True),
        (say("column-ratio", against=against), True),
    ]
    columns += [(say(f"column-{part}"), True) for part in PARTS]
    return [*columns, *((say(f"column-{name}"), True) for name in ("at-best", "reached", "outliers", "whole-runs"))]


def _row(results: Results, bench: Timed, name: str) -> Row:
    arm = bench.arms[name]
    parts = [arm.ratios.get(part) for part in PARTS]
    return Row(
        arm=name,
        cells=(
            words(name),
            number(arm.step_seconds, f"{1000 * arm.step_seconds:.1f} ms"),
            _ratio(arm.step),
            *(finite(part.median if part is not None else None, ".3f") for part in parts),
            finite(1 - arm.ceiling if arm.ceiling is not None else None, ".4f"),
            _reached(bench, name, arm),
            number(arm.outliers, str(arm.outliers)),
            _whole_runs(results, name, bench.against),
        ),
    )


def _ratio(ratio: TimedRatio | None) -> Cell:
    if ratio is None:
        return number(None, "")
    interval = ratio.interval
    told = f" [{interval.low:.4f}, {interval.high:.4f}]" if interval is not None else f" [{DASH}]"
    return number(ratio.median, f"{ratio.median:.4f}{told}")


def _reached(bench: Timed, name: str, arm: TimedArm) -> Cell:
    """The share of what can be saved that was; more than all of it is no saving of freezing's."""
    if arm.reached is None:
        return number(None, "")
    pair = timed_pair(bench, name, bench.against)
    badge = "invalid" if pair is not None and pair.flags else None
    return Cell(text=plain(f"{arm.reached:.0%}"), sort=arm.reached, badge=badge)


def _whole_runs(results: Results, name: str, against: str) -> Cell:
    """The same ratio from the step times of the records, paired by seed."""
    one, other = ({} if arm not in results.arms else results.values(arm, "step_seconds") for arm in (name, against))
    logs = [math.log(one[seed] / other[seed]) for seed in one if other.get(seed, 0) > 0 and one[seed] > 0]
    if name == against or not logs:
        return number(None, "")
    estimate = from_seeds(logs)
    interval = estimate.interval()
    told = f"{math.exp(estimate.mean):.4f}"
    if math.isfinite(interval.low) and not estimate.no_variation and interval.high < 700:
        told += f" [{math.exp(interval.low):.4f}, {math.exp(interval.high):.4f}]"
    return number(math.exp(estimate.mean), told)


def _bullets(said: list[Text]) -> list[Block]:
    return [Bullets(items=tuple(said))] if said else []


def _circumstances(bench: Timed, recipe: Recipe) -> Text:
    around, size = bench.surroundings, {"batch": bench.batch, "length": bench.length}
    told = [
        say("times-rounds", rounds=rounds_told(bench.rounds), seconds=bench.seconds, **size),
        say(f"times-{bench.stopped_by}", precision=bench.precision),
    ]
    if bench.apart is not None:
        told.append(say("times-apart", why=bench.apart))
    if bench.device is not None:
        told.append(say("times-device", name=bench.device))
    if around.cores is not None:
        told.append(say("times-cores", n=around.cores))
    if around.load is not None:
        told.append(say("times-load", low=around.load[0], high=around.load[1]))
    if around.others is not None:
        told.append(say("times-others", share=around.others))
    if _takes_loss_in_chunks(recipe):
        told.append(say("times-head"))
    return joined(told)


def _takes_loss_in_chunks(recipe: Recipe) -> bool:
    """As `train.objective` does; a model whose head is more than a linear map does not, which no recipe tells."""
    task = TASKS.get(recipe.data.task)
    text = task is not None and task.kind == "language-modelling"
    return text and recipe.precision == "fp32" and not recipe.compile


def _said(results: Results, bench: Timed) -> list[Text]:
    """What is wrong with them: by the checks, and in the bench's own words."""
    told = [say("times-flag", code=found.code, message=found.message) for found in check_timed(bench, results.compared)]
    own = [text for text in bench.warnings if not text.startswith(_CHECK)]
    return told + [say("times-warning", text=text) for text in own]


def _shapes_said(results: Results) -> list[Text]:
    """Which shapes are faster than freezing can make them."""
    against = results.study.compare.against
    messages = [
        say(
            "speedup-shape",
            width=one.width,
            length=one.length,
            batch=one.batch,
            arm=one.arm,
            against=against,
            saving=1 - one.ratio.median,
            ceiling=one.at_most,
        )
        for one in results.shapes
        if one.above_ceiling
    ]
    return [say("times-flag", code=_CHECK, message=message) for message in messages]


def _memory_row(name: str, memory: TimedMemory) -> Row:
    checkpoint = memory.checkpoint.total if memory.checkpoint is not None else None
    theory = memory.theory.total if memory.theory is not None else None
    return Row(arm=name, cells=(words(name), *(_mib(one) for one in (memory.total, theory, checkpoint, memory.peak))))


def _mib(value: int | None) -> Cell:
    return number(value, f"{value / _MIB:,.1f} MiB" if value is not None else "")
