"""Token classification: files, alignment, the F1 of entities, what is kept of a sentence, and a study of it."""

import itertools
import json
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
import transformers
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet
from seqeval.metrics import accuracy_score, f1_score

import oelm
import tiny_kinds
import tiny_study
from oelm.analysis.evidence import _collapse
from oelm.cli.main import main
from oelm.data.kinds.kind import Ragged
from oelm.data.kinds.tokens import TaggedSentences, TokenClassification, find_first_tokens
from oelm.data.own import name_columns
from oelm.data.sources import find_source
from oelm.data.tasks import task_named
from oelm.data.tokenize import tokenize_task
from oelm.errors import DataError
from oelm.runs.predictions import Predictions
from tiny_kinds import conll, sentences, write_json

TOKENS = task_named("tokens")
KIND = TokenClassification()
TAGS = ("O", "B-LOC", "I-LOC", "B-PER", "I-PER")


def read(path):
    """(words, tags) of every sentence of a file."""
    rows, _ = KIND.read(path, TOKENS)
    return list(zip(rows["words"].to_pylist(), rows["tags"].to_pylist(), strict=True))


def tokenized(folder, *, max_length=32, validation=None, tokenizer=None):
    made = tokenizer or tiny_kinds.tokenizer([" ".join(words) for words, _ in sentences(120, seed=1)])
    source = find_source(TOKENS, str(folder))
    return tokenize_task(source, tokenizer=lambda *_: made, max_length=max_length, validation=validation)


# -- files --------------------------------------------------------------------------------------------------------


def test_conll_as_it_comes(tmp_path):
    file = tmp_path / "train.txt"
    start = "-DOCSTART- -X- -X- O\n"
    file.write_text(f"{start}\nEU NNP B-NP B-ORG\nrejects VBZ B-VP O\n\n\nRome NNP B-NP B-LOC\n{start}. . O O")
    assert read(file) == [(["EU", "rejects"], ["B-ORG", "O"]), (["Rome"], ["B-LOC"]), (["."], ["O"])]
    tabs = tmp_path / "train.conll"
    tabs.write_text("New York\tB-LOC\r\nis\tO\r\n")
    assert read(tabs) == [(["New York", "is"], ["B-LOC", "O"])]


def test_the_form_of_the_hub(tmp_path):
    """Lists in Parquet or JSON lines; numbers have names in the file, as the hub writes them."""
    rows = sentences(5, seed=0)
    lines = write_json(tmp_path / "train.jsonl", [{"tokens": words, "tags": tags} for words, tags in rows])
    assert read(lines) == rows
    numbers = [[TAGS.index(tag) for tag in tags] for _, tags in rows]
    table = pa.table({"tokens": [words for words, _ in rows], "ner_tags": numbers})
    told = {"info": {"features": {"ner_tags": {"feature": {"names": TAGS, "_type": "ClassLabel"}}}}}
    parquet.write_table(table.replace_schema_metadata({"huggingface": json.dumps(told)}), tmp_path / "train.parquet")
    assert read(tmp_path / "train.parquet") == rows
    parquet.write_table(table, tmp_path / "test.parquet")
    with pytest.raises(DataError, match="the file does not say what its numbers stand for"):
        read(tmp_path / "test.parquet")
    named, _ = KIND.read(tmp_path / "test.parquet", replace(TOKENS, labels=TAGS))
    assert named["tags"].to_pylist() == [tags for _, tags in rows]


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("a.conll", "EU B-ORG\nrejects\n", "one column only.*line 2: 'rejects'.*last column"),
        ("a.conll", "EU X B-ORG\nrejects O\n", "2 columns, and those before it have 3.*line 2"),
        ("a.conll", "EU\tB-ORG\nrejects\t\n", "no tag.*line 2"),
        ("a.conll", "EU ORG\n", "tag 'ORG' is not a tag in IOB2.*line 1.*try    tags are O, B-TYPE"),
        ("a.conll", "\n-DOCSTART- O\n\n", "no sentences"),
        ("a.txt", "\xff", "not valid UTF-8"),
        ("a.jsonl", {"tokens": [], "tags": []}, "a sentence is empty.*row 1"),
        ("a.jsonl", {"tokens": ["EU", " "], "tags": ["O", "O"]}, "a token is empty.*row 1"),
        ("a.jsonl", {"tokens": ["EU", "is"], "tags": ["B-ORG"]}, "2 tokens and 1 tags.*row 1"),
        ("a.jsonl", {"tokens": ["EU", "is"], "tags": ["B-ORG", None]}, "2 tokens and 1 tags.*row 1"),
        ("a.jsonl", {"tokens": ["EU"], "tags": None}, "must hold lists"),
        ("a.jsonl", {"tokens": ["EU"]}, "no column ner_tags or tags.*with the columns tokens"),
        ("a.jsonl", {"tokens": "EU is", "tags": ["O"]}, "column 'tokens' must hold lists"),
        ("a.jsonl", {"tokens": ["EU"], "tags": [1]}, "tag 1 has no name"),
        ("a.jsonl", {"tokens": ["EU"], "tags": [[1]]}, "a tag must be a text"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, name, content, said):
    path = tmp_path / name
    if isinstance(content, str):
        path.write_bytes(content.encode("latin-1"))
    else:
        write_json(path, [content])
    with pytest.raises(DataError, match=f"(?s){said}"):
        read(path)


def test_a_column_that_a_study_names_is_the_one_that_is_read(tmp_path):
    row = {"tokens": ["Rome"], "ner_tags": ["B-LOC"], "pos": ["O"]}
    file = write_json(tmp_path / "train.jsonl", [row])
    rows, _ = KIND.read(file, name_columns(TOKENS, {"label": "pos"}))
    assert rows["tags"].to_pylist() == [["O"]]
    with pytest.raises(DataError, match="no column poss"):
        KIND.read(file, name_columns(TOKENS, {"label": "poss"}))


def test_tags_that_no_training_sentence_has(tmp_path):
    folder = tiny_kinds.write_tokens(tmp_path / "data")
    (folder / "test.conll").write_text("EU X B-ORG\n")
    with pytest.raises(DataError, match=r"(?s)tag 'B-ORG' is in no training sentence.*'test-test', row 1: EU.*B-LOC"):
        tokenized(folder)
    (folder / "train.conll").write_text(conll([(["rain"], ["O"])] * 9))
    with pytest.raises(DataError, match="no training sentence has an entity"):
        tokenized(folder)


def test_without_its_scorer_nothing_is_trained(tmp_path, monkeypatch):
    monkeypatch.setattr(TokenClassification, "scored_by", "seqeval_is_not_here")
    with pytest.raises(DataError, match=r"(?s)package seqeval_is_not_here is not installed.*lab"):
        tokenized(tiny_kinds.write_tokens(tmp_path / "data"))


def test_one_message_and_exit_code_2(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    study = tiny_study.write_study(tmp_path, tiny_kinds.tokens_study(tmp_path))
    (tmp_path / "data" / "train.conll").write_text("EU B-ORG\nrejects\n")
    monkeypatch.setattr("sys.argv", ["oelm", "run", str(study), "--out", str(tmp_path / "runs")])
    with pytest.raises(SystemExit) as end:
        main()
    assert end.value.code == 2
    said = capsys.readouterr().err
    assert said.count("one column only") == 1
    assert "train.conll, line 2" in said
    assert "Traceback" not in said


# -- words and sub-tokens -----------------------------------------------------------------------------------------


def test_the_first_sub_token_of_a_word_counts():
    words = ["New", "York's", "ok"]  # New York ' s ok, with the space before a word as a part of it
    spans = np.array([(0, 0), (0, 3), (3, 8), (8, 9), (9, 10), (10, 13), (0, 0)])
    assert find_first_tokens(words, spans) == [1, 2, 5]
    assert find_first_tokens(words, spans[:3]) == [1, 2, -1], "the sentence was cut"


def test_alignment_is_that_of_a_real_tokenizer(shared_model):
    """As transformers aligns words that it splits itself."""
    made = oelm.data.tokenize.load_tokenizer(shared_model("tokenizer-bert-base-uncased"))
    words = ["U.N.", "official", "Ekeus", "heads", "for", "Baghdad", "(", "1996-08-30", ")", "naïveté", "."]
    expected = made(words, is_split_into_words=True).word_ids()
    encoded = made(" ".join(words), return_offsets_mapping=True)
    found = find_first_tokens(words, np.array(encoded["offset_mapping"]))
    assert found == [expected.index(number) for number in range(len(words))]


def test_alignment_with_a_tokenizer_that_keeps_spaces(shared_model):
    """Byte-level BPE, as RoBERTa has it: the space before a word is a part of its first sub-token."""
    made = oelm.data.tokenize.load_tokenizer(shared_model("tokenizer-gpt2"))
    words = ["U.N.", "official", "Ekeus", "heads", "for", "naïveté", "(", "1996-08-30", ")"]
    encoded = made(" ".join(words), return_offsets_mapping=True)
    places = [*find_first_tokens(words, np.array(encoded["offset_mapping"])), len(encoded["input_ids"])]
    pieces = [made.decode(encoded["input_ids"][a:b]) for a, b in itertools.pairwise(places)]
    assert [piece.strip() for piece in pieces] == words


def test_a_split_holds_every_word(tmp_path):
    """Cut words have no target and no loss, and count as outside of entities."""
    prepared = tokenized(tiny_kinds.write_tokens(tmp_path / "data"), max_length=8)
    assert prepared.task.labels == TAGS
    split = prepared.test["test"]
    rows = sentences(40, seed=3)
    assert split.tags.lengths.tolist() == [len(words) for words, _ in rows]
    assert split.predicted_words.max() == 6, "beside the two special tokens"
    assert prepared.facts.cut["test-test"] == sum(len(words) > 6 for words, _ in rows) > 0
    some = np.array([0, 1])
    targets = split.targets(some)
    assert targets.shape == (2, split.lengths[some].max())
    for number, row in enumerate(some):
        named = [TAGS[tag] for tag in targets[number] if tag != -100]
        assert named == rows[row][1][:6]
    assert split.count_targets(some) == (targets != -100).sum()
    answers = split.new_answers()
    split.put_answers(answers, some, np.full(targets.shape, TAGS.index("B-PER")))
    first = answers[: split.tags.offsets[1]]
    assert {TAGS[tag] for tag in first[:6]} == {"B-PER"}
    assert not first[6:].any(), "O"


# -- scores -------------------------------------------------------------------------------------------------------


def made_split(lengths, right):
    offsets = np.cumsum([0, *lengths])
    return TaggedSentences(
        tokens=np.zeros(len(right), np.int32),
        offsets=offsets,
        rows=np.arange(len(lengths)),
        tags=Ragged(values=right, offsets=offsets),
        places=Ragged(values=np.concatenate([np.arange(length) for length in lengths]), offsets=offsets),
        labels=TAGS,
    )


@settings(max_examples=40)
@given(st.data(), st.lists(st.integers(1, 8), min_size=1, max_size=8))
def test_f1_and_accuracy_are_those_of_seqeval(data, lengths):
    numbers = st.lists(st.integers(0, len(TAGS) - 1), min_size=sum(lengths), max_size=sum(lengths))
    right, predicted = np.array(data.draw(numbers)), np.array(data.draw(numbers))
    split = made_split(lengths, right)
    kept = Predictions(**split.score(np.zeros(len(lengths)), predicted))
    named = [[TAGS[tag] for tag in some] for some in (right, predicted)]
    by_sentence = [[of[a:b] for a, b in zip(split.offsets, split.offsets[1:], strict=False)] for of in named]
    expected = f1_score(*by_sentence, zero_division=0)
    assert kept.mean("entity_f1") == pytest.approx(expected, abs=1e-12)
    assert kept.mean("token_accuracy") == pytest.approx(accuracy_score(*by_sentence))


def test_what_a_sentence_has_to_do_with_f1():
    """The spread of the jackknife is that of F1 over other samples of sentences."""
    random = np.random.default_rng(0)

    def draw(number):
        true = random.integers(0, 4, number)
        right = random.binomial(true, 0.7)
        found = right + random.binomial(2, 0.2, number)
        filled = {"row": np.arange(number), "loss": np.zeros(number), "words": np.full(number, 9)}
        return Predictions(**filled, right_entities=right, found_entities=found, true_entities=true)

    scores = draw(400).scores("entity_f1")
    told = scores.std(ddof=1) / np.sqrt(400)
    assert told == pytest.approx(np.std([draw(400).mean("entity_f1") for _ in range(800)]), rel=0.1)


def test_a_tagger_that_finds_nothing_has_collapsed():
    counts = {"row": np.arange(3), "loss": np.ones(3), "words": np.full(3, 4), "tokens": np.full(3, 4)}
    nothing = {"right_words": np.full(3, 3), "right_entities": np.zeros(3, int), "found_entities": np.zeros(3, int)}
    kept = Predictions(**counts, **nothing, true_entities=np.ones(3, int))
    assert _collapse(None, kept).key == "collapsed-class"
    assert _collapse(None, replace(kept, found_entities=np.array([0, 1, 0]))) is None
    assert _collapse(None, replace(kept, true_entities=np.zeros(3, int))) is None, "there is nothing to find"


@pytest.mark.parametrize("head", ["TokenClassification", "QuestionAnswering"])
def test_the_audit_guards_the_head(head):
    """It is new, and must learn; queries and keys are found below it."""
    sizes = dict(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32, vocab_size=50)
    model = getattr(transformers, f"BertFor{head}")(transformers.BertConfig(**sizes))
    applied = oelm.apply(model, init="orthogonalize", freeze="qk", seed=0)
    assert not applied.audit().findings
    own = "classifier" if head == "TokenClassification" else "qa_outputs"
    getattr(model, own).weight.requires_grad_(False)
    assert own in " ".join(str(one) for one in applied.audit().findings)


# -- a study ------------------------------------------------------------------------------------------------------


def test_a_study_of_tags(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    content = tiny_kinds.tokens_study(tmp_path)
    results = oelm.run(oelm.load_study(tiny_study.write_study(tmp_path, content)), out=tmp_path / "runs")
    for record in results.records.values():
        assert record.status == "done"
        assert all(audit.passed for audit in record.audits)
        assert set(record.scores()) == {"entity_f1", "token_accuracy", "loss"}
        assert record.start.new_weights == ("classifier.bias", "classifier.weight")
    found = results.compare("oelm-freeze", against="baseline", metric="entity_f1")
    assert found.estimate.examples is not None, "judged over sentences too"
    codes = {issue.code for issue in results.checks}
    assert not codes & {"UNPAIRED", "NOT-REPRODUCED", "AUDIT-FAILED"}
    (simple,) = results.simple_baselines
    assert simple.splits["test"] == {"entity_f1": 1.0, "token_accuracy": 1.0}, "every name has one tag here"
    saved = json.loads((tmp_path / "runs/tiny/baseline/seed-0/model/config.json").read_text())
    assert saved["id2label"] == dict(zip("01234", TAGS, strict=True))
