"""`oelm status`: where the cells below a folder stand."""

import json
import math
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from oelm.cli.compare import JsonOption
from oelm.records.standing import Standing
from oelm.records.store import FINISHED, RUNS
from oelm.table import aligned
from oelm.times import duration

_SECONDS = 3.0  # between two looks
_PATIENCE = 60.0  # seconds without anything that runs
_LEFT = ("cell", "state", "where", "result")


def status(
    runs: Annotated[Path, typer.Argument(help="A folder of runs, of a study, or of one cell.")] = RUNS,
    watch: Annotated[bool, typer.Option("--watch", help="Look again and again while something runs.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Show where every cell stands: waiting, queued, running, stopped, done, diverged, audit-failed, failed."""
    from oelm.launch.standings import standings

    if as_json:
        typer.echo(json.dumps([row.to_dict() for row in standings(runs, told=_warn)], indent=2))
    elif watch:
        _watch(runs)
    else:
        typer.echo(_table(standings(runs, told=_warn)) or f"no cells below {runs}")


def _watch(runs: Path) -> None:
    from rich.console import Console
    from rich.live import Live
    from rich.text import Text

    from oelm.launch.standings import standings

    console, before, quiet = Console(highlight=False), "", 0.0
    if not console.is_terminal:
        while True:
            rows = standings(runs, told=_warn)
            if (now := _table(rows)) != before:
                typer.echo(f"{time.strftime('%H:%M:%S')}\n{now}")
            before, quiet = now, _quiet(rows, quiet)
            if quiet > _PATIENCE:
                return
            time.sleep(_SECONDS)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            rows = standings(runs, told=live.console.print)
            live.update(Text(f"{_table(rows)}\n\n{time.strftime('%H:%M:%S')}; Ctrl-C ends the looking"), refresh=True)
            quiet = _quiet(rows, quiet)
            if quiet > _PATIENCE:
                return
            time.sleep(_SECONDS)


def _quiet(rows: list[Standing], before: float) -> float:
    """For how long nothing has gone on. Between two cells of one launch, a new process takes its time."""
    if all(row.state in FINISHED for row in rows):
        return math.inf
    return 0.0 if any(row.state in ("queued", "running") for row in rows) else before + _SECONDS


def _table(rows: list[Standing]) -> str:
    if not rows:
        return ""
    columns = ("cell", "state", "step", "of", "left", "loss", "result", "where")
    lines = [columns, *(tuple(_shown(row)[name] for name in columns) for row in rows)]
    number = {state: sum(row.state == state for row in rows) for state in dict.fromkeys(row.state for row in rows)}
    summary = ", ".join(f"{count} {state}" for state, count in number.items())
    return "\n".join([*aligned(lines, left=_LEFT), "", summary])


def _shown(row: Standing) -> dict[str, Any]:
    return {
        "cell": f"{row.study}/{row.cell}",
        "state": row.state,
        "step": f"{row.step:,}" if row.step else "",
        "of": "" if row.steps is None else f"{row.steps:,}",
        "left": "" if row.eta is None else duration(row.eta),
        "loss": "" if row.loss is None else f"{row.loss:.3f}",
        "result": row.result,
        "where": row.where,
    }


def _warn(text: str) -> None:
    sys.stderr.write(text + "\n")
