"""`oelm bench`: does freezing buy time and memory?"""

import re
import signal
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.echo import echo
from oelm.cli.options import JsonOption, OutOption, SetOption, StudyArgument
from oelm.cli.quiet import quiet_loading
from oelm.errors import StudyError, is_installed, require
from oelm.installation import install_command
from oelm.runs.layout import RUNS
from oelm.study.load import load_study
from oelm.study.study import Study

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def bench(
    study: StudyArgument,
    arms: Annotated[
        str | None, typer.Option(help="Arms to time next to the baseline, e.g. oelm-freeze,oelm-random")
    ] = None,
    precision: Annotated[float, typer.Option(help="Half-width of the 95 % interval to stop at")] = 0.01,
    budget: Annotated[
        str, typer.Option(help="Time budget, e.g. 90s, 5m, without loading and memory measurements")
    ] = "5m",
    seed: Annotated[int, typer.Option(help="Seed of the order of turns")] = 0,
    memory: Annotated[bool, typer.Option(help="Measure the memory of every arm")] = True,
    isolate: Annotated[
        bool | None,
        typer.Option(help="A process for every arm, one at a time [default: if memory is short]"),
    ] = None,
    overrides: SetOption = None,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Time the steps of arms side by side, next to the most freezing can save"""
    names = None if arms is None else [name.strip() for name in arms.split(",") if name.strip()]
    seconds = _parse_duration(budget)
    require("lab", needed_by="oelm bench")
    from oelm.bench.run import bench as run
    from oelm.cli.progress import timing
    from oelm.runs.bench import BENCH_FILE

    loaded = load_study(study, overrides or ())
    with quiet_loading(), timing(seconds) as progress:
        found = run(
            loaded,
            arms=names,
            precision=precision,
            budget=seconds,
            seed=seed,
            memory=memory,
            isolate=isolate,
            out=out,
            progress=progress,
        )
    folder = Path(out) / loaded.name
    text = f"{found}\n\nMeasurements: {folder / BENCH_FILE.name}\n"
    echo(BENCH_FILE.dumps(found) if as_json else text, nl=False)
    figure = _draw(loaded, folder)
    if not as_json:
        echo(f"Figure:       {figure}")
    if found.stopped_by == "interrupted":
        raise typer.Exit(128 + signal.SIGINT)


def _draw(study: Study, folder: Path) -> str:
    if not is_installed("matplotlib"):
        return f"none, because matplotlib is not installed; try: {install_command('report')}"
    from oelm.report.figures.timed import draw_bench

    return str(draw_bench(study, folder))


def _parse_duration(text: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
    if found is None:
        raise StudyError(f"invalid duration: --budget '{text}'", hint="--budget 90s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]
