"""Remote: a study on another machine, which runs there whether or not anybody is connected.

<folder>/project/<name>           the project, in which the study runs
<folder>/oelm, <folder>/.venv     oelm and its environment, unless cluster.yaml names one
<folder>/data                     data from outside the project
<folder>/runs/<study>             what a study leaves behind anywhere; and run.log, the output of the run
"""

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Self

from pydantic import TypeAdapter, ValidationError

from oelm.errors import LaunchError
from oelm.format import format_duration
from oelm.launch.backends.cluster import Cluster
from oelm.launch.backends.ssh.address import SshAddress, parse_address
from oelm.launch.backends.ssh.host import SshHost, check_written, run_remote, ssh_host, stream_remote
from oelm.launch.backends.ssh.upload import sync_project, upload_plugins
from oelm.launch.backends.ssh.venv import ensure_venv, enter_venv
from oelm.launch.study_run import CellFilter, StudyRun
from oelm.runs.jobs import Job
from oelm.runs.lease import STOP
from oelm.runs.status import CellStatus

_CLOCK = 60  # seconds that two clocks may differ
_LITTLE = 2**30  # bytes: with less room it is worth a word
_UNUSABLE, _ANOTHER = "the folder there cannot be used", "another folder: ssh://user@host/folder"
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
for lock in runs/*/run.lock; do
  [ ! -e "$lock" ] || flock -n "$lock" true || echo "$lock"
done
"""
# The lock goes with the process, however it ends. setsid and nohup: nothing that happens to the connection reaches it.
# It is watched for a moment, so that what cannot even start is an error here.
_START = """
runs=$1/runs/$2 folder=$3 study=$4
shift 4
mkdir -p -- "$runs" "$folder" && cd -- "$folder" && exec 9>>"$runs/run.lock" || exit 90
flock -n 9 || exit 93
printf '%s\\n' "$study" >"$runs/.study.json.new" && mv -- "$runs/.study.json.new" "$runs/study.json" || exit 90
setsid nohup "$@" </dev/null >>"$runs/run.log" 2>&1 &
for _ in 1 2 3 4 5 6; do
  sleep 0.5
  kill -0 $! 2>/dev/null && continue
  wait $!
  [ $? -le 1 ] || { tail -n 6 "$runs/run.log" >&2; exit 94; }
  break
done
echo $!
"""
_CALL = 'cd -- "$1" && shift && exec "$@"'
# Nobody tells a process there that we do not look any more, except by the end of its standard input.
_SHOW = """
cd -- "$1" && shift || exit
exec 3<&0
"$@" </dev/null & viewer=$!
{ cat <&3; kill "$viewer"; } >/dev/null 2>&1 & waits=$!
wait "$viewer"
code=$?
kill "$waits" 2>/dev/null
exit "$code"
"""


@dataclass(frozen=True, kw_only=True)
class RemoteRun:
    """A study that was started on another machine, with its folders there."""

    study: str
    folder: str
    """All that is ours there."""
    runs: str
    """The run folder of the study."""
    cwd: str
    venv: str
    pid: str

    def __post_init__(self) -> None:
        """They come from a file: none may lead out of its folder, or be an option of a command there."""
        paths = (self.folder, self.runs, self.cwd, self.venv)
        inside = all(f"{path}/".startswith(f"{self.folder}/") for path in (self.runs, self.cwd))
        plain = all(path.startswith("/") and path.isprintable() and ".." not in path.split("/") for path in paths)
        if not (plain and inside and self.runs.endswith(f"/{self.study}") and "/" not in self.study and self.study):
            raise LaunchError("a job names folders that are none of a study", why=", ".join(map(repr, paths)))

    @classmethod
    def of(cls, job: Job) -> Self:
        try:
            return cls(**job.facts)
        except TypeError as error:
            why = f"a job of {job.time} says other things than where it runs"
            raise LaunchError(f"{job.on} cannot be asked", why=why, hint="oelm run STUDY") from error

    def to_facts(self) -> dict[str, str]:
        return asdict(self)


def start_remote(
    study_run: StudyRun,
    *,
    address: SshAddress,
    workers: int | None,
    cluster: Cluster,
    log: Callable[[str], None],
) -> RemoteRun:
    """Copy what is needed to another machine and start the study there. Where anything is wrong, nothing is started."""
    study, machine = study_run.study, ssh_host(address, cluster)
    folder, running = _inspect_host(machine, log)
    if study.name in running:
        raise _is_running(machine, study.name)
    uploaded = sync_project(
        machine,
        study_run.study.to_dict(),
        to=folder,
        out=study_run.out,
        with_oelm=cluster.venv is None,
        running=running,
        log=log,
    )
    venv = ensure_venv(machine, cluster, folder=folder, package=uploaded.package, log=log)
    runs = f"{folder}/runs"
    words = [f"{venv}/bin/python", "-P", "-m", "oelm", "run", f"{runs}/{study.name}/study.json", "--out", runs]
    words += upload_plugins(machine, study.plugins, to=folder)
    words += [] if workers is None else ["--workers", str(workers)]
    words += _filter_words(study_run.filter)
    if study_run.is_named:  # such cells stay stopped until somebody asks for them again, as we do
        stops = [f"{runs}/{study.name}/{cell}/{STOP}" for cell in study_run.cells]
        run_remote(machine, 'rm -f -- "$@"', *stops)
    script = enter_venv(cluster, venv) + _START
    text = json.dumps(uploaded.study, indent=2)
    answer = run_remote(machine, script, folder, study.name, uploaded.folder, text, *words)
    if answer.code == _RUNNING:
        raise _is_running(machine, study.name)
    if answer.code == _ENDED:
        raise LaunchError(
            f"{study.name} ended as soon as it was started there", where=str(address), why=answer.stderr.strip()
        )
    check_written(machine, answer, "the study", problem=_UNUSABLE, hint=_ANOTHER)
    log(f"{study.name} runs on {address}, process {answer.stdout.strip()}; it does not need this machine")
    return RemoteRun(
        study=study.name,
        folder=folder,
        runs=f"{runs}/{study.name}",
        cwd=uploaded.folder,
        venv=venv,
        pid=answer.stdout.strip(),
    )


def _filter_words(chosen: CellFilter) -> list[str]:
    given = {"--arm": chosen.arms, "--seed": chosen.seeds, "--cell": chosen.cells}
    return [word for option, values in given.items() for value in values or () for word in (option, str(value))]


def fetch_status(job: Job, cluster: Cluster) -> list[CellStatus]:
    """The rows of `oelm status` there."""
    output = _oelm_output(job, cluster, "status", RemoteRun.of(job).runs, "--json")
    try:
        found = TypeAdapter(list[CellStatus]).validate_json(output, strict=True, extra="forbid")
        return [replace(row, where=job.on) for row in found]
    except ValidationError as error:
        why = f"{type(error).__name__}: {output[:200]}"
        raise LaunchError("the status there cannot be read", where=job.on, why=why) from error


def stream_log(
    job: Job,
    cell: str,
    *,
    follow: bool,
    cluster: Cluster,
    write: Callable[[str], None],
    log: Callable[[str], None],
) -> int:
    """Write the log of a cell there as it comes. Ctrl-C ends only the showing."""
    there = RemoteRun.of(job)
    words = _command(job, ["logs", *(["-f"] if follow else []), "--runs", there.runs, "--", cell])
    return stream_remote(_host_of(job, cluster), enter_venv(cluster, there.venv) + _SHOW, *words, write=write, log=log)


def stop_remote(job: Job, cells: Sequence[str], cluster: Cluster) -> None:
    """Ask cells there to write a checkpoint and stop."""
    _oelm_output(job, cluster, "stop", "--runs", RemoteRun.of(job).runs, "--", *cells)


def _host_of(job: Job, cluster: Cluster) -> SshHost:
    return ssh_host(parse_address(job.on), cluster)


def _command(job: Job, words: Sequence[str]) -> list[str]:
    """The folder to go to, and the command."""
    there = RemoteRun.of(job)
    return [there.cwd, f"{there.venv}/bin/python", "-P", "-m", "oelm", *words]


def _oelm_output(job: Job, cluster: Cluster, *words: str) -> str:
    """What a command of oelm says there."""
    script = enter_venv(cluster, RemoteRun.of(job).venv) + _CALL
    answer = run_remote(_host_of(job, cluster), script, *_command(job, words))
    if answer.code:
        why = answer.stderr.strip()[-1000:]
        raise LaunchError(f"oelm {words[0]} there ended with code {answer.code}", where=job.on, why=why)
    return answer.stdout


def _inspect_host(machine: SshHost, log: Callable[[str], None]) -> tuple[str, list[str]]:
    """The folder there, and which studies are running in it. `log` hears what may surprise."""
    before = time.time()
    answer = run_remote(machine, _LOOK, machine.address.folder)
    now = (before + time.time()) / 2
    if answer.code == _NOT_OURS:
        raise LaunchError(
            f"{machine.address.folder} on {machine.address.host} holds something else; nothing was copied",
            why="only a folder that is empty, or that oelm has made, is taken",
            hint=f"a folder of its own: {machine.address}/{'oelm' if machine.address.folder != 'oelm' else 'FOLDER'}",
        )
    if answer.code == _NO_TOOL:
        raise LaunchError(f"{answer.last_error} is not installed there", where=str(machine.address))
    check_written(machine, answer, "anything", problem=_UNUSABLE, hint=_ANOTHER)
    folder, clock, disk, *locks = answer.stdout.splitlines()
    ahead = float(clock) - now
    if abs(ahead) > _CLOCK:
        way = "ahead of" if ahead > 0 else "behind"
        host, difference = machine.address.host, format_duration(abs(ahead))
        log(f"the clock of {host} is {difference} {way} this one; its records have its times")
    free = re.search(r"\s\d+\s+\d+\s+(\d+)\s+(?:\d+%|-)\s", disk)
    if free is not None and int(free[1]) * 1024 < _LITTLE:
        log(f"only {int(free[1]) / 1024:,.0f} MB are free in {folder} on {machine.address.host}")
    return folder, [lock.split("/")[1] for lock in locks]


def _is_running(machine: SshHost, study: str) -> LaunchError:
    return LaunchError(
        f"{study} is running there already; nothing was started",
        where=str(machine.address),
        hint="oelm status; or oelm stop all, then rerun the same command to resume",
    )
