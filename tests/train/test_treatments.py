"""Treatments that a training run has a part in: heads that it makes orthonormal again, and those that it proves."""

import pytest

import tiny_study
from oelm.errors import Stopped, StudyError
from oelm.heads.applied import Applied
from oelm.study.load import study_from_dict
from running import StopsAt, bits_of, run_cell

ARMS = {
    "kept": {"init": "orthogonal", "keep_orthonormal": True},
    "kept-match": {"init": "orthogonal", "scale": "match", "keep_orthonormal": True},
    "oelm-frames": {"init": "frames", "freeze": "qk"},
    "no-attention": {"init": "zero", "freeze": "qk"},
}


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))


def make(tmp_path, **recipe):
    every = {"budget": {"steps": 3}, "evaluate": {"every": 1}, "checkpoint": {"every": 1, "keep": "final"}}
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"), **every, **recipe)
    content["arms"] = {"baseline": content["arms"]["baseline"], **ARMS}
    return content


@pytest.mark.parametrize("arm", ["kept", *(pytest.param(arm, marks=pytest.mark.slow) for arm in ARMS if arm != "kept")])
def test_stopped_after_every_step_it_ends_with_the_same_bits(arm, tmp_path):
    study = study_from_dict(make(tmp_path))
    whole = run_cell(study, arm=arm, seed=0, out=tmp_path / "whole")
    assert [(audit.step, audit.passed) for audit in whole.audits] == [(step, True) for step in range(4)]
    for step in (1, 2):
        with pytest.raises(Stopped):
            run_cell(study, arm=arm, seed=0, out=tmp_path / "stopped", progress=StopsAt(step))
    run_cell(study, arm=arm, seed=0, out=tmp_path / "stopped")
    cells = [tmp_path / which / "tiny" / arm / "seed-0" for which in ("whole", "stopped")]
    bits = [{**bits_of(cell), "steps": [row | {"seconds": 0} for row in bits_of(cell)["steps"]]} for cell in cells]
    assert bits[0] == bits[1]


def test_rows_that_are_not_put_back_are_found_at_the_next_checkpoint(tmp_path, monkeypatch):
    monkeypatch.setattr(Applied, "retract", lambda applied: None)
    record = run_cell(study_from_dict(make(tmp_path)), arm="kept", seed=0, out=tmp_path / "runs")
    assert record.status == "audit-failed"
    assert record.audits[-1].step == 1
    assert "NOT-ORTHONORMAL" in str(record.audits[-1].findings)


def test_shards_have_no_whole_heads(tmp_path):
    content = make(tmp_path, parallel="fsdp")
    with pytest.raises(StudyError, match=r"arms\.kept\.keep_orthonormal[\s\S]*use 'ddp'"):
        study_from_dict(content)
