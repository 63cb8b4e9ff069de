"""Checks of the lock: whether the study, and every cell, is what was locked when the first cell was started."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from oelm.analysis.checks.registry import Issue, issue
from oelm.analysis.results import Results
from oelm.message import Message

CODE = "CHANGED-AFTER-START"


def check_lock(results: Results) -> Iterator[Issue]:
    changes = results.changes
    for change in changes.changed:
        found = issue(CODE, where=change.path, arms=(change.arm,) if change.arm else (), was=change.was, now=change.now)
        # That of a hypothesis is about no comparison: whoever judges it asks for its own.
        yield replace(found, about=()) if change.hypothesis is not None else found
    added: dict[str, tuple[str | int, ...]] = {
        "arms": changes.arms,
        "seeds": changes.seeds,
        "hypotheses": changes.hypotheses,
    }
    what = tuple(Message(f"added-{kind}", names=names) for kind, names in added.items() if names)
    if what:
        yield issue(CODE, severity="note", key="added-after-start", what=what)
    yield from _other_locks(results)


def _other_locks(results: Results) -> Iterator[Issue]:
    """Cells that were started under another lock, or under none that they name."""
    if results.lock is None:
        return
    digest, other = results.lock.digest, dict[str, list[str]]()
    for cell, record in [*results.records.items(), *results.tuning.items()]:
        if record.start is not None and record.start.lock != digest:
            other.setdefault(cell.arm, []).append(record.start.lock)
    for arm in results.study.arms:
        if arm in other:
            was, number = other[arm][0][:12] or "-", len(other[arm])
            yield issue(CODE, where=arm, arms=(arm,), key="other-lock", number=number, was=was, now=digest[:12])


def changed_hypothesis(results: Results, name: str) -> list[Issue]:
    """What has changed of a hypothesis."""
    paths = {change.path for change in results.changes.changed if change.hypothesis == name}
    return [one for one in check_lock(results) if not one.about and set(one.places) <= paths]
