"""Dispatch: the cells below a folder, asked about and stopped through the backends that they were given to."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from oelm.errors import CellError, OelmError, did_you_mean
from oelm.launch.backends.cluster import load_cluster
from oelm.launch.backends.registry import backend_class, backend_of, is_remote
from oelm.launch.launched import NotLaunchedHere, launched_file, trust_jobs
from oelm.runs.files import open_to_append, writing
from oelm.runs.jobs import Job, read_jobs
from oelm.runs.layout import FINISHED, STUDY, find_cells_by_study, find_study_folders
from oelm.runs.lease import STOP, holder_of
from oelm.runs.status import CellStatus, read_status
from oelm.study.cells import compared_cells, tuning_cells
from oelm.study.load import load_study


@dataclass(frozen=True, kw_only=True)
class CellRef:
    """A cell below a folder, whether it was started or not."""

    study: Path
    """The folder of its study."""
    cell: str

    @property
    def folder(self) -> Path:
        return self.study / self.cell

    @property
    def name(self) -> str:
        return f"{self.study.name}/{self.cell}"


def find_cells(runs: Path, *, on_error: Callable[[OelmError], None] | None = None) -> list[CellRef]:
    """All cells of all studies at or below a folder, in the order they run, and others that are there.

    `on_error` hears of a study that cannot be read, whose started cells are there all the same.
    """
    found: dict[CellRef, None] = {}
    top = runs.absolute()
    for folder, started in find_cells_by_study(runs).items():
        home = folder.absolute()
        cells = [str(cell.absolute().relative_to(home)) for cell in started]
        # It may lie above, of which only these cells are meant; or have been fetched without its study.
        if home.is_relative_to(top) and os.path.lexists(folder / STUDY):
            try:
                study = load_study(folder / STUDY, skip_plugins=True)
                cells = [*map(str, tuning_cells(study)), *map(str, compared_cells(study)), *cells]
            except OelmError as error:
                if on_error is None:
                    raise
                on_error(error)
        found |= dict.fromkeys(CellRef(study=folder, cell=cell) for cell in cells)
    return list(found)


def select_cells(runs: Path, names: Iterable[str]) -> list[CellRef]:
    """The cells that are meant: by `baseline/seed-0`, `study/baseline/seed-0`, their folder, or `all`."""
    there = find_cells(runs)
    picked: list[CellRef] = []
    for name in names:
        if name == "all":  # that was started
            started = {
                study: {cell for job in read_jobs(study) for cell in job.cells} for study in find_study_folders(runs)
            }
            picked += [one for one in there if one.folder.exists() or one.cell in started.get(one.study, ())]
            continue
        meant = [one for one in there if name in (one.cell, one.name, str(one.folder)) or Path(name) == one.folder]
        if not meant:
            known = [one.cell for one in there]
            raise CellError(f"there is no cell '{name}' below {runs}{did_you_mean(name, known)}", hint="oelm status")
        if len(meant) > 1:
            several = ", ".join(one.name for one in meant)
            raise CellError(f"'{name}' is a cell of several studies", hint=f"one of {several}")
        picked += meant
    return list(dict.fromkeys(picked))


def trust_folder(runs: Path) -> list[str]:
    """Note the jobs below a folder as ones that the user trusts; returns what can be asked and run from now on."""
    cluster = load_cluster()
    with writing(launched_file().parent):
        return [line for folder in find_study_folders(runs) for line in trust_jobs(folder, read_jobs(folder), cluster)]


def list_status(runs: Path, *, log: Callable[[str], None] = lambda text: None) -> list[CellStatus]:
    """A row a cell. `log` hears of what is damaged, and of backends that do not answer, or are not asked."""

    def tell(error: OelmError) -> None:
        log(" ".join(str(error).split()))

    cells = find_cells(runs, on_error=tell)
    rows = {(at := one.folder): read_status(at, study=one.study.name, cell=one.cell) for one in cells}
    for folder in dict.fromkeys(one.study for one in cells):
        try:
            jobs = read_jobs(folder)
        except OelmError as error:
            tell(error)
            continue
        for job in jobs:
            unfinished = [
                name for name in job.cells if folder / name in rows and rows[folder / name].state not in FINISHED
            ]
            try:
                remote = backend_of(job).status(job) if unfinished and is_remote(job.on) else {}
            except NotLaunchedHere as error:
                log(f"{folder}: {str(error).splitlines()[0]}; if you trust it: oelm status {runs} --trust")
                continue
            except OelmError as error:
                log(f"{job.on}: {str(error).splitlines()[0]}")
                continue
            for name in unfinished:
                rows[folder / name] = _merge(rows[folder / name], remote.get(name))
    return list(rows.values())


def _merge(here: CellStatus, there: CellStatus | None) -> CellStatus:
    """What a batch system only knows to be queued or running is less than what a running cell's own folder says."""
    if there is None or here.state == "running":
        return here
    return replace(there, study=here.study, cell=here.cell)


def last_job(study: Path, cell: str) -> Job | None:
    return next((job for job in reversed(read_jobs(study)) if cell in job.cells), None)


def request_stop(cells: Sequence[CellRef]) -> list[CellRef]:
    """Ask cells to stop; those whose checkpoint can be waited for. A backend that does not answer stops none of it."""
    here, problems = [], []
    for study in dict.fromkeys(one.study for one in cells):
        mine, jobs = [one for one in cells if one.study == study], read_jobs(study)
        latest = {cell: job for job in jobs for cell in job.cells}
        last = {one: latest.get(one.cell) for one in mine}
        stay = [one for one in mine if (job := last[one]) is None or backend_class(job.on).shares_folder]
        for one in stay:
            with writing(one.folder):
                one.folder.mkdir(parents=True, exist_ok=True)
            open_to_append(one.folder / STOP).close()
        here += stay
        for job in jobs:
            try:
                if backend_class(job.on).shares_folder:  # it may be queued by an older job as well
                    meant = [one.cell for one in stay if one.cell in job.cells]
                else:
                    meant = [one.cell for one in mine if last[one] == job]
                if meant and is_remote(job.on):
                    backend_of(job).stop(job, meant)
            except OelmError as error:
                problems.append(error)
    if problems:
        raise problems[0]
    return here


def filter_running(cells: Sequence[CellRef]) -> list[CellRef]:
    return [one for one in cells if (holder := holder_of(one.folder)) is not None and holder.is_alive]
