"""Times: the step times that `oelm bench` measured in turns, beside those of whole trainings."""

import math

from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import from_seeds
from oelm.analysis.stats.timed_pairs import check_timed, count_rounds
from oelm.data.tasks import TASKS
from oelm.format import DASH
from oelm.message import Text
from oelm.report.blocks import (
    Block,
    Prose,
    TableCell,
    TableColumn,
    TableRow,
    bullets,
    finite_cell,
    make_row,
    make_table,
    number_cell,
    number_columns,
    text_columns,
)
from oelm.runs.bench import PARTS, ArmTiming, Bench, MeasuredMemory, Ratio
from oelm.runs.layout import BENCH, STUDY
from oelm.study.recipe import Recipe
from oelm.text.messages import join_texts, say, untranslated

_CHECK = "SPEEDUP-ABOVE-CEILING"
_MIB = 2**20


def times_section(results: Results) -> list[Block]:
    bench = results.bench
    if bench is None:
        why = [say("times-excluded", why=one.why) for one in results.excluded if one.where == BENCH]
        study = f"RUNS/{results.folder.name}/{STUDY}"
        return [Prose(text=say("times-none", study=study)), *bullets(why)]
    blocks: list[Block] = [
        Prose(text=say("times-how")),
        make_table(_columns(bench.against), [_row(results, bench, name) for name in bench.arms]),
        Prose(text=_circumstances(bench, results.study.recipe)),
        *bullets(_warnings(results, bench)),
    ]
    memories = {name: arm.memory for name, arm in bench.arms.items() if arm.memory is not None}
    if memories:
        columns = [*text_columns("arm"), *number_columns("learning", "learning-theory", "checkpoint", "peak")]
        rows = [_memory_row(name, memory) for name, memory in memories.items()]
        blocks += [Prose(text=say("times-memory")), make_table(columns, rows)]
    return blocks


def _columns(against: str) -> list[TableColumn]:
    columns = [*text_columns("arm"), *number_columns("step-time"), *number_columns("ratio", against=against)]
    return [*columns, *number_columns(*PARTS, "at-best", "reached", "outliers", "whole-runs")]


def _row(results: Results, bench: Bench, name: str) -> TableRow:
    arm = bench.arms[name]
    parts = [arm.ratios.get(part) for part in PARTS]
    return make_row(
        name,
        number_cell(arm.step_seconds, f"{1000 * arm.step_seconds:.1f} ms"),
        _ratio(arm.step),
        *(finite_cell(part.median if part is not None else None, ".3f") for part in parts),
        finite_cell(1 - arm.ceiling if arm.ceiling is not None else None, ".4f"),
        _reached(arm),
        number_cell(arm.outliers, str(arm.outliers)),
        _whole_runs(results, name, bench.against),
        arm=name,
    )


def _ratio(ratio: Ratio | None) -> TableCell:
    if ratio is None:
        return number_cell(None, "")
    interval = DASH if ratio.bounds is None else "{:.4f}, {:.4f}".format(*ratio.bounds)
    return number_cell(ratio.median, f"{ratio.median:.4f} [{interval}]")


def _reached(arm: ArmTiming) -> TableCell:
    """The share of what can be saved that was; freezing cannot save more than all of it."""
    if arm.reached is None:
        return number_cell(None, "")
    badge = "invalid" if arm.above_ceiling else None
    return TableCell(text=untranslated(f"{arm.reached:.0%}"), sort=arm.reached, badge=badge)


def _whole_runs(results: Results, name: str, against: str) -> TableCell:
    """The same ratio from the step times of the records, paired by seed."""
    one, other = ({} if arm not in results.arms else results.values(arm, "step_seconds") for arm in (name, against))
    logs = [math.log(one[seed] / other[seed]) for seed in one if other.get(seed, 0) > 0 and one[seed] > 0]
    if name == against or not logs:
        return number_cell(None, "")
    estimate = from_seeds(logs)
    interval = estimate.interval()
    text = f"{math.exp(estimate.mean):.4f}"
    if math.isfinite(interval.low) and not estimate.no_variation and interval.high < 700:
        text += f" [{math.exp(interval.low):.4f}, {math.exp(interval.high):.4f}]"
    return number_cell(math.exp(estimate.mean), text)


def _circumstances(bench: Bench, recipe: Recipe) -> Text:
    around, size = bench.system, {"batch": bench.batch, "length": bench.length}
    sentences = [
        say("times-rounds", rounds=count_rounds(bench.rounds), seconds=bench.seconds, **size),
        say(f"times-{bench.stopped_by}", precision=bench.precision),
    ]
    if bench.isolated is not None:
        sentences.append(say("times-isolated", why=bench.isolated))
    sentences += [say("times-device", name=bench.device), say("times-cores", n=around.cores)]
    if around.load is not None:
        sentences.append(say("times-load", low=around.load[0], high=around.load[1]))
    if around.others is not None:
        sentences.append(say("times-others", share=around.others))
    if _takes_loss_in_chunks(recipe):
        sentences.append(say("times-head"))
    return join_texts(sentences)


def _takes_loss_in_chunks(recipe: Recipe) -> bool:
    """As `train.objective` does; a model whose head is more than a linear map does not, which is not in the recipe."""
    task = TASKS.get(recipe.data.task)
    text = task is not None and task.kind == "language-modeling"
    return text and recipe.precision == "fp32" and not recipe.compile


def _warnings(results: Results, bench: Bench) -> list[Text]:
    """What is wrong with them: by the checks, and by the bench itself."""
    issues = [
        say("times-issue", code=found.code, message=found.message) for found in check_timed(bench, results.compared)
    ]
    own = [text for text in bench.warnings if not text.startswith(_CHECK)]
    return issues + [say("times-warning", text=text) for text in own]


def _memory_row(name: str, memory: MeasuredMemory) -> TableRow:
    theory = memory.theory.learning if memory.theory is not None else None
    sizes = (memory.learning, theory, memory.checkpoint.total, memory.peak)
    return make_row(name, *map(_mib, sizes), arm=name)


def _mib(value: int | None) -> TableCell:
    return number_cell(value, f"{value / _MIB:,.1f} MiB" if value is not None else "")
