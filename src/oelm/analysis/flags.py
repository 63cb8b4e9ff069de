"""Flags: what the checks raise. A check is a rule with a code; a flag says where it fired, with the numbers."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from oelm.words.text import Lang, Text, say

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
    "SAME-SPLIT": "invalid",
    # of the runs
    "COLLAPSED": "invalid",
    "BELOW-FLOOR": "invalid",
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
class Flag:
    code: str
    severity: Severity
    where: str
    """An arm, a cell, a field, a claim."""
    arms: tuple[str, ...]
    """None: the whole study. One: every comparison with it. Two: the comparison between them alone."""
    message: Text

    def touches(self, arm: str, against: str) -> bool:
        """Whether it is about the comparison of these two arms."""
        if len(self.arms) <= 1:
            return not self.arms or self.arms[0] in (arm, against)
        return set(self.arms) == {arm, against}

    def line(self, lang: Lang) -> str:
        return f"{self.severity:<7} {self.code}  {self.where}{': ' if self.where else ''}{self.message[lang]}"

    def __str__(self) -> str:
        return self.line("en")


class Flags(list[Flag]):
    """What the checks found."""

    def _repr_html_(self) -> str:
        import pandas as pd

        columns = ["severity", "code", "where", "message"]
        html: str = pd.DataFrame([flag_as_dict(one) for one in self], columns=columns).to_html(index=False)
        return html


def flag(
    code: str,
    *,
    where: str = "",
    arms: tuple[str, ...] = (),
    severity: Severity | None = None,
    key: str | None = None,
    **values: object,
) -> Flag:
    """A flag of a check; its sentence is the table's for `key`, or for the code."""
    message = say(key or code, **values)
    return Flag(code=code, severity=severity or CHECKS[code], where=where, arms=arms, message=message)


def worst_first(flags: Iterable[Flag]) -> list[Flag]:
    """Without repetitions; otherwise in the order they were raised."""
    return sorted(dict.fromkeys(flags), key=lambda one: SEVERITIES.index(one.severity))


def flags_shown(flags: list[Flag]) -> list[str]:
    """One flag a line; what is said of several places alike is said once."""
    places: dict[tuple[str, str, str], list[str]] = {}
    for one in flags:
        places.setdefault((one.severity, one.code, str(one.message)), []).append(one.where)
    lines = []
    for (severity, code, message), where in places.items():
        named = [place for place in where if place]
        more = f" (and {len(named) - 3} more)" if len(named) > 3 else ""
        lines.append(f"{severity:<8}{code:<18} {', '.join(named[:3])}{more}{': ' if named else ''}{message}")
    return lines


def flag_as_dict(flag: Flag) -> dict[str, Any]:
    return {
        "code": flag.code,
        "severity": flag.severity,
        "where": flag.where,
        "arms": list(flag.arms),
        "message": str(flag.message),
    }
