"""Undecidable: a study that could hardly end with a verdict, said before anything is run, with what would do instead.

What is not known before is taken at its most favorable: if even then a test would decide in less than half of all
studies, the study had better be another one; below 80 %, it is worth knowing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

from oelm.analysis.checks.registry import Issue, issue
from oelm.analysis.design import PlannedTest
from oelm.analysis.stats.power import ALPHA, POWER, power_to_equate, power_to_find
from oelm.message import Message

# Of the accuracy of two arms, favorable and still plausible: how far seeds scatter beyond the examples that were drawn;
# on what share of examples two trainings disagree by chance, seed by seed; and on what share whatever the seed. The
# last is what no number of seeds takes away: from E examples the standard error is sqrt(share / E). What was measured
# (LOG.md, "a quickstart that decides"): the mildest treatment, freezing alone for 50 steps, disagrees on 2 to 3 %.
_SEED_SPREAD = 0.002
_BY_CHANCE = 0.03
_SYSTEMATIC = 0.01
_HOPEFUL = 0.5
_MOST_SEEDS = 100  # no advice to anybody beyond that


def check_tests(tests: tuple[PlannedTest, ...]) -> Iterator[Issue]:
    for test in tests:
        if test.seeds < 2:  # FEW-SEEDS says so
            continue
        power = _power(test, seeds=test.seeds, margin=test.margin, examples=test.examples)
        if power < POWER:
            yield issue(
                "UNDECIDABLE",
                where=test.name,
                severity="warn" if power < _HOPEFUL else "note",
                margin=test.margin,
                n=test.seeds,
                family=test.family,
                examples=test.examples,
                power=power,
                instead=tuple(_instead(test)) or Message("instead-nothing"),
            )


def _instead(test: PlannedTest) -> Iterator[Message]:
    """What would decide with 80 % power: more seeds, more examples or a larger margin, each by itself."""
    seeds = _least(lambda n: _power(test, seeds=n, margin=test.margin, examples=test.examples), test.seeds, _MOST_SEEDS)
    if seeds is not None:
        yield Message("instead-seeds", n=seeds)
    examples = _least(
        lambda size: _power(test, seeds=test.seeds, margin=test.margin, examples=size), test.examples, 10_000_000
    )
    if examples is not None:
        digits = 10 ** max(len(str(examples)) - 2, 0)
        yield Message("instead-examples", number=-(-examples // digits) * digits)
    thousandths = _least(
        lambda size: _power(test, seeds=test.seeds, margin=size / 1000, examples=test.examples), 1, 1000
    )
    if thousandths is not None:
        yield Message("instead-margin", margin=thousandths / 1000)


def _power(test: PlannedTest, *, seeds: int, margin: float, examples: int) -> float:
    spread, example_se = math.hypot(_SEED_SPREAD, math.sqrt(_BY_CHANCE / examples)), math.sqrt(_SYSTEMATIC / examples)
    alpha = ALPHA / test.family
    find = power_to_find(margin, n=seeds, spread=spread, example_se=example_se, alpha=alpha)
    equate = power_to_equate(margin, n=seeds, spread=spread, example_se=example_se, alpha=alpha)
    return {"find": find, "equate": equate, "decide": max(find, equate)}[test.rule]


def _least(power_of: Callable[[int], float], low: int, high: int) -> int | None:
    """The least number above `low` that is enough; None if `high` is not."""
    if power_of(high) < POWER:
        return None
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if power_of(middle) >= POWER else (middle, high)
    return high
