"""`oelm`: the entry point. Errors a user can cause are one message and exit code 2, never a traceback."""

import os
import sys
from typing import Annotated

import typer

from oelm.cli.audit import audit
from oelm.cli.inspect import inspect
from oelm.errors import OelmError
from oelm.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Head-wise orthogonal, frozen queries and keys on any Transformer: applied exactly and audited.",
)
app.command()(inspect)
app.command()(audit)


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
    try:
        app()
    except OelmError as error:
        sys.stderr.write(f"{type(error).__name__}: {error}\n")
        sys.exit(2)
    except BrokenPipeError:  # `oelm ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        sys.stderr.write("stopped\n")
        sys.exit(130)
