"""A bench as plain text: the table that `oelm bench` prints."""

from oelm.format import format_columns
from oelm.runs.bench import PARTS, ArmTiming, Bench, Ratio

_MIB = 2**20


def format_bench(bench: Bench) -> str:
    header = ("arm", "ms a step", f"of {bench.against}", "95 % interval", *PARTS, "at best")
    rows: list[tuple[str, ...]] = [(*header, "of what can be saved", "verdict", "gradients + optimizer")]
    rows += [_row(name, arm) for name, arm in bench.arms.items()]
    lines = [_heading(bench)]
    if bench.isolated:
        lines.append(f"every block of steps was a process of its own: {bench.isolated}")
    lines += ["", *format_columns(rows, left=("arm", "95 % interval"))]
    for pair in bench.pairs:
        lines.append(f"{pair.arm} in units of {pair.against}: {format_ratio(pair.ratio)}, {pair.ratio.verdict}")
    lines += [f"warning: {text}" for text in bench.warnings]
    return "\n".join(lines)


def format_ratio(ratio: Ratio) -> str:
    return f"{ratio.median:.4f} ({format_bounds(ratio)})"


def format_bounds(ratio: Ratio) -> str:
    return "none yet" if ratio.high is None else f"{ratio.low:.4f} to {ratio.high:.4f}"


def format_reached(arm: ArmTiming) -> str:
    return "" if arm.reached is None else f"{arm.reached:.0%}"


def _heading(bench: Bench) -> str:
    rounds = "1 round" if bench.rounds == 1 else f"{bench.rounds} rounds"
    why = {
        "precision": f"the interval is within {bench.precision:g}",
        "budget": f"the time was used up before the interval was within {bench.precision:g}",
        "interrupted": "it was interrupted; this is what was measured until then",
    }[bench.stopped_by]
    return (
        f"{bench.study}: batch {bench.batch} x {bench.length:.0f} tokens on {bench.device}, "
        f"{rounds} of 2 x {bench.steps} steps an arm in {bench.seconds:.0f} s; {why}"
    )


def _row(name: str, arm: ArmTiming) -> tuple[str, ...]:
    step = arm.step
    ratios = [f"{step.median:.4f}", format_bounds(step)] if step is not None else ["", ""]
    return (
        name,
        f"{1000 * arm.step_seconds:.1f}",
        *ratios,
        *(f"{arm.ratios[part].median:.3f}" if part in arm.ratios else "" for part in PARTS),
        f"{1 - arm.ceiling:.4f}" if arm.ceiling is not None else "",
        format_reached(arm),
        step.verdict if step is not None else "",
        f"{arm.memory.learning / _MIB:.1f} MiB" if arm.memory is not None else "",
    )
