"""The commands for studies, as a user gives them: in a process of their own."""

import json
from functools import partial

import pytest

import tiny_study
from running import environment, run


@pytest.fixture
def oelm(tmp_path):
    return partial(run, env=environment(tmp_path), cwd=tmp_path)


def refused(done, *texts):
    """One clear message and exit code 2."""
    assert done.returncode == 2, done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    for text in texts:
        assert text in done.stderr
    return True


@pytest.mark.slow
def test_a_study_from_plan_to_status(oelm, tmp_path):
    study = tiny_study.make(tmp_path)
    planned = oelm("plan", study, "--json")
    assert planned.returncode == 0, planned.stderr
    assert [cell["status"] for cell in json.loads(planned.stdout)["cells"]] == ["pending"] * 4
    trained = oelm("run", study, "--arm", "oelm-freeze", "--seed", 1)
    assert trained.returncode == 0, trained.stderr
    assert "validation (step 12): accuracy" in trained.stdout
    compared = oelm("run", study, "--seed", "1")
    assert compared.returncode == 0, compared.stderr
    assert "[1/1] baseline/seed-1: 12 steps" in compared.stderr, "only what is missing runs"
    assert "test numbers are shown when the study is complete; missing cells: 2" in compared.stdout
    assert "validation accuracy" in compared.stderr, "progress goes to the standard error"
    status = oelm("status", "runs", "--json")
    rows = {row["cell"]: row for row in json.loads(status.stdout)}
    assert {name: row["state"] for name, row in rows.items()} == {
        "baseline/seed-0": "pending",
        "oelm-freeze/seed-0": "pending",
        "oelm-freeze/seed-1": "done",
        "baseline/seed-1": "done",
    }
    again = oelm("run", study, "--seed", "1", "--json")
    assert "UNPAIRED" not in {found["code"] for found in json.loads(again.stdout)["checks"]}
    audited = oelm("audit", "runs/tiny/oelm-freeze/seed-1/model")
    assert "audit passed" in audited.stdout


def test_shipped_studies_are_listed_shown_and_copied(oelm, tmp_path):
    listed = oelm("studies", "ls")
    assert "quickstart" in listed.stdout
    assert "bert-sst2-fair" in listed.stdout
    shown = oelm("studies", "show", "quickstart").stdout
    copied = oelm("studies", "cp", "quickstart", "mine.yaml")
    assert copied.returncode == 0, copied.stderr
    assert (tmp_path / "mine.yaml").read_text() == shown
    assert refused(oelm("studies", "cp", "quickstart", "mine.yaml"), "is there already")
    assert refused(oelm("studies", "show", "quikstart"), "did you mean 'quickstart'?")


@pytest.mark.slow
def test_bad_input_is_one_message(oelm, tmp_path):
    study = tiny_study.make(tmp_path)
    assert refused(oelm("run", "nowhere.yaml"), "there is no study file nowhere.yaml")
    bad = oelm("run", study, "--set", "recipe.optimizer.lr=-1", "--set", "recipe.budgett.steps=3")
    assert refused(bad, "has 2 problems; nothing was started", "recipe.optimizer.lr", "did you mean 'budget'?")
    assert refused(oelm("run", study, "--arm", "base"), "has no arm 'base'")
    assert refused(oelm("run", study, "--seed", "7"), "has no seed 7")
    assert refused(oelm("run", study, "--seed", "one"), "Invalid value for '--seed'")
    assert refused(oelm("run", study, "--arm", "baseline", "--seed", "9"), "has no seed 9")
    assert refused(oelm("run", study, "--set", "recipe.data.path=elsewhere"), "elsewhere", "recipe.data.path")
    assert refused(oelm("run", study, "--set", "recipe.data.max_length=512"), "256 tokens", "max_length=256")
    assert refused(oelm("status", "nothing"), "there is no folder nothing")
    assert not (tmp_path / "runs").exists() or not list((tmp_path / "runs").rglob("record.json"))


def test_an_unknown_model_is_one_message(oelm, tmp_path):
    study = tiny_study.make(
        tmp_path, model={"name": "./no-such-model"}, data={"task": "sst2", "path": "data", "validation": 40}
    )
    assert refused(oelm("run", study), "no-such-model")
