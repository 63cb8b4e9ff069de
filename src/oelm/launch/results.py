"""Results: what a comparison shows, in a table of its arms and one of its differences, seed by seed."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from oelm.records.record import Record
from oelm.study.plan import Cell
from oelm.study.study import shown_changes
from oelm.table import aligned

if TYPE_CHECKING:
    from oelm.launch.local import Comparison


def results(comparison: Comparison) -> dict[str, Any]:
    """Every arm's values by seed, and their differences to the arm that is compared against."""
    study = comparison.study
    primary = study.compare.primary
    arms = {}
    base = _values(comparison, study.compare.against)
    for name in dict.fromkeys(cell.arm for cell in comparison.records):
        final, chosen = _values(comparison, name), _values(comparison, name, model="chosen")
        shared = [seed for seed in final if seed in base] if name != study.compare.against else []
        statuses = {cell.seed: r.status for cell, r in comparison.records.items() if cell.arm == name}
        arms[name] = {
            "treatment": study.arms[name].treatment.to_dict(),
            "changes": study.arms[name].changes,
            "tuned": dict(comparison.tuned.get(name, ())),
            "trainable": next(
                (r.counts["trainable"] for r in _records(comparison, name) if "trainable" in r.counts), None
            ),
            "status": statuses,
            "final": final,
            "chosen": chosen,
            "differences": {seed: final[seed] - base[seed] for seed in shared},
            "hours": sum(sum(r.seconds.values()) for r in _records(comparison, name)) / 3600,
        }
    return {
        "study": study.name,
        "metric": primary.metric,
        "better": primary.better,
        "against": study.compare.against,
        "notes": list(study.notes),
        "arms": arms,
        "paired": pairing(comparison),
    }


def pairing(comparison: Comparison) -> dict[int, bool]:
    """By seed: whether all arms started from the same other weights and saw the same batches. Arms that change the
    recipe may rightly differ."""
    paired = {}
    for seed in dict.fromkeys(cell.seed for cell in comparison.records):
        records = [r for cell, r in comparison.records.items() if cell.seed == seed and r.status == "done"]
        paired[seed] = len({_origin(r) for r in records}) <= 1
    return paired


def _origin(record: Record) -> tuple[Any, ...]:
    """What arms of one seed must have in common."""
    start, data = record.start, record.data
    return start.get("weights"), start.get("batches"), data.get("data"), data.get("tokenizer")


def shown(comparison: Comparison) -> str:
    data = results(comparison)
    metric, against = data["metric"], data["against"]
    rows = [
        ("arm", "trainable", "n", f"{metric}, final", "spread", "chosen", f"final - {against}, seed by seed", "mean")
    ]
    for name, arm in data["arms"].items():
        values, chosen, differences = arm["final"], arm["chosen"], arm["differences"]
        rows.append(
            (
                name,
                "" if arm["trainable"] is None else f"{arm['trainable']:,}",
                str(len(values)),
                _mean(values),
                _spread(values),
                _mean(chosen),
                "  ".join(f"{difference:+.4f}" for difference in differences.values()),
                f"{statistics.fmean(differences.values()):+.4f}" if differences else "",
            )
        )
    lines = [f"{data['study']}: {metric}, {data['better']} is better", ""]
    lines += aligned(rows, left=("arm", rows[0][6]))
    lines += ["", *_remarks(comparison, data)]
    return "\n".join(lines)


def _remarks(comparison: Comparison, data: dict[str, Any]) -> list[str]:
    lines = [f"{name}: left out, because {why}" for name, why in comparison.left_out.items()]
    for name, arm in data["arms"].items():
        bad = {seed: status for seed, status in arm["status"].items() if status != "done"}
        lines += [f"{name} seed {seed}: {status} ({_why(comparison, name, seed)})" for seed, status in bad.items()]
        if arm["tuned"]:
            lines.append(f"{name}: tuned to {', '.join(f'{path} = {value}' for path, value in arm['tuned'].items())}")
        if arm["changes"]:
            lines.append(f"{name}:{shown_changes(arm['changes'])}")
    apart = [seed for seed, paired in data["paired"].items() if not paired]
    if apart:
        seeds = ", ".join(map(str, apart))
        lines.append(
            f"NOT PAIRED: arms of seed {seeds} differ in data, batches or other weights (by changes or tuning?)"
        )
    elif len(data["arms"]) > 1:
        lines.append("Arms of one seed started from the same other weights and saw the same batches.")
    if data["against"] not in data["arms"]:
        lines.append(f"No differences: {data['against']} is not among these arms.")
    lines += [f"note: {note}" for note in data["notes"]]
    hours = sum(arm["hours"] for arm in data["arms"].values())
    lines.append(f"spread: standard deviation over seeds. {duration(hours * 3600)} of training and measuring.")
    return lines


def _why(comparison: Comparison, arm: str, seed: int) -> str:
    record = comparison.records[Cell(arm=arm, seed=seed)]
    first = str((record.error or {}).get("what", "")).splitlines()
    return first[0] if first else "no reason given"


def _records(comparison: Comparison, arm: str) -> list[Record]:
    return [record for cell, record in comparison.records.items() if cell.arm == arm]


def _values(comparison: Comparison, arm: str, *, model: str = "final") -> dict[int, float]:
    metric = comparison.study.compare.primary.metric
    found = {
        cell.seed: record.value(metric, model=model)
        for cell, record in sorted(comparison.records.items(), key=lambda item: item[0].seed)
        if cell.arm == arm and record.status == "done"
    }
    return {seed: value for seed, value in found.items() if value is not None}


def _mean(values: dict[int, float]) -> str:
    return f"{statistics.fmean(values.values()):.4f}" if values else "-"


def _spread(values: dict[int, float]) -> str:
    return f"{statistics.stdev(values.values()):.4f}" if len(values) > 1 else "-"


def duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 5400:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if math.isfinite(seconds) else "?"
