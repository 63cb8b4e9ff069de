"""The small shipped studies run: on the packages of the quickstart, and on real data where they lie beside us."""

import pyarrow.parquet as parquet
import pytest

import oelm
from conftest import SHARED
from oelm.study.load import load_study
from running import run_cell

SHORT = ["recipe.budget.steps=2", "recipe.evaluate.every=2", "seeds=[0]", "tune=null", "recipe.data.max_length=8"]


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))


def test_the_quickstart_has_the_promised_arms_and_needs_only_two_packages():
    study = load_study("quickstart")
    assert list(study.arms) == ["baseline", "oelm-frames", "oelm-freeze"]
    assert len(study.seeds) == 4
    assert study.recipe.model.name == "minilm-l6"
    assert study.recipe.data.task == "rotten_tomatoes"


@pytest.mark.slow
def test_the_quickstart_trains_a_real_pretrained_model_on_real_sentences(tmp_path):
    study = load_study("quickstart", SHORT)
    comparison = oelm.run(study, out=tmp_path / "runs", arms=["oelm-freeze"])
    [frozen] = comparison.records.values()
    assert frozen.status == "done"
    assert frozen.data.sizes["test-held_out"] == 853
    assert frozen.counts.total - frozen.counts.trainable == 1_774_080
    assert "test numbers are shown when the study is complete; missing cells: 2" in str(comparison)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "folder", "splits"),
    [
        ("minilm-sst2", "sst2", {"train": "train", "validation": "validation"}),
        ("gpt-mini-imdb", "imdb", {"train": "train", "test": "test"}),
        ("gpt-mini-agnews", "ag_news", {"train": "train", "test": "test"}),
        ("gpt-mini-lm", "imdb_unsup_lm", {"train": "train"}),
    ],
)
def test_the_small_studies_run_on_some_rows_of_real_data(name, folder, splits, tmp_path):
    if not (SHARED / "data" / folder).is_dir():
        pytest.skip(f"there is no {folder} beside the repository")
    paths = {}
    for split, file in splits.items():
        rows = parquet.read_table(SHARED / "data" / folder / f"{file}.parquet").slice(0, 400)
        paths[split] = str(tmp_path / f"{split}.parquet")
        parquet.write_table(rows, paths[split])
    overrides = [*SHORT, "recipe.data.validation=20", f"recipe.data.path={paths}"]
    study = load_study(name, overrides)
    arm = list(study.arms)[-1]
    record = run_cell(study, arm=arm, seed=0, out=tmp_path / "runs")
    assert record.status == "done", record.error
    assert record.value(study.compare.metric) > 0
    assert all(audit.passed for audit in record.audits)
