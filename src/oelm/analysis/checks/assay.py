"""Assay sensitivity: whether a study that finds arms alike could have found them different.

Where queries and keys do not matter to a task, every treatment of them is equivalent to none. That a study can tell is
shown by an arm that it finds worse by as much as matters: best by one whose attention is made useless on purpose.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from oelm.analysis.checks.registry import Issue, issue
from oelm.metrics import find_metric

if TYPE_CHECKING:
    from oelm.analysis.hypotheses import JudgedHypothesis
    from oelm.analysis.results import Results
    from oelm.analysis.verdicts import Comparison


def check_assay(results: Results) -> list[Issue]:
    """`NO-ASSAY`: something is said to make no difference, and no arm of the study, shown or not, has made one."""
    everything, found = results.whole or results, results.comparisons.values()
    if any(_can_tell(one) for one in everything.comparisons.values()):
        return []
    alike = [
        (one.arm, one.against) for one in found if one.verdict == "equivalent" and find_metric(one.metric).is_quality
    ]
    alike += [pair for one in results.hypotheses for pair in _said_to_be_alike(one)]
    return [issue("NO-ASSAY", where=arm, arms=(arm, against)) for arm, against in dict.fromkeys(alike)]


def _can_tell(one: Comparison) -> bool:
    """Whether an arm shows that worse attention is found to be worse."""
    return (
        one.verdict == "worse" and find_metric(one.metric).is_quality and abs(one.estimate.mean) >= (one.margin or 0.0)
    )


def _said_to_be_alike(one: JudgedHypothesis) -> list[tuple[str, str]]:
    """The arms of a hypothesis that is supported, and would be if they were the same."""
    estimand, rule, margin = one.hypothesis.estimand, one.hypothesis.rule, one.hypothesis.margin
    if one.status != "supported" or estimand.against is None or not find_metric(estimand.metric).is_quality:
        return []
    same = 1.0 if estimand.form == "ratio" else 0.0
    holds = rule == "within" or (same > margin if rule == "above" else same < margin)
    return [(estimand.arm, estimand.against)] if holds else []
