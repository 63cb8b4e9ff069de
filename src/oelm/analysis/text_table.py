"""Results as a text table for a terminal, and as plain data for a script."""

from __future__ import annotations

import math
import statistics

from oelm.analysis.change import what_would_change
from oelm.analysis.checks.lock import CODE as CHANGED
from oelm.analysis.checks.registry import Issue, format_issues
from oelm.analysis.evidence import ArmMean, SeedOutcomes
from oelm.analysis.hypotheses import JudgedHypothesis
from oelm.analysis.observed_design import merge_seeds
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import Interval
from oelm.analysis.verdicts import Comparison, exploratory_arms
from oelm.format import finite_or_none, format_columns, format_duration, format_interval, format_percent
from oelm.metrics import find_metric
from oelm.study.study import format_overrides

_SEEDS_SHOWN = 8
_DECIDES = "interval that decides"
_PAIRED = "Arms of one seed started from the same other weights and saw the same batches."
_PAIRED_BY_BATCHES = "Arms of one seed saw the same batches; from one model of the first study, they started alike."


def format_results(results: Results) -> str:
    """The table of the arms, what each comparison says, and what is wrong with them."""
    study = results.study
    lines = [f"{study.name}: {study.compare.metric}, {study.compare.direction} is better", ""]
    changed = format_issues(lock_issues(results))
    lines += [*changed, ""] if changed else []
    lines += _validation_table(results) if results.sealed is not None else _table(results)
    parts = [_by_seed(results), _verdicts(results), _checks(results), [str(one) for one in results.hypotheses]]
    parts += [_changes(results), _also_measured(results), _remarks(results)]
    for part in parts:
        lines += ["", *part] if part else []
    return "\n".join(lines)


def lock_issues(results: Results) -> list[Issue]:
    """What must be known before any number is looked at: how the study departs from what was planned."""
    return [one for one in results.checks if one.code == CHANGED]


def _validation_table(results: Results) -> list[str]:
    """What there is to see of a study that is not complete."""
    metric = results.study.compare.metric
    rows = [("arm", "trainable", "share", "n", f"{metric}, validation", "spread")]
    for arm in results.arms:
        values = list(_validation(results, arm).values())
        mean = f"{statistics.fmean(values):.4f}" if values else "-"
        spread = f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-"
        rows.append((arm, *_counts(results, arm), str(len(values)), mean, spread))
    return [str(results.sealed), "", *format_columns(rows, left=("arm",))]


def _validation(results: Results, arm: str) -> dict[int, float]:
    """By seed, of the last step on the validation split."""
    measured = {seed: r.last_evaluation.get(results.study.compare.metric) for seed, r in results.of(arm).items()}
    return {seed: value for seed, value in measured.items() if value is not None and math.isfinite(value)}


def _table(results: Results) -> list[str]:
    metric, against = results.study.compare.metric, results.study.compare.baseline
    difference, interval = f"final - {against}", "95 % interval"
    titles = ("arm", "trainable", "share", "n", f"{metric}, final", interval, "spread", "best", difference)
    rows = [(*titles, _DECIDES, "verdict")]
    for arm in results.arms:
        counted = results.counted(arm)
        values = [value for seed, value in results.values(arm, metric).items() if seed in counted]
        final, best = results.mean(arm, metric), results.mean(arm, metric, model="best")
        one = results.comparisons.get(arm)
        rows.append(
            (
                arm,
                *_counts(results, arm),
                str(len(values)),
                f"{final.mean:.4f}" if final is not None else "-",
                format_interval(final.interval.low, final.interval.high) if final is not None else "-",
                f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-",
                f"{best.mean:.4f}" if best is not None else "-",
                _difference(one),
                _deciding(one),
                _verdict(one),
            )
        )
    return format_columns(rows, left=("arm", interval, _DECIDES, "verdict"))


def _difference(one: Comparison | None) -> str:
    return "" if one is None or not one.differences else f"{one.shown(one.estimate.mean):+.4f}"


def _deciding(one: Comparison | None) -> str:
    if one is None or not one.differences:
        return ""
    shown = one.shown_interval(one.deciding)
    interval = format_interval(shown.low, shown.high, sign="+")
    return f"{interval} ({100 * shown.level:.4g} %)" if math.isfinite(shown.low) else interval


def _verdict(one: Comparison | None) -> str:
    if one is None:
        return ""
    return f"{one.verdict} ({one.remark})" if one.remark is not None else one.verdict


def _also_measured(results: Results) -> list[str]:
    """Other metrics and other test splits than the one that is compared."""
    metrics = tuple(dict.fromkeys(name for names in results.measured.values() for name in names))
    if len(metrics) < 2 and len(results.measured) < 2:
        return []
    rows = [("arm", "test split", *metrics)]
    for arm in results.arms:
        for split in results.measured:
            found = [results.mean(arm, name, split=split) for name in metrics]
            rows.append((arm, split, *(_with_interval(one) if one is not None else "-" for one in found)))
    return ["All metrics of the final models, with 95 % intervals:", *format_columns(rows, left=("arm", "test split"))]


def _with_interval(one: ArmMean) -> str:
    low, high = one.interval.low, one.interval.high
    return f"{one.mean:.4f}" + (f" ({format_interval(low, high)})" if math.isfinite(high - low) else "")


def _changes(results: Results) -> list[str]:
    found = what_would_change(results)
    return (
        ["What would change it:", *(f"  {', '.join(one.about) or 'all'}: {one.message}" for one in found)]
        if found
        else []
    )


def _counts(results: Results, arm: str) -> tuple[str, str]:
    """Weights that learn, and their share of all."""
    numbers, share = results.values(arm, "trainable"), results.trained_share(arm)
    return f"{next(iter(numbers.values())):,.0f}" if numbers else "", format_percent(share) if share is not None else ""


def _by_seed(results: Results) -> list[str]:
    lines = []
    for arm, one in results.comparisons.items():
        shown = list(one.differences.items())[:_SEEDS_SHOWN]
        named = [f"{seed}: {one.shown(difference):+.4f}" for seed, difference in shown]
        more = [f"and {one.n - _SEEDS_SHOWN} more"] if one.n > _SEEDS_SHOWN else []
        if named:
            lines.append(f"{arm} - {one.against}, by seed  {'  '.join([*named, *more])}")
    return lines


def _verdicts(results: Results) -> list[str]:
    """Those that the table does not explain: what one test alone would have found, or seeds that failed."""
    found = results.comparisons.values()
    odd = [one for one in found if one.verdict == "inconclusive" and one.n > 1 and not one.interval.contains(0)]
    odd += [one for one in found if one not in odd and any(outcome.failed for outcome in one.outcomes)]
    lines = [str(one) for one in odd]
    for reason, arms in exploratory_arms(found).items():
        which = "These verdicts are exploratory" if len(arms) == len(found) else f"Exploratory for {', '.join(arms)}"
        lines.append(f"{which}: {reason}.")
    return lines


def _checks(results: Results) -> list[str]:
    first = lock_issues(results)
    return format_issues([one for one in results.checks if one not in first]) or ["no check fired"]


def _remarks(results: Results) -> list[str]:
    lines = [f"excluded: {out}" for out in results.excluded]
    for arm in results.arms:
        for seed, record in results.of(arm).items():
            if record.status != "done":
                why = record.error.first_line if record.error is not None else ""
                lines.append(f"{arm} seed {seed}: {record.status} ({why or 'no reason given'})")
        tuned, overrides = results.tuned(arm), results.study.arms[arm].overrides
        if tuned:
            named = ", ".join(f"{path} = {merge_seeds(values)}" for path, values in tuned.items())
            lines.append(f"{arm}: tuned to {named}")
            sensitivity = results.mean(arm, "lr_sensitivity")
            if sensitivity is not None:
                shown = format_interval(sensitivity.interval.low, sensitivity.interval.high)
                lines.append(f"{arm}: LR sensitivity {sensitivity.mean:.4f} {shown}")
        if overrides:
            lines.append(f"{arm}:{format_overrides(overrides)}")
    if len(results.arms) > 1 and not any(issue.code == "UNPAIRED" for issue in results.checks):
        apart = len({side.origin for side in results.design.sides.values()}) > 1
        lines.append(_PAIRED_BY_BATCHES if apart else _PAIRED)
    if results.study.compare.baseline not in results.arms:
        lines.append(f"No differences: {results.study.compare.baseline} is not among these arms.")
    lines += [f"note: {note}" for note in results.study.notes]
    hours = sum(sum(record.seconds.values()) for record in results.records.values())
    lines.append("spread: standard deviation over seeds. Intervals: over seeds and, where they were kept, examples;")
    lines.append("those of metrics that are no mean of examples, such as F1, over seeds alone.")
    lines.append(f"{format_duration(hours)} of training and measuring.")
    return lines


def results_as_dict(results: Results) -> dict[str, object]:
    """Everything that the table and its remarks are made from, for scripts: numbers, with their sentences as `text`."""
    study = results.study
    metric = study.compare.metric
    arms = {}
    for arm in results.arms:
        one, found = results.comparisons.get(arm), results.mean(arm, metric)
        arms[arm] = {
            "treatment": study.arms[arm].treatment.to_dict(),
            "adapter": adapter.to_dict() if (adapter := study.arms[arm].adapter) is not None else None,
            "trains": study.arms[arm].trains,
            "overrides": study.arms[arm].overrides,
            "tuned": results.tuned(arm),
            "trainable": next(iter(results.values(arm, "trainable").values()), None),
            "status": {seed: record.status for seed, record in results.of(arm).items()},
            "validation": _validation(results, arm),
            "final": results.values(arm, metric),
            "best": results.values(arm, metric, model="best"),
            "mean": found.mean if found is not None else None,
            "interval": _as_list(found.interval) if found is not None else None,
            "measured": {split: _measured(results, arm, split) for split in results.measured},
            "lr_sensitivity": results.values(arm, "lr_sensitivity"),
            "differences": {seed: one.shown(d) for seed, d in one.differences.items()} if one is not None else {},
            "comparison": comparison_as_dict(one) if one is not None else None,
        }
    return {
        "study": study.name,
        "metric": metric,
        "better": study.compare.direction,
        "against": study.compare.baseline,
        "notes": list(study.notes),
        "sealed": None if results.sealed is None else {**results.sealed.to_dict(), "text": str(results.sealed)},
        "arms": arms,
        "checks": [issue.to_dict() for issue in results.checks],
        "hypotheses": [_hypothesis_as_dict(one) for one in results.hypotheses],
        "what_would_change": [change.to_dict() for change in what_would_change(results)],
        "excluded": [{"where": out.where, **out.why.to_dict(), "text": str(out.why)} for out in results.excluded],
    }


def _measured(results: Results, arm: str, split: str) -> dict[str, object]:
    """Of the final models, every metric of a test split."""
    found: dict[str, object] = {}
    for metric in results.measured[split]:
        mean = results.mean(arm, metric, split=split)
        if mean is not None:
            by_seed = results.values(arm, metric, split=split)
            found[metric] = {"mean": mean.mean, "interval": _as_list(mean.interval), "by_seed": by_seed}
    return found


def comparison_as_dict(one: Comparison) -> dict[str, object]:
    """A verdict with everything that it rests on."""
    data = {
        "arm": one.arm,
        "against": one.against,
        "metric": one.metric,
        "verdict": one.verdict,
        **one.message.to_dict(),
        "text": str(one),
        "n": one.n,
        "relative": find_metric(one.metric).relative,
        "estimate": one.shown(one.estimate.mean) if one.differences else None,
        "interval": _as_list(one.shown_interval()),
        "deciding_interval": _as_list(one.shown_interval(one.deciding)),
        "deciding_level": one.deciding.level,
        "remark": str(one.remark) if one.remark is not None else None,
        "over_seeds": _as_list(one.shown_interval(one.over_seeds)),
        "over_examples": _as_list(one.shown_interval(one.over_examples)) if one.over_examples is not None else None,
        "margin": one.shown(one.margin),
        "family": one.family,
        "alpha": one.alpha,
        "exploratory": one.exploratory is not None,
        "p_differs": one.p_differs,
        "p_equivalent": one.p_equivalent,
        "detectable": one.shown(one.detectable),
        "seeds_needed": one.seeds_needed,
        "survivors": one.survivors,
        "worst": one.worst_shown,
        "outcomes": [_outcome_as_dict(outcome) for outcome in one.outcomes],
        "issues": [issue.code for issue in one.issues],
        "lacks": list(one.lacks),
    }
    return finite_or_none(data)  # type: ignore[no-any-return]


def _hypothesis_as_dict(one: JudgedHypothesis) -> dict[str, object]:
    data = {
        "name": one.hypothesis.name,
        "statement": one.hypothesis.statement,
        "estimand": str(one.hypothesis.estimand),
        "rule": one.hypothesis.rule,
        "margin": one.hypothesis.margin,
        "status": one.status,
        **one.message.to_dict(),
        "text": str(one),
        "value": one.value,
        "interval": _as_list(one.interval),
        "deciding_interval": _as_list(one.deciding),
        "deciding_level": one.deciding.level if one.deciding is not None else None,
        "remark": str(one.remark) if one.remark is not None else None,
        "n": one.n,
        "timed": one.timed,
        "family": one.family,
        "alpha": one.alpha,
        "exploratory": one.exploratory is not None,
        "survivors": one.survivors,
        "worst": one.worst,
        "outcomes": [_outcome_as_dict(outcome) for outcome in one.outcomes],
        "p_supported": one.p_supported,
        "p_refuted": one.p_refuted,
        "issues": [issue.code for issue in one.issues],
        "lacks": list(one.lacks),
    }
    return finite_or_none(data)  # type: ignore[no-any-return]


def _outcome_as_dict(one: SeedOutcomes) -> dict[str, object]:
    return {
        "arm": one.arm,
        "planned": len(one.planned),
        "not_run": list(one.not_run),
        "failed": {seed: str(how) for seed, how in one.failed.items()},
        "failure_rate_at_most": one.rate_at_most,
    }


def _as_list(interval: Interval | None) -> list[float] | None:
    """None unless both ends are known."""
    if interval is None or not (math.isfinite(interval.low) and math.isfinite(interval.high)):
        return None
    return [interval.low, interval.high]
