"""Remote: `--on ssh://...`: a study on another machine, which goes on there whether or not anybody is connected.

<folder>/project/<name>           the project, in which the study runs
<folder>/oelm, <folder>/.venv     oelm and its environment, unless cluster.yaml names one
<folder>/data                     data from outside the project
<folder>/runs/<study>             what a study leaves behind anywhere; and compare.log, what the whole run says
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from oelm.errors import LaunchError
from oelm.launch.cargo import carry
from oelm.launch.cluster import Cluster
from oelm.launch.environment import entering, ready_environment
from oelm.launch.fetch import fetch as fetch
from oelm.launch.jobs import Job
from oelm.launch.place import Place, place_from
from oelm.launch.ssh import Answer, Machine, ask, is_full, machine_at, no_room, show
from oelm.records.store import read_json
from oelm.study.study import Study
from oelm.times import duration

_CLOCK = 60  # seconds that two clocks may differ
_LITTLE = 2**30  # bytes: with less room it is worth a word
# How the scripts end when something is missing.
_NOT_OURS, _NO_TOOL, _RUNNING, _ENDED = 91, 92, 93, 94
# A folder that is not empty and not ours is left alone: copying removes what is not here.
_LOOK = """
cd && mkdir -p -- "$1" && cd -- "$1" || exit 90
[ -e .oelm ] || [ -z "$(ls -A)" ] || exit 91
for tool in rsync setsid nohup flock; do
  command -v "$tool" >/dev/null || { echo "$tool" >&2; exit 92; }
done
echo "oelm keeps here what it runs with --on ssh://..., and removes what it does not know." >.oelm || exit 90
pwd -P
date +%s
df -Pk . | tail -n 1
for lock in runs/*/compare.lock; do
  [ ! -e "$lock" ] || flock -n "$lock" true || echo "$lock"
done
"""
# The lock goes with the process, however it ends. setsid and nohup: nothing that happens to the connection reaches it.
# It is watched for a moment, so that what cannot even start is said here.
_START = """
runs=$1/runs/$2 folder=$3 study=$4
shift 4
mkdir -p -- "$runs" "$folder" && cd -- "$folder" && exec 9>>"$runs/compare.lock" || exit 90
flock -n 9 || exit 93
printf '%s\\n' "$study" >"$runs/.study.json.new" && mv -- "$runs/.study.json.new" "$runs/study.json" || exit 90
setsid nohup "$@" </dev/null >>"$runs/compare.log" 2>&1 &
for _ in 1 2 3 4 5 6; do
  sleep 0.5
  kill -0 $! 2>/dev/null && continue
  wait $!
  [ $? -le 1 ] || { tail -n 6 "$runs/compare.log" >&2; exit 94; }
  break
done
echo $!
"""
_CALL = 'cd -- "$1" && shift && exec "$@"'
# Nobody tells a process there that we do not look any more, except by the end of its standard input.
_SHOW = """
cd -- "$1" && shift || exit
exec 3<&0
"$@" </dev/null & shown=$!
{ cat <&3; kill "$shown"; } >/dev/null 2>&1 & waits=$!
wait "$shown"
code=$?
kill "$waits" 2>/dev/null
exit "$code"
"""


def launch(
    study: Study,
    *,
    study_file: Path,
    place: Place,
    out: Path,
    cells: Sequence[str],
    arms: Sequence[str] | None,
    seeds: Sequence[int] | None,
    workers: int | None,
    cluster: Cluster,
    told: Callable[[str], None],
) -> Job:
    """Copy what is needed to another machine and start the study there. Where anything is wrong, nothing is started."""
    machine = machine_at(place, cluster)
    folder, running = _looked(machine, told)
    if study.name in running:
        raise _is_running(machine, study.name)
    content = read_json(study_file)
    assert content is not None
    cargo = carry(
        machine,
        content,
        to=folder,
        out=out,
        with_oelm=cluster.venv is None,
        running=running,
        told=told,
    )
    venv = ready_environment(machine, cluster, folder=folder, tree=cargo.tree, told=told)
    runs = f"{folder}/runs"
    words = [f"{venv}/bin/python", "-P", "-m", "oelm", "compare", f"{runs}/{study.name}/study.json", "--on", "local"]
    words += ["--out", runs]
    number = cluster.ssh.workers if workers is None else workers
    words += [] if number is None else ["--workers", str(number)]
    words += [] if arms is None else ["--arms", ",".join(arms)]
    words += [] if seeds is None else ["--seeds", ",".join(map(str, seeds))]
    script = entering(cluster, venv) + _START
    answer = ask(machine, script, folder, study.name, cargo.folder, json.dumps(cargo.study, indent=2), *words)
    if answer.code == _RUNNING:
        raise _is_running(machine, study.name)
    if answer.code == _ENDED:
        raise LaunchError(
            f"{study.name} ended as soon as it was started there", where=str(place), why=answer.complained.strip()
        )
    _check_written(machine, answer, "the study")
    told(f"{study.name} runs on {place}, process {answer.said.strip()}; it goes on without us")
    return Job(
        on=str(place),
        cells=tuple(cells),
        options={"arms": arms and list(arms), "seeds": seeds and list(seeds), "workers": workers},
        facts={
            "study": study.name,
            "folder": folder,
            "runs": f"{runs}/{study.name}",
            "cwd": cargo.folder,
            "venv": venv,
            "pid": int(answer.said),
        },
    )


def rows(job: Job, cluster: Cluster) -> list[dict[str, Any]]:
    """The rows of `oelm status` there."""
    said = _said(job, cluster, "status", job.facts["runs"], "--json")
    try:
        found = json.loads(said)
        return [{**row, "where": job.on} for row in found]
    except (ValueError, TypeError) as error:
        why = f"{type(error).__name__}: {said[:200]}"
        raise LaunchError("the status there cannot be read", where=job.on, why=why) from error


def show_log(job: Job, cell: str, *, follow: bool, cluster: Cluster) -> int:
    """Write the log of a cell there to our standard output. Ctrl-C ends only the showing."""
    words = ["logs", cell, *(["-f"] if follow else []), "--runs", job.facts["runs"]]
    return show(_machine(job, cluster), entering(cluster, job.facts["venv"]) + _SHOW, *_command(job, words))


def stop(job: Job, cells: Sequence[str] | None, cluster: Cluster) -> None:
    """Ask cells there, or all of them, to write a checkpoint and leave."""
    _said(job, cluster, "stop", *(["all"] if cells is None else cells), "--runs", job.facts["runs"])


def _machine(job: Job, cluster: Cluster) -> Machine:
    return machine_at(place_from(job.on), cluster)


def _command(job: Job, words: Sequence[str]) -> list[str]:
    """The folder to go to, and the command."""
    return [job.facts["cwd"], f"{job.facts['venv']}/bin/python", "-P", "-m", "oelm", *words]


def _said(job: Job, cluster: Cluster, *words: str) -> str:
    """What a command of oelm says there."""
    script = entering(cluster, job.facts["venv"]) + _CALL
    answer = ask(_machine(job, cluster), script, *_command(job, words))
    if answer.code:
        why = answer.complained.strip()[-1000:]
        raise LaunchError(f"oelm {words[0]} there ended with code {answer.code}", where=job.on, why=why)
    return answer.said


def _looked(machine: Machine, told: Callable[[str], None]) -> tuple[str, list[str]]:
    """The folder there, and which studies are running in it. What may surprise is said."""
    before = time.time()
    answer = ask(machine, _LOOK, machine.place.folder)
    now = (before + time.time()) / 2
    if answer.code == _NOT_OURS:
        raise LaunchError(
            f"{machine.place.folder} on {machine.place.host} holds something else; nothing was copied",
            why="only a folder that is empty, or that oelm has made, is taken",
            hint=f"a folder of its own: {machine.place}/{'oelm' if machine.place.folder != 'oelm' else 'FOLDER'}",
        )
    if answer.code == _NO_TOOL:
        raise LaunchError(f"{answer.last_complaint} is not installed there", where=str(machine.place))
    _check_written(machine, answer, "anything")
    folder, clock, disk, *locks = answer.said.splitlines()
    ahead = float(clock) - now
    if abs(ahead) > _CLOCK:
        way = "ahead of" if ahead > 0 else "behind"
        told(f"the clock of {machine.place.host} is {duration(abs(ahead))} {way} this one; its records have its times")
    free = re.search(r"\s\d+\s+\d+\s+(\d+)\s+(?:\d+%|-)\s", disk)
    if free is not None and int(free[1]) * 1024 < _LITTLE:
        told(f"only {int(free[1]) / 1024:,.0f} MB are free in {folder} on {machine.place.host}")
    return folder, [lock.split("/")[1] for lock in locks]


def _check_written(machine: Machine, answer: Answer, what: str) -> None:
    if answer.code and is_full(answer.complained):
        raise no_room(what, answer, where=str(machine.place))
    if answer.code:
        raise LaunchError(
            "the folder there cannot be used; nothing was started",
            where=str(machine.place),
            why=answer.last_complaint,
            hint="another folder: ssh://user@host/folder",
        )


def _is_running(machine: Machine, study: str) -> LaunchError:
    return LaunchError(
        f"{study} is running there already; nothing was started",
        where=str(machine.place),
        hint="oelm status; oelm stop all, and the same command again, which goes on from there",
    )
