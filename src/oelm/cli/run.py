"""`oelm run`: run the cells of a study that are missing."""

import json
from dataclasses import asdict
from typing import Annotated

import typer

from oelm.cli.echo import echo, warn
from oelm.cli.options import (
    ArmOption,
    CellOption,
    JsonOption,
    OutOption,
    SeedOption,
    SetOption,
    StudyArgument,
    with_backend,
)
from oelm.cli.quiet import quiet_loading
from oelm.errors import LaunchError, StudyError
from oelm.launch.backends.base import Backend, LocalBackend, RemoteBackend
from oelm.launch.study_run import CellFilter, StudyRun, open_run
from oelm.runs.layout import RUNS
from oelm.runs.lock import find_changes, read_lock
from oelm.runs.record import Record, read_record
from oelm.runs.status import read_state
from oelm.study.load import load_study
from oelm.study.plugins import consent_options
from oelm.study.study import Study
from oelm.train.progress import format_metrics


@with_backend
def run(
    study: StudyArgument,
    backend: Backend,
    arms: ArmOption = None,
    seeds: SeedOption = None,
    cells: CellOption = None,
    second_stage: Annotated[bool, typer.Option("--second-stage", help="Also the seeds of the second stage")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the script, submit nothing (slurm)")] = False,
    overrides: SetOption = None,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Run the missing cells of a study and show the results"""
    if dry_run and as_json:
        raise LaunchError("--json does not apply to --dry-run, which prints a script")
    loaded = load_study(study, overrides or ())
    if second_stage:
        seeds = _with_second_stage(loaded, seeds)
    study_run = open_run(loaded, out=out, arms=arms, seeds=seeds, cells=cells)
    if dry_run:
        print_scripts(study_run, backend)
        return
    if not study_run.is_named:
        _warn_if_invalid(loaded)
        _warn_if_added(study_run)
    launch(study_run, backend, as_json=as_json)


def _with_second_stage(study: Study, seeds: list[int] | None) -> list[int]:
    if not study.second_stage:
        raise StudyError(
            f"{study.name} has no second stage",
            why="seeds that were not planned decide nothing",
            hint="second_stage: [5, 6, 7, 8, 9] in a new study",
        )
    return list(dict.fromkeys((*(study.seeds if seeds is None else seeds), *study.second_stage)))


def print_scripts(study_run: StudyRun, backend: Backend) -> None:
    scripts = backend.render(study_run) if isinstance(backend, RemoteBackend) else None
    if scripts is None:
        raise LaunchError(
            f"--dry-run does not apply to --on {backend.on}", hint="--on slurm --dry-run, or: oelm plan STUDY"
        )
    echo("\n".join(scripts), nl=False)
    warn("Not submitted: the study file and the folders that it names do not exist yet.")


def launch(study_run: StudyRun, backend: Backend, *, as_json: bool) -> None:
    """Run or submit, and show what came of it."""
    if isinstance(backend, RemoteBackend):
        _submit(study_run, backend, as_json=as_json)
    else:
        assert isinstance(backend, LocalBackend)
        _run_here(study_run, backend, as_json=as_json)


def _submit(study_run: StudyRun, backend: RemoteBackend, *, as_json: bool) -> None:
    from oelm.launch.run import submit_study

    with quiet_loading():
        job = submit_study(study_run, backend, log=warn)
    if as_json:
        echo(json.dumps({"on": job.on, "cells": job.cells, "facts": job.facts}, indent=2))
        return
    folder = study_run.folder
    echo(f"{len(job.cells)} cells of {study_run.study.name} were submitted to {job.on}. Then:")
    echo(f"  oelm status {folder} --watch\n  oelm logs {job.cells[0]} -f --runs {folder}")
    echo(f"  oelm stop all --runs {folder}\n  oelm resume {folder}{consent_options(study_run.study.plugins)}")
    if not backend.shares_folder:
        echo(f"  oelm fetch {folder}")


def _run_here(study_run: StudyRun, backend: LocalBackend, *, as_json: bool) -> None:
    from oelm.analysis.text_table import results_as_dict
    from oelm.cli.progress import show_progress
    from oelm.launch.run import run_named_cells, run_study

    meant = study_run.compared or study_run.tuning
    is_few = study_run.filter != CellFilter() and len(study_run.compared) <= 1
    with quiet_loading(), show_progress(len(study_run.missing(study_run.cells))) as progress:
        if is_few and study_run.is_named and backend.is_inline(study_run):
            run_named_cells(study_run, progress)  # and read no others: there may be a thousand
        else:
            results = run_study(study_run, backend, progress)
    if is_few:
        _print_records(study_run, as_json=as_json)
    elif as_json:
        echo(json.dumps(results_as_dict(results), indent=2))
    else:
        echo(f"{results}\n\nRecords: {study_run.folder}; report: {study_run.report_command}")
    if any(read_state(study_run.folder / cell.folder) != "done" for cell in meant):
        raise typer.Exit(1)


def _print_records(study_run: StudyRun, *, as_json: bool) -> None:
    """What the cells that were picked came to, one by one."""
    found = {str(cell): read_record(study_run.folder / cell.folder) for cell in study_run.compared or study_run.tuning}
    if as_json:
        rows = [_as_dict(name, record) for name, record in found.items()]
        echo(json.dumps(rows[0] if len(rows) == 1 else rows, indent=2))
        return
    for name, record in found.items():
        echo(f"{name}: {'no record' if record is None else record.status}")
        if record is not None and record.evaluations:
            last = record.evaluations[-1]
            echo(f"  validation (step {last.step:,}): {format_metrics(last.metrics)}")
        if record is not None and record.error is not None:
            echo(f"  {record.error.what}")
    echo(f"Test numbers are for the whole study: {study_run.report_command}")


def _as_dict(cell: str, record: Record | None) -> dict[str, object]:
    """What a test split says is for whoever has all of the study: one cell shows the validation split."""
    if record is None:
        return {"cell": cell, "status": None}
    named = {"arm": record.spec.arm, "seed": record.spec.seed, "status": record.status}
    error = None if record.error is None else asdict(record.error)
    return {"cell": cell, **named, "validation": record.last_evaluation, "error": error}


def _warn_if_added(study_run: StudyRun) -> None:
    """Say of what was not planned, before hours are spent on it, that it will decide nothing."""
    lock = read_lock(study_run.folder, study_run.study.name)
    added = find_changes(lock, study_run.study).added if lock is not None else ()
    if added:
        warn(f"added after the first cell was started, and so exploratory: {', '.join(added)}")


def _warn_if_invalid(study: Study) -> None:
    """Say what makes a comparison worthless before hours are spent on it."""
    from oelm.analysis.checks.design import check_study
    from oelm.analysis.checks.registry import format_issues

    for line in format_issues([issue for issue in check_study(study) if issue.severity == "invalid"]):
        warn(line)
