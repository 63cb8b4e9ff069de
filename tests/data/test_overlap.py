"""Overlap: the same and nearly the same texts are found, others are not; whole groups are held out."""

import itertools

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from oelm.data import overlap
from oelm.data.limit import Limit
from oelm.data.overlap import TextIndex, normalize, sentences_of
from oelm.data.sources import find_source
from oelm.data.splits import SplitReader
from oelm.data.tasks import task_named
from oelm.data.tokenize import tokenize_task
from oelm.errors import DataError
from oelm.facts import Overlap

LONG = "the quick brown fox jumps over the lazy dog and runs away from all the hounds of the hunting lord"


def words(number, *, seed=0):
    return " ".join(f"w{one}" for one in np.random.default_rng(seed).integers(0, 10**6, number))


def look_up(index, *texts):
    """(number of a text, number of what was found, whether it is the same) of each text that was found."""
    found = index.look_up([((text,),) for text in texts])
    return sorted(zip(found.rows.tolist(), found.texts.tolist(), found.exact.tolist(), strict=True))


def index_of(*texts):
    return TextIndex(("test", ((text,),)) for text in texts)


@pytest.mark.parametrize(
    "copy",
    [
        LONG.upper(),
        f"  {LONG.replace(' ', chr(10))}.",
        LONG.replace("quick", "“quick,”"),
        LONG.replace("fox", "\uff46\uff4f\uff58"),  # full-width letters
    ],
)
def test_the_same_but_for_case_punctuation_and_spaces(copy):
    assert look_up(index_of("another", LONG), "a third", copy) == [(1, 1, True)]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("costs $5", "costs £5"),
        ("fun 😀", "fun 😡"),
        ("1 + 1", "1 = 1"),
        ("good", "goods"),
        ("a b", "ab"),
        ("कि", "का"),
    ],
)
def test_what_makes_a_difference(one, other):
    assert normalize(one) != normalize(other)
    assert look_up(index_of(one), other) == []


@pytest.mark.parametrize("nothing", ["", "  ", "?!", "\u200b", "...\n"])
def test_a_text_without_a_word_is_like_no_other(nothing):
    assert look_up(index_of(nothing, "", LONG), nothing, "") == []


def test_short_texts_are_found_only_if_they_are_the_same():
    assert look_up(index_of("good", "it is a good film"), "good", "a good film", "It is a good film!") == [
        (0, 0, True),
        (2, 1, True),
    ]


@pytest.mark.parametrize(
    ("text", "is_near"),
    [
        (LONG.replace("lazy", "sleepy"), True),  # 11 of 16 shingles
        (LONG + " " + words(40), True),  # the whole of it, in a longer one
        (" ".join(LONG.split()[:12]), True),  # a part of twelve words
        (" ".join(LONG.split()[:11]), False),  # of eleven: seven shingles
        (" ".join(LONG.split()[:9]) + " " + words(11), False),
        (" ".join(reversed(LONG.split())), False),
        (words(20), False),
    ],
)
def test_nearly_the_same(text, is_near):
    assert look_up(index_of(LONG, words(20, seed=1)), text) == ([(0, 0, False)] if is_near else [])
    assert look_up(index_of(text), LONG) == ([(0, 0, False)] if is_near else []), "in either direction"


def test_half_of_the_shorter_text_decides():
    shared, more = words(40, seed=1), [words(40, seed=seed) for seed in (2, 3)]
    assert look_up(index_of(f"{shared} {more[0]}"), f"{shared} {more[1]}") == [], "36 of 76 shingles"
    assert look_up(index_of(f"{shared} {words(30, seed=2)}"), f"{shared} {more[1]}") == [(0, 0, False)], "36 of 66"


def test_boilerplate_is_no_leak():
    """What more than twenty texts share says nothing about any of them."""
    texts = [f"{LONG} {words(10, seed=seed)}" for seed in range(21)]
    assert look_up(index_of(*texts), f"{LONG} {words(5, seed=99)}") == []
    assert len(look_up(index_of(*texts[:20]), f"{LONG} {words(5, seed=99)}")) == 20
    assert len(look_up(index_of(*[LONG] * 50), LONG.replace("lazy", "sleepy"))) == 1, "copies are one text"


def test_chinese_has_no_spaces():
    text = "我们的目标是让每一个注意力头的查询和键投影矩阵的行向量互相正交并且冻结它们"
    assert look_up(index_of(text), text.replace("冻结", "固定") + "。") == [(0, 0, False)]


def test_both_texts_of_a_pair_must_be():
    index = TextIndex([("test", ((LONG,), ("a short question",))), ("test", ((LONG,), (words(30),)))])
    found = index.look_up(
        [
            ((LONG.upper(),), ("A short question?",)),
            ((LONG,), ("another question",)),
            ((LONG + " once more",), ("a short question",)),
            ((LONG,), (words(30) + " more",)),
            ((words(30),), (LONG,)),
            (("",), ("a short question",)),
        ]
    )
    assert list(zip(found.rows, found.texts, found.exact, strict=True)) == [(0, 0, True), (2, 0, False), (3, 1, False)]


def test_long_documents_take_bounded_memory(monkeypatch):
    """A sample of the shingles of each, in parts of any size, finds the same."""
    monkeypatch.setattr(overlap, "_MOST", 256)
    monkeypatch.setattr(overlap, "_BLOCK", 5000)
    monkeypatch.setattr(overlap, "_BATCH", 10000)
    first, second = words(20000, seed=1), words(20000, seed=2)
    index = index_of(first, second)
    assert len(index._shingles) <= 2 * 256
    mostly = " ".join(first.split()[:15000]) + " " + words(5000, seed=3)
    half = [mostly[start : start + 777] for start in range(0, len(mostly), 777)]
    found = index.look_up([((words(20000, seed=4),),), (half,), ((second,),)])
    assert list(zip(found.rows, found.texts, found.exact, strict=True)) == [(2, 1, True), (1, 0, False)]


@given(st.lists(st.text(max_size=40), max_size=6), st.lists(st.text(max_size=40), max_size=6))
def test_any_texts(some, others):
    """The same words are found, and nothing is nearly the same: all are too short."""
    expected = {row for row, text in enumerate(others) if normalize(text) and normalize(text) in map(normalize, some)}
    found = index_of(*some).look_up([((text,),) for text in others])
    assert set(found.rows.tolist()) == expected
    assert found.exact.all()


def brute_force(one, other):
    """The definition, by sets of tuples."""
    sets = []
    for text in (one, other):
        parts = normalize(text).split()
        sets.append({tuple(parts[at : at + 5]) for at in range(len(parts) - 4)})
    shared = len(sets[0] & sets[1])
    return shared >= max(8, 0.5 * min(map(len, sets)))


def test_as_by_definition():
    random = np.random.default_rng(0)
    base = [words(60, seed=seed).split() for seed in range(5)]
    texts = []
    for _ in range(60):
        start, length = random.integers(0, 30), random.integers(5, 40)
        mixed = base[random.integers(5)][start : start + length] + base[random.integers(5)][: random.integers(0, 30)]
        texts.append(" ".join(mixed))
    some, others = texts[:12], texts[12:]  # few enough that no shingle is common
    numbers = index_of(*some).splits["test"]
    expected = {
        (row, int(number))
        for row, other in enumerate(others)
        for number, one in zip(numbers, some, strict=True)
        if brute_force(one, other) or normalize(one) == normalize(other)
    }
    found = index_of(*some).look_up([((text,),) for text in others])
    assert set(zip(found.rows.tolist(), found.texts.tolist(), strict=True)) == expected
    assert len(expected) > 20


# -- division -------------------------------------------------------------------------------------------------------


def write(folder, **splits):
    folder.mkdir(exist_ok=True)
    for split, columns in splits.items():
        parquet.write_table(pa.table(columns), folder / f"{split}.parquet")
    return str(folder)


def rows_of(texts, **more):
    return {"text": texts, "label": [number % 2 for number in range(len(texts))], **more}


def divided(task, path, validation, **options):
    return SplitReader(find_source(task_named(task), path), validation, **options)


def examples(number):
    return Limit(examples=number)


NEWS = [words(20, seed=seed) for seed in range(60)]


def test_training_rows_that_are_in_the_test_are_left_out(tmp_path):
    test = [NEWS[0].upper(), NEWS[1] + " and more", *(words(20, seed=seed) for seed in range(100, 108))]
    path = write(tmp_path / "d", train=rows_of([*NEWS, NEWS[0]]), test=rows_of(test))
    reader = divided("ag_news", path, 10)
    tables = reader.tables()
    assert not {NEWS[0], NEWS[1]} & set(tables["train"]["text"].to_pylist() + tables["validation"]["text"].to_pylist())
    assert reader.division.overlap == (
        Overlap(split="test-test", other="train", texts=10, exact=1, near=1, dropped=3),
        Overlap(split="validation", other="train", texts=10, exact=0, near=0, dropped=0),
    )
    kept = divided("ag_news", path, 10, overlap="keep")
    assert kept.tables()["train"].num_rows == tables["train"].num_rows + 3
    assert [one.dropped for one in kept.division.overlap] == [0, 0]
    assert kept.division.overlap[0].exact == 1, "kept, but counted"
    assert kept.tables()["validation"]["row"].equals(tables["validation"]["row"]), "what is held out is the same"


def test_nothing_in_common_changes_nothing(tmp_path):
    """The rows that are held out are those that a permutation by the name of the task gives."""
    path = write(tmp_path / "d", train=rows_of(NEWS), test=rows_of([words(20, seed=100)]))
    reader = divided("ag_news", path, 10)
    assert reader.tables()["train"].num_rows == 50
    assert not any(one.exact or one.near or one.dropped for one in reader.division.overlap)


def test_a_limit_of_what_is_trained_on(tmp_path):
    """Those of a smaller limit are among those of a larger one, and what is held out does not change."""
    path = write(tmp_path / "d", train=rows_of(NEWS), test=rows_of([words(20, seed=100)]))
    whole, large, small = (
        divided("ag_news", path, 10, limit=limit).tables() for limit in (None, examples(30), examples(12))
    )
    trained_on = [set(tables["train"]["row"].to_pylist()) for tables in (whole, large, small)]
    assert [len(rows) for rows in trained_on] == [50, 30, 12]
    assert trained_on[0] > trained_on[1] > trained_on[2]
    assert whole["validation"].equals(small["validation"])
    with pytest.raises(DataError, match=r"(?s)only 50 training examples.*recipe\.data\.limit"):
        divided("ag_news", path, 10, limit=examples(51)).tables()
    with pytest.raises(DataError, match=r"(?s)same label.*recipe\.data\.limit"):
        divided("ag_news", path, 10, limit=examples(1)).tables()


def test_a_limit_of_documents(tmp_path):
    path = write(tmp_path / "d", train={"text": NEWS}, validation={"text": [words(20, seed=100)]})
    kept = [
        text
        for role, text in divided("tinystories", path, 10, limit=Limit(documents=12)).documents()
        if role == "train"
    ]
    assert len(kept) == 12
    with pytest.raises(DataError, match=r"only 50 training documents"):
        divided("tinystories", path, 10, limit=Limit(documents=51)).division  # noqa: B018


def test_a_limit_of_few_documents_counts_pieces_and_says_so(tmp_path):
    """As what is held out does: of three documents nobody could hold out ten."""
    long = ["\n".join(words(20, seed=100 * number + line) for line in range(200)) for number in range(3)]
    path = write(tmp_path / "d", train={"text": long}, validation={"text": [words(20, seed=1)]})
    pieces = [
        text for role, text in divided("tinystories", path, 3, limit=Limit(documents=5)).documents() if role == "train"
    ]
    assert len(pieces) == 5
    says = r"training pieces of about 2,000 characters \(of fewer than 20 documents\)"
    with pytest.raises(DataError, match=rf"(?s)only \d+ {says}.*recipe\.data\.limit"):
        divided("tinystories", path, 3, limit=Limit(documents=10_000)).division  # noqa: B018
    with pytest.raises(DataError, match=rf"(?s)cannot hold out 900 of \d+ {says}.*recipe\.data\.validation"):
        divided("tinystories", path, 900).division  # noqa: B018


def test_validation_as_another_file_of_the_training_rows(tmp_path):
    pairs = {"text_a": NEWS, "text_b": NEWS[::-1], "label": [0, 1, 2] * 20}
    others = {split: {**pairs, "split": [split] * 60} for split in ("validation", "test")}
    path = write(tmp_path / "d", train=pairs, **others)
    with pytest.raises(DataError, match=r"(?s)nothing left to train on.*60 of 60 texts of validation.*overlap=keep"):
        divided("xnli-en", path, None).tables()
    kept = divided("xnli-en", path, None, overlap="keep").division
    assert {(one.split, one.other): one.exact for one in kept.overlap} == {
        ("validation", "train"): 60,
        ("test-test", "train"): 60,
        ("test-test", "validation"): 60,
    }


def test_copies_do_not_straddle_the_hold_out(tmp_path):
    texts = [f"{text}{'.' * copy}" for copy in range(3) for text in NEWS]
    path = write(tmp_path / "d", train=rows_of(texts), test=rows_of([words(20, seed=100)] * 2))
    for kind in ("drop", "keep"):
        tables = divided("ag_news", path, 30, overlap=kind).tables()
        sides = [set(map(normalize, tables[name]["text"].to_pylist())) for name in ("train", "validation")]
        assert tables["validation"].num_rows == 30
        assert (len(sides[1]), len(sides[0])) == (10, 50)
        assert not sides[0] & sides[1]


def test_groups_are_held_out_whole(tmp_path):
    documents = [number // 6 for number in range(60)]
    train = rows_of(NEWS, document=documents)
    path = write(tmp_path / "d", train=train, test=rows_of([words(20, seed=100)] * 2))
    tables = divided("ag_news", path, 15, group="document").tables()
    sides = [{documents[row] for row in tables[name]["row"].to_pylist()} for name in ("train", "validation")]
    assert (tables["validation"].num_rows, len(sides[1]), len(sides[0])) == (15, 3, 7)
    assert not sides[0] & sides[1]
    assert tables["train"].num_rows == 42, "three of the third group are neither"
    train["document"] = [f"document {one}" for one in documents]
    named = write(tmp_path / "e", train=train, test=rows_of(["x", "y"]))
    assert divided("ag_news", named, 15, group="document").tables()["train"].num_rows == 42


@pytest.mark.parametrize(
    ("column", "says"),
    [
        ({}, "no column 'document' to group by"),
        ({"document": [0.5] * 60}, "must hold names or numbers of groups, got double"),
        ({"document": [None, *range(59)]}, "has 1 missing values"),
        ({"document": [7] * 60}, "cannot hold out 10 of 60|nothing left to train on"),
    ],
)
def test_groups_that_are_none(tmp_path, column, says):
    path = write(tmp_path / "d", train=rows_of(NEWS, **column), test=rows_of(["x", "y"]))
    with pytest.raises(DataError, match=says):
        divided("ag_news", path, 10, group="document").tables()


def test_empty_texts_are_no_leak(tmp_path):
    path = write(tmp_path / "d", train=rows_of([""] * 20 + NEWS), test=rows_of(["", "?!", "."]))
    reader = divided("ag_news", path, 10)
    assert reader.tables()["train"].num_rows == 70
    assert not any(one.exact or one.near for one in reader.division.overlap)


def test_held_out_test_and_validation_are_counted_too(tmp_path):
    twins = [f"{text} {end}" for text in NEWS for end in ("one", "two")]  # nearly the same, not copies
    reader = divided("rotten_tomatoes", write(tmp_path / "d", train=rows_of(twins)), 30)
    found = {(one.split, one.other): one for one in reader.division.overlap}
    assert set(found) == {("test-held_out", "train"), ("validation", "train"), ("test-held_out", "validation")}
    trained = {normalize(text).rsplit(" ", 1)[0] for text in reader.tables()["train"]["text"].to_pylist()}
    held = {normalize(t).rsplit(" ", 1)[0] for t in reader.tables()["validation"]["text"].to_pylist()}
    assert not trained & held
    assert found["validation", "train"].near == found["validation", "train"].dropped > 0


# -- documents ------------------------------------------------------------------------------------------------------


def test_documents_in_two_splits(tmp_path):
    path = write(
        tmp_path / "d",
        train={"text": [NEWS[0] + "!", words(400, seed=200) + NEWS[1], *NEWS[2:40]]},
        validation={"text": [NEWS[0], NEWS[1] + " once more", *NEWS[40:]]},
    )
    reader = divided("tinystories", path, 5)
    trained = [role for role, document in reader.documents() if role == "train" and list(document)]
    assert reader.division.overlap[0] == Overlap(
        split="test-validation", other="train", texts=22, exact=1, near=1, dropped=2
    )
    assert len(trained) == 33


def test_of_one_long_document_the_common_part_is_left_out(tmp_path):
    """Lines are one document: what is left out of it is chunks."""
    lines = [words(60, seed=seed) for seed in range(200)]
    leaked = lines[50:80]
    path = write(
        tmp_path / "d",
        train={"text": lines},
        validation={"text": [words(60, seed=seed) for seed in range(300, 340)]},
        test={"text": [words(60, seed=400), *leaked, words(60, seed=401)]},
    )
    reader = divided("wikitext-2", path, None)
    splits = {role: "".join(document) for role, document in reader.documents()}
    kept = [line for line in lines if line in splits["train"]]
    assert set(lines) - set(kept) <= set(lines[44:86])
    assert len(set(leaked) & set(kept)) <= 4, "but for the ends"
    assert splits["test-test"].splitlines()[1:31] == leaked, "the test is whole"
    whole = divided("wikitext-2", path, None, overlap="keep")
    assert next("".join(document) for _, document in whole.documents()).splitlines() == lines


# -- phrases --------------------------------------------------------------------------------------------------------


def test_the_sentences_of_a_phrase():
    texts = ["a fine film", "It is a fine film", "it is a fine film .", "a film", "film", "another film", "", "?"]
    assert sentences_of(texts) == [(2,), (2,), (2,), (3,), (2, 3, 5), (5,), (6,), (7,)]


def phrases(number):
    """A sentence and its parts, as in SST-2."""
    sentence = [f"s{number}w{one}" for one in range(10)] + ["film"]
    return [" ".join([*sentence, "."]), " ".join(sentence), " ".join(sentence[:5]), " ".join(sentence[5:]), "film"]


def test_whole_sentences_are_held_out_of_sst2(tmp_path):
    texts = list(itertools.chain.from_iterable(phrases(number) for number in range(40)))
    path = write(tmp_path / "d", train=rows_of(texts), validation=rows_of(["another one", "and another"]))
    reader = divided("sst2", path, 10)
    tables = reader.tables()
    held, trained = (tables[name]["text"].to_pylist() for name in ("validation", "train"))
    assert len(held) == 10
    assert all(text.endswith(".") for text in held), "the whole, with its full stop"
    assert not any(text != "film" and text in sentence for text in trained for sentence in held)
    assert trained.count("film") == 40, "a part of sentences that are trained on, too"
    assert len(trained) == 30 * 4 + 40
    assert reader.division.overlap[-1] == Overlap(
        split="validation", other="train", texts=10, exact=0, near=0, dropped=20
    )
    kept = divided("sst2", path, 10, overlap="keep").tables()["train"]["text"].to_pylist()
    assert len(kept) == 30 * 4 + 40 + 20


@pytest.mark.parametrize(
    ("labels", "reported"),
    [
        ([0, 1, 1], ["test", "validation"]),
        ([-1] * 3, ["validation"]),
        ([None] * 3, ["validation"]),
        (None, ["validation"]),
    ],
)
def test_sst2_is_tested_on_the_labeled_test_set_where_there_is_one(tmp_path, labels, reported):
    test = {"text": ["what", "is", "hidden"], **({"label": labels} if labels else {})}
    train = rows_of([f"film number {number}" for number in range(40)])
    path = write(tmp_path / "d", train=train, validation=rows_of(["a", "b"]), test=test)
    source = find_source(task_named("sst2"), path)
    tokenizer = lambda texts, made_from: overlap_tokenizer(texts)  # noqa: E731
    data = tokenize_task(source, tokenizer=tokenizer, max_length=8, validation=5)
    assert list(data.test) == reported
    mapped = {split: f"{path}/{split}.parquet" for split in ("train", "validation")}
    assert set(find_source(task_named("sst2"), mapped).files) == {"train", "validation"}, "unless it is not named"


def overlap_tokenizer(texts):
    from oelm.data.tokenize import train_tokenizer

    return train_tokenizer(texts, vocab=300, made_from="overlap")


def test_what_is_left_out_is_said_once_and_kept(tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    path = write(tmp_path / "d", train=rows_of(NEWS), test=rows_of([NEWS[0], words(20, seed=100)]))
    heard, told = [], []
    source = find_source(task_named("ag_news"), path)
    made = [
        tokenize_task(
            source,
            tokenizer=lambda texts, made_from: overlap_tokenizer(texts),
            max_length=8,
            validation=10,
            log=heard.append,
            progress=lambda *news: told.append(news),
        )
        for _ in range(2)
    ]
    assert heard == [
        "1 of 2 texts of test-test are also in train, 0 nearly; 1 training texts are dropped for it",
    ]
    assert told[0] == ("comparing texts", 0, 0)
    assert made[0].facts == made[1].facts
    assert made[0].facts.overlap[0].dropped == 1
    assert made[0].facts.sizes["train"] == 49
