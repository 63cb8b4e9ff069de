"""`oelm status`: the state of the cells below a folder."""

import json
import math
import time
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.echo import echo, plain_text, warn
from oelm.cli.options import JsonOption, TrustOption, trust_if
from oelm.format import format_columns, format_duration
from oelm.message import Message
from oelm.runs.layout import FINISHED, RUNS
from oelm.runs.status import CellStatus

_SECONDS = 3.0  # between two looks
_PATIENCE = 60.0  # seconds without anything that runs
_ENDED = (*FINISHED, "failed", "damaged")
_LEFT = ("cell", "state", "device", "where", "result")


def status(
    runs: Annotated[Path, typer.Argument(help="Folder of runs, of a study, or of a cell")] = RUNS,
    watch: Annotated[bool, typer.Option("--watch", help="Refresh while something runs")] = False,
    trust: TrustOption = False,
    as_json: JsonOption = False,
) -> None:
    """Show the state of every cell"""
    from oelm.launch.backends.dispatch import list_status

    trust_if(trust, runs)
    if as_json:
        echo(json.dumps([row.to_dict() for row in list_status(runs, log=warn)], indent=2))
    elif watch:
        _watch(runs)
    else:
        echo(_table(list_status(runs, log=warn)) or f"no cells below {runs}")


def _watch(runs: Path) -> None:
    from rich.console import Console
    from rich.live import Live

    from oelm.launch.backends.dispatch import list_status

    console, before, quiet, said = Console(highlight=False), "", 0.0, set[str]()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            console.print(plain_text(text)) if console.is_terminal else warn(text)

    if not console.is_terminal:
        while True:
            rows = list_status(runs, log=say_once)
            if (now := _table(rows)) != before:
                echo(f"{time.strftime('%H:%M:%S')}\n{now}")
            before, quiet = now, _quiet(rows, quiet)
            if quiet > _PATIENCE:
                return
            time.sleep(_SECONDS)
    with Live(console=console, auto_refresh=False) as live:
        while True:
            rows = list_status(runs, log=say_once)
            live.update(plain_text(f"{_table(rows)}\n\n{time.strftime('%H:%M:%S')}; Ctrl-C to quit"), refresh=True)
            quiet = _quiet(rows, quiet)
            if quiet > _PATIENCE:
                return
            time.sleep(_SECONDS)


def _quiet(rows: list[CellStatus], before: float) -> float:
    """Seconds without anything that runs. Between two cells of one launch, a new process takes its time."""
    if all(row.state in FINISHED for row in rows):
        return math.inf
    return 0.0 if any(row.state in ("queued", "running") for row in rows) else before + _SECONDS


def _table(rows: list[CellStatus]) -> str:
    if not rows:
        return ""
    columns = ("cell", "state", "step", "of", "left", "loss", "result", "device", "where")
    lines = [columns, *(tuple(_row(row)[name] for name in columns) for row in rows)]
    number = {state: sum(row.state == state for row in rows) for state in dict.fromkeys(row.state for row in rows)}
    summary = ", ".join(f"{count} {state}" for state, count in number.items())
    missing = [row for row in rows if row.state not in _ENDED and "/tune/" not in row.cell]
    sealed = [str(Message("sealed", number=len(missing)))] if missing else []
    return "\n".join([*format_columns(lines, left=_LEFT), "", summary, *sealed])


def _row(row: CellStatus) -> dict[str, str]:
    return {
        "cell": f"{row.study}/{row.cell}",
        "state": row.state,
        "step": f"{row.step:,}" if row.step else "",
        "of": "" if row.steps is None else f"{row.steps:,}",
        "left": "" if row.eta is None else format_duration(row.eta),
        "loss": "" if row.loss is None else f"{row.loss:.3f}",
        "result": row.result,
        "device": row.device,
        "where": row.where,
    }
