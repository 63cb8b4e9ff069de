"""Whether the arms do better than a simple model without attention on the same rows, and how sure that is."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from oelm.analysis.checks.design import edges, is_untuned
from oelm.analysis.checks.registry import Issue, issue
from oelm.analysis.results import Results, finite_number
from oelm.analysis.stats.crossed import crossed
from oelm.analysis.stats.estimate import Estimate, VarianceSource, from_seeds
from oelm.data.tasks import TASKS
from oelm.errors import CellError
from oelm.message import Message
from oelm.metrics import find_metric
from oelm.runs.simple_baseline import SimpleBaseline, find_simple_baseline
from oelm.study.cells import Cell
from oelm.study.study import LR

_KINDS = {
    "bigrams": "bigrams",
    "tf-idf + logistic regression": "tfidf",
    "tf-idf + ridge regression": "ridge",
    "most frequent tag of each word": "tags",
}


def check_simple_baseline(results: Results) -> Iterator[Issue]:
    """A baseline that is certainly worse is none, unless it was given every chance to be better: some tasks are beyond
    a small model that is trained from nothing, however well it is tuned."""
    done = [record for record in results.records.values() if record.status == "done"]
    if done and not any(find_simple_baseline(record.data, results.simple_baselines) for record in done):
        task = TASKS.get(results.study.recipe.data.task)
        none = task is not None and not task.has_simple_baseline
        key = "no-simple-baseline-of-kind" if none else "no-simple-baseline"
        yield issue("BELOW-SIMPLE-BASELINE", severity="note", key=key)
    for arm in results.arms:
        scores = _scores(results, arm)
        if scores:
            yield from _check_arm(results, arm, scores)


@dataclass(frozen=True, kw_only=True)
class _Score:
    """Of one cell, and of the simple model on the rows of that cell; a perplexity by its logarithm."""

    value: float
    level: float
    simple: SimpleBaseline
    examples: int
    differences: NDArray[np.float64] | None
    """Right answers of the one less those of the other, example by example, where both are kept."""


def _check_arm(results: Results, arm: str, scores: list[_Score]) -> Iterator[Issue]:
    compare, side = results.study.compare, results.design.sides[arm]
    difference = _difference(results, arm, scores)
    sign = 1 if compare.direction == "higher" else -1
    if sign * difference.mean >= 0:
        return
    interval = difference.interval(0.95)
    is_certain = sign * (interval.high if sign > 0 else interval.low) < 0
    edge = edges(side).get(LR)
    tuning = "trials-none" if is_untuned(side) else "tuned-to-edge" if edge is not None and edge.is_usual else None
    blocks = is_certain and tuning is not None and arm == compare.baseline
    yield issue(
        "BELOW-SIMPLE-BASELINE",
        where=arm,
        arms=(arm,),
        severity="invalid" if blocks else "warn",
        key="below-simple-untuned" if blocks else "BELOW-SIMPLE-BASELINE" if is_certain else "below-simple-perhaps",
        metric="loss" if compare.metric == "perplexity" else compare.metric,
        value=statistics.fmean(score.value for score in scores),
        level=statistics.fmean(score.level for score in scores),
        kind=Message(f"simple-baseline-{_KINDS[scores[0].simple.kind]}"),
        gap=abs(difference.mean),
        half=interval.high - difference.mean,
        n=len(scores),
        tuning=Message(tuning) if blocks and tuning is not None else None,
    )


def _difference(results: Results, arm: str, scores: list[_Score]) -> Estimate:
    """Over seeds and examples: of shares paired where answers are kept, else as if both erred independently, which is
    cautious. Of losses, what other documents would do to the arm: the simple model keeps none of each, and what is hard
    for the one is for the other."""
    metric = results.study.compare.metric
    difference = from_seeds([score.value - score.level for score in scores])
    rows = [score.differences for score in scores if score.differences is not None]
    examples = scores[0].examples
    if len(rows) == len(scores) and len({len(row) for row in rows}) == 1:
        return replace(difference, examples=crossed(rows).estimate.examples)
    if find_metric(metric).is_share and examples > 1:
        shares = (statistics.fmean(score.value for score in scores), statistics.fmean(score.level for score in scores))
        error = math.sqrt(max(0.0, sum(share * (1 - share) for share in shares)) / examples)
        return replace(difference, examples=VarianceSource(se=error, df=examples - 1))
    found = results.mean(arm, metric)
    return replace(difference, examples=found.estimate.examples) if found is not None else difference


def _scores(results: Results, arm: str) -> list[_Score]:
    metric = results.study.compare.metric
    found = []
    for seed, record in results.of(arm).items():
        simple, split = find_simple_baseline(record.data, results.simple_baselines), record.first_split or ""
        value = finite_number(record.value(metric)) if record.status == "done" else None
        level = finite_number(simple.splits.get(split, {}).get(metric)) if simple is not None else None
        if simple is None or value is None or level is None:
            continue
        if metric == "perplexity":
            value, level = math.log(value), math.log(level)
        examples = record.num_test_examples
        right = simple.answers(split, examples) if metric == "accuracy" else None
        answers = _answers(results, Cell(arm=arm, seed=seed)) if right is not None else None
        differences = None
        if right is not None and answers is not None and len(answers) == len(right):
            differences = answers - right
        found.append(_Score(value=value, level=level, simple=simple, examples=examples, differences=differences))
    return found


def _answers(results: Results, cell: Cell) -> NDArray[np.float64] | None:
    try:
        kept = results.predictions(cell)
    except CellError:  # said elsewhere
        return None
    return kept.scores("accuracy") if kept is not None else None
