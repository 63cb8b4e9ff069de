"""Backend options. One field makes all of an option: on the command line, in cluster.yaml, its check, and its help."""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import MISSING, Field, dataclass, field, fields
from typing import Any, Self

from oelm.errors import LaunchError
from oelm.study.forbid_extra import ForbidExtra

_RDZV_ID = re.compile(r"[\w.-]{1,100}")


def option(
    help: str,
    *,
    default: Any = None,
    default_factory: Callable[[], Any] | None = None,
    at_least: int | None = None,
    at_most: int | None = None,
    is_cli: bool = True,
    is_directive: bool = False,
) -> Any:
    """A field of an options dataclass.

    `is_cli` is False for what only cluster.yaml can say. `is_directive` makes it an option of sbatch of the same name.
    """
    metadata = {
        "help": help,
        "at_least": at_least,
        "at_most": at_most,
        "is_cli": is_cli,
        "is_directive": is_directive,
    }
    if default_factory is not None:
        return field(default_factory=default_factory, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True, kw_only=True)
class BackendOptions(ForbidExtra):
    """What a backend can be asked for. None means: not asked for."""

    @classmethod
    def resolve(cls, given: Mapping[str, Any], *, defaults: Self | None = None) -> Self:
        """The options of a launch: what was given, and for the rest what cluster.yaml says. Bad ones are refused."""
        values = {one.name: getattr(defaults, one.name) for one in fields(cls)} if defaults is not None else {}
        for name, value in given.items():
            values[name] = {**values.get(name, {}), **value} if isinstance(value, dict) else value
        options = cls(**values)
        # `sbatch.mem` is what `--sbatch mem` has given.
        flags = [(path.replace(".", " ").replace("_", "-"), text) for path, text in options.problems()]
        problems = [f"--{flag}: {text}" for flag, text in flags]
        if problems:
            raise LaunchError("invalid options; nothing was submitted", why="\n".join(problems))
        return options

    def problems(self) -> Iterator[tuple[str, str]]:
        """(field, what is wrong with it)."""
        for one in fields(self):
            value, low, high = getattr(self, one.name), one.metadata.get("at_least"), one.metadata.get("at_most")
            if isinstance(value, str) and not value:
                yield one.name, "is empty"
            elif isinstance(value, str) and not value.isprintable():
                yield one.name, f"has a control character: {value!r}"
            elif isinstance(value, int) and ((low is not None and value < low) or (high is not None and value > high)):
                bounds = f"{low} or more" if high is None else f"from {low} to {high}"
                yield one.name, f"must be {bounds}, got {value}"


@dataclass(frozen=True, kw_only=True)
class LocalOptions(BackendOptions):
    workers: int | None = option("Cells at once [default: GPUs, or 1]", at_least=1)


@dataclass(frozen=True, kw_only=True)
class TorchrunOptions(BackendOptions):
    nproc: int | None = option("Processes per machine, for one cell", at_least=1)
    nnodes: int = option("Number of machines, with the same command on each", default=1, at_least=1)
    rdzv_id: str | None = option("Unused name for the machines to meet by")
    interface: str = option("Network interface", default="lo")

    def problems(self) -> Iterator[tuple[str, str]]:
        yield from super().problems()
        if self.rdzv_id and not _RDZV_ID.fullmatch(self.rdzv_id):
            yield "rdzv_id", f"must be letters, digits, '.', '_' or '-', got {self.rdzv_id!r}"
        if self.nnodes > 1 and self.rdzv_id is None:
            yield "rdzv_id", f"{self.nnodes} machines need a name to meet by, the same on each of them"


@dataclass(frozen=True, kw_only=True)
class SshOptions(LocalOptions):
    config: str | None = option("File for `ssh -F`", is_cli=False)
    python: str = option("Python for the virtual environment there", default="python3", is_cli=False)


def cli_fields(options: type[BackendOptions]) -> list[Field[Any]]:
    return [one for one in fields(options) if one.metadata.get("is_cli")]


def default_of(one: Field[Any]) -> Any:
    return one.default_factory() if one.default_factory is not MISSING else one.default
