"""Result: the answer to one question, as a line, as JSON, and beside its target."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Literal


@dataclass(frozen=True, kw_only=True)
class Target:
    rule: Literal["at least", "at most", "holds"]
    """`holds`: the interval does, which is no matter of the value."""
    number: float

    def __str__(self) -> str:
        return f"interval holds {self.number:g}" if self.rule == "holds" else f"{self.rule} {self.number:.4g}"


@dataclass(frozen=True, kw_only=True)
class Result:
    question: str
    what: str
    """What the value is: what is over what, or what is counted."""
    value: float | None = None
    """None where it was not measured: the note says why."""
    low: float | None = None
    high: float | None = None
    """95 % interval, where there is one."""
    unit: str = ""
    """Nothing for a ratio."""
    target: Target | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    """By name: the median time of what was compared."""
    rounds: int | None = None
    note: str = ""
    failed: bool = False

    @property
    def reached(self) -> bool | None:
        """Whether the value meets the target; None where that cannot be said."""
        if self.target is None or self.value is None:
            return None
        if self.target.rule == "holds":
            return None if self.low is None or self.high is None else self.low <= self.target.number <= self.high
        return self.value >= self.target.number if self.target.rule == "at least" else self.value <= self.target.number

    @property
    def shown(self) -> str:
        """The value with its unit and interval."""
        if self.value is None:
            return "failed" if self.failed else "not measured"
        return f"{self.value:.4g}{self.unit and ' ' + self.unit}" + (f" ({self.interval})" if self.interval else "")

    @property
    def interval(self) -> str:
        return "" if self.low is None or self.high is None else f"{self.low:.4g} to {self.high:.4g}"

    @property
    def remarks(self) -> str:
        rounds = {None: "", 1: "1 round"}.get(self.rounds, f"{self.rounds} rounds")
        return "; ".join(filter(None, (rounds, self.note)))

    @property
    def missed_by(self) -> str:
        """How far the value is from its target."""
        assert self.target is not None
        assert self.value is not None
        if self.target.rule == "holds":
            return f"the interval {self.interval} does not hold {self.target.number:g}"
        apart = self.value / self.target.number - 1
        return f"{self.value:.4g} instead of {self.target}: {abs(apart):.1%} {'more' if apart > 0 else 'less'}"

    def __str__(self) -> str:
        parts = [f"{self.question}: {self.what}: {self.shown}"]
        if self.target is not None:
            reached = {True: "reached", False: "NOT reached", None: "open"}[self.reached]
            parts.append(f"target {self.target}: {reached}")
        if self.seconds:
            parts.append(seconds_shown(self.seconds))
        return "; ".join([*parts, *([self.remarks] if self.remarks else [])])

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, line: str) -> Result:
        data = json.loads(line)
        return cls(**{**data, "target": data["target"] and Target(**data["target"])})


def seconds_shown(seconds: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.3g} s" for name, value in seconds.items())


def parser_for(doc: str | None, *, budget: float) -> argparse.ArgumentParser:
    """What all scripts can be told."""
    parser = argparse.ArgumentParser(description=(doc or "").partition("\n")[0])
    parser.add_argument("--budget", type=float, default=budget, help="seconds to measure for, about (%(default)g)")
    parser.add_argument("--quick", action="store_true", help="the smallest run there is, to see that it works")
    parser.add_argument("--json", type=Path, help="a file to which every result is appended as a line of JSON")
    return parser


def tell(measure: Callable[[argparse.Namespace], Iterator[Result]], parser: argparse.ArgumentParser) -> None:
    """Show every result, and keep it, as soon as it is there."""
    options = parser.parse_args()
    if options.quick:
        options.budget = 0.0
    for result in measure(options):
        print(result, flush=True)
        if options.json is not None:
            with options.json.open("a", encoding="utf-8") as file:
                file.write(result.to_json() + "\n")
