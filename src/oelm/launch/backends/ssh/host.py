"""Ssh: run a script on another machine, and copy files there and back.

OpenSSH and rsync do it; what they say when they fail becomes one message. A script is constant text, and what varies
are its arguments. It goes through standard input to a bash there, so that the user's own shell never reads it.
"""

import codecs
import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from oelm.errors import LaunchError
from oelm.launch.backends.cluster import Cluster, path_here
from oelm.launch.backends.ssh.address import SshAddress

# Said on the command line, these count more than any configuration: host keys are checked and never accepted by us,
# nobody is asked for a password, a dead connection is noticed, and no port is forwarded.
_OPTIONS = (
    "BatchMode=yes",
    "StrictHostKeyChecking=yes",
    "ConnectTimeout=15",
    "ServerAliveInterval=15",
    "ServerAliveCountMax=4",
    "ClearAllForwardings=yes",
    "LogLevel=ERROR",
)
_SHELL = ("bash", "-l", "-s")  # a login shell: `module`, and often Python, are known only to those
_MARK = "=== oelm ==="  # what is printed before it comes from the profile there
_LOST = 255  # how ssh ends when it was ssh itself that failed
_VANISHED = 24  # how rsync ends when a file went away while it looked
_UNWRITTEN = 11  # how rsync ends when a file could not be written; what the other side says of it may get lost
_SILENT = "a file could not be written, as on a full disk or beyond a quota"
_IDLE = 300  # seconds without a byte after which rsync gives up


@dataclass(frozen=True, kw_only=True)
class SshHost:
    """Another machine, and how it is reached."""

    address: SshAddress
    config: Path | None
    """Of ssh; left out, the user's own."""

    @property
    def options(self) -> list[str]:
        given = {"-F": self.config, "-p": self.address.port, "-l": self.address.user}
        return [word for flag, value in given.items() if value is not None for word in (flag, str(value))]

    @property
    def ssh(self) -> list[str]:
        """The beginning of every command; the host comes after it."""
        return ["ssh", "-T", *self.options, *(word for option in _OPTIONS for word in ("-o", option))]

    def at(self, path: str) -> str:
        """A path there, as rsync takes it."""
        return f"{self.address.bracketed}:{path}"


@dataclass(frozen=True, kw_only=True)
class RemoteResult:
    code: int
    stdout: str
    stderr: str

    @property
    def last_error(self) -> str | None:
        lines = [line.strip() for line in self.stderr.splitlines() if line.strip()]
        return lines[-1] if lines else None


def ssh_host(address: SshAddress, cluster: Cluster) -> SshHost:
    config = None if cluster.ssh.config is None else path_here(cluster.ssh.config)
    if config is not None and not config.is_file():
        raise LaunchError(f"there is no file {config}", where="ssh.config in cluster.yaml")
    return SshHost(address=address, config=config)


def run_remote(machine: SshHost, script: str, *arguments: str) -> RemoteResult:
    """Run a script there; `$1` and so on are the arguments."""
    done = _run(
        [*machine.ssh, "--", machine.address.host, *_SHELL],
        text=with_arguments(f"exec </dev/null\necho {shlex.quote(_MARK)}\n{script}", arguments),
    )
    if done.code == _LOST:
        _raise_ssh_error(machine, done)
    return RemoteResult(code=done.code, stdout=done.stdout.partition(f"{_MARK}\n")[2], stderr=done.stderr)


def stream_remote(
    machine: SshHost, script: str, *arguments: str, write: Callable[[str], None], log: Callable[[str], None]
) -> int:
    """Run a script there and `write` what it says as it comes, until it ends or Ctrl-C is pressed here.

    `log` hears in the end what came on its standard error. The script must end when its standard input does, for
    nothing else tells it that nobody looks any more.
    """
    words = [*machine.ssh, "--", machine.address.host, *_SHELL]
    with (
        tempfile.TemporaryFile() as errors,
        _popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors.fileno()) as process,
    ):
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            with suppress(BrokenPipeError):  # it has ended, and says why
                process.stdin.write(with_arguments(script, arguments).encode())
                process.stdin.flush()
            decoder = codecs.getincrementaldecoder("utf-8")("replace")
            while part := os.read(process.stdout.fileno(), 2**16):
                write(decoder.decode(part))
            write(decoder.decode(b"", final=True))
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            return 130
        except BaseException:  # with us goes whom we asked
            process.terminate()
            raise
        errors.seek(0)
        stderr = errors.read().decode(errors="replace")
    if code == _LOST:
        _raise_ssh_error(machine, RemoteResult(code=code, stdout="", stderr=stderr))
    if stderr.strip():
        log(stderr.rstrip("\n"))
    return code


def with_arguments(script: str, arguments: Sequence[str]) -> str:
    """A script with its arguments. bash reads all of it before the first command, which may read the rest."""
    return f"{{\nset -- {shlex.join(arguments)}\n{script}\nexit\n}}\n"


def upload(machine: SshHost, source: Path, to: str, options: Iterable[str], *, what: str) -> RemoteResult:
    """Copy a file into a folder there, or what is in a folder."""
    start = f"{source}/" if source.is_dir() else str(source)
    words = [*options, "--", start, machine.at(f"{to}/")]
    return _rsync(machine, words, what=what, where=f"{to} on {machine.address.host}", then="nothing was started")


def download(machine: SshHost, source: str, to: Path, options: Iterable[str], *, what: str) -> RemoteResult:
    """Copy what is in a folder there. A file that vanishes meanwhile does not count."""
    words = [*options, "--", machine.at(f"{source}/"), f"{to.absolute()}/"]
    return _rsync(machine, words, what=what, where=str(to), then="what has arrived is complete")


def _rsync(machine: SshHost, words: Sequence[str], *, what: str, where: str, then: str) -> RemoteResult:
    # --protect-args (-s): paths go over the wire, and no shell there reads them.
    done = _run(["rsync", "-s", f"--timeout={_IDLE}", f"--rsh={shlex.join(machine.ssh)}", *words])
    if done.code == _LOST:
        _raise_ssh_error(machine, done)
    if done.code in (0, _VANISHED):
        return done
    if says_disk_full(done.stderr) or (done.code == _UNWRITTEN and not done.stderr.strip()):
        raise remote_disk_full(what, done, where=where, then=then)
    raise LaunchError(
        f"{what} could not be copied; {then}",
        where=where,
        why=_why(done.stderr),
        hint="rerun the same command to resume",
    )


def escape_pattern(path: str) -> str:
    """A path as a rule of rsync, in which nothing is a wildcard. Only beside one is a backslash an escape."""
    return re.sub(r"([*?\[\\])", r"\\\1", path) if re.search(r"[*?\[]", path) else path


def says_disk_full(text: str) -> bool:
    return "No space left on device" in text or "Disk quota exceeded" in text


def remote_disk_full(what: str, answer: RemoteResult, *, where: str, then: str = "nothing was started") -> LaunchError:
    return LaunchError(
        f"there is no room for {what}; {then}",
        where=where,
        why=next((line.strip() for line in answer.stderr.splitlines() if says_disk_full(line)), _SILENT),
        hint="make room and rerun the same command to resume; or another folder",
    )


def check_written(
    machine: SshHost, answer: RemoteResult, what: str, *, problem: str, why: str | None = None, hint: str | None = None
) -> None:
    """Refuse to go on if a script there could not write, where `what` was to be, or failed otherwise."""
    if not answer.code:
        return
    where = str(machine.address)
    if says_disk_full(answer.stderr):
        raise remote_disk_full(what, answer, where=where)
    raise LaunchError(f"{problem}; nothing was started", where=where, why=why or answer.last_error, hint=hint)


def _run(words: Sequence[str], *, text: str = "") -> RemoteResult:
    with _popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            stdout, stderr = process.communicate(text.encode())
        except BaseException:  # with us goes whom we asked
            process.terminate()
            raise
    return RemoteResult(
        code=process.returncode,
        stdout=stdout.decode(errors="replace"),
        stderr=stderr.decode(errors="replace"),
    )


def _popen(words: Sequence[str], **streams: int) -> subprocess.Popen[bytes]:
    english = {**os.environ, "LC_ALL": "C.UTF-8"}  # for we read what they say
    try:
        return subprocess.Popen(words, env=english, **streams)  # type: ignore[call-overload, no-any-return]
    except FileNotFoundError:
        package = "rsync" if words[0] == "rsync" else "openssh-client"
        raise LaunchError(
            f"{words[0]} is not installed here", hint=f"on Debian and Ubuntu: apt install {package}"
        ) from None
    except OSError as error:
        raise LaunchError(f"{words[0]} could not be started", why=error.strerror or str(error)) from error


# What ssh says, what that means, and what to try.
_REFUSALS = (
    (
        r"IDENTIFICATION HAS CHANGED",
        "the host key of {host} is not the one that is known",
        "ask who runs {host} whether its key was changed; only then: ssh-keygen -R {host}",
    ),
    (
        r"host key is known|Host key verification failed",
        "the host key of {host} is not known",
        "connect once by hand, compare the key, and accept it: {by_hand}",
    ),
    (
        r"Permission denied|Too many authentication failures",
        "authentication failed on {host}",
        "this must work without a password being asked for: {by_hand}",
    ),
    (
        r"Could not resolve|refused|timed out|No route to host|unreachable|Connection closed|Connection reset",
        "{host} cannot be reached",
        "{by_hand}",
    ),
)


def _raise_ssh_error(machine: SshHost, answer: RemoteResult) -> NoReturn:
    """One clear message for whatever ssh had to say."""
    host = machine.address.host
    texts = {"host": host, "by_hand": shlex.join(["ssh", *machine.options, host])}
    known = ((what, hint) for pattern, what, hint in _REFUSALS if re.search(pattern, answer.stderr))
    what, hint = next(known, ("the connection to {host} was lost", "rerun the same command to resume"))
    raise LaunchError(
        what.format(**texts),
        where=str(machine.address),
        why=_why(answer.stderr),
        hint=hint.format(**texts),
    )


def _why(stderr: str) -> str | None:
    """The first lines that say something; rsync's last one only says where in its source it ended."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip(" @\r")]
    useful = [line for line in lines if not line.startswith(("rsync error:", "rsync: connection unexpectedly closed"))]
    return "\n".join((useful or lines)[:3]) or None
