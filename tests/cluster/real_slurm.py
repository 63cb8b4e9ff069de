"""A real Slurm on the loopback interface: a controller and two nodes, started and stopped by their process ids."""

import os
import pwd
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock

NODES = ("n1", "n2")
_DAEMONS = ("munged", "slurmctld", "slurmd")
_COMMANDS = ("sbatch", "scontrol", "scancel", "sinfo", "squeue")
_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where Debian keeps daemons

# A requeued task starts when its old credential has expired; a silent node is given up after SlurmdTimeout.
_CONF = """\
ClusterName=lab
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket,cred_expire=5
SlurmctldPort={ports[0]}
CommunicationParameters=NoInAddrAny,NoCtldInAddrAny
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,bf_interval=2
MpiDefault=none
SwitchType=switch/none
ReturnToService=2
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
SlurmdParameters=config_overrides
SlurmdTimeout=10
InactiveLimit=0
KillWait=10
MinJobAge=3600
OverTimeLimit=0
JobRequeue=1
AccountingStorageType=accounting_storage/none
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2 RealMemory=1000 Weight=1 State=UNKNOWN
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2 RealMemory=1000 Weight=2 State=UNKNOWN
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
PartitionName=debug Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1
PartitionName=urgent Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10
"""


def why_not() -> str | None:
    """Why no Slurm can be started here; None if one can."""
    missing = [name for name in (*_DAEMONS, *_COMMANDS) if shutil.which(name, path=_PATH) is None]
    return f"there is no {missing[0]} here: sh tests/cluster/install.sh" if missing else None


class RealSlurm:
    """What was started, by name. Nodes can be cut off and come back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.env = {"SLURM_CONF": str(folder / "slurm.conf")}
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> None:
        with (self.folder / "log" / f"{name}.out").open("ab") as file:
            self.processes[name] = subprocess.Popen(
                words, env={**os.environ, **self.env, "PATH": _PATH}, stdin=subprocess.DEVNULL, stdout=file, stderr=file
            )

    def start_node(self, name: str) -> None:
        self.start(name, "slurmd", "-D", "-N", name)

    def cut_off(self, name: str) -> None:
        """As if the power went: slurmd and all that it runs end at once."""
        pids = [self.processes[name].pid, *self._of_node(name)]
        for pid in pids:
            _send(pid, signal.SIGKILL)
        self.processes.pop(name).wait()

    def ask(self, *words: str) -> str:
        env = {**os.environ, **self.env}
        return subprocess.run(words, env=env, capture_output=True, text=True, timeout=60).stdout

    def up(self) -> bool:
        return self.ask("sinfo", "-h", "-N", "-p", "debug", "-o", "%N %T").split() == ["n1", "idle", "n2", "idle"]

    def clear(self) -> None:
        """Take all jobs out of the queue, and wait until none runs."""
        self.ask("scancel", "--quiet", "--full", "-u", pwd.getpwuid(os.getuid()).pw_name)
        wait_for(lambda: not self.ask("squeue", "-h"), seconds=20)

    def stop(self) -> None:
        self.clear()
        for process in reversed(self.processes.values()):
            process.terminate()
        for process in self.processes.values():
            try:
                process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid in self._of_node(None):  # a task that would not end
            _send(pid, signal.SIGKILL)

    def _of_node(self, name: str | None) -> list[int]:
        """The processes of the tasks on a node (or on all), and those that progress over them."""
        tasks = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                env = dict(
                    row.partition("=")[::2] for row in (folder / "environ").read_text("utf-8", "replace").split("\0")
                )
            except OSError:
                continue
            ours = env.get("SLURM_CONF") == self.env["SLURM_CONF"]
            if ours and "SLURMD_NODENAME" in env and name in (None, env["SLURMD_NODENAME"]):
                tasks.append(int(folder.name))
        watchers = {parent for pid in tasks if (parent := _parent(pid)) is not None and _is_watcher(parent)}
        return [*watchers, *tasks]

    def log(self) -> str:
        files = sorted((self.folder / "log").iterdir())
        return "\n".join(f"== {file.name}\n{file.read_text('utf-8', 'replace')[-2000:]}" for file in files)


@contextmanager
def real_slurm() -> Iterator[RealSlurm]:
    """One at a time on a machine, however many test processes there are."""
    with FileLock(Path(tempfile.gettempdir()) / "oelm-real-slurm.lock", mode=0o666, timeout=900):
        folder = Path(tempfile.mkdtemp(prefix="oelm-slurm-"))  # short: a socket's path may have 107 letters
        slurm = RealSlurm(folder)
        try:
            _configure(folder)
            words = ["--foreground", f"--socket={folder}/munge.socket", f"--key-file={folder}/munge.key"]
            words += [f"--{name}-file={folder}/run/munged.{name}" for name in ("pid", "seed")]
            slurm.start("munged", "munged", *words, f"--log-file={folder}/log/munged.log", "--num-threads=2")
            assert wait_for((folder / "munge.socket").exists), slurm.log()
            slurm.start("slurmctld", "slurmctld", "-D")
            for name in NODES:
                slurm.start_node(name)
            assert wait_for(slurm.up), slurm.log()
            yield slurm
        finally:
            slurm.stop()
            shutil.rmtree(folder, ignore_errors=True)


def _configure(folder: Path) -> None:
    folder.chmod(0o755)
    for name in ("log", "run", "state", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    (folder / "cgroup.conf").write_text("CgroupAutomount=no\n")
    user = pwd.getpwuid(os.getuid()).pw_name
    conf = _CONF.format(host=socket.gethostname(), user=user, folder=folder, ports=_free_ports(3))
    (folder / "slurm.conf").write_text(conf)


def _free_ports(number: int) -> list[int]:
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in range(number)]
    try:
        return [one.getsockname()[1] for one in taken]
    finally:
        for one in taken:
            one.close()


def wait_for(what: Callable[[], object], *, seconds: float = 60) -> bool:
    """Whether it came true in time."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if what():
            return True
        time.sleep(0.2)
    return bool(what())


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _is_watcher(pid: int) -> bool:
    try:
        return b"slurmstepd" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


def _send(pid: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, number)
