"""`oelm`: the entry point. Errors a user can cause are one message and exit code 2, never a traceback."""

import io
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from oelm.errors import OelmError, Stopped, did_you_mean
from oelm.version import __version__

# By name: the module below oelm.cli, and what --help says of it.
COMMANDS = {
    "plan": ("plan", "Show the cells of a study, what differs between its arms, what is done, and the time left."),
    "check": ("check", "Look for what would make a comparison unfair."),
    "compare": ("compare", "Run what is missing of a study, and show its results."),
    "report": ("report", "Make the report of every study below a folder."),
    "bench": ("bench", "Time the steps of a study's arms against each other, beside what freezing can save."),
    "status": ("status", "Show where every cell stands, wherever it runs."),
    "logs": ("logs", "Show what happened in a cell; with -f also what happens next."),
    "stop": ("stop", "Have cells write a checkpoint and stop, wherever they run."),
    "resume": ("stop", "Go on with what is missing, where and how it was started last."),
    "fetch": ("stop", "Bring the records of studies that run over ssh back to this machine."),
    "train": ("compare", "Run one cell of a study."),
    "inspect": ("inspect", "Show the heads of a model, and what a treatment would freeze and save."),
    "audit": ("audit", "Audit a saved model: are its frozen bits what they were?"),
    "studies": ("studies", "The studies that come with oelm: list, show, copy."),
    "claims": ("claims", "Published claims: the checks that fire on them, and what our records say."),
}


class Commands(TyperGroup):
    """Imports a command when it is called: the list of all of them must not wait for what any of them needs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            ctx.fail(f"there is no command '{cmd_name}'{did_you_mean(cmd_name, COMMANDS)}")
        module = import_module(f"oelm.cli.{COMMANDS[cmd_name][0]}")
        if hasattr(module, "app"):
            command = typer.main.get_command(module.app)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command()(getattr(module, cmd_name))
            command = typer.main.get_command(alone)
        command.name = cmd_name
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, told) for name, (_, told) in COMMANDS.items()])


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Head-wise orthogonal, frozen queries and keys on any Transformer: applied exactly, audited, compared fairly.",
)


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
