"""Issues: what the checks find. A check is a rule with a code; an issue names where it fired, with the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from oelm.message import Message, MessageValue

Severity = Literal["invalid", "warn", "note"]
SEVERITIES: tuple[Severity, ...] = ("invalid", "warn", "note")
"""`invalid` blocks a verdict, `warn` is said beside it, `note` is worth knowing."""

# Every check, with how bad it is unless the rule itself says otherwise. Each has a section in docs/fair-comparison.md.
CHECKS: dict[str, Severity] = {
    # of the design
    "LR-DIFFERS": "invalid",
    "SETTING-DIFFERS": "invalid",
    "TUNING-UNEQUAL": "invalid",
    "MANY-FACTORS": "warn",
    "SCALE-CONFOUND": "invalid",
    "PRETRAINED-ERASED": "invalid",
    "BASELINE-TREATED": "invalid",
    "FEW-SEEDS": "warn",
    "UNDECIDABLE": "warn",
    "SAME-SPLIT": "invalid",
    # of the runs
    "COLLAPSED": "warn",
    "BELOW-SIMPLE-BASELINE": "invalid",
    "FINAL-BELOW-BEST": "warn",
    "INERT-SCHEDULE": "invalid",
    "CLIP-INERT": "note",
    "CLIP-ALWAYS": "note",
    "UNPAIRED": "invalid",
    "AUDIT-FAILED": "invalid",
    "DIVERGED": "warn",
    "INCOMPLETE": "warn",
    "NOT-REPRODUCED": "invalid",
    "PADDING-TIMED": "warn",
    "FIXED-ORDER": "note",
    # of the numbers themselves
    "GRIM": "invalid",
    "TIME-ARITHMETIC": "invalid",
    "BEST-BELOW-LISTED": "invalid",
    "DUPLICATE-ROWS": "warn",
    "F1-IMPOSSIBLE": "invalid",
    "SPEEDUP-ABOVE-CEILING": "invalid",
    "COUNT-MISSES-BUFFERS": "invalid",
}


@dataclass(frozen=True, kw_only=True)
class Issue:
    code: str
    severity: Severity
    where: str
    """An arm, a cell, a field, a claim."""
    arms: tuple[str, ...]
    """None: the whole study. One: every comparison with it. Two: the comparison between them alone."""
    message: Message
    """What was found, as a key and its values."""

    def applies_to(self, arm: str, against: str) -> bool:
        """Whether it is about the comparison of these two arms."""
        if len(self.arms) <= 1:
            return not self.arms or self.arms[0] in (arm, against)
        return set(self.arms) == {arm, against}

    def __str__(self) -> str:
        return f"{self.severity:<7} {self.code}  {self.where}{': ' if self.where else ''}{self.message}"

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON: keys and numbers, and the English sentence beside them."""
        named = {"code": self.code, "severity": self.severity, "where": self.where, "arms": list(self.arms)}
        return {**named, **self.message.to_dict(), "text": str(self.message)}


class Issues(list[Issue]):
    """What the checks found."""

    def _repr_html_(self) -> str:
        import pandas as pd

        columns = ["severity", "code", "where", "text"]
        html: str = pd.DataFrame([one.to_dict() for one in self], columns=columns).to_html(index=False)
        return html


def issue(
    code: str,
    *,
    where: str = "",
    arms: tuple[str, ...] = (),
    severity: Severity | None = None,
    key: str | None = None,
    **values: MessageValue,
) -> Issue:
    """An issue of a check; its message has the key `key`, or the code itself."""
    message = Message(key or code, **values)
    return Issue(code=code, severity=severity or CHECKS[code], where=where, arms=arms, message=message)


def by_severity(issues: Iterable[Issue]) -> list[Issue]:
    """Without repetitions; otherwise in the order they were raised."""
    return sorted(dict.fromkeys(issues), key=lambda one: SEVERITIES.index(one.severity))


def format_issues(issues: list[Issue]) -> list[str]:
    """One issue a line; what was found alike in several places is named once."""
    lines = []
    for (severity, code, message), where in group_issues(issues).items():
        named = [place for place in where if place]
        more = f" (and {len(named) - 3} more)" if len(named) > 3 else ""
        lines.append(f"{severity:<8}{code:<18} {', '.join(named[:3])}{more}{': ' if named else ''}{message}")
    return lines


def group_issues(issues: Iterable[Issue]) -> dict[tuple[Severity, str, Message], list[str]]:
    """Where each was found, by severity, code and message."""
    places: dict[tuple[Severity, str, Message], list[str]] = {}
    for one in issues:
        places.setdefault((one.severity, one.code, one.message), []).append(one.where)
    return places
