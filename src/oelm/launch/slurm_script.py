"""Job script: what Slurm is given to run, one array of cells, in a form that can be read and submitted by hand."""

import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from oelm.errors import LaunchError
from oelm.launch.cluster import Cluster, SlurmDefaults, problems_of, seconds

_LONGEST_WARNING = 65_535  # seconds; what sbatch takes

_SCRIPT = """\
#!/bin/bash
{directives}

# A cell is one training, and one task of this array. Written by oelm compare --on slurm.
cells=(
{cells}
)
cell=${{cells[SLURM_ARRAY_TASK_ID]}}

cd -- {workdir} || exit 2
{environment}
# Slurm tells this shell; the cell then writes its checkpoint and leaves.
trap 'kill -USR1 $! 2>/dev/null' USR1
trap 'kill -TERM $! 2>/dev/null' TERM
{oelm} train {study} --cell "$cell" --out {out} &
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
class Slurm(SlurmDefaults):
    """Options of a launch. What is left out, `cluster.yaml` may say."""

    warn: int = 120
    """Seconds before the time limit at which a cell is told to checkpoint and requeue."""


@dataclass(frozen=True, kw_only=True)
class Submission:
    """What all arrays of a launch have in common. Paths are as from `workdir`, where the cells run."""

    name: str
    study: Path
    """Its file."""
    out: Path
    folder: Path
    """Of the study, below `out`."""
    options: Slurm
    cluster: Cluster
    workdir: Path


def render(given: Submission, cells: Sequence[str]) -> str:
    """The script of one array."""
    cluster, workdir = given.cluster, given.workdir
    asked = _with_defaults(given.options, cluster.slurm)
    places = map(str, (given.study, given.out, given.folder, workdir))
    _check(asked, [given.name, *cells, *places, cluster.venv or "", *cluster.modules])
    return _SCRIPT.format(
        directives="\n".join(_directives(given.name, len(cells), workdir.absolute() / given.folder, asked)),
        cells="\n".join(f"    {shlex.quote(cell)}" for cell in cells),
        workdir=shlex.quote(str(workdir.absolute())),
        environment="".join(f"{line}\n" for line in _environment(cluster, workdir)),
        oelm="oelm" if cluster.venv else f"{shlex.quote(sys.executable)} -P -m oelm",
        study=shlex.quote(str(given.study)),
        out=shlex.quote(str(given.out)),
    )


def overruling(script: str) -> set[str]:
    """Variables of the environment that sbatch would listen to more than to the script."""
    names = re.findall(r"^#SBATCH --([a-z0-9-]+)", script, flags=re.MULTILINE)
    own = {"time": "TIMELIMIT", "array": "ARRAY_INX"}
    found = {own.get(name, name.upper().replace("-", "_")) for name in names} | {"NO_REQUEUE", "WAIT", "CLUSTERS"}
    return {f"SBATCH_{name}" for name in found}


def _with_defaults(options: Slurm, defaults: SlurmDefaults) -> Slurm:
    given = {name: value for name, value in vars(options).items() if value is not None}
    return Slurm(**{**vars(defaults), **given, "sbatch": {**defaults.sbatch, **options.sbatch}})


def _check(options: Slurm, texts: Sequence[str]) -> None:
    problems = [(path.replace("sbatch.", "sbatch ").replace("_", "-"), text) for path, text in problems_of(options)]
    if not 1 <= options.warn <= _LONGEST_WARNING:
        problems.append(("warn", f"must be from 1 to {_LONGEST_WARNING} seconds, got {options.warn}"))
    limit = seconds(options.time) if options.time is not None else None
    if limit is not None and limit <= options.warn:
        problems.append(("time", f"must be longer than the {options.warn} s that a cell has for its checkpoint"))
    if problems:
        why = "\n".join(f"--{path}: {text}" for path, text in problems)
        raise LaunchError("Slurm cannot be asked for this; nothing was submitted", why=why)
    for text in texts:  # a line break could begin a line of its own; of a backslash sbatch and bash think differently
        if not text.isprintable() or "\\" in text:
            raise LaunchError(
                f"{text!r} cannot stand in a job script; nothing was submitted",
                why="it has a backslash, a line break or another control character",
                hint="another name",
            )


def _directives(name: str, number: int, folder: Path, options: Slurm) -> list[str]:
    """sbatch reads a line as a shell would: in words, with quotes, up to a '#'."""
    limit = f"%{options.array_limit}" if options.array_limit else ""
    lines: dict[str, str | None] = {
        "job-name": name,
        "array": f"0-{number - 1}{limit}",
        "output": f"{folder}".replace("%", "%%") + "/slurm/%A_%a.out",  # a lone % is something to fill in
        "open-mode": "append",
        "requeue": "",
        "signal": f"B:USR1@{options.warn}",
        "partition": options.partition,
        "account": options.account,
        "time": options.time,
        "gres": options.gres,
        **options.sbatch,
    }
    return [
        f"#SBATCH --{option}={shlex.quote(value)}" if value else f"#SBATCH --{option}"
        for option, value in lines.items()
        if value is not None
    ]


def _environment(cluster: Cluster, workdir: Path) -> list[str]:
    lines = []
    if cluster.modules:
        lines.append("command -v module >/dev/null || . /etc/profile")  # a job has no login shell
        lines.append(" ".join(["module load", *map(shlex.quote, cluster.modules), "|| exit 2"]))
    if cluster.venv:
        place = workdir.absolute() / Path(cluster.venv).expanduser()
        lines.append(f". {shlex.quote(str(place / 'bin' / 'activate'))} || exit 2")
    return lines
