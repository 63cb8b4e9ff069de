"""Printed numbers: what a table or a text says, with how much its last digit leaves open."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property, lru_cache

from oelm.errors import OelmError

_NUMBER = re.compile(r"([+-]?)(\d{1,3}(?:,\d{3})+|\d+)?(?:\.(\d*))?\s*(%?)")
_CLOCK = re.compile(r"(?:(\d+)\s*h)?\s*(?:(\d+)\s*m(?:in)?)?\s*(?:(\d+)(?:\.(\d+))?\s*s(?:ec)?)?")
_HOURS = re.compile(r"(\d+)\s*h\s*(\d+)")  # 4h31
_LONGEST = 40


@dataclass(frozen=True, kw_only=True)
class ReportedNumber:
    """A number as it was printed."""

    text: str
    value: Fraction
    half: Fraction
    """Half a unit of the last digit."""

    @cached_property
    def low(self) -> Fraction:
        return self.value - self.half

    @cached_property
    def high(self) -> Fraction:
        return self.value + self.half

    def like(self, value: Fraction | float) -> str:
        """Another value, in the same form."""
        share = self.text.endswith("%")
        unit = 2 * self.half * (100 if share else 1)
        decimals = max(0, -math.floor(math.log10(unit) + 1e-9))
        return f"{float(value) * (100 if share else 1):.{decimals}f}{' %' if share else ''}"


@lru_cache(maxsize=10_000)  # thousands of records on one split have a few hundred accuracies between them
def parse_number(text: str) -> ReportedNumber:
    """Read "0.9142", "91.42 %" or "3,145,728"."""
    plain = text.strip().replace("\u2212", "-").replace("\uff05", "%")
    found = _NUMBER.fullmatch(plain) if len(plain) <= _LONGEST else None
    if found is None or not (found[2] or found[3]) or not plain.isascii():
        raise OelmError(
            f"{text[:_LONGEST]!r} is not a number as it is printed", hint="'0.9142', '91.42 %', '3,145,728'"
        )
    decimals = found[3] or ""
    unit = Fraction(1, 10 ** len(decimals) * (100 if found[4] else 1))
    digits = int((found[2] or "0").replace(",", "") + decimals)
    return ReportedNumber(text=plain, value=(-digits if found[1] == "-" else digits) * unit, half=unit / 2)


def parse_duration(text: str) -> ReportedNumber:
    """Read "0.184 s", "35min 48s", "4h31" or "3h 12m 59s", in seconds."""
    plain = text.strip()
    hours = _HOURS.fullmatch(plain)
    found = _CLOCK.fullmatch(f"{plain}m" if hours else plain) if len(plain) <= _LONGEST and plain.isascii() else None
    if found is None or not any(found.groups()):
        raise OelmError(
            f"{text[:_LONGEST]!r} is not a duration as it is printed", hint="'0.184 s', '35min 48s', '4h31'"
        )
    unit = Fraction(1, 10 ** len(found[4] or "")) if found[3] else Fraction(60 if found[2] else 3600)
    seconds = int((found[3] or "0") + (found[4] or "")) * (unit if found[3] else 1)
    return ReportedNumber(
        text=plain, value=int(found[1] or 0) * 3600 + int(found[2] or 0) * 60 + Fraction(seconds), half=unit / 2
    )


def parse_clock(seconds: Fraction | float) -> str:
    """A time as people write it: 5h07, 29m53s, 0.184 s."""
    if seconds < 60:
        return f"{float(seconds):.3g} s"
    if seconds < 3600:
        return f"{round(seconds) // 60}m{round(seconds) % 60:02d}s"
    minutes = round(Fraction(seconds) / 60)
    return f"{minutes // 60}h{minutes % 60:02d}"


def parse_share(text: str) -> ReportedNumber:
    """Read a number between 0 and 1."""
    number = parse_number(text)
    if number.high < 0 or number.low > 1:
        raise OelmError(f"{text!r} is not a share", hint="'91.42 %' or '0.9142'")
    return number
