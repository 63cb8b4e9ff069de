"""Stopping a cell from outside: signals, a full disk, a second process, no permission. Real processes throughout."""

import json
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import oelm
import tiny_study
from oelm.runs.status import read_state
from running import Started, environment, run, start, until

CELL = Path("tiny/oelm-freeze/seed-0")


@pytest.fixture
def env(tmp_path):
    return environment(tmp_path)


def words(study: Path, out: Path) -> list[str]:
    return ["run", str(study), "--cell", "oelm-freeze/seed-0", "--out", str(out)]


def train(study: Path, out: Path, env: dict[str, str]) -> Started:
    return run(*words(study, out), env=env, cwd=study.parent)


def running(study: Path, out: Path, env: dict[str, str]) -> Started:
    """A cell that has done some steps."""
    steps = out / CELL / "steps.jsonl"
    before = steps.stat().st_size if steps.exists() else 0
    process = start(*words(study, out), env=env, cwd=study.parent)
    until(lambda: process.poll() is not None or (steps.exists() and steps.stat().st_size > before))
    assert process.poll() is None, process.stderr
    return process


@pytest.mark.slow
def test_a_signal_checkpoints_and_the_cell_goes_on_to_the_same_result(tmp_path, env):
    study = tiny_study.make(tmp_path, budget={"steps": 400}, evaluate={"every": 100}, checkpoint={"every": 200})
    whole = train(study, tmp_path / "whole", env)
    assert whole.returncode == 0, whole.stderr
    out = tmp_path / "stopped"
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        process = running(study, out, env)
        process.send_signal(number)
        _, said = process.communicate(timeout=60)
        assert process.returncode == 128 + number, said
        assert "the checkpoint is written" in said
        assert "rerun the same command to resume" in said
        assert "Traceback" not in said
        assert read_state(out / CELL) == "stopped"
    assert train(study, out, env).returncode == 0
    one, other = oelm.read_record(tmp_path / "whole" / CELL), oelm.read_record(out / CELL)
    assert one.test == other.test
    assert one.evaluations == other.evaluations
    assert len(other.launches) == 4
    losses = [
        [json.loads(line)["loss"] for line in (folder / CELL / "steps.jsonl").read_text().splitlines()]
        for folder in (tmp_path / "whole", out)
    ]
    assert losses[0] == losses[1]


@pytest.mark.slow
def test_the_second_process_is_told_who_holds_the_cell(tmp_path, env):
    study = tiny_study.make(tmp_path, budget={"steps": 2000})
    process = running(study, tmp_path / "runs", env)
    second = train(study, tmp_path / "runs", env)
    shown = run("status", tmp_path / "runs", env=env, cwd=tmp_path)
    process.kill()
    process.communicate()
    assert second.returncode == 2
    assert f"process {process.pid} on " in second.stderr
    assert "Traceback" not in second.stderr
    assert "running" in shown.stdout
    assert read_state(tmp_path / "runs" / CELL) == "stopped", "kill -9 lets go of the cell"


def can_mount() -> bool:
    words = ["unshare", "-rm", "sh", "-c", "mount -t tmpfs -o size=1m none /mnt"]
    return shutil.which("unshare") is not None and subprocess.run(words, capture_output=True).returncode == 0


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="this machine lets no user mount a small disk")
def test_a_full_disk_is_one_message_and_the_last_checkpoint_is_whole(tmp_path, env):
    """On a real file system of 7 MB, where the second checkpoint finds no room. That it goes on when there is some,
    to the same bits, is tried at every size by torture/training.py."""
    study = tiny_study.make(tmp_path, checkpoint={"every": 4, "keep": "none"})
    disk = tmp_path / "disk"
    disk.mkdir()
    command = shlex.join([sys.executable, "-m", "oelm", *words(study, disk)])
    script = f"""
        mount -t tmpfs -o size=7m none {disk} || exit 99
        {command}; echo "ended with $?"
        ls {disk / CELL / "checkpoints"}
    """
    done = subprocess.run(["unshare", "-rm", "sh", "-c", script], env=env, capture_output=True, text=True)
    assert "ended with 2" in done.stdout, done.stdout + done.stderr
    assert "step-0000004\n" in done.stdout, "the first checkpoint is still there, and nothing half-written"
    assert "the disk is full" in done.stderr
    assert "Traceback" not in done.stderr


def test_no_permission_to_write(tmp_path, env):
    study = tiny_study.make(tmp_path)
    (tmp_path / "runs").write_text("a file where the folder should be")
    done = train(study, tmp_path / "runs", env)
    assert done.returncode == 2
    assert "in the way" in done.stderr
    assert "Traceback" not in done.stderr
