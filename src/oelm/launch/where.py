"""Where: the place that the cells of a study run at, and what is said about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, fields
from typing import Any

from oelm.errors import LaunchError, did_you_mean

LOCAL, TORCHRUN, SLURM, SSH = "local", "torchrun", "slurm", "ssh://"
_OPTIONS = {
    LOCAL: ("workers",),
    TORCHRUN: ("nproc", "nnodes", "meeting", "interface"),
    SLURM: ("partition", "account", "time", "gres", "array_limit", "warn", "sbatch"),
    SSH: ("workers",),
}


@dataclass(frozen=True, kw_only=True)
class Where:
    """What is None, or empty, was not said."""

    on: str = LOCAL
    workers: int | None = None
    nproc: int | None = None
    nnodes: int | None = None
    meeting: str | None = None
    interface: str | None = None
    partition: str | None = None
    account: str | None = None
    time: str | None = None
    gres: str | None = None
    array_limit: int | None = None
    warn: int | None = None
    sbatch: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.kind not in _OPTIONS:
            raise LaunchError(
                f"'{self.on}' is no place to run at{did_you_mean(self.on, _OPTIONS)}",
                hint="--on local, torchrun, slurm or ssh://user@host/folder",
            )
        for name, value in self.said().items():
            if name not in _OPTIONS[self.kind]:
                places = ", ".join(kind for kind, options in _OPTIONS.items() if name in options)
                raise LaunchError(f"--{name.replace('_', '-')} {value} does not go with --on {self.on}", hint=places)
        if self.kind == TORCHRUN and self.nproc is None:
            raise LaunchError("--on torchrun needs the number of processes", hint="--nproc 2")

    @property
    def kind(self) -> str:
        return SSH if self.on.startswith(SSH) else self.on

    def said(self) -> dict[str, Any]:
        """The options that were given, beside `on`."""
        all_of_them = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "on"}
        return {name: value for name, value in all_of_them.items() if value not in (None, {})}

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)
