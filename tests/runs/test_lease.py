"""Lease: one holder at a time, a dead one is replaced, and who was replaced cannot write."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

from misplaced import PLACED, place_in
from oelm.errors import CellError, OelmError
from oelm.launch.study_run import stop_requested
from oelm.runs import lease as leases
from oelm.runs.files import FileType
from oelm.runs.layout import CELL
from oelm.runs.lease import STOP, LeaseLost, acquire, holder_of
from oelm.runs.status import read_state

SOURCE = str(Path(leases.__file__).parents[2])


@pytest.fixture
def held(tmp_path):
    """A cell that another process holds, and that process."""
    code = """
        import sys
        from pathlib import Path
        from oelm.runs.lease import acquire
        with acquire(Path(sys.argv[1])):
            print("held", flush=True)
            sys.stdin.read()
    """
    cell = tmp_path / "cell"
    with subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(code), str(cell)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout.readline() == "held\n"
        yield cell, process
        process.kill()


@dataclass(frozen=True, kw_only=True)
class Note:
    by: str


NOTE = FileType("record.json", Note, format=1)


def sign(place: Path, **changes: object) -> None:
    """Change who is said to hold a lease."""
    file = place / "holder.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **changes}))


def take(cell):
    with acquire(cell):
        pass


def on_another_machine(cell: Path, *, silent: float) -> str:
    """Make the lease of a cell one of a process on another machine, which was silent for so long."""
    with acquire(cell) as own:
        place = cell / "lease" / own.staging.name
        sign(place, machine="another", host="far", pid=1, job=None)
        (cell / "lease").rename(cell / "kept")
    (cell / "kept").rename(cell / "lease")
    then = time.time() - silent
    os.utime(cell / "lease" / own.staging.name / "holder.json", (then, then))
    os.utime(cell / "lease", (then, then))
    return own.staging.name


def test_the_second_is_told_who_holds_the_cell(held):
    cell, process = held
    with pytest.raises(CellError, match=rf"(?s)another process is working on {cell}.*process {process.pid} on "):
        take(cell)
    assert read_state(cell) == "running", "it prepares its data"
    (cell / CELL).touch()
    assert read_state(cell) == "running"
    process.kill()
    process.wait()
    assert read_state(cell) == "stopped"
    assert not holder_of(cell).is_alive, "it had no time to clean up"
    with acquire(cell):
        assert holder_of(cell).identity.pid == os.getpid()
    assert holder_of(cell) is None
    assert sorted(path.name for path in cell.iterdir()) == [CELL]


def test_a_paused_holder_keeps_its_cell(held):
    cell, process = held
    process.send_signal(signal.SIGSTOP)
    with pytest.raises(CellError, match="another process is working"):
        take(cell)
    process.send_signal(signal.SIGCONT)


def test_a_cell_is_let_go_when_something_goes_wrong(tmp_path):
    def fails():
        with acquire(tmp_path):
            raise KeyError

    for _ in range(2):
        with pytest.raises(KeyError):
            fails()


def test_another_machine_has_its_time(tmp_path):
    cell = tmp_path / "cell"
    on_another_machine(cell, silent=leases.TIMEOUT / 2)
    with pytest.raises(CellError, match="process 1 on far"):
        take(cell)
    token = on_another_machine(tmp_path / "other", silent=leases.TIMEOUT * 2)
    with acquire(tmp_path / "other") as own:
        assert own.staging.name != token


def test_a_time_in_the_future_counts_from_now_on(tmp_path, monkeypatch):
    """It would hold the cell until the clock catches up."""
    cell = tmp_path / "cell"
    token = on_another_machine(cell, silent=-1e6)
    assert not holder_of(cell).is_alive, "for those who only read, it is no sign of life"
    with pytest.raises(CellError, match="process 1 on far"):
        take(cell)  # it may have been a clock, and its holder has all its time
    assert holder_of(cell).is_alive
    for sign in (cell / "lease", cell / "lease" / token / "holder.json"):
        assert abs(time.time() - sign.stat().st_mtime) < leases.TIMEOUT
    monkeypatch.setattr(leases, "TIMEOUT", 0.0)  # and no longer
    take(cell)


def test_one_time_in_the_future_does_not_hide_a_sign_of_life(tmp_path):
    cell = tmp_path / "cell"
    on_another_machine(cell, silent=0)
    os.utime(cell / "lease", (4e9, 4e9))
    assert holder_of(cell).is_alive
    with pytest.raises(CellError, match="process 1 on far"):
        take(cell)


@pytest.mark.parametrize("kind", [*PLACED, "file"])
@pytest.mark.parametrize("name", ["lease", "lease/token", "lease/token/holder.json", STOP])
def test_what_is_something_else_is_one_message(tmp_path, name, kind):
    """Nobody waits, and no traceback; what is of no harm does none."""
    cell = tmp_path / "cell"
    (cell / name).parent.mkdir(parents=True)
    if kind == "file":
        (cell / name).write_text("text")
    else:
        place_in(cell / name, kind)
    told = []
    for look in (take, holder_of, read_state, stop_requested):
        try:
            look(cell)
        except OelmError as error:
            told.append(str(error))
    assert all(str(cell) in text for text in told)
    assert told or name in (STOP, "lease/token") or (name, kind) == ("lease", "folder")


def test_a_file_system_that_is_away_for_a_moment_does_not_end_the_signs_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "_BEAT", 0.01)
    with acquire(tmp_path) as own:
        away, exists = [], Path.exists

        def is_away(path):
            if path.name == STOP and len(away) < 3:
                away.append(path)
                raise OSError(errno.ESTALE, "Stale file handle")
            return exists(path)

        monkeypatch.setattr(Path, "exists", is_away)
        own.on_stop_request = lambda: None
        file = own.staging / "holder.json"
        for _ in range(400):
            if len(away) == 3:
                break
            time.sleep(0.02)
        os.utime(file, (1, 1))
        for _ in range(400):
            if file.stat().st_mtime > 1:
                return
            time.sleep(0.02)
    raise AssertionError("none came")


def test_clocks_do_not_matter(tmp_path, monkeypatch):
    """What is compared are times of one file system."""
    on_another_machine(tmp_path / "cell", silent=1)
    monkeypatch.setattr(time, "time", lambda: 4e9)
    with pytest.raises(CellError, match="process 1 on far"):
        take(tmp_path / "cell")


def test_a_task_that_was_put_back_into_the_queue_takes_over_from_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_JOB_ID", "12")
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "3")
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    cell = tmp_path / "cell"
    token = on_another_machine(cell, silent=0)
    place = cell / "lease" / token
    sign(place, job="12_3", restart_count=1)
    with pytest.raises(CellError, match="job 12_3"):
        take(cell)  # a neighbor in the same job
    sign(place, restart_count=0)
    with acquire(cell):
        assert holder_of(cell).identity.job == "12_3"


def replaced(cell: Path) -> None:
    """Another process takes the cell over from us, who live on unaware."""
    token = next((cell / "lease").iterdir())
    sign(token, process_start="never")
    code = "import sys; from pathlib import Path; from oelm.runs.lease import _acquire; _acquire(Path(sys.argv[1]))"
    subprocess.run([sys.executable, "-c", code, str(cell)], check=True)


def test_who_was_replaced_cannot_write(tmp_path):
    """It wakes up at the worst moment: everything is made, and only the last rename is to come."""
    cell = tmp_path / "cell"
    with acquire(cell) as own:
        own.write(NOTE, Note(by="me"))
        log = own.rewrite("steps.jsonl", "one\n")
        made = own.staging / "model"
        made.mkdir()
        (made / "weights").write_text("mine")
        replaced(cell)
        attempts = (
            lambda: own.write(NOTE, Note(by="a ghost")),
            lambda: own.rewrite("steps.jsonl", "ghost\n"),
            lambda: own.publish(made, "model"),
            lambda: own.remove(cell / "record.json"),
            own.check,
        )
        for attempt in attempts:
            with pytest.raises(LeaseLost, match="taken over by another process"):
                attempt()
        (cell / "steps.jsonl").unlink()  # as its successor does, which writes the log anew
        (cell / "steps.jsonl").write_text("one\n")
        log.write("ghost\n")
        log.close()
    assert NOTE.read(cell) == Note(by="me")
    assert (cell / "steps.jsonl").read_text() == "one\n"
    assert not (cell / "model").exists()
    assert holder_of(cell) is not None, "it has not let go of what is another's"


def test_a_file_asks_the_holder_to_stop(tmp_path):
    asked = []
    with acquire(tmp_path) as own:
        own.on_stop_request = lambda: asked.append(time.monotonic())
        (tmp_path / STOP).touch()
        for _ in range(100):
            if asked:
                break
            time.sleep(0.1)
        time.sleep(1.2)
    assert len(asked) == 1


def test_a_sign_of_life(tmp_path, monkeypatch):
    monkeypatch.setattr(leases, "_BEAT", 0.01)
    with acquire(tmp_path) as own:
        file = own.staging / "holder.json"
        os.utime(file, (1, 1))
        for _ in range(200):
            if file.stat().st_mtime > 1:
                return
            time.sleep(0.05)
    raise AssertionError("none came")


KILLED_AS_SUCCESSOR = """
import os, signal, sys
from pathlib import Path
from oelm.runs import files, lease

written = []

def kill_at_the_second(path, text):
    written.append(path)
    if len(written) == 2:  # the first is its own, before; this one would be that of the one it has replaced
        os.kill(os.getpid(), signal.SIGKILL)
    keep(path, text)

keep, files.write_text = files.write_text, kill_at_the_second
with lease.acquire(Path(sys.argv[1])):
    pass
"""


def test_a_successor_that_is_killed_before_it_has_signed_is_followed_at_once(held):
    cell, process = held
    process.kill()
    process.wait()
    killed = subprocess.run([sys.executable, "-c", KILLED_AS_SUCCESSOR, str(cell)])
    assert killed.returncode == -signal.SIGKILL
    (place,) = (cell / "lease").iterdir()
    assert json.loads((place / "holder.json").read_text())["token"] != place.name
    assert holder_of(cell).identity.pid != process.pid
    take(cell)
    assert not list(cell.iterdir()), "nothing is left of any of them"


RACER = """
import json, os, random, sys, time
from pathlib import Path
from oelm.errors import CellError
from dataclasses import dataclass
from oelm.runs.files import FileType
from oelm.runs.lease import acquire

@dataclass
class Note:
    by: str

NOTE = FileType("record.json", Note, format=1)
root, me = Path(sys.argv[1]), sys.argv[2]
choose = random.Random(me)
cells = [root / f"cell-{number}" for number in range(int(sys.argv[3]))]
while True:
    open_ = [cell for cell in cells if NOTE.read(cell) is None]
    if not open_:
        break
    cell = choose.choice(open_)
    try:
        with acquire(cell) as lease:
            if NOTE.read(cell) is not None:
                continue
            inside = cell / f"inside-{os.getpid()}"
            inside.touch()
            for other in set(cell.glob("inside-*")) - {inside}:
                if Path("/proc", other.name.removeprefix("inside-")).exists():
                    (root / "both.txt").touch()
            done = (cell / "steps.jsonl").read_text().splitlines() if (cell / "steps.jsonl").exists() else []
            log = lease.rewrite("steps.jsonl", "".join(f"{line}\\n" for line in done if line.isdecimal()))
            for step in range(len(done), 40):
                log.write(f"{step}\\n")
                log.flush()
                time.sleep(choose.random() * 0.01)
                if step % 8 == 0:
                    made = lease.staging / "checkpoint"
                    made.mkdir(exist_ok=True)
                    (made / "weights").write_text(str(step) * 2000)
                    lease.publish(made, "checkpoint")
            log.close()
            made = lease.staging / "checkpoint"
            made.mkdir(exist_ok=True)
            (made / "weights").write_text("final" * 2000)
            lease.publish(made, "checkpoint")
            lease.write(NOTE, Note(by="x" * 50_000))
            with (root / "done.txt").open("a") as file:
                file.write(f"{cell.name}\\n")
            inside.unlink()
    except CellError:
        time.sleep(choose.random() * 0.01)
"""


@pytest.mark.slow
def test_many_processes_race_for_the_same_cells_and_are_killed_at_random(tmp_path):
    """Every cell is done exactly once, none is lost, no record is torn."""
    number, racers = 60, 6
    choose = random.Random(0)

    def start(name: int) -> subprocess.Popen:
        return subprocess.Popen([sys.executable, "-c", RACER, str(tmp_path), str(name), str(number)])

    processes, name, kills = [start(name) for name in range(racers)], racers, 0
    while any(process.poll() is None for process in processes):
        time.sleep(choose.random() * 0.1)
        victim = choose.randrange(racers)
        if kills < 40 and processes[victim].poll() is None:
            processes[victim].kill()
            processes[victim].wait()
            kills += 1
            processes[victim] = start(name)
            name += 1
    assert [process.returncode for process in processes] == [0] * racers
    done = (tmp_path / "done.txt").read_text().split()
    for place in range(number):
        cell = tmp_path / f"cell-{place}"
        assert NOTE.read(cell).by == "x" * 50_000
        steps = (cell / "steps.jsonl").read_text().split()
        assert steps == [str(step) for step in range(40)], "each once, in order"
        assert (cell / "checkpoint" / "weights").read_text() == "final" * 2000
        # Killed between its record and its line in the list, it is done all the same.
        assert done.count(cell.name) <= 1, "done twice"
        assert holder_of(cell) is None or not holder_of(cell).is_alive
    assert len(done) >= number - 3
    assert not (tmp_path / "both.txt").exists(), "two were inside at once"
    assert kills > 15, "otherwise it shows nothing"


def test_the_holder_is_told_of_in_plain_words(tmp_path):
    with acquire(tmp_path / "cell"):
        told = str(holder_of(tmp_path / "cell"))
        kept = json.loads(next((tmp_path / "cell" / "lease").glob("*/holder.json")).read_text())
    assert told == f"process {os.getpid()} on {kept['host']}, since {kept['since']}"
