"""Standings: where all cells below a folder stand, from their records and from where they were handed to."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

from oelm.errors import CellError, OelmError, did_you_mean
from oelm.launch.cluster import Cluster, load_cluster
from oelm.launch.jobs import Job, read_jobs
from oelm.launch.where import SLURM, SSH
from oelm.records.standing import Standing, standing_of
from oelm.records.store import FINISHED, MAKINGS, STUDY, cell_folders, read_json
from oelm.study.load import load_study
from oelm.study.plan import cells, tuning_cells


@dataclass(frozen=True, kw_only=True)
class Found:
    """A cell below a folder, whether it has begun or not."""

    study: Path
    """The folder of its study."""
    cell: str

    @property
    def folder(self) -> Path:
        return self.study / self.cell

    @property
    def name(self) -> str:
        return f"{self.study.name}/{self.cell}"


def studies_below(runs: Path) -> list[Path]:
    """The folders of studies at or below a folder."""
    if not runs.is_dir():
        raise CellError(f"there is no folder {runs}", hint="oelm compare STUDY makes one")
    return sorted(file.parent for file in runs.rglob(STUDY))


def cells_below(runs: Path) -> list[Found]:
    """All cells of all studies at or below a folder, in the order they run, and others that lie there."""
    found = []
    for folder in studies_below(runs):
        study = load_study(folder / STUDY)
        found += [Found(study=folder, cell=str(cell)) for cell in (*tuning_cells(study), *cells(study))]
    known = {one.folder for one in found}
    for folder in cell_folders(runs):
        if folder not in known:
            home = _home(folder)
            found.append(Found(study=home, cell=str(folder.relative_to(home))))
    return found


def _home(folder: Path) -> Path:
    """The folder of the study that a cell belongs to; `oelm train` alone does not put the study there."""
    above = [parent for parent in folder.absolute().parents if (parent / STUDY).exists()]
    try:
        named = str((read_json(folder / MAKINGS) or {}).get("study"))
    except CellError:
        named = ""
    above += [parent for parent in folder.absolute().parents if parent.name == named]
    home = above[0] if above else folder.absolute().parent
    return home if folder.is_absolute() else Path(os.path.relpath(home))


def chosen(runs: Path, names: Iterable[str]) -> list[Found]:
    """The cells that are meant: by `baseline/seed-0`, `study/baseline/seed-0`, their folder, or `all`."""
    there = cells_below(runs)
    picked: list[Found] = []
    for name in names:
        if name == "all":  # that was started
            started = {study: {cell for job in read_jobs(study) for cell in job.cells} for study in studies_below(runs)}
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


def standings(runs: Path, *, told: Callable[[str], None] = lambda text: None) -> list[Standing]:
    """A row a cell. `told` hears of places that do not answer."""
    rows = {one.folder: standing_of(one.folder, study=one.study.name, cell=one.cell) for one in cells_below(runs)}
    cluster: Cluster | None = None
    for folder in studies_below(runs):
        for job in read_jobs(folder):
            open_ = [name for name in job.cells if folder / name in rows and _may_change(rows[folder / name])]
            if not open_ or not job.on.startswith((SLURM, SSH)):
                continue
            try:
                cluster = cluster or load_cluster()
                told_of = _on_slurm(job) if job.on == SLURM else _over_ssh(job, cluster)
            except OelmError as error:
                told(f"{job.on}: {str(error).splitlines()[0]}")
                continue
            for name in open_:
                rows[folder / name] = _merged(rows[folder / name], told_of.get(name))
    return list(rows.values())


def _may_change(row: Standing) -> bool:
    return row.state not in FINISHED


def _merged(here: Standing, there: Standing | None) -> Standing:
    """What a batch system only knows to be queued or running is less than what a running cell's own folder says."""
    if there is None or here.state == "running":
        return here
    return replace(there, study=here.study, cell=here.cell)


def _on_slurm(job: Job) -> dict[str, Standing]:
    from oelm.launch import slurm

    found = {}
    for name, task in slurm.states(job).items():
        if task.state is None:
            continue
        where = f"slurm {task.node}" if task.node else f"slurm ({task.reason})" if task.reason else "slurm"
        found[name] = Standing(
            study="",
            cell=name,
            where=where,
            state="queued" if task.state == "queued" else "running",
            step=0,
            steps=None,
            eta=None,
            loss=None,
            result="",
        )
    return found


def _over_ssh(job: Job, cluster: Cluster) -> dict[str, Standing]:
    from oelm.launch import remote

    return {row["cell"]: Standing(**row) for row in remote.rows(job, cluster)}
