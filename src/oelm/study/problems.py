"""Problems of a file: found all together, each with its path, in our words instead of pydantic's."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from types import UnionType
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import TypeAdapter, ValidationError

from oelm.errors import StudyError, did_you_mean
from oelm.study.forbid_extra import name_in_file

FROM_PLUGIN = " (or your own, from a module in `plugins:`)"
_T = TypeVar("_T")
_adapters: dict[type, TypeAdapter[Any]] = {}


class Problems(list[tuple[str, str]]):
    """(path, what is wrong there), in the order they are found."""

    def add(self, path: str, text: str) -> None:
        self.append((path, text))

    def add_unknown(self, path: str, text: str) -> None:
        """A name that is not known. A plugin may register it."""
        self.append((path, f"{text}{FROM_PLUGIN}"))

    def without_unknown(self) -> "Problems":
        return Problems(problem for problem in self if not problem[1].endswith(FROM_PLUGIN))


def validate_config(raw: Any, root: type[_T], *, where: str, also: Callable[[_T], Iterable[tuple[str, str]]]) -> _T:
    """Plain data of another file than a study as what `root` says, or a StudyError with all its problems.

    `also` finds those that pydantic does not see, as (path, what is wrong there).
    """
    problems = Problems()
    made = validate(root, raw, "", problems)
    if made is not None:
        problems.extend(also(made))
    if made is None or problems:
        raise study_error(problems, where)
    return made


def validate(root: type[_T], data: Any, at: str, problems: Problems) -> _T | None:
    """Plain data at a path of a file as the dataclass `root`; None if there are problems, which are added."""
    if data is None:
        problems.add(at, "is missing")
        return None
    adapter: TypeAdapter[_T] | None = _adapters.get(root)
    if adapter is None:
        adapter = _adapters[root] = TypeAdapter(root)
    try:
        # Through JSON: there, strict means that a number is a number, and a list is still good for a tuple.
        return adapter.validate_json(json.dumps(data, default=str), strict=True)
    except ValidationError as error:
        for item in error.errors(include_url=False):
            path = [str(part) for part in item["loc"]]
            place = ".".join(filter(None, [at, *_plain(path)]))
            if not problems or problems[-1][0] != place:
                problems.add(place, _describe(item, root, path))
        return None


def _describe(item: Any, root: type, path: list[str]) -> str:
    """What pydantic found, in our words."""
    kind, seen, context = item["type"], item["input"], item.get("ctx") or {}
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        siblings = _fields_at(root, path[:-1])
        return f"unknown field{did_you_mean(path[-1], siblings) or '; known are ' + ', '.join(siblings)}"
    if kind in ("missing", "missing_argument"):
        return "is missing"
    if kind == "value_error":
        return str(context.get("error", item["msg"]))
    if kind == "literal_error":
        choices = re.findall(r"'([^']*)'", str(context.get("expected", "")))
        return f"{seen!r} is not known{did_you_mean(seen, choices)}; one of {', '.join(choices)}"
    if kind == "dataclass_type" and (known := _fields_at(root, path)):
        return (
            f"must be a mapping with {', '.join(known)}, such as {{{known[0]}: {shorten(seen)}}}, got {shorten(seen)}"
        )
    text = item["msg"].removeprefix("Input ").removeprefix("should ").replace("Input should ", "")
    return f"must {text[0].lower()}{text[1:]}, got {shorten(seen)}"


def _plain(path: list[str]) -> list[str]:
    """A location without pydantic's names for the branches of a union."""
    return [
        part
        for part in path
        if not re.fullmatch(r"(str|int|float|bool|none|dict\[.*|constrained-.*|function-.*)", part)
    ]


def _fields_at(root: Any, path: Sequence[str]) -> list[str]:
    for part in path:
        if get_origin(root) in (dict, tuple):  # values by any name, or one after the other
            root = get_args(root)[get_origin(root) is dict]
        else:
            hints = get_type_hints(root) if is_dataclass(root) else {}
            root = hints.get(part, root)
        if get_origin(root) in (Union, UnionType):
            root = next((choice for choice in get_args(root) if is_dataclass(choice)), root)
    return [name_in_file(field.name) for field in fields(root)] if is_dataclass(root) else []


def report_unknown(data: Mapping[str, Any], known: Iterable[str], prefix: str, problems: Problems) -> None:
    names = sorted(known)
    for name in data:
        if name not in names:
            guess = did_you_mean(name, names) or "; known are " + ", ".join(names)
            problems.add(f"{prefix}{name}", f"unknown field{guess}")


def shorten(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def study_error(problems: Problems, where: str) -> StudyError:
    width = min(max(len(path) for path, _ in problems), 44)
    lines = [f"  {path:<{width}}  {text}" for path, text in problems]
    number = f"{len(problems)} problem{'s' if len(problems) > 1 else ''}"
    return StudyError("\n".join([f"{where} has {number}; nothing was started.", *lines]))
