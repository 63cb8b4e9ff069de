"""Verdicts on claims: by counting at once, by records at the scale that they have, over several studies; or none."""

import copy
import json
from dataclasses import replace

import pytest
import torch
from transformers import BertConfig, BertForSequenceClassification
from typer.testing import CliRunner

import oelm
from made_bench import write_bench
from made_runs import make_runs, replace_at, study_of
from oelm import yaml
from oelm.analysis.results import read_results
from oelm.claims import decide
from oelm.claims.counting import count_arm
from oelm.claims.judge import judge_claim
from oelm.claims.load import ledger_from_dict, load_ledger, shipped_ledgers
from oelm.cli.claims import claims_app
from oelm.cli.main import app
from oelm.data.tasks import task_named
from oelm.heads.count import freezing_savings
from oelm.models.gpt import OelmGPTConfig, OelmGPTForCausalLM, OelmGPTForSequenceClassification
from oelm.runs.lock import lock_study
from oelm.runs.record import ValidationScore
from oelm.study.load import load_study
from oelm.study.shipped import shipped_studies
from oelm.text.messages import translate

pytestmark = pytest.mark.slow

RAW = yaml.read(shipped_ledgers()["oelm-first"])
CHANGES = decide._changes


@pytest.fixture(autouse=True)
def _as_shipped(monkeypatch):
    """Studies of a given outcome are taken for the shipped ones whose names they have, unless that is the question."""
    monkeypatch.setattr(decide, "_changes", lambda study, arms: [])


@pytest.fixture(scope="module")
def ledger():
    return load_ledger()


def claim_with(name, *tests):
    """A shipped claim with other tests."""
    data = copy.deepcopy(RAW)
    data["claims"] = {name: {**data["claims"][name], "tests": list(tests)}}
    return ledger_from_dict(data).claims[name]


def plain_test(name, number=0, **changes):
    """A test of a shipped claim as plain data; `...` takes a field away."""
    data = {**copy.deepcopy(RAW["claims"][name]["tests"][number]), **changes}
    return {field: value for field, value in data.items() if value is not ...}


def verdict(claim, *results):
    return judge_claim(claim, results).verdict


# -- by counting ---------------------------------------------------------------------------------------------------


def model_of(study):
    """The real model of a shipped study, without its weights."""
    recipe, classes = study.recipe, len(oelm.data.tasks.TASKS[study.recipe.data.task].labels)
    with torch.device("meta"):
        if recipe.model.name == "oelm-gpt":
            sizes = {"causal": recipe.model.causal, "num_labels": classes or 2}
            if recipe.model.context is not None:
                sizes["max_position_embeddings"] = recipe.model.context
            config = OelmGPTConfig.preset(recipe.model.preset, **sizes)
            return (OelmGPTForSequenceClassification if classes else OelmGPTForCausalLM)(config)
        sizes = {"num_hidden_layers": 6, "hidden_size": 384, "intermediate_size": 1536}
        config = BertConfig(num_labels=classes, **(sizes if recipe.model.name == "minilm-l6" else {}))
        return BertForSequenceClassification(config)


def test_what_is_counted_is_what_the_real_model_has():
    """Every arm of every shipped study that is counted, against `oelm.count`."""
    counted = 0
    for name in shipped_studies():
        study = load_study(name)
        found = {name: count_arm(study, name) for name, arm in study.arms.items() if not arm.freezes_backbone}
        if None in found.values():
            tokenizer, task = study.recipe.data.tokenizer, task_named(study.recipe.data.task)
            assert (
                (tokenizer is not None and tokenizer.train is not None)  # its vocabulary is known when it is trained
                or study.recipe.model.name not in ("oelm-gpt", "google-bert/bert-base-uncased", "minilm-l6")
                or task.kind in ("tokens", "qa", "seq2seq")
                or (task.is_own and task.kind == "classification")  # its labels are known when they are found
            ), name
            continue
        model = model_of(study)
        real = oelm.count(model)
        for arm, counts in found.items():
            frozen = freezing_savings(model, study.arms[arm].treatment).frozen
            assert (counts.total, counts.qk, counts.frozen) == (real.total, real.qk, frozen), (name, arm)
            counted += 1
    assert counted > 70


def test_layers_roles_and_biases_are_counted():
    parts = {
        "one": {"freeze": "q", "layers": "first:0.5"},
        "other": {"freeze": "qk", "bias": "train", "layers": [0, 5]},
    }
    study = study_of(arms={"baseline": {"freeze": "none"}, **parts})
    model = model_of(study)
    for arm in parts:
        assert count_arm(study, arm).frozen == freezing_savings(model, study.arms[arm].treatment).frozen
    assert count_arm(study, "baseline").frozen == 0


def test_what_an_adapter_or_a_part_trains_is_not_counted_from_the_treatment():
    study = load_study("bert-sst2-peft")
    assert {arm for arm in study.arms if count_arm(study, arm) is None} == {"lora", "bitfit", "linear-probe"}


@pytest.mark.parametrize(
    ("name", "status", "numbers"),
    [
        ("C7", "supported", "95,309,570 of 109,483,778 by counting, -12.9464%"),
        ("C10", "refuted", "trainable(oelm-nofreeze) < 41,850,000, measured 44,896,768 by counting"),
        ("C14", "refuted", "41,751,040 of 44,896,768 by counting, -7.0066%"),
        ("C17", "refuted", "109,483,778 of 109,483,778"),
    ],
)
def test_claims_about_counts_are_decided_at_once(ledger, name, status, numbers):
    found = verdict(ledger.claims[name])
    assert found.status == status
    assert numbers in str(found.tests[0].message)
    assert str(found.message) == f"{status} ({ledger.claims[name].tests[0].scale})"


def test_a_count_decides_by_its_margin():
    """The clean twins: what would have been right to say."""
    seven = plain_test("C14", margin=0.935)
    assert verdict(claim_with("C14", seven)).status == "supported"
    assert verdict(claim_with("C7", plain_test("C7", margin=0.865))).status == "refuted", "13.5 % would have been wrong"


def test_what_is_beside_a_verdict_does_not_decide(ledger):
    """The plan's hypothesis and its pass rule contradict each other: both are told, and the claim is the first."""
    found = verdict(ledger.claims["C14"])
    assert [one.status for one in found.tests] == ["refuted", "supported"]
    assert str(found.message) == "refuted (GPT Medium-512)"
    both = claim_with("C14", plain_test("C14", 0), plain_test("C14", 1, decides=...))
    assert str(verdict(both).message) == "refuted (GPT Medium-512), but supported (GPT Medium-512)"
    turned = claim_with("C14", plain_test("C14", 1, decides=...), plain_test("C14", 0, decides=False))
    assert verdict(turned).status == "supported"


# -- by records ----------------------------------------------------------------------------------------------------

ARMS = {"baseline": {"init": "keep", "freeze": "none"}, "oelm-freeze": {"init": "orthogonal", "freeze": "qk"}}


def runs_of(root, name, *, task="sst2", baseline=0.9, treated=0.9, seeds=5, stage=(), **options):
    recipe = study_of().to_dict()["recipe"]
    recipe["data"]["task"] = task
    study = study_of(study=name, recipe=recipe, seeds=list(range(seeds)), second_stage=list(stage), arms=ARMS)
    accuracy = {"baseline": baseline, "oelm-freeze": treated}
    return read_results(make_runs(root, study, accuracy=accuracy, **{"examples": 1000, "steps": 10, **options}))


@pytest.mark.parametrize(("treated", "status"), [(0.9, "supported"), (0.8, "refuted"), (0.88, "inconclusive")], ids=str)
def test_a_small_study_decides_at_its_own_scale(tmp_path, ledger, treated, status):
    found = verdict(ledger.claims["C1"], runs_of(tmp_path, "minilm-sst2", treated=treated))
    own, small = found.tests
    assert (found.status, small.status) == (status, status)
    assert own.status == "out of reach here"
    assert str(found.message) == (f"{status} (MiniLM-L6, SST-2, CPU)" if status != "inconclusive" else status)
    assert (found.scale is None) == (status == "inconclusive")
    assert small.value == pytest.approx(treated - 0.9, abs=0.01)
    assert small.interval.contains(small.value)
    assert str(small.message).startswith(f"{status}: accuracy(oelm-freeze) - accuracy(baseline) > -0.02, measured ")
    assert "5 seeds" in str(small.message)


def test_the_commands_read_the_records(tmp_path):
    runs_of(tmp_path, "minilm-sst2", treated=0.8)
    listed = CliRunner().invoke(claims_app, [str(tmp_path)]).output
    assert "verdict  refuted (MiniLM-L6, SST-2, CPU)\n" in listed
    checked = CliRunner().invoke(claims_app, ["check", "C1", "--runs", str(tmp_path), "--json"]).output
    data = json.loads(checked)["C1"]
    assert data["verdict"]["scale"]["en"] == "MiniLM-L6, SST-2, CPU"
    small = data["tests"][1]
    assert small["low"] < small["value"] < small["high"] < small["margin"] < 0


def test_of_two_runs_of_a_study_neither_decides(tmp_path, ledger):
    """Whichever were taken, the first or the last, who has both could choose the verdict."""
    good, bad = (runs_of(tmp_path / name, "minilm-sst2", treated=treated) for name, treated in (("1", 0.9), ("2", 0.8)))
    assert [verdict(ledger.claims["C1"], one).status for one in (good, bad)] == ["supported", "refuted"]
    for order in ((good, bad), (bad, good)):
        found = verdict(ledger.claims["C1"], *order)
        assert str(found.message) == "inconclusive: several runs of minilm-sst2"
        assert f"nothing says which of them counts: show one of {order[0].folder}" in str(found.tests[1].message)
    assert verdict(ledger.claims["C1"], good, good).status == "supported", "one run, named twice, is one"
    says = "several runs of minilm-sst2"
    assert says in CliRunner().invoke(claims_app, [str(tmp_path)]).output
    report = CliRunner().invoke(app, ["report", str(tmp_path / "1"), str(tmp_path / "2"), "--format", "md"])
    assert "is there twice" in str(report.exception), "and one report over both there is not"


def test_scales_that_disagree_are_both_named(tmp_path, ledger):
    results = [runs_of(tmp_path, "bert-sst2-fair"), runs_of(tmp_path, "minilm-sst2", treated=0.8)]
    found = verdict(ledger.claims["C1"], *results)
    assert str(found.message) == "supported (BERT-base, SST-2), but refuted (MiniLM-L6, SST-2, CPU)"
    assert "\uff0c但被推翻\uff08MiniLM-L6" in translate(found.message).zh
    turned = verdict(ledger.claims["C1"], *reversed(results))
    assert turned.message == found.message, "the order of the ledger counts, and no other"


def test_a_study_that_was_not_run_as_shipped_decides_nothing(tmp_path, ledger, monkeypatch):
    """Three steps of training make all arms alike, and would support that freezing costs nothing."""
    results = runs_of(tmp_path, "minilm-sst2")
    assert verdict(ledger.claims["C1"], results).status == "supported"
    monkeypatch.setattr(decide, "_changes", CHANGES)
    found = verdict(ledger.claims["C1"], results)
    assert (found.status, found.tests[1].status) == ("inconclusive", "inconclusive")
    said = str(found.tests[1].message)
    assert said.startswith("inconclusive: accuracy(oelm-freeze) - accuracy(baseline) > -0.02, measured ")
    assert "; it decides nothing, as it was not run as shipped: " in said
    assert "recipe.budget.steps: was " in said


def test_what_has_no_effect_and_other_arms_are_no_change():
    shipped = load_study("minilm-sst2")
    copied = replace_at(shipped, "recipe.data.path", "a/local/copy")
    other = replace_at(shipped, "arms.freeze-only.treatment.freeze", "q")
    for study in (shipped, copied, other):
        assert CHANGES(study, ("oelm-freeze", "baseline")) == []
    assert CHANGES(other, ("freeze-only", "baseline")) == ["arms.freeze-only.treatment.freeze: was 'qk', is 'q'"]
    assert CHANGES(replace(shipped, seeds=(0, 1)), ("baseline",)) != []


@pytest.mark.parametrize("metric", ["accuracy", "curve_loss", "peak_memory", "training_seconds"])
def test_a_study_that_was_changed_after_the_start_decides_nothing(tmp_path, metric):
    claim = claim_with("C1", plain_test("C1", 1, estimand=f"{metric}(oelm-freeze) - {metric}(baseline)"))
    results = runs_of(tmp_path, "minilm-sst2", examples=60)
    assert "CHANGED-AFTER-START" not in str(verdict(claim, results).tests[0].message)
    data = results.study.to_dict()
    data["recipe"]["optimizer"]["lr"] = 0.5
    (results.folder / "study.json").write_text(json.dumps(data))
    found = verdict(claim, read_results(results.folder))
    assert found.status == "inconclusive"
    assert "cannot be judged (CHANGED-AFTER-START" in str(found.tests[0].message)


def test_the_tests_of_a_claim_share_the_5_percent(tmp_path):
    """Certain by itself at this accuracy, and not as one of two."""
    results = runs_of(tmp_path, "minilm-sst2", treated=0.887)
    one = plain_test("C1", 1)
    alone = verdict(claim_with("C1", one), results)
    assert alone.status == "supported"
    both = verdict(claim_with("C1", plain_test("C1", 0), one), results)
    assert both.status == "inconclusive", "also where the other was not run"
    assert "certain by itself, and not as one of 2" in str(both.tests[1].message)
    beside = verdict(claim_with("C1", plain_test("C1", 0, decides=False), one), results)
    assert beside.status == "supported"


def test_a_second_stage_is_another_look(tmp_path):
    """Certain at 5 %, and not at the half of it that each of two looks has."""
    claim = claim_with("C1", plain_test("C1", 1))
    once = verdict(claim, runs_of(tmp_path / "once", "minilm-sst2", treated=0.887))
    assert once.status == "supported"
    twice = verdict(claim, runs_of(tmp_path / "twice", "minilm-sst2", treated=0.887, stage=[8, 9]))
    assert (twice.status, twice.tests[0].value) == ("inconclusive", once.tests[0].value)
    assert "and not at the 2.5 % that each of the looks has" in str(twice.tests[0].message)


def test_what_a_check_blocks_is_not_decided(tmp_path, ledger):
    def faster(cell, record):
        return replace_at(record, "spec.recipe.optimizer.lr", 5e-4 if cell.arm == "oelm-freeze" else 1e-4)

    found = verdict(ledger.claims["C1"], runs_of(tmp_path, "minilm-sst2", treated=0.8, change=faster))
    assert found.status == "inconclusive"
    assert "cannot be judged (LR-DIFFERS" in str(found.tests[1].message)


def test_not_all_seeds_yet(tmp_path, ledger):
    results = runs_of(
        tmp_path, "minilm-sst2", treated=0.8, change=lambda cell, record: record if cell.seed < 4 else None
    )
    found = verdict(ledger.claims["C1"], results)
    assert found.status == "inconclusive"
    assert "test numbers are shown when the study is complete" in str(found.tests[1].message)


# -- without records -----------------------------------------------------------------------------------------------


def test_what_is_out_of_reach_says_what_it_needs(ledger):
    found = verdict(ledger.claims["C2"])
    assert (found.status, str(found.message)) == ("out of reach here", "out of reach here: needs a GPU")
    assert translate(found.message).zh == "在此无法检验\uff1a需要一块 GPU"
    assert "oelm run bert-mnli-fair" in str(found.tests[0].message)
    without_a_study = verdict(ledger.claims["C6"])
    assert without_a_study.status == "out of reach here"
    assert "a machine that nobody else uses" in str(without_a_study.message)


def test_what_could_be_run_here_is_inconclusive_and_says_that_it_was_not(ledger):
    found = verdict(ledger.claims["C1"])
    assert (found.status, str(found.message)) == ("inconclusive", "inconclusive: no records yet")
    assert str(found.tests[1].message) == "no records yet (oelm run minilm-sst2)"
    assert str(verdict(ledger.claims["C5"]).tests[1].message) == "no records yet (oelm bench minilm-sst2)"


def test_with_records_nothing_is_out_of_reach(tmp_path, ledger):
    found = verdict(ledger.claims["C2"], runs_of(tmp_path, "bert-mnli-fair"))
    assert found.status == "supported"


def test_records_of_other_arms_are_not_those_of_the_claim(tmp_path, ledger):
    found = verdict(ledger.claims["C3"], runs_of(tmp_path, "bert-sst2-fair"), runs_of(tmp_path, "gpt-mini-agnews"))
    assert [one.status for one in found.tests] == ["out of reach here", "inconclusive", "inconclusive"]
    assert str(found.message) == "inconclusive: no records yet"


# -- times ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ratio", "status"), [(0.95, "refuted"), (1.0, "supported"), (1.02, "inconclusive"), (0.7, "inconclusive")]
)
def test_a_claim_about_step_times_stands_by_the_bench(tmp_path, ledger, ratio, status):
    results = runs_of(tmp_path, "minilm-sst2", seeds=2, examples=60)
    by_records = verdict(ledger.claims["C5"], results).tests[1]
    assert "oelm bench" not in str(by_records.message), "without a bench, by the records"
    write_bench(results.folder, results.study, {"oelm-freeze": ratio})
    timed = verdict(ledger.claims["C5"], read_results(results.folder))
    assert timed.status == status
    assert timed.tests[1].value == ratio
    assert "in turns by oelm bench, 64 rounds" in str(timed.tests[1].message)
    assert ("SPEEDUP-ABOVE-CEILING" in str(timed.tests[1].message)) == (ratio == 0.7)
    untouched = verdict(ledger.claims["C1"], read_results(results.folder))
    assert "oelm bench" not in str(untouched.tests[1].message), "an accuracy is not timed"


# -- several studies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("gains", "status"), [((0.1, 0.06), "supported"), ((0.1, 0.0), "inconclusive"), ((0.0, 0.02), "refuted")]
)
def test_a_mean_over_tasks(tmp_path, ledger, gains, status):
    tasks = {"gpt-mini-imdb": "imdb", "gpt-mini-agnews": "ag_news"}
    results = [
        runs_of(tmp_path, name, task=task, baseline=0.8, treated=0.8 + gain)
        for (name, task), gain in zip(tasks.items(), gains, strict=True)
    ]
    found = verdict(ledger.claims["C11"], *results)
    small = found.tests[1]
    assert (found.status, small.status) == (status, status)
    assert small.value == pytest.approx(sum(gains) / 2, abs=0.01)
    assert "the mean over gpt-mini-imdb, gpt-mini-agnews" in str(small.message)
    half = verdict(ledger.claims["C11"], results[0])
    said = "needs the records of gpt-mini-imdb, gpt-mini-agnews together"
    assert str(half.tests[1].message) == f"{said}, and not all are here (oelm run gpt-mini-agnews)"
    assert str(half.message) == f"inconclusive: {said}", "one task is not the mean"
    assert str(verdict(ledger.claims["C11"]).message) == "inconclusive: no records yet"


@pytest.mark.parametrize(("text", "status"), [(0.75, "supported"), (0.9, "refuted")])
def test_an_interaction_of_task_and_treatment(tmp_path, ledger, text, status):
    """C13: the loss that freezing costs in one task and not in the other."""
    results = [
        runs_of(tmp_path, "gpt-mini-lm", baseline=0.9, treated=text),
        runs_of(tmp_path, "gpt-mini-imdb", task="imdb", baseline=0.8, treated=0.8),
    ]
    found = verdict(ledger.claims["C13"], *results)
    assert found.status == status
    assert found.tests[1].value == pytest.approx(1.4 * (0.9 - text), abs=0.03)
    assert "the first against the second of gpt-mini-lm, gpt-mini-imdb" in str(found.tests[1].message)


@pytest.mark.parametrize(("ratios", "status"), [((0.95, 0.95), "refuted"), ((0.93, 1.0), "supported")])
def test_an_interaction_of_data_and_step_time(tmp_path, ledger, ratios, status):
    """C18: a step is no faster because there are more rows."""
    results = []
    for name, ratio in zip(("gpt-mini-agnews", "gpt-mini-imdb"), ratios, strict=True):
        made = runs_of(tmp_path, name, seeds=2, examples=60)
        write_bench(made.folder, made.study, {"oelm-freeze": ratio})
        results.append(read_results(made.folder))
    found = verdict(ledger.claims["C18"], *results)
    assert found.status == status
    assert found.tests[1].value == pytest.approx(ratios[0] - ratios[1])


def test_a_part_that_is_blocked_blocks_the_mean(tmp_path, ledger):
    def faster(cell, record):
        return replace_at(record, "spec.recipe.optimizer.lr", 5e-4 if cell.arm == "oelm-freeze" else 1e-4)

    results = [
        runs_of(tmp_path, "gpt-mini-imdb", task="imdb", treated=0.99),
        runs_of(tmp_path, "gpt-mini-agnews", task="ag_news", treated=0.99, change=faster),
    ]
    found = verdict(ledger.claims["C11"], *results)
    assert found.status == "inconclusive"
    assert "gpt-mini-agnews cannot be compared (LR-DIFFERS" in str(found.tests[1].message)


# -- how it was trained --------------------------------------------------------------------------------------------


def tuned_runs(root, choices):
    """A study in which the arms of every seed take these places of the grid."""
    parts = {"study": "minilm-sst2", "arms": ARMS, "tune": {"optimizer.lr": [3e-5, 1e-4, 3e-4]}}
    whole = study_of(seeds=list(range(len(choices))), **parts)
    lock_study(root / whole.name, whole)  # seed by seed it is made, and planned as a whole
    for seed, (baseline, treated) in enumerate(choices):
        best = {"baseline": baseline, "oelm-freeze": treated}
        folder = make_runs(root, study_of(seeds=[seed], **parts), best=best, examples=60, steps=10)
    (folder / "study.json").write_text(json.dumps(whole.to_dict()))
    return read_results(folder)


@pytest.mark.parametrize(
    ("choices", "status", "why"),
    [
        ([(0, 1), (0, 2), (0, 1), (0, 1), (1, 2)], "supported", "tuned_lr(oelm-freeze) / tuned_lr(baseline) > 1"),
        ([(1, 0), (2, 0), (1, 0), (1, 0), (2, 1)], "refuted", "measured 0."),
        ([(0, 1), (2, 1), (1, 1), (1, 2), (2, 1)], "inconclusive", "measured 1"),
        ([(0, 1)] * 5, "inconclusive", "measured 3"),
    ],
    ids=["larger", "smaller", "either", "always-the-same"],
)
def test_whether_frozen_queries_and_keys_take_a_larger_learning_rate(tmp_path, ledger, choices, status, why):
    """By what every seed took of the grid, and not by what somebody set."""
    results = tuned_runs(tmp_path, choices)
    rates = [3e-5, 1e-4, 3e-4]
    assert results.values("oelm-freeze", "tuned_lr") == {seed: rates[one] for seed, (_, one) in enumerate(choices)}
    found = verdict(ledger.claims["C15"], results)
    assert found.status == status, str(found.tests[1].message)
    assert why in str(found.tests[1].message)


def test_no_learning_rate_is_better_than_another(tmp_path):
    results = tuned_runs(tmp_path, [(0, 1), (0, 2), (0, 1), (0, 1), (1, 2)])
    with pytest.raises(oelm.OelmError, match="no learning rate is better than another") as refused:
        results.compare("oelm-freeze", metric="tuned_lr")
    assert "tuned_lr(oelm-freeze) / tuned_lr(baseline)" in str(refused.value)
    assert results.compare("oelm-freeze", metric="lr_sensitivity").metric == "lr_sensitivity", "of that, less is"


def test_without_tuning_there_is_no_tuned_learning_rate(tmp_path, ledger):
    results = runs_of(tmp_path, "minilm-sst2", examples=60)
    assert results.values("baseline", "tuned_lr") == {}
    assert verdict(ledger.claims["C15"], results).status == "inconclusive"
    with pytest.raises(oelm.OelmError, match="there is no tuned_lr"):
        results.compare("oelm-freeze", metric="tuned_lr")


@pytest.mark.parametrize(("ahead", "status"), [(0.1, "supported"), (-0.1, "refuted"), (0.0, "inconclusive")])
def test_whether_it_converges_faster(tmp_path, ledger, ahead, status):
    """By the validation loss along the way; where both end plays no part."""

    def curve(cell, record):
        gain = ahead + 0.01 * (-1) ** cell.seed if cell.arm == "oelm-freeze" else 0.0
        losses = [0.6 - gain, 0.4 - gain, 0.3]
        found = tuple(ValidationScore(step=step, metrics={"loss": one}) for step, one in enumerate(losses, 1))
        return replace(record, evaluations=found)

    results = runs_of(tmp_path, "minilm-sst2", examples=60, change=curve)
    assert results.values("baseline", "curve_loss")[0] == pytest.approx(1.3 / 3, abs=0.02)
    assert verdict(ledger.claims["C16"], results).status == status


def test_a_training_that_diverged_did_not_converge_faster(tmp_path, ledger):
    def diverged(cell, record):
        loss = 0.3 if cell.arm == "oelm-freeze" else 0.5
        scores = (ValidationScore(step=1, metrics={"loss": loss + 0.001 * cell.seed}),)
        failed = (cell.arm, cell.seed) == ("oelm-freeze", 4)
        return replace(record, evaluations=scores, status="diverged" if failed else "done")

    found = verdict(ledger.claims["C16"], runs_of(tmp_path, "minilm-sst2", examples=60, change=diverged))
    assert found.status == "inconclusive"
    assert "oelm-freeze" in str(found.tests[1].message)
    assert "1 of 5" in str(found.tests[1].message)
