"""Running: two arms of a seed differ in their treatment and in nothing else, whatever happens to a cell."""

import json
import math
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pyarrow.parquet as parquet
import pytest
import torch

import oelm
import tiny_study
from oelm.data.batches import BatchSampler
from oelm.runs.status import read_state
from oelm.runs.steps import read_written_steps
from oelm.study.cells import Cell
from oelm.study.load import load_study, study_from_dict
from oelm.train.progress import MessageProgress, Progress
from running import run_cell

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def study(tmp_path):
    return load_study(tiny_study.make(tmp_path))


@pytest.fixture(scope="module")
def comparison(tmp_path_factory):
    """Of all cells of that study, which are trained once."""
    folder = tmp_path_factory.mktemp("whole")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OELM_CACHE", str(folder / "cache"))
        return oelm.run(load_study(tiny_study.make(folder)), out=folder / "runs")


@pytest.fixture(scope="module")
def whole(comparison):
    """The folder of these cells: to be looked at, and not touched."""
    return comparison.folder


@pytest.fixture
def finished(whole, tmp_path):
    """Has cells of the study finished in `runs`, as if they had been trained there."""

    def finish(*cells: str) -> Path:
        for cell in cells:
            shutil.copytree(whole / cell, tmp_path / "runs/tiny" / cell)
        for name in ("study.json", "lock.json"):
            shutil.copy(whole / name, tmp_path / "runs/tiny")
        return tmp_path / "runs/tiny" / cells[0]

    return finish


class Asked(Progress):
    """Remembers which cells ran."""

    def __init__(self):
        self.cells = []

    def on_cell_start(self, cell, *, step, total):
        self.cells.append(str(cell))


def test_every_cell_leaves_what_it_promises(comparison, whole):
    assert [str(cell) for cell in comparison.records] == [
        "baseline/seed-0",
        "oelm-freeze/seed-0",
        "oelm-freeze/seed-1",
        "baseline/seed-1",
    ], "every second seed takes the arms in reverse"
    for cell, record in comparison.records.items():
        folder = whole / cell.folder
        assert record == oelm.read_record(folder)
        assert record.status == read_state(folder) == "done"
        assert [row.step for row in record.evaluations] == [4, 8, 12], "the last step is measured"
        assert record.test["final"].step == 12
        best = max(record.evaluations, key=lambda row: row.metrics["accuracy"])
        assert record.test["best"].step == best.step
        assert set(record.scores()) == {"accuracy", "macro_f1", "f1", "loss"}
        rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
        assert [row["step"] for row in rows] == list(range(1, 13))
        assert all(set(row) == {"step", "loss", "lr", "grad_norm", "seconds"} for row in rows)
        assert len({row["lr"] for row in rows}) > 10, "the schedule does something"
        assert record.lr == tuple((row["step"], row["lr"]) for row in rows)
        assert [audit.step for audit in record.audits] == [0, 4, 8, 12]
        assert all(audit.passed for audit in record.audits)
        assert set(record.seconds) == {"training", "evaluation", "data", "checkpoints"}
        assert record.peak_memory.process > 1e7
        assert record.provenance.threads == torch.get_num_threads()
        assert record.provenance.versions["torch"]
        assert record.spec.recipe.optimizer.lr == 1e-3
        assert not (folder / "checkpoints").exists()
        audited = oelm.from_pretrained(folder / "model")[1].audit()
        assert audited.ok


def test_the_heads_are_measured_at_the_start_and_at_the_end(comparison):
    baseline, treated = (comparison.records[Cell(arm=arm, seed=0)] for arm in ("baseline", "oelm-freeze"))
    for record in (baseline, treated):
        for heads in (record.start.heads, record.heads):
            for role in ("q", "k"):  # two layers of four heads
                assert [len(row) for row in heads.norm[role]] == [4, 4]
                assert [len(row) for row in heads.cosine[role]] == [4, 4]
            assert all(spread > 0 for spread in heads.logit_spread)
            assert all(0 < entropy < math.log(32) for entropy in heads.entropy)
        assert record.start.heads.logit_spread != record.heads.logit_spread
    start, final = treated.start.heads, treated.heads
    assert max(max(row) for role in ("q", "k") for row in start.cosine[role]) < 1e-5
    assert (start.norm, start.cosine) == (final.norm, final.cosine), "frozen"
    start, final = baseline.start.heads, baseline.heads
    assert start.norm != final.norm, "trained"
    # Rows of std 0.02 became rows of length one: 1 / (0.02 ** 2 * 128) times as far apart.
    ratio = treated.start.heads.logit_spread[0] / start.logit_spread[0]
    assert math.isclose(ratio, 1 / (0.02**2 * 128), rel_tol=0.1)


def test_per_example_predictions_give_the_reported_metrics(comparison, whole):
    record = comparison.records[Cell(arm="baseline", seed=0)]
    table = parquet.read_table(whole / "baseline/seed-0/predictions.parquet").to_pylist()
    for which in ("final", "best"):
        rows = [row for row in table if row["model"] == which]
        assert sorted(row["row"] for row in rows) == list(range(60)), "every example once"
        metrics = record.scores(which)
        assert metrics["accuracy"] == sum(row["label"] == row["prediction"] for row in rows) / 60
        assert math.isclose(metrics["loss"], sum(row["loss"] for row in rows) / 60)


def test_arms_of_a_seed_share_batches_and_all_other_weights(study, whole, tmp_path, monkeypatch):
    trained: list[list] = []
    at = BatchSampler.at

    class Training(Progress):
        running = False

        def on_cell_start(self, cell, *, step, total):
            trained.append([])
            self.running = True

        def on_cell_end(self, cell, *, status, seconds=None):
            self.running = False

    progress = Training()

    def noted(self, step):
        if progress.running:  # what is looked at before a cell begins is not trained on
            trained[-1].append((step, [rows.tolist() for rows in at(self, step)]))
        return at(self, step)

    monkeypatch.setattr(BatchSampler, "at", noted)
    comparison = oelm.run(study, out=tmp_path / "runs", seeds=[0], progress=progress)
    first, second = trained
    assert first == second
    assert len(first) == 12
    a, b = comparison.records.values()
    assert (a.start.weights, a.batches) == (b.start.weights, b.batches), (
        "the hashes of batches and of weights before the treatment agree"
    )
    assert not [issue for issue in comparison.checks if issue.code == "UNPAIRED"]
    other = oelm.read_record(whole / "baseline/seed-1")
    assert other.batches != a.batches
    assert other.start.weights != a.start.weights


def test_other_weights_are_the_same_bits_at_the_start(study):
    """Not by a hash in a record, but weight by weight, after the treatment."""
    from oelm.study.cells import resolve_cell
    from oelm.train.cell import build_cell_model, load_data

    states = []
    for arm in study.arms:
        recipe = resolve_cell(study, Cell(arm=arm, seed=0)).recipe
        prepared = load_data(recipe, Progress())
        torch.rand(len(states))  # whatever happened to the global generator before
        model = build_cell_model(recipe, prepared, seed=0)
        oelm.apply(model, study.arms[arm].treatment, seed=0)
        states.append(model.state_dict())
    differ = {name for name in states[0] if not torch.equal(states[0][name], states[1][name])}
    assert differ == {f"model.blocks.{layer}.attention.{role}_proj.weight" for layer in (0, 1) for role in "qk"}


def test_finished_cells_are_never_run_again(study, finished, tmp_path):
    finished("baseline/seed-0")
    progress = Asked()
    oelm.run(study, out=tmp_path / "runs", seeds=[0], progress=progress)
    assert progress.cells == ["oelm-freeze/seed-0"]


def test_a_changed_study_is_refused_and_told_what_changed(study, finished, tmp_path):
    finished("oelm-freeze/seed-0")
    changed = load_study(tmp_path / "tiny.yaml", ["recipe.optimizer.lr=2e-3", "recipe.max_grad_norm=null"])
    progress = Asked()
    with pytest.raises(oelm.StudyError) as caught:
        oelm.run(changed, out=tmp_path / "runs", progress=progress)
    assert "recipe.optimizer.lr: was 0.001, is 0.002" in str(caught.value)
    assert "recipe.max_grad_norm: was 1.0, is None" in str(caught.value)
    assert progress.cells == [], "nothing was started, not even the arm that had no cells yet"
    harmless = load_study(tmp_path / "tiny.yaml", ["recipe.checkpoint.every=100", "seeds=[0, 1, 2]"])
    assert run_cell(harmless, arm="oelm-freeze", seed=0, out=tmp_path / "runs").status == "done"


def test_changed_data_are_refused(study, finished, tmp_path):
    (finished("baseline/seed-0") / "record.json").unlink()
    tiny_study.write_data(tmp_path / "data", train=239)
    with pytest.raises(oelm.StudyError, match="the data are not those"):
        run_cell(study, arm="baseline", seed=0, out=tmp_path / "runs")


def test_a_loss_that_is_no_number_is_diverged_and_the_others_go_on(tmp_path):
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"), max_grad_norm=None)
    content["arms"]["wild"] = {"init": "keep", "freeze": "none", "overrides": {"optimizer.lr": 1e30}}
    comparison = oelm.run(study_from_dict(content), out=tmp_path / "runs", seeds=[0])
    statuses = {cell.arm: record.status for cell, record in comparison.records.items()}
    assert statuses == {"baseline": "done", "oelm-freeze": "done", "wild": "diverged"}
    wild = comparison.records[Cell(arm="wild", seed=0)]
    assert "the loss of step" in wild.error.what
    assert "[overrides: optimizer.lr = 1e+30]" in str(comparison)
    assert "wild seed 0: diverged" in str(comparison)
    progress = Asked()
    oelm.run(study_from_dict(content), out=tmp_path / "runs", seeds=[0], progress=progress)
    assert progress.cells == [], "divergence is a result"


def test_a_frozen_bit_that_moves_is_audit_failed(study, tmp_path, monkeypatch):
    from oelm.train.loop import Loop

    step = Loop.step

    def meddling(self):
        step(self)
        if self.state.step == 6:
            with torch.no_grad():
                self.model.model.blocks[1].attention.q_proj.weight[0, 0] += 1e-3

    monkeypatch.setattr(Loop, "step", meddling)
    comparison = oelm.run(study, out=tmp_path / "runs", seeds=[0])
    statuses = {cell.arm: record.status for cell, record in comparison.records.items()}
    assert statuses == {"baseline": "done", "oelm-freeze": "audit-failed"}
    record = comparison.records[Cell(arm="oelm-freeze", seed=0)]
    assert not record.audits[-1].passed
    assert record.audits[-1].step == 8
    assert "model.blocks.1.attention.q_proj" in " ".join(record.audits[-1].findings)


def test_a_cell_that_fails_keeps_its_traceback_and_is_tried_again(study, whole, tmp_path, monkeypatch):
    from oelm.train.loop import Loop

    step = Loop.step

    def breaking(self):
        if self.state.step == 10 and self.spec.arm == "baseline":
            raise RuntimeError("the roof is on fire")
        step(self)

    with monkeypatch.context() as patch:
        patch.setattr(Loop, "step", breaking)
        comparison = oelm.run(study, out=tmp_path / "runs", seeds=[0])
    statuses = {cell.arm: record.status for cell, record in comparison.records.items()}
    assert statuses == {"baseline": "failed", "oelm-freeze": "done"}
    error = comparison.records[Cell(arm="baseline", seed=0)].error
    assert error.what == "RuntimeError: the roof is on fire"
    assert "in breaking" in error.traceback
    again = oelm.run(study, out=tmp_path / "runs", seeds=[0])
    assert again.records[Cell(arm="baseline", seed=0)].status == "done"
    assert len(list((tmp_path / "runs/tiny/baseline/seed-0").glob("failed-*.json"))) == 1
    assert again.sealed is not None, "a seed is missing"
    record = oelm.read_record(tmp_path / "runs/tiny/baseline/seed-0")
    assert record.test == oelm.read_record(whole / "baseline/seed-0").test


def tuned_study(tmp_path, **tune):
    """Two points of the grid: at one, nothing is learned."""
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"), evaluate={"every": 6}, budget={"steps": 12})
    return {**content, "tune": {"optimizer.lr": [1e-6, 3e-3], **tune}}


def best_lr(folder, arm, seeds):
    """By the records of the trials, recomputed here."""
    means = {}
    for lr in ("1e-06", "0.003"):
        records = [oelm.read_record(folder / f"{arm}/tune/optimizer.lr={lr}/seed-{seed}") for seed in seeds]
        assert all(record.test == {} for record in records), "a trial never sees a test split"
        means[float(lr)] = sum(record.last_evaluation["accuracy"] for record in records)
    return max(means, key=means.get)


def test_every_seed_tunes_itself_and_goes_on_from_its_best_trial(tmp_path):
    content = tuned_study(tmp_path)
    study, folder = study_from_dict(content), tmp_path / "runs/tiny"
    with pytest.raises(oelm.StudyError, match="not tuned yet"):
        run_cell(study, arm="baseline", seed=0, out=tmp_path / "runs")
    results = oelm.run(study, out=tmp_path / "runs")
    assert len(results.records) == 4
    assert len(results.tuning) == 8
    for cell, record in results.records.items():
        best = best_lr(folder, cell.arm, [cell.seed])
        assert record.spec.recipe.optimizer.lr == best
        assert [launch.step for launch in record.launches] == [0, 12], "it is not trained again"
        plain = {**content, "recipe": {**content["recipe"], "optimizer": {"lr": best}}, "tune": None}
        alone = run_cell(study_from_dict(plain), arm=cell.arm, seed=cell.seed, out=tmp_path / "alone" / cell.folder)
        assert (record.test, record.evaluations, record.batches) == (alone.test, alone.evaluations, alone.batches)
        losses = [losses_of(place / cell.folder) for place in (folder, tmp_path / "alone" / cell.folder / "tiny")]
        assert losses[0] == losses[1]
        assert record.peak_memory.process > 0
    assert not list(folder.glob("**/checkpoints")), "nothing goes on from a trial any more"
    assert not [issue for issue in results.checks if issue.code == "TUNING-UNEQUAL" and issue.severity == "invalid"]


def losses_of(folder):
    return [step.loss for step in read_written_steps(folder)]


def test_a_trial_whose_checkpoint_is_gone_is_trained_again_to_the_same_bits(tmp_path):
    study = study_from_dict(tuned_study(tmp_path))
    oelm.run(study, out=tmp_path / "whole", arms=["baseline"], seeds=[0])
    for lr in ("1e-06", "0.003"):
        oelm.run(study, out=tmp_path / "runs", cells=[f"baseline/tune/optimizer.lr={lr}/seed-0"])
    kept = list((tmp_path / "runs").glob("**/checkpoints"))
    assert len(kept) == 1, "only the best trial so far keeps one"
    shutil.rmtree(kept[0])
    again = oelm.run(study, out=tmp_path / "runs", arms=["baseline"], seeds=[0])
    ((cell, record),) = again.records.items()
    assert [launch.step for launch in record.launches] == [0]
    one, other = (oelm.read_record(tmp_path / name / "tiny" / cell.folder) for name in ("runs", "whole"))
    assert one.test == other.test != {}


def test_arms_may_share_what_was_tuned_on_seeds_of_its_own(tmp_path):
    content = {**tuned_study(tmp_path, seeds=[100, 101, 102]), "seeds": [0]}
    study = study_from_dict(content)
    with pytest.raises(oelm.StudyError, match="not tuned yet"):
        run_cell(study, arm="baseline", seed=0, out=tmp_path / "runs")
    comparison = oelm.run(study, out=tmp_path / "runs")
    for arm in ("baseline", "oelm-freeze"):
        best = best_lr(tmp_path / "runs/tiny", arm, (100, 101, 102))
        record = comparison.records[Cell(arm=arm, seed=0)]
        assert record.spec.recipe.optimizer.lr == best
        assert f"{arm}: tuned to optimizer.lr = {best}" in str(comparison)


def test_the_table_shows_differences_seed_by_seed(comparison, whole):
    from oelm.analysis.text_table import results_as_dict

    data = json.loads(json.dumps(results_as_dict(comparison)))
    base, other = data["arms"]["baseline"], data["arms"]["oelm-freeze"]
    assert other["differences"] == {seed: other["final"][seed] - base["final"][seed] for seed in ("0", "1")}
    assert base["differences"] == {}
    assert other["trainable"] == base["trainable"] - 2 * 2 * 128 * 128
    shown = str(comparison)
    for difference in other["differences"].values():
        assert f"{difference:+.4f}" in shown
    assert "same other weights and saw the same batches" in shown
    assert other["comparison"]["n"] == 2
    again = oelm.load(whole.parent)
    assert str(again) == shown, "read later, they say the same"
    assert again.simple_baselines, "what a bag of words reaches is kept beside the records"


def test_a_plan_says_what_will_run_and_what_differs(study, finished, tmp_path):
    finished("baseline/seed-0")
    plan = oelm.plan(study, out=tmp_path / "runs")
    assert [(str(cell), status) for cell, status in plan.cells] == [
        ("baseline/seed-0", "done"),
        ("oelm-freeze/seed-0", "pending"),
        ("oelm-freeze/seed-1", "pending"),
        ("baseline/seed-1", "pending"),
    ]
    assert set(plan.differences) == {"init", "scale", "freeze"}
    assert plan.estimate.steps == 12
    trainable = {arm: counts.trainable for arm, counts in plan.estimate.counts.items()}
    assert trainable["baseline"] - trainable["oelm-freeze"] == 2 * 2 * 128 * 128
    assert plan.estimate.sizes["validation"] == 40
    assert "3 cells to run, 1 done" in str(plan)
    unmeasured = oelm.plan(study, out=tmp_path / "runs", measure=False)
    assert unmeasured.estimate is None


def test_language_modeling_reports_perplexity_per_token(tmp_path):
    path = tmp_path / "text.txt"
    path.write_text("<|endoftext|>".join(words for words, _ in tiny_study.texts(400, seed=3)))
    content = tiny_study.study(
        path,
        model={"name": "oelm-gpt", "preset": "mini-128"},
        data={
            "task": "text",
            "path": str(path),
            "max_length": 16,
            "validation": 40,
            "tokenizer": {"train": "bpe", "vocab": 300},
        },
    )
    content["compare"]["metric"] = "perplexity"
    record = run_cell(study_from_dict(content), arm="oelm-freeze", seed=0, out=tmp_path / "runs")
    metrics = record.test["final"].splits["held_out"]
    assert math.isclose(metrics["perplexity"], math.exp(metrics["loss"]))
    rows = parquet.read_table(tmp_path / "runs/tiny/oelm-freeze/seed-0/predictions.parquet").to_pylist()
    final = [row for row in rows if row["model"] == "final"]
    per_token = sum(row["loss"] for row in final) / sum(row["tokens"] for row in final)
    assert math.isclose(metrics["loss"], per_token)
    assert len(final) == 40, "a row a document: a tenth of them are held out for the test"
    assert metrics["perplexity"] < 300, "better than not knowing anything"


def test_options_of_the_loop_train_too(tmp_path):
    """Accumulation, bf16, gradient checkpointing, a tracker."""
    content = tiny_study.study(
        tiny_study.write_data(tmp_path / "data"),
        batch={"size": 4, "accumulate": 2},
        precision="bf16",
        gradient_checkpointing=True,
        budget={"steps": 4},
        evaluate={"every": 4},
        trackers=["tensorboard"],
    )
    record = run_cell(study_from_dict(content), arm="oelm-freeze", seed=0, out=tmp_path / "runs")
    assert record.status == "done", record.error
    assert list((tmp_path / "runs").rglob("events.out.tfevents*"))


class Interrupts(Progress):
    """Sends a signal to this process when a method is called for the first time."""

    def __init__(self, method):
        self.sent = False

        def send(*words, **named):
            if not self.sent:
                self.sent = True
                os.kill(os.getpid(), signal.SIGTERM)

        setattr(self, method, send)


def test_a_signal_while_the_cell_is_prepared_stops_at_once(study, tmp_path):
    with pytest.raises(oelm.Stopped, match="stopped at once"):
        oelm.run(study, out=tmp_path / "runs", progress=Interrupts("on_prepare"))
    assert oelm.run(study, out=tmp_path / "runs", seeds=[0]).records


def test_a_signal_at_the_end_of_a_cell_stops_before_the_next(study, tmp_path, monkeypatch):
    from oelm.train import cell

    written = cell.write_record

    def interrupted(folder, record):
        os.kill(os.getpid(), signal.SIGTERM)
        written(folder, record)

    monkeypatch.setattr(cell, "write_record", interrupted)
    with pytest.raises(oelm.Stopped, match="stopped after baseline/seed-0") as caught:
        oelm.run(study, out=tmp_path / "runs")
    assert caught.value.signal == signal.SIGTERM
    statuses = [status for _, status in oelm.plan(study, out=tmp_path / "runs", measure=False).cells]
    assert statuses == ["done", "pending", "pending", "pending"]


def test_a_stop_early_in_the_warm_up_is_no_failed_audit(tmp_path):
    """A first step of 5e-12 is below the rounding of most weights: nothing has moved, and nothing is wrong."""
    content = tiny_study.study(
        tiny_study.write_data(tmp_path / "data"),
        optimizer={"lr": 1e-6},
        schedule={"name": "linear", "warmup": 200_000},
        budget={"steps": 200_001},
        checkpoint={"every": 2},
    )
    study = study_from_dict(content)

    class StopsAfterTwo(Progress):
        def on_evaluation_end(self, step, metrics):
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(oelm.Stopped, match="the checkpoint is written"):
        run_cell(study, arm="oelm-freeze", seed=0, out=tmp_path / "runs", progress=StopsAfterTwo())
    assert read_state(tmp_path / "runs/tiny/oelm-freeze/seed-0") == "stopped"


def test_cells_of_one_study_are_refused_other_data(study, finished, tmp_path):
    finished("baseline/seed-0")
    elsewhere = tiny_study.write_data(tmp_path / "elsewhere", train=239)
    moved = load_study(tmp_path / "tiny.yaml", [f"recipe.data.path={elsewhere}"])
    with pytest.raises(oelm.StudyError, match="the data are not those"):
        oelm.run(moved, out=tmp_path / "runs", seeds=[0])
    copied = tiny_study.write_data(tmp_path / "copied")
    same = load_study(tmp_path / "tiny.yaml", [f"recipe.data.path={copied}"])
    assert run_cell(same, arm="oelm-freeze", seed=0, out=tmp_path / "runs").status == "done"


def test_an_arm_that_does_not_fit_the_model_is_refused_before_any_cell(tmp_path):
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"))
    content["arms"]["deep"] = {"init": "orthogonal", "freeze": "qk", "layers": "0-5"}
    progress = Asked()
    with pytest.raises(oelm.StudyError, match="arm 'deep' does not fit the model"):
        oelm.run(study_from_dict(content), out=tmp_path / "runs", progress=progress)
    assert progress.cells == []


def test_an_arm_whose_tuning_fails_is_left_out_and_the_others_go_on(tmp_path, monkeypatch):
    from oelm.train.loop import Loop

    step = Loop.step

    def breaking(self):
        if self.spec.arm == "oelm-freeze":
            raise RuntimeError("no luck")
        step(self)

    monkeypatch.setattr(Loop, "step", breaking)
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"), budget={"steps": 4}, evaluate={"every": 4})
    content |= {"tune": {"optimizer.lr": [1e-3, 3e-3]}, "seeds": [0]}
    comparison = oelm.run(study_from_dict(content), out=tmp_path / "runs")
    assert [cell.arm for cell in comparison.records] == ["baseline"]
    assert "excluded: oelm-freeze/seed-0: the tuning of oelm-freeze/seed-0 failed" in str(comparison)
    assert "no luck" in str(comparison)


def test_weights_that_are_no_numbers_at_the_last_step_are_diverged(study, tmp_path, monkeypatch):
    from oelm.train.loop import Loop

    step = Loop.step

    def spoiling(self):
        step(self)
        if self.state.step == self.total:
            with torch.no_grad():
                self.model.classifier.weight.fill_(math.nan)

    monkeypatch.setattr(Loop, "step", spoiling)
    assert run_cell(study, arm="baseline", seed=0, out=tmp_path / "runs").status == "diverged"


def test_a_damaged_log_of_steps_is_repaired(study, whole, tmp_path):
    folder = tmp_path / "runs/tiny/baseline/seed-0"
    with pytest.raises(oelm.Stopped):
        run_cell(study, arm="baseline", seed=0, out=tmp_path / "runs", progress=Interrupts("on_step"))
    with (folder / "steps.jsonl").open("a") as file:
        file.write('{"step": 9, "lo\0\0\0\n\0\0')
    record = run_cell(study, arm="baseline", seed=0, out=tmp_path / "runs")
    assert record.test == oelm.read_record(whole / "baseline/seed-0").test
    assert [row[0] for row in record.lr] == list(range(1, 13))


def test_a_log_that_has_lost_steps_is_said_and_left_out_of_the_results(study, tmp_path):
    folder = tmp_path / "runs/tiny/baseline/seed-0"
    with pytest.raises(oelm.Stopped):
        run_cell(study, arm="baseline", seed=0, out=tmp_path / "runs", progress=Interrupts("on_step"))
    lines = (folder / "steps.jsonl").read_text().splitlines(keepends=True)
    (folder / "steps.jsonl").write_text("".join(lines[:2] + lines[3:]))
    told = []
    progress = MessageProgress(told.append)
    assert run_cell(study, arm="baseline", seed=0, out=tmp_path / "runs", progress=progress).status == "done"
    assert any(f"steps.jsonl is damaged: of {len(lines)} steps, {len(lines) - 1}" in line for line in told)
    out = {out.where: str(out.why) for out in oelm.load(tmp_path / "runs").excluded}
    assert "its steps are not 1, 2, 3 and so on" in out["baseline/seed-0/steps.jsonl"]


def test_what_is_not_finite_on_the_test_split_is_diverged(study, tmp_path, monkeypatch):
    """On the validation split it was."""
    from oelm.train import loop

    evaluate = loop.evaluate

    def elsewhere(objective, split, **more):
        measured = evaluate(objective, split, **more)
        is_test = len(split) == 60
        return replace(measured, metrics={**measured.metrics, "loss": math.inf}) if is_test else measured

    monkeypatch.setattr(loop, "evaluate", elsewhere)
    record = run_cell(study, arm="baseline", seed=0, out=tmp_path / "runs")
    assert (record.status, record.test) == ("diverged", {})
    assert "the loss on the validation split is inf at step 12" in record.error.what, "the published name of its test"


def test_a_damaged_simple_baseline_is_made_again(tmp_path):
    study = load_study(tiny_study.make(tmp_path, budget={"steps": 2}))
    oelm.run(study, out=tmp_path / "runs", seeds=[0])
    path = tmp_path / "runs/tiny/simple_baseline.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"0.", b"1."))
    told = []
    results = oelm.run(study, out=tmp_path / "runs", seeds=[1], progress=MessageProgress(told.append))
    assert any("simple_baseline.json is damaged" in line and "it is made again" in line for line in told)
    assert path.read_bytes() == whole
    assert results.simple_baselines
    assert "simple_baseline.json" not in {out.where for out in results.excluded}
    newer = whole.replace(b'"format": 3', b'"format": 4')
    path.write_bytes(newer)
    (tmp_path / "runs/tiny/baseline/seed-1/record.json").unlink()
    oelm.run(study, out=tmp_path / "runs", seeds=[1], progress=MessageProgress(told.append))
    assert any("has format 4; this oelm reads format 3, and leaves it as it is" in line for line in told)
    assert path.read_bytes() == newer, "that of a newer oelm is not damaged"


def test_a_plan_shows_cells_of_another_study_as_changed(study, finished, tmp_path):
    finished("baseline/seed-0")
    changed = load_study(tmp_path / "tiny.yaml", ["recipe.budget.steps=99"])
    plan = oelm.plan(changed, out=tmp_path / "runs", measure=False)
    assert plan.cells[0][1] == "changed"
    assert "1 cell made with another study" in str(plan)
    assert "3 cells to run, 0 done" in str(plan)


def test_a_finished_cell_does_not_pass_for_one_on_other_data(study, finished, tmp_path):
    finished("baseline/seed-0", "oelm-freeze/seed-0")
    elsewhere = tiny_study.write_data(tmp_path / "elsewhere", train=239)
    moved = load_study(tmp_path / "tiny.yaml", [f"recipe.data.path={elsewhere}"])
    with pytest.raises(oelm.StudyError, match="the data are not those"):
        oelm.run(moved, out=tmp_path / "runs", seeds=[0])
