"""Results as a text table for a terminal, and as plain data for a script."""

from __future__ import annotations

import math
import statistics

from oelm.analysis.checks.registry import format_issues
from oelm.analysis.failures import SeedOutcomes
from oelm.analysis.hypotheses import JudgedHypothesis
from oelm.analysis.observed_design import merge_seeds
from oelm.analysis.results import Results
from oelm.analysis.stats.estimate import Interval
from oelm.analysis.verdicts import Comparison
from oelm.format import finite_or_none, format_columns, format_duration, format_interval
from oelm.metrics import find_metric
from oelm.study.study import format_overrides

_SEEDS_SHOWN = 8


def format_results(results: Results) -> str:
    """The table of the arms, what each comparison says, and what is wrong with them."""
    study = results.study
    metric, against = study.compare.metric, study.compare.baseline
    difference = f"final - {against}"
    interval = "95 % interval"
    rows = [("arm", "trainable", "n", f"{metric}, final", interval, "spread", "best", difference, interval, "verdict")]
    for arm in results.arms:
        values = list(results.values(arm, metric).values())
        final, best = results.mean(arm, metric), results.mean(arm, metric, model="best")
        one = results.comparisons.get(arm)
        shown = one.shown_interval() if one is not None else None
        rows.append(
            (
                arm,
                _count(results, arm),
                str(len(values)),
                f"{final.mean:.4f}" if final is not None else "-",
                format_interval(final.interval.low, final.interval.high) if final is not None else "-",
                f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-",
                f"{best.mean:.4f}" if best is not None else "-",
                _difference(one),
                format_interval(shown.low, shown.high, sign="+") if shown is not None else "",
                one.verdict if one is not None else "",
            )
        )
    lines = [f"{study.name}: {metric}, {study.compare.direction} is better", ""]
    lines += format_columns(rows, left=("arm", "95 % interval", "verdict"))
    parts = [_by_seed(results), _verdicts(results), _checks(results)]
    parts += [[str(one) for one in results.hypotheses], _remarks(results)]
    for part in parts:
        lines += ["", *part] if part else []
    return "\n".join(lines)


def _difference(one: Comparison | None) -> str:
    return "" if one is None or not one.differences else f"{one.shown(one.estimate.mean):+.4f}"


def _count(results: Results, arm: str) -> str:
    numbers = results.values(arm, "trainable")
    return f"{next(iter(numbers.values())):,.0f}" if numbers else ""


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
    """Those that the table beside them does not explain: an interval of one test alone, or seeds that failed."""
    found = results.comparisons.values()
    odd = [one for one in found if one.verdict == "inconclusive" and one.n > 1 and not one.interval.contains(0)]
    odd += [one for one in found if one not in odd and any(outcome.failed for outcome in one.outcomes)]
    return [str(one) for one in odd]


def _checks(results: Results) -> list[str]:
    return format_issues(results.checks) or ["no check fired"]


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
        lines.append("Arms of one seed started from the same other weights and saw the same batches.")
    if results.study.compare.baseline not in results.arms:
        lines.append(f"No differences: {results.study.compare.baseline} is not among these arms.")
    lines += [f"note: {note}" for note in results.study.notes]
    hours = sum(sum(record.seconds.values()) for record in results.records.values())
    lines.append("spread: standard deviation over seeds. Intervals: over seeds and, where they were kept, examples.")
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
            "overrides": study.arms[arm].overrides,
            "tuned": results.tuned(arm),
            "trainable": next(iter(results.values(arm, "trainable").values()), None),
            "status": {seed: record.status for seed, record in results.of(arm).items()},
            "final": results.values(arm, metric),
            "best": results.values(arm, metric, model="best"),
            "mean": found.mean if found is not None else None,
            "interval": _as_list(found.interval) if found is not None else None,
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
        "arms": arms,
        "checks": [issue.to_dict() for issue in results.checks],
        "hypotheses": [_hypothesis_as_dict(one) for one in results.hypotheses],
        "excluded": [{"where": out.where, **out.why.to_dict(), "text": str(out.why)} for out in results.excluded],
    }


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
        "over_seeds": _as_list(one.shown_interval(one.over_seeds)),
        "over_examples": _as_list(one.shown_interval(one.over_examples)) if one.over_examples is not None else None,
        "margin": one.shown(one.margin),
        "family": one.family,
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
        "n": one.n,
        "timed": one.timed,
        "family": one.family,
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
