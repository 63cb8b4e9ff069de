"""`oelm status`: where the cells below a folder stand."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from oelm.cli.compare import JsonOption
from oelm.errors import CellError
from oelm.records.record import read_record
from oelm.records.store import MAKINGS, RUNS, STEPS, cell_folders, read_json, status_of
from oelm.table import aligned


def status(
    runs: Annotated[Path, typer.Argument(help="A folder of runs, of a study, or of one cell.")] = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Show the status of every cell: done, running, stopped, diverged, audit-failed, failed."""
    if not runs.is_dir():
        raise CellError(f"there is no folder {runs}", hint="oelm compare STUDY makes one")
    rows = [_row(folder, runs) for folder in cell_folders(runs)]
    if as_json:
        typer.echo(json.dumps(rows, indent=2))
        return
    if not rows:
        typer.echo(f"no cells below {runs}")
        return
    columns = ("cell", "status", "step", "of", "result")
    lines = [columns, *(tuple(str(row[name]) for name in columns) for row in rows)]
    typer.echo("\n".join(aligned(lines, left=("cell", "status", "result"))))


def _row(folder: Path, runs: Path) -> dict[str, Any]:
    name = str(folder.relative_to(runs)) if folder != runs else str(folder)
    try:
        makings = read_json(folder / MAKINGS) or {}
        record = read_record(folder)
        metric = str((makings.get("primary") or {}).get("metric"))
        steps = (makings.get("start") or {}).get("steps", "")
        value = record.value(metric) if record is not None else None
        why = str((record.error or {}).get("what", "")).splitlines()[:1] if record is not None else []
        result = f"{metric} {value:.4f}" if value is not None else " ".join(why)[:100]
        return {"cell": name, "status": status_of(folder), "step": _steps(folder), "of": steps, "result": result}
    except (CellError, AttributeError, TypeError, ValueError) as error:
        return {"cell": name, "status": "damaged", "step": "", "of": "", "result": str(error).splitlines()[0]}


def _steps(folder: Path) -> int:
    try:
        with (folder / STEPS).open("rb") as file:
            return sum(1 for _ in file)
    except OSError:
        return 0
