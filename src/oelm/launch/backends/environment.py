"""The environment of a remote cell: the one script that enters it, for Slurm and ssh alike."""

import shlex
from collections.abc import Sequence


def activation_script(modules: Sequence[str], venv: str | None, *, no_modules: int = 2, no_venv: int = 2) -> str:
    """Lines of bash that load modules and activate a virtual environment, or exit with the given codes."""
    lines = []
    if modules:
        lines.append("command -v module >/dev/null || . /etc/profile")  # a job has no login shell
        lines.append(f"{shlex.join(['module', 'load', *modules])} || exit {no_modules}")
    if venv is not None:
        lines.append(f". {shlex.quote(f'{venv}/bin/activate')} || exit {no_venv}")
    return "".join(f"{line}\n" for line in lines)
