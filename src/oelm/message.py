"""Messages: what there is to say, as a key and its values. The words are in `oelm.text`, which this imports lazily."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

from oelm.format import finite_or_none

Lang = Literal["en", "zh"]
LANGS: tuple[Lang, ...] = ("en", "zh")


@dataclass(frozen=True)
class Text:
    """A sentence in both languages."""

    en: str
    zh: str

    def __getitem__(self, lang: Lang) -> str:
        return self.en if lang == "en" else self.zh

    def __str__(self) -> str:
        return self.en


MessageValue: TypeAlias = "str | int | float | Text | Message | tuple[MessageValue, ...] | None"


@dataclass(frozen=True, init=False)
class Message:
    """`Message("FEW-SEEDS", n=3, smallest=0.02)`; printed, it is the English sentence."""

    key: str
    values: Mapping[str, MessageValue]

    def __init__(self, key: str, /, **values: MessageValue) -> None:
        object.__setattr__(self, "key", key)
        object.__setattr__(self, "values", values)

    def __hash__(self) -> int:
        return hash((self.key, tuple(self.values.items())))

    def __str__(self) -> str:
        from oelm.text.messages import (
            translate,  # here and nowhere else below `report`: the words are not needed before
        )

        return translate(self).en

    def to_dict(self) -> dict[str, object]:
        """Plain data for JSON: the key, and the values with numbers as numbers."""
        return {"key": self.key, "values": {name: _plain(value) for name, value in self.values.items()}}


def verbatim(text: str) -> Message:
    """What is the same in both languages: an error of the system, a line from a file."""
    return Message("verbatim", text=text)


def merge_messages(messages: Sequence[Message]) -> Message:
    """Messages of one key as one, with all their values."""
    first = messages[0]
    return Message(first.key, **{name: _all_values([one.values[name] for one in messages]) for name in first.values})


def _all_values(values: list[MessageValue]) -> MessageValue:
    """One that all agree on, or all that there are; messages that differ in their numbers are one."""
    if all(value == values[0] for value in values):
        return values[0]
    parts = dict.fromkeys(one for value in values for one in (value if isinstance(value, tuple) else (value,)))
    alike: dict[object, list[Message]] = {}
    for one in parts:
        if isinstance(one, Message):
            alike.setdefault(without_numbers(one), []).append(one)
    others = [one for one in parts if not isinstance(one, Message)]
    return (*others, *(merge_messages(some) for some in alike.values()))


def without_numbers(value: MessageValue) -> object:
    """What two messages that say the same of different numbers have in common."""
    if not isinstance(value, Message):
        return value
    return value.key, tuple(None if isinstance(one, int | float) else one for one in value.values.values())


def _plain(value: MessageValue) -> Any:
    if isinstance(value, Message):
        return value.to_dict()
    if isinstance(value, Text):
        return {"en": value.en, "zh": value.zh}
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return finite_or_none(value)
