"""Issues: what the checks find. A check is a rule with a code; an issue names where it fired, with the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from oelm.message import Message, MessageValue, merge_messages, without_numbers

Severity = Literal["invalid", "warn", "note"]
SEVERITIES: tuple[Severity, ...] = ("invalid", "warn", "note")
"""`invalid` blocks a verdict, `warn` is said beside it, `note` is worth knowing."""

# Every check, with how bad it is unless the rule itself says otherwise. Each has a section in docs/fair-comparison.md.
CHECKS: dict[str, Severity] = {
    # of the design
    "LR-DIFFERS": "invalid",
    "SETTING-DIFFERS": "invalid",
    "TUNING-UNEQUAL": "invalid",
    "TUNING-NOISE": "warn",
    "UNTUNED": "warn",
    "ARMS-ALIKE": "warn",
    "MANY-FACTORS": "warn",
    "SCALE-CONFOUND": "invalid",
    "PRETRAINED-ERASED": "invalid",
    "BASELINE-TREATED": "invalid",
    "RANDOM-BACKBONE": "note",
    "FEW-SEEDS": "warn",
    "UNDECIDABLE": "warn",
    "SAME-SPLIT": "invalid",
    "CHANGED-AFTER-START": "invalid",
    # of the runs
    "LEAKAGE": "invalid",
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
    "DIRTY-CODE": "warn",
    "FEW-EXAMPLES": "note",
    "IMBALANCED": "note",
    "NO-ASSAY": "note",
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
    """One cause, however many arms and cells it was found in."""

    code: str
    severity: Severity
    places: tuple[str, ...]
    """Arms, cells, fields, claims."""
    about: tuple[tuple[str, ...], ...]
    """Arms, for every place. None: the whole study. One: every comparison with it. Two: the one between them alone."""
    message: Message
    """What was found, as a key and its values."""

    @property
    def where(self) -> str:
        return ", ".join(self.places)

    @property
    def arms(self) -> tuple[str, ...]:
        """All that it is about; none where it is about the whole study."""
        return tuple(dict.fromkeys(arm for arms in self.about for arm in arms)) if all(self.about) else ()

    def applies_to(self, arm: str, against: str) -> bool:
        """Whether it is about the comparison of these two arms."""
        pair = {arm, against}
        return any(set(arms) == pair if len(arms) > 1 else set(arms) <= pair for arms in self.about)

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
    places = (where,) if where else ()
    return Issue(code=code, severity=severity or CHECKS[code], places=places, about=(arms,), message=message)


def by_severity(issues: Iterable[Issue]) -> list[Issue]:
    """Each cause once, with all its arms; the worst first, otherwise in the order they were raised."""
    causes: dict[object, list[Issue]] = {}
    for one in dict.fromkeys(issues):
        causes.setdefault((one.severity, one.code, _cause(one, one.message)), []).append(one)
    return sorted(map(_merged, causes.values()), key=lambda one: SEVERITIES.index(one.severity))


def _cause(issue: Issue, message: Message) -> object:
    """What must be the same in a message for two places to have one cause: all but numbers, arms and details."""
    return message.key, tuple((name, _essence(issue, name, value)) for name, value in message.values.items())


def _essence(issue: Issue, name: str, value: MessageValue) -> object:
    if name == "what" or isinstance(value, int | float) or value in issue.arms:
        return None
    if name == "instead" and isinstance(value, tuple):  # what would do: the same things, be they more or fewer
        return tuple(without_numbers(one) for one in value)
    return value


def _merged(issues: list[Issue]) -> Issue:
    first = issues[0]
    if len(issues) == 1:
        return first
    return replace(
        first,
        places=tuple(dict.fromkeys(place for one in issues for place in one.places)),
        about=tuple(dict.fromkeys(arms for one in issues for arms in one.about)),
        message=merge_messages([one.message for one in issues]),
    )


def format_issues(issues: Iterable[Issue]) -> list[str]:
    """One issue a line."""
    lines = []
    for one in issues:
        more = f" (and {len(one.places) - 3} more)" if len(one.places) > 3 else ""
        named = f"{', '.join(one.places[:3])}{more}{': ' if one.places else ''}"
        lines.append(f"{one.severity:<8}{one.code:<18} {named}{one.message}")
    return lines
