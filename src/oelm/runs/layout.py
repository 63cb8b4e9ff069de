"""Layout: what lies where in a run folder, and how studies and cells are found below it."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from oelm.errors import CellError

Status = Literal["done", "running", "stopped", "diverged", "audit-failed", "failed", "pending"]
FINISHED = ("done", "diverged", "audit-failed")
"""Never run again. A cell that failed is tried again by the next command."""

RUNS = Path("runs")
"""Where cells are kept, unless another place is named."""
# In the folder of a study.
STUDY, JOBS, BENCH, SIMPLE_BASELINE = "study.json", "jobs.jsonl", "bench.json", "simple_baseline.json"
# In the folder of a cell.
CELL, RECORD, STEPS, PREDICTIONS = "cell.json", "record.json", "steps.jsonl", "predictions.parquet"
CHECKPOINTS, MODEL, LOG = "checkpoints", "model", "log.txt"


def check_folder(runs: str | Path) -> Path:
    """The folder, or an error if there is none that may be looked into."""
    runs = Path(runs)
    try:
        exists = runs.is_dir()
    except (OSError, ValueError) as error:  # a name that is too long, or a folder that may not be looked into
        raise CellError(f"{str(runs)[:200]} cannot be read", why=str(error)[:200]) from error
    if not exists:
        raise CellError(f"there is no folder {runs}", hint="oelm run STUDY makes one")
    return runs


def find_cell_folders(runs: Path, *, on_error: Callable[[OSError], None] | None = None) -> list[Path]:
    """All cells at or below a folder, in the order of their names. `on_error` hears of what may not be looked into."""
    walked = os.walk(runs, onerror=on_error)
    return sorted(Path(at) for at, _, files in walked if CELL in files or RECORD in files)


def find_study_folders(runs: str | Path) -> list[Path]:
    """The folders of all studies at or below a folder."""
    runs = check_folder(runs)
    found = {Path(at) for at, _, files in os.walk(runs) if STUDY in files}
    found |= {study_folder(cell, runs) for cell in find_cell_folders(runs)}
    return sorted(folder for folder in found if folder.absolute().is_relative_to(runs.absolute()))


def find_started_studies(runs: str | Path) -> list[Path]:
    """The folders of the studies of all cells at or below a folder, which may lie above it. None at all is an error."""
    runs, errors = check_folder(runs), list[OSError]()
    found = {study_folder(cell, runs) for cell in find_cell_folders(runs, on_error=errors.append)}
    if not found and errors:
        raise CellError(f"{errors[0].filename or runs} cannot be read", why=errors[0].strerror)
    if not found:
        raise CellError(f"there are no cells below {runs}", hint="oelm run STUDY makes some")
    return sorted(found)


def study_folder(cell: Path, runs: Path) -> Path:
    """The study's folder of a cell: the nearest with a study in it, or else by where the cell lies.

    That is ARM/seed-N, or ARM/tune/POINT/seed-N. Only points have a '='.
    """
    above = [parent for parent in cell.parents if parent == runs or runs in parent.parents]
    kept = next((parent for parent in above if (parent / STUDY).is_file()), None)
    if kept is not None:
        return kept
    depth = 4 if "=" in cell.absolute().parent.name else 2
    place = cell if len(cell.parts) >= depth else cell.absolute()  # asked for from inside of the study
    return place.parents[min(depth, len(place.parents)) - 1]
