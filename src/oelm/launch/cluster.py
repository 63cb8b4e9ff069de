"""Cluster: what a place needs beside the study, from `cluster.yaml`: its environment, and defaults of launch options.

One lies in the project, one in the user's config folder; where both say something, the project's counts.
"""

import math
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Len
from pydantic import BeforeValidator, TypeAdapter

from oelm.errors import LaunchError, StudyError
from oelm.study import yaml
from oelm.study.load import checked

_FILE = "cluster.yaml"
_FORBID: dict[str, Any] = {"extra": "forbid"}
_Text = Annotated[str, Len(1)]
_Positive = Annotated[int, Ge(1)]
_NAME = re.compile(r"[a-z][a-z0-9-]*")
# Options of sbatch that are options here, and those that the job script is made of or that keep sbatch from submitting.
_OPTIONS = ("partition", "account", "time", "gres")
_OURS = ("array", "dependency", "job-name", "no-requeue", "open-mode", "output", "requeue", "signal")
_NEVER = ("clusters", "help", "parsable", "test-only", "usage", "version", "wait", "wrap")
_PLAIN = "must have no quotation marks, backslashes, line breaks or other control characters, got {!r}"


def _time(value: Any) -> Any:
    if not isinstance(value, str):  # YAML reads 4:00:00 as the number 14400
        raise ValueError(f"must stand in quotation marks, such as '4:00:00', got {value!r}")
    return value


def _value(value: Any) -> Any:
    if isinstance(value, str) or type(value) is int:
        return str(value)
    raise ValueError(f'must be a text or a whole number ("" for an option without a value), got {value!r}')


@dataclass(frozen=True, kw_only=True)
class SlurmDefaults:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    partition: _Text | None = None
    account: _Text | None = None
    time: Annotated[str, BeforeValidator(_time)] | None = None
    """As sbatch reads it: minutes, `hours:minutes:seconds`, `days-hours`."""
    gres: _Text | None = None
    array_limit: _Positive | None = None
    """Cells at once."""
    sbatch: dict[str, Annotated[str, BeforeValidator(_value)]] = field(default_factory=dict)
    """Any other long option of sbatch, by its name without the dashes."""


@dataclass(frozen=True, kw_only=True)
class SshDefaults:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    config: _Text | None = None
    """A file for `ssh -F`."""
    python: _Text = "python3"
    """Makes the virtual environment there."""
    workers: _Positive | None = None
    """Cells at once; left out, as many as there are GPUs, or one."""


@dataclass(frozen=True, kw_only=True)
class Cluster:
    __pydantic_config__: ClassVar[dict[str, Any]] = _FORBID

    venv: _Text | None = None
    """Activated before oelm is called."""
    modules: tuple[_Text, ...] = ()
    """For `module load`."""
    slurm: SlurmDefaults = field(default_factory=SlurmDefaults)
    ssh: SshDefaults = field(default_factory=SshDefaults)


_cluster = TypeAdapter(Cluster)


def load_cluster(project: Path = Path(), user: Path | None = None) -> Cluster:
    """What the files of the project and of the user say together; without any, what needs no saying."""
    if user is None:
        user = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "oelm"
    files = [folder / _FILE for folder in (user, project) if (folder / _FILE).exists()]
    raw: dict[str, Any] = {}
    try:
        for file in files:
            raw = _over(_read(file), raw)
        return checked(raw, _cluster, Cluster, where=" with ".join(map(str, files)), also=_problems)
    except StudyError as error:  # the words are right, and it is not a study that they are about
        raise LaunchError(str(error)) from error


def _read(file: Path) -> dict[str, Any]:
    raw = yaml.read(file)
    if not isinstance(raw, dict | None):
        raise LaunchError(f"{file} is not a mapping", hint="`venv:`, `modules:`, `slurm:` and `ssh:` are its fields")
    # A heading with nothing below it says nothing.
    raw = {key: value for key, value in (raw or {}).items() if value is not None or key not in ("slurm", "ssh")}
    checked(raw, _cluster, Cluster, where=str(file), also=_problems)
    return raw


def _over(raw: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """The fields of both; where both have one, that of the first."""
    both = {
        key: _over(raw[key], other[key])
        for key in raw.keys() & other.keys()
        if isinstance(raw[key], dict) and isinstance(other[key], dict)
    }
    return {**other, **raw, **both}


def _problems(cluster: Cluster) -> Iterator[tuple[str, str]]:
    texts = {"venv": cluster.venv, "ssh.config": cluster.ssh.config, "ssh.python": cluster.ssh.python}
    texts |= {f"modules.{number}": module for number, module in enumerate(cluster.modules)}
    for path, text in texts.items():
        if text is not None and not text.isprintable():
            yield path, f"has a character that cannot be shown: {text!r}"
    for name, text in problems_of(cluster.slurm):
        yield f"slurm.{name}", text


def problems_of(options: SlurmDefaults) -> Iterator[tuple[str, str]]:
    """(field, what is wrong with it). Values become lines of a job script, where they must stay what they are."""
    for name in _OPTIONS:
        value = getattr(options, name)
        if value is not None and not (value and _is_plain(value)):
            yield name, _PLAIN.format(value) if value else "is empty"
    if options.time is not None and _is_plain(options.time) and seconds(options.time) is None:
        yield "time", f"must be a time of Slurm such as 90 (minutes), 4:00:00 or 2-12:00:00, got {options.time!r}"
    if options.array_limit is not None and options.array_limit < 1:
        yield "array_limit", f"must be 1 or more, got {options.array_limit}"
    for name, value in options.sbatch.items():
        # sbatch takes the beginning of a name for the whole of it.
        own = next((known for known in (*_OPTIONS, *_OURS, *_NEVER) if known.startswith(name)), None)
        if not _NAME.fullmatch(name):
            yield "sbatch", f"{name!r} is no name of an option: small letters, digits and '-', such as cpus-per-task"
        elif own in _OPTIONS:
            yield f"sbatch.{name}", f"has an option of its own: --{own}"
        elif own is not None:
            yield f"sbatch.{name}", f"--{own} " + ("is set by oelm itself" if own in _OURS else "does not go with this")
        elif not _is_plain(value):
            yield f"sbatch.{name}", _PLAIN.format(value)


def _is_plain(value: str) -> bool:
    return value.isprintable() and not any(letter in value for letter in "'\"\\`")


def seconds(time: str) -> float | None:
    """A time limit as Slurm reads it, or None if it is none."""
    if time.upper() in ("UNLIMITED", "INFINITE"):
        return math.inf
    days, dash, rest = time.rpartition("-")
    parts = rest.split(":")
    if (
        len(time) > 40
        or len(parts) > 3
        or not all(part.isdecimal() and part.isascii() for part in ([days] if dash else []) + parts)
    ):
        return None
    numbers = [int(part) for part in parts]
    if dash:  # days-hours[:minutes[:seconds]]
        numbers = [*numbers, 0, 0][:3]
    elif len(numbers) < 3:  # minutes[:seconds]
        numbers = [0, *numbers, 0][:3]
    hours, minutes, rest_seconds = numbers
    whole = int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + rest_seconds
    return whole or math.inf  # a limit of 0 is none
