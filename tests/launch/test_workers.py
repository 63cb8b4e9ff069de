"""Several cells at once on one machine, and the commands that ask about them, stop them and have them go on."""

import json
import os
import signal
from pathlib import Path

import pytest

import oelm
import tiny_study
from oelm.errors import LaunchError
from oelm.launch.backends.registry import parse_backend
from oelm.launch.backends.workers import WorkersBackend
from oelm.runs.lease import holder_of
from oelm.runs.status import read_state
from running import bits_of, environment, run, start, steps_of, until

CELLS = [f"{arm}/seed-{seed}" for arm in ("baseline", "oelm-freeze") for seed in (0, 1)]


@pytest.fixture
def env(tmp_path):
    return environment(tmp_path)


def states(env, cwd: Path, *words) -> dict[str, str]:
    told = run("status", *words, "--json", env=env, cwd=cwd)
    assert told.returncode == 0, told.stderr
    return {row["cell"]: row["state"] for row in json.loads(told.stdout)}


@pytest.mark.slow
def test_two_at_once_give_the_same_bits_as_one_after_the_other(tmp_path, env):
    study = tiny_study.make(tmp_path)
    one = run("run", study, "--out", "one", "--seed", 0, env=env, cwd=tmp_path)
    assert one.returncode == 0, one.stderr
    secret = "hunter2-in-the-environment"
    two = run(
        "run",
        study,
        "--out",
        "two",
        "--seed",
        0,
        "--workers",
        2,
        env={**env, "WANDB_API_KEY": secret},
        cwd=tmp_path,
    )
    assert two.returncode == 0, two.stderr
    assert not [
        path for path in (tmp_path / "two").rglob("*") if path.is_file() and secret.encode() in path.read_bytes()
    ]
    assert oelm.read_record(tmp_path / "two/tiny/baseline/seed-0").provenance.environment["OMP_NUM_THREADS"] == "1"
    assert "validation" in two.stdout, "test numbers are for the whole study"
    for cell in CELLS[::2]:
        assert bits_of(tmp_path / "one" / "tiny" / cell) == bits_of(tmp_path / "two" / "tiny" / cell)
    for cell in CELLS[::2]:
        assert f"{cell}: done" in two.stderr
    log = run("logs", "baseline/seed-0", "--runs", "two", env=env, cwd=tmp_path)
    assert "validation accuracy" in log.stdout
    assert list(states(env, tmp_path, "two").values()) == ["done", "done", "pending", "pending"]


@pytest.mark.slow
def test_a_cell_that_is_killed_does_not_stop_the_others_and_goes_on_later(tmp_path, env):
    study = tiny_study.make(tmp_path, budget={"steps": 150}, evaluate={"every": 150}, checkpoint={"every": 20})
    victim = tmp_path / "runs/tiny/baseline/seed-0"
    compared = start("run", study, "--seed", 0, "--workers", 2, env=env, cwd=tmp_path, forks=True)
    until(lambda: any((victim / "checkpoints").glob("step-*")), what="a checkpoint")
    os.kill(holder_of(victim).identity.pid, signal.SIGKILL)
    _, said = compared.communicate(timeout=300)
    assert compared.returncode == 1, said
    assert "baseline/seed-0 was ended by signal 9 and has no record" in said
    assert read_state(victim) == "stopped"
    assert read_state(tmp_path / "runs/tiny/oelm-freeze/seed-0") == "done"
    again = run("resume", "runs", env=env, cwd=tmp_path, forks=True)
    assert again.returncode == 0, again.stderr
    assert "resumes from step " in (victim / "log.txt").read_text()
    assert len(steps_of(victim)) == 150


@pytest.mark.slow
def test_stop_one_stop_all_and_resume(tmp_path, env):
    study = tiny_study.make(
        tmp_path, budget={"steps": 20_000}, evaluate={"every": 20_000}, checkpoint={"every": 20_000}
    )
    runs = tmp_path / "runs" / "tiny"
    compared = start("run", study, "--workers", 2, env=env, cwd=tmp_path, forks=True)
    until(lambda: steps_of(runs / CELLS[0]) and steps_of(runs / CELLS[2]), what="two cells that run")
    shown = {row["cell"]: row for row in json.loads(run("status", "--json", env=env, cwd=tmp_path).stdout)}
    assert shown[CELLS[0]]["state"] == "running"
    assert shown[CELLS[0]]["eta"] > 0
    assert shown[CELLS[0]]["loss"] > 0
    assert shown[CELLS[1]]["state"] == "pending"
    stopped = run("stop", CELLS[0], env=env, cwd=tmp_path)
    assert stopped.returncode == 0, stopped.stderr
    assert read_state(runs / CELLS[0]) == "stopped"
    until(lambda: steps_of(runs / CELLS[1]) or steps_of(runs / CELLS[3]), what="the next cell")
    assert compared.poll() is None, "the others go on"
    told = run("stop", "all", env=env, cwd=tmp_path)
    assert told.returncode == 0
    assert "cells stopped: 2; kept from starting: 2." in told.stdout
    _, said = compared.communicate(timeout=60)
    assert "was asked to stop, and has" in said
    after = states(env, tmp_path)
    assert "running" not in after.values()
    held = run("run", runs / "study.json", "--cell", CELLS[0], env=env, cwd=tmp_path)
    assert held.returncode == 2
    assert "was asked to stop" in held.stderr
    resumed = start("resume", env=env, cwd=tmp_path, forks=True)
    before = sum(len(steps_of(runs / cell)) for cell in CELLS)
    until(lambda: sum(len(steps_of(runs / cell)) for cell in CELLS) > before, what="more steps")
    resumed.send_signal(signal.SIGTERM)
    _, said = resumed.communicate(timeout=60)
    assert resumed.returncode == 128 + signal.SIGTERM
    assert "have written their checkpoints" in said
    assert "stopped at step " in said
    assert "has no record" not in said, "neither of those that ran nor of those that had not begun"
    assert "Traceback" not in said
    assert "running" not in states(env, tmp_path).values()


def test_each_has_a_gpu_or_its_share_of_the_cores(monkeypatch):
    monkeypatch.setattr("oelm.launch.backends.workers.visible_gpus", lambda: ["3", "5"])
    backend = WorkersBackend()
    given = [backend.share(slot, 3) for slot in range(3)]
    assert given == [{"CUDA_VISIBLE_DEVICES": gpu} for gpu in ("3", "5", "3")]
    monkeypatch.setattr("oelm.launch.backends.workers.visible_gpus", list)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    assert backend.share(2, 3) == {"OMP_NUM_THREADS": "2"}
    assert backend.share(7, 20) == {"OMP_NUM_THREADS": "1"}


def test_backends_and_their_options():
    with pytest.raises(LaunchError, match="unknown backend 'slrum'; did you mean 'slurm'"):
        parse_backend("slrum", {})
    with pytest.raises(LaunchError, match="unknown backend 'slurm://a'"):
        parse_backend("slurm://a", {})
    with pytest.raises(LaunchError, match=r"(?s)--nproc 2 does not apply to --on slurm.*--on torchrun"):
        parse_backend("slurm", {"nproc": 2})
    with pytest.raises(LaunchError, match="--array-limit 2 does not apply to --on local"):
        parse_backend("local", {"array_limit": 2})
    with pytest.raises(LaunchError, match="needs the number of processes"):
        parse_backend("torchrun", {})
    with pytest.raises(LaunchError, match="--workers: must be 1 or more, got 0"):
        parse_backend("local", {"workers": 0})
    assert parse_backend("ssh://a@b/c", {"workers": 3}).options.workers == 3


def test_bad_words(tmp_path, env):
    study = tiny_study.make(tmp_path)
    for words, text in (
        (["run", study, "--on", "slrum"], "did you mean 'slurm'"),
        (["run", study, "--dry-run"], "--dry-run does not apply to --on local"),
        (["run", study, "--on", "slurm", "--sbatch", "nodes"], "is not KEY=VALUE"),
        (["run", study, "--on", "slurm", "--dry-run", "--json"], "--json does not apply to --dry-run"),
        (["run", study, "--workers", 0], "--workers: must be 1 or more, got 0"),
        (["run", study, "--arm", "baselin"], "did you mean 'baseline'"),
        (["run", study, "--seed", 7], "the study has no seed 7"),
        (["run", study, "--arm", "baseline", "--cell", "oelm-freeze/seed-0"], "no cell of the study has all of this"),
        (["run", study, "--cell", "baselin/seed-0"], "did you mean 'baseline/seed-0'"),
        (["run", study, "--cell", "../../x"], "the study has no cell '../../x'"),
        (["logs", "baseline/seed-0"], "there is no folder runs"),
        (["stop", "all"], "there is no folder runs"),
        (["resume", "data"], "nothing was started below data"),
        (["fetch", "data"], "nothing below data was started over ssh"),
    ):
        done = run(*words, env=env, cwd=tmp_path)
        assert done.returncode == 2, done.stdout + done.stderr
        assert text in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "runs").exists(), "nothing was begun"
