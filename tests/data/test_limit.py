"""Limits: the front of a text and some of the examples, the same however much is asked for; no more is read."""

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import parquet

from oelm.data.limit import Limit
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import task_named
from oelm.data.tokenize import tokenize_task, train_tokenizer
from oelm.errors import DataError, StudyError
from oelm.study.overrides import apply_overrides
from oelm.study.recipe import BatchConfig, Budget, DataConfig, LimitConfig, ModelConfig, OptimizerConfig, Recipe

STORIES = task_named("tinystories")


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def stories(tmp_path):
    """Four files of 1,000 documents each; the second document of the third file is also one of the first."""
    texts = [" ".join(f"w{one}" for one in np.random.default_rng(row).integers(0, 10**6, 20)) for row in range(4010)]
    texts[2001] = texts[3]
    for number in range(4):
        part = pa.table({"text": texts[1000 * number : 1000 * number + 1000]})
        parquet.write_table(part, tmp_path / f"train-{number:05d}-of-00004.parquet")
    parquet.write_table(pa.table({"text": texts[4000:]}), tmp_path / "validation.parquet")
    return tmp_path, texts


def read(folder, **limit):
    limit = Limit(**limit) if limit else None
    source = find_source(STORIES, str(folder), limit=limit, validation=5)
    return SplitReader(source, 5, limit=limit)


def texts_of(reader, role):
    return ["".join(parts) for found, parts in reader.documents() if found == role]


def test_documents_are_those_of_the_front_and_no_other_file_is_read(stories):
    folder, texts = stories
    small, large = read(folder, documents=100), read(folder, documents=1500)
    assert [path.name[:11] for path in small.source.files["train"]] == ["train-00000", "train-00001"]
    assert len(large.source.files["train"]) == 3
    assert len(small.source.fingerprint()["train"]) == 2
    held = texts_of(small, "validation")
    assert texts_of(large, "validation") == held
    assert len(held) == 5
    assert set(held) <= set(texts[:20])
    trained = [text for text in texts if text not in held]
    assert texts_of(small, "train") == trained[:100]
    assert texts_of(large, "train") == trained[:1500]
    assert len(small.division.dropped) == 20 + 100 * 9 // 8 + 1000, "what is compared"
    with pytest.raises(DataError, match=r"(?s)only 3995 training documents.*try    a smaller number, or leave it out"):
        read(folder, documents=4000).division  # noqa: B018


def test_tokens_are_exactly_as_many(stories):
    folder, _ = stories
    tokens = {}
    for number in (700, 9000):
        limit = Limit(tokens=number)
        source = find_source(STORIES, str(folder), limit=limit, validation=5)
        tokenizer = train_tokenizer(lambda: ["w1 w23 w456"], vocab=300, made_from="x")
        options = {"tokenizer": lambda texts, made_from, it=tokenizer: it, "max_length": 8, "validation": 5}
        made = tokenize_task(source, limit=limit, **options)
        tokens[number] = made.train.tokens
        assert len(tokens[number]) == number
        assert made.facts.sizes["validation"] == len(made.validation) > 5
    assert (tokens[700] == tokens[9000][:700]).all()
    with pytest.raises(DataError, match=r"(?s)only \d+,\d+ training tokens.*recipe\.data\.limit.*a smaller number"):
        tokenize_task(source, limit=Limit(tokens=10**6), **options)


def test_a_limit_by_what_the_task_has_not(stories):
    with pytest.raises(DataError, match=r"\{documents: N\} or \{tokens: N\}, not examples"):
        read(stories[0], examples=5).division  # noqa: B018
    made = find_source(task_named("recall"), None)
    with pytest.raises(DataError, match=r"\{examples: N\}, not tokens"):
        SplitReader(made, None, limit=Limit(tokens=5)).tables()


RECIPE = Recipe(
    model=ModelConfig(name="m"),
    data=DataConfig(limit=LimitConfig(examples=5)),
    budget=Budget(steps=1),
    optimizer=OptimizerConfig(lr=1e-3),
    batch=BatchConfig(),
)


@pytest.mark.parametrize(
    ("path", "value", "says"),
    [
        ("data.limit", 500, r"must be a mapping with examples, documents, tokens, such as \{examples: 500\}, got 500"),
        ("data.limit.examples", 0, "must be greater than or equal to 1, got 0"),
        ("data.limit.examples", 10**40, "must be less than or equal to 1000000000000000"),
        ("data.limit.examples", 1.5, "must be a valid integer"),
        ("data.limit.examples", None, "say exactly one of examples, documents and tokens, not none"),
        ("data.limit.rows", 5, "unknown field"),
    ],
)
def test_bad_limits_have_one_message(path, value, says):
    with pytest.raises(StudyError, match=rf"(?s)has 1 problem;.*{says}"):
        apply_overrides(RECIPE, {path: value})


def test_a_limit_replaces_another():
    assert apply_overrides(RECIPE, {"data.limit.tokens": 7}).data.limit == LimitConfig(tokens=7)
