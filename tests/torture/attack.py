"""Attack: one way to do harm, tried many times, each trial in a process of its own and by a seed of its own."""

import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

TRIAL_SECONDS = 300.0  # a trial that takes longer hangs
COMMAND_SECONDS = 60.0  # and so does a command that only reads
_MEMORY = 12 * 2**30  # bytes of addresses: what asks for more would take the machine with it


@dataclass(frozen=True)
class Attack:
    """`prepare` makes what all trials start from, once; `attempt` raises where oelm does not survive."""

    name: str
    prepare: Callable[[Path], None]
    attempt: Callable[[random.Random, Path, Path], str]
    """Given (randomness, what was prepared, an empty folder); returns what was tried, in a few words."""

    def is_possible(self) -> str | None:
        """Why it cannot be tried on this machine; None if it can."""
        return None


_PREPARED: dict[Callable[[Path], None], Path] = {}


def prepared_by(prepare: Callable[[Path], None]) -> Path:
    """The folder that a preparation has made, once for all attacks that start from it."""
    if prepare not in _PREPARED:
        folder = Path(tempfile.mkdtemp(prefix="oelm-prepared-"))
        prepare(folder)
        _PREPARED[prepare] = folder
    return _PREPARED[prepare]


def remove_prepared() -> None:
    while _PREPARED:
        shutil.rmtree(_PREPARED.popitem()[1], ignore_errors=True)


@dataclass(frozen=True, kw_only=True)
class Trial:
    """What came of one try."""

    attack: str
    seed: str
    problem: str
    """Empty if it was survived."""
    seconds: float

    @property
    def repeat(self) -> str:
        return f"python tests/torture --only {self.attack} --trial {self.seed}"


def run_trial(attack: Attack, seed: str) -> Trial:
    """One try, in a forked process: whatever it does to itself stays there."""
    began = time.monotonic()
    prepared = prepared_by(attack.prepare)
    folder = Path(tempfile.mkdtemp(prefix="oelm-torture-"))
    said = folder / "said.txt"
    try:
        (folder / "work").mkdir()
        pid = os.fork()
        if pid == 0:
            _attempt(attack, seed, prepared, folder / "work", said)
        ended = _wait(pid, TRIAL_SECONDS, os.killpg)  # with all that it has started
        text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
        if ended is None:
            problem = f"hangs after {TRIAL_SECONDS:.0f} s; {text}"
        elif os.WIFSIGNALED(ended):
            problem = f"ended by signal {os.WTERMSIG(ended)}; {text}"
        else:
            problem = text if os.WEXITSTATUS(ended) else ""
    finally:
        _make_removable(folder)
        shutil.rmtree(folder, ignore_errors=True)
    return Trial(attack=attack.name, seed=seed, problem=problem, seconds=time.monotonic() - began)


def _attempt(attack: Attack, seed: str, prepared: Path, folder: Path, said: Path) -> None:
    """In the forked process; never returns."""
    code = 1
    try:
        os.setsid()  # what it starts ends with it
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the one that tells of it
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY, _MEMORY))
        os.environ["OELM_CACHE"] = str(folder / "cache")
        os.chdir(folder)
        with said.open("w", encoding="utf-8", errors="backslashreplace") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        attack.attempt(random.Random(seed), prepared, folder)
        code = 0
    except BaseException:
        traceback.print_exc()
        sys.stderr.flush()
    finally:
        os._exit(code)


def _wait(pid: int, seconds: float, kill: Callable[[int, int], None] = os.kill) -> int | None:
    """How a process ended, as `os.waitpid` says; None if it had to be killed."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found, ended = os.waitpid(pid, os.WNOHANG)
        if found:
            return ended
        time.sleep(0.005)
    kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)
    return None


def _make_removable(folder: Path) -> None:
    for at, _, _ in os.walk(folder):
        Path(at).chmod(0o700)


@dataclass(frozen=True, kw_only=True)
class Ended:
    """How a command ended, and what it said."""

    words: tuple[str, ...]
    code: int
    out: str
    err: str


def command(*words: object) -> Ended:
    """An oelm command in a forked process. One that hangs, crashes or shows a traceback is not survived."""
    outputs = [Path(tempfile.mkstemp()[1]) for _ in range(2)]
    pid = os.fork()
    if pid == 0:
        code = 70
        try:
            for number, path in enumerate(outputs, start=1):
                os.dup2(os.open(path, os.O_WRONLY), number)
            sys.argv = ["oelm", *map(str, words)]
            from oelm.cli.main import main

            main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    ended = _wait(pid, COMMAND_SECONDS)
    out, err = (path.read_text(encoding="utf-8", errors="replace") for path in outputs)
    for path in outputs:
        path.unlink()
    told = f"oelm {' '.join(map(str, words))}: "
    assert ended is not None, f"{told}hangs after {COMMAND_SECONDS:.0f} s"
    assert not os.WIFSIGNALED(ended), f"{told}ended by signal {os.WTERMSIG(ended)}\n{err[-2000:]}"
    code = os.WEXITSTATUS(ended)
    assert "Traceback (most recent call last)" not in err, f"{told}a traceback\n{err[-3000:]}"
    assert code in (0, 1, 2), f"{told}exit code {code}\n{err[-2000:]}"
    assert code != 2 or err.strip(), f"{told}exit code 2 without a word"
    return Ended(words=tuple(map(str, words)), code=code, out=out, err=err)
