"""Hypothesis: what a study sets out to show, with the rule that decides it, written down before anything is run."""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Literal

from oelm.errors import did_you_mean

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
            return f"{self.estimand} {'<' if self.rule == 'below' else '>'} {self.margin:,.10g}"
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


def estimand_problems(
    estimand: Estimand, rule: Rule, margin: float | None, *, arms: Collection[str]
) -> Iterator[tuple[str, str]]:
    """What makes no sense together: (field, what is wrong with it). Without `arms` or a margin, any will do."""
    for arm in (estimand.arm, estimand.against):
        if arm is not None and arms and arm not in arms:
            yield "estimand", f"unknown arm '{arm}'{did_you_mean(arm, arms)}"
    if estimand.arm == estimand.against:
        yield "estimand", f"compares '{estimand.arm}' with itself"
    if estimand.form == "difference" and estimand.metric == "perplexity":
        of_arms = f"({estimand.arm}) / perplexity({estimand.against})"
        yield (
            "estimand",
            f"perplexities are compared by their ratio: perplexity{of_arms}, with a margin of 1.05 or, within, 0.05",
        )
    if rule != "within":
        return
    if margin is not None and margin <= 0:
        yield "margin", f"must be greater than 0, got {margin:g}"
    if estimand.form == "ratio" and margin is not None and margin >= 1:
        yield "margin", f"must be less than 1, for ratios around 1: 0.05 is 5 %, got {margin:g}"
    if estimand.form == "value":
        yield "rule", "'within' needs two arms: metric(a) - metric(b), or metric(a) / metric(b)"
