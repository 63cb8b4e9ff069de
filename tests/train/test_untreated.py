"""How far attention is from that of the untreated model, before and after training, is in the record of every cell."""

import signal
from dataclasses import replace

import pytest
import torch

import oelm
import tiny_study
import zoo
from oelm.errors import Stopped
from oelm.facts import AttentionMap
from oelm.heads.attention import UntreatedMaps, attention_maps, divergences, measure_heads, sample_maps
from oelm.runs.cell_start import read_cell
from oelm.study.load import study_from_dict
from oelm.train.progress import Progress
from running import run_cell

FAMILIES = {family.name: family for family in zoo.FAMILIES}


class StopsAtEvaluation(Progress):
    def on_evaluation_end(self, step, metrics):
        signal.raise_signal(signal.SIGTERM)


@pytest.mark.slow
def test_a_cell_keeps_it_and_a_stop_cannot_be_seen(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    data = tiny_study.write_data(tmp_path / "data")
    content = tiny_study.study(
        data, budget={"steps": 4}, evaluate={"every": 2}, checkpoint={"every": 2, "keep": "none"}
    )
    content["arms"]["freeze-only"] = {"freeze": "qk"}
    study = study_from_dict(content)
    whole = {arm: run_cell(study, arm=arm, seed=0, out=tmp_path / "whole") for arm in study.arms}
    for arm, record in whole.items():
        layers = len(record.start.heads.entropy)
        assert len(record.start.heads.kl) == len(record.heads.kl) == layers == 2
        assert (record.kl("start") == 0) == (arm != "oelm-freeze"), "what is not changed attends as before"
        assert record.kl("final") > 0, "values and all else have moved"
        assert (record.start.untreated == record.start.heads.maps) == (arm != "oelm-freeze")
        assert [(one.layer, one.head, one.queries) for one in record.heads.maps] == [(0, 0, 12), (1, 0, 12)]
        assert (tmp_path / "whole/tiny" / arm / "seed-0/record.json").stat().st_size < 20_000
    assert whole["baseline"].start.untreated == whole["oelm-freeze"].start.untreated
    with pytest.raises(Stopped):
        run_cell(study, arm="oelm-freeze", seed=0, out=tmp_path / "stopped", progress=StopsAtEvaluation())
    resumed = run_cell(study, arm="oelm-freeze", seed=0, out=tmp_path / "stopped")
    assert resumed.start.heads == whole["oelm-freeze"].start.heads
    assert resumed.heads == whole["oelm-freeze"].heads
    assert len(resumed.launches) == 2


@pytest.mark.slow
def test_trials_of_a_tuning_are_not_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    content = tiny_study.study(tiny_study.write_data(tmp_path / "data"), budget={"steps": 1}, evaluate={"every": 1})
    study = study_from_dict({**content, "tune": {"optimizer.qk_lr": [0.1, 1.0]}, "seeds": [0]})
    assert oelm.run(study, arms=["baseline"], out=tmp_path / "runs") is not None
    trials = sorted((tmp_path / "runs/tiny/baseline").rglob("cell.json"))
    kept = {read_cell(path.parent).spec.tuning is None: read_cell(path.parent).start for path in trials}
    assert kept[False].heads.kl == kept[False].untreated == ()
    assert kept[True].heads.kl == (0.0, 0.0)


def test_it_is_the_mean_over_heads_and_queries():
    family = FAMILIES["bert"]
    model = zoo.attentive(family)
    untreated = UntreatedMaps.measure(model, family.batch())
    before = attention_maps(model, family.batch())
    oelm.apply(model, init="orthogonalize")
    stats = measure_heads(model, family.batch())
    found = untreated.compare(model, stats)
    expected = [one.mean().item() for one in divergences(before, attention_maps(model, family.batch()))]
    assert found.kl == pytest.approx(expected, rel=1e-5)
    assert found.mean_kl == pytest.approx(sum(expected) / 2, rel=1e-5)
    assert replace(found, kl=(), maps=()) == stats


def test_a_map_is_kept_in_few_bytes():
    family = FAMILIES["oelm-gpt"]
    model = zoo.attentive(family).eval()
    maps = sample_maps(attention_maps(model, family.batch()))
    with torch.no_grad():
        own = family.maps(model)
    assert [(one.layer, one.head) for one in maps] == [(0, 0), (1, 0)]
    for one, layer in zip(maps, own, strict=True):
        assert len(one.weights) == 2 * zoo.TOKENS**2
        torch.testing.assert_close(torch.tensor(one.rows), layer[0, 0], atol=0.5 / 255 + 1e-4, rtol=0)
    tokens = {"input_ids": torch.tensor([[5, 6, 7, 0, 0]]), "attention_mask": torch.tensor([[1, 1, 1, 0, 0]])}
    assert [one.queries for one in sample_maps(attention_maps(model, tokens))] == [3, 3], "padding is left out"


@pytest.mark.parametrize(("queries", "weights"), [(2, "00ff00"), (1, ""), (1, "0"), (1, "zz")])
def test_a_map_that_is_none_is_refused(queries, weights):
    with pytest.raises(ValueError, match=r"rows|fromhex"):
        AttentionMap(layer=0, head=0, queries=queries, weights=weights)
