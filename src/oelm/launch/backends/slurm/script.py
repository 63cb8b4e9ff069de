"""Job script: what Slurm is given to run, one array of cells, in a form that can be read and submitted by hand."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oelm.errors import LaunchError
from oelm.launch.backends.cluster import Cluster, activation_script
from oelm.launch.backends.slurm.options import SlurmOptions

_SCRIPT = """\
#!/bin/bash
{directives}

# A cell is one training, and one task of this array. Written by oelm run --on slurm.
cells=(
{cells}
)
cell=${{cells[SLURM_ARRAY_TASK_ID]}}

cd -- {workdir} || exit 2
{environment}
# Slurm tells this shell; the cell then writes its checkpoint and leaves.
trap 'kill -USR1 $! 2>/dev/null' USR1
trap 'kill -TERM $! 2>/dev/null' TERM
{oelm} run {study} --cell "$cell" --out {out}{plugins} &
worker=$!
while kill -0 "$worker" 2>/dev/null; do
    wait "$worker" # until it ends, or a signal comes
done
wait "$worker"
ended=$?

# Stopped by USR1, before the time limit: back into the queue, to go on from the checkpoint.
if [ "$ended" = 138 ]; then
    scontrol requeue "${{SLURM_ARRAY_JOB_ID}}_${{SLURM_ARRAY_TASK_ID}}"
fi
exit "$ended"
"""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What all arrays of a launch have in common. Paths are as from `workdir`, where the cells run."""

    name: str
    study: Path
    """Its file."""
    out: Path
    folder: Path
    """Of the study, below `out`."""
    options: SlurmOptions
    cluster: Cluster
    """For its environment."""
    workdir: Path
    plugins: tuple[str, ...] = ()
    """Options of the command that allow the study's plugins."""


def render(given: Submission, cells: Sequence[str]) -> str:
    """The script of one array."""
    cluster, workdir = given.cluster, given.workdir
    venv = None if cluster.venv is None else str(workdir.absolute() / Path(cluster.venv).expanduser())
    paths = map(str, (given.study, given.out, given.folder, workdir))
    _check([given.name, *cells, *paths, *given.plugins, venv or "", *cluster.modules])
    return _SCRIPT.format(
        directives="\n".join(_directives(given.name, len(cells), workdir.absolute() / given.folder, given.options)),
        cells="\n".join(f"    {shlex.quote(cell)}" for cell in cells),
        workdir=shlex.quote(str(workdir.absolute())),
        environment=activation_script(cluster.modules, venv),
        oelm="oelm" if venv else f"{shlex.quote(sys.executable)} -P -m oelm",
        study=shlex.quote(str(given.study)),
        out=shlex.quote(str(given.out)),
        plugins="".join(f" {shlex.quote(word)}" for word in given.plugins),
    )


def overruling(script: str) -> set[str]:
    """Variables of the environment that sbatch would listen to more than to the script."""
    names = re.findall(r"^#SBATCH --([a-z0-9-]+)", script, flags=re.MULTILINE)
    own = {"time": "TIMELIMIT", "array": "ARRAY_INX", "mem": "MEM_PER_NODE"}
    found = {own.get(name, name.upper().replace("-", "_")) for name in names} | {"NO_REQUEUE", "WAIT", "CLUSTERS"}
    return {f"SBATCH_{name}" for name in found}


def _check(texts: Sequence[str]) -> None:
    for text in texts:  # a line break could begin a line of its own; of a backslash sbatch and bash think differently
        if not text.isprintable() or "\\" in text:
            raise LaunchError(
                f"{text!r} cannot be part of a job script; nothing was submitted",
                why="it has a backslash, a line break or another control character",
                hint="another name",
            )


def _directives(name: str, number: int, folder: Path, options: SlurmOptions) -> list[str]:
    """sbatch reads a line as a shell would: in words, with quotes, up to a '#'."""
    limit = f"%{options.array_limit}" if options.array_limit else ""
    lines = {
        "job-name": name,
        "array": f"0-{number - 1}{limit}",
        "output": f"{folder}".replace("%", "%%") + "/slurm/%A_%a.out",  # a lone % is something to fill in
        "open-mode": "append",
        "requeue": "",
        "signal": f"B:USR1@{options.grace}",
        **options.directives(),
    }
    return [
        f"#SBATCH --{option}={shlex.quote(value)}" if value else f"#SBATCH --{option}"
        for option, value in lines.items()
    ]
