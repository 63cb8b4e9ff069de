"""Hypothesis: what a study sets out to show, with the rule that decides it, written down before anything is run."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Rule = Literal["below", "above", "within"]
Form = Literal["value", "difference", "ratio"]

_TERM = r"(\w+)\(([^()]+)\)"
_ESTIMAND = re.compile(rf"{_TERM}(?:\s*([-/])\s*{_TERM})?")


@dataclass(frozen=True, kw_only=True)
class Estimand:
    """`accuracy(a)`, `accuracy(a) - accuracy(b)` or `perplexity(a) / perplexity(b)`, paired by seed."""

    metric: str
    arm: str
    against: str | None = None
    form: Form = "value"

    def __str__(self) -> str:
        if self.against is None:
            return f"{self.metric}({self.arm})"
        sign = "-" if self.form == "difference" else "/"
        return f"{self.metric}({self.arm}) {sign} {self.metric}({self.against})"


@dataclass(frozen=True, kw_only=True)
class Hypothesis:
    name: str
    statement: str
    estimand: Estimand
    rule: Rule
    """`below` and `above` the margin; `within` it of no difference (0, or a ratio of 1)."""
    margin: float

    def to_dict(self) -> dict[str, str | float]:
        return {
            "statement": self.statement,
            "estimand": str(self.estimand),
            "rule": self.rule,
            "margin": self.margin,
        }

    def __str__(self) -> str:
        if self.rule != "within":
            return f"{self.estimand} {'<' if self.rule == 'below' else '>'} {self.margin:g}"
        apart = f"{self.estimand} - 1" if self.estimand.form == "ratio" else str(self.estimand)
        return f"|{apart}| < {self.margin:g}"


def parse_estimand(text: str) -> Estimand:
    """Raises a ValueError that says what is wrong."""
    found = _ESTIMAND.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is not of the form metric(arm), metric(a) - metric(b) or metric(a) / metric(b)")
    metric, arm, sign, other, against = found.groups()
    if sign is None:
        return Estimand(metric=metric, arm=arm.strip())
    if other != metric:
        raise ValueError(f"compares {metric} with {other}; both sides must be one measurement")
    form: Form = "difference" if sign == "-" else "ratio"
    return Estimand(metric=metric, arm=arm.strip(), against=against.strip(), form=form)
