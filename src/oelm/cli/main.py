"""`oelm`: the entry point. Errors a user can cause are one message and exit code 2, never a traceback."""

import io
import os
import sys
from typing import Annotated

import typer

from oelm.cli import claims, studies
from oelm.cli.audit import audit
from oelm.cli.bench import bench
from oelm.cli.check import check
from oelm.cli.compare import compare, train
from oelm.cli.inspect import inspect
from oelm.cli.plan import plan
from oelm.cli.report import report
from oelm.cli.status import status
from oelm.errors import OelmError, Stopped
from oelm.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Head-wise orthogonal, frozen queries and keys on any Transformer: applied exactly, audited, compared fairly.",
)
for command in (plan, check, compare, report, bench, status, train, inspect, audit):
    app.command()(command)
app.add_typer(studies.app, name="studies")
app.add_typer(claims.app, name="claims")


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"oelm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever stands in a record can be shown
    try:
        app()
    except Stopped as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(128 + error.signal)
    except OelmError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # `oelm ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
