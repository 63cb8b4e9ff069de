"""The results: every arm, every cell with its record, and how each difference was estimated."""

from __future__ import annotations

from collections.abc import Callable
from statistics import fmean

from oelm.analysis.results import Results
from oelm.format import DASH, format_number, format_step_time
from oelm.metrics import find_metric
from oelm.report.blocks import (
    Block,
    Folded,
    Prose,
    Table,
    TableCell,
    TableRow,
    finite_cell,
    interval_cell,
    make_table,
    number_cell,
    text_cell,
)
from oelm.report.sections.provenance import record_path
from oelm.study.cells import Cell
from oelm.text.messages import say, untranslated


def results_section(results: Results) -> list[Block]:
    metric, against = results.study.compare.metric, results.study.compare.baseline
    difference = "column-relative" if find_metric(metric).relative else "column-difference"
    columns = [
        (say("column-arm"), False),
        (say("column-mean", metric=metric), True),
        (say("column-interval"), True),
        (say("column-n"), True),
        (say(difference, against=against), True),
        (say("column-interval"), True),
        (say("column-verdict"), False),
        (say("column-trainable"), True),
        (say("column-step-time"), True),
        (say("column-memory"), True),
        *([(say("column-lr-sensitivity"), True)] if results.study.tunes_lr else []),
    ]
    blocks: list[Block] = [
        Prose(text=say("results-how", metric=metric, against=against)),
        make_table(columns, [_arm_row(results, arm) for arm in results.arms]),
        Folded(summary=say("results-cells", n=len(results.records)), blocks=(_cells(results),), name="cells"),
    ]
    if results.comparisons:
        blocks.append(Folded(summary=say("statistics"), blocks=tuple(_statistics(results))))
    return blocks


def _arm_row(results: Results, arm: str) -> TableRow:
    metric, against = results.study.compare.metric, results.study.compare.baseline
    found, one = results.mean(arm, metric), results.comparisons.get(arm)
    compared = one if one is not None and one.differences else None
    difference = compared.shown(compared.estimate.mean) if compared else None
    return TableRow(
        arm=arm,
        cells=(
            text_cell(arm),
            number_cell(found.mean if found else None, format_number(found.mean) if found else "", href="#cells"),
            interval_cell(found.interval if found else None),
            number_cell(found.n if found else 0, f"{found.n if found else 0}"),
            number_cell(difference, f"{difference:+.4f}" if difference is not None else "", href="#cells"),
            interval_cell(compared.shown_interval() if compared else None, sign=True),
            text_cell(say("word-against"))
            if arm == against
            else text_cell(say(f"word-{one.verdict}"), badge=one.verdict)
            if one is not None
            else text_cell(DASH),
            _mean(results, arm, "trainable", lambda value: f"{value:,.0f}"),
            _mean(results, arm, "step_seconds", format_step_time),
            _mean(results, arm, "peak_memory", lambda value: f"{value / 1e9:.2f} GB"),
            *([_mean(results, arm, "lr_sensitivity", format_number)] if results.study.tunes_lr else []),
        ),
    )


def _mean(results: Results, arm: str, metric: str, show: Callable[[float], str]) -> TableCell:
    values = list(results.values(arm, metric).values())
    mean = fmean(values) if values else None
    return number_cell(mean, show(mean) if mean is not None else "")


def _cells(results: Results) -> Table:
    """Every cell, with a link to its record."""
    metric = results.study.compare.metric
    columns = [
        (say("column-arm"), False),
        (say("column-seed"), True),
        (say("column-status"), False),
        (say("column-final", metric=metric), True),
        (say("column-best", metric=metric), True),
        (say("column-lr"), True),
        (say("column-step-time"), True),
        (say("column-training"), True),
        (say("column-memory"), True),
    ]
    by_metric = {
        (arm, name): results.values(arm, name)
        for arm in results.arms
        for name in (metric, "step_seconds", "training_seconds", "peak_memory")
    }
    best_models = {arm: results.values(arm, metric, model="best") for arm in results.arms}
    rows = []
    for arm in results.arms:
        for seed, record in results.of(arm).items():
            final, best = by_metric[arm, metric].get(seed), best_models[arm].get(seed)
            step, training = by_metric[arm, "step_seconds"].get(seed), by_metric[arm, "training_seconds"].get(seed)
            memory, lr = by_metric[arm, "peak_memory"].get(seed), record.spec.recipe.optimizer.lr
            href = record_path(Cell(arm=arm, seed=seed))
            cells = (
                text_cell(arm),
                number_cell(seed, str(seed), href=href),
                text_cell(say(f"status-{record.status}")),
                number_cell(final, format_number(final) if final is not None else "", href=href),
                number_cell(best, format_number(best) if best is not None else "", href=href),
                number_cell(lr, f"{lr:g}" if lr is not None else ""),
                number_cell(step, format_step_time(step) if step is not None else ""),
                number_cell(training, f"{training:,.0f} s" if training is not None else ""),
                number_cell(memory, f"{memory / 1e9:.2f} GB" if memory is not None else ""),
            )
            rows.append(TableRow(arm=arm, cells=cells))
    return make_table(columns, rows)


def _statistics(results: Results) -> list[Block]:
    found = list(results.comparisons.values())
    columns = [(say("column-arm"), False), (say("column-n"), True), (say("column-mean-difference"), True)]
    columns += [(say(f"column-{name}"), True) for name in ("over-seeds", "bootstrap", "over-examples", "over-both")]
    columns += [(say(f"column-{name}"), True) for name in ("se-seeds", "se-examples", "p-differs", "p-equivalent")]
    columns += [(say(f"column-{name}"), True) for name in ("detectable", "seeds-needed")]
    rows = []
    for one in found:
        paired = one.differences
        both = one.examples
        needed = one.seeds_needed
        rows.append(
            TableRow(
                arm=one.arm,
                cells=(
                    text_cell(one.arm),
                    number_cell(one.n, str(one.n)),
                    number_cell(one.estimate.mean if paired else None, f"{one.shown(one.estimate.mean):+.4f}"),
                    *(
                        interval_cell(one.shown_interval(interval) if interval is not None else None, sign=True)
                        for interval in (
                            one.over_seeds if paired else None,
                            one.bootstrap,
                            one.over_examples,
                            one.interval if both is not None else None,
                        )
                    ),
                    finite_cell(both.seed_se if both is not None else one.estimate.seeds.se, ".4f"),
                    finite_cell(one.estimate.examples.se if one.estimate.examples is not None else None, ".4f"),
                    finite_cell(one.p_differs if paired else None, ".3g"),
                    finite_cell(one.p_equivalent if paired else None, ".3g"),
                    finite_cell(one.shown(one.detectable), ".4f"),
                    number_cell(needed, str(needed)),
                ),
            )
        )
    blocks: list[Block] = [Prose(text=say("statistics-how")), make_table(columns, rows)]
    tests = [
        TableRow(
            arm=one.arm,
            cells=(
                text_cell(one.arm),
                number_cell(seed, str(seed)),
                *(number_cell(count, f"{count:,}") for count in (test.both, test.only_a, test.only_b, test.neither)),
                number_cell(test.p, f"{test.p:.3g}"),
            ),
        )
        for one in found
        for seed, test in one.mcnemar.items()
    ]
    if tests:
        against = results.study.compare.baseline
        columns = [(say("column-arm"), False), (say("column-seed"), True), (say("column-both-right"), True)]
        columns += [(say("column-only-arm"), True), (say("column-only-against", against=against), True)]
        columns += [(say("column-neither"), True), (untranslated("p"), True)]
        blocks += [Prose(text=say("mcnemar-how")), make_table(columns, tests)]
    return blocks
