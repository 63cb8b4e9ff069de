"""Numbers: a check fires where nothing that would be printed so is possible, and nowhere else."""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from made_runs import made_record
from oelm.analysis.checks import consistency as numbers
from oelm.analysis.checks.consistency import f1_impossible, grim, saving_ceiling
from oelm.analysis.checks.reported_number import parse_clock, parse_duration, parse_number
from oelm.errors import OelmError
from oelm.facts import Counts
from oelm.runs.record import ValidationScore
from oelm.study.cells import Cell
from oelm.text.messages import translate


def codes(issues):
    return [found.code for found in issues]


# -- as printed ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value", "half"),
    [
        ("0.9142", "0.9142", "0.00005"),
        ("91.42%", "0.9142", "0.00005"),
        (" 91.42 % ", "0.9142", "0.00005"),
        ("91.42\uff05", "0.9142", "0.00005"),
        (".5", "0.5", "0.05"),
        ("92.40", "92.40", "0.005"),
        ("3,145,728", "3145728", "0.5"),
        ("-1.84 %", "-0.0184", "0.00005"),
        ("\u22121.84", "-1.84", "0.005"),
    ],
)
def test_a_printed_number_knows_how_exact_it_is(text, value, half):
    number = parse_number(text)
    assert (number.value, number.half) == (Fraction(value), Fraction(half))


@pytest.mark.parametrize("text", ["", "%", ".", "1e-4", "about 5", "1,23", "nan", "5 points", "٣", "9" * 50])
def test_what_is_no_number_is_refused(text):
    with pytest.raises(OelmError, match="not a number"):
        parse_number(text)


@pytest.mark.parametrize(
    ("text", "seconds", "half"),
    [
        ("0.184 s", "0.184", "0.0005"),
        ("0.184s", "0.184", "0.0005"),
        ("2116.7 s", "2116.7", "0.05"),
        ("4h31", "16260", "30"),
        ("4h 31m", "16260", "30"),
        ("3h 12m 59s", "11579", "0.5"),
        ("35min 48s", "2148", "0.5"),
        ("5h", "18000", "1800"),
    ],
)
def test_a_time_knows_how_exact_it_is(text, seconds, half):
    time = parse_duration(text)
    assert (time.value, time.half) == (Fraction(seconds), Fraction(half))


@pytest.mark.parametrize("text", ["", "h", "4:31", "0.184", "31", "-3 s", "1.5h"])
def test_what_is_no_time_is_refused(text):
    with pytest.raises(OelmError, match="not a duration"):
        parse_duration(text)


def test_times_are_shown_as_people_write_them():
    assert [parse_clock(0.184), parse_clock(1793), parse_clock(18400), parse_clock(3599.6)] == [
        "0.184 s",
        "29m53s",
        "5h07",
        "60m00s",
    ]


@given(st.decimals(min_value=0, max_value=1, places=4))
def test_a_share_reads_the_same_in_percent(share):
    one, other = parse_number(f"{share:.4f}"), parse_number(f"{share * 100:.2f} %")
    assert (one.value, one.half) == (other.value, other.half)
    assert other.like(one.value) == f"{share * 100:.2f} %"


# -- GRIM ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("accuracy", ["91.42 %", "91.31 %", "0.9142"])
def test_an_accuracy_that_no_number_of_right_answers_gives(accuracy):
    (found,) = grim(accuracy, examples=872)
    assert found.code == "GRIM"
    assert found.severity == "invalid"
    assert "797/872 = " in str(found.message)


@pytest.mark.parametrize("accuracy", ["91.28 %", "91.17 %", "93.12 %", "82.11 %"])
def test_an_accuracy_that_some_number_gives(accuracy):
    assert not grim(accuracy, examples=872)


def test_both_neighbors_are_named():
    (found,) = grim("91.42 %", examples=872)
    assert "797/872 = 91.40 %; 798/872 = 91.51 %" in str(found.message)
    assert "91.51 %" in translate(found.message).zh


@given(st.integers(1, 30_000), st.data(), st.integers(0, 6))
def test_a_real_accuracy_is_never_doubted(examples, data, decimals):
    right = data.draw(st.integers(0, examples))
    scaled = Fraction(right, examples) * 10**decimals
    for whole in {math.floor(scaled + Fraction(1, 2)), math.ceil(scaled - Fraction(1, 2))}:  # half up, half down
        assert not grim(f"{whole / 10**decimals:.{decimals}f}", examples=examples)


def test_it_fires_exactly_where_there_is_no_such_number():
    for examples in (7, 40, 99, 101, 250):
        shown = {f"{right / examples:.2f}" for right in range(examples + 1)}
        shown |= {  # half way, either way
            f"{math.floor(Fraction(right * 100, examples) + Fraction(1, 2)) / 100:.2f}" for right in range(examples + 1)
        }
        fired = {f"{n / 100:.2f}" for n in range(101) if grim(f"{n / 100:.2f}", examples=examples)}
        halves = {f"{n / 100:.2f}" for n in range(101) for h in (-1, 1) if (n * 2 + h) * examples % 200 == 0}
        assert fired == {f"{n / 100:.2f}" for n in range(101)} - shown - halves


def test_with_many_examples_every_value_is_possible():
    assert not any(grim(f"{n / 1000:.3f}", examples=1000) for n in range(1001))


def test_points_are_no_share():
    with pytest.raises(OelmError, match="not a share"):
        grim("91.42", examples=872)


# -- F1 ------------------------------------------------------------------------------------------------------------


def matrices(classes, examples):
    """Every confusion matrix, rows by label."""
    cells = classes * classes
    for bars in itertools.combinations(range(examples + cells - 1), cells - 1):
        edges = (-1, *bars, examples + cells - 1)
        flat = [b - a - 1 for a, b in itertools.pairwise(edges)]
        yield [flat[row * classes : (row + 1) * classes] for row in range(classes)]


def scores(matrix):
    """Accuracy, F1 by class, labels by class; by the definitions."""
    size = range(len(matrix))
    labels = [sum(row) for row in matrix]
    said = [sum(matrix[row][k] for row in size) for k in size]
    f1 = [Fraction(2 * matrix[k][k], labels[k] + said[k]) if labels[k] + said[k] else Fraction(0) for k in size]
    return Fraction(sum(matrix[k][k] for k in size), sum(labels)), f1, labels


def either(value):
    """With two decimals; what lies half way may be rounded up or down."""
    return {f"{n / 100:.2f}" for n in range(101) if abs(Fraction(n, 100) - value) <= Fraction(1, 200)}


def shown(value, decimals=4):
    return f"{math.floor(value * 10**decimals + Fraction(1, 2)) / 10**decimals:.{decimals}f}"


@pytest.mark.slow
@pytest.mark.parametrize(("classes", "examples"), [(2, 1), (2, 5), (2, 9), (3, 4), (3, 5), (4, 3)])
def test_no_real_confusion_matrix_is_called_impossible(classes, examples):
    for matrix in matrices(classes, examples):
        accuracy, f1, labels = scores(matrix)
        known = [None, tuple(labels)] if all(labels) else [None]
        means = {
            "micro": accuracy,
            "macro": sum(f1) / classes,
            "weighted": sum(n * f for n, f in zip(labels, f1, strict=True)) / sum(labels),
        }
        if classes == 2:
            means["binary"] = f1[1]
        for (average, value), counts in itertools.product(means.items(), known):
            given_ = {"accuracy": shown(accuracy), "f1": shown(value), "classes": classes, "class_counts": counts}
            assert not f1_impossible(**given_, average=average), (matrix, average)
            assert not f1_impossible(**given_), (matrix, average)


@pytest.mark.parametrize("counts", [(4, 5), (3, 6), (1, 8)])
def test_of_two_classes_it_fires_exactly_where_there_is_no_matrix(counts):
    real = set()
    for matrix in matrices(2, sum(counts)):
        accuracy, f1, labels = scores(matrix)
        if sorted(labels) == sorted(counts):
            real |= {pair for value in f1 for pair in itertools.product(either(accuracy), either(value))}
    accuracies = {accuracy for accuracy, _ in real}
    for accuracy, hundredths in itertools.product(accuracies, range(101)):
        f1 = f"{hundredths / 100:.2f}"
        fired = bool(f1_impossible(accuracy=accuracy, f1=f1, class_counts=counts, average="binary"))
        assert fired == ((accuracy, f1) not in real), (accuracy, f1)


@pytest.mark.slow
@pytest.mark.parametrize("counts", [(3, 3, 3), (2, 3, 4), (1, 2, 5)])
def test_no_matrix_with_these_labels_is_above_the_bounds(counts):
    rows = [[(a, b, n - a - b) for a in range(n + 1) for b in range(n + 1 - a)] for n in counts]
    for matrix in itertools.product(*rows):
        accuracy, f1, labels = scores(matrix)
        right = parse_number(f"{float(accuracy):.6f}")
        weighted = sum(n * f for n, f in zip(labels, f1, strict=True)) / sum(labels)
        assert float(sum(f1) / 3) <= numbers._largest("macro", right, 3, counts) + 1e-9
        assert float(weighted) <= numbers._largest("weighted", right, 3, counts) + 1e-9


@pytest.mark.parametrize("accuracy", ["0.8344", "0.9500"])
def test_class_counts_make_the_bound_on_macro_f1_worth_having(accuracy):
    """It is nearer to what a matrix reaches than to the bound for classes of any size."""
    counts, right = (3479, 3123, 3213), parse_number(accuracy)
    wrong = sum(counts) - math.floor(right.high * sum(counts))
    reached = 0
    for first in range(wrong + 1):  # all errors are taken for class 0; so many are of class 1
        lost = (0, first, wrong - first)
        matrix = [[counts[0], 0, 0], [lost[1], counts[1] - lost[1], 0], [lost[2], 0, counts[2] - lost[2]]]
        reached = max(reached, float(sum(scores(matrix)[1])) / 3)
    with_counts, without = (numbers._largest("macro", right, 3, known) for known in (counts, None))
    assert reached <= with_counts
    assert with_counts - reached < without - with_counts


def test_without_class_counts_only_what_no_classes_allow_is_impossible():
    """Macro-F1 may exceed accuracy with three classes: all but two of them rare and always right."""
    matrix = [[1, 0, 0], [0, 417, 83], [0, 83, 416]]
    accuracy, f1, _ = scores(matrix)
    macro = sum(f1) / 3
    assert macro > accuracy
    assert not f1_impossible(accuracy=shown(accuracy), f1=shown(macro), classes=3, average="macro")
    assert f1_impossible(accuracy=shown(accuracy), f1=shown(macro + Fraction(2, 1000)), classes=3, average="macro")


def test_macro_f1_of_two_classes_is_never_above_accuracy():
    assert f1_impossible(accuracy="0.9000", f1="0.9002", classes=2, average="macro")
    assert not f1_impossible(accuracy="0.9000", f1="0.9001", classes=2, average="macro")


def test_the_published_f1_on_three_classes():
    mnli = (3479, 3123, 3213)
    for average in ("macro", "weighted", "micro", None):
        (found,) = f1_impossible(accuracy="83.44 %", f1="0.8885", class_counts=mnli, average=average)
        assert found.code == "F1-IMPOSSIBLE"
    assert not f1_impossible(accuracy="83.44 %", f1="0.8344", class_counts=mnli)
    # Unknown shares of the classes allow it, as a macro average of one rare and two common classes.
    assert not f1_impossible(accuracy="83.44 %", f1="0.8885", classes=3)


def test_the_published_f1_on_two_classes():
    """93.12 % of 872 leaves 60 wrong; 444 hits of 444 give 888 / 948 = 0.9367."""
    (found,) = f1_impossible(accuracy="93.12 %", f1="0.9389", class_counts=(428, 444))
    assert "0.9367" in str(found.message)
    assert not f1_impossible(accuracy="91.28 %", f1="0.9159", class_counts=(428, 444))


def test_what_is_not_known_is_not_judged():
    assert not f1_impossible(accuracy="83.44 %", f1="0.9999")


# -- tables --------------------------------------------------------------------------------------------------------


def test_a_best_below_what_is_listed():
    listed = ["88.19 %", "91.42 %", "91.31 %"]
    (found,) = numbers.best_below_listed(best="91.28 %", listed=listed)
    assert "91.42 %" in str(found.message)
    assert not numbers.best_below_listed(best="91.42 %", listed=listed)
    assert not numbers.best_below_listed(best="91.4 %", listed=listed), "rounded"


def test_where_lower_is_better():
    assert codes(numbers.best_below_listed(best="4.27", listed=["4.31", "4.20"], better="lower")) == [
        "BEST-BELOW-LISTED"
    ]
    assert not numbers.best_below_listed(best="4.20", listed=["4.31", "4.20"], better="lower")


def test_duplicate_rows():
    row = {"accuracy": "91.28 %", "loss": "0.3152"}
    (found,) = numbers.duplicate_rows({("a", 0): row, ("b", 0): dict(row), ("b", 1): {**row, "loss": "0.3153"}})
    assert (found.code, found.arms) == ("DUPLICATE-ROWS", ("a", "b"))
    assert not numbers.duplicate_rows({("a", 0): {"accuracy": "91 %"}, ("b", 0): {"accuracy": "91 %"}}), "by chance"
    assert numbers.duplicate_rows({("a", 0): {"loss": "0.3152"}, ("a", 1): {"loss": "0.3152"}})


# -- time and counts -----------------------------------------------------------------------------------------------


def test_steps_that_take_longer_than_the_whole():
    (found,) = numbers.time_arithmetic(steps=100_000, step_seconds="0.184 s", wall="4h31")
    assert (found.code, found.severity) == ("TIME-ARITHMETIC", "invalid")
    assert "5h07" in str(found.message)


def test_rounding_is_no_error():
    assert not numbers.time_arithmetic(steps=100_000, step_seconds="0.184 s", wall="5h06")
    assert not numbers.time_arithmetic(steps=6315, step_seconds="0.3262 s", wall="2144.9 s")
    assert not numbers.time_arithmetic(steps=100_000, step_seconds="0.2 s", wall="4h31"), "0.15 s would fit"


def test_a_whole_far_longer_than_its_steps_is_noted():
    (found,) = numbers.time_arithmetic(steps=6315, step_seconds="0.284 s", wall="95min")
    assert found.severity == "note"


def test_the_ceiling_of_freezing():
    assert saving_ceiling() == pytest.approx(2 / 36)
    assert saving_ceiling(frozen_roles=1) == pytest.approx(1 / 36)
    assert saving_ceiling(ffn_ratio=2.0) == pytest.approx(2 / 24)
    assert saving_ceiling(head_share=0.577) == pytest.approx(0.0235, abs=1e-4)


def test_a_saving_above_the_ceiling():
    (found,) = numbers.speedup_above_ceiling(baseline="3h13", treated="2h32")
    assert (found.code, found.severity) == ("SPEEDUP-ABOVE-CEILING", "invalid")
    assert "5.56%" in str(found.message)
    assert not numbers.speedup_above_ceiling(baseline="22m 51s", treated="22m 01s")
    assert not numbers.speedup_above_ceiling(baseline="1h 19m 12s", treated="1h 14m 41s"), "the optimizer is let off"
    assert not numbers.speedup_above_ceiling(baseline="1h", treated="1h"), "half an hour either way"


def test_a_count_that_lacks_exactly_the_frozen_weights():
    (found,) = numbers.count_misses_buffers(total=44_896_768, qk=3_145_728, reported_total=41_751_040)
    assert "3,145,728" in str(found.message)
    assert not numbers.count_misses_buffers(total=44_896_768, qk=3_145_728, reported_total=44_896_768)
    assert not numbers.count_misses_buffers(total=44_896_768, qk=3_145_728, reported_total=41_751_041)


# -- runs as they are told -----------------------------------------------------------------------------------------


def test_an_end_below_the_best():
    assert numbers.final_below_best(best="78.56 %", final="69.368 %", examples=25_000)
    assert not numbers.final_below_best(best="85.70 %", final="85.70 %", examples=25_000)
    assert not numbers.final_below_best(best="46.39 %", final="44.90 %", examples=2490), "within the noise"
    assert numbers.final_below_best(best="4.27", final="4.60", better="lower")
    assert not numbers.final_below_best(best="4.27", final="4.28", better="lower")


def test_a_baseline_below_a_bag_of_words():
    assert codes(numbers.below_simple_baseline(value="87.05 %", simple_baseline="92.5 %")) == ["BELOW-SIMPLE-BASELINE"]
    assert not numbers.below_simple_baseline(value="92.74 %", simple_baseline="92.5 %")
    assert numbers.below_simple_baseline(value="310", simple_baseline="290", better="lower")


def test_a_classifier_that_learned_nothing():
    assert codes(numbers.collapsed(accuracy="34.02 %", class_counts=(830, 830, 830))) == ["COLLAPSED"]
    assert numbers.collapsed(accuracy="34.02 %", classes=3, examples=2490)
    assert numbers.collapsed(accuracy="90.1 %", class_counts=(900, 100)), "the commonest class alone gives 90 %"
    assert not numbers.collapsed(accuracy="46.39 %", class_counts=(830, 830, 830))


def test_a_schedule_that_does_nothing():
    assert codes(numbers.inert_schedule(says="cosine", was="constant")) == ["INERT-SCHEDULE"]
    assert not numbers.inert_schedule(says="constant", was="constant")


# -- our own records -----------------------------------------------------------------------------------------------


ROW = {"accuracy": 0.8910550458715596, "macro_f1": 0.8909504972652059, "f1": 0.8943270300333704, "loss": 0.383}
EARLIER = {"accuracy": 0.882, "macro_f1": 0.88, "f1": 0.894, "loss": 0.29}


def a_record(arm="baseline", row=ROW, **changes):
    """Of 872 examples, and 1,000 to choose on."""
    record = made_record(Cell(arm=arm, seed=0), row, examples=872)
    return replace(record, evaluations=(ValidationScore(step=500, metrics=EARLIER),), **changes)


def test_a_real_record_is_clean():
    assert not numbers.check_record(a_record())


@pytest.mark.parametrize(
    ("row", "code"),
    [
        ({"accuracy": 0.8911, "loss": 0.3}, "GRIM"),
        ({"accuracy": 777 / 872, "macro_f1": 0.9, "f1": 0.89}, "F1-IMPOSSIBLE"),
        ({"accuracy": 777 / 872, "macro_f1": 0.88, "f1": 0.96}, "F1-IMPOSSIBLE"),
    ],
)
def test_a_record_with_impossible_numbers(row, code):
    record = a_record(row=row)
    (found,) = numbers.check_record(record, where="baseline/seed-0", arm="baseline")
    assert (found.code, found.where, found.arms) == (code, "baseline/seed-0", ("baseline",))


def test_a_record_whose_count_misses_the_frozen_weights():
    """As many weights as learn, in all: those that are frozen were not counted."""
    counts = Counts(total=90, trainable=90, buffers=0, qk=10)
    assert codes(numbers.check_record(a_record("freeze-only", counts=counts))) == ["COUNT-MISSES-BUFFERS"]
    assert not numbers.check_record(a_record("baseline", counts=counts)), "nothing is frozen there"


@pytest.mark.parametrize(
    "changes",
    [
        {"counts": None},
        {"start": None},
        {"test": {}},
    ],
)
def test_a_record_with_less_in_it_is_not_judged_on_that(changes):
    assert not numbers.check_record(a_record(**changes))


def test_two_arms_that_are_the_same_run():
    other = a_record("oelm-freeze", {"accuracy": 0.5})
    assert not numbers.duplicate_records({"baseline/0": a_record(), "oelm/0": other})
    (found,) = numbers.duplicate_records({"baseline/0": a_record(), "oelm/0": a_record("oelm-freeze")})
    assert (found.code, found.arms, found.where) == (
        "DUPLICATE-ROWS",
        ("baseline", "oelm-freeze"),
        "baseline/0, oelm/0",
    )
    empty = replace(a_record(), evaluations=(), test={})
    assert not numbers.duplicate_records({"a/0": empty, "b/0": empty}), "nothing was measured"
