"""Numbers: what published numbers say against each other, before anything is run again.

A number is given as it was printed, for its last digit says how exactly it is known: "91.42 %" is any share from
0.91415 to 0.91425. An issue is raised only where no number that could have been printed so is possible.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from typing import Any, Literal

from oelm.analysis.checks.registry import Issue, issue
from oelm.analysis.checks.reported_number import ReportedNumber, parse_clock, parse_duration, parse_number, parse_share
from oelm.message import Message
from oelm.metrics import Direction
from oelm.runs.record import Record

Average = Literal["binary", "macro", "micro", "weighted"]

_MUCH_LONGER = 2
"""A wall time of more than this many times its steps is worth a note: what else was done?"""
OPTIMIZER_ALLOWANCE = 0.013
"""An optimizer step on 13 % fewer weights, were it a tenth of the whole: no claim is doubted for less."""
_EXACT = 100_000  # examples; with more, whole numbers hardly restrict F1
_FELL = 0.02  # of the best
_NEAR_CHANCE = 2  # standard errors


# -- accuracy ------------------------------------------------------------------------------------------------------


def grim(accuracy: str, *, examples: int, where: str = "", arms: tuple[str, ...] = ()) -> list[Issue]:
    """`GRIM`: an accuracy that no whole number of right answers gives.

    Named for the granularity-related inconsistency of means. A value that lies half way may be rounded either way.
    """
    given = parse_share(accuracy)
    below = min(math.floor(given.value * examples), examples)
    near = [Fraction(right, examples) for right in (below, min(below + 1, examples))]
    if any(given.low <= share <= given.high for share in near):
        return []
    nearest = tuple(
        Message("grim-share", right=int(share * examples), examples=examples, share=given.like(share)) for share in near
    )
    return [issue("GRIM", where=where, arms=arms, accuracy=given.text, examples=examples, nearest=nearest)]


def f1_impossible(
    *,
    accuracy: str,
    f1: str,
    classes: int | None = None,
    class_counts: Sequence[int] | None = None,
    average: Average | None = None,
    where: str = "",
    arms: tuple[str, ...] = (),
) -> list[Issue]:
    """`F1-IMPOSSIBLE`: no confusion matrix has both this accuracy and this F1.

    `class_counts` are the labels of each class. Where it is not said how F1 was averaged, it must be impossible
    for micro, macro and weighted averages, and with two classes for the F1 of either class.
    """
    right, score = parse_share(accuracy), parse_share(f1)
    classes = len(class_counts) if class_counts else classes
    if average is None and classes is None:
        return []
    averages: list[Average] = [average] if average else ["micro", "macro", "weighted"]
    if average is None and classes == 2:
        averages.append("binary")
    if any(_possible(kind, right, score, classes, class_counts) for kind in averages):
        return []
    largest = max(_largest(kind, right, classes, class_counts) for kind in averages)
    return [
        issue(
            "F1-IMPOSSIBLE",
            key="F1-IMPOSSIBLE" if score.low > largest else "f1-between",
            where=where,
            arms=arms,
            f1=score.text,
            accuracy=right.text,
            largest=score.like(largest),
            averages=tuple(averages),
        )
    ]


def _possible(
    average: Average, right: ReportedNumber, score: ReportedNumber, classes: int | None, counts: Sequence[int] | None
) -> bool:
    if average == "micro":  # every wrong answer is one false positive and one false negative: it is the accuracy
        return score.low <= right.high and right.low <= score.high
    if average == "binary" and counts is not None and classes == 2 and sum(counts) <= _EXACT:
        return any(_some_hits(positives, sum(counts), right, score) for positives in counts)
    return float(score.low) <= _largest(average, right, classes, counts) + 1e-12


def _some_hits(positives: int, examples: int, right: ReportedNumber, score: ReportedNumber) -> bool:
    """Whether some number of hits gives both. With e wrong answers, F1 = 2 hits / (2 hits + e)."""
    numbers = range(max(0, math.ceil(right.low * examples)), min(examples, math.floor(right.high * examples)) + 1)
    for number_right in numbers:
        wrong = examples - number_right
        least, most = max(0, positives - wrong), min(positives, number_right)
        if wrong == 0:
            least, most = (most, most) if score.high >= 1 else (1, 0)
        else:
            if score.low > 0:
                least = max(least, math.ceil(wrong * score.low / (2 * (1 - score.low)))) if score.low < 1 else most + 1
            if score.high < 1:
                most = min(most, math.floor(wrong * score.high / (2 * (1 - score.high))))
        if least <= most:
            return True
    return not numbers  # no whole number gives the accuracy: that is GRIM's to say


def _largest(average: Average, right: ReportedNumber, classes: int | None, counts: Sequence[int] | None) -> float:
    """No F1 with this accuracy is larger. With a the accuracy, K classes and e of n answers wrong:

    - One class of two: F1 = 2 hits / (2 hits + e), which grows with the hits, and these are at most n - e and at
      most the labels of the class. So F1 <= 2a / (1 + a).
    - Macro: F1 of a class is 2t / (2t + d), with t hits and d its false positives and negatives. Every wrong answer
      is in the d of two classes, so they sum to 2e and none is above e. For given t the sum of F1 is convex in d,
      so it is largest at a corner: d = e for two classes, 0 for the others. The F1 of those two sum to at most 2a,
      for 2t / (2t + e) is concave in t and the two t sum to at most n - e; so macro-F1 <= (K - 2 + 2a) / K. For two
      classes that is the accuracy; for more it is reached only if all but two classes are rare.
    - Weighted by labels: F1 <= 2r / (1 + r) with r the recall of a class, concave, and the mean recall is a. So
      F1 <= 2a / (1 + a).
    - Where the labels of each class are known, macro and weighted F1 are also bounded by `_largest_mean`.
    """
    share = min(right.high, Fraction(1))
    correct = None
    if counts is not None:
        correct = math.floor(share * sum(counts))
        share = Fraction(correct, sum(counts))
    a = float(share)
    if average == "micro":
        return a
    if average == "binary":
        if classes != 2 or counts is None or correct is None:
            return 2 * a / (1 + a) if classes == 2 else 1.0
        wrong = sum(counts) - correct
        hits = min(max(counts), correct)
        return 2 * hits / (2 * hits + wrong) if hits else 0.0
    bound = 2 * a / (1 + a)
    if average == "macro":
        bound = (classes - 2 + 2 * a) / classes if classes is not None and classes >= 2 else 1.0
    if counts is None or correct is None:
        return bound
    weights = [1 / len(counts) if average == "macro" else number / sum(counts) for number in counts]
    return min(bound, _largest_mean(correct, counts, weights))


def _largest_mean(correct: int, counts: Sequence[int], weights: Sequence[float]) -> float:
    """A weighted mean of the classes' F1 is at most this, with n_k labels of class k and `correct` right answers.

    F1 of class k is 2t / (t + n_k + f), with t hits and f false positives. Let the f be any that sum to the number of
    wrong answers: more than is possible, so the largest value is no smaller. For given t the mean is convex in the f,
    so it is largest where one class bears them all. For each such class what is left is a sum of concave functions
    of t over 0 <= t <= n_k, sum t = `correct`. At a multiplier m every t is where its slope is m; if those t sum to
    `correct` or more, their value is no smaller than the largest, for the functions grow.

    It is not the least bound: for three classes of about one size it is 0.01 above what a matrix reaches at accuracy
    0.83, less for higher and more for lower accuracies.
    """
    wrong = sum(counts) - correct
    best = 0.0
    for bearer in range(len(counts)):
        spans = [number + (wrong if k == bearer else 0) for k, number in enumerate(counts)]

        def hits(slope: float, spans: Sequence[int] = spans) -> list[float]:
            free = (math.sqrt(2 * w * span / slope) - span for w, span in zip(weights, spans, strict=True))
            return [min(max(0.0, t), number) for t, number in zip(free, counts, strict=True)]

        low, high = 1e-300, 2.0  # slopes; at the first every t is n_k, at the second every t is 0
        for _ in range(2000):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if sum(hits(middle)) >= correct else (low, middle)
            if high / low < 1 + 1e-12:
                break
        terms = zip(weights, hits(low), spans, strict=True)
        best = max(best, sum(2 * w * t / (t + span) for w, t, span in terms))
    return best


# -- tables --------------------------------------------------------------------------------------------------------


def best_below_listed(
    *, best: str, listed: Iterable[str], better: Direction = "higher", where: str = "", arms: tuple[str, ...] = ()
) -> list[Issue]:
    """`BEST-BELOW-LISTED`: what is called the best is worse than a value of the same run."""
    top = parse_number(best)
    values = [parse_number(text) for text in listed]
    beyond = [v for v in values if (v.low >= top.high if better == "higher" else v.high <= top.low)]
    if not beyond:
        return []
    most = (max if better == "higher" else min)(beyond, key=lambda v: v.value)
    return [issue("BEST-BELOW-LISTED", where=where, arms=arms, best=top.text, listed=most.text)]


def duplicate_rows(rows: Mapping[tuple[str, int], Mapping[str, str]]) -> list[Issue]:
    """`DUPLICATE-ROWS`: two runs, (arm, seed), with all the same numbers to the digit.

    One number of few digits may agree by chance: it takes two numbers, or four digits.
    """
    seen: dict[tuple[tuple[str, str], ...], tuple[str, int]] = {}
    found = []
    for run, row in rows.items():
        digits = max((len(re.sub(r"\D", "", text).lstrip("0")) for text in row.values()), default=0)
        if len(row) < 2 and digits < 4:
            continue
        first = seen.setdefault(tuple(sorted(row.items())), run)
        if first != run:
            numbers = tuple(f"{name} {text}" for name, text in row.items())
            where = f"{first[0]}/{first[1]}, {run[0]}/{run[1]}"
            found.append(issue("DUPLICATE-ROWS", where=where, arms=_both(first[0], run[0]), numbers=numbers))
    return found


def duplicate_records(records: Mapping[str, Record]) -> list[Issue]:
    """`DUPLICATE-ROWS` among our own: two cells that agree in every evaluation to the last bit."""
    seen: dict[str, tuple[str, Record]] = {}
    found = []
    for cell, record in records.items():
        if not record.evaluations or not record.test:
            continue
        first, known = seen.setdefault(repr((record.evaluations, record.test)), (cell, record))
        if first != cell:
            arms = _both(known.spec.arm, record.spec.arm)
            numbers = Message("duplicate-evaluations", number=len(record.evaluations))
            found.append(issue("DUPLICATE-ROWS", where=f"{first}, {cell}", arms=arms, numbers=numbers))
    return found


def _both(one: str, other: str) -> tuple[str, ...]:
    return (one,) if one == other else (one, other)


# -- time and counts -----------------------------------------------------------------------------------------------


def time_arithmetic(
    *, steps: int, step_seconds: str, wall: str, where: str = "", arms: tuple[str, ...] = ()
) -> list[Issue]:
    """`TIME-ARITHMETIC`: the steps alone take longer than the run, or the run takes far longer than they."""
    step, total = parse_duration(step_seconds), parse_duration(wall)
    values: dict[str, Any] = {
        "steps": steps,
        "step": step.text,
        "product": parse_clock(steps * step.value),
        "wall": total.text,
    }
    if steps * step.low > total.high:
        return [issue("TIME-ARITHMETIC", where=where, arms=arms, **values)]
    if total.low > _MUCH_LONGER * steps * step.high:
        return [issue("TIME-ARITHMETIC", key="time-longer", severity="note", where=where, arms=arms, **values)]
    return []


def saving_ceiling(*, ffn_ratio: float = 4.0, frozen_roles: int = 2, head_share: float = 0.0) -> float:
    """The largest share of a training step's linear work that freezing can save.

    In units of width^2 multiply-adds a token and layer: projections 4, FFN 2 `ffn_ratio`, each once forward and twice
    backward (for its input and for its weights). Only the weight gradient of a frozen projection goes away.
    `head_share` is the share of the work outside the layers.
    """
    return frozen_roles / (3 * (4 + 2 * ffn_ratio)) * (1 - head_share)


def speedup_above_ceiling(
    *,
    baseline: str,
    treated: str,
    ffn_ratio: float = 4.0,
    frozen_roles: int = 2,
    head_share: float = 0.0,
    where: str = "",
    arms: tuple[str, ...] = (),
) -> list[Issue]:
    """`SPEEDUP-ABOVE-CEILING`: a saving of time that freezing cannot give, even with an easier optimizer step."""
    slow, fast = parse_duration(baseline), parse_duration(treated)
    ceiling = saving_ceiling(ffn_ratio=ffn_ratio, frozen_roles=frozen_roles, head_share=head_share)
    if slow.low <= 0 or float(1 - fast.high / slow.low) <= ceiling + OPTIMIZER_ALLOWANCE:
        return []
    return [
        issue(
            "SPEEDUP-ABOVE-CEILING",
            where=where,
            arms=arms,
            baseline=slow.text,
            treated=fast.text,
            saving=float(1 - fast.value / slow.value),
            ceiling=ceiling,
        )
    ]


def count_misses_buffers(
    *, total: int, qk: int, reported_total: int, where: str = "", arms: tuple[str, ...] = ()
) -> list[Issue]:
    """`COUNT-MISSES-BUFFERS`: a count that lacks exactly the Q/K weights has not seen them: frozen, as buffers."""
    if qk <= 0 or total - reported_total != qk:
        return []
    return [issue("COUNT-MISSES-BUFFERS", where=where, arms=arms, total=total, reported=reported_total, qk=qk)]


# -- runs as they are reported -----------------------------------------------------------------------------------------


def luck_of_the_best(best: float, *, examples: int | None) -> float:
    """What the best of some looks may be above the last by luck: two standard errors of a share, or a fiftieth."""
    if not examples or not 0 < best < 1:
        return _FELL * abs(best)
    return 2 * math.sqrt(best * (1 - best) / examples)


def near_chance(share: float, *, examples: int) -> float:
    """An accuracy up to here may be that of always saying a class of this share."""
    return share + _NEAR_CHANCE * math.sqrt(share * (1 - share) / examples)


def final_below_best(
    *,
    best: str,
    final: str,
    better: Direction = "higher",
    examples: int | None = None,
    where: str = "",
    arms: tuple[str, ...] = (),
) -> list[Issue]:
    """`FINAL-BELOW-BEST`: worse at the end by more than two standard errors of a share, or by a fiftieth."""
    top, last = parse_number(best), parse_number(final)
    noise = luck_of_the_best(float(top.value), examples=examples if better == "higher" else None)
    fell = float(top.low - last.high if better == "higher" else last.low - top.high)
    if fell <= noise:
        return []
    return [issue("FINAL-BELOW-BEST", key="reported-fell", where=where, arms=arms, best=top.text, final=last.text)]


def below_simple_baseline(
    *, value: str, simple_baseline: str, better: Direction = "higher", where: str = "", arms: tuple[str, ...] = ()
) -> list[Issue]:
    """`BELOW-SIMPLE-BASELINE`: worse than a bag of words, or whatever simple method it is compared with."""
    given, level = parse_number(value), parse_number(simple_baseline)
    worse = given.high < level.low if better == "higher" else given.low > level.high
    if not worse:
        return []
    return [
        issue(
            "BELOW-SIMPLE-BASELINE",
            key="reported-below-simple-baseline",
            where=where,
            arms=arms,
            value=given.text,
            level=level.text,
        )
    ]


def collapsed(
    *,
    accuracy: str,
    class_counts: Sequence[int] | None = None,
    classes: int | None = None,
    examples: int | None = None,
    where: str = "",
    arms: tuple[str, ...] = (),
) -> list[Issue]:
    """`COLLAPSED`: within two standard errors of the commonest class alone."""
    number = sum(class_counts) if class_counts else examples
    if number is None or (class_counts is None and classes is None):
        return []
    chance = max(class_counts) / number if class_counts else 1 / (classes or 1)
    given = parse_share(accuracy)
    if float(given.low) > near_chance(chance, examples=number):
        return []
    # Invalid for what is published: of whole runs there are no seeds to count, as a verdict of ours does.
    found = issue("COLLAPSED", key="reported-collapsed", where=where, arms=arms, accuracy=given.text, chance=chance)
    return [replace(found, severity="invalid")]


def inert_schedule(*, says: str, was: str, where: str = "", arms: tuple[str, ...] = ()) -> list[Issue]:
    """`INERT-SCHEDULE`: the learning rate was another than the schedule that is reported."""
    if says == was:
        return []
    return [issue("INERT-SCHEDULE", key="reported-inert", where=where, arms=arms, says=says, was=was)]


# -- our own records -----------------------------------------------------------------------------------------------


def check_record(record: Record, *, where: str = "", arm: str = "") -> list[Issue]:
    """Our own numbers are held to the same rules."""
    at: dict[str, Any] = {"where": where, "arms": (arm,) if arm else ()}
    sizes = record.data.sizes if record.data is not None else {}
    rows = [(sizes.get("validation", 0), row.metrics) for row in record.evaluations]
    for measured in record.test.values():
        rows += [(sizes.get(f"test-{split}", 0), row) for split, row in measured.splits.items()]
    issues = []
    for examples, row in rows:
        found = _measured_issues(examples, row.get("accuracy"), row.get("macro_f1"), row.get("f1"))
        issues += [replace(one, places=(where,), about=(at["arms"],)) for one in found]
    counts = record.counts
    treatment = record.spec.treatment
    is_frozen = treatment.freeze == "qk" and treatment.unfreeze is None
    if counts is not None and counts.qk is not None and is_frozen and counts.frozen == 0:
        whole = counts.total + counts.qk
        issues += count_misses_buffers(total=whole, qk=counts.qk, reported_total=counts.total, **at)
    return list(dict.fromkeys(issues))


@lru_cache(maxsize=10_000)
def _measured_issues(examples: int, *measured: float | None) -> tuple[Issue, ...]:
    """Of one measurement of accuracy, macro F1 and F1, wherever it was made."""
    accuracy, macro, binary = map(_nine, measured)
    if accuracy is None:
        return ()
    issues = grim(accuracy, examples=examples) if examples > 0 else []
    if binary is not None:
        issues += f1_impossible(accuracy=accuracy, f1=binary, classes=2, average="binary")
    if binary is not None and macro is not None:
        issues += f1_impossible(accuracy=accuracy, f1=macro, classes=2, average="macro")
    return tuple(issues)


def _nine(value: float | None) -> str | None:
    """Nine decimals: finer than any split, coarser than what is lost in arithmetic."""
    return f"{value:.9f}" if value is not None and 0 <= value <= 1 else None
