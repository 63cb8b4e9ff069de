"""`oelm bench`: does freezing buy time and memory?"""

import json
import re
from pathlib import Path
from typing import Annotated

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
    budget: Annotated[str, typer.Option(help="Stop after this time at the latest: 90s, 5m, 1h.")] = "5m",
    seed: Annotated[int, typer.Option(help="Of the order in which the arms take turns.")] = 0,
    memory: Annotated[bool, typer.Option(help="Measure the memory of every arm in a process of its own.")] = True,
    overrides: SetOption = None,
    out: OutOption = RUNS,
    as_json: JsonOption = False,
) -> None:
    """Time the steps of a study's arms against each other, in short turns, beside what freezing can save at most."""
    from oelm.bench.run import bench as run
    from oelm.cli.progress import timing

    loaded = load_study(study, overrides or ())
    named = None if arms is None else [name.strip() for name in arms.split(",") if name.strip()]
    seconds = _seconds(budget)
    with quiet_loading(), timing(seconds) as watch:
        found = run(
            loaded, arms=named, precision=precision, budget=seconds, seed=seed, memory=memory, out=out, watch=watch
        )
    place = Path(out) / loaded.name / "bench.json"
    typer.echo(json.dumps(found.to_dict(), indent=2) if as_json else f"{found}\n\nMeasurements: {place}")


def _seconds(text: str) -> float:
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(s|m|min|h|)\s*", text)
    if found is None:
        raise StudyError(f"--budget '{text}' is no time", hint="--budget 90s, 5m or 1h")
    return float(found[1]) * _UNITS[found[2]]
