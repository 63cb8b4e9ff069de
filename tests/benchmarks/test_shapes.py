"""Shapes: the grid, that every shape is what it says, and that nothing that was measured is lost."""

import itertools
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import tiny_study
from oelm.bench import memory_budget
from oelm.data.batches import BatchSampler, collate
from oelm.data.tokenize import Examples, Windows
from oelm.errors import Stopped, StudyError
from oelm.heads.find import find_projections
from oelm.study.load import study_from_dict
from oelm.train.progress import Progress

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # not for longer: its names are not for the other tests
    patch.syspath_prepend(BENCHMARKS)
    import shapes
    from shapes import SHAPES_FILE, Shape, bench_shapes, parse_sizes, random_rows, shape_grid

SIZES = st.lists(st.integers(1, 10**6), min_size=1, max_size=4)
OWN = Shape(width=128, length=32, batch=8)

# -- what is asked for ---------------------------------------------------------------------------------------------


@given(SIZES, st.sampled_from([",", ", ", " ,"]))
def test_sizes_are_read_as_they_are_written(sizes, comma):
    assert parse_sizes(comma.join(map(str, sizes)), "widths") == sorted(set(sizes))


@given(st.text(max_size=8) | st.text("0123, -x.", max_size=8))
def test_any_other_text_is_refused(text):
    parts = [part.strip() for part in text.split(",")]
    if all(part.isascii() and part.isdigit() and int(part) > 0 for part in parts):
        assert parse_sizes(text, "widths") == sorted({int(part) for part in parts})
    else:
        with pytest.raises(StudyError, match="--widths"):
            parse_sizes(text, "widths")


@pytest.mark.parametrize("text", ["", "64,", "0", "64,0", "-64", "wide", "64;128", "6e4", "64.0", "9" * 10, "\u0661"])
def test_what_is_no_size(text):
    with pytest.raises(StudyError, match="invalid sizes"):
        parse_sizes(text, "widths")


@given(st.none() | SIZES, st.none() | SIZES, SIZES)
def test_the_grid_is_all_combinations_the_least_work_first(widths, lengths, batches):
    found = shape_grid(OWN, step=32, widths=widths, lengths=lengths, batches=batches)
    wanted = set(itertools.product(widths or [128], lengths or [32], batches))
    assert Counter((one.width, one.length, one.batch) for one in found) == Counter(wanted)
    assert [one.work for one in found] == sorted(one.work for one in found)


@pytest.mark.parametrize(
    ("own", "step", "widths", "lengths"),
    [
        (OWN, 32, {64, 128, 256}, {16, 32}),
        (replace(OWN, width=96), 32, {96, 192}, {16, 32}),
        (Shape(width=8, length=1, batch=1), 8, {8, 16}, {1}),
    ],
)
def test_the_grid_that_nobody_asked_for(own, step, widths, lengths):
    found = shape_grid(own, step=step)
    assert {(one.width, one.length, one.batch) for one in found} == set(itertools.product(widths, lengths, [own.batch]))


# -- what is fed ---------------------------------------------------------------------------------------------------


class Task:
    labels = ("bad", "good", "fine")


class Like:
    task = Task()

    def __init__(self, train):
        self.train = train


def examples(types):
    one = np.zeros(1, dtype=np.int64)
    return Examples(tokens=one.astype(np.int32), types=types, offsets=np.array([0, 1]), labels=one, rows=one)


@pytest.mark.parametrize(
    "like",
    [
        examples(None),
        examples(np.zeros(1, dtype=np.int8)),
        Windows(tokens=np.zeros(9, dtype=np.int64), length=4, end=0),
    ],
)
def test_rows_are_as_long_as_said_and_batches_are_whole(like):
    shape = Shape(width=64, length=7, batch=3)
    rows = random_rows(Like(like), shape, number=24, vocab=50, random=np.random.default_rng(0))
    order = BatchSampler(rows.lengths, batch_size=3, accumulate=2, seed=0)
    seen = set()
    for step in range(order.steps_per_epoch + 2):
        for indices in order.at(step):
            batch = collate(rows, indices, pad=0, device=torch.device("cpu"))
            assert all(tensor.shape == (3, 7) for tensor in batch.inputs.values())
            assert ("token_type_ids" in batch.inputs) == (getattr(like, "types", None) is not None)
            seen |= set(batch.inputs["input_ids"].flatten().tolist())
            if isinstance(like, Examples):
                assert batch.inputs["attention_mask"].all()
                assert set(batch.targets.tolist()) <= {0, 1, 2}
            else:
                assert batch.targets.shape == (3, 7)
    assert seen <= set(range(50))
    assert len(seen) > 30


# -- measuring -----------------------------------------------------------------------------------------------------


@pytest.fixture
def study(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    return made(tmp_path)


def made(tmp_path, **recipe):
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"), **recipe)
    return study_from_dict(content)


class FakeClock:
    """Every look at it is a second later."""

    def __init__(self):
        self.looks = itertools.count()

    def __call__(self):
        return float(next(self.looks))


def measured(study, tmp_path, **options):
    options = {"widths": [32, 64], "lengths": [4, 8], "batches": [2], "precision": 0.5, "budget": 1e6, **options}
    return bench_shapes(study, out=tmp_path, now=FakeClock(), **options)


def kept(tmp_path):
    return SHAPES_FILE.read(tmp_path / "tiny")


@pytest.mark.slow
def test_every_shape_is_what_it_says(study, tmp_path, monkeypatch):
    seen = {}
    visit = shapes.Stepper.time_steps

    def noted(self, first, steps):
        loop = self.loop
        inputs = self._batches(first)[0].inputs["input_ids"]
        projections = find_projections(loop.model)
        sizes = {(one.width, one.num_heads, one.head_dim) for one in projections}
        key = (projections[0].width, *inputs.shape[::-1])
        trained = {parameter for group in loop.optimizer.param_groups for parameter in group["params"]}
        free = all(one.owner.weight in trained for one in projections)
        frozen = not any(one.owner.weight in trained for one in projections)
        assert free if loop.applied.treatment.freeze == "none" else frozen
        assert loop.model.config.vocab_size == 300
        assert loop.optimizer.param_groups[0]["lr"] == 1e-3
        seen.setdefault(key, []).append((loop.applied.treatment.freeze, sizes, len(projections)))
        return visit(self, first, steps)

    monkeypatch.setattr(shapes.Stepper, "time_steps", noted)
    found = measured(study, tmp_path)
    assert set(seen) == set(itertools.product([32, 64], [4, 8], [2]))
    for (width, _, _), visits in seen.items():
        assert {freeze for freeze, _, _ in visits} == {"none", "qk"}
        assert all(sizes == {(width, width // 32, 32)} and number == 4 for _, sizes, number in visits)
    assert str(found.points[0].shape) == "width 32, 4 tokens, batch 2"
    assert found.stopped == "done"
    for point in found.points:
        assert (point.layers, point.rounds, point.stopped_by) == (2, 16, "precision")
        frozen = point.arms["oelm-freeze"]
        assert frozen.ratios["step"].median == 1.0, "by a clock that counts looks"
        assert 0.02 < frozen.ceiling < 0.1, "with so few tokens the optimizer is much of the work"
        assert 0.02 < frozen.at_most < 0.1


@pytest.mark.slow
def test_the_file(study, tmp_path):
    found = measured(study, tmp_path, lengths=[4])
    assert kept(tmp_path) == found
    assert (found.study, found.against, found.stopped) == ("tiny", "baseline", "done")
    assert [point.shape for point in found.points] == [Shape(width=width, length=4, batch=2) for width in (32, 64)]
    for point in found.points:
        assert {name: arm.step_seconds for name, arm in point.arms.items()} == {"baseline": 3.0, "oelm-freeze": 3.0}
        assert list(point.compared) == ["oelm-freeze"]
    assert found.spec["oelm-freeze"].treatment.freeze == "qk"
    assert found.system.cores > 0
    assert found.provenance.versions
    told = str(found)
    assert "2 shapes of 2 layers" in told
    assert "of what can be saved" in told


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"widths": [48]}, "48 is not a multiple of 32"),
        ({"lengths": [512]}, "more than the 256 tokens"),
        ({"arms": ["frozn"]}, "no arm 'frozn'"),
        ({"arms": []}, "cannot be compared"),
        ({"budget": 1e-9}, "none of the shapes could be measured"),
    ],
)
def test_bad_input(study, tmp_path, options, told):
    with pytest.raises(StudyError, match=told):
        measured(study, tmp_path, **options)
    assert not (tmp_path / "tiny").exists()


# -- what cannot be measured ---------------------------------------------------------------------------------------


@pytest.mark.slow
def test_what_does_not_fit_is_left_out_before_it_is_built(study, tmp_path, monkeypatch):
    monkeypatch.setattr(memory_budget, "free_bytes", lambda device: 10 * 2**20)
    found = measured(study, tmp_path, widths=[32, 512], lengths=[4])
    assert [point.shape.width for point in found.points] == [32]
    (excluded,) = found.excluded
    assert excluded.shape == Shape(width=512, length=4, batch=2)
    assert "free" in excluded.why
    assert kept(tmp_path) == found
    assert f"excluded: {excluded.shape}" in str(found)
    assert found.stopped == "done"


@pytest.mark.slow
@pytest.mark.parametrize("error", [MemoryError()])
def test_what_turns_out_not_to_fit_is_left_out(study, tmp_path, monkeypatch, error):
    visit = shapes.Stepper.time_steps

    def full(self, first, steps):
        if find_projections(self.loop.model)[0].width == 32:
            raise error
        return visit(self, first, steps)

    monkeypatch.setattr(shapes.Stepper, "time_steps", full)
    found = measured(study, tmp_path, lengths=[4])
    assert [point.shape.width for point in found.points] == [64]
    assert "memory" in found.excluded[0].why


@pytest.mark.slow
def test_other_failures_are_not_hidden(study, tmp_path, monkeypatch):
    def broken(self, first, steps):
        raise RuntimeError("a matrix of the wrong shape")

    monkeypatch.setattr(shapes.Stepper, "time_steps", broken)
    with pytest.raises(RuntimeError, match="wrong shape"):
        measured(study, tmp_path)


@pytest.mark.slow
def test_what_has_no_time_left_is_left_out(study, tmp_path, monkeypatch):
    turns, late = shapes.run_interleaved, []

    def slow(arms, **options):
        taken = turns(arms, **options)
        for _ in range(10_000):
            options["now"]()
        late.append(True)
        return taken

    monkeypatch.setattr(shapes, "run_interleaved", slow)
    found = measured(study, tmp_path, budget=5000)
    assert len(late) == len(found.points) == 1
    assert {one.why for one in found.excluded} == {"no time was left for it"}
    assert len(found.excluded) == 3


# -- Ctrl-C --------------------------------------------------------------------------------------------------------


class Impatient(Progress):
    """Sends a signal in round `round` of the shape `shape`, or before its first."""

    def __init__(self, shape, round=None):
        self.shape, self.round, self.at = shape, round, 0

    def on_message(self, text):
        if text.startswith("["):
            self.at += 1
            if self.round is None and self.at == self.shape:
                os.kill(os.getpid(), signal.SIGINT)

    def on_step(self, step, *, loss):
        if (self.at, step) == (self.shape, self.round):
            os.kill(os.getpid(), signal.SIGINT)


@pytest.mark.slow
@pytest.mark.parametrize(("round", "ends"), [(3, ["precision", "interrupted"])])
def test_ctrl_c_keeps_what_was_measured(study, tmp_path, round, ends):
    found = measured(study, tmp_path, progress=Impatient(2, round))
    assert found.stopped == kept(tmp_path).stopped == "interrupted"
    assert [point.stopped_by for point in found.points] == ends
    assert len(kept(tmp_path).points) == len(ends)
    assert "interrupted" in str(found)


@pytest.mark.slow
def test_ctrl_c_before_anything_was_measured(study, tmp_path):
    with pytest.raises(Stopped):
        measured(study, tmp_path, progress=Impatient(1))
    assert not (tmp_path / "tiny").exists()


@pytest.mark.slow
def test_a_failure_keeps_the_shapes_before_it(study, tmp_path, monkeypatch):
    visit = shapes.Stepper.time_steps

    def fails(self, first, steps):
        if find_projections(self.loop.model)[0].width == 64:
            raise RuntimeError("a matrix of the wrong shape")
        return visit(self, first, steps)

    monkeypatch.setattr(shapes.Stepper, "time_steps", fails)
    with pytest.raises(RuntimeError, match="wrong shape"):
        measured(study, tmp_path)
    assert (kept(tmp_path).stopped, len(kept(tmp_path).points)) == ("interrupted", 2)


# -- the command ---------------------------------------------------------------------------------------------------


def command(tmp_path, *words):
    env = {**os.environ, "OELM_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    words = [sys.executable, BENCHMARKS / "shapes.py", *words]
    return subprocess.run(words, env=env, cwd=tmp_path, capture_output=True, text=True)


@pytest.mark.slow
def test_the_command(tmp_path, forked_python):
    path, out = tiny_study.make(tmp_path), tmp_path / "runs"
    shape = ["--widths", "32", "--lengths", "4", "--batches", "2"]
    done = command(tmp_path, path, *shape, "--budget", "20", "--precision", "0.9", "--out", out)
    assert done.returncode == 0, done.stderr
    assert "[1/1] width 32, 4 tokens, batch 2" in done.stderr
    for name in ("bench-shapes.json", "bench-shapes.svg"):
        assert str(out / "tiny" / name) in done.stdout
        assert (out / "tiny" / name).exists()
    ElementTree.parse(out / "tiny" / "bench-shapes.svg")
    drawn = (out / "tiny" / "bench-shapes.svg").read_bytes()
    (out / "tiny" / "bench-shapes.svg").unlink()
    assert shapes.main([str(path), "--draw", "--out", str(out)]) == 0
    assert (out / "tiny" / "bench-shapes.svg").read_bytes() == drawn


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--widths", "wide"], "'wide' is not a positive integer"),
        (["--widths", "64,,128"], "nothing between two commas"),
        (["--set", "recipe.optimiser.lr=1"], "did you mean 'optimizer'"),
        (["--draw"], "there is no "),
    ],
)
def test_bad_options(tmp_path, capsys, options, message):
    """One message and exit code 2."""
    path = tiny_study.make(tmp_path)
    assert shapes.main([str(path), *options, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
