"""The shape of the code: imports point one way, and what needs no torch imports none."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import oelm

SOURCE = Path(oelm.__file__).parent
# Each may import from those before it, and from itself.
ORDER = [
    "version",
    "installation",
    "errors",
    "yaml",
    "hub",
    "seeds",
    "format",
    "masking",
    "parquet",
    "sync",
    "message",
    "metrics",
    "treatment",
]
ORDER += [
    "facts",
    "data",
    "study",
    "runs",
    "analysis",
    "claims",
    "text",
    "report",
    "heads",
    "models",
    "train",
    "launch",
    "bench",
    "cli",
    "__main__",
]
# The method saves and loads models, and audits what is saved.
EXCEPTIONS = {("heads/save.py", "models"), ("heads/audit.py", "models")}
# A message is put into words when it is printed, and not before.
EXCEPTIONS |= {("message.py", "text")}


def imports(path: Path) -> set[str]:
    tree = ast.parse(path.read_text())
    names = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    names |= {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("oelm.")}


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_point_one_way(path):
    relative = path.relative_to(SOURCE)
    part = relative.parts[0].removesuffix(".py")
    if part == "__init__":
        return
    allowed = ORDER[: ORDER.index(part) + 1]
    for name in imports(path):
        assert name in allowed or (str(relative), name) in EXCEPTIONS, f"{relative} imports {name}"


def test_words_are_for_reports_and_commands():
    """Statistics and checks hold keys and values: `text` is for `report`, `cli` and the printing of a message."""
    users = {str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if "text" in imports(path)}
    assert {user.split("/")[0] for user in users} <= {"text", "report", "cli", "message.py"}
    assert "message.py" in users


def test_no_torch_until_it_is_needed():
    uses = "oelm.Treatment(freeze='qk'); oelm.seed_for(0); oelm.OelmError"
    code = f"import sys, oelm; {uses}; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


HEAVY = {"torch", "transformers", "accelerate", "safetensors"}
LIGHT = f"heavy = {HEAVY} & set(sys.modules); assert not heavy, heavy"
READING = "import sys, oelm; r = oelm.load({folder!r}); str(r); r.table(); r.checks; {more}"


@pytest.mark.slow
def test_the_reading_needs_no_torch(tmp_path):
    """A laptop with the records is enough."""
    from made_runs import make_runs

    folder = str(make_runs(tmp_path))
    more = "from oelm.report.write import write_report; write_report(r, formats=('html', 'md')); "
    code = READING.format(folder=folder, more=more + LIGHT)
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.slow
def test_commands_that_read_or_plan_need_no_torch(tmp_path):
    """One after the other in one process: what one of them imports is found right after it."""
    from made_runs import make_runs

    runs = str(make_runs(tmp_path))
    commands = [["check", "quickstart"], ["check", "minilm-sst2-peft"], ["check", runs], ["claims"], ["report", runs]]
    commands += [["plan", "quickstart", "--no-measure"], ["status", runs], ["data", "recall"]]
    code = f"""
import sys
from oelm.cli.main import main
for words in {commands}:
    sys.argv = ["oelm", *words]
    try:
        main()
    except SystemExit as end:
        assert end.code in (0, 1), (words, end.code)  # 1: a check finds something
    heavy = {HEAVY} & set(sys.modules)
    assert not heavy, (words, heavy)
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_heads_needs_no_transformers():
    """The method is torch only; transformers is imported where its models are loaded or trained."""
    code = (
        "import sys, torch, oelm; from torch import nn; m = nn.Sequential(nn.MultiheadAttention(8, 2));"
        "oelm.apply(m, init='orthogonal', freeze='qk').audit().check(); assert 'transformers' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_public_names():
    assert set(oelm.__all__) - {"__version__"} == set(oelm._HOMES)
    for name in oelm.__all__:
        assert getattr(oelm, name) is not None
        assert name in dir(oelm)
    with pytest.raises(AttributeError, match="no attribute 'aply'"):
        oelm.aply  # noqa: B018
    stubs = (SOURCE / "__init__.py").read_text().split("TYPE_CHECKING:")[1].split("_HOMES")[0]
    assert all(name in stubs for name in oelm._HOMES), "type checkers see the same names"


def test_there_is_no_utils():
    assert not [path for path in SOURCE.rglob("*.py") if path.stem in ("utils", "helpers", "misc", "common")]
