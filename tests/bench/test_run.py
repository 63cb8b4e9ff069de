"""The bench: what is inside its clock, when it stops, and that two arms that are the same come out the same."""

import itertools
import json
import os
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch

import tiny_study
from oelm.bench.run import bench
from oelm.bench.stepper import Marks, _by_part
from oelm.bench.surroundings import Watching, interference
from oelm.errors import StudyError
from oelm.study.load import study_from_dict
from oelm.train.watch import Watch

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
        assert arm.step_seconds == 3.0, "one second for each of forward, backward and optimiser"
        assert all(one.median == one.low == one.high == 1.0 for one in arm.ratios.values())


def test_the_parts_of_a_step_with_several_passes():
    assert _by_part([1, 10, 2, 20, 100]) == (3, 30, 100)
    marks = Marks(torch.device("cpu"), now=FakeClock())
    for _ in range(4):
        marks.mark()
    assert marks.seconds() == [1.0, 1.0, 1.0]


def test_arms_see_the_same_batches_and_their_own_optimiser(tmp_path, monkeypatch):
    import oelm.bench.run as run

    visits = []
    visit = run.Stepper.visit

    def noted(self, steps):
        rows = [[batch.inputs["input_ids"].numpy().tobytes() for batch in passes] for passes in steps]
        visits.append((id(self), id(self.loop.optimizer), rows))
        return visit(self, steps)

    monkeypatch.setattr(run.Stepper, "visit", noted)
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
    assert ratio.low <= ratio.median <= ratio.high
    assert found.arms["same"].ceiling == 0.0
    kept = json.loads((tmp_path / "tiny" / "bench.json").read_text())
    assert kept["arms"]["same"]["ratios"]["step"]["median"] == ratio.median
    assert kept["format"] == 1
    assert "same" in str(found)


def test_freezing_has_a_ceiling_and_spares_memory(tmp_path):
    found = bench(study(tmp_path, frozen=FROZEN), budget=1e6, precision=0.9, out=tmp_path, now=FakeClock())
    frozen, base = found.arms["frozen"], found.arms["baseline"]
    assert 0 < frozen.ceiling < 0.0556
    assert frozen.ceiling < frozen.at_most < 0.2
    spared = (
        base.memory["gradients"] + base.memory["optimizer"] - frozen.memory["gradients"] - frozen.memory["optimizer"]
    )
    assert spared >= 0.95 * 12 * 2 * 2 * 128 * 128, "gradient and two moments of every frozen weight"
    for part in ("gradients", "optimizer"):
        assert base.memory["theory"][part] == base.memory[part]
    assert frozen.memory["checkpoint"]["total"] < base.memory["checkpoint"]["total"]


def test_a_speed_up_that_freezing_cannot_give_is_named(tmp_path, monkeypatch):
    import oelm.bench.run as run

    visit = run.Stepper.visit

    def fast(self, steps):
        seconds = visit(self, steps)
        return seconds * 0.7 if self.loop.applied.treatment.freeze == "qk" else seconds

    monkeypatch.setattr(run.Stepper, "visit", fast)
    found = bench(
        study(tmp_path, frozen=FROZEN), budget=1e6, precision=0.5, memory=False, out=tmp_path, now=FakeClock()
    )
    assert found.arms["frozen"].above_ceiling
    assert any("SPEEDUP-ABOVE-CEILING" in text for text in found.warnings)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"arms": []}, "cannot be compared"),
        ({"arms": ["frzen"]}, "has no arm 'frzen'"),
        ({"precision": 0.0}, "precision"),
        ({"budget": -1.0}, "no time"),
        ({"budget": 1e-9}, "too short for one round"),
    ],
)
def test_bad_input(tmp_path, options, told):
    with pytest.raises(StudyError, match=told):
        bench(study(tmp_path, frozen=FROZEN), memory=False, out=tmp_path, **options)
    assert not (tmp_path / "tiny").exists()


def test_arms_of_another_shape_are_refused(tmp_path):
    other = study(tmp_path, frozen={**FROZEN, "changes": {"batch.size": 4}})
    with pytest.raises(StudyError, match="another shape"):
        bench(other, memory=False, out=tmp_path)


def test_ctrl_c_keeps_what_was_measured(tmp_path):
    class Impatient(Watch):
        def stepped(self, step, *, loss):
            if step == 3:
                os.kill(os.getpid(), signal.SIGINT)

    found = bench(
        study(tmp_path, frozen=FROZEN), budget=60, precision=1e-9, memory=True, out=tmp_path, watch=Impatient()
    )
    assert (found.stopped_by, found.rounds) == ("interrupted", 3)
    assert json.loads((tmp_path / "tiny" / "bench.json").read_text())["rounds"] == 3
    assert "interrupted" in str(found)


def test_the_command(tmp_path):
    path = tiny_study.make(tmp_path)
    command = [sys.executable, "-c", "from oelm.cli.main import main; main()", "bench", str(path)]
    options = ["--budget", "30s", "--precision", "0.9", "--no-memory", "--json", "--out", str(tmp_path / "runs")]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["study"] == "tiny"
    bad = subprocess.run([*command, "--budget", "soon"], capture_output=True, text=True, check=False)
    assert bad.returncode == 2
    assert "no time" in bad.stderr
    assert "Traceback" not in bad.stderr


def test_others_are_seen():
    """What this process does is not taken for somebody else's work."""
    watching = Watching()
    np.linalg.svd(np.random.default_rng(0).standard_normal((300, 300)))
    sample = watching.sample()
    assert sample.seconds > 0
    assert sample.own_cores > 0
    share = interference([sample])
    assert share is None or share >= 0
