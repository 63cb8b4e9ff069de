"""One's own data from the file to the verdict: any labels, pairs, and numbers."""

import csv
import random

import numpy as np
import pytest
from scipy import stats
from sklearn import metrics as sklearn

import oelm
import tiny_study
from oelm.analysis.evidence import _uncorrelated, by_example
from oelm.metrics import class_metrics
from oelm.runs.predictions import Predictions
from oelm.runs.simple_baseline import read_simple_baselines
from oelm.study.cells import Cell

WORDS = {"food": "soup", "music": "song", "sport": "goal", "travel": "train", "work": "desk"}


def write_rows(path, header, make, number=160):
    choose = random.Random(1)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(header)
        writer.writerows(make(choose) for _ in range(number))
    return path


def topic(choose):
    label = choose.choice(list(WORDS))
    return " ".join([*choose.choices(tiny_study.OTHER, k=8), WORDS[label]]), label


def likeness(choose):
    one, other = (choose.choices(tiny_study.OTHER, k=6) for _ in range(2))
    return " ".join(one), " ".join(other), len(set(one) & set(other)) / 2


def run(tmp_path, data, **compare):
    content = tiny_study.study(tmp_path, budget={"steps": 3}, evaluate={"every": 3})
    content["recipe"]["data"] = {"max_length": 32, "tokenizer": {"train": "bpe", "vocab": 300}, **data}
    content["compare"] |= compare
    study = oelm.load_study(tiny_study.write_study(tmp_path, content))
    return oelm.run(study, out=str(tmp_path / "runs"))


def test_five_classes_by_their_path_alone(tmp_path):
    file = write_rows(tmp_path / "topics.csv", ("text", "label"), topic)
    results = run(tmp_path, {"path": str(file)}, metric="accuracy")
    record = results.of("baseline")[0]
    assert record.data.labels == tuple(WORDS)
    assert record.data.sizes["validation"] == record.data.sizes["test-held_out"] == 16
    assert results.comparisons
    page = oelm.write_report(results, formats=("md",))[0].read_text(encoding="utf-8")
    assert "food, music, sport, travel, work" in page
    config = next((tmp_path / "runs").rglob("baseline/seed-0/model/config.json")).read_text(encoding="utf-8")
    assert '"4": "work"' in config, "the head knows them by name"


def test_a_regression_on_pairs_is_judged_like_the_others(tmp_path):
    header = ("one", "other", "shared")
    file = write_rows(tmp_path / "pairs.csv", header, likeness)
    columns = dict(zip(("text_a", "text_b", "label"), header, strict=True))
    data = {"task": "regression", "path": str(file), "columns": columns, "pair_separator": " / "}
    results = run(tmp_path, data, metric="mse", min_effect=0.1)
    record = results.of("baseline")[0]
    assert set(record.scores()) == {"mse", "pearson", "spearman", "loss"}
    assert record.value("mse") == record.value("loss")
    kept = results.predictions(Cell(arm="baseline", seed=0))
    found = class_metrics(("mse", "pearson", "spearman"), kept.label, kept.prediction, 0)
    assert found == pytest.approx({name: record.value(name) for name in found}, rel=1e-5)
    assert len(results.comparisons) == 1
    scores, _ = by_example(results, ("baseline",), "mse", "final", (0, 1), np.asarray)
    assert scores.mean(1) == pytest.approx([one.value("mse") for one in results.of("baseline").values()])
    assert by_example(results, ("baseline",), "pearson", "final", (0, 1), np.asarray) is None, "no mean of examples"
    (simple,) = read_simple_baselines(results.folder)
    assert (simple.kind, simple.classes, simple.right) == ("tf-idf + ridge regression", None, {})
    assert not {"NOT-REPRODUCED", "IMBALANCED"} & {one.code for one in results.checks}


def test_a_regression_that_learned_nothing():
    labels = np.arange(100.0)
    for predicted, is_nothing in ((np.full(100, 49.0), True), (labels / 9, False), (labels * 0 + 49.5, True)):
        loss = (labels - predicted) ** 2
        kept = Predictions(row=np.arange(100), loss=loss, label=labels, prediction=predicted)
        assert (_uncorrelated(kept) is not None) == is_nothing


def test_metrics_of_numbers_agree_with_others():
    random_numbers = np.random.default_rng(0)
    labels = random_numbers.normal(size=50)
    predicted = labels + random_numbers.normal(size=50)
    assert class_metrics(("mse", "pearson", "spearman"), labels, predicted, 0) == pytest.approx(
        {
            "mse": sklearn.mean_squared_error(labels, predicted),
            "pearson": stats.pearsonr(labels, predicted).statistic,
            "spearman": stats.spearmanr(labels, predicted).statistic,
        }
    )
    assert class_metrics(("pearson", "spearman"), labels, np.ones(50), 0) == {"pearson": 0, "spearman": 0}
    assert np.isnan(class_metrics(("pearson",), labels, np.full(50, np.nan), 0)["pearson"])


def test_f1_needs_two_classes(tmp_path):
    file = write_rows(tmp_path / "topics.csv", ("text", "label"), topic)
    with pytest.raises(oelm.StudyError, match=r"'f1' is not measured: the data have 5 labels"):
        run(tmp_path, {"path": str(file)}, metric="f1")
