"""Cluster: `cluster.yaml`, the environment to enter and defaults of the backends' options.

One is in the project, one in the user's config folder; where both have a field, the project's counts.
"""

import os
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any

from annotated_types import Len

from oelm import yaml
from oelm.errors import LaunchError, StudyError
from oelm.launch.backends.options import BackendOptions, LocalOptions, SshOptions, TorchrunOptions
from oelm.launch.backends.slurm.options import SlurmOptions
from oelm.study.forbid_extra import ForbidExtra
from oelm.study.problems import validate_config

_FILE = "cluster.yaml"
_Text = Annotated[str, Len(1)]


@dataclass(frozen=True, kw_only=True)
class Cluster(ForbidExtra):
    venv: _Text | None = None
    """Activated before oelm is called."""
    modules: tuple[_Text, ...] = ()
    """For `module load`."""
    # By the names of the backends.
    local: LocalOptions = field(default_factory=LocalOptions)
    torchrun: TorchrunOptions = field(default_factory=TorchrunOptions)
    slurm: SlurmOptions = field(default_factory=SlurmOptions)
    ssh: SshOptions = field(default_factory=SshOptions)

    @property
    def options(self) -> dict[str, BackendOptions]:
        """Defaults of the options, by the name of the backend."""
        found = {one.name: getattr(self, one.name) for one in fields(self)}
        return {name: value for name, value in found.items() if isinstance(value, BackendOptions)}

    @property
    def programs(self) -> dict[str, str]:
        """What decides which programs run, here or there, by field; a path as it is from here."""
        paths = {"venv": self.venv, "ssh.config": self.ssh.config}
        found = {name: str(path_here(path)) for name, path in paths.items() if path is not None}
        found |= {"modules": " ".join(self.modules)} if self.modules else {}
        found |= {"ssh.python": self.ssh.python} if self.ssh.python != SshOptions().python else {}
        return found | {f"slurm.sbatch.{name}": value for name, value in self.slurm.sbatch.items()}


def load_cluster(project: Path | None = Path(), user: Path | None = None) -> Cluster:
    """What the files of the project and of the user say together; without any, the defaults.

    With `project` None, only the user's.
    """
    if user is None:
        user = Path(os.environ.get("XDG_CONFIG_HOME") or "~/.config").expanduser() / "oelm"
    files = [folder / _FILE for folder in (user, project) if folder is not None and os.path.lexists(folder / _FILE)]
    raw: dict[str, Any] = {}
    try:
        for file in files:
            raw = _over(_read(file), raw)
        return validate_config(raw, Cluster, where=" with ".join(map(str, files)), also=_problems)
    except StudyError as error:  # the message is right, but this is not a study
        raise LaunchError(str(error)) from error


def path_here(path: str) -> Path:
    """A path as it is from here. One in the home of somebody who is only there stays as it is."""
    try:
        return Path(path).expanduser().absolute()
    except RuntimeError:
        return Path(path)


def activation_script(modules: Sequence[str], venv: str | None, *, no_modules: int = 2, no_venv: int = 2) -> str:
    """Lines of bash that load modules and activate a virtual environment, or exit with the given codes."""
    lines = []
    if modules:
        lines.append("command -v module >/dev/null || . /etc/profile")  # a job has no login shell
        lines.append(f"{shlex.join(['module', 'load', *modules])} || exit {no_modules}")
    if venv is not None:
        lines.append(f". {shlex.quote(f'{venv}/bin/activate')} || exit {no_venv}")
    return "".join(f"{line}\n" for line in lines)


def _read(file: Path) -> dict[str, Any]:
    raw = yaml.read(file)
    if not isinstance(raw, dict | None):
        hint = ", ".join(f"`{one.name}:`" for one in fields(Cluster))
        raise LaunchError(f"{file} is not a mapping", hint=f"its fields are {hint}")
    # A heading with nothing below it has no effect.
    raw = {key: value for key, value in (raw or {}).items() if value is not None or key not in Cluster().options}
    validate_config(raw, Cluster, where=str(file), also=_problems)
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
    texts = {"venv": cluster.venv, **{f"modules.{number}": module for number, module in enumerate(cluster.modules)}}
    for path, text in texts.items():
        if text is not None and not text.isprintable():
            yield path, f"has a control character: {text!r}"
    for name, options in cluster.options.items():
        for path, problem in options.problems():
            yield f"{name}.{path}", problem
