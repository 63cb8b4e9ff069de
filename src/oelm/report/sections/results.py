"""The results: every arm, every cell with its record, and how each difference was estimated."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean

from oelm.analysis.evidence import difference_estimate, judged_values
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
    deciding_cell,
    finite_cell,
    interval_cell,
    make_table,
    number_cell,
    text_cell,
    verdict_cell,
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
        (say("column-deciding"), True),
        (say("column-verdict"), False),
        (say("column-trainable"), True),
        (say("column-step-time"), True),
        (say("column-memory"), True),
        *([(say("column-lr-sensitivity"), True)] if results.study.tunes_lr else []),
    ]
    blocks: list[Block] = [
        Prose(text=say("results-how", metric=metric, against=against)),
        make_table(columns, [_arm_row(results, arm) for arm in results.arms]),
        *_all_metrics(results),
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
            deciding_cell(compared.shown_interval(compared.deciding) if compared else None, sign=True),
            text_cell(say("word-against"))
            if arm == against
            else verdict_cell(one.verdict, one.remark)
            if one is not None
            else text_cell(DASH),
            _mean(results, arm, "trainable", lambda value: f"{value:,.0f}"),
            _mean(results, arm, "step_seconds", format_step_time),
            _mean(results, arm, "peak_memory", lambda value: f"{value / 1e9:.2f} GB"),
            *([_mean(results, arm, "lr_sensitivity", format_number)] if results.study.tunes_lr else []),
        ),
    )


def _all_metrics(results: Results) -> list[Block]:
    """Every metric on every test split: what the arms reach, and what they differ by."""
    against = results.study.compare.baseline
    metrics = list(dict.fromkeys(name for names in results.measured.values() for name in names))
    if len(metrics) < 2 and len(results.measured) < 2:
        return []
    columns = [(say("column-arm"), False), (say("column-split"), False), *((untranslated(m), True) for m in metrics)]
    places = [(arm, split) for arm in results.arms for split in results.measured]
    levels = [_metric_row(arm, split, [_level_cell(results, arm, m, split) for m in metrics]) for arm, split in places]
    apart = [
        _metric_row(arm, split, [_difference_cell(results, arm, metric, split) for metric in metrics])
        for arm, split in places
        if arm != against and against in results.arms
    ]
    blocks: list[Block] = [Prose(text=say("metrics-how")), make_table(columns, levels)]
    if apart:
        inside = (Prose(text=say("metrics-apart-how")), make_table(columns, apart))
        blocks.append(Folded(summary=say("metrics-apart", against=against), blocks=inside))
    return blocks


def _metric_row(arm: str, split: str, cells: list[TableCell]) -> TableRow:
    return TableRow(arm=arm, cells=(text_cell(arm), text_cell(split), *cells))


def _level_cell(results: Results, arm: str, metric: str, split: str) -> TableCell:
    found = results.mean(arm, metric, split=split)
    if found is None:
        return number_cell(None, "")
    interval = interval_cell(found.interval).text.en
    return number_cell(found.mean, f"{format_number(found.mean)} {interval}")


def _difference_cell(results: Results, arm: str, metric: str, split: str) -> TableCell:
    against = results.study.compare.baseline
    one, other = (judged_values(results, name, metric, split=split) for name in (arm, against))
    seeds = [seed for seed in one if seed in other]
    if not seeds:
        return number_cell(None, "")
    found = difference_estimate(results, arm, against, metric, seeds, split=split)
    effect, interval = find_metric(metric).effect, found.interval()
    shown = replace(interval, low=effect(interval.low), high=effect(interval.high))
    return number_cell(effect(found.mean), f"{effect(found.mean):+.4f} {interval_cell(shown, sign=True).text.en}")


def _mean(results: Results, arm: str, metric: str, show: Callable[[float], str]) -> TableCell:
    values = list(results.values(arm, metric).values())
    mean = fmean(values) if values else None
    return number_cell(mean, show(mean) if mean is not None else "")


def _cells(results: Results) -> Table:
    """Every cell, with a link to its record and everything that was measured of its final model."""
    primary = results.study.compare.metric
    measured = [(split, metric) for split, metrics in results.measured.items() for metric in metrics]
    several = len(results.measured) > 1
    columns = [(say("column-arm"), False), (say("column-seed"), True), (say("column-status"), False)]
    columns += [
        (say("column-final-split" if several else "column-final", metric=metric, split=split), True)
        for split, metric in measured
    ]
    columns += [(say("column-best", metric=primary), True), (say("column-lr"), True), (say("column-step-time"), True)]
    columns += [(say("column-training"), True), (say("column-memory"), True)]
    rows = []
    for arm in results.arms:
        finals = [results.values(arm, metric, split=split) for split, metric in measured]
        best = results.values(arm, primary, model="best")
        steps, training, memory = (
            results.values(arm, name) for name in ("step_seconds", "training_seconds", "peak_memory")
        )
        for seed, record in results.of(arm).items():
            href = record_path(Cell(arm=arm, seed=seed))
            lr = record.spec.recipe.optimizer.lr
            cells = (
                text_cell(arm, href=href),
                number_cell(seed, str(seed), href=href),
                text_cell(say(f"status-{record.status}")),
                *(_seed_cell(by_seed, seed, format_number, href=href) for by_seed in (*finals, best)),
                number_cell(lr, f"{lr:g}" if lr is not None else ""),
                _seed_cell(steps, seed, format_step_time),
                _seed_cell(training, seed, lambda value: f"{value:,.0f} s"),
                _seed_cell(memory, seed, lambda value: f"{value / 1e9:.2f} GB"),
            )
            rows.append(TableRow(arm=arm, cells=cells))
    return make_table(columns, rows)


def _seed_cell(
    by_seed: Mapping[int, float], seed: int, show: Callable[[float], str], *, href: str | None = None
) -> TableCell:
    value = by_seed.get(seed)
    return number_cell(value, show(value) if value is not None else "", href=href)


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
