"""Attacks on training: killed, raced, without room, without links, with a damaged cache, it ends with the same bits."""

import ctypes
import errno
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import tiny_study
from oelm.errors import DiskError, OelmError
from oelm.runs.status import read_state
from oelm.study.load import load_study
from oelm.train.progress import Progress
from running import bits_of, run_cell
from torture.attack import Attack
from torture.mutate import damage

ARM = "oelm-freeze"
CELL = Path("tiny") / ARM / "seed-0"
FILE_EVENTS = ("open", "os.rename", "os.remove", "os.link", "shutil.rmtree", "os.mkdir")
_KINDS = ("classes", "text")


def prepare(folder: Path) -> None:
    """Two small studies, and what each leaves behind when nothing happens to it."""
    for kind in _KINDS:
        (folder / kind).mkdir()
        os.environ["OELM_CACHE"] = str(folder / kind / "cache")
        assert train(make_study(folder / kind, kind), folder / kind / "runs") == 0


def make_study(folder: Path, kind: str) -> Path:
    long = {"budget": {"steps": 24}, "evaluate": {"every": 8}}  # many moments at which it may be killed
    if kind == "classes":
        return tiny_study.make(folder, **long)
    content = tiny_study.language_study(
        folder,
        **long,
        max_length=32,
        batch={"size": 2, "accumulate": 2},
        schedule={"name": "cosine", "warmup": 3, "floor": 0.1},
    )
    content["arms"][ARM]["unfreeze"] = {"start": 0.3, "end": 0.8}
    return tiny_study.write_study(folder, content)


def train(study: Path, out: Path, **options: Any) -> int:
    """Train the cell in a forked process; how it ended, as `os.waitpid` says."""
    return os.waitpid(start_training(study, out, **options), 0)[1]


def start_training(
    study: Path,
    out: Path,
    *,
    arm: str = ARM,
    before: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
) -> int:
    """The number of a forked process that trains the cell, after `before` has set a trap there."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        torch.set_num_threads(1)
        before()
        record = run_cell(load_study(study), arm=arm, seed=0, out=out, progress=progress or Progress())
        code = 0 if record.status == "done" else 3
    except DiskError as error:
        print(error, file=sys.stderr)
        code = 28
    except OelmError as error:
        print(error, file=sys.stderr)
        code = 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


class KilledInEvaluation(Progress):
    def __init__(self, after: int):
        self.after = after

    def on_evaluate(self, what: str, done: int, total: int) -> None:
        self.after -= 1
        if self.after == 0:
            os.kill(os.getpid(), signal.SIGKILL)


def kill_at_file_event(number: int, below: Path) -> None:
    """Kill this process at its `number`th operation on files below a folder."""
    left = number

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal left
        if event in FILE_EVENTS and str(below) in str(arguments[0]):
            left -= 1
            if left == 0:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)


def train_until_killed(study: Path, out: Path, way: str, when: float) -> int:
    """Train the cell, and kill it: after so many seconds, at a file event, or in an evaluation; how it ended."""
    if way == "time":
        pid = start_training(study, out)
        time.sleep(when)
        os.kill(pid, signal.SIGKILL)
        return os.waitpid(pid, 0)[1]
    if way == "evaluation":
        return train(study, out, progress=KilledInEvaluation(int(when)))
    return train(study, out, before=lambda: kill_at_file_event(int(when), out))


def _work_on(choose: random.Random, prepared: Path, folder: Path) -> tuple[Path, Path, str]:
    """(study, where it runs, what it must end with) of one of the prepared studies."""
    kind = choose.choice(_KINDS)
    shutil.copytree(prepared / kind / "cache", folder / "cache")
    return prepared / kind / "tiny.yaml", folder / "runs", kind


def check_same(out: Path, whole: Path) -> None:
    found, expected = bits_of(out / CELL), bits_of(whole / CELL)
    assert found.keys() == expected.keys()
    for name in expected:
        assert found[name] == expected[name], f"other {name} than uninterrupted"


def kill(choose: random.Random, prepared: Path, folder: Path) -> str:
    """Killed again and again, at file events, at random times and while it is evaluated."""
    study, out, kind = _work_on(choose, prepared, folder)
    kills = 0
    for _ in range(choose.randint(1, 6)):
        way = choose.choice(("time", "files", "files", "evaluation"))
        when = {"time": choose.uniform(0.05, 3.0), "files": choose.randint(1, 120), "evaluation": choose.randint(1, 12)}
        ended = train_until_killed(study, out, way, when[way])
        assert os.WIFSIGNALED(ended) or ended == 0, f"ended with {ended} after {kills} kills"
        kills += os.WIFSIGNALED(ended)
        assert read_state(out / CELL) in ("pending", "stopped", "done"), "a lease that is stuck"
    assert train(study, out) == 0
    check_same(out, prepared / kind / "runs")
    return f"{kills} kills, {kind}"


def race(choose: random.Random, prepared: Path, folder: Path) -> str:
    """Several processes want the same cell, and are killed at random; one of them ends it, once."""
    study, out, kind = _work_on(choose, prepared, folder)
    racers = [start_training(study, out) for _ in range(choose.randint(2, 4))]
    kills = 0
    while racers:
        time.sleep(choose.uniform(0.05, 0.8))
        victim = choose.choice(racers)
        if choose.random() < 0.3 and kills < 6:
            os.kill(victim, signal.SIGKILL)
            kills += 1
            racers.append(start_training(study, out))
        for pid in list(racers):
            found, ended = os.waitpid(pid, os.WNOHANG)
            if found:
                racers.remove(pid)
                # Code 2: another has the cell.
                assert os.WIFSIGNALED(ended) or os.WEXITSTATUS(ended) in (0, 2), f"a racer ended with {ended}"
    assert train(study, out) == 0
    check_same(out, prepared / kind / "runs")
    return f"{kills} kills among racers, {kind}"


class SmallDisk(Attack):
    """A real file system of a few MB, made larger when it was full."""

    def is_possible(self) -> str | None:
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                _mount_small_disk(Path("/mnt"), 1)
                code = 0
            finally:
                os._exit(code)
        return None if os.waitpid(pid, 0)[1] == 0 else "this machine lets nobody mount a small disk"


def _mount_small_disk(at: Path, megabytes: float, *, again: bool = False) -> None:
    """In a name space of mounts of this process: nobody else sees it, and it goes with the process."""
    libc = ctypes.CDLL(None, use_errno=True)
    new_mounts, new_users, remount, private, recursive = 0x20000, 0x10000000, 32, 1 << 18, 16384
    if not again:
        flags = new_mounts if os.geteuid() == 0 else new_mounts | new_users
        if libc.unshare(flags) or libc.mount(None, b"/", None, private | recursive, None):
            raise OSError(ctypes.get_errno(), "no name space of mounts")
    size = f"size={int(megabytes * 1024)}k".encode()
    if libc.mount(b"none", bytes(at), b"tmpfs", remount if again else 0, size):
        raise OSError(ctypes.get_errno(), "no tmpfs")


def fill_disk(choose: random.Random, prepared: Path, folder: Path) -> str:
    """No room at some moment: one message, nothing half-written, and it resumes when there is room again."""
    study, out, kind = _work_on(choose, prepared, folder)
    out.mkdir()
    size = choose.uniform(0.05, 14)
    _mount_small_disk(out, size)
    ended = train(study, out)
    assert os.WIFEXITED(ended)
    assert os.WEXITSTATUS(ended) in (0, 28), f"ended with {ended} on a disk of {size:.1f} MB"
    _mount_small_disk(out, 400, again=True)
    assert train(study, out) == 0
    check_same(out, prepared / kind / "runs")
    return f"{size:.1f} MB, {kind}: {'enough' if ended == 0 else 'full'}"


_NO_LINKS = (errno.EPERM, errno.EOPNOTSUPP, errno.EMLINK, errno.EXDEV)


def refuse_links(number: int) -> None:
    """As on a file system without hard links, which says so by one error or another."""

    def hook(event: str, arguments: tuple[object, ...]) -> None:
        if event == "os.link":
            raise OSError(number, os.strerror(number))

    sys.addaudithook(hook)


def unlink(choose: random.Random, prepared: Path, folder: Path) -> str:
    """No hard links, and killed on the way."""
    study, out, kind = _work_on(choose, prepared, folder)
    number, error = choose.randint(20, 120), choose.choice(_NO_LINKS)

    def before() -> None:
        refuse_links(error)
        kill_at_file_event(number, out)

    ended = train(study, out, before=before)
    assert os.WIFSIGNALED(ended) or ended == 0
    assert train(study, out, before=lambda: refuse_links(error)) == 0
    check_same(out, prepared / kind / "runs")
    return f"{errno.errorcode[error]}, killed at event {number}, {kind}"


def damage_cache(choose: random.Random, prepared: Path, folder: Path) -> str:
    """A damaged cache of tokens is made again, or refused; never believed."""
    study, out, kind = _work_on(choose, prepared, folder)
    files = sorted(path for path in (folder / "cache").rglob("*") if path.is_file())
    what = damage(choose, choose.choice(files))
    ended = train(study, out)
    assert ended == 0, f"{what}: ended with {ended}"
    check_same(out, prepared / kind / "runs")
    return what


def damage_checkpoint(choose: random.Random, prepared: Path, folder: Path) -> str:
    """A damaged checkpoint falls back to the one before, or to the beginning; it ends with the same bits."""
    study, out, kind = _work_on(choose, prepared, folder)
    number = choose.randint(60, 200)
    ended = train(study, out, before=lambda: kill_at_file_event(number, out))
    files = sorted(path for path in (out / CELL / "checkpoints").rglob("*") if path.is_file())
    if ended == 0 or not files:
        return "no checkpoint to damage"
    what = damage(choose, choose.choice(files))
    if what.endswith("not to be read") and os.geteuid():  # an error of the moment is told, and is no damage
        return what
    assert train(study, out) == 0, what
    check_same(out, prepared / kind / "runs")
    return what


ATTACKS = (
    Attack("kills", prepare, kill),
    Attack("races", prepare, race),
    SmallDisk("full-disks", prepare, fill_disk),
    Attack("no-links", prepare, unlink),
    Attack("token-cache", prepare, damage_cache),
    Attack("checkpoints", prepare, damage_checkpoint),
)
