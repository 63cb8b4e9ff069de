"""Layout: what lies where in a run folder, and how studies and cells are found below it."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

from oelm.errors import CellError

Status = Literal["done", "running", "stopped", "diverged", "audit-failed", "failed", "pending"]
FINISHED = ("done", "diverged", "audit-failed")
"""Never run again. A cell that failed is tried again by the next command."""
ENDED = (*FINISHED, "failed")
"""With a record."""

RUNS = Path("runs")
"""Where cells are kept, unless another place is named."""
EVIDENCE = Path("evidence")
"""Locked studies with their records in archives: what the published answers rest on."""
# In the folder of a study.
STUDY, LOCK, JOBS = "study.json", "lock.json", "jobs.jsonl"
BENCH, SIMPLE_BASELINE = "bench.json", "simple_baseline.json"
ARCHIVE = "records.tar.xz"
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


def walk_cell_folders(runs: Path, *, on_error: Callable[[OSError], None] | None = None) -> Iterator[Path]:
    """All cells at or below a folder, as they are found. `on_error` hears of what may not be looked into."""
    return (Path(at) for at, files in _walk(runs, on_error) if CELL in files or RECORD in files)


def find_cell_folders(runs: Path, *, on_error: Callable[[OSError], None] | None = None) -> list[Path]:
    """All cells at or below a folder, in the order of their names."""
    return sorted(walk_cell_folders(runs, on_error=on_error), key=_parts)


def find_cells_by_study(
    runs: str | Path, *, on_error: Callable[[OSError], None] | None = None
) -> dict[Path, list[Path]]:
    """The folders of all studies at or below a folder, and of those above that cells there belong to, each with the
    cells there."""
    runs, studies, cells = check_folder(runs), list[Path](), list[Path]()
    for at, files in _walk(runs, on_error):
        if STUDY in files:
            studies.append(Path(at))
        if CELL in files or RECORD in files:
            cells.append(Path(at))
    found: dict[Path, list[Path]] = {study: [] for study in studies}
    of_parent: dict[Path, Path] = {}  # all seeds of an arm belong to one study
    for cell in sorted(cells, key=_parts):
        if cell.parent not in of_parent:
            of_parent[cell.parent] = study_folder(cell, runs)
        found.setdefault(of_parent[cell.parent], []).append(cell)
    return dict(sorted(found.items()))


def find_study_folders(runs: str | Path) -> list[Path]:
    """The folders of all studies at or below a folder."""
    top = Path(runs).absolute()
    return [study for study in find_cells_by_study(runs) if study.absolute().is_relative_to(top)]


def find_started_studies(runs: str | Path) -> list[Path]:
    """The folders of the studies of all cells at or below a folder, which may lie above it, and of those that were
    timed there. None at all is an error."""
    errors = list[OSError]()
    by_study = find_cells_by_study(runs, on_error=errors.append)
    found = [study for study, cells in by_study.items() if cells or (study / BENCH).exists()]
    if not found and errors:
        raise CellError(f"{errors[0].filename or runs} cannot be read", why=errors[0].strerror)
    if not found:
        raise CellError(f"there are no cells below {runs}", hint="oelm run STUDY makes some")
    return found


def _parts(path: Path) -> tuple[str, ...]:
    """By which paths are in order: taken once of each, not at every comparison."""
    return path.parts


def _walk(runs: Path, on_error: Callable[[OSError], None] | None = None) -> Iterator[tuple[str, list[str]]]:
    """Every folder with its files; not the weights of a cell, which are many folders and no cells."""
    for at, folders, files in os.walk(runs, onerror=on_error):
        if CELL in files or RECORD in files:
            folders[:] = [name for name in folders if name not in (CHECKPOINTS, MODEL)]
        yield at, files


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
