"""Text: a sentence in both languages of the report, made from a row of the tables in this folder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal

Lang = Literal["en", "zh"]
LANGS: tuple[Lang, ...] = ("en", "zh")


@dataclass(frozen=True)
class Text:
    en: str
    zh: str

    def __getitem__(self, lang: Lang) -> str:
        return self.en if lang == "en" else self.zh

    def __str__(self) -> str:
        return self.en


def say(key: str, **values: object) -> Text:
    """The sentence of a key with its values filled in; a value that is itself a Text is taken in each language."""
    template = table()[key]
    return Text(
        *(template[lang].format(**{name: _in(lang, value) for name, value in values.items()}) for lang in LANGS)
    )


def plain(text: str) -> Text:
    """What is the same in both languages: a name, a number, a line from a file."""
    return Text(text, text)


def joined(texts: list[Text]) -> Text:
    """Sentences one after the other."""
    return Text(" ".join(text.en for text in texts), "".join(text.zh for text in texts))


def _in(lang: Lang, value: object) -> object:
    return value[lang] if isinstance(value, Text) else value


@cache
def table() -> dict[str, Text]:
    """Every sentence by its key, from all tables of this folder."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    found: dict[str, Text] = {}
    for path in sorted(Path(__file__).parent.glob("*.yaml")):
        for key, row in yaml.load(path.read_text(encoding="utf-8"), loader).items():
            assert key not in found, f"{path.name}: {key} stands in two tables"
            found[key] = Text(row["en"], row["zh"])
    return found
