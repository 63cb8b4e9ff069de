"""Lease: who has a cell to itself, on one machine or on many that share a file system.

The lease of a cell is the folder `lease/<token>/` in it, with `holder.json` inside. Only renames decide, and a file
system, NFS too, does each of them for one process alone:

- `lease` comes into being by a rename, which fails where there is one that is not empty.
- A dead holder's `lease/<token>` is renamed to its successor's; of several who try, one finds it.
- What a holder keeps is made inside its own folder and renamed out of it. Who was replaced has no such folder any more:
  however late it wakes up, it cannot write.

A holder touches `holder.json` every few seconds. No clock is compared with that of another machine: how old that is, is
decided by the clock of the file system.
"""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Annotated, TypeVar

from pydantic import Field

from oelm.errors import CellError, OelmError
from oelm.facts import Count
from oelm.runs.files import FileType, write_text, writing

TIMEOUT = 120.0  # seconds that a holder on another machine may be silent; attributes on NFS are up to 60 s old
_BEAT = 1.0  # seconds between two looks at the file `stop`
_TOUCH = 10  # beats between two signs of life
_LEASE, _HOLDER = "lease", "holder.json"
_T = TypeVar("_T")
STOP = "stop"
"""A file of this name in a cell's folder asks its holder to stop, wherever it is, and keeps others from starting."""


class LeaseHeld(CellError):
    """Another process works on the cell."""


class LeaseLost(CellError):
    """Another process has taken the cell over, because this one seemed to be dead."""


@dataclass(frozen=True, kw_only=True)
class HolderIdentity:
    """A process that has, or had, a cell."""

    token: str
    """Name of the lease."""
    host: str
    """Name of the machine."""
    pid: Annotated[int, Field(ge=0, lt=2**31)]
    """Of the process."""
    job: str | None
    """Of a batch system."""
    restart_count: Count
    """How often that job was put back into the queue before."""
    since: str
    """When it took the cell, by its own clock."""
    machine: str
    """The same for processes that see each other, which those of two containers do not."""
    process_start: str | None
    """When the process began, to tell it from another of the same pid."""

    def __str__(self) -> str:
        job = f", job {self.job}" if self.job else ""
        return f"process {self.pid} on {self.host}{job}, since {self.since}"


HOLDER_FILE = FileType(_HOLDER, HolderIdentity, format=1, hint="remove the folder of the lease that it is in")


@dataclass(frozen=True, kw_only=True)
class Holder:
    """Who holds a cell, or held it last."""

    identity: HolderIdentity
    is_alive: bool

    @property
    def where(self) -> str:
        return self.identity.host + (f" job {self.identity.job}" if self.identity.job else "")

    def __str__(self) -> str:
        return str(self.identity)


class Lease:
    """A cell that is held by this process. All that is kept in its folder goes through here."""

    def __init__(self, folder: Path, token: str):
        self.folder = folder
        self.staging = folder / _LEASE / token
        """What is made here, and moved out when it is whole."""
        self.on_stop_request: Callable[[], None] | None = None
        """Called once when somebody puts the file `stop` into the folder."""
        self._ended = threading.Event()
        self._beating = threading.Thread(target=self._beat, daemon=True, name="lease")

    def write(self, file: FileType[_T], content: _T) -> None:
        """Write a file of the folder: it is there whole or not at all."""
        made = self.staging / f"new-{file.name}"
        with self._fenced():
            write_text(made, file.dumps(content))
            made.replace(self.folder / file.name)

    def rewrite(self, name: str, text: str) -> IO[str]:
        """The file, written anew and open for more at its end.

        More goes to this file and never to one that a successor has put in its place.
        """
        made = self.staging / f"new-{name}"
        with self._fenced():
            write_text(made, text)
            file = made.open("a", encoding="utf-8")
            made.replace(self.folder / name)
        return file

    def publish(self, made: Path, name: str) -> None:
        """Move what was made in `staging` to `name` in the folder, in the place of what is there."""
        target = self.folder / name
        with self._fenced():
            self.check()
            if target.is_dir() or (made.is_dir() and os.path.lexists(target)):
                self.remove(target)
            target.parent.mkdir(exist_ok=True)
            made.rename(target)

    def rename(self, name: str, new: str) -> None:
        """Give a file of the folder another name: by way of `staging`, which who was replaced does not have."""
        with self._fenced():
            (self.folder / name).rename(self.staging / new)
            (self.staging / new).rename(self.folder / new)

    def remove(self, path: Path) -> None:
        """Remove a file or a folder of the cell, if it is there."""
        with self._fenced():
            away = self.staging / f"away-{secrets.token_hex(4)}"
            try:
                path.rename(away)
            except FileNotFoundError:
                self.check()
                return
        if away.is_dir():
            shutil.rmtree(away, ignore_errors=True)
        else:
            away.unlink(missing_ok=True)

    def check(self) -> None:
        """Raises if the cell is not ours any more."""
        if not (self.staging / _HOLDER).is_file():
            shutil.rmtree(self.staging, ignore_errors=True)  # libraries make folders anew that were taken from us
            now = holder_of(self.folder)
            raise LeaseLost(
                f"{self.folder} was taken over by another process; this one writes nothing more",
                why=f"it gave no sign of life for {TIMEOUT:.0f} s" + (f"; now: {now}" if now else ""),
            )

    @contextmanager
    def _fenced(self) -> Iterator[None]:
        try:
            with writing(self.folder):
                yield
        except OelmError:
            self.check()
            raise

    def _beat(self) -> None:
        beats = 0
        while not self._ended.wait(_BEAT):
            beats += 1
            if beats % _TOUCH == 0:
                with contextlib.suppress(OSError):  # lost, or a disk that is away: the next write will tell
                    os.utime(self.staging / _HOLDER)
            with contextlib.suppress(OSError):  # what is away for a moment must not end the signs of life
                if self.on_stop_request is not None and (self.folder / STOP).exists():
                    asked, self.on_stop_request = self.on_stop_request, None
                    asked()

    def begin(self) -> None:
        self._beating.start()

    def end(self) -> None:
        """Let go of the cell. Whoever lost it has nothing to let go of."""
        self._ended.set()
        if self._beating.ident is not None:
            self._beating.join()
        aside = _staging(self.folder, self.staging.name)
        with contextlib.suppress(OSError):
            self.staging.rename(aside)
            self.staging.parent.rmdir()  # unless somebody has it already
        shutil.rmtree(aside, ignore_errors=True)
        remove_stale(self.folder)


@contextmanager
def acquire(folder: Path) -> Iterator[Lease]:
    """Have a cell to oneself, or learn who holds it."""
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lease = Lease(folder, _acquire(folder))
    lease.begin()
    try:
        yield lease
    finally:
        lease.end()


def _acquire(folder: Path) -> str:
    """Take a free cell, or that of a dead holder; the token of the lease."""
    token = secrets.token_hex(8)
    me = _this_process(token)
    prepared = _staging(folder, token)
    (prepared / token).mkdir(parents=True)
    try:
        HOLDER_FILE.write(prepared / token, me)
        while True:
            try:
                prepared.rename(folder / _LEASE)
                return token
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                    raise
            _end_future(folder)
            before = holder_of(folder)
            if before is None:
                continue  # let go just now
            last = before.identity
            myself_before = last.job is not None and last.job == me.job and last.restart_count < me.restart_count
            if before.is_alive and not myself_before:
                raise LeaseHeld(f"another process is working on {folder}", why=str(before))
            try:
                (folder / _LEASE / last.token).rename(folder / _LEASE / token)
            except FileNotFoundError:
                continue  # somebody else was quicker
            HOLDER_FILE.write(folder / _LEASE / token, me)
            _clear_staging(folder / _LEASE / token)
            return token
    finally:
        shutil.rmtree(prepared, ignore_errors=True)


def _end_future(folder: Path) -> None:
    """Let signs of life from the future count from now on: else they would hold a cell until the clock catches up."""
    now = _now(folder)
    for sign in (folder / _LEASE, *(folder / _LEASE).glob(f"*/{_HOLDER}")):
        with contextlib.suppress(OSError):  # let go just now, or another user's
            if sign.stat().st_mtime - now > TIMEOUT:
                os.utime(sign)


def _staging(folder: Path, token: str) -> Path:
    """Where a lease is made before it counts; there until it is signed by its holder."""
    return folder / f".{_LEASE}-{token}"


def _clear_staging(place: Path) -> None:
    """Remove what the last holder left unfinished."""
    for rest in place.iterdir():
        if rest.is_dir():
            shutil.rmtree(rest, ignore_errors=True)
        elif rest.name != _HOLDER:
            rest.unlink(missing_ok=True)


def remove_stale(folder: Path) -> None:
    """Remove what processes that were killed while they took the cell, let go of it, or met there, have left."""
    for rest in stale_files(folder):
        owner = None
        with contextlib.suppress(CellError):  # who wrote half a name is as dead as who wrote none
            owner = HOLDER_FILE.read(rest) or HOLDER_FILE.read(rest / rest.name.removeprefix(f".{_LEASE}-"))
        with contextlib.suppress(OSError):
            is_dead = owner is not None and owner.machine == _machine() and not _is_running(owner)
            if is_dead or _now(folder) - rest.stat().st_mtime > TIMEOUT:
                shutil.rmtree(rest) if rest.is_dir() else rest.unlink()


def stale_files(folder: Path) -> list[Path]:
    return [*folder.glob(f".{_LEASE}-*"), *folder.glob(".now-*"), *folder.glob(".store-*")]


def holder_of(folder: Path) -> Holder | None:
    """Who holds a cell, or did when it died; None for nobody."""
    lease, token = folder / _LEASE, ""
    for _ in range(100):  # it may change hands while we look
        try:
            places = sorted(lease.iterdir(), key=lambda place: not (place / _HOLDER).exists())
            if not places:
                return None
            token = places[0].name
            entered, touched = lease.stat().st_mtime, (lease / token / _HOLDER).stat().st_mtime
            holder = HOLDER_FILE.read(lease / token)
        except (FileNotFoundError, NotADirectoryError):
            if not lease.exists():
                return None
            continue
        except OSError as error:
            raise CellError(f"{lease} cannot be read", why=error.strerror, hint="move it away") from error
        if holder is None:
            continue
        if holder.token != token:  # taken over in this moment, by one who has said before who it is
            holder = HOLDER_FILE.read(_staging(folder, token) / token) or holder
        if holder.token != token:  # who it is will stand there in the next moment
            is_alive = _is_recent(folder, entered)
        elif holder.machine == _machine():
            is_alive = _is_running(holder)
        else:
            is_alive = _is_recent(folder, entered, touched)
        return Holder(identity=replace(holder, token=token), is_alive=is_alive)
    if not lease.is_dir():
        raise CellError(f"{lease} is in the way: not a folder", hint="move it away")
    # A folder that nobody has signed: made anew by a library, after its holder was replaced.
    unknown = HolderIdentity(
        token=token,
        host="a machine that has not said which",
        pid=0,
        job=None,
        restart_count=0,
        since="?",
        machine="",
        process_start=None,
    )
    return Holder(identity=unknown, is_alive=_is_recent(folder, lease.stat().st_mtime))


def _is_recent(folder: Path, *signs: float) -> bool:
    """Whether one of these times is a sign of life; one that lies far in the future is none."""
    now = _now(folder)
    return any(abs(now - sign) < TIMEOUT for sign in signs)


def _this_process(token: str) -> HolderIdentity:
    return HolderIdentity(
        token=token,
        host=socket.gethostname(),
        pid=os.getpid(),
        job=_job(),
        restart_count=int(os.environ.get("SLURM_RESTART_COUNT") or 0),
        since=time.strftime("%Y-%m-%d %H:%M:%S"),
        machine=_machine(),
        process_start=_start_time(os.getpid()),
    )


def _is_running(holder: HolderIdentity) -> bool:
    """Of one on this machine."""
    return _start_time(holder.pid) == holder.process_start


def _job() -> str | None:
    """The task of a batch system that this process is."""
    array, task, job = (os.environ.get(f"SLURM_{name}") for name in ("ARRAY_JOB_ID", "ARRAY_TASK_ID", "JOB_ID"))
    return f"{array}_{task}" if array and task else job


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {Path('/proc/self/ns/pid').readlink()}"
    except OSError:
        return socket.gethostname()


def _start_time(pid: int) -> str | None:
    """When a process began, to tell it from another of the same number; None if there is none."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii", errors="replace")
    except FileNotFoundError:
        if not Path("/proc/self/stat").exists():  # no such files on this system: the number must do
            with contextlib.suppress(OSError):
                os.kill(pid, 0)
                return "running"
        return None
    except OSError:
        return None
    state, *rest = stat.rpartition(")")[2].split()
    return None if state in "ZX" else rest[18]


def _now(folder: Path) -> float:
    """The time, by the clock of the file system; by our own where we may not write."""
    sign = folder / f".now-{secrets.token_hex(4)}"
    try:
        sign.touch()
        return sign.stat().st_mtime
    except OSError:
        return time.time()
    finally:
        with contextlib.suppress(OSError):
            sign.unlink(missing_ok=True)
