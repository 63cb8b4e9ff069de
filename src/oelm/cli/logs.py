"""`oelm logs`: what happened in a cell, wherever it ran."""

import os
import time
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from oelm.cli.echo import echo, warn
from oelm.cli.options import RunsOption, TrustOption, trust_if
from oelm.errors import CellError
from oelm.runs.files import read_regular
from oelm.runs.layout import FINISHED, LOG, RUNS
from oelm.runs.lease import holder_of
from oelm.runs.status import read_state

_SECONDS = 0.5  # between two looks


def logs(
    cell: Annotated[str, typer.Argument(help="Cell, e.g. baseline/seed-0, or its folder")],
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow while the cell runs")] = False,
    runs: RunsOption = RUNS,
    trust: TrustOption = False,
) -> None:
    """Show the log of a cell"""
    from oelm.launch.backends.dispatch import last_job, select_cells
    from oelm.launch.backends.registry import backend_of, is_remote
    from oelm.launch.launched import NotLaunchedHere

    trust_if(trust, runs)
    found = select_cells(runs, [cell])[0]
    paths, job = [found.folder / LOG], last_job(found.study, found.cell)
    if job is not None and is_remote(job.on):
        try:
            backend = backend_of(job)
            if read_state(found.folder) not in FINISHED:
                code = backend.stream_logs(job, cell=found.cell, follow=follow, write=partial(echo, nl=False), log=warn)
                if code is not None:
                    raise typer.Exit(code)
            paths = backend.logs(job, study=found.study, cell=found.cell)
        except NotLaunchedHere as error:  # what is in the folder can be shown
            warn(error)
    if not follow and not any(map(os.path.lexists, paths)):
        raise CellError(f"{found.name} has no log yet", hint=f"oelm status {found.study}, or: oelm logs {cell} -f")
    if follow and not os.path.lexists(paths[0]):
        for path in paths[1:]:  # why it could not begin
            _show(path, found.folder, follow=False)
    for path in paths if not follow else paths[:1]:
        _show(path, found.folder, follow=follow)


def _show(path: Path, folder: Path, *, follow: bool) -> None:
    offset = 0
    while True:
        holder = holder_of(folder)
        over = not follow or (os.path.lexists(path) and not (holder is not None and holder.is_alive))
        if os.path.lexists(path):
            text = read_regular(path, start=offset) or b""
            offset += len(text)
            if text:
                echo(text.decode(errors="replace"), nl=False)
        if over and (not follow or read_state(folder) != "pending"):
            return
        time.sleep(_SECONDS)
