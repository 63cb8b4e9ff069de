"""Question answering: files, spans, windows of long contexts, the scores of SQuAD, and a study of it."""

import json
import string
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
import torch
import transformers
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

import oelm
import tiny_kinds
import tiny_study
from oelm.data.batches import collate
from oelm.data.kinds.qa import QuestionAnswering, best_span
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import task_named
from oelm.data.tokenize import load_tokenizer, tokenize_task
from oelm.errors import DataError
from oelm.metrics import score_answer
from oelm.runs.predictions import Predictions
from oelm.train.evaluate import evaluate
from oelm.train.objective import Objective
from tiny_kinds import as_squad, questions, write_json, write_questions

QA = task_named("qa")
KIND = QuestionAnswering()
CPU = torch.device("cpu")


def tokenized(folder, *, max_length=32, tokenizer=None):
    made = tokenizer or tiny_kinds.tokenizer([f"{row['context']} {row['question']}" for row in questions(120, seed=1)])
    source = find_source(QA, str(folder))
    return tokenize_task(source, tokenizer=lambda *_: made, max_length=max_length, validation=None, overlap="keep")


# -- files --------------------------------------------------------------------------------------------------------


def test_files_of_squad_and_rows_of_the_hub_are_the_same(tmp_path):
    rows = questions(20, seed=0, unanswerable=True)
    (tmp_path / "a.json").write_text(json.dumps(as_squad(rows), indent=1))
    parquet.write_table(pa.Table.from_pylist(rows), tmp_path / "a.parquet")
    write_json(tmp_path / "a.jsonl", rows)
    write_json(tmp_path / "lines.json", rows)
    tables = [KIND.read(tmp_path / name, QA)[0] for name in ("a.json", "a.parquet", "a.jsonl", "lines.json")]
    assert all(table.equals(tables[0]) for table in tables[1:])
    assert tables[0]["text_a"].to_pylist() == [row["question"] for row in rows]
    assert tables[0]["answers"].to_pylist() == [row["answers"]["text"] for row in rows]


def test_a_context_of_which_the_tokenizer_makes_nothing(tmp_path, shared_model):
    for seed, split in enumerate(("train", "validation", "test")):
        rows = questions(12, seed=seed)
        rows[3] |= {"context": "\u200b\u200b", "answers": {"text": [], "answer_start": []}}
        write_json(tmp_path / f"{split}.jsonl", rows)
    with pytest.raises(DataError, match="the tokenizer makes nothing of a context"):
        tokenized(tmp_path, tokenizer=load_tokenizer(shared_model("tokenizer-bert-base-uncased")))


ROW = {"context": "Ada saw Rome", "question": "Who?", "answers": {"text": ["Ada"], "answer_start": [0]}}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"answers": {"text": ["Ada"], "answer_start": [4]}}, "not where it is said to be: 'Ada'.*row 1.*is 'saw'"),
        ({"answers": {"text": ["Ada"], "answer_start": [-3]}}, "not where it is said to be"),
        ({"answers": {"text": ["Ada"], "answer_start": [90]}}, "at character 90 of the context is ''"),
        ({"answers": {"text": ["Ada", "Rome"], "answer_start": [0]}}, "2 answers and 1 starts.*row 1"),
        ({"answers": {"text": [""], "answer_start": [0]}}, "an answer is empty"),
        ({"answers": "Ada"}, "no lists of answers"),
        ({"question": " "}, "a question is empty.*row 1"),
        ({"context": None}, "a context is empty.*row 1"),
    ],
)
def test_what_is_wrong_with_a_row_is_said(tmp_path, change, said):
    with pytest.raises(DataError, match=f"(?s){said}"):
        KIND.read(write_json(tmp_path / "a.jsonl", [ROW | change]), QA)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ({"data": []}, "has no questions"),
        ({"data": [{"paragraphs": [{"qas": [{"id": "7", "question": "Who?", "answers": []}]}]}]}, "'Who.'.*'context'"),
        ({"data": [{"title": "one"}]}, "form of SQuAD.*article 1.*'paragraphs'"),
        ({"data": 7}, "form of SQuAD"),
        (as_squad([ROW | {"id": "7", "answers": {"text": ["Bo"], "answer_start": [0]}}]), "question 7.*is 'Ad'"),
        (as_squad([ROW | {"id": "7", "question": "Who\ud800?"}]), r"a question is not valid Unicode.*7.*'.ud800'"),
        (as_squad([ROW | {"id": "7", "context": "Ada \ud800"}]), "a context is not valid Unicode.*question 7"),
    ],
)
def test_what_is_wrong_with_a_file_of_squad_is_said(tmp_path, content, said):
    (tmp_path / "a.json").write_text(json.dumps(content))
    with pytest.raises(DataError, match=f"(?s){said}"):
        KIND.read(tmp_path / "a.json", QA)


def test_a_missing_column_and_a_question_without_an_answer(tmp_path):
    with pytest.raises(DataError, match=r"(?s)no column 'answers'.*with the columns question"):
        KIND.read(write_json(tmp_path / "a.jsonl", [{"question": "Who?", "context": "Ada"}]), QA)
    folder = write_questions(tmp_path / "data")
    none = as_squad([ROW | {"id": "1"}, ROW | {"id": "2", "answers": {"text": [], "answer_start": []}}])
    (folder / "test-v2.0.json").write_text(json.dumps(none))
    with pytest.raises(DataError, match=r"(?s)has no answer, and every training question has one.*row 2"):
        tokenized(folder)


def test_a_question_that_leaves_no_room(tmp_path):
    folder = write_questions(tmp_path / "data")
    long = as_squad([ROW | {"id": "1", "question": "Who " * 30}])
    (folder / "test-v2.0.json").write_text(json.dumps(long))
    with pytest.raises(DataError, match=r"(?s)a question of 30 tokens leaves no room.*'test-test'.*max_length=384"):
        tokenized(folder)


def test_questions_of_one_context_are_held_out_together(tmp_path):
    rows = [ROW | {"context": f"Ada saw Rome in {number // 4}", "question": f"{number}?"} for number in range(80)]
    source = find_source(QA, str(write_json(tmp_path / "train.jsonl", rows)))
    held = SplitReader(source, 10, overlap="keep").tables()
    contexts = {name: set(table["text_b"].to_pylist()) for name, table in held.items()}
    assert held["validation"].num_rows == 10
    assert not contexts["validation"] & contexts["train"]
    assert not contexts["validation"] & contexts["test-held_out"]


# -- spans and windows --------------------------------------------------------------------------------------------


@given(st.integers(1, 40), st.integers(0, 1000))
def test_the_best_span_is_the_best_of_all(number, seed):
    starts, ends = np.random.default_rng(seed).normal(size=(2, number))
    every = {(i, j): starts[i] + ends[j] for i in range(number) for j in range(i, min(i + 30, number))}
    score, first, last = best_span(starts, ends)
    assert score == every[first, last] == max(every.values())


def test_windows_hold_the_whole_context_and_its_answer(tmp_path):
    words = [f"w{number}" for number in range(60)]
    context = " ".join(words)
    answer = {"text": ["w40 w41"], "answer_start": [context.index("w40")]}
    made = tiny_kinds.tokenizer([f"{context} Who ?"])
    table, _ = KIND.read(write_json(tmp_path / "a.jsonl", [ROW, {**ROW, "context": context, "answers": answer}]), QA)
    rows = table.append_column("row", pa.array([0, 7]))
    encoded = KIND.encode(made, rows, QA, max_length=24, where="here").combine_chunks()
    split = KIND.load(encoded, task=QA, tokenizer=made)
    assert len(split) > 4
    assert split.num_examples == 2
    assert split.lengths.max() == 24
    seen = set()
    for row in range(1, len(split)):
        first, number = split.context_starts[row], split.char_starts.lengths[row]
        tokens = made.convert_ids_to_tokens(split.tokens[split.offsets[row] :][first : first + number].tolist())
        spans = zip(split.char_starts[row], split.char_ends[row], strict=True)
        assert [context[start:end] for start, end in spans] == tokens
        seen |= set(tokens)
        start, end = split.targets(np.array([row]))[0]
        has_it = {"w40", "w41"} <= set(tokens)
        found = made.convert_ids_to_tokens(split.tokens[split.offsets[row] :][start : end + 1].tolist())
        assert found == (["w40", "w41"] if has_it else ["[CLS]"])
    assert seen == set(words)
    # Logits that point to the answer in every window that has it.
    answers = split.new_answers()
    for row in range(len(split)):
        logits = np.zeros((1, 24, 2))
        (start, end) = split.targets(np.array([row]))[0]
        logits[0, start, 0] = logits[0, end, 1] = 5
        split.put_answers(answers, np.array([row]), logits)
    kept = split.score(np.arange(len(split), dtype=float), answers)
    assert kept["text"].tolist() == ["Ada", "w40 w41"]
    assert kept["row"].tolist() == [0, 7]
    assert kept["loss"].tolist() == [0, np.arange(1, len(split)).mean()]
    assert kept["answer_f1"].tolist() == kept["exact_match"].tolist() == [1, 1]


def test_no_answer_is_an_answer_where_training_has_such_questions(tmp_path):
    prepared = tokenized(write_questions(tmp_path / "data", unanswerable=True))
    split = prepared.test["test"]
    assert split.may_have_none
    logits = np.zeros((len(split), int(split.lengths.max()), 2))
    logits[:, 0] = 1
    answers = split.new_answers()
    split.put_answers(answers, np.arange(len(split)), logits)
    kept = Predictions(**split.score(np.zeros(len(split)), answers))
    assert set(kept.text) == {""}
    asked = questions(30, seed=3, unanswerable=True)
    assert kept.mean("answer_f1") == kept.mean("exact_match") == np.mean([not row["answers"]["text"] for row in asked])


def test_the_loss_of_a_window_does_not_depend_on_its_batch(tmp_path):
    folder = write_questions(tmp_path / "data")
    prepared = tokenized(folder)
    sizes = dict(hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32)
    config = transformers.BertConfig(vocab_size=len(prepared.tokenizer), **sizes)
    objective = Objective(transformers.BertForQuestionAnswering(config), KIND).eval()
    measured = [
        evaluate(objective, prepared.test["test"], task=prepared.task, batch_size=size, pad=0, device=CPU)
        for size in (1, 30)
    ]
    assert np.allclose(*(one.predictions.loss for one in measured), atol=1e-5)
    assert measured[0].predictions.text.tolist() == measured[1].predictions.text.tolist()
    batch = collate(prepared.train, np.arange(9), pad=0, device=CPU)
    out = objective.model(**batch.inputs, start_positions=batch.targets[:, 0], end_positions=batch.targets[:, 1])
    single = [collate(prepared.train, np.array([row]), pad=0, device=CPU) for row in range(9)]
    own = [objective.model(**b.inputs, start_positions=b.targets[:, 0], end_positions=b.targets[:, 1]) for b in single]
    expected = torch.stack([one.loss for one in own]).sum()
    assert torch.isclose(objective(batch.inputs, batch.targets), expected, atol=1e-4), "that of transformers"
    assert not torch.isclose(out.loss * 9, expected, atol=1e-4), "which counts padding"


# -- scores -------------------------------------------------------------------------------------------------------


def squad_words(text):
    """As the official script: lower case, no punctuation, no articles, one space."""
    kept = "".join(c for c in text.lower() if c not in set(string.punctuation))
    return [word for word in kept.replace("\n", " ").split() if word not in ("a", "an", "the")]


def squad_f1(answer, right):
    one, other = squad_words(answer), squad_words(right)
    if not one or not other:
        return float(one == other)
    same = sum((Counter(one) & Counter(other)).values())
    if not same:
        return 0.0
    precision, recall = same / len(one), same / len(other)
    return 2 * precision * recall / (precision + recall)


TEXTS = st.lists(st.sampled_from(["The", "a", "Rome", "rome.", "New", "York", "!", "an", "theory"]), max_size=6)


@given(TEXTS.map(" ".join), st.lists(TEXTS.map(" ".join), min_size=1, max_size=3))
def test_scores_are_those_of_squad(answer, right):
    found = score_answer(answer, right)
    all_right = [one for one in right if squad_words(one)] or [""]
    assert found.f1 == pytest.approx(max(squad_f1(answer, one) for one in all_right))
    assert found.exact == max(squad_words(answer) == squad_words(one) for one in all_right)


def test_scores_by_hand():
    assert score_answer("the Norman Conquest!", ["Norman conquest"]) == (1, 1)
    assert score_answer("in the 10th century", ["10th century"]) == (0, pytest.approx(2 * (2 / 3) / (5 / 3)))
    assert score_answer("", []) == (1, 1)
    assert score_answer("something", []) == (0, 0)
    assert score_answer("Rome", ["Paris", "ROME"]) == (1, 1)


# -- a study ------------------------------------------------------------------------------------------------------


def test_a_study_of_questions(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    content = tiny_kinds.qa_study(tmp_path)
    results = oelm.run(oelm.load_study(tiny_study.write_study(tmp_path, content)), out=tmp_path / "runs")
    for record in results.records.values():
        assert record.status == "done"
        assert all(audit.passed for audit in record.audits)
        assert set(record.scores()) == {"answer_f1", "exact_match", "loss"}
        assert record.start.new_weights == ("qa_outputs.bias", "qa_outputs.weight")
        assert record.num_test_examples == 30
    found = results.compare("oelm-freeze", against="baseline", metric="answer_f1")
    assert found.estimate.examples is not None, "judged over questions too"
    codes = {issue.code: issue.message.key for issue in results.checks}
    assert not codes.keys() & {"UNPAIRED", "NOT-REPRODUCED", "AUDIT-FAILED"}
    assert codes["BELOW-SIMPLE-BASELINE"] == "no-simple-baseline-of-kind"


def test_columns_that_are_not_unicode(tmp_path):
    """Found by fuzzing: Arrow reads such a name, and fails when it is asked for."""
    (tmp_path / "train.json").write_bytes(b'{"question": "Who?", "\xff\xff": 1}\n')
    with pytest.raises(DataError, match="the column names are not valid UTF-8"):
        QuestionAnswering().read(tmp_path / "train.json", task_named("qa"))
