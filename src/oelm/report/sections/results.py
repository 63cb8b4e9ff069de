"""The results: every arm, every cell with its record, and how each difference was estimated."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from statistics import fmean

from oelm.analysis.evidence import difference_estimate, judged_values
from oelm.analysis.results import Results
from oelm.format import DASH, format_number, format_percent, format_step_time
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
    make_row,
    make_table,
    named_columns,
    number_cell,
    number_columns,
    text_cell,
    text_columns,
    verdict_cell,
)
from oelm.report.sections.provenance import record_path
from oelm.study.cells import Cell
from oelm.text.messages import list_texts, say


def results_section(results: Results) -> list[Block]:
    metric, against = results.study.compare.metric, results.study.compare.baseline
    difference = "relative" if find_metric(metric).relative else "difference"
    columns = [*text_columns("arm"), *number_columns("mean", metric=metric), *number_columns("interval", "n")]
    columns += [*number_columns(difference, against=against), *number_columns("deciding"), *text_columns("verdict")]
    columns += number_columns("kept", metric=metric, against=against) if _is_kept(results) else []
    columns += number_columns("kl", "trainable", "share", "step-time", "memory")
    columns += number_columns("lr-sensitivity") if results.study.tunes_lr else []
    blocks: list[Block] = [
        Prose(text=say("results-how", metric=metric, against=against)),
        make_table(columns, [_arm_row(results, arm) for arm in results.arms]),
        *_origins(results),
        *_all_metrics(results),
        *_trials(results),
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
    verdict = verdict_cell(one.verdict, one.remark) if one is not None else text_cell(DASH)
    share = results.trained_share(arm)
    return make_row(
        arm,
        number_cell(found.mean if found else None, format_number(found.mean) if found else "", href="#cells"),
        interval_cell(found.interval if found else None),
        number_cell(found.n if found else 0, f"{found.n if found else 0}"),
        number_cell(difference, f"{difference:+.4f}" if difference is not None else "", href="#cells"),
        deciding_cell(compared.shown_interval(compared.deciding) if compared else None, sign=True),
        say("word-against") if arm == against else verdict,
        *([_kept(results, arm)] if _is_kept(results) else []),
        _kl_cell(results, arm),
        _mean(results, arm, "trainable", lambda value: f"{value:,.0f}"),
        number_cell(share, format_percent(share) if share is not None else ""),
        _mean(results, arm, "step_seconds", format_step_time),
        _mean(results, arm, "peak_memory", lambda value: f"{value / 1e9:.2f} GB"),
        *([_mean(results, arm, "lr_sensitivity", format_number)] if results.study.tunes_lr else []),
        arm=arm,
    )


def _origins(results: Results) -> list[Block]:
    """Both studies, where the arms start from models of another study: what each did there, and does here."""
    metric = results.study.compare.metric
    rows = []
    for arm in results.arms:
        started = [record.start for record in results.of(arm).values() if record.start is not None]
        origins = [start.origin for start in started if start.origin is not None]
        if not origins:
            continue
        first, found = origins[0], results.mean(arm, metric)
        losses = [loss for one in origins if (loss := one.validation.get("loss")) is not None]
        loss, method = fmean(losses) if losses else None, results.study.arms[arm].method
        is_kept = any(record.frozen_roles != record.spec.treatment.frozen_roles for record in results.of(arm).values())
        rows.append(
            make_row(
                arm,
                first.spec.study,
                first.spec.arm,
                str(first.spec.treatment),
                number_cell(first.steps, f"{first.steps:,}"),
                number_cell(loss, format_number(loss) if loss is not None else ""),
                number_cell(len(origins), str(len(origins))),
                say("origin-frozen", method=method) if is_kept else method,
                number_cell(found.mean if found else None, format_number(found.mean) if found else ""),
                arm=arm,
            )
        )
    if not rows:
        return []
    columns = [*text_columns("arm", "origin-study", "origin-arm", "origin-treatment")]
    columns += [*number_columns("origin-steps", "origin-loss", "n"), *text_columns("origin-method")]
    columns += number_columns("mean", metric=metric)
    return [Prose(text=say("origins-how")), make_table(columns, rows)]


def _is_kept(results: Results) -> bool:
    """Whether a share of the baseline's quality says something: more is better, and 0 is nothing."""
    return find_metric(results.study.compare.metric).is_share


def _kept(results: Results, arm: str) -> TableCell:
    compare = results.study.compare
    own, base = (results.mean(name, compare.metric) for name in (arm, compare.baseline))
    kept = own.mean / base.mean if own is not None and base is not None and base.mean else None
    return number_cell(kept, f"{100 * kept:.1f} %" if kept is not None else "")


def _all_metrics(results: Results) -> list[Block]:
    """Every metric on every test split: what the arms reach, and what they differ by."""
    against = results.study.compare.baseline
    metrics = list(dict.fromkeys(name for names in results.measured.values() for name in names))
    if len(metrics) < 2 and len(results.measured) < 2:
        return []
    columns = [*text_columns("arm", "split"), *named_columns(*metrics)]
    places = [(arm, split) for arm in results.arms for split in results.measured]
    levels = [
        make_row(arm, split, *(_level_cell(results, arm, metric, split) for metric in metrics), arm=arm)
        for arm, split in places
    ]
    apart = [
        make_row(arm, split, *(_difference_cell(results, arm, metric, split) for metric in metrics), arm=arm)
        for arm, split in places
        if arm != against and against in results.arms
    ]
    blocks: list[Block] = [Prose(text=say("metrics-how")), make_table(columns, levels)]
    if apart:
        inside = (Prose(text=say("metrics-apart-how")), make_table(columns, apart))
        blocks.append(Folded(summary=say("metrics-apart", against=against), blocks=inside))
    return blocks


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


def _kl_cell(results: Results, arm: str) -> TableCell:
    """How far attention is from that of the untreated model, at the start and at the end of training."""
    start, final = (list(results.attention_kl(arm, moment).values()) for moment in ("start", "final"))
    shown = " \u2192 ".join(f"{fmean(some):.3g}" if some else DASH for some in (start, final))
    return number_cell(fmean(start) if start else None, shown if start else "")


def _trials(results: Results) -> list[Block]:
    """What the tuning of every arm has cost: an arm is no cheaper than that."""
    seconds = {
        arm: [record.seconds.get("training", 0.0) for cell, record in results.tuning.items() if cell.arm == arm]
        for arm in results.arms
    }
    said = [say("arm-trials", arm=arm, seconds=sum(some), n=len(some)) for arm, some in seconds.items() if some]
    return [Prose(text=say("cells-trials", trials=list_texts(said)))] if said else []


def _cells(results: Results) -> Table:
    """Every cell, with a link to its record and everything that was measured of its final model."""
    primary = results.study.compare.metric
    measured = [(split, metric) for split, metrics in results.measured.items() for metric in metrics]
    several = len(results.measured) > 1
    columns = [*text_columns("arm"), *number_columns("seed"), *text_columns("status")]
    for split, metric in measured:
        columns += number_columns("final-split" if several else "final", metric=metric, split=split)
    columns += number_columns("best", metric=primary)
    columns += number_columns("lr", "step-time", "training", "memory")
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
            row = make_row(
                text_cell(arm, href=href),
                number_cell(seed, str(seed), href=href),
                say(f"status-{record.status}"),
                *(_seed_cell(by_seed, seed, format_number, href=href) for by_seed in (*finals, best)),
                number_cell(lr, f"{lr:g}" if lr is not None else ""),
                _seed_cell(steps, seed, format_step_time),
                _seed_cell(training, seed, lambda value: f"{value:,.0f} s"),
                _seed_cell(memory, seed, lambda value: f"{value / 1e9:.2f} GB"),
                arm=arm,
            )
            rows.append(row)
    return make_table(columns, rows)


def _seed_cell(
    by_seed: Mapping[int, float], seed: int, show: Callable[[float], str], *, href: str | None = None
) -> TableCell:
    value = by_seed.get(seed)
    return number_cell(value, show(value) if value is not None else "", href=href)


def _statistics(results: Results) -> list[Block]:
    found = list(results.comparisons.values())
    columns = [*text_columns("arm"), *number_columns("n", "mean-difference")]
    columns += number_columns("over-seeds", "bootstrap", "over-examples", "over-both", "se-seeds", "se-examples")
    columns += number_columns("p-differs", "p-equivalent", "detectable", "seeds-needed")
    rows = []
    for one in found:
        paired, both, needed = one.differences, one.examples, one.seeds_needed
        intervals = [one.over_seeds if paired else None, one.bootstrap, one.over_examples]
        intervals += [one.interval if both is not None else None]
        shown = [one.shown_interval(interval) if interval is not None else None for interval in intervals]
        row = make_row(
            one.arm,
            number_cell(one.n, str(one.n)),
            number_cell(one.estimate.mean if paired else None, f"{one.shown(one.estimate.mean):+.4f}"),
            *(interval_cell(interval, sign=True) for interval in shown),
            finite_cell(both.seed_se if both is not None else one.estimate.seeds.se, ".4f"),
            finite_cell(one.estimate.examples.se if one.estimate.examples is not None else None, ".4f"),
            finite_cell(one.p_differs if paired else None, ".3g"),
            finite_cell(one.p_equivalent if paired else None, ".3g"),
            finite_cell(one.shown(one.detectable), ".4f"),
            number_cell(needed, str(needed)),
            arm=one.arm,
        )
        rows.append(row)
    blocks: list[Block] = [Prose(text=say("statistics-how")), make_table(columns, rows)]
    tests = [
        make_row(
            one.arm,
            number_cell(seed, str(seed)),
            *(number_cell(count, f"{count:,}") for count in (test.both, test.only_a, test.only_b, test.neither)),
            number_cell(test.p, f"{test.p:.3g}"),
            arm=one.arm,
        )
        for one in found
        for seed, test in one.mcnemar.items()
    ]
    if tests:
        against = results.study.compare.baseline
        columns = [*text_columns("arm"), *number_columns("seed", "both-right", "only-arm")]
        columns += [*number_columns("only-against", against=against), *number_columns("neither"), *named_columns("p")]
        blocks += [Prose(text=say("mcnemar-how")), make_table(columns, tests)]
    return blocks
