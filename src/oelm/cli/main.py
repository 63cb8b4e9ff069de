"""`oelm`: the entry point. Errors a user can cause are one message and exit code 2, never a traceback."""

import io
import os
import sys
from importlib import import_module
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from oelm.cli.echo import echo, warn
from oelm.errors import Extra, OelmError, Stopped, did_you_mean, explain_import
from oelm.masking import HOW_TO_PASS, has_secret
from oelm.train.process import avoid_spinning
from oelm.version import __version__

# By name: the module below oelm.cli, and what --help says of it.
COMMANDS = {
    "plan": ("plan", "Show the cells, arm differences, counts and estimated time of a study"),
    "check": ("check", "Find what makes a comparison unfair, in a study or its records"),
    "run": ("run", "Run the missing cells of a study and show the results"),
    "report": ("report", "Write the report of every study below a folder, or one over several"),
    "data": ("data", "Show rows, labels, lengths, overlap and examples of data, before training on them"),
    "bench": ("bench", "Time the steps of arms side by side, next to the most freezing can save"),
    "status": ("status", "Show the state of every cell"),
    "logs": ("logs", "Show the log of a cell"),
    "stop": ("stop", "Checkpoint and stop cells, wherever they run"),
    "resume": ("stop", "Resume what is missing, where it last ran"),
    "fetch": ("stop", "Copy records from ssh hosts to this machine"),
    "inspect": ("inspect", "Show the heads of a model, and what a treatment would freeze and save"),
    "audit": ("audit", "Audit a saved model: counts, frozen bits, geometry"),
    "studies": ("studies", "List, show or copy shipped studies"),
    "claims": ("claims", "List or check published claims, next to our records"),
}


# Commands that read a study: `--plugin` is an option of each, added here.
_READ_STUDIES = ("plan", "check", "run", "report", "data", "bench", "status", "logs", "stop", "resume", "fetch")


def _agree(plugins: list[str] | None) -> None:
    from oelm.study.plugins import agree_to_plugins

    agree_to_plugins(plugins or ())


PluginOption = Annotated[
    list[str] | None,
    typer.Option(
        "--plugin",
        metavar="MODULE",
        callback=_agree,
        expose_value=False,
        help="Plugin to allow: my_module, or ./my_module.py (repeatable)",
    ),
]


def _plugin_option() -> Any:
    """As typer makes it for a command, to be added to others."""
    alone = typer.Typer(add_completion=False)
    alone.command()(_takes_plugins)
    return typer.main.get_command(alone).params[0]


def _takes_plugins(plugins: PluginOption = None) -> None:
    pass


class Commands(TyperGroup):
    """Imports a command when it is called: the list of all of them must not wait for what any of them needs."""

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        if cmd_name not in COMMANDS:
            ctx.fail(f"there is no command '{cmd_name}'{did_you_mean(cmd_name, COMMANDS)}")
        from oelm.cli.options import GroupedCommand

        module = import_module(f"oelm.cli.{COMMANDS[cmd_name][0]}")
        group = getattr(module, f"{cmd_name}_app", None)
        if group is not None:
            command = typer.main.get_command(group)
        else:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None)
            alone.command(cls=GroupedCommand)(getattr(module, cmd_name))
            command = typer.main.get_command(alone)
        command.name = cmd_name
        if cmd_name in _READ_STUDIES:
            command.params.append(_plugin_option())
        return command

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help) for name, (_, help) in COMMANDS.items()])


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Head-wise orthogonal, frozen queries and keys on any Transformer: applied exactly, audited, compared fairly",
)


def _version(wanted: bool) -> None:
    if wanted:
        echo(f"oelm {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit")
    ] = False,
) -> None:
    pass


def main() -> None:
    try:
        _main()
    except SystemExit as end:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            _exit_at_once(end.code)
        raise


def _exit_at_once(code: object) -> None:
    """End one of several processes without tidying up.

    While the interpreter ends, DDP waits for a thread of the process group, and that may wait for the interpreter.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code if isinstance(code, int) else int(code is not None))


def _main() -> None:
    avoid_spinning()
    # pydantic looks through all installed packages for plugins of its own.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # whatever is in a record can be printed
    if has_secret(" ".join(sys.argv[1:])):
        warn(f"what looks like a secret in this command is not recorded; next time, {HOW_TO_PASS}")
    try:
        app()
    except Stopped as error:
        warn(error)
        sys.exit(128 + error.signal)
    except OelmError as error:
        _refuse(error)
    except ModuleNotFoundError as error:
        command = next((word for word in sys.argv[1:] if word in COMMANDS), "")
        extra: Extra | None = None if command in ("inspect", "audit") else "lab"  # the others run studies, or read them
        missing = explain_import(error, needed_by=f"oelm {command}".strip(), extra=extra)
        if missing is None:
            raise
        _refuse(missing)
    except BrokenPipeError:  # `oelm ... | head` has read enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    except KeyboardInterrupt:
        warn("stopped")
        sys.exit(130)


def _refuse(error: OelmError) -> None:
    warn(f"{type(error).__name__}: {error}")
    sys.exit(2)
