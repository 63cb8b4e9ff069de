"""From pretraining to transfer: a study whose arms start from the models that another study left behind."""

from pathlib import Path

import pytest

import oelm
import tiny_study
from oelm.study.load import study_from_dict

QK = ("q_proj", "k_proj")


def first_study(folder: Path) -> dict[str, object]:
    """A language model of two layers with a tokenizer of its own."""
    content = tiny_study.language_study(
        folder,
        max_length=16,
        model={"name": "oelm-gpt", "layers": 2, "width": 32, "heads": 2, "context": 32},
        budget={"steps": 4},
    )
    content["study"] = "first"
    content["arms"]["thawed"] = {
        "init": "orthogonal",
        "freeze": "qk",
        "unfreeze": {"start": 0.5, "end": 1.0},  # the last layer at the end of all, so it is still frozen then
    }
    return content


def second_study(data: Path, runs: Path, **model: object) -> dict[str, object]:
    content = tiny_study.study(data, model={"from": str(runs / "first"), **model})
    del content["recipe"]["data"]["tokenizer"]
    content["recipe"]["budget"] = {"steps": 8}
    content["study"] = "second"
    content["arms"] = {
        "baseline": {},
        "oelm-freeze": {},
        "probe": {"trains": "head", "overrides": {"model.arm": "oelm-freeze"}},
        "released": {"overrides": {"model.arm": "oelm-freeze", "model.freeze": "none"}},
    }
    return content


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Both studies, run from end to end."""
    folder = tmp_path_factory.mktemp("transfer")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OELM_CACHE", str(folder / "cache"))
        first = study_from_dict(first_study(folder))
        oelm.run(first, out=folder / "runs")
        second = study_from_dict(second_study(tiny_study.write_data(folder / "data"), folder / "runs"))
        results = oelm.run(second, out=folder / "runs")
    return folder, second, results


@pytest.fixture(autouse=True)
def same_cache(made, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(made[0] / "cache"))


def record_of(folder: Path, cell: str):
    return oelm.read_record(folder / "runs" / cell)


def test_every_seed_starts_from_the_model_of_its_arm_and_seed(made):
    folder, _, results = made
    for arm, source in {"baseline": "baseline", "oelm-freeze": "oelm-freeze", "probe": "oelm-freeze"}.items():
        for seed in (0, 1):
            record = record_of(folder, f"second/{arm}/seed-{seed}")
            assert record.status == "done", record.error
            origin = record.start.origin
            there = record_of(folder, f"first/{source}/seed-{seed}")
            assert (origin.spec.study, origin.spec.arm, origin.spec.seed) == ("first", source, seed)
            assert origin.spec == there.spec
            assert origin.lock == there.start.lock
            assert origin.validation == there.last_evaluation
            assert record.start.data.tokenizer == there.start.data.tokenizer
            assert record.start.new_weights == ("classifier.bias", "classifier.weight")
            assert all(audit.passed for audit in record.audits)
    assert {record.start.weights for record in results.of("probe").values()} == {
        record.start.weights for record in results.of("released").values()
    }, "what differs is what learns"
