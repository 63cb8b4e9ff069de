"""Sequence to sequence: files, targets, greedy writing, ROUGE, and a study of it."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import transformers
from rouge_score.rouge_scorer import RougeScorer

import oelm
import tiny_kinds
import tiny_study
from oelm.bench.flops import work_of
from oelm.data.batches import collate
from oelm.data.kinds.seq2seq import SequenceToSequence
from oelm.data.own import name_columns
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import tokenize_task
from oelm.errors import DataError, StudyError
from oelm.metrics import score_text
from oelm.models.build import build_model
from oelm.study.recipe import ModelConfig
from oelm.train.evaluate import evaluate
from oelm.train.objective import Objective
from tiny_kinds import save_seq2seq, sequences, write_json, write_sequences

SEQ2SEQ = task_named("seq2seq")
KIND = SequenceToSequence()
CPU = torch.device("cpu")
TEXTS = [row["source"] for row in sequences(120, seed=1)]


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    made = tiny_kinds.tokenizer(TEXTS, single="$A [SEP]")
    source = find_source(SEQ2SEQ, str(write_sequences(tmp_path_factory.mktemp("data"))))
    return tokenize_task(source, tokenizer=lambda *_: made, max_length=32, validation=None)


# -- files --------------------------------------------------------------------------------------------------------


def test_tables_of_all_kinds(tmp_path):
    (tmp_path / "a.csv").write_text("id,source,target\n1,one text,7\n2,another,8\n")
    (tmp_path / "a.tsv").write_text("target\tsource\n7\tone text\n8\tanother\n")
    write_json(tmp_path / "a.jsonl", [{"source": "one text", "target": "7"}, {"source": "another", "target": "8"}])
    for name in ("a.csv", "a.tsv", "a.jsonl"):
        rows, _ = KIND.read(tmp_path / name, SEQ2SEQ)
        assert rows.to_pylist() == [{"text": "one text", "target": "7"}, {"text": "another", "target": "8"}]
    write_json(tmp_path / "b.jsonl", [{"article": "one", "highlights": "two"}])
    rows, _ = KIND.read(tmp_path / "b.jsonl", task_named("cnn_dailymail"))
    assert rows.to_pylist() == [{"text": "one", "target": "two"}]


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"source": "a text", "target": " "}, "a target is empty.*row 2"),
        ({"source": "", "target": "one"}, "a source is empty.*row 2"),
        ({"source": "a text", "target": None}, "a target is missing.*row 2"),
    ],
)
def test_empty_sequences_are_refused(tmp_path, row, said):
    with pytest.raises(DataError, match=f"(?s){said}"):
        KIND.read(write_json(tmp_path / "a.jsonl", [{"source": "one", "target": "two"}, row]), SEQ2SEQ)


def test_what_else_is_wrong_with_a_file(tmp_path):
    with pytest.raises(DataError, match=r"(?s)no column target.*with the columns source, summary"):
        KIND.read(write_json(tmp_path / "a.jsonl", [{"source": "one", "summary": "two"}]), SEQ2SEQ)
    with pytest.raises(DataError, match=r"(?s)a target is not a text.*row 1.*7"):
        KIND.read(write_json(tmp_path / "a.jsonl", [{"source": "one", "target": 7}]), SEQ2SEQ)
    named = name_columns(SEQ2SEQ, {"text": "sorce"})
    with pytest.raises(DataError, match="no column sorce"):
        KIND.read(write_json(tmp_path / "a.jsonl", [{"source": "one", "target": "two"}]), named)


def test_settings_that_do_not_fit(tmp_path):
    content = tiny_kinds.seq2seq_study(tmp_path)
    content["recipe"]["parallel"] = "fsdp"
    for model in (content["recipe"]["model"], {"from": str(tmp_path / "runs/first")}):
        content["recipe"]["model"] = model
        with pytest.raises(StudyError, match="shards cannot write"):
            oelm.load_study(tiny_study.write_study(tmp_path, content))
    content = tiny_study.study(tmp_path)
    content["recipe"]["data"]["max_target"] = 7
    with pytest.raises(StudyError, match="task 'sst2' has no targets to write"):
        oelm.load_study(tiny_study.write_study(tmp_path, content))
    content["recipe"]["data"] |= {"task": "seq2seq"}
    with pytest.raises(StudyError, match="'oelm-gpt' has no head for task 'seq2seq'"):
        oelm.load_study(tiny_study.write_study(tmp_path, content))


# -- targets and texts --------------------------------------------------------------------------------------------


def test_targets_end_and_are_cut(prepared, tmp_path):
    made, split = prepared.tokenizer, prepared.test["test"]
    rows = sequences(30, seed=3)
    assert [made.decode(split.target_tokens[row]) for row in range(30)] == [row["target"] + " [SEP]" for row in rows]
    some = np.array([0, 1, 2])
    targets = split.targets(some)
    assert (targets != -100).sum() == split.count_targets(some)
    short = tiny_kinds.tokenizer(TEXTS, single="$A")  # which adds no end by itself
    table, _ = KIND.read(write_json(tmp_path / "test.jsonl", rows), SEQ2SEQ)
    table = table.append_column("row", [list(range(table.num_rows))])
    task = replace(SEQ2SEQ, max_target=3)
    encoded = KIND.encode(short, table, task, max_length=4, where="here")
    lengths = {len(ids) for ids in encoded["targets"].to_pylist()}
    assert lengths == {3}
    assert {ids[-1] for ids in encoded["targets"].to_pylist()} == {short.eos_token_id}
    assert all(encoded["cut"].to_pylist())


@pytest.mark.parametrize("family", ["t5", "bart"])
def test_loss_and_texts_are_those_of_transformers(prepared, tmp_path, family):
    recipe = ModelConfig(name=str(save_seq2seq(tmp_path / family, TEXTS, family=family)), dropout=0.0)
    options = {"task": prepared.task, "tokenizer": prepared.tokenizer, "max_length": 32, "seed": 0}
    model = build_model(recipe, **options).eval()
    objective = Objective(model, KIND).eval()
    batch = collate(prepared.train, np.arange(8), pad=prepared.tokenizer.pad_token_id, device=CPU)
    number = prepared.train.count_targets(np.arange(8))
    with torch.no_grad():
        assert torch.isclose(objective(batch.inputs, batch.targets) / number, model(**batch.inputs).loss, atol=1e-5)
    measured = [
        evaluate(objective, prepared.test["test"], task=prepared.task, batch_size=size, pad=0, device=CPU)
        for size in (4, 30)
    ]
    assert np.allclose(*(one.predictions.loss for one in measured), atol=1e-4)
    texts = measured[0].predictions.text
    assert texts.tolist() == measured[1].predictions.text.tolist()
    split = prepared.test["test"]
    for row in range(3):
        one = collate(split, np.array([row]), pad=0, device=CPU).inputs
        greedy = {"do_sample": False, "num_beams": 1, "max_new_tokens": SEQ2SEQ.max_target}
        written = model.generate(input_ids=one["input_ids"], attention_mask=one["attention_mask"], **greedy)
        assert texts[row] == prepared.tokenizer.decode(written[0], skip_special_tokens=True)
    assert model.generation_config.num_beams == 1, "whatever the model came with"


def test_the_work_of_a_step_counts_what_is_written(prepared, tmp_path):
    model = transformers.T5ForConditionalGeneration.from_pretrained(save_seq2seq(tmp_path / "t5", TEXTS))
    assert prepared.train.target_length == round(prepared.train.target_tokens.lengths.mean())
    short, long = (work_of(model, batch=2, length=9, target_length=n).products for n in (5, 50))
    assert short < long / 3


def test_scores_are_those_of_rouge_score():
    pairs = [(row["source"], row["target"]) for row in sequences(20, seed=5)] + [("", "Rome"), ("Rome", "Rome")]
    scorer = RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
    for text, right in pairs:
        expected = {name: score.fmeasure for name, score in scorer.score(right, text).items()}
        assert score_text(text, right) == expected
    # By hand: 5 of 6 words, 3 of 5 pairs, 5 words in order.
    found = score_text("the cat sat on a mat", "the cat sat on the mat")
    assert found == pytest.approx({"rouge1": 5 / 6, "rouge2": 3 / 5, "rougeL": 5 / 6})


# -- a study ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ["t5", pytest.param("bart", marks=pytest.mark.slow)])
def test_a_study_of_sequences(tmp_path, monkeypatch, family):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    content = tiny_kinds.seq2seq_study(tmp_path, family=family)
    results = oelm.run(oelm.load_study(tiny_study.write_study(tmp_path, content)), out=tmp_path / "runs")
    for record in results.records.values():
        assert record.status == "done"
        assert all(audit.passed for audit in record.audits)
        assert set(record.scores()) == {"rougeL", "rouge1", "rouge2", "loss"}
    found = results.compare("oelm-freeze", against="baseline", metric="rougeL")
    assert found.estimate.examples is not None, "judged over examples too"
    codes = {issue.code: issue.message.key for issue in results.checks}
    assert not codes.keys() & {"UNPAIRED", "NOT-REPRODUCED", "AUDIT-FAILED"}
    assert codes["BELOW-SIMPLE-BASELINE"] == "no-simple-baseline-of-kind"
