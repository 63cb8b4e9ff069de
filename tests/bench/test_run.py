"""The bench: what is inside its clock, when it stops, and that two arms that are the same come out the same."""

import itertools
import json
import math
import os
import signal
import sys
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

import running
import tiny_study
from oelm import load
from oelm.analysis.stats.timed_pairs import bench_mismatch
from oelm.bench.run import bench
from oelm.bench.stepper import Marks, _by_part
from oelm.bench.system import SystemMonitor, interference
from oelm.errors import CellError, DiskError, StudyError
from oelm.runs.bench import read_bench
from oelm.study.cells import Cell, resolve_cell
from oelm.study.load import study_from_dict
from oelm.train.progress import Progress

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))


def study(tmp_path, **arms):
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"))
    content["arms"] = {"baseline": {"init": "keep", "freeze": "none"}, **arms}
    return study_from_dict(content)


FROZEN = {"init": "keep", "freeze": "qk"}


class FakeClock:
    """Every look at it is a second later, so it counts looks, and nothing that happens between them."""

    def __init__(self):
        self.looks = itertools.count()

    def __call__(self):
        return float(next(self.looks))


def test_only_the_steps_are_in_the_clock(tmp_path):
    found = bench(
        study(tmp_path, frozen=FROZEN), budget=1e6, precision=0.5, memory=False, out=tmp_path, now=FakeClock()
    )
    assert found.stopped_by == "precision"
    assert found.rounds == 16
    for arm in found.arms.values():
        assert arm.step_seconds == 3.0, "one second for each of forward, backward and optimizer"
        assert all(one.median == one.low == one.high == 1.0 for one in arm.ratios.values())


def test_the_parts_of_a_step_with_several_passes():
    assert _by_part([1, 10, 2, 20, 100]) == (3, 30, 100)
    marks = Marks(torch.device("cpu"), now=FakeClock())
    for _ in range(4):
        marks.mark()
    assert marks.seconds() == [1.0, 1.0, 1.0]


def test_arms_see_the_same_batches_and_their_own_optimizer(tmp_path, monkeypatch):
    import oelm.bench.arms as arms

    visits = []
    visit = arms.Stepper.time_steps

    def noted(self, first, steps):
        batches = [self._batches(step) for step in range(first, first + steps)]
        rows = [[batch.inputs["input_ids"].numpy().tobytes() for batch in passes] for passes in batches]
        visits.append((id(self), id(self.loop.optimizer), rows))
        return visit(self, first, steps)

    monkeypatch.setattr(arms.Stepper, "time_steps", noted)
    clock = FakeClock()
    bench(study(tmp_path, frozen=FROZEN), budget=200, precision=1e-9, memory=False, out=tmp_path, now=clock)
    steppers = {who for who, _, _ in visits}
    assert len(steppers) == 2
    assert len({which for _, which, _ in visits}) == 2
    measured = visits[2:]  # after the warm-up
    for start in range(0, len(measured), 4):
        one, two, three, four = measured[start : start + 4]
        assert one[2] == two[2]
        assert three[2] == four[2]
        assert one[2] != three[2]
        assert (one[0], two[0]) == (four[0], three[0]), "ABBA"


def test_two_arms_that_are_the_same(tmp_path):
    """On the real clock. What the ratio is, nobody can promise on a busy machine: benchmarks/same.py shows it."""
    same = {"init": "keep", "freeze": "none"}
    found = bench(study(tmp_path, same=same), budget=8, precision=0.01, memory=False, out=tmp_path)
    ratio = found.arms["same"].ratios["step"]
    assert ratio.low <= ratio.median <= (ratio.high or math.inf)  # few rounds have no end
    assert found.arms["same"].ceiling == 0.0
    assert read_bench(tmp_path / "tiny") == found
    assert "same" in str(found)


def test_freezing_has_a_ceiling_and_spares_memory(tmp_path, forked_python):
    found = bench(study(tmp_path, frozen=FROZEN), budget=1e6, precision=0.9, out=tmp_path, now=FakeClock())
    frozen, base = found.arms["frozen"], found.arms["baseline"]
    assert 0 < frozen.ceiling < 0.0556
    assert frozen.ceiling < frozen.at_most < 0.2
    spared = base.memory.learning - frozen.memory.learning
    assert spared >= 0.95 * 12 * 2 * 2 * 128 * 128, "gradient and two moments of every frozen weight"
    assert base.memory.theory.gradients == base.memory.gradients
    assert base.memory.theory.optimizer == base.memory.optimizer
    assert frozen.memory.checkpoint.total < base.memory.checkpoint.total
    assert read_bench(tmp_path / "tiny") == found


def test_a_speed_up_that_freezing_cannot_give_is_named(tmp_path, monkeypatch):
    import oelm.bench.arms as arms

    visit = arms.Stepper.time_steps

    def fast(self, first, steps):
        seen = visit(self, first, steps)
        return replace(seen, seconds=0.7 * seen.seconds) if self.loop.applied.treatment.freeze == "qk" else seen

    monkeypatch.setattr(arms.Stepper, "time_steps", fast)
    found = bench(
        study(tmp_path, frozen=FROZEN), budget=1e6, precision=0.5, memory=False, out=tmp_path, now=FakeClock()
    )
    assert found.arms["frozen"].above_ceiling
    assert any("SPEEDUP-ABOVE-CEILING" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"arms": []}, "cannot be compared"),
        ({"arms": ["frzen"]}, "has no arm 'frzen'; did you mean 'frozen'"),
        ({"arms": [" frozen"]}, "has no arm ' frozen'; did you mean 'frozen'"),
        ({"arms": ["baseline", "baseline"]}, "cannot be compared"),
        ({"precision": 0.0}, "precision"),
        ({"precision": 1.0}, r"not between 0 and 1\n.*--precision 0\.01"),
        ({"precision": float("nan")}, "precision"),
        ({"budget": -1.0}, "invalid budget"),
        ({"budget": float("nan")}, "invalid budget"),
        ({"budget": 1e-9}, "too short for one round"),
    ],
)
def test_bad_input(tmp_path, options, told):
    with pytest.raises(StudyError, match=told):
        bench(study(tmp_path, frozen=FROZEN), memory=False, out=tmp_path, **options)
    assert not (tmp_path / "tiny").exists()


def test_an_arm_that_is_named_twice_is_timed_once(tmp_path):
    clock = FakeClock()
    found = bench(
        study(tmp_path, frozen=FROZEN, other=FROZEN),
        arms=["frozen", "frozen", "baseline"],
        budget=100,
        memory=False,
        out=tmp_path,
        now=clock,
    )
    assert list(found.arms) == ["baseline", "frozen"]


@pytest.mark.parametrize("place", ["file", "file/below"])
def test_where_nothing_can_be_written_nothing_is_measured(tmp_path, monkeypatch, place):
    import oelm.bench.run as run

    (tmp_path / "file").write_text("in the way")
    monkeypatch.setattr(run, "run_interleaved", None)
    with pytest.raises(DiskError, match="file is in the way: a file, not a folder"):
        bench(study(tmp_path, frozen=FROZEN), memory=False, out=tmp_path / place)


@pytest.mark.parametrize("device", ["cuda:99", "no-such-kind"])
def test_a_device_that_is_asked_for_and_absent(tmp_path, monkeypatch, device):
    monkeypatch.setenv("ACCELERATE_TORCH_DEVICE", device)
    with pytest.raises(CellError, match=rf"there is no device '{device}' here\n.*ACCELERATE_TORCH_DEVICE"):
        bench(study(tmp_path, frozen=FROZEN), memory=False, out=tmp_path)
    assert not (tmp_path / "tiny").exists()


def test_what_was_measured_and_on_what_is_written_down(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCELERATE_USE_CPU", "true")
    given = study(tmp_path, frozen=FROZEN)
    found = bench(given, budget=100, precision=0.5, memory=False, out=tmp_path, now=FakeClock())
    name = found.provenance.cpu
    assert found.device == f"cpu ({name})"
    assert f" tokens on cpu ({name}), " in str(found).splitlines()[0]
    kept = read_bench(tmp_path / "tiny")
    assert kept == found
    assert kept.isolated is None
    assert kept.spec == {arm: resolve_cell(given, Cell(arm=arm, seed=0)) for arm in ("baseline", "frozen")}
    assert bench_mismatch(kept, given) is None
    other = bench_mismatch(kept, study(tmp_path, frozen={**FROZEN, "freeze": "k"}))
    assert "treatment.freeze: was 'qk', is 'k'" in str(other)
    around = kept.system
    assert around.threads == torch.get_num_threads()
    assert around.interop_threads == torch.get_num_interop_threads()
    assert around.affinity == tuple(sorted(os.sched_getaffinity(0)))
    assert around.cores == len(around.affinity)


def test_arms_of_another_shape_are_refused(tmp_path):
    other = study(tmp_path, frozen={**FROZEN, "overrides": {"batch.size": 4}})
    with pytest.raises(StudyError, match="another shape"):
        bench(other, memory=False, out=tmp_path)


def test_clipping_is_part_of_a_step(tmp_path):
    with pytest.raises(StudyError, match="another shape"):
        bench(study(tmp_path, frozen={**FROZEN, "overrides": {"max_grad_norm": None}}), memory=False, out=tmp_path)


def test_two_treated_arms_of_a_hypothesis_are_measured_directly(tmp_path, monkeypatch):
    import oelm.bench.arms as arms

    visit = arms.Stepper.time_steps

    def paced(self, first, steps):
        seen = visit(self, first, steps)
        pace = {"qk": 0.9, "q": 0.95}.get(self.loop.applied.treatment.freeze, 1.0)
        return replace(seen, seconds=pace * seen.seconds)

    monkeypatch.setattr(arms.Stepper, "time_steps", paced)
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"))
    content["arms"] = {
        "baseline": {"init": "keep", "freeze": "none"},
        "frozen": FROZEN,
        "half": {**FROZEN, "freeze": "q"},
    }
    content["hypotheses"] = {
        "H3": {
            "statement": "one is faster than the other",
            "estimand": "step_seconds(frozen) / step_seconds(half)",
            "rule": "below",
            "margin": 1.0,
        },
        "other": {
            "statement": "and than the baseline",
            "estimand": "step_seconds(frozen) / step_seconds(baseline)",
            "rule": "below",
            "margin": 1.0,
        },
    }
    found = bench(study_from_dict(content), budget=1e6, precision=0.5, memory=False, out=tmp_path, now=FakeClock())
    (pair,) = found.pairs
    assert (pair.arm, pair.against) == ("frozen", "half")
    assert pair.ratio.median == pytest.approx(0.9 / 0.95)
    assert "frozen in units of half: 0.9474" in str(found)
    assert read_bench(tmp_path / "tiny").pairs == (pair,)
    one_less = bench(
        study_from_dict(content), arms=["half"], budget=1e6, precision=0.5, memory=False, out=tmp_path, now=FakeClock()
    )
    assert one_less.pairs == ()


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    class Impatient(Progress):
        def on_step(self, step, *, loss):
            if step == 3:
                os.kill(os.getpid(), signal.SIGINT)

    found = bench(
        study(tmp_path, frozen=FROZEN), budget=60, precision=1e-9, memory=False, out=tmp_path, progress=Impatient()
    )
    assert (found.stopped_by, found.rounds) == ("interrupted", 3)
    assert read_bench(tmp_path / "tiny") == found
    assert "interrupted" in str(found)


def test_the_command(tmp_path):
    oelm = partial(running.run, env=running.environment(tmp_path), cwd=tmp_path)
    path = tiny_study.make(tmp_path)
    options = ["--budget", "5s", "--no-memory", "--json", "--out", "runs"]
    done = oelm("bench", path, *options)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (tmp_path / "runs" / "tiny" / "bench.json").read_text()
    assert json.loads(done.stdout)["study"] == "tiny"
    alone = load(tmp_path / "runs")
    assert alone.bench is not None, "it is read where no cell was run"
    assert not alone.excluded
    bad = oelm("bench", path, "--budget", "soon")
    assert bad.returncode == 2
    assert "invalid duration" in bad.stderr
    assert "Traceback" not in bad.stderr


@pytest.mark.parametrize(
    ("options", "told"),
    [
        (["--arms", "baseline"], "one arm, 'baseline', cannot be compared"),
        (["--arms", "oelm-freeze,frozen"], "has no arm 'frozen'"),
        (["--set", "arms.oelm-freeze.overrides={batch.size: 4}"], "is of another shape"),
        (["--budget", "0.001s"], "too short for one round"),
        (["--precision", "1%"], "--precision"),
        (["--precision", "1"], "not between 0 and 1"),
        (["--out", "FILE"], "is in the way: a file, not a folder"),
        pytest.param(
            ["--set", "recipe.precision=fp16"],
            "fp16 needs a GPU",
            marks=pytest.mark.skipif(torch.accelerator.is_available(), reason="there is a GPU"),
        ),
    ],
)
def test_bad_input_on_the_command_line(tmp_path, monkeypatch, capsys, options, told):
    from oelm.cli.main import main

    (tmp_path / "file").write_text("in the way")
    path, given = tiny_study.make(tmp_path), [option.replace("FILE", str(tmp_path / "file")) for option in options]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["oelm", "bench", str(path), "--no-memory", *given])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert told in said
    assert "Traceback" not in said
    assert not (tmp_path / "runs").exists()


def test_others_are_seen():
    """What this process does is not taken for somebody else's work."""
    watching = SystemMonitor()
    np.linalg.svd(np.random.default_rng(0).standard_normal((300, 300)))
    sample = watching.sample()
    assert sample.seconds > 0
    assert sample.own_cores > 0
    share = interference([sample])
    assert share is None or share >= 0


def test_processes_of_our_own_are_not_others(monkeypatch):
    import oelm.bench.system as monitored

    times = iter([(1, 0, 10, 1), (2, 0, 40, 3)])  # user, system, and those of children

    def told():
        user, system, children_user, children_system = next(times)
        return os.times_result((user, system, children_user, children_system, 0.0))

    moments, busy = iter([0.0, 40.0]), iter([100.0, 145.0])
    monkeypatch.setattr(monitored.os, "times", told)
    monkeypatch.setattr(monitored.time, "perf_counter", lambda: next(moments))
    monkeypatch.setattr(monitored, "_busy", lambda: next(busy))
    sample = SystemMonitor().sample()
    assert sample.own_cores == pytest.approx((1 + 30 + 2) / 40)
    assert sample.others_cores == pytest.approx((45 - 33) / 40)
