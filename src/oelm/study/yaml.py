"""YAML as people write it: `1e-4` is a number, and a key that comes twice is a mistake."""

import re
from pathlib import Path
from typing import Any

import yaml

from oelm.errors import StudyError


class _Loader(yaml.SafeLoader):
    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        keys: set[object] = set()
        for key_node, _ in node.value:
            key = self.construct_object(key_node, deep=True)  # type: ignore[no-untyped-call]
            if not isinstance(key, str | int | float | bool | None):
                raise yaml.constructor.ConstructorError(None, None, "a key must be a plain value", key_node.start_mark)
            if key in keys:
                raise yaml.constructor.ConstructorError(None, None, f"'{key}' is said twice", key_node.start_mark)
            keys.add(key)
        return super().construct_mapping(node, deep)


# YAML 1.1 reads 1e-4 as text, because it has no point.
_Loader.add_implicit_resolver(  # type: ignore[no-untyped-call]
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def parse(text: str, *, where: str) -> Any:
    try:
        return yaml.load(text, _Loader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f", line {mark.line + 1}, column {mark.column + 1}" if mark else ""
        raise StudyError(f"{where} is not YAML that can be read", where=f"{where}{line}", why=error.problem) from error
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise StudyError(f"{where} is not YAML that can be read", why=str(error)) from error


def read(path: Path) -> Any:
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise StudyError(f"{path} is not text in UTF-8", why=str(error)) from error
    except OSError as error:
        raise StudyError(f"{path} cannot be read", why=error.strerror) from error
    return parse(text, where=str(path))
