"""Ssh: run a script on another machine, and copy files there and back.

OpenSSH and rsync do it; what they say when they fail becomes one message. A script is constant text, and what varies
are its arguments. It goes through standard input to a bash there, so that the user's own shell never reads it.
"""

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from oelm.errors import LaunchError
from oelm.launch.cluster import Cluster
from oelm.launch.place import Place

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
_MARK = "=== oelm ==="  # what is said before it comes from the profile there
_LOST = 255  # how ssh ends when it was ssh itself that failed
_VANISHED = 24  # how rsync ends when a file went away while it looked
_UNWRITTEN = 11  # how rsync ends when a file could not be written; what the other side says of it may get lost
_SILENT = "a file could not be written, as on a full disk or beyond a quota"
_IDLE = 300  # seconds without a byte after which rsync gives up


@dataclass(frozen=True, kw_only=True)
class Machine:
    """Another machine, and how it is reached."""

    place: Place
    config: Path | None
    """Of ssh; left out, the user's own."""

    @property
    def ssh(self) -> list[str]:
        """The beginning of every command; the host comes after it."""
        words = ["ssh", "-T"]
        if self.config is not None:
            words += ["-F", str(self.config)]
        if self.place.port is not None:
            words += ["-p", str(self.place.port)]
        if self.place.user is not None:
            words += ["-l", self.place.user]
        return words + [word for option in _OPTIONS for word in ("-o", option)]

    def at(self, path: str) -> str:
        """A path there, as rsync takes it."""
        return f"{self.place.bracketed}:{path}"


@dataclass(frozen=True, kw_only=True)
class Answer:
    code: int
    said: str
    complained: str

    @property
    def last_complaint(self) -> str | None:
        lines = [line.strip() for line in self.complained.splitlines() if line.strip()]
        return lines[-1] if lines else None


def machine_at(place: Place, cluster: Cluster) -> Machine:
    config = None if cluster.ssh.config is None else Path(cluster.ssh.config).expanduser().absolute()
    if config is not None and not config.is_file():
        raise LaunchError(f"there is no file {config}", where="ssh.config in cluster.yaml")
    return Machine(place=place, config=config)


def ask(machine: Machine, script: str, *arguments: str) -> Answer:
    """Run a script there; `$1` and so on are the arguments."""
    done = _run(
        [*machine.ssh, "--", machine.place.host, *_SHELL],
        text=in_full(f"exec </dev/null\necho {shlex.quote(_MARK)}\n{script}", arguments),
    )
    if done.code == _LOST:
        _refuse(machine, done)
    return Answer(code=done.code, said=done.said.partition(f"{_MARK}\n")[2], complained=done.complained)


def show(machine: Machine, script: str, *arguments: str) -> int:
    """Run a script there that writes to our standard output, until it ends or Ctrl-C is pressed here.

    The script must end when its standard input does, for nothing else tells it that nobody looks any more.
    """
    words = [*machine.ssh, "--", machine.place.host, *_SHELL]
    sys.stdout.flush()  # what was said before comes before
    with _started(words, stdin=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        try:
            process.stdin.write(in_full(script, arguments).encode())
            process.stdin.flush()
        except BrokenPipeError:
            pass  # it has ended, and says why
        try:
            complained = process.stderr.read().decode(errors="replace")
            code = process.wait()
        except KeyboardInterrupt:
            process.terminate()
            return 130
    if code == _LOST:
        _refuse(machine, Answer(code=code, said="", complained=complained))
    sys.stderr.write(complained)
    return code


def in_full(script: str, arguments: Sequence[str]) -> str:
    """A script with its arguments. bash reads all of it before the first command, which may read the rest."""
    return f"{{\nset -- {shlex.join(arguments)}\n{script}\nexit\n}}\n"


def copy_there(machine: Machine, source: Path, to: str, options: Iterable[str], *, what: str) -> Answer:
    """Copy a file into a folder there, or what is in a folder."""
    start = f"{source}/" if source.is_dir() else str(source)
    words = [*options, "--", start, machine.at(f"{to}/")]
    return _rsync(machine, words, what=what, where=f"{to} on {machine.place.host}", then="nothing was started")


def copy_back(machine: Machine, source: str, to: Path, options: Iterable[str], *, what: str) -> Answer:
    """Copy what is in a folder there. A file that vanishes meanwhile does not count."""
    words = [*options, "--", machine.at(f"{source}/"), f"{to.absolute()}/"]
    return _rsync(machine, words, what=what, where=str(to), then="what has arrived is whole")


def _rsync(machine: Machine, words: Sequence[str], *, what: str, where: str, then: str) -> Answer:
    # --protect-args (-s): paths go over the wire, and no shell there reads them.
    done = _run(["rsync", "-s", f"--timeout={_IDLE}", f"--rsh={shlex.join(machine.ssh)}", *words])
    if done.code == _LOST:
        _refuse(machine, done)
    if done.code in (0, _VANISHED):
        return done
    if is_full(done.complained) or (done.code == _UNWRITTEN and not done.complained.strip()):
        raise no_room(what, done, where=where, then=then)
    raise LaunchError(
        f"{what} could not be copied; {then}",
        where=where,
        why=_why(done.complained),
        hint="the same command goes on from here",
    )


def literal(path: str) -> str:
    """A path as a rule of rsync, in which nothing is a wildcard. Only beside one is a backslash an escape."""
    return re.sub(r"([*?\[\\])", r"\\\1", path) if re.search(r"[*?\[]", path) else path


def is_full(text: str) -> bool:
    return "No space left on device" in text or "Disk quota exceeded" in text


def no_room(what: str, answer: Answer, *, where: str, then: str = "nothing was started") -> LaunchError:
    return LaunchError(
        f"there is no room for {what}; {then}",
        where=where,
        why=next((line.strip() for line in answer.complained.splitlines() if is_full(line)), _SILENT),
        hint="make room and give the same command, which goes on from here; or another folder",
    )


def _run(words: Sequence[str], *, text: str = "") -> Answer:
    with _started(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            said, complained = process.communicate(text.encode())
        except BaseException:  # with us goes whom we asked
            process.terminate()
            raise
    return Answer(
        code=process.returncode,
        said=said.decode(errors="replace"),
        complained=complained.decode(errors="replace"),
    )


def _started(words: Sequence[str], **streams: int) -> subprocess.Popen[bytes]:
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
        "{host} does not let us in",
        "this must work without a password being asked for: {by_hand}",
    ),
    (
        r"Could not resolve|refused|timed out|No route to host|unreachable|Connection closed|Connection reset",
        "{host} cannot be reached",
        "{by_hand}",
    ),
)


def _refuse(machine: Machine, answer: Answer) -> NoReturn:
    """One clear message for whatever ssh had to say."""
    words = ["ssh", *(["-F", str(machine.config)] if machine.config else [])]
    words += ["-p", str(machine.place.port)] if machine.place.port else []
    words += ["-l", machine.place.user] if machine.place.user else []
    texts = {"host": machine.place.host, "by_hand": shlex.join([*words, machine.place.host])}
    known = ((what, hint) for pattern, what, hint in _REFUSALS if re.search(pattern, answer.complained))
    what, hint = next(known, ("the connection to {host} was lost", "the same command goes on from here"))
    raise LaunchError(
        what.format(**texts),
        where=str(machine.place),
        why=_why(answer.complained),
        hint=hint.format(**texts),
    )


def _why(complained: str) -> str | None:
    """The first lines that say something; rsync's last one only says where in its source it ended."""
    lines = [line.strip() for line in complained.splitlines() if line.strip(" @\r")]
    said = [line for line in lines if not line.startswith(("rsync error:", "rsync: connection unexpectedly closed"))]
    return "\n".join((said or lines)[:3]) or None
