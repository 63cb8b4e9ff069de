"""Show results: on a terminal as text, to a script as plain data."""

from __future__ import annotations

import math
import statistics
from typing import Any

from oelm.analysis.flags import flag_as_dict, flags_shown
from oelm.analysis.paired import Interval
from oelm.analysis.results import Results
from oelm.analysis.verdicts import Comparison
from oelm.study.study import shown_changes
from oelm.table import aligned
from oelm.times import duration

_SEEDS_SHOWN = 8


def shown(results: Results) -> str:
    """The table of the arms, what each comparison says, and what is wrong with them."""
    study = results.study
    metric, against = study.compare.primary.metric, study.compare.against
    difference = f"final - {against}"
    rows = [("arm", "trainable", "n", f"{metric}, final", "spread", "chosen", difference, "95 % interval", "verdict")]
    for arm in results.arms:
        values = list(results.values(arm, metric).values())
        chosen = list(results.values(arm, metric, model="chosen").values())
        one = results.comparisons.get(arm)
        rows.append(
            (
                arm,
                _count(results, arm),
                str(len(values)),
                f"{statistics.fmean(values):.4f}" if values else "-",
                f"{statistics.stdev(values):.4f}" if len(values) > 1 else "-",
                f"{statistics.fmean(chosen):.4f}" if chosen else "-",
                _mean(one),
                interval_shown(one.interval) if one is not None else "",
                one.verdict if one is not None else "",
            )
        )
    lines = [f"{study.name}: {metric}, {study.compare.primary.better} is better", ""]
    lines += aligned(rows, left=("arm", "95 % interval", "verdict"))
    parts = [_by_seed(results), _checks(results), [str(one) for one in results.hypotheses], _remarks(results)]
    for part in parts:
        lines += ["", *part] if part else []
    return "\n".join(lines)


def interval_shown(interval: Interval) -> str:
    if math.isinf(interval.low) or math.isnan(interval.low):
        return "none"
    return f"{interval.low:+.4f} to {interval.high:+.4f}"


def _mean(one: Comparison | None) -> str:
    return "" if one is None or not one.differences else f"{one.estimate.mean:+.4f}"


def _count(results: Results, arm: str) -> str:
    numbers = results.values(arm, "trainable")
    return f"{next(iter(numbers.values())):,.0f}" if numbers else ""


def _by_seed(results: Results) -> list[str]:
    lines = []
    for arm, one in results.comparisons.items():
        named = [f"{seed}: {value:+.4f}" for seed, value in list(one.differences.items())[:_SEEDS_SHOWN]]
        more = [f"and {one.n - _SEEDS_SHOWN} more"] if one.n > _SEEDS_SHOWN else []
        if named:
            lines.append(f"{arm} - {one.against}, by seed  {'  '.join([*named, *more])}")
    return lines


def _checks(results: Results) -> list[str]:
    return flags_shown(results.checks) or ["no check fired"]


def _remarks(results: Results) -> list[str]:
    lines = [f"left out: {out}" for out in results.left_out]
    for arm in results.arms:
        for seed, record in results.of(arm).items():
            if record.status != "done":
                first = str((record.error or {}).get("what", "no reason given")).splitlines()
                lines.append(f"{arm} seed {seed}: {record.status} ({first[0] if first else 'no reason given'})")
        tuned, changes = results.tuned(arm), results.study.arms[arm].changes
        if tuned:
            lines.append(f"{arm}: tuned to {', '.join(f'{path} = {value}' for path, value in tuned.items())}")
        if changes:
            lines.append(f"{arm}:{shown_changes(changes)}")
    if len(results.arms) > 1 and not any(flag.code == "UNPAIRED" for flag in results.checks):
        lines.append("Arms of one seed started from the same other weights and saw the same batches.")
    if results.study.compare.against not in results.arms:
        lines.append(f"No differences: {results.study.compare.against} is not among these arms.")
    lines += [f"note: {note}" for note in results.study.notes]
    hours = sum(sum(record.seconds.values()) for record in results.records.values())
    lines.append(f"spread: standard deviation over seeds. {duration(hours)} of training and measuring.")
    return lines


def as_dict(results: Results) -> dict[str, Any]:
    """Everything that is shown, for scripts."""
    study = results.study
    metric = study.compare.primary.metric
    arms = {}
    for arm in results.arms:
        one = results.comparisons.get(arm)
        arms[arm] = {
            "treatment": study.arms[arm].treatment.to_dict(),
            "changes": study.arms[arm].changes,
            "tuned": results.tuned(arm),
            "trainable": next(iter(results.values(arm, "trainable").values()), None),
            "status": {seed: record.status for seed, record in results.of(arm).items()},
            "final": results.values(arm, metric),
            "chosen": results.values(arm, metric, model="chosen"),
            "differences": one.differences if one is not None else {},
            "verdict": _verdict(one) if one is not None else None,
        }
    return {
        "study": study.name,
        "metric": metric,
        "better": study.compare.primary.better,
        "against": study.compare.against,
        "notes": list(study.notes),
        "arms": arms,
        "checks": [flag_as_dict(flag) for flag in results.checks],
        "hypotheses": [
            {
                "name": one.hypothesis.name,
                "statement": one.hypothesis.statement,
                "rule": str(one.hypothesis),
                "standing": one.standing,
                "value": one.value,
                "interval": _finite(one.interval),
                "n": one.n,
                "timed": one.timed,
            }
            for one in results.hypotheses
        ],
        "left_out": [{"where": out.where, "why": str(out.why)} for out in results.left_out],
    }


def _verdict(one: Comparison) -> dict[str, Any]:
    return {
        "verdict": one.verdict,
        "sentence": one.sentence.en,
        "mean": one.estimate.mean if one.differences else None,
        "interval": _finite(one.interval),
        "n": one.n,
        "p_differs": one.p_differs,
        "p_equivalent": one.p_equivalent,
    }


def _finite(interval: Interval | None) -> list[float] | None:
    if interval is None or not math.isfinite(interval.low):
        return None
    return [interval.low, interval.high]
