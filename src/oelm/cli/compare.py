"""`oelm compare` and `oelm train`: run the cells of a study that are missing."""

import json
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.quiet import quiet_loading
from oelm.errors import StudyError
from oelm.records.store import FINISHED, RUNS, status_of
from oelm.study.load import load_study
from oelm.study.plan import cells, points, restricted, tuning_cells

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
    overrides: SetOption = None,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Run what is missing of a study, and show its results. The same command goes on after any interruption."""
    from oelm.analysis.checks import check_study
    from oelm.analysis.flags import flags_shown
    from oelm.analysis.shown import as_dict
    from oelm.cli.progress import progress
    from oelm.launch.local import compare as run_study

    loaded = load_study(study, overrides or ())
    chosen_arms = None if arms is None else [name.strip() for name in arms.split(",") if name.strip()]
    chosen_seeds = None if seeds is None else _numbers(seeds, loaded.seeds)
    part = restricted(loaded, arms=chosen_arms, seeds=chosen_seeds)
    folder = out / loaded.name
    for line in flags_shown([flag for flag in check_study(loaded) if flag.severity == "invalid"]):
        typer.echo(line, err=True)  # before hours are spent on it
    missing = [cell for cell in (*tuning_cells(part), *cells(part)) if status_of(folder / cell.folder) not in FINISHED]
    with quiet_loading(), progress(len(missing)) as watch:
        results = run_study(loaded, out=out, arms=chosen_arms, seeds=chosen_seeds, watch=watch)
    typer.echo(
        json.dumps(as_dict(results), indent=2)
        if as_json
        else f"{results}\n\nRecords: {folder}; a report of them: oelm report {folder}"
    )
    if any(status_of(folder / cell.folder) != "done" for cell in cells(part)):
        raise typer.Exit(1)


def train(
    study: StudyArgument,
    arm: Annotated[str, typer.Option(help="The arm.")],
    seed: Annotated[int, typer.Option(help="The seed; one of the tuning's runs its whole grid.")],
    overrides: SetOption = None,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Run one cell of a study."""
    from oelm.cli.progress import progress
    from oelm.launch.local import run_cell

    loaded = load_study(study, overrides or ())
    number = len(points(loaded)) if loaded.tune is not None and seed in loaded.tune.seeds else 1
    with quiet_loading(), progress(number) as watch:
        record = run_cell(loaded, arm=arm, seed=seed, out=out, watch=watch)
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
