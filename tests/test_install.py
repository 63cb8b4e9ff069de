"""Installing: a wheel holds all that oelm reads, and every extra is enough for what it promises.

An environment of these tests has the wheel and links to the packages that its metadata ask for, and no others: it is
made without a network, and what is not asked for cannot be imported.
"""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
import venv
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatch
from importlib.metadata import distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import tiny_study
from made_runs import make_runs
from oelm.errors import MissingPart, explain_import, require

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    build = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    (built,) = folder.glob("*.whl")
    return built


def requirements(wheel: Path, extra: str = "") -> list[Requirement]:
    """What the wheel asks for without extras, or what an extra adds to that."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        lines = email.message_from_bytes(archive.read(name)).get_all("Requires-Dist", [])
    found = []
    for requirement in map(Requirement, lines):
        of_extra = requirement.marker is not None and "extra" in str(requirement.marker)
        is_wanted = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
        if is_wanted and of_extra == bool(extra):
            found.append(requirement)
    return found


def all_needed(wanted: Iterable[Requirement]) -> set[str]:
    """The names of these distributions and of all that they ask for in turn."""
    found: set[tuple[str, frozenset[str]]] = set()
    left = [(canonicalize_name(one.name), frozenset(one.extras)) for one in wanted]
    while left:
        name, extras = left.pop()
        if (name, extras) in found:
            continue
        found.add((name, extras))
        for one in map(Requirement, distribution(name).requires or ()):
            if one.marker is None or any(one.marker.evaluate({"extra": extra}) for extra in (*extras, "")):
                left.append((canonicalize_name(one.name), frozenset(one.extras)))
    return {name for name, _ in found}


@dataclass(frozen=True, kw_only=True)
class Environment:
    folder: Path

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        """A program of this environment, which sees nothing of ours."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        return subprocess.run(
            [self.folder / "bin" / command[0], *command[1:]],
            cwd=self.folder,
            env=kept | {"OELM_CACHE": str(self.folder / "cache"), "PYTHONNOUSERSITE": "1"},
            capture_output=True,
            text=True,
        )

    def python(self, code: str) -> subprocess.CompletedProcess[str]:
        return self.run("python", "-c", code)

    def has(self, *modules: str) -> list[str]:
        code = "import sys; from importlib.util import find_spec; print(*(m for m in sys.argv[1:] if find_spec(m)))"
        return self.run("python", "-c", code, *modules).stdout.split()


def make_environment(folder: Path, wheel: Path, names: Iterable[str]) -> Environment:
    venv.create(folder, with_pip=False, symlinks=True)
    site = Path(sysconfig.get_path("purelib", "venv", {"base": str(folder)}))
    for name in names:
        found = distribution(name)
        for entry in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / entry).exists():
                (site / entry).symlink_to(Path(str(found.locate_file(entry))))
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python")]
    subprocess.run([*pip, "install", "-q", "--no-deps", "--no-index", str(wheel)], check=True, capture_output=True)
    return Environment(folder=folder)


@pytest.fixture(scope="module")
def reading(wheel, tmp_path_factory) -> Environment:
    """oelm without extras."""
    return make_environment(tmp_path_factory.mktemp("reading"), wheel, all_needed(requirements(wheel)))


@pytest.fixture(scope="module")
def method(wheel, tmp_path_factory) -> Environment:
    """What `oelm[method]` adds, without what reading needs."""
    return make_environment(tmp_path_factory.mktemp("method"), wheel, all_needed(requirements(wheel, "method")))


@pytest.fixture(scope="module")
def lab(wheel, tmp_path_factory) -> Environment:
    """What `oelm[lab]` adds as well."""
    needed = all_needed([*requirements(wheel), *requirements(wheel, "lab")])
    return make_environment(tmp_path_factory.mktemp("lab"), wheel, needed)


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return make_runs(tmp_path_factory.mktemp("runs"))


# -- the wheel -----------------------------------------------------------------------------------------------------


def test_the_wheel_holds_every_file_of_the_package_and_every_study(wheel):
    with zipfile.ZipFile(wheel) as archive:
        inside = set(archive.namelist())
    source = ROOT / "src"
    wanted = {
        path.relative_to(source).as_posix()
        for path in (source / "oelm").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"oelm/studies/{path.name}" for path in (ROOT / "studies").glob("*.yaml")}
    assert wanted <= inside
    assert {name for name in inside if ".dist-info/" not in name} <= wanted
    for kind in ("studies/*.yaml", "claims/ledgers/*.yaml", "text/*.yaml", "*.jinja", "*.css", "*.typ", "py.typed"):
        assert any(fnmatch(name, f"oelm/*{kind}") for name in inside), kind


EXTRAS = ("", "method", "lab", "report", "adapters")


def test_extras_of_the_wheel(wheel):
    names = {extra: {one.name for one in requirements(wheel, extra)} for extra in EXTRAS}
    heavy = {"torch", "transformers", "safetensors", "accelerate", "matplotlib", "typst", "scikit-learn"}
    assert not names[""] & heavy
    assert names["method"] == {"torch", "transformers", "safetensors"}
    assert names["method"] < names["lab"]
    assert names["report"] == {"matplotlib", "typst"}
    assert names["adapters"] == names["lab"] | {"peft"}
    assert "oelm" not in set().union(*names.values()), "which would be looked for on an index"
    floor = next(one for one in requirements(wheel, "method") if one.name == "transformers")
    assert "4.48.0" in floor.specifier
    assert "4.47.1" not in floor.specifier


# -- what a missing part says --------------------------------------------------------------------------------------


def test_a_missing_part_is_named_in_one_line_with_its_command(monkeypatch):
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(MissingPart) as caught:
        require("lab", needed_by="oelm run")
    command = f"pip install -e '{ROOT}[lab]'"
    assert str(caught.value) == f"oelm run needs accelerate, which is not installed; try: {command}"
    assert isinstance(caught.value, ImportError)
    require("method", needed_by="oelm.apply")


def test_an_import_that_no_extra_mends_stays_what_it_is():
    assert explain_import(ModuleNotFoundError(name="my_module"), needed_by="oelm run") is None
    assert explain_import(ModuleNotFoundError(name="torch.of_tomorrow"), needed_by="oelm run") is None


# -- environments --------------------------------------------------------------------------------------------------

NOT_TO_READ = ("torch", "transformers", "safetensors", "accelerate", "sklearn", "matplotlib", "typst")


@pytest.mark.slow
def test_reading_needs_no_torch_installed(reading, runs, tmp_path):
    assert reading.has(*NOT_TO_READ) == []
    for command in (
        ["claims"],
        ["claims", "check", "C1"],
        ["check", "quickstart"],
        ["check", runs],
        ["report", runs, "--format", "html,md", "--out", tmp_path],
        ["plan", "quickstart", "--no-measure"],
        ["status", runs],
        ["studies", "ls"],
    ):
        done = reading.run("oelm", *command)
        assert done.returncode in (0, 1), (command, done.stderr)  # 1: a check finds something
        assert "Traceback" not in done.stderr, command
        assert done.stdout, command
    for name in ("report.html", "report.md"):
        text = (tmp_path / name).read_text(encoding="utf-8")
        assert "matplotlib is not installed" in text
        assert "with the extra report" in text
    done = reading.python(
        f"import oelm; r = oelm.load({str(runs)!r}); print(r); r.table(); oelm.Treatment(freeze='qk')"
    )
    assert done.returncode == 0, done.stderr
    assert "oelm-freeze" in done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "module", "extra"),
    [
        ("oelm run quickstart", "torch", "lab"),
        ("oelm bench quickstart", "torch", "lab"),
        ("oelm inspect model", "torch", "method"),
        ("oelm audit model", "torch", "method"),
        ("oelm report {runs} --format html,pdf", "typst", "report"),
    ],
)
def test_a_command_without_its_part_says_how_to_install_it(command, module, extra, reading, wheel, runs):
    before = [*reading.folder.iterdir(), *runs.iterdir()]
    done = reading.run(*(word.format(runs=runs) for word in command.split()))
    assert done.returncode == 2
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.endswith(f"needs {module}, which is not installed; try: pip install '{wheel}[{extra}]'")
    assert [*reading.folder.iterdir(), *runs.iterdir()] == before, "nothing was written"


@pytest.mark.slow
def test_a_plan_without_torch_says_what_its_estimate_needs(reading, wheel):
    done = reading.run("oelm", "plan", "quickstart")
    assert done.returncode == 0
    assert "baseline/seed-0" in done.stdout
    assert (
        f"no estimate of the time: it needs torch, which is not installed; try: pip install '{wheel}[lab]'"
        in done.stdout
    )


@pytest.mark.slow
def test_the_method_without_torch_is_an_oelm_error(reading, wheel):
    code = "import oelm\ntry:\n    oelm.apply\nexcept oelm.OelmError as error:\n    print(error)"
    assert reading.python(code).stdout == (
        f"oelm.apply needs torch, which is not installed; try: pip install '{wheel}[method]'\n"
    )


APPLY = """
import torch
from transformers import BertConfig, BertForSequenceClassification
import oelm
model = BertForSequenceClassification(BertConfig(
    vocab_size=50, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32))
applied = oelm.apply(model, init="orthogonalize", freeze="qk", seed=0)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
model(input_ids=torch.randint(50, (2, 8)), labels=torch.tensor([0, 1])).loss.backward()
optimizer.step()
applied.audit(optimizer=optimizer).check()
applied.save_pretrained("saved")
loaded, again = oelm.from_pretrained("saved")
print(again.audit(), len(oelm.find_heads(loaded)), oelm.count(loaded), oelm.orthonormality(loaded)[0])
"""


@pytest.mark.slow
def test_the_method_needs_neither_figures_nor_statistics_nor_accelerate(method):
    absent = ("matplotlib", "typst", "scipy", "accelerate", "sklearn", "pandas", "pyarrow")
    assert method.has(*absent, "torch") == ["torch"]
    done = method.python(APPLY)
    assert done.returncode == 0, done.stderr
    assert "audit passed" in done.stdout


@pytest.mark.slow
def test_the_lab_runs_a_study_and_reports_it_without_figures(lab, tmp_path):
    assert lab.has("torch", "matplotlib", "typst", "tensorboard") == ["torch"]
    file = tiny_study.make(tmp_path)
    done = lab.run("oelm", "run", file, "--seed", "0", "--set", "recipe.budget.steps=2", "--out", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    done = lab.run("oelm", "report", tmp_path / "runs")
    assert done.returncode == 0, done.stderr
    assert "matplotlib is not installed" in (tmp_path / "runs" / "tiny" / "report.html").read_text(encoding="utf-8")


# -- sizes ---------------------------------------------------------------------------------------------------------


def test_all_pages_name_the_same_sizes_and_times():
    english, chinese, makefile = (
        (ROOT / name).read_text(encoding="utf-8") for name in ("README.md", "README.zh-CN.md", "Makefile")
    )
    (whole,) = re.findall(r"Setting up .venv \(.*about ([\d.]+) GB\)", makefile)
    assert f"about {whole} GB, once" in english
    assert f"约 {whole} GB" in chinese
    assert re.findall(r"about (\d+) minutes", english) == re.findall(r"约需 (\d+) 分钟", chinese)
    rows = r"^\| `(pip install .*?)` \|.*\| ([\d.]+) GB \|$"
    sizes = re.findall(rows, english, re.MULTILINE)
    assert len(sizes) == 5
    assert re.findall(rows, chinese, re.MULTILINE) == sizes
