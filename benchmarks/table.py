"""Table: all results on one page, with the machine they were measured on."""

from collections.abc import Mapping, Sequence

from result import Result, seconds_shown

HEADER = ("what", "ratio (95 % interval)", "target", "reached?", "seconds", "note")
INTRODUCTION = """\
What is compared was measured side by side in one process, in short turns in balanced order; the ratio is a median over
rounds, with the interval of `oelm bench`. Rows with a unit are no ratios. Whether a target is reached is judged by the
value. Of a speed ours is over the line, and more is better; of a step time the frozen model is, and less is better."""


def page(
    results: Sequence[Result], *, facts: Mapping[str, str], not_run: Sequence[str] = (), why: str | None = None
) -> str:
    """Markdown. `why` is what has been written by hand about targets that were missed."""
    lines = ["# Benchmarks", "", "Written by `make bench`.", ""]
    lines += [f"- {name}: {value}" for name, value in facts.items()]
    lines += ["", INTRODUCTION, "", _row(HEADER), _row(["---"] * len(HEADER))]
    lines += [_row(cells(result)) for result in results]
    if not_run:
        lines += ["", f"Not run: {', '.join(not_run)}."]
    missed = [result for result in results if result.reached is False]
    if missed:
        lines += ["", "## Not reached", ""]
        lines += [f"- {result.question}: {result.what}: {result.missed_by}" for result in missed]
        lines += ["", why.strip()] if why else []
    return "\n".join(lines) + "\n"


def cells(result: Result) -> tuple[str, ...]:
    return (
        f"{result.question}: {result.what}" if result.what else result.question,
        result.shown,
        str(result.target or ""),
        {True: "yes", False: "**no**", None: "open" if result.target else ""}[result.reached],
        seconds_shown(result.seconds),
        result.remarks,
    )


def _row(columns: Sequence[str]) -> str:
    return f"| {' | '.join(' '.join(column.split()).replace('|', chr(92) + '|') for column in columns)} |"
