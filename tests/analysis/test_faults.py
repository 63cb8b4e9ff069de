"""The thirteen faults of the experiments that came before: each in a small set of records, beside a clean twin."""

from dataclasses import replace

import numpy as np
import pytest

from made_runs import (
    keep_predictions,
    launch,
    make_runs,
    make_text_runs,
    replace_at,
    seal_files,
    study_of,
    write_floor,
)
from oelm.analysis.checks.consistency import f1_impossible, speedup_above_ceiling
from oelm.analysis.checks.design import check_study
from oelm.analysis.results import load
from oelm.runs.predictions import Predictions
from oelm.runs.provenance import GitState
from oelm.runs.record import AuditOutcome
from oelm.study.cells import Cell

pytestmark = pytest.mark.slow

TUNE = {"optimizer.lr": [3e-5, 1e-4, 3e-4]}


def codes(results, severity=None):
    return {issue.code for issue in results.checks if severity in (None, issue.severity)}


def with_recipe(record, path, value):
    """The record of a cell that was trained with something else."""
    return replace_at(record, f"spec.recipe.{path}", value)


def test_the_clean_twin_is_clean(tmp_path):
    """Tuned, and with an arm that shows that the task can tell."""
    clean = load(make_runs(tmp_path, study_of(tune=TUNE), accuracy={"oelm-freeze": 0.8}))
    assert clean.checks == []
    assert clean.excluded == ()
    assert [one.verdict for one in clean.comparisons.values()] == ["equivalent", "worse"]


def only(arm, change):
    return lambda cell, record: change(record) if cell.arm == arm else record


# 1 ---------------------------------------------------------------------------------------------------------------


def test_1_a_baseline_that_was_reinitialised_too(tmp_path):
    arms = {
        "baseline": {"init": "orthogonalize", "scale": "unit", "freeze": "none"},
        "oelm-freeze": {"init": "orthogonalize", "scale": "unit", "freeze": "qk"},
    }
    study = study_of(arms=arms)
    assert {issue.code for issue in check_study(study) if issue.severity == "invalid"} == {"BASELINE-TREATED"}
    results = load(make_runs(tmp_path, study))
    assert results.comparisons["oelm-freeze"].verdict == "invalid"
    assert "BASELINE-TREATED" in str(results.comparisons["oelm-freeze"].message)
    own = study_of(arms={**arms, "baseline": {"init": "keep", "freeze": "none"}})
    assert "BASELINE-TREATED" not in {issue.code for issue in check_study(own)}


# 2 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "value", "code"),
    [
        ("optimizer.lr", 1e-3, "LR-DIFFERS"),
        ("schedule.name", "cosine", "SETTING-DIFFERS"),
        ("batch.size", 16, "SETTING-DIFFERS"),
        ("precision", "bf16", "SETTING-DIFFERS"),
        ("data.validation", 500, "SETTING-DIFFERS"),
        ("budget.steps", 200, "SETTING-DIFFERS"),
    ],
)
def test_2_another_setting_in_one_arm(tmp_path, path, value, code):
    runs = make_runs(tmp_path, change=only("oelm-freeze", lambda record: with_recipe(record, path, value)))
    results = load(runs)
    found = [issue for issue in results.checks if issue.code == code]
    assert [issue.where for issue in found] == ["oelm-freeze"]
    assert "not declared" in str(found[0].message)
    assert results.comparisons["oelm-freeze"].verdict == "invalid"
    assert results.comparisons["freeze-only"].verdict == "equivalent", "the others are not touched by it"


def test_2_a_declared_difference_is_no_better(tmp_path):
    study = study_of(
        arms={
            "baseline": {"init": "keep", "freeze": "none"},
            "freeze-only": {"init": "keep", "freeze": "qk", "overrides": {"optimizer.lr": 1e-3}},
        }
    )
    issue = next(issue for issue in check_study(study) if issue.code == "LR-DIFFERS")
    assert issue.severity == "invalid"
    assert "(declared in the study)" in str(issue.message)
    assert "0.001" in str(issue.message)


@pytest.mark.parametrize(
    ("name", "path", "value"),
    [
        ("device", "provenance.device", "another"),
        ("threads", "provenance.threads", 7),
        ("gpu", "provenance.gpu", "another"),
        ("processes", "processes.number", 2),  # with other dropout masks
    ],
)
def test_2_another_machine_is_said(tmp_path, name, path, value):
    def moved(record):
        return replace_at(record, path, value)

    results = load(make_runs(tmp_path, change=only("freeze-only", moved)))
    found = [issue for issue in results.checks if issue.code == "SETTING-DIFFERS"]
    assert [(issue.where, issue.severity) for issue in found] == [("freeze-only", "warn")]
    assert name in str(found[0].message)


def test_2_other_data_block(tmp_path):
    other = only("freeze-only", lambda record: replace_at(record, "start.data.data", "other rows"))
    results = load(make_runs(tmp_path, change=other))
    assert results.comparisons["freeze-only"].verdict == "invalid"


def resumed(record, **parts):
    """The record of a cell that was started somewhere else, and resumed where the others were trained."""
    return replace(record, launches=(launch(**parts), launch(step=50)))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("versions", {"torch": "2.12.0"}),
        ("oelm", "0.0.9"),
        ("python", "3.12.1"),
        ("code", GitState(commit="1" * 40, dirty=False)),
        ("processes", 2),
        ("device", "cuda"),
    ],
)
def test_2_resumed_with_something_else(tmp_path, name, value):
    def moved(cell, record):  # in all arms alike, so no difference between them shows it
        return resumed(record, **{name: value}) if cell.seed == 0 else record

    results = load(make_runs(tmp_path, change=moved))
    (found,) = [issue for issue in results.checks if issue.code == "SETTING-DIFFERS"]
    assert found.severity == "warn"
    assert found.places == ("baseline/seed-0", "freeze-only/seed-0", "oelm-freeze/seed-0")
    named = {"code": "commit", "versions": "versions.torch"}.get(name, name)
    assert f"resumed with something else: {named}: " in str(found.message)


def test_2_resumed_with_the_same(tmp_path):
    results = load(make_runs(tmp_path, change=lambda cell, record: resumed(record, host="another", time="later")))
    assert not codes(results) & {"SETTING-DIFFERS", "DIRTY-CODE"}


@pytest.mark.parametrize(("path", "value"), [("provenance.oelm", "0.0.9"), ("provenance.python", "3.12.1")])
def test_2_another_oelm_or_python_in_one_arm(tmp_path, path, value):
    results = load(make_runs(tmp_path, change=only("freeze-only", lambda record: replace_at(record, path, value))))
    (found,) = [issue for issue in results.checks if issue.code == "SETTING-DIFFERS"]
    assert (found.where, found.severity) == ("freeze-only", "warn")
    assert f"{value} | " in str(found.message)


@pytest.mark.parametrize("at", ["end", "start"])
def test_2_code_that_no_commit_has(tmp_path, at):
    dirty = GitState(commit="0" * 40, dirty=True)

    def changed(record):
        return replace_at(record, "provenance.code", dirty) if at == "end" else resumed(record, code=dirty)

    results = load(make_runs(tmp_path, change=only("freeze-only", changed)))
    (found,) = [issue for issue in results.checks if issue.code == "DIRTY-CODE"]
    assert (found.severity, found.arms, len(found.places)) == ("warn", ("freeze-only",), 5)


# 3 ---------------------------------------------------------------------------------------------------------------


def test_3_one_arm_tuned_and_the_other_not(tmp_path):
    study = study_of(tune=TUNE)
    fair = load(make_runs(tmp_path / "fair", study))
    assert "TUNING-UNEQUAL" not in codes(fair)

    def untuned(cell, record):
        return None if cell.arm == "baseline" and cell.point is not None else record

    unfair = load(make_runs(tmp_path / "unfair", study, change=untuned))
    found = [issue for issue in unfair.checks if issue.code == "TUNING-UNEQUAL"]
    unequal, unknown = found
    assert (unequal.places, unknown.places) == (("freeze-only", "oelm-freeze"), ("baseline",))
    assert "3 tuning runs for this arm, no tuning for baseline" in str(unequal.message)
    assert "cannot be recomputed" in str(unknown.message)
    assert all(one.verdict == "invalid" for one in unfair.comparisons.values())


def test_3_fewer_trials_for_one_arm(tmp_path):
    def fewer(cell, record):
        return None if cell.arm == "baseline" and cell.point == (("optimizer.lr", 3e-4),) else record

    results = load(make_runs(tmp_path, study_of(tune=TUNE), change=fewer))
    assert "TUNING-UNEQUAL" in codes(results, "invalid")


def test_3_a_choice_at_the_edge_of_the_grid(tmp_path):
    results = load(make_runs(tmp_path, study_of(tune=TUNE), best={"freeze-only": 2}))
    edge = [issue for issue in results.checks if issue.code == "TUNING-UNEQUAL"]
    assert [(issue.where, issue.severity) for issue in edge] == [("freeze-only", "warn")]
    assert "highest" in str(edge[0].message)
    differs = [issue for issue in results.checks if issue.code == "LR-DIFFERS"]
    assert [issue.severity for issue in differs] == ["note"], "each was chosen from the same grid"


def test_3_a_cell_that_was_not_made_with_its_best(tmp_path):
    def convenient(cell, record):
        return with_lr(record, 3e-4) if cell == Cell(arm="freeze-only", seed=1) else record

    results = load(make_runs(tmp_path, study_of(tune=TUNE), change=convenient))
    (found,) = [one for one in results.checks if one.code == "TUNING-UNEQUAL" and one.severity == "invalid"]
    assert (found.where, found.message.values["seeds"]) == ("freeze-only", (1,))
    assert "made with optimizer.lr=0.0003, while the records of its trials say that optimizer.lr=0.0001" in str(found)
    verdicts = {arm: one.verdict for arm, one in results.comparisons.items()}
    assert verdicts["freeze-only"] == "invalid"
    assert verdicts["oelm-freeze"] != "invalid"


def test_3_a_seed_with_a_rate_of_its_own_that_nothing_has_chosen(tmp_path):
    def convenient(cell, record):
        return with_lr(record, 3e-4) if cell == Cell(arm="freeze-only", seed=1) else record

    results = load(make_runs(tmp_path, change=convenient, examples=300, steps=20))
    (found,) = [one for one in results.checks if one.severity == "invalid"]
    assert (found.code, found.where) == ("LR-DIFFERS", "freeze-only")
    assert "0.0001 (seed 0, 2, 3, 4) / 0.0003 (seed 1)" in str(found)
    assert [one.verdict == "invalid" for one in results.comparisons.values()] == [True, False]


def test_3_every_seed_may_have_a_best_of_its_own(tmp_path):
    """What a nested tuning is for: no two seeds need the same, and nothing is unequal about that."""

    def other_best(cell, record):
        if cell.arm != "freeze-only" or cell.seed != 1:
            return record
        if cell.point is None:
            return with_lr(record, 3e-5)
        if cell.point == (("optimizer.lr", 3e-5),):
            rows = [replace(row, metrics={**row.metrics, "accuracy": 0.99}) for row in record.evaluations]
            return replace(record, evaluations=tuple(rows))
        return record

    results = load(make_runs(tmp_path, study_of(tune=TUNE), change=other_best))
    assert [one.severity for one in results.checks if one.code == "TUNING-UNEQUAL"] == ["note"], "one seed at the edge"
    assert results.tuned("freeze-only")["optimizer.lr"] == {0: 1e-4, 1: 3e-5, 2: 1e-4, 3: 1e-4, 4: 1e-4}
    assert results.comparisons["freeze-only"].verdict != "invalid"


@pytest.mark.parametrize(("spread", "fires"), [(0.08, True), (0.0005, False)])
def test_3_a_shared_choice_within_the_noise_of_its_seeds(tmp_path, spread, fires):
    def noisy(cell, record):
        if cell.point is None:
            return record
        luck = spread * np.random.default_rng([cell.seed, round(1e6 * cell.point[0][1])]).standard_normal()
        rows = [
            replace(row, metrics={**row.metrics, "accuracy": min(1.0, row.metrics["accuracy"] + luck)})
            for row in record.evaluations
        ]
        return replace(record, evaluations=tuple(rows))

    shared = study_of(tune={**TUNE, "seeds": [100, 101, 102]})
    results = load(make_runs(tmp_path, shared, change=noisy))
    assert ("TUNING-NOISE" in codes(results)) == fires


def with_lr(record, lr):
    changed = with_recipe(record, "optimizer.lr", lr)
    factor = lr / record.spec.recipe.optimizer.lr
    return replace(changed, lr=tuple((step, rate * factor) for step, rate in record.lr))


# 4 ---------------------------------------------------------------------------------------------------------------


def test_4_selecting_on_the_split_that_is_reported(tmp_path):
    def same(cell, record):
        return replace_at(record, "start.data.files", {"train": ("aa",), "select": ("bb",), "validation": ("bb",)})

    results = load(make_runs(tmp_path, change=same))
    assert "SAME-SPLIT" in codes(results, "invalid")
    assert {one.verdict for one in results.comparisons.values()} == {"invalid"}


def test_4_the_best_is_not_the_final(tmp_path):
    """Both are kept apart, and the verdict is on the final one."""

    def lucky(cell, record):
        if cell.arm != "oelm-freeze":
            return record
        return replace_at(record, "test.best.splits.validation.accuracy", record.value("accuracy") + 0.05)

    results = load(make_runs(tmp_path, accuracy={"oelm-freeze": 0.87}, change=lucky))
    assert results.comparisons["oelm-freeze"].verdict == "worse"
    assert min(results.compare("oelm-freeze", model="best").differences.values()) > 0


# 5 ---------------------------------------------------------------------------------------------------------------


def test_5_a_baseline_at_chance(tmp_path):
    results = load(make_runs(tmp_path, accuracy={"baseline": 0.5, "freeze-only": 0.9, "oelm-freeze": 0.9}))
    found = [issue for issue in results.checks if issue.code == "COLLAPSED"]
    assert [issue.where for issue in found] == ["baseline"]
    assert "learned nothing in seeds 0, 1, 2, 3, 4" in str(found[0].message)
    assert {one.verdict for one in results.comparisons.values()} == {"invalid"}, "+40 points over nothing are nothing"


def test_5_a_treated_arm_at_chance_is_a_result(tmp_path):
    results = load(make_runs(tmp_path, accuracy={"oelm-freeze": 0.5}))
    assert codes(results) == {"COLLAPSED", "UNTUNED"}
    assert results.comparisons["oelm-freeze"].verdict == "worse"


EDGE = {"optimizer.lr": [1e-4, 3e-5]}  # two values are all edge


@pytest.mark.parametrize(
    ("floor", "tune", "severity"),
    [
        (0.94, None, "invalid"),
        (0.94, EDGE, "invalid"),
        (0.94, TUNE, "warn"),  # as good as it gets
        (0.9015, None, "warn"),  # by chance, perhaps
        (0.9015, TUNE, "warn"),
        (0.80, None, None),
        (0.80, TUNE, None),
    ],
)
def test_5_a_baseline_below_a_bag_of_words(tmp_path, floor, tune, severity):
    study = study_of(tune=tune) if tune else study_of()
    runs = make_runs(tmp_path, study, accuracy={"freeze-only": 0.97, "oelm-freeze": 0.97})
    write_floor(runs, accuracy=floor)
    results = load(runs)
    found = [issue for issue in results.checks if issue.code == "BELOW-SIMPLE-BASELINE"]
    assert [(issue.severity, issue.arms) for issue in found] == ([(severity, ("baseline",))] if severity else [])
    one = results.comparisons["oelm-freeze"]
    assert one.verdict == ("invalid" if severity == "invalid" else "better")
    said = "not known to do better than a simple model without attention: baseline" in str(one)
    assert said == (severity == "warn"), "a warning is in the sentence itself"
    assert all(("nor certainly worse" in str(issue.message)) == (floor < 0.91) for issue in found)


@pytest.mark.parametrize("paired", [True, False])
def test_5_what_the_simple_model_has_right_makes_it_certain(tmp_path, paired):
    """1.5 points below: within chance of 2,000 examples, but not where both err on the same ones."""
    runs = make_runs(tmp_path)
    results = load(runs)
    right = results.predictions(Cell(arm="baseline", seed=0)).scores("accuracy") > 0
    right[np.flatnonzero(~right)[:30]] = True
    write_floor(runs, accuracy=float(right.mean()), right=right if paired else None)
    (found,) = [one for one in load(runs).checks if one.code == "BELOW-SIMPLE-BASELINE" and "baseline" in one.arms]
    assert found.severity == ("invalid" if paired else "warn")


def test_5_a_treated_arm_below_a_bag_of_words_is_a_result(tmp_path):
    runs = make_runs(tmp_path, accuracy={"baseline": 0.95, "freeze-only": 0.95, "oelm-freeze": 0.85})
    write_floor(runs, accuracy=0.9)
    results = load(runs)
    (found,) = [one for one in results.checks if one.code == "BELOW-SIMPLE-BASELINE"]
    assert (found.severity, found.arms) == ("warn", ("oelm-freeze",))
    assert results.comparisons["oelm-freeze"].verdict == "worse"
    assert "without attention: oelm-freeze" in str(results.comparisons["oelm-freeze"])
    assert "without attention" not in str(results.comparisons["freeze-only"])


@pytest.mark.parametrize(("floor", "severity"), [(9.0, "invalid"), (9.99, "warn"), (11.0, None)])
def test_5_a_language_model_below_bigrams(tmp_path, floor, severity):
    runs = make_text_runs(tmp_path, perplexity={"freeze-only": 8.0, "oelm-freeze": 8.0})
    write_floor(runs, perplexity=floor)
    found = [one for one in load(runs).checks if one.code == "BELOW-SIMPLE-BASELINE"]
    assert [one.severity for one in found] == ([severity] if severity else [])


def test_5_a_final_far_below_its_best(tmp_path):
    def fallen(record):
        values = [0.7, 0.78, 0.75, 0.7, 0.69]
        rows = [
            replace_at(row, "metrics.accuracy", value) for row, value in zip(record.evaluations, values, strict=True)
        ]
        return replace(record, evaluations=tuple(rows))

    results = load(make_runs(tmp_path, change=only("baseline", fallen)))
    found = [issue for issue in results.checks if issue.code == "FINAL-BELOW-BEST"]
    assert [len(issue.places) for issue in found] == [5]
    assert "0.6900" in str(found[0].message)
    assert "0.7800" in str(found[0].message)


# 6 ---------------------------------------------------------------------------------------------------------------


def test_6_a_schedule_that_does_nothing(tmp_path):
    constant = only("baseline", lambda record: replace(record, lr=tuple((step, 1e-4) for step, _ in record.lr)))
    results = load(make_runs(tmp_path, change=constant))
    found = [issue for issue in results.checks if issue.code == "INERT-SCHEDULE"]
    assert "every step" in str(found[0].message)
    assert {one.verdict for one in results.comparisons.values()} == {"invalid"}


@pytest.mark.parametrize(("clip", "code"), [(100.0, "CLIP-INERT"), (0.1, "CLIP-ALWAYS")])
def test_6_clipping_that_does_nothing_or_everything(tmp_path, clip, code):
    study = study_of()
    recipe = {**study.to_dict()["recipe"], "max_grad_norm": clip}
    assert code in codes(load(make_runs(tmp_path, study_of(recipe=recipe))), "note")


def test_6_a_last_step_that_is_not_measured(tmp_path):
    unseen = only("baseline", lambda record: replace(record, evaluations=record.evaluations[:-1]))
    results = load(make_runs(tmp_path, change=unseen))
    assert "the last step was not measured" in {str(issue.message) for issue in results.checks}


# 7 ---------------------------------------------------------------------------------------------------------------


def test_7_a_binary_f1_on_three_classes():
    counts = (3479, 3123, 3213)  # MNLI, matched
    fires = f1_impossible(accuracy="0.8344", f1="0.8885", classes=3, class_counts=counts, average="macro")
    assert [issue.code for issue in fires] == ["F1-IMPOSSIBLE"]
    assert not f1_impossible(accuracy="0.8344", f1="0.8340", classes=3, class_counts=counts, average="macro")


@pytest.mark.parametrize("metric", ["accuracy", "loss"])
def test_7_a_metric_of_one_shard_or_of_batch_means(tmp_path, metric):
    """It is not what the kept predictions give."""

    def shard(record):
        return replace_at(record, f"test.final.splits.validation.{metric}", record.value(metric) + 10 / 2000)

    results = load(make_runs(tmp_path, change=only("freeze-only", shard)))
    assert codes(results, "invalid") == {"NOT-REPRODUCED"}
    assert results.comparisons["freeze-only"].verdict == "invalid"
    assert results.comparisons["oelm-freeze"].verdict != "invalid"


def test_7_an_accuracy_that_is_no_count(tmp_path):
    def rounded(record):
        rows = tuple(replace_at(row, "metrics.accuracy", 0.83337) for row in record.evaluations)
        return replace(record, evaluations=rows)

    assert "GRIM" in codes(load(make_runs(tmp_path, change=only("baseline", rounded))))


@pytest.mark.parametrize("kept", [0, 1999, 2000])
def test_7_predictions_that_are_missing(tmp_path, kept):
    runs = make_runs(tmp_path)
    place = runs / "freeze-only" / "seed-1"
    whole = load(runs).predictions(Cell(arm="freeze-only", seed=1))
    part = {name: values[:kept] for name, values in vars(whole).items() if values is not None}
    keep_predictions(place, Predictions(**part))
    found = [one for one in load(runs).checks if one.message.key == "predictions-missing"]
    assert [(one.code, one.severity, one.where) for one in found] == (
        [("NOT-REPRODUCED", "warn", "freeze-only/seed-1")] if kept < 2000 else []
    )


def test_7_predictions_that_were_deleted(tmp_path):
    runs = make_runs(tmp_path)
    for seed in range(5):
        (runs / "freeze-only" / f"seed-{seed}" / "predictions.parquet").unlink()
    (found,) = [one for one in load(runs).checks if one.code == "NOT-REPRODUCED"]
    assert (found.severity, found.arms, len(found.places)) == ("warn", ("freeze-only",), 5)


# 8 ---------------------------------------------------------------------------------------------------------------

CONTROLS = {
    "baseline": {"init": "keep", "freeze": "none"},
    "oelm-freeze": {"init": "orthogonalize", "scale": "unit", "freeze": "qk"},
    "oelm-random": {"init": "gaussian", "scale": 0.02, "freeze": "qk"},
}
H = {"ortho": {"statement": "it is the orthogonality", "rule": "above", "margin": 0.0}}


def test_8_a_control_of_another_scale_that_erases_pretraining(tmp_path):
    hypotheses = {"ortho": {**H["ortho"], "estimand": "accuracy(oelm-freeze) - accuracy(oelm-random)"}}

    def heads(cell, record):
        spread = {"oelm-freeze": 3.26, "oelm-random": 1.0}.get(cell.arm, 2.0)
        return replace_at(record, "start.heads.logit_spread", (spread, spread))

    study = study_of(arms=CONTROLS, hypotheses=hypotheses)
    results = load(make_runs(tmp_path, study, accuracy={"oelm-random": 0.8}, change=heads))
    pair = [issue for issue in results.checks if issue.arms == ("oelm-freeze", "oelm-random")]
    assert {issue.code for issue in pair} >= {"SCALE-CONFOUND", "PRETRAINED-ERASED"}
    assert "3.26 times" in str(next(issue for issue in pair if issue.code == "SCALE-CONFOUND").message)
    assert results.hypotheses[0].status == "invalid"
    assert results.comparisons["oelm-freeze"].verdict != "invalid", "against the baseline it is what it says"


def test_8_a_control_that_differs_in_nothing_else(tmp_path):
    arms = {
        "baseline": {"init": "keep", "freeze": "none"},
        "oelm-freeze": {"init": "orthogonal", "scale": "match", "freeze": "qk"},
        "oelm-random": {"init": "gaussian", "scale": "match", "freeze": "qk"},
        "freeze-only": {"init": "keep", "freeze": "qk"},
    }
    hypotheses = {"ortho": {**H["ortho"], "estimand": "accuracy(oelm-freeze) - accuracy(oelm-random)"}}
    study = study_of(arms=arms, hypotheses=hypotheses)
    results = load(make_runs(tmp_path, study, accuracy={"oelm-random": 0.8}))
    assert not codes(results) & {"SCALE-CONFOUND"}
    assert results.hypotheses[0].status == "supported"


# 9 ---------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["start.weights", "batches"])
def test_9_arms_of_a_seed_that_did_not_start_alike(tmp_path, path):
    moved = only("oelm-freeze", lambda record: replace_at(record, path, "others"))
    results = load(make_runs(tmp_path, change=moved))
    assert codes(results, "invalid") == {"UNPAIRED"}
    assert results.comparisons["oelm-freeze"].verdict == "invalid"
    assert results.comparisons["freeze-only"].verdict == "equivalent"


@pytest.mark.parametrize("missing", ["one", "both"])
def test_9_hashes_that_are_missing(tmp_path, missing):
    """Two that nobody knows are not the same."""
    arms = ("baseline", "oelm-freeze") if missing == "both" else ("oelm-freeze",)

    def unknown(cell, record):
        return replace(record, batches=None) if cell.arm in arms and cell.seed == 1 else record

    results = load(make_runs(tmp_path, change=unknown))
    (found,) = [issue for issue in results.checks if issue.code == "UNPAIRED"]
    assert found.severity == "invalid"
    assert "seed 1: the hashes of batches are missing" in str(found.message)
    assert results.comparisons["oelm-freeze"].verdict == "invalid"
    assert (results.comparisons["freeze-only"].verdict == "invalid") == (missing == "both")


# 10 --------------------------------------------------------------------------------------------------------------


def test_10_a_count_without_buffers(tmp_path):
    def unseen(record):
        return replace_at(record, "counts.total", record.counts.trainable)

    results = load(make_runs(tmp_path, change=only("freeze-only", unseen)))
    assert codes(results, "invalid") == {"COUNT-MISSES-BUFFERS"}


def test_10_a_frozen_weight_that_moved(tmp_path):
    def moved(record):
        return replace(record, audits=(AuditOutcome(step=100, passed=False, findings=("layer 5 moved",)),))

    results = load(make_runs(tmp_path, change=only("freeze-only", moved)))
    assert codes(results, "invalid") == {"AUDIT-FAILED"}
    assert results.comparisons["freeze-only"].verdict == "invalid"


# 11 --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("share", "fires"), [(0.85, True), (0.03, False)])
def test_11_timing_the_padding(tmp_path, share, fires):
    def padded(cell, record):
        return replace_at(record, "start.padding", share)

    assert ("PADDING-TIMED" in codes(load(make_runs(tmp_path, change=padded)))) == fires


# 12 --------------------------------------------------------------------------------------------------------------


def started(record, hour):
    return replace(record, launches=(launch(time=f"2026-11-16T{hour:02}:00:00+0000"),))


def test_12_whole_runs_in_a_fixed_order(tmp_path):
    arms = ["baseline", "freeze-only", "oelm-freeze"]

    def fixed(cell, record):
        return started(record, 3 * cell.seed + arms.index(cell.arm))

    def turned(cell, record):
        place = arms.index(cell.arm)
        return started(record, 3 * cell.seed + (place if cell.seed % 2 else 2 - place))

    assert "FIXED-ORDER" in codes(load(make_runs(tmp_path / "fixed", change=fixed)))
    assert "FIXED-ORDER" not in codes(load(make_runs(tmp_path / "turned", change=turned)))


def test_12_a_speed_up_above_the_ceiling(tmp_path):
    assert [f.code for f in speedup_above_ceiling(baseline="3h13", treated="2h32")] == ["SPEEDUP-ABOVE-CEILING"]
    assert not speedup_above_ceiling(baseline="3h13", treated="3h03")
    runs = make_runs(tmp_path)
    assert "SPEEDUP-ABOVE-CEILING" not in codes(load(runs))
    quicken(runs)
    assert "SPEEDUP-ABOVE-CEILING" in codes(load(runs), "warn")
    quicken(runs := make_runs(tmp_path / "one", study_of(seeds=[0])))
    assert "SPEEDUP-ABOVE-CEILING" in codes(load(runs), "note"), "of one pair nobody knows the error"


def quicken(runs):
    for log in (runs / "freeze-only").glob("seed-*/steps.jsonl"):
        log.write_text(log.read_text().replace('"seconds": 0.2', '"seconds": 0.1'))
        seal_files(log.parent)


# 13 --------------------------------------------------------------------------------------------------------------


def test_13_a_resume_that_starts_the_schedule_anew(tmp_path):
    def restarted(record):
        rates = [rate for _, rate in record.lr]
        half = len(rates) // 2
        anew = rates[:half] + rates[: len(rates) - half]
        return replace(record, lr=tuple((step, rate) for (step, _), rate in zip(record.lr, anew, strict=True)))

    results = load(make_runs(tmp_path, change=only("oelm-freeze", restarted)))
    assert codes(results, "invalid") == {"INERT-SCHEDULE"}
    assert "step 51" in str(next(issue for issue in results.checks).message)


def test_13_a_resume_that_loses_its_place_in_the_data(tmp_path):
    lost = only("oelm-freeze", lambda record: replace(record, batches="twice the same"))
    assert codes(load(make_runs(tmp_path, change=lost)), "invalid") == {"UNPAIRED"}
