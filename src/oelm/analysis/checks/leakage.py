"""Leakage: texts that are tested or selected on and trained on too, as the records counted them."""

from __future__ import annotations

from collections.abc import Iterator

from oelm.analysis.checks.registry import Issue, Severity, issue
from oelm.analysis.results import Results
from oelm.facts import Overlap
from oelm.metrics import find_metric

_MUCH = 0.01  # of the texts, where no share of them says how far a metric can move


def check_leakage(results: Results) -> Iterator[Issue]:
    arms: dict[Overlap, dict[str, None]] = {}
    for cell, record in results.records.items():
        for one in record.data.overlap if record.data is not None else ():
            if one.exact or one.near or one.dropped:
                arms.setdefault(one, {})[cell.arm] = None
    for one, found in arms.items():
        severity: Severity = "note" if one.dropped else _severity(one, results)
        everywhere = len(found) == len(results.arms)
        for arm in [""] if everywhere else found:
            yield issue(
                "LEAKAGE",
                where=arm,
                arms=(arm,) if arm else (),
                severity=severity,
                key="leakage-dropped" if one.dropped else "LEAKAGE",
                split=one.split.removeprefix("test-"),
                other=one.other,
                texts=one.texts,
                exact=one.exact,
                near=one.near,
                dropped=one.dropped,
            )


def _severity(one: Overlap, results: Results) -> Severity:
    """How bad it is that nothing was dropped.

    Of a test split, accuracy can be off by the share of texts that were seen. Where that reaches the smallest effect
    of interest, what is found may be memory. A split to select on has no part in what is reported.
    """
    compare = results.study.compare
    if one.split == "validation" or one.other == "validation":
        return "warn" if one.exact + one.near >= _MUCH * one.texts else "note"
    is_share = find_metric(compare.metric).kind == "predictions"
    tolerable = (compare.min_effect if is_share else None) or _MUCH
    return "invalid" if one.exact >= tolerable * one.texts else "warn"
