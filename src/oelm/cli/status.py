"""`oelm status`: the state of the cells below a folder."""

import json
import math
import time
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.echo import echo, plain_text, warn
from oelm.cli.options import JsonOption, TrustOption, trust_if
from oelm.errors import OelmError
from oelm.format import format_columns, format_duration
from oelm.message import Message
from oelm.runs.layout import FINISHED, RECORD, RUNS, STUDY, find_cell_folders, find_cells_by_study
from oelm.runs.status import CellStatus, read_status

_SECONDS = 3.0  # between two looks
_PATIENCE = 60.0  # seconds without anything that runs
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
        rows = list_status(runs, log=warn)
        missing = _missing(runs, rows)
        shown = [replace(row, sealed=missing.get(row.study, 0) > 0) for row in rows]
        echo(json.dumps([row.to_dict() for row in shown], indent=2))
    elif watch:
        _watch(runs)
    else:
        echo(_table(runs, list_status(runs, log=warn)) or f"no cells below {runs}")


def _watch(runs: Path) -> None:
    from rich.console import Console
    from rich.live import Live

    from oelm.launch.backends.dispatch import list_status

    console, before, quiet, said = Console(highlight=False), "", 0.0, set[str]()

    def say_once(text: str) -> None:
        if text not in said:
            said.add(text)
            console.print(plain_text(text)) if console.is_terminal else warn(text)

    with Live(console=console, auto_refresh=False) if console.is_terminal else nullcontext() as live:
        while True:
            rows = list_status(runs, log=say_once)
            now, at = _table(runs, rows), time.strftime("%H:%M:%S")
            if live is not None:
                live.update(plain_text(f"{now}\n\n{at}; Ctrl-C to quit"), refresh=True)
            elif now != before:
                echo(f"{at}\n{now}")
            before, quiet = now, _quiet(rows, quiet)
            if quiet > _PATIENCE:
                return
            time.sleep(_SECONDS)


def _quiet(rows: list[CellStatus], before: float) -> float:
    """Seconds without anything that runs. Between two cells of one launch, a new process takes its time."""
    if all(row.state in FINISHED for row in rows):
        return math.inf
    return 0.0 if any(row.state in ("queued", "running") for row in rows) else before + _SECONDS


def _missing(runs: Path, rows: list[CellStatus]) -> dict[str, int]:
    """How many planned cells every study waits for, as its report says: what ran elsewhere is not here yet.

    Of a study that lies above the folder, all cells count, not only those that are asked for.
    """
    from oelm.analysis.tuning import missing_cells, read_best_point
    from oelm.runs.lock import locked_study, read_lock
    from oelm.study.load import load_study

    found: dict[str, int] = {}
    asked = {(row.study, row.cell): row.state for row in rows}
    for folder, cells in find_cells_by_study(runs).items():
        is_above = not folder.absolute().is_relative_to(runs.absolute())
        try:
            lock = read_lock(folder, None)
            study = locked_study(lock) if lock is not None else load_study(folder / STUDY, skip_plugins=True)
        except OelmError:  # said where its cells are listed
            continue
        states = {
            name: asked.get((folder.name, name)) or read_status(cell, study=folder.name, cell=name).state
            for cell in (find_cell_folders(folder) if is_above else cells)
            for name in [cell.relative_to(folder).as_posix()]
        }
        broken = {cell for cell, state in states.items() if state == "damaged"}
        there = {cell for cell in states.keys() - broken if (folder / cell / RECORD).exists()}
        best = partial(read_best_point, study, folder=folder)
        number = len(missing_cells(study, there, broken, best))
        found[folder.name] = found.get(folder.name, 0) + number  # two runs of one study have its name
    return found


def _table(runs: Path, rows: list[CellStatus]) -> str:
    if not rows:
        return ""
    shown = [_row(row) for row in rows]
    lines = [tuple(shown[0]), *(tuple(row.values()) for row in shown)]
    number = {state: sum(row.state == state for row in rows) for state in dict.fromkeys(row.state for row in rows)}
    summary = ", ".join(f"{count} {state}" for state, count in number.items())
    missing = _missing(runs, rows)
    sealed = [
        f"{f'{study}: ' if len(missing) > 1 else ''}{Message('sealed', number=number)}"
        for study, number in missing.items()
        if number
    ]
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
