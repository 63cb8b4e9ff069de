"""YAML as people write it: `1e-4` is a number, and a key that comes twice is a mistake. What we write is JSON."""

import json
import re
import stat
from pathlib import Path
from typing import Any

import yaml

from oelm.errors import StudyError

_MOST_VALUES = 100_000
_DEEPEST = 50
_MOST_BYTES, _MOST_JSON = 2**19, 2**24  # YAML takes ten seconds for a megabyte


class _Loader(yaml.SafeLoader):
    nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        self.nodes += 1
        if self.nodes > _MOST_VALUES:  # a million would take a minute before they are counted
            mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]
            raise yaml.composer.ComposerError(None, None, f"more than {_MOST_VALUES:,} values", mark)
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[object] = set()
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                raise yaml.constructor.ConstructorError(
                    None, None, "`<<` is not read here: say the fields themselves", key_node.start_mark
                )
            key = self.construct_object(key_node, deep=True)
            if not isinstance(key, str | int | float | bool | None):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key_node.start_mark)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"duplicate key '{key}'", key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-4 as text, because it has no point.
_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse(text: str, *, where: str) -> Any:
    try:
        data = yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise StudyError(f"{where} is not YAML that can be read", where=f"{where}{line}", why=error.problem) from error
    except Exception as error:  # a tag may be put on any value, and the library says anything about it
        why = f"{type(error).__name__}: {error}"
        raise StudyError(f"{where} is not YAML that can be read", why=why) from error
    _check(data, where)
    return data


def _parse_json(text: str, *, where: str) -> Any:
    """As YAML, which JSON is a part of, but a hundred times as fast."""
    try:
        data = json.loads(text, object_pairs_hook=_without_repetition)
    except (ValueError, RecursionError) as error:
        raise StudyError(f"{where} is not JSON that can be read", why=f"{type(error).__name__}: {error}") from error
    _check(data, where)
    return data


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"duplicate key '{name}'")
        found[name] = value
    return found


def _check(data: Any, where: str) -> None:
    """Refuse what could not be shown or written again. Aliases (`*name`) make endless data of a few lines."""
    waiting, values = [(data, 1)], 0
    while waiting:
        value, depth = waiting.pop()
        values += 1
        if values > _MOST_VALUES or depth > _DEEPEST:
            raise StudyError(f"{where} is too large or too deep", why="with its aliases (`*name`) written out")
        if isinstance(value, dict):
            waiting += [(part, depth + 1) for item in value.items() for part in item]
        elif isinstance(value, list | tuple | set):
            waiting += [(part, depth + 1) for part in value]
        elif isinstance(value, str) and not value.isascii() and any("\ud800" <= letter <= "\udfff" for letter in value):
            raise StudyError(f"{where} has text that is not Unicode", why=f"half of a pair of surrogates in {value!r}")
        elif isinstance(value, int) and value.bit_length() > 64:
            raise StudyError(f"{where} has an integer of more than 64 bits")


def read(path: Path) -> Any:
    is_json = path.suffix == ".json"
    most = _MOST_JSON if is_json else _MOST_BYTES
    try:
        if not stat.S_ISREG(path.stat().st_mode):  # before it is opened: nobody may ever write to a named pipe
            raise StudyError(f"{path} is not a file")
        if path.stat().st_size > most:
            raise StudyError(f"{path} is too large", why=f"it has more than {most:,} bytes")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise StudyError(f"{path} is not text in UTF-8", why=str(error)) from error
    except OSError as error:
        raise StudyError(f"{path} cannot be read", why=error.strerror) from error
    return (_parse_json if is_json else parse)(text, where=str(path))
