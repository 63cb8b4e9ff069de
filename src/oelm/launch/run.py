"""Run: the missing cells of a study, through a backend."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from oelm.analysis.tuning import best_point
from oelm.data.tasks import TASKS
from oelm.errors import DataError, FolderError, LaunchError, OelmError, StudyError, require
from oelm.launch.backends.base import Backend, LocalBackend, RemoteBackend
from oelm.launch.backends.cluster import Cluster
from oelm.launch.launched import note_launch
from oelm.launch.study_run import StudyRun, clear_stop_requests, open_run, run_one_cell, write_study
from oelm.message import verbatim
from oelm.runs.files import NewerFormat
from oelm.runs.jobs import Job, append_job
from oelm.runs.layout import RUNS, SIMPLE_BASELINE, STUDY
from oelm.runs.record import Record, read_record
from oelm.study.cells import Cell, CellSpec, Point, both_stages, resolve_cell, tuning_cells
from oelm.study.study import Study
from oelm.train.progress import MessageProgress, Progress

if TYPE_CHECKING:
    from oelm.analysis.results import Excluded, Results


def run(
    study: Study,
    *,
    out: str | Path = RUNS,
    arms: Sequence[str] | None = None,
    seeds: Sequence[int] | None = None,
    cells: Sequence[str] | None = None,
    progress: Progress | None = None,
    backend: LocalBackend | None = None,
) -> Results:
    """Run what is missing of a study, first its tuning, if it has one, then its cells; and read all of it.

    `arms`, `seeds` and `cells` (by name, `baseline/seed-0`) pick cells. Cells that are named run alone: their tuning
    must be done. A seed of the tuning runs its grid.
    """
    from oelm.launch.backends.workers import InlineBackend
    from oelm.train.process import avoid_spinning

    avoid_spinning()  # before torch is imported
    study_run = open_run(study, out=out, arms=arms, seeds=seeds, cells=cells)
    return run_study(study_run, backend or InlineBackend(), progress or Progress())


def run_study(study_run: StudyRun, backend: LocalBackend, progress: Progress) -> Results:
    """Run the missing cells and wait for them; then read all of the study."""
    from oelm.analysis.results import AllExcluded, read_results

    if study_run.is_named and backend.is_inline(study_run):
        run_named_cells(study_run, progress)
        return _restrict(read_results(study_run.folder), study_run)
    has_missing = bool(study_run.stages)
    if has_missing:
        require("lab", needed_by="oelm run")
        from oelm.train.device import check_gpu_usable

        check_gpu_usable()
        progress.on_message(f"device: {backend.devices(study_run)}")
        preflight(study_run, progress, is_remote=False)
    write_study(study_run)
    clear_stop_requests(study_run)
    if has_missing:
        _keep_job(study_run.folder, study_run.job(backend), backend, log=progress.on_message)
    backend.run(study_run, study_run.tuning, progress)
    tuned, untuned = _best_points(study_run)
    backend.run(study_run, list(tuned), progress)
    results = read_results(study_run.folder)
    # Where nothing was missing, whoever only reads would wait for data that may be far away.
    if has_missing and _train_simple_baselines(results, tuned, progress):
        results = read_results(study_run.folder)
    return replace(_restrict(results, study_run), excluded=AllExcluded((*untuned, *results.excluded)))


def run_named_cells(study_run: StudyRun, progress: Progress) -> dict[Cell, Record]:
    """Run exactly the cells that were named, in this process: for a cell that others hold, nobody waits."""
    if study_run.missing(study_run.cells):
        require("lab", needed_by="oelm run")
        from oelm.train.device import check_gpu_usable, describe_device

        check_gpu_usable()
        progress.on_message(f"device: {describe_device()}")
    if not (study_run.folder / STUDY).exists():
        write_study(study_run)
    return {cell: run_one_cell(study_run, cell, progress) for cell in study_run.cells}


def submit_study(study_run: StudyRun, backend: RemoteBackend, *, log: Callable[[str], None]) -> Job:
    """Hand the missing cells over, all or none, and do not wait for them. `log` hears what is done for it."""
    job = study_run.job(backend)
    if not job.cells:
        raise LaunchError(f"nothing is missing of {study_run.folder}", hint=study_run.report_command)
    preflight(study_run, MessageProgress(log), is_remote=True)
    write_study(study_run)
    requests = clear_stop_requests(study_run)  # before: a task may start at once
    try:
        facts = backend.submit(study_run, log=log)
    except BaseException:  # nothing was started: what was stopped stays so
        with suppress(OSError):
            for request in requests:
                request.touch()
        raise
    job = replace(job, facts=facts)
    _keep_job(study_run.folder, job, backend, log=log)
    return job


def _keep_job(folder: Path, job: Job, backend: Backend, *, log: Callable[[str], None]) -> None:
    """In the folder for whoever reads it, and by the user, whose word it needs to be asked about again."""
    append_job(folder, job)
    try:
        note_launch(folder, job, backend.settings if isinstance(backend, RemoteBackend) else Cluster())
    except (OSError, LaunchError) as error:  # it runs all the same
        log(f"this launch cannot be noted, and will need --trust to be asked about: {error}")


def preflight(study_run: StudyRun, progress: Progress, *, is_remote: bool) -> None:
    """Refuse a study whose data are not there, or of which a treatment does not fit the model, before anything runs.

    Data and models of a remote run may be on that machine only: then a message says so, and nothing is refused.
    """
    from oelm.train.origin import check_origins
    from oelm.train.preflight import check_treatments

    # A model to start from must be here even for a remote run, which takes it along.
    missing = (resolve_cell(study_run.study, cell) for cell in study_run.missing(study_run.cells))
    check_origins(spec for spec in missing if spec.recipe.model.from_ is not None)
    for specs in _by_model(study_run):
        try:
            check_treatments(specs, progress=progress)
        except (DataError, FolderError, ImportError) as error:
            if not is_remote:
                raise
            arms = ", ".join(spec.arm for spec in specs)
            progress.on_message(f"{arms}: not checked before they run there, for here {str(error).splitlines()[0]}")


def _by_model(study_run: StudyRun) -> list[list[CellSpec]]:
    """A cell of every arm, together with others of the same model and data."""
    from oelm.train.origin import locate_origin

    groups: dict[str, list[CellSpec]] = {}
    for arm in study_run.arms:
        spec = resolve_cell(study_run.study, next(cell for cell in study_run.cells if cell.arm == arm))
        groups.setdefault(repr((locate_origin(spec).recipe.model, spec.recipe.data)), []).append(spec)
    return list(groups.values())


def _best_points(study_run: StudyRun) -> tuple[dict[Cell, Point | None], list[Excluded]]:
    """What the tuning has chosen for every compared cell, and the cells for which it could not."""
    from oelm.analysis.results import Excluded

    study, folder = study_run.study, study_run.folder
    if study.tune is None:
        return dict.fromkeys(study_run.compared), []
    tuned: dict[Cell, Point | None] = {}
    untuned = []
    records = {
        cell: record
        for cell in tuning_cells(both_stages(study))
        if (record := read_record(folder / cell.folder)) is not None
    }
    for cell in study_run.compared:
        try:
            tuned[cell] = best_point(study, cell, records)
        except StudyError as error:
            untuned.append(Excluded(where=str(cell), why=verbatim(str(error).splitlines()[0])))
    return tuned, untuned


def _restrict(results: Results, study_run: StudyRun) -> Results:
    """The results of what was asked for."""
    seeds, planned = {cell.seed for cell in study_run.compared}, study_run.study.seeds
    some = None if seeds.issuperset(planned) else [seed for seed in planned if seed in seeds]
    return results.restricted(arms=study_run.arms, seeds=some)


def _train_simple_baselines(results: Results, tuned: Mapping[Cell, Point | None], progress: Progress) -> bool:
    """What a model without attention reaches on the same rows, where it is not known yet; whether there is more now."""
    from oelm.runs.simple_baseline import find_simple_baseline, read_simple_baselines

    known = list(results.simple_baselines)
    try:
        read_simple_baselines(results.folder)
    except NewerFormat as error:
        progress.on_message(f"{str(error).splitlines()[0]}, and leaves it as it is")
        return False
    except OelmError as error:
        progress.on_message(f"{' '.join(str(error).split())}; it is made again")
        with suppress(OSError):  # what is in its place and no file is in the way, and that is said below
            (results.folder / SIMPLE_BASELINE).unlink()
    for cell, record in results.records.items():
        task = TASKS.get(record.spec.recipe.data.task)
        if record.status != "done" or find_simple_baseline(record.data, known) is not None:
            continue
        if task is not None and not task.has_simple_baseline:
            continue
        from oelm.train.cell import load_data, open_splits
        from oelm.train.origin import locate_origin
        from oelm.train.simple_baseline import save_simple_baseline

        progress.on_prepare("training a model of word counts to compare with", 0, 0)
        try:
            recipe = locate_origin(resolve_cell(results.study, cell, tuned.get(cell))).recipe
            known.append(save_simple_baseline(results.folder, load_data(recipe, progress), open_splits(recipe)))
        except OelmError as error:  # the cells are done, and that is what counts
            progress.on_message(f"there is no simple baseline to compare with: {str(error).splitlines()[0]}")
            break
    return len(known) > len(results.simple_baselines)
