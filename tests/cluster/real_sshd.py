"""A real sshd on the loopback interface, as the current user, with keys of its own; stopped by its process id."""

import getpass
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

_PATH = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"  # where Debian keeps daemons
# Mounted for the server alone, and gone with it.
_SMALL_DISK = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs -o size=2m none "$1" && shift && exec "$@"', "sh")
_TOOLS = ("sshd", "ssh", "ssh-keygen", "rsync", "bash", "flock")

_SERVER = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
AllowTcpForwarding no
X11Forwarding no
"""
_CLIENT = """\
Host *
  IdentityFile {key}
  IdentitiesOnly yes
  IdentityAgent none
  UserKnownHostsFile {known_hosts}
  GlobalKnownHostsFile none
"""


def why_not() -> str | None:
    """Why no sshd can be started here; None if one can."""
    missing = [name for name in _TOOLS if shutil.which(name, path=_PATH) is None]
    return f"there is no {missing[0]} here: sh tests/cluster/install.sh" if missing else None


def why_no_small_disk(folder: Path) -> str | None:
    """Why no small disk can be mounted here; None if one can."""
    if shutil.which("unshare") is None:
        return "there is no unshare here"
    done = subprocess.run([*_SMALL_DISK, str(folder), "true"], capture_output=True, text=True)
    return f"no small disk can be mounted here: {done.stderr.strip()}" if done.returncode else None


class RealSshd:
    """A server that can be stopped and started again, and a client's configuration that knows it."""

    def __init__(self, folder: Path, environment: Mapping[str, str], small: Path | None) -> None:
        self.folder = folder
        self.small = small
        self.user = getpass.getuser()
        self.port = _free_port()
        self.process: subprocess.Popen[bytes] | None = None
        for name in ("host_key", "user_key", "other_key"):
            words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "throw-away", "-f", str(folder / name)]
            subprocess.run(words, check=True)
        shutil.copy(folder / "user_key.pub", folder / "authorized_keys")
        kind, key, *_ = (folder / "host_key.pub").read_text().split()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {kind} {key}\n")
        (folder / "nobody").write_text("")
        server = _SERVER.format(port=self.port, folder=folder)
        state = tempfile.mkdtemp(dir=folder)  # there, launches are noted as well
        environment = {"XDG_STATE_HOME": state, **environment}
        server += "SetEnv " + " ".join(f'"{name}={value}"' for name, value in environment.items()) + "\n"
        (folder / "sshd_config").write_text(server)
        self.config = self.client()

    def client(self, *, key: str = "user_key", known_hosts: str = "known_hosts", more: str = "") -> Path:
        """A configuration for `ssh -F`."""
        text = _CLIENT.format(key=self.folder / key, known_hosts=self.folder / known_hosts) + more
        path = Path(tempfile.mkdtemp(dir=self.folder)) / "ssh_config"
        path.write_text(text)
        return path

    def address(self, folder: Path | str = "") -> str:
        return f"ssh://{self.user}@127.0.0.1:{self.port}{folder}"

    def start(self) -> None:
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # sshd insists
        command = str(shutil.which("sshd", path=_PATH))  # which starts itself anew, and must know where it is
        words = [] if self.small is None else [*_SMALL_DISK, str(self.small)]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(
                [*words, command, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        for _ in range(100):
            assert self.process.poll() is None, self.log()
            try:
                socket.create_connection(("127.0.0.1", self.port)).close()
                return
            except OSError:
                time.sleep(0.1)
        raise AssertionError(self.log())

    def stop(self) -> None:
        """As if the machine could not be reached any more. What it has started goes on."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=20)
            self.process = None

    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")[-4000:]


@contextmanager
def real_sshd(environment: Mapping[str, str], *, small: Path | None = None) -> Iterator[RealSshd]:
    """Started; whoever logs in has the environment, and in the folder `small` only 2 MB of room."""
    with tempfile.TemporaryDirectory(prefix="oelm-sshd-") as folder:
        server = RealSshd(Path(folder), environment, small)
        server.start()
        try:
            yield server
        finally:
            server.stop()


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as one:
        return int(one.getsockname()[1])
