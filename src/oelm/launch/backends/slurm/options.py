"""Slurm options. A field with `is_directive` is an option of sbatch: nothing else is to be edited for another one."""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Annotated, Any

from pydantic import BeforeValidator

from oelm.launch.backends.options import BackendOptions, option
from oelm.masking import HOW_TO_PASS, has_secret

_MAX_GRACE = 65_535  # seconds; the most that sbatch takes
_NAME = re.compile(r"[a-z][a-z0-9-]*")
# Options of sbatch that the job script is made of, and those that keep sbatch from submitting.
_OURS = ("array", "dependency", "job-name", "no-requeue", "open-mode", "output", "requeue", "signal")
_NEVER = ("clusters", "help", "parsable", "test-only", "usage", "version", "wait", "wrap")
_PLAIN = "must have no quotation marks, backslashes, line breaks or other control characters, got {!r}"


def _quoted_time(value: Any) -> Any:
    if not isinstance(value, str):  # YAML reads 4:00:00 as the number 14400
        raise ValueError(f"must be in quotation marks, such as '4:00:00', got {value!r}")
    return value


def _text_or_number(value: Any) -> Any:
    if isinstance(value, str) or type(value) is int:
        return str(value)
    raise ValueError(f'must be a text or an integer ("" for an option without a value), got {value!r}')


_Time = Annotated[str, BeforeValidator(_quoted_time)]
_Value = Annotated[str, BeforeValidator(_text_or_number)]


@dataclass(frozen=True, kw_only=True)
class SlurmOptions(BackendOptions):
    partition: str | None = option("Partition", is_directive=True)
    account: str | None = option("Account to charge", is_directive=True)
    time: _Time | None = option("Time limit before a task requeues itself, e.g. 4:00:00", is_directive=True)
    gres: str | None = option("Generic resources, e.g. gpu:1", is_directive=True)
    qos: str | None = option("Quality of service", is_directive=True)
    mem: _Value | None = option("Memory of a node, e.g. 16G", is_directive=True)
    constraint: str | None = option("Node features, e.g. a100", is_directive=True)
    array_limit: int | None = option("Cells at once", at_least=1)
    grace: int = option(
        "Seconds before the time limit to write a checkpoint", default=120, at_least=1, at_most=_MAX_GRACE
    )
    sbatch: dict[str, _Value] = option("Any other sbatch option, e.g. nodes=1 (repeatable)", default_factory=dict)

    def directives(self) -> dict[str, str]:
        """What sbatch is asked for, by the names of its options."""
        named = {one.name: getattr(self, one.name) for one in fields(self) if one.metadata.get("is_directive")}
        return {**{name: value for name, value in named.items() if value is not None}, **self.sbatch}

    def problems(self) -> Iterator[tuple[str, str]]:
        """Values become lines of a job script, where they must stay what they are."""
        own = [one.name for one in fields(self) if one.metadata.get("is_directive")]
        for path, text in super().problems():
            yield path, _PLAIN.format(getattr(self, path)) if path in own and getattr(self, path) else text
        for name in own:
            value = getattr(self, name)
            if value and value.isprintable() and not _is_plain(value):
                yield name, _PLAIN.format(value)
        yield from self._time_problems()
        for name, value in self.sbatch.items():
            yield from _sbatch_problems(name, value, own)

    def _time_problems(self) -> Iterator[tuple[str, str]]:
        if not self.time or not _is_plain(self.time):
            return
        limit = slurm_seconds(self.time)
        if limit is None:
            yield "time", f"invalid duration, such as 90 (minutes), 4:00:00 or 2-12:00:00, got {self.time!r}"
        elif limit <= self.grace:
            yield "time", f"must be longer than the {self.grace} s that a cell has for its checkpoint"


def _sbatch_problems(name: str, value: str, own: list[str]) -> Iterator[tuple[str, str]]:
    # sbatch takes the beginning of a name for all of it.
    known = next((one for one in (*own, *_OURS, *_NEVER) if one.startswith(name)), None)
    if not _NAME.fullmatch(name):
        yield "sbatch", f"{name!r} is not the name of an option: small letters, digits and '-', such as cpus-per-task"
    elif known in own:
        yield f"sbatch.{name}", f"has an option of its own: --{known}"
    elif known is not None:
        yield f"sbatch.{name}", f"--{known} is set by oelm" if known in _OURS else f"--{known} cannot be used here"
    elif has_secret(f"{name}={value}"):  # which the script, and what is kept of the job, would show
        yield f"sbatch.{name}", f"looks like a secret: export it in the shell that submits; or {HOW_TO_PASS}"
    elif not _is_plain(value):
        yield f"sbatch.{name}", _PLAIN.format(value)


def _is_plain(value: str) -> bool:
    return value.isprintable() and not any(letter in value for letter in "'\"\\`")


def slurm_seconds(time: str) -> float | None:
    """A time limit as Slurm reads it, or None if it is invalid."""
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
    hours, minutes, seconds = numbers
    return int(days or 0) * 86_400 + hours * 3_600 + minutes * 60 + seconds or math.inf  # a limit of 0 is none
