"""Evidence: what an arm reaches, or two arms differ by, over seeds and, where they were kept, over examples.

Everything is on the scale on which the metric is judged: of a perplexity, its logarithm, which is the loss.

Failures are evidence too, by one rule for all arms. A seed failed if it diverged (itself, or when tuned at every point
of the grid), came to no end, failed an audit, learned nothing, is damaged or has no number. What was not run yet is no
failure: the comparison is incomplete. No verdict rests on the seeds that survived: it must hold with every failure at
the worst value as well. But that an arm is worse than one without failures its survivors show alone: failures could
only add to it. An arm that learns nothing in any seed did not fail by bad luck: that is its result, and the numbers
that it has are taken.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.checks.consistency import near_chance
from oelm.analysis.results import LARGEST, Results, finite_number
from oelm.analysis.stats.crossed import Crossed, crossed
from oelm.analysis.stats.estimate import Estimate, Interval, from_seeds
from oelm.errors import CellError
from oelm.message import Message
from oelm.metrics import BY_EXAMPLE, class_metrics, find_metric, is_higher_better
from oelm.runs.layout import ENDED
from oelm.runs.predictions import Predictions
from oelm.runs.record import Record, Which
from oelm.runs.simple_baseline import find_simple_baseline
from oelm.study.cells import Cell, grid_points, is_nested, trials_of, tuning_seeds

_LEVEL = 0.95
_NO_LEARNING = 0.98  # of ln C
_LITTLE = 0.1  # of the way from the commonest class to all correct
_ONE_CLASS = 0.99  # of the predictions
_CHANCE = 1.645  # standard errors of a correlation that is 0: one in twenty is above


@dataclass(frozen=True, kw_only=True)
class ArmMean:
    """What an arm reaches by itself."""

    mean: float
    """In the unit of the metric; of perplexities the geometric mean, which is that of their losses."""
    interval: Interval
    """95 %: what other seeds, judged on other examples, would give."""
    estimate: Estimate
    """On the scale on which the metric is judged."""

    @property
    def n(self) -> int:
        """How many seeds."""
        return self.estimate.n


def arm_mean(
    results: Results,
    arm: str,
    metric: str,
    *,
    model: Which = "final",
    split: str | None = None,
    seeds: Collection[int] | None = None,
) -> ArmMean | None:
    """On the first test split or another, over all seeds or these; None where none has a value."""
    judged = judged_values(results, arm, metric, model=model, split=split)
    judged = {seed: value for seed, value in judged.items() if seeds is None or seed in seeds}
    if not judged:
        return None
    examples = by_example(results, (arm,), metric, model, judged, lambda scores: scores, split=split)
    estimate = with_examples(from_seeds(list(judged.values())), crossed(*examples) if examples is not None else None)
    interval, level = estimate.interval(), find_metric(metric).level
    return ArmMean(
        mean=level(estimate.mean),
        interval=Interval(low=level(interval.low), high=level(interval.high), level=interval.level),
        estimate=estimate,
    )


def difference_estimate(
    results: Results, arm: str, against: str, metric: str, seeds: Collection[int], *, split: str | None = None
) -> Estimate:
    """Of two arms over these seeds, on the scale on which the metric is judged; on the first test split, or another."""
    one, other = (judged_values(results, name, metric, split=split) for name in (arm, against))
    examples = by_example(results, (arm, against), metric, "final", seeds, operator.sub, split=split)
    over_seeds = from_seeds([one[seed] - other[seed] for seed in seeds])
    return with_examples(over_seeds, crossed(*examples) if examples is not None else None)


def ratio_estimate(results: Results, arm: str, against: str, metric: str, ratios: Mapping[int, float]) -> Estimate:
    """Of the logarithm of the ratio of two arms, whose ratios by seed are known."""
    if find_metric(metric).relative:
        combine = operator.sub
    else:  # by how much an example moves the logarithm of either mean
        one, other = (fmean(results.values(name, metric)[seed] for seed in ratios) for name in (arm, against))
        combine = partial(_relative_difference, one=one, other=other)
    examples = by_example(results, (arm, against), metric, "final", ratios, combine)
    over_seeds = from_seeds([math.log(ratio) for ratio in ratios.values()])
    return with_examples(over_seeds, crossed(*examples) if examples is not None else None)


def _relative_difference(
    left: NDArray[np.float64], right: NDArray[np.float64], *, one: float, other: float
) -> NDArray[np.float64]:
    return left / one - right / other


def judged_values(
    results: Results, arm: str, metric: str, *, model: Which = "final", split: str | None = None
) -> dict[int, float]:
    """Of an arm by planned seed: those that were added after the first cell was started are in no verdict."""
    values = results.values(arm, metric, model=model, split=split) if arm in results.arms else {}
    if find_metric(metric).kind == "tuning" and not is_nested(results.planned):
        counted = tuning_seeds(results.planned)
    else:
        counted = results.counted(arm)
    return {seed: find_metric(metric).judged(value) for seed, value in values.items() if seed in counted}


def with_examples(over_seeds: Estimate, both: Crossed | None) -> Estimate:
    """The same mean, of all seeds, with what the examples leave open, as far as they were kept."""
    return over_seeds if both is None else replace(over_seeds, examples=both.estimate.examples)


def by_example(
    results: Results,
    arms: tuple[str, ...],
    metric: str,
    model: Which,
    seeds: Collection[int],
    combine: Callable[..., NDArray[np.float64]],
    *,
    split: str | None = None,
) -> tuple[NDArray[np.float64], NDArray[np.int64] | None] | None:
    """What `combine` makes of the arms' scores (seeds, examples), and the weights of the examples, if they have any.

    Over the seeds in which all arms kept the same examples; of several sets of them, those that most seeds share. None
    where these are fewer than two, or the examples are.
    """
    alike: list[tuple[Predictions, list[NDArray[np.float64]]]] = []
    for seed in seeds if metric in BY_EXAMPLE else ():
        of_arms = [kept_predictions(results, arm, seed, model, split) for arm in arms]
        scores = [one.scores(metric) if one is not None else None for one in of_arms]
        if any(score is None or not (np.abs(score) <= LARGEST).all() for score in scores):
            continue
        first, *others = [one for one in of_arms if one is not None]
        if not all(same_examples(one, first) for one in others):
            continue
        rows = next((rows for kept, rows in alike if same_examples(kept, first)), None)
        if rows is None:
            alike.append((first, rows := []))
        rows.append(combine(*scores))
    kept, rows = max(alike, key=lambda found: len(found[1]), default=(None, []))
    if kept is None or len(rows) < 2 or len(kept.row) < 2:
        return None
    return np.stack(rows), kept.weights(metric)


def same_examples(one: Predictions, other: Predictions) -> bool:
    pairs = ((one.row, other.row), (one.tokens, other.tokens), (one.words, other.words))
    return all((a is None) == (b is None) and (a is None or b is None or np.array_equal(a, b)) for a, b in pairs)


def kept_predictions(
    results: Results, arm: str, seed: int, model: Which, split: str | None = None
) -> Predictions | None:
    try:
        return results.predictions(Cell(arm=arm, seed=seed), model=model, split=split)
    except CellError:  # said by the checks
        return None


# -- failures -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SeedOutcomes:
    """How the planned seeds of an arm ended."""

    arm: str
    planned: tuple[int, ...]
    not_run: tuple[int, ...]
    failed: Mapping[int, Message]
    """By seed, how."""
    values: Mapping[int, float]
    """By seed, of those that did not fail; on the scale on which the metric is judged."""

    @property
    def num_ran(self) -> int:
        return len(self.planned) - len(self.not_run)

    @property
    def rate_at_most(self) -> float:
        """The failure rate that these seeds do not exclude: 95 %, one-sided (Clopper and Pearson)."""
        from scipy.special import betaincinv

        n, k = self.num_ran, len(self.failed)
        return 1.0 if k >= n else float(betaincinv(k + 1, n - k, _LEVEL))

    def counted(self, worst: float) -> dict[int, float]:
        """With failures at the worst value."""
        return {**self.values, **dict.fromkeys(self.failed, worst)}


def seed_outcomes(
    results: Results, arm: str, metric: str, *, model: Which = "final", seeds: tuple[int, ...] | None = None
) -> SeedOutcomes:
    """Of the planned seeds that are compared, or these.

    Failures are of quality. All else is taken where it was measured; of counts, from the first on.
    """
    seeds, kind = results.counted(arm) if seeds is None else seeds, find_metric(metric).kind
    values = judged_values(results, arm, metric, model=model)
    if kind == "count":
        return SeedOutcomes(arm=arm, planned=tuple(values), not_run=(), failed={}, values=values)
    if kind == "tuning" and not is_nested(results.planned):
        return _tuning_outcomes(results, arm, metric, values, tuning_seeds(results.planned))
    values = {seed: value for seed, value in values.items() if seed in seeds}
    if kind == "tuning":
        return _tuning_outcomes(results, arm, metric, values, seeds)
    failed: dict[int, Message] = {}
    not_run = []
    for seed in seeds:
        cell = Cell(arm=arm, seed=seed)
        record = results.records.get(cell)
        if record is None and str(cell) in results.damaged:
            failed[seed] = Message("failure-damaged")
        elif record is None and diverged_everywhere(results, cell):
            failed[seed] = Message("status-diverged")
        elif record is None or record.status not in ENDED:
            not_run.append(seed)
        elif record.status != "done":
            failed[seed] = Message(f"status-{record.status}")
        elif seed not in values and results.sealed is None and seed in results.counted(arm):
            failed[seed] = Message("failure-no-number", metric=metric)
    if kind not in ("predictions", "correlation", "loss", "curve"):
        return SeedOutcomes(arm=arm, planned=seeds, not_run=tuple(not_run), failed={}, values=values)
    collapsed = {cell.seed for cell in results.collapsed if cell.arm == arm and cell.seed in values}
    if not collapsed.issuperset(seeds):
        failed |= dict.fromkeys(sorted(collapsed), Message("failure-collapsed"))
    return SeedOutcomes(
        arm=arm,
        planned=seeds,
        not_run=tuple(not_run),
        failed=dict(sorted(failed.items())),
        values={seed: value for seed, value in values.items() if seed not in failed},
    )


def _tuning_outcomes(
    results: Results, arm: str, metric: str, values: Mapping[int, float], planned: tuple[int, ...]
) -> SeedOutcomes:
    """Of trials. That some diverge is part of what is measured; a seed failed if there is nothing to measure."""
    points = grid_points(results.planned)
    there = {*map(str, results.tuning), *results.damaged}
    missing = [seed for seed in planned if seed not in values]
    not_run = [seed for seed in missing if not {str(Cell(arm=arm, seed=seed, point=one)) for one in points} <= there]
    why = Message("failure-no-number", metric=metric)
    return SeedOutcomes(
        arm=arm,
        planned=planned,
        not_run=tuple(not_run),
        failed={seed: why for seed in missing if seed not in not_run},
        values=values,
    )


def diverged_everywhere(results: Results, cell: Cell) -> bool:
    """Whether no point of its grid can be chosen, so that it will never be run."""
    points = trials_of(results.planned, cell).values()
    diverged = {trial for trial, record in results.tuning.items() if record.status == "diverged"}
    return bool(points) and all(not diverged.isdisjoint(trials) for trials in points)


def worst_value(results: Results, metric: str, seeds: Collection[int]) -> float:
    """What a failure counts as: the worst there can be, so that nothing hangs on what a failed run is worth.

    Of shares that is 0 (of Matthews' correlation, -1). A loss has no worst value: the largest that was seen at a first
    step, before anything was learned, or at an end. Not a number where neither is known, as of a metric of one's own
    or of an LR sensitivity: then nothing is decided. It is by the seeds that are looked at, so that
    what runs later does not change what a first stage has decided.
    """
    known, everything = find_metric(metric), results.whole or results
    if known.kind == "tuning":
        return math.nan
    if known.kind in ("predictions", "correlation"):
        bound = known.low if known.direction == "higher" else known.high
        return bound if math.isfinite(bound) else math.nan
    logs = (everything.steps(cell).loss for cell in everything.records if cell.seed in seeds)
    first = [loss for losses in logs if (loss := finite_number(next(iter(losses), None))) is not None]
    if not first:
        return math.nan
    ends = (judged_values(everything, arm, metric).items() for arm in everything.arms)
    return max(
        [*first, *(value for of_arm in ends for seed, value in of_arm if seed in seeds)]
    )  # a perplexity is judged as the loss


def pull_of(results: Results, outcomes: Sequence[SeedOutcomes], metric: str) -> int:
    """Where failures move a value, or what one arm is to another, if one of them alone has any: -1 down or 1 up, to
    what is worse for it. 0 if not; of the baseline, over which nothing may gain by its failures; and of trials, which
    may lack a number without being worse."""
    failing = [one for one in outcomes if one.failed]
    if len(failing) != 1 or failing[0].arm == results.study.compare.baseline or find_metric(metric).kind == "tuning":
        return 0
    down = is_higher_better(metric) == (failing[0] is outcomes[0])
    return -1 if down else 1


def find_collapsed(results: Results) -> dict[Cell, Message]:
    """Cells of any arm that learned nothing, and how that shows. Verdicts count them as failures."""
    found = {}
    for cell, record in results.records.items():
        if record.status != "done" or finite_number(record.value(results.study.compare.metric)) is None:
            continue
        kept = kept_predictions(results, cell.arm, cell.seed, "final")
        reason = _collapse(record, kept) if kept is not None else _at_majority(record, results)
        if reason is not None:
            found[cell] = reason
    return dict(sorted(found.items(), key=lambda item: item[0].seed))


def _at_majority(record: Record, results: Results) -> Message | None:
    """Of a cell without predictions, by what the simple baseline knows of the classes."""
    simple = find_simple_baseline(record.data, results.simple_baselines)
    accuracy = finite_number(record.value("accuracy"))
    split = record.first_split or ""
    share = simple.majority.get(split) if simple is not None else None
    if accuracy is None or share is None or record.num_test_examples < 1:
        return None
    near = near_chance(share, examples=record.num_test_examples)
    return Message("collapsed-majority", accuracy=accuracy, share=share) if accuracy <= near else None


def _collapse(record: Record, kept: Predictions) -> Message | None:
    """How a model with labels or tags shows that it has learned nothing; None if it has learned something."""
    if kept.found_entities is not None and kept.true_entities is not None:
        is_blind = kept.true_entities.any() and not kept.found_entities.any()  # every word is outside of entities
        return Message("collapsed-class", same=1.0) if is_blind else None
    if kept.label is None or kept.prediction is None or not len(kept.label):
        return None
    if not kept.has_classes:
        return _uncorrelated(kept)
    examples = len(kept.label)
    counts = np.bincount(kept.label)
    share = counts.max() / examples
    accuracy = float((kept.label == kept.prediction).mean())
    if accuracy <= near_chance(float(share), examples=examples):
        return Message("collapsed-majority", accuracy=accuracy, share=float(share))
    chance = math.log(max(2, len(counts)))
    loss = record.value("loss")
    if loss is not None and loss >= _NO_LEARNING * chance and accuracy < share + _LITTLE * (1 - share):
        return Message("collapsed-loss", loss=loss, chance=chance)
    same = np.bincount(kept.prediction).max() / examples
    if same >= _ONE_CLASS and share < 0.95:
        return Message("collapsed-class", same=float(same))
    return None


def _uncorrelated(kept: Predictions) -> Message | None:
    """Of a regression: predictions that go with the labels no more than chance would have it, and are no closer to them
    than their mean is."""
    assert kept.label is not None
    pearson = class_metrics(["pearson"], kept.label, kept.prediction, 0)["pearson"]
    chance, error, spread = _CHANCE / math.sqrt(len(kept.label)), float(kept.loss.mean()), float(kept.label.var())
    if pearson > chance or error < spread:
        return None
    return Message("collapsed-mean", pearson=pearson, chance=chance, error=error, spread=spread)
