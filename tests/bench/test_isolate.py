"""Arms in processes of their own: they take the same turns, one is in memory at a time, and none is left behind."""

import io
import itertools
import json
import os
import re
import signal
import sys
import threading
import time
from contextlib import contextmanager
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

import tiny_study
from oelm.bench import arms, isolate, memory_budget, run
from oelm.bench.interleave import WARM_UP, TimedBlock, run_interleaved
from oelm.bench.isolate import ArmQuestion, IsolatedArm, serve_child
from oelm.bench.memory import measure_peak_memory
from oelm.bench.run import bench
from oelm.bench.stepper import Stepper
from oelm.bench.system import GpuSample
from oelm.errors import CellError, OelmError, Stopped, StudyError
from oelm.runs.bench import CheckpointBytes, MeasuredMemory, read_bench
from oelm.study.load import study_from_dict
from oelm.train.progress import Progress
from oelm.train.signals import StopRequest, catch_signals

FROZEN = {"init": "keep", "freeze": "qk"}


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))


def study(tmp_path, **arms):
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"))
    content["arms"] = {"baseline": {"init": "keep", "freeze": "none"}, **(arms or {"frozen": FROZEN})}
    return study_from_dict(content)


class Clock:
    """It moves only when told to."""

    def __init__(self):
        self.time = 0.0

    def __call__(self):
        return self.time


class Pretended:
    """An arm whose process takes as long as it says, on a clock of ours."""

    def __init__(self, clock, *, start=6.0, step=0.1):
        self.clock, self.start, self.step = clock, start, step
        self.visits = []

    def time_steps(self, first, steps):
        self.visits.append((first, steps))
        self.clock.time += self.start + steps * self.step
        return TimedBlock(seconds=np.full((steps, 3), self.step / 3), lengths=(20,) * steps)


def turns(arms, clock, **more):
    options = {"pairs": [(name, "a") for name in arms if name != "a"], "precision": 0.01, "budget": 3600.0, "seed": 0}
    options |= {"progress": Progress(), "stop": StopRequest()}
    return run_interleaved(arms, now=clock, **{**options, **more})


# -- turns ---------------------------------------------------------------------------------------------------------


def test_where_starting_takes_long_visits_are_longer():
    clock = Clock()
    arms = {"a": Pretended(clock), "b": Pretended(clock, step=0.09444)}
    taken = turns(arms, clock)
    assert taken.steps == round(6.0 / 3 / 0.09722), "a third of what starting takes, by the usual step of both"
    assert taken.stopped_by == "precision"
    assert len(taken.samples) == 16, "the rules of when to look are those of one process"
    assert arms["a"].visits == arms["b"].visits, "the same batches"
    assert arms["a"].visits[:3] == [(0, WARM_UP), (WARM_UP, taken.steps), (WARM_UP + taken.steps, taken.steps)]
    assert np.median(taken.parts("b").sum(-1)) / np.median(taken.parts("a").sum(-1)) == pytest.approx(0.9444)
    there = {"a": Pretended(clock, start=0.0), "b": Pretended(clock, start=0.0)}
    assert turns(there, clock).steps == 5, "half a second"


def test_many_short_steps_are_no_reason_for_a_visit_without_end():
    clock = Clock()
    quick = {name: Pretended(clock, step=1e-4) for name in "ab"}
    assert turns(quick, clock).steps == 80, "20 in half a second, four times as many in two"


def test_a_budget_too_short_for_starting_the_processes_of_a_round():
    clock = Clock()
    arms = {name: Pretended(clock, start=10.0) for name in "ab"}
    with pytest.raises(StudyError, match=r"a budget of 30 s is too short for one round, which takes 53\.2 s"):
        turns(arms, clock, budget=30.0)


def test_a_stop_while_warming_up():
    clock, stop = Clock(), StopRequest()

    class Interrupted(Pretended):
        def time_steps(self, first, steps):
            stop.signal = signal.SIGINT
            return TimedBlock(seconds=np.empty((0, 3)), lengths=())

    arms = {name: Interrupted(clock) for name in "ab"}
    with pytest.raises(Stopped, match="nothing was measured"):
        turns(arms, clock, stop=stop)


def test_the_gpu_is_looked_at_before_its_process_ends():
    clock = Clock()

    class Hot(Pretended):
        def time_steps(self, first, steps):
            seen = super().time_steps(first, steps)
            return replace(seen, gpu=GpuSample(clock=1410.0, temperature=60.0))

    taken = turns({name: Hot(clock) for name in "ab"}, clock)
    assert {one.gpu for one in taken.samples} == {GpuSample(clock=1410.0, temperature=60.0)}


# -- which way -----------------------------------------------------------------------------------------------------


@pytest.fixture
def pretended(monkeypatch):
    """Processes of visits are pretended; returns the clock they are on, and by arm where they were visited."""
    clock, made = Clock(), {}

    def make(study, arm, *, stop):
        made[arm] = Pretended(clock, step=0.09 if arm == "frozen" else 0.1)
        return made[arm]

    monkeypatch.setattr(arms, "IsolatedArm", make)
    return clock, made


@pytest.mark.slow
def test_too_little_memory_by_arithmetic(tmp_path, monkeypatch, pretended):
    clock, made = pretended
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: 2**20)
    heard = []
    progress = Progress()
    progress.on_message = heard.append
    found = bench(study(tmp_path), memory=False, budget=3600, precision=0.5, out=tmp_path, now=clock, progress=progress)
    assert found.isolated is not None
    assert re.fullmatch(r"all 2 arms need \d+ MiB more, and 80% of the 1 MiB that are free may be used", found.isolated)
    assert heard == [f"every block of steps runs in a process of its own: {found.isolated}"]
    assert found.arms["frozen"].ratios["step"].median == pytest.approx(0.9)
    assert 0 < found.arms["frozen"].ceiling < 0.06, "the ceiling is there all the same"
    assert f"every block of steps was a process of its own: {found.isolated}" in str(found)
    assert read_bench(tmp_path / "tiny") == found
    assert set(made) == {"baseline", "frozen"}


@pytest.mark.slow
def test_too_little_memory_by_what_was_measured(tmp_path, monkeypatch, pretended):
    clock, made = pretended
    peak = MeasuredMemory(
        device="cpu",
        steps=3,
        before=0,
        peak=2**33,
        parameters=2**30,
        gradients=2**30,
        optimizer=2**31,
        activations=2**32,
        theory=None,
        checkpoint=CheckpointBytes(weights=2**30, optimizer=2**31),
    )
    monkeypatch.setattr(run, "measure_peak_memory", lambda study, arm, *, stop: peak)
    loads = []
    monkeypatch.setattr(arms, "_check_memory", lambda *_: loads.append("together"))
    for free, together in ((13, False), (14, True)):
        monkeypatch.setattr(memory_budget, "free_bytes", lambda device, free=free: free * 2**30)
        found = bench(study(tmp_path), budget=3600, precision=0.5, out=tmp_path, now=Looks() if together else clock)
        assert (found.isolated is None) == together == bool(loads)
        assert found.arms["frozen"].memory == peak
    assert made


class Looks:
    """Every look is a second later."""

    def __init__(self):
        self.looks = itertools.count()

    def __call__(self):
        return float(next(self.looks))


@pytest.mark.slow
@pytest.mark.parametrize("asked", [None, False])
def test_memory_that_runs_out_on_the_way(tmp_path, monkeypatch, pretended, asked):
    clock, made = pretended
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: None)

    def full(self, first, steps):
        torch.empty(2**60, dtype=torch.uint8)

    monkeypatch.setattr(arms.Stepper, "time_steps", full)
    options = {"memory": False, "budget": 3600, "precision": 0.5, "out": tmp_path, "now": clock, "isolate": asked}
    if asked is False:
        with pytest.raises(CellError, match=r"do not fit into memory together\n(.*\n)*.*--isolate"):
            bench(study(tmp_path), **options)
        assert not made
        assert not (tmp_path / "tiny").exists()
    else:
        assert bench(study(tmp_path), **options).isolated == "all arms together ran out of memory"


@pytest.mark.slow
def test_few_rounds_are_told_of(tmp_path, pretended):
    clock, _ = pretended
    found = bench(study(tmp_path), memory=False, isolate=True, budget=100, out=tmp_path, now=clock)
    assert (found.rounds, found.stopped_by) == (3, "budget")
    assert found.arms["frozen"].step.high is None
    assert "none yet" in str(found)
    assert any(text.startswith("3 rounds give no interval; 6 take about 3 min") for text in found.warnings)


@pytest.mark.slow
def test_hypotheses_about_arms_that_are_left_out(tmp_path, monkeypatch):
    """The process is asked about the whole study: a part of it may be none."""
    asked = []

    def make(study, arm, *, stop):
        asked.append(study)
        return Pretended(clock)

    clock = Clock()
    monkeypatch.setattr(arms, "IsolatedArm", make)
    content = study(tmp_path, frozen=FROZEN, other={"init": "orthogonal", "freeze": "qk"}).to_dict()
    guess = {"statement": "no worse", "estimand": "accuracy(other) - accuracy(baseline)", "rule": "above", "margin": 0}
    whole = study_from_dict({**content, "hypotheses": {"H1": guess}})
    bench(whole, arms=["frozen"], memory=False, isolate=True, budget=100, out=tmp_path, now=clock)
    assert asked == [whole, whole]


# -- real processes ------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_two_arms_in_processes_of_their_own(tmp_path, monkeypatch, forked_python):
    """One round of real ones, on the real clock; the budget's own clock ends it after that."""
    started = []

    class Noted(isolate.subprocess.Popen):
        def __init__(self, *args, **more):
            assert not [one for one in started if one.poll() is None], "one at a time"
            super().__init__(*args, **more)
            started.append(self)

    monkeypatch.setattr(isolate.subprocess, "Popen", Noted)
    clock = itertools.chain([0.0] * 5, itertools.repeat(1e6))
    given = study(tmp_path)
    found = bench(given, memory=False, isolate=True, budget=1e5, out=tmp_path, now=lambda: next(clock))
    mine = [one for one in started if "oelm.bench.isolate" in one.args]
    assert len(mine) == 2 + 4, "to warm up, and ABBA"
    assert all(one.returncode == 0 for one in mine)
    assert found.rounds == 1
    assert found.isolated == "--isolate"
    assert found.system.threads == torch.get_num_threads()
    ratio = found.arms["frozen"].ratios["step"]
    assert ratio.median > 0
    assert 1 <= found.length <= 32


@pytest.mark.slow
def test_a_visit_sees_the_batches_that_it_would_here(tmp_path):
    given = study(tmp_path)
    seen = IsolatedArm(given, "frozen", stop=StopRequest()).time_steps(5, 4)
    assert seen.seconds.shape == (4, 3)
    assert (seen.seconds > 0).all()
    loop = arms.build_arm_loop(given, "frozen", tmp_path / "place", Progress(), StopRequest())
    assert seen.lengths == Stepper(loop).time_steps(5, 4).lengths


def fake_python(tmp_path, monkeypatch, does):
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{does}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(isolate.sys, "executable", os.fspath(fake))


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("kill -9 $$", r"'frozen' could not be timed: .* SIGKILL, as it is when memory is full\n.*batch\.size"),
        (
            'echo \'{"error": "no room", "out_of_memory": true}\'; exit 2',
            r"does not fit into memory, not even by itself\n.*no room\n.*batch",
        ),
        ('echo \'{"error": "no data"}\'; exit 2', r"'frozen' could not be timed: .* code 2\n.*no data"),
        ("echo 'RuntimeError: broken' >&2; exit 1", r"code 1\n.*RuntimeError: broken\n.*oelm run"),
        ("echo 'no json'", "ended with code 0"),
    ],
)
def test_a_process_that_fails_is_one_message(tmp_path, monkeypatch, does, said):
    fake_python(tmp_path, monkeypatch, does)
    with pytest.raises(CellError, match=said) as raised:
        IsolatedArm(study(tmp_path), "frozen", stop=StopRequest()).time_steps(0, 2)
    assert "Traceback" not in str(raised.value)


def test_no_process_can_be_started(tmp_path, monkeypatch):
    monkeypatch.setattr(isolate.sys, "executable", str(tmp_path / "nowhere"))
    with pytest.raises(CellError, match="the memory of arm 'baseline' could not be measured: no process"):
        measure_peak_memory(study(tmp_path), "baseline")


@pytest.mark.parametrize(
    ("error", "answer"),
    [
        (torch.OutOfMemoryError("CUDA out of memory\nmore"), {"error": "CUDA out of memory", "out_of_memory": True}),
        (MemoryError(), {"error": "MemoryError", "out_of_memory": True}),
        (OelmError("no such arm"), {"error": "no such arm", "out_of_memory": False}),
    ],
)
def test_what_goes_wrong_inside_is_answered(monkeypatch, capsys, error, answer):
    asked = ArmQuestion(study={"seeds": [0]}, arm="frozen", steps=3)

    def fail(question):
        assert question == asked
        raise error

    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asdict(asked))))
    assert serve_child(ArmQuestion, fail) == 2
    assert json.loads(capsys.readouterr().out) == answer


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


@pytest.fixture
def asleep(tmp_path, monkeypatch):
    """Whoever starts a process gets one that sleeps, once it has written its number into this file."""
    number = tmp_path / "number"
    fake_python(tmp_path, monkeypatch, f"echo $$ > {number}; exec sleep 1000")
    return number


def wait_for(path):
    while not path.exists() or not path.read_text().strip():
        time.sleep(0.01)


@contextmanager
def ctrl_c(path):
    """As soon as the file is there."""

    def interrupt():
        wait_for(path)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    with catch_signals() as stop:
        stop.at_once = False
        thread.start()
        yield stop
        thread.join()


def is_gone(path):
    try:
        os.kill(int(path.read_text()), 0)
    except ProcessLookupError:
        return True
    return False


def test_ctrl_c_ends_a_process_and_keeps_what_was_measured(tmp_path, asleep):
    clock, given = Clock(), study(tmp_path)

    class UntilTheSecondRound(Pretended):
        def time_steps(self, first, steps):
            if len(self.visits) < 3:
                return super().time_steps(first, steps)
            return IsolatedArm(given, "any", stop=stop).time_steps(first, steps)

    with ctrl_c(asleep) as stop:
        taken = turns({name: UntilTheSecondRound(clock) for name in "ab"}, clock, stop=stop)
    assert (taken.stopped_by, len(taken.samples)) == ("interrupted", 1)
    assert is_gone(asleep)


def test_ctrl_c_while_memory_is_measured(tmp_path, asleep):
    interrupted = threading.Thread(target=lambda: (wait_for(asleep), os.kill(os.getpid(), signal.SIGINT)))
    interrupted.start()
    with pytest.raises(Stopped):
        bench(study(tmp_path), out=tmp_path / "runs")
    interrupted.join()
    assert is_gone(asleep)
    assert not (tmp_path / "runs").exists()


def test_the_second_ctrl_c_leaves_no_process_either(tmp_path, asleep, monkeypatch):
    """It raises wherever we are; we wait for the process then."""

    def interrupted(*args, **more):
        wait_for(asleep)
        raise KeyboardInterrupt

    monkeypatch.setattr(isolate.subprocess.Popen, "communicate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        IsolatedArm(study(tmp_path), "any", stop=StopRequest()).time_steps(0, 2)
    assert is_gone(asleep)
