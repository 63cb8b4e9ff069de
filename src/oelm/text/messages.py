"""Sentences: a message, or a row of the tables in this folder, in both languages of the report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from oelm.format import DASH
from oelm.message import LANGS, Lang, Message, MessageValue, Text

_MOST_LISTED = 6  # more are counted


def translate(message: Message) -> Text:
    """The sentence of a message."""
    return say(message.key, **message.values)


def say(key: str, **values: MessageValue) -> Text:
    """The sentence of a key with its values filled in; messages and texts among them are taken in each language."""
    template = load_messages()[key]
    return Text(
        *(template[lang].format(**{name: _in(lang, value) for name, value in values.items()}) for lang in LANGS)
    )


def untranslated(text: str) -> Text:
    """What is the same in both languages: a name, a number, a line from a file."""
    return Text(text, text)


def join_texts(texts: Sequence[Text]) -> Text:
    """Sentences one after the other."""
    return Text(" ".join(text.en for text in texts), "".join(text.zh for text in texts))


def list_texts(texts: Sequence[Text]) -> Text:
    """Parts of one sentence."""
    comma = say("list-comma")
    return Text(*(comma[lang].join(text[lang] for text in texts) for lang in LANGS))


def join_names(names: Sequence[str]) -> Text:
    """A list of names; of many, the first, and how many more there are."""
    first = ", ".join(names[:_MOST_LISTED])
    return (
        say("and-more", names=first, n=len(names) - _MOST_LISTED) if len(names) > _MOST_LISTED else untranslated(first)
    )


class _Number(float):
    """A number in a sentence: without a format it is short, and a dash where there is none."""

    def __format__(self, spec: str) -> str:
        if math.isinf(self):
            return "-\u221e" if self < 0 else "\u221e"
        return format(float(self), spec or "g") if not math.isnan(self) else DASH


class _Several:
    """Several values in a sentence: listed; numbers that the sentence has a format for, from the least to the most."""

    def __init__(self, values: tuple[MessageValue, ...], lang: Lang) -> None:
        self._values, self._lang = values, lang

    def __format__(self, spec: str) -> str:
        if not spec:
            return _list(self._values, self._lang)
        found = [value for value in self._values if isinstance(value, int | float)]
        numbers = [_Number(value) if type(value) is float else value for value in found]
        low, high = (format(pick(numbers), spec) for pick in (min, max))
        return low if low == high else say("from-to", low=low, high=high)[self._lang]


def _in(lang: Lang, value: MessageValue) -> object:
    if isinstance(value, Message):
        return translate(value)[lang]
    if isinstance(value, Text):
        return value[lang]
    if isinstance(value, tuple):
        return _Several(value, lang)
    return _Number(value) if type(value) is float else value


def _list(values: tuple[MessageValue, ...], lang: Lang) -> str:
    """Names and numbers are all named; of what is said with words, the first few."""
    if not any(isinstance(value, Message) for value in values):
        return ", ".join(f"{_in(lang, value)}" for value in values)
    first = say("list-comma")[lang].join(f"{_in(lang, value)}" for value in values[:_MOST_LISTED])
    more = len(values) - _MOST_LISTED
    return say("and-more", names=first, n=more)[lang] if more > 0 else first


@cache
def load_messages() -> dict[str, Text]:
    """Every sentence by its key, from all tables of this folder."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Text] = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        for key, row in yaml.load(path.read_text(encoding="utf-8"), loader).items():
            assert key not in found, f"{path.name}: {key} is in two tables"
            found[key] = Text(row["en"], row["zh"])
    return found
