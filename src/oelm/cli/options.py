"""Options that several commands share, and those that are made from the backends' options."""

import functools
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from oelm.cli.echo import warn
from oelm.errors import LaunchError

StudyArgument = Annotated[str, typer.Argument(help="Study file, or name of a shipped study")]
RunsArgument = Annotated[Path, typer.Argument(help="Folder of runs, or of a study")]
RunsOption = Annotated[Path, typer.Option(help="Folder of runs, or of a study")]
SetOption = Annotated[
    list[str] | None, typer.Option("--set", help="Override, e.g. recipe.budget.steps=100 (repeatable)")
]
OutOption = Annotated[Path, typer.Option(help="Folder for cells")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON")]
TrustOption = Annotated[
    bool, typer.Option("--trust", help="Trust jobs here that were launched elsewhere: ask the hosts they name")
]
ArmOption = Annotated[list[str] | None, typer.Option("--arm", help="Only this arm (repeatable)")]
SeedOption = Annotated[
    list[int] | None, typer.Option("--seed", help="Only this seed, also of the tuning grid (repeatable)")
]
CellOption = Annotated[
    list[str] | None, typer.Option("--cell", help="Only this cell, e.g. baseline/seed-0 (repeatable)")
]
_FIRST = ("Arguments", "Options")
_ON = "Backend: local, torchrun, slurm, or ssh://user@host/folder"


def trust_if(wanted: bool, runs: Path) -> None:
    """With `--trust`, note the jobs below a folder, and say first what that is."""
    from oelm.launch.backends.dispatch import trust_folder

    for line in trust_folder(runs) if wanted else ():
        warn(line)


class GroupedCommand(TyperCommand):
    """Shows its options in the groups that they name as `rich_help_panel`, without waiting for rich."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {}
        for param in self.get_params(ctx):
            row = param.get_help_record(ctx)
            if row is not None:
                is_argument = param.param_type_name == "argument"
                group = getattr(param, "rich_help_panel", None) or ("Arguments" if is_argument else "Options")
                groups.setdefault(group, []).append(row)
        for name in sorted(groups, key=lambda name: _FIRST.index(name) if name in _FIRST else len(_FIRST)):
            with formatter.section(name):
                formatter.write_dl(groups[name])


def with_backend(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command `--on` and the options of every backend. It is called with the `backend` that they make."""
    own = inspect.signature(command, eval_str=True)
    made = list(_backend_parameters())

    @functools.wraps(command)
    def call(**values: Any) -> None:
        from oelm.launch.backends.registry import parse_backend

        typed = {one.name: values.pop(one.name) for one in made}
        on = typed.pop("on")
        given = {name: _parse_value(name, value) for name, value in typed.items() if value not in (None, [])}
        command(**values, backend=parse_backend(on, given))

    kept = [one for one in own.parameters.values() if one.name != "backend"]
    del call.__wrapped__  # its signature is not ours
    call.__signature__ = inspect.Signature([*kept, *made])  # type: ignore[attr-defined]
    call.__annotations__ = {one.name: one.annotation for one in (*kept, *made)}
    return call


def _backend_parameters() -> Iterator[inspect.Parameter]:
    """`--on`, and an option for every field of the backends' options, which several of them may share."""
    from oelm.launch.backends.options import cli_fields, default_of
    from oelm.launch.backends.registry import backend_options

    yield _parameter("on", Annotated[str, typer.Option(help=_ON)], default="local")
    fields = [(name, options, one) for name, options in backend_options().items() for one in cli_fields(options)]
    users: dict[str, list[str]] = {}
    for backend, _, one in fields:
        users.setdefault(one.name, []).append(backend)
    for backend, options, one in fields:
        if users[one.name][0] != backend:
            continue
        default, kind = default_of(one), get_type_hints(options)[one.name]
        help = one.metadata["help"] + (f" [default: {default}]" if default else "")
        panel = f"Options of --on {' and '.join(users[one.name])}"
        is_mapping = get_origin(kind) is dict
        info = typer.Option(help=help, rich_help_panel=panel, metavar="KEY=VALUE" if is_mapping else None)
        yield _parameter(one.name, Annotated[list[str] | None if is_mapping else kind | None, info], default=None)


def _parameter(name: str, annotation: Any, *, default: Any) -> inspect.Parameter:
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _parse_value(name: str, value: Any) -> Any:
    """What was typed, as the options hold it."""
    if not isinstance(value, list):
        return value
    pairs = [text.partition("=") for text in value]
    for key, equals, text in pairs:
        if not key or not equals:
            raise LaunchError(f"--{name} '{key}{equals}{text}' is not KEY=VALUE", hint=f"--{name} nodes=1")
    return {key: text for key, _, text in pairs}
