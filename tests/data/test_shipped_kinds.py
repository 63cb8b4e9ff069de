"""The shipped studies of the other kinds of tasks, in their smallest form: made files, a tiny model, two steps."""

import json

import pytest

import oelm
import tiny_kinds
from tiny_kinds import as_squad, questions, sequences

SHORT = ["recipe.model.revision=null", "tune=null", "recipe.budget.steps=2", "recipe.evaluate.every=2"]
SHORT += ["recipe.batch.size=8", "recipe.data.max_length=32", "seeds=[0]"]


def ner(folder):
    tiny_kinds.tokens_study(folder)
    return ["recipe.model.name=" + str(folder / "bert")]


def squad(folder):
    """Which has a train and a dev file, as they are published."""
    tiny_kinds.qa_study(folder)
    for file in (folder / "data").iterdir():
        file.unlink()
    for name, number in (("train", 120), ("dev", 20)):
        content = as_squad(questions(number, seed=number))
        (folder / "data" / f"{name}-v1.1.json").write_text(json.dumps(content), encoding="utf-8")
    return ["recipe.model.name=" + str(folder / "bert"), "recipe.data.validation=20", "recipe.data.overlap=keep"]


def cnn(folder):
    tiny_kinds.seq2seq_study(folder)
    for split in ("train", "validation", "test"):
        rows = sequences({"train": 90}.get(split, 20), seed=len(split))
        named = [{"article": row["source"], "highlights": row["target"]} for row in rows]
        tiny_kinds.write_json(folder / "data" / f"{split}.jsonl", named)
    short = ["recipe.data.validation=20", "recipe.data.limit.examples=40", "recipe.data.max_target=8"]
    return ["recipe.model.name=" + str(folder / "t5"), *short]


@pytest.mark.parametrize(("name", "make"), [("bert-conll-ner", ner), ("bert-squad", squad), ("t5-cnn", cnn)])
def test_its_smallest_form_trains(tmp_path, monkeypatch, name, make):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    settings = [*make(tmp_path), f"recipe.data.path={tmp_path / 'data'}"]
    study = oelm.load_study(name, [*SHORT, *settings])
    results = oelm.run(study, cells=["oelm-freeze-match/seed-0"], out=tmp_path / "runs")
    (record,) = results.of("oelm-freeze-match").values()
    assert record.status == "done"
    assert record.steps == 2
    assert all(audit.passed for audit in record.audits)
    assert study.compare.metric in record.last_evaluation
