"""`oelm bench`: does freezing buy time and memory?"""

import json
import re
import signal
from pathlib import Path
from typing import Annotated, Any

import typer

from oelm.cli.compare import JsonOption, OutOption, SetOption, StudyArgument
from oelm.cli.quiet import quiet_loading
from oelm.errors import StudyError
from oelm.records.store import RUNS
from oelm.study.load import load_study

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "min": 60.0, "h": 3600.0}


def bench(
    study: StudyArgument,
    arms: Annotated[str | None, typer.Option(help="Only these arms, and the one compared with: oelm-freeze.")] = None,
    precision: Annotated[float, typer.Option(help="Stop when the interval reaches no further to each side.")] = 0.01,
    budget: Annotated[
        str, typer.Option(help="Time so long at the most: 90s, 5m. Loading and memory come on top.")
    ] = "5m",
    seed: Annotated[int, typer.Option(help="Of the order in which the arms take turns.")] = 0,
    memory: Annotated[bool, typer.Option(help="Measure the memory of every arm in a process of its own.")] = True,
    apart: Annotated[
        bool | None,
        typer.Option("--apart/--together", help="Visit every arm in a process of its own. By default, if memory asks."),
    ] = None,
    shapes: Annotated[
        bool, typer.Option("--shapes", help="Instead, in several widths, lengths and batch sizes, in the same time.")
    ] = False,
    widths: Annotated[str | None, typer.Option(help="Of --shapes: 256,512,768.")] = None,
    lengths: Annotated[str | None, typer.Option(help="Of --shapes, in tokens: 64,128.")] = None,
    batches: Annotated[str | None, typer.Option(help="Of --shapes: 8,32.")] = None,
    overrides: SetOption = None,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Time the steps of a study's arms against each other, in short turns, beside what freezing can save at most."""
    named = None if arms is None else [name.strip() for name in arms.split(",") if name.strip()]
    seconds = _seconds(budget)
    given = {"widths": widths, "lengths": lengths, "batches": batches}
    sizes: dict[str, Any] = {name: _numbers(text, name) for name, text in given.items()}
    _check_together(shapes, sizes, apart, memory)
    from oelm.analysis.timed import BENCH, SHAPES
    from oelm.bench.figure import draw_bench, draw_shapes
    from oelm.cli.progress import timing

    loaded = load_study(study, overrides or ())
    common: dict[str, Any] = {"arms": named, "precision": precision, "budget": seconds, "seed": seed, "out": out}
    with quiet_loading(), timing(seconds) as watch:
        if shapes:
            from oelm.bench.sweep import bench_shapes

            found: Any = bench_shapes(loaded, **sizes, **common, watch=watch)
        else:
            from oelm.bench.run import bench as run

            found = run(loaded, memory=memory, apart=apart, **common, watch=watch)
    folder = Path(out) / loaded.name
    places = f"Measurements: {folder / (SHAPES if shapes else BENCH)}"
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else f"{found}\n\n{places}")
    drawing = (draw_shapes if shapes else draw_bench)(loaded, folder)
    if not as_json:
        typer.echo(f"Figure:       {drawing}")
    if found.interrupted:
        raise typer.Exit(128 + signal.SIGINT)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
    if found is None:
        raise StudyError(f"--budget '{text}' is no time", hint="--budget 90s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]


def _numbers(text: str | None, option: str) -> list[int] | None:
    """A comma between two of them; each once, from the smallest."""
    if text is None:
        return None
    parts = [part.strip() for part in text.split(",")]
    wrong = next((part for part in parts if not re.fullmatch(r"0*[1-9][0-9]{0,8}", part)), None)
    if wrong is not None:
        raise StudyError(
            f"--{option} '{text}' are no sizes",
            why=f"'{wrong}' is no whole number from 1 on" if wrong else "there is nothing between two commas",
            hint=f"--{option} 64,128",
        )
    return sorted({int(part) for part in parts})


def _check_together(shapes: bool, sizes: dict[str, list[int] | None], apart: bool | None, memory: bool) -> None:
    """What has no meaning together is not passed over in silence."""
    alone = next((name for name, numbers in sizes.items() if numbers is not None), None)
    if alone is not None and not shapes:
        raise StudyError(f"--{alone} is of --shapes", hint=f"--shapes --{alone} ...")
    if shapes and not memory:
        raise StudyError("--shapes measures no memory", hint="leave out --no-memory")
    if shapes and apart:
        raise StudyError("--shapes has all arms in one process", why="a shape that does not fit is left out")
