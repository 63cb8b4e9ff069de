"""`oelm compare` and `oelm train`: run the cells of a study that are missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oelm.cli.quiet import quiet_loading
from oelm.errors import LaunchError, StudyError
from oelm.records.standing import status_of
from oelm.records.store import FINISHED, RUNS
from oelm.study.load import load_study
from oelm.study.plan import cells, points, restricted, tuning_cells

if TYPE_CHECKING:
    from oelm.launch.launch import Launch

StudyArgument = Annotated[str, typer.Argument(help="A study file, or the name of a shipped study.")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override anything: recipe.budget.steps=100. May be repeated.")
]
OutOption = Annotated[Path, typer.Option(help="Where cells are kept.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON.")]


def compare(
    study: StudyArgument,
    arms: Annotated[str | None, typer.Option(help="Only these arms: baseline,oelm-freeze.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Only these seeds: 0,1.")] = None,
    on: Annotated[str, typer.Option(help="local, torchrun, slurm, or ssh://user@host/folder.")] = "local",
    workers: Annotated[
        int | None, typer.Option(help="Cells at once, local and over ssh. [default: GPUs, or 1]")
    ] = None,
    nproc: Annotated[int | None, typer.Option(help="torchrun: processes a machine, for one cell.")] = None,
    nnodes: Annotated[int | None, typer.Option(help="torchrun: machines; give the same command on each.")] = None,
    meeting: Annotated[str | None, typer.Option(help="torchrun: a new name that those machines share.")] = None,
    interface: Annotated[str | None, typer.Option(help="torchrun: network interface. [default: lo]")] = None,
    partition: Annotated[str | None, typer.Option(help="slurm.")] = None,
    account: Annotated[str | None, typer.Option(help="slurm.")] = None,
    time: Annotated[str | None, typer.Option(help="slurm: limit for a turn of a cell; it goes on in another.")] = None,
    gres: Annotated[str | None, typer.Option(help="slurm: gpu:1.")] = None,
    array_limit: Annotated[int | None, typer.Option(help="slurm: cells at once.")] = None,
    warn: Annotated[
        int | None, typer.Option(help="slurm: seconds before the limit to checkpoint. [default: 120]")
    ] = None,
    sbatch: Annotated[list[str] | None, typer.Option(help="slurm: any other option, mem=16G. May be repeated.")] = None,
    dry_run: Annotated[bool, typer.Option(help="slurm: print the script and submit nothing.")] = False,
    overrides: SetOption = None,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Run what is missing of a study, and show its results. The same command goes on after any interruption."""
    from oelm.analysis.checks import check_study
    from oelm.analysis.flags import flags_shown
    from oelm.launch.launch import Launch
    from oelm.launch.where import SLURM, Where

    where = Where(
        on=on,
        workers=workers,
        nproc=nproc,
        nnodes=nnodes,
        meeting=meeting,
        interface=interface,
        partition=partition,
        account=account,
        time=time,
        gres=gres,
        array_limit=array_limit,
        warn=warn,
        sbatch=_pairs(sbatch or []),
    )
    if dry_run and where.kind != SLURM:
        raise LaunchError(f"--dry-run does not go with --on {on}", hint="--on slurm --dry-run, or: oelm plan STUDY")
    if dry_run and as_json:
        raise LaunchError("--json does not go with --dry-run, which prints a script")
    loaded = load_study(study, overrides or ())
    launch = Launch(
        study=loaded,
        where=where,
        out=out,
        arms=None if arms is None else [name.strip() for name in arms.split(",") if name.strip()],
        seeds=None if seeds is None else _numbers(seeds, loaded.seeds),
    )
    for line in flags_shown([flag for flag in check_study(loaded) if flag.severity == "invalid"]):
        typer.echo(line, err=True)  # before hours are spent on it
    if dry_run:
        typer.echo("\n".join(launch.scripts()), nl=False)
        typer.echo(
            "To look at: the study file and the folders that it names are made by the same command without --dry-run.",
            err=True,
        )
        return
    started(launch, as_json=as_json)


def started(launch: Launch, *, as_json: bool) -> None:
    """Start a launch, and show what came of it."""
    from oelm.analysis.shown import as_dict
    from oelm.cli.progress import progress
    from oelm.launch.where import LOCAL, TORCHRUN

    folder = launch.out / launch.study.name
    if launch.where.kind not in (LOCAL, TORCHRUN):
        job = launch.elsewhere(lambda text: typer.echo(text, err=True))
        if as_json:
            typer.echo(json.dumps({"on": job.on, "cells": job.cells, "facts": job.facts}, indent=2))
        else:
            typer.echo(f"{len(job.cells)} cells of {launch.study.name} were handed to {job.on}. Then:")
            typer.echo(f"  oelm status {folder} --watch\n  oelm logs {job.cells[0]} -f --runs {folder}")
            typer.echo(f"  oelm stop all --runs {folder}\n  oelm resume {folder}")
            if job.on.startswith("ssh://"):
                typer.echo(f"  oelm fetch {folder}")
        return
    part = restricted(launch.study, arms=launch.arms, seeds=launch.seeds)
    missing = [cell for cell in (*tuning_cells(part), *cells(part)) if status_of(folder / cell.folder) not in FINISHED]
    with quiet_loading(), progress(len(missing)) as watch:
        results = launch.here(watch)
    typer.echo(
        json.dumps(as_dict(results), indent=2)
        if as_json
        else f"{results}\n\nRecords: {folder}; a report of them: oelm report {folder}"
    )
    if any(status_of(folder / cell.folder) != "done" for cell in cells(part)):
        raise typer.Exit(1)


def train(
    study: StudyArgument,
    arm: Annotated[str | None, typer.Option(help="The arm.")] = None,
    seed: Annotated[int | None, typer.Option(help="The seed; one of the tuning's runs its whole grid.")] = None,
    cell: Annotated[str | None, typer.Option(help="Instead of both: baseline/seed-0, as `oelm plan` names it.")] = None,
    overrides: SetOption = None,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Run one cell of a study."""
    from oelm.cli.progress import progress
    from oelm.launch.compare import run_cell, run_named

    if (cell is None) == (arm is None or seed is None):
        raise StudyError("which cell is it?", hint="--arm ARM --seed SEED, or --cell baseline/seed-0")
    loaded = load_study(study, overrides or ())
    number = len(points(loaded)) if loaded.tune is not None and seed in loaded.tune.seeds else 1
    with quiet_loading(), progress(number) as watch:
        if cell is not None:
            record = run_named(loaded, cell, out=out, watch=watch)
        else:
            assert arm is not None
            assert seed is not None
            record = run_cell(loaded, arm=arm, seed=seed, out=out, watch=watch)
    arm, seed = record.made_with["arm"], record.made_with["seed"]
    if as_json:
        typer.echo(
            json.dumps(
                {"arm": arm, "seed": seed, "status": record.status, "report": record.report, "error": record.error},
                indent=2,
            )
        )
    else:
        typer.echo(f"{arm} seed {seed}: {record.status}")
        for which, measured in record.report.items():
            for split, metrics in measured["splits"].items():
                values = ", ".join(f"{name} {value:.4f}" for name, value in metrics.items())
                typer.echo(f"  {which} (step {measured['step']:,}) on {split}: {values}")
        if record.error is not None:
            typer.echo(f"  {record.error['what']}")
    if record.status != "done":
        raise typer.Exit(1)


def _pairs(texts: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not name or not equals:
            raise LaunchError(f"--sbatch '{name}{equals}{value}' is no option with a value", hint="--sbatch mem=16G")
    return {name: value for name, _, value in pairs}


def _numbers(text: str, known: tuple[int, ...]) -> list[int]:
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        raise StudyError(f"--seeds '{text}' is not a list of whole numbers", hint="--seeds 0,1") from None
    strange = [number for number in numbers if number not in known]
    if strange:
        raise StudyError(
            f"the study has no seed {strange[0]}", hint=f"one of {', '.join(map(str, known))}, or --set seeds=[...]"
        )
    return numbers
