"""docs/records.md: its second half is made from the dataclasses of the files.

`python tests/runs/test_records_page.py` makes it anew.
"""

import ast
import inspect
import textwrap
import types
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import pytest

from oelm.runs.bench import BENCH_FILE
from oelm.runs.cell_start import CELL_FILE
from oelm.runs.files import FileType
from oelm.runs.jobs import JOB_LINE
from oelm.runs.lease import HOLDER_FILE
from oelm.runs.lock import LOCK_FILE
from oelm.runs.predictions import Predictions
from oelm.runs.record import RECORD_FILE
from oelm.runs.simple_baseline import SIMPLE_BASELINE_FILE
from oelm.runs.steps import Step
from oelm.runs.train_state import STATE_FILE
from oelm.study.hypothesis import Hypothesis
from oelm.study.recipe import Recipe
from oelm.study.study import Arm, Compare, Tune
from oelm.treatment import Treatment

PAGE = Path(__file__).parents[2] / "docs" / "records.md"
MARK = "<!-- From here on made from the dataclasses in src/oelm/runs: python tests/runs/test_records_page.py -->\n"
# The parts of a study have a page of their own.
ELSEWHERE = {Treatment: "how-it-works.md", **dict.fromkeys((Recipe, Compare, Arm, Tune, Hypothesis), "studies.md")}
FILES = (LOCK_FILE, CELL_FILE, RECORD_FILE, BENCH_FILE, SIMPLE_BASELINE_FILE, JOB_LINE, STATE_FILE, HOLDER_FILE)
LINES = {"steps.jsonl": Step, "predictions.parquet": Predictions}


def comments(cls: type) -> dict[str, str]:
    """What stands below each field of a dataclass, its bases with it."""
    found: dict[str, str] = {}
    for base in reversed([one for one in cls.__mro__ if is_dataclass(one)]):
        body = ast.parse(textwrap.dedent(inspect.getsource(base))).body[0].body
        for line, below in zip(body, [*body[1:], None], strict=True):
            if isinstance(line, ast.AnnAssign) and isinstance(line.target, ast.Name):
                says = (
                    below.value.value if isinstance(below, ast.Expr) and isinstance(below.value, ast.Constant) else ""
                )
                found[line.target.id] = " ".join(str(says).split())
    return found


def describe(kind: object, seen: dict[type, None]) -> str:
    """A type in plain words; dataclasses are links, and join those that are seen."""
    origin, inner = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(dict.fromkeys(describe(one, seen) for one in inner))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is dict:
        value = describe(inner[1], seen)
        return f"{f'({value})' if ' ' in value else value} by {describe(inner[0], seen)}"
    if origin in (tuple, list):
        alike = inner[-1] is Ellipsis or origin is list
        return (
            f"list of {describe(inner[0], seen)}" if alike else f"({', '.join(describe(one, seen) for one in inner)})"
        )
    if isinstance(kind, type) and kind in ELSEWHERE:
        return f"[{kind.__name__}]({ELSEWHERE[kind]})"
    if is_dataclass(kind):
        seen.setdefault(kind, None)
        return f"[{kind.__name__}](#{kind.__name__.lower()})"
    names = {str: "text", int: "int", float: "float", bool: "bool", type(None): "null", Any: "value"}
    return names.get(kind, "column of numbers")


def table(cls: type, seen: dict[type, None]) -> str:
    says, hints = comments(cls), get_type_hints(cls)
    told = {name: text.replace("|", "\\|") for name, text in says.items()}
    rows = [f"| `{one.name}` | {describe(hints[one.name], seen)} | {told[one.name]} |" for one in fields(cls)]
    return "\n".join(["| field | type | what |", "|---|---|---|", *rows])


def intro(cls: type) -> str:
    return " ".join((cls.__doc__ or "").split()) if not (cls.__doc__ or "").startswith(f"{cls.__name__}(") else ""


def documented() -> list[type]:
    """The dataclass of every file, and all that are inside of them."""
    seen = dict.fromkeys([*(file.content for file in FILES), *LINES.values()])
    done: set[type] = set()
    while new := [cls for cls in seen if cls not in done]:
        for cls in new:
            table(cls, seen)
        done |= set(new)
    return list(seen)


def chapters() -> list[str]:
    links: dict[type, None] = {}
    found = []
    for file in FILES:
        says = f"Format {file.format}. {intro(file.content)}".strip()
        found += [f"### {file.name}", says, table(file.content, links)]
    for name, cls in LINES.items():
        found += [f"### {name}", intro(cls), table(cls, links)]
    parts = []
    for cls in documented()[len(FILES) + len(LINES) :]:
        parts += [f"### {cls.__name__}", *filter(None, [intro(cls)]), table(cls, links)]
    return ["## The fields of every file", *found, "## Their parts", *parts]


def page() -> str:
    written, _, _ = PAGE.read_text(encoding="utf-8").partition(MARK)
    return written + MARK + "\n" + "\n\n".join(chapters()) + "\n"


def test_the_page_is_that_of_the_dataclasses():
    assert PAGE.read_text(encoding="utf-8") == page(), "python tests/runs/test_records_page.py makes it anew"


@pytest.mark.parametrize("cls", documented(), ids=lambda cls: cls.__name__)
def test_every_field_says_what_it_is(cls):
    assert cls.__dataclass_params__.frozen
    assert [name for name, text in comments(cls).items() if not text] == []


def test_every_file_is_on_the_page():
    known = {file.name for file in FILES}
    made = {value.name for module in _modules() for value in vars(module).values() if isinstance(value, FileType)}
    assert made == known


def _modules() -> list[types.ModuleType]:
    import importlib
    import pkgutil

    import oelm.runs

    return [importlib.import_module(f"oelm.runs.{one.name}") for one in pkgutil.iter_modules(oelm.runs.__path__)]


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
