"""A wheel made from an installation installs the same package elsewhere."""

import importlib.metadata as metadata
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

import oelm
from oelm.errors import LaunchError
from oelm.launch.backends.ssh import upload, venv
from oelm.launch.backends.ssh.wheel import build_wheel

pytestmark = pytest.mark.slow

SOURCE = Path(oelm.__file__).parent


def pip(*words: object) -> None:
    quiet = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    done = subprocess.run([sys.executable, "-m", "pip", "install", *quiet, *map(str, words)], capture_output=True)
    assert done.returncode == 0, done.stderr.decode()


@pytest.fixture
def original(tmp_path):
    """A wheel of oelm as a package index would have it, without the tools that build one."""
    info = f"oelm-{oelm.__version__}.dist-info"
    wheel = tmp_path / f"oelm-{oelm.__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for path in sorted(SOURCE.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                archive.write(path, f"oelm/{path.relative_to(SOURCE)}")
        archive.writestr("oelm/studies/quickstart.yaml", "study: quickstart\n")
        archive.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: oelm\nVersion: {oelm.__version__}\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", "[console_scripts]\noelm = oelm.cli.main:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def installed(original, tmp_path, monkeypatch):
    """That wheel, installed by pip into a folder that comes first."""
    pip("--target", tmp_path / "installed", original)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    return tmp_path / "installed"


def test_what_is_installed_here_installs_there(installed, original, tmp_path):
    (tmp_path / "made").mkdir()
    wheel = build_wheel(tmp_path / "made")
    assert wheel.name == original.name
    assert build_wheel(tmp_path).read_bytes() == wheel.read_bytes(), "the same bytes each time"
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert {"oelm/cli/main.py", "oelm/py.typed", "oelm/studies/quickstart.yaml"} <= names
    assert not [name for name in names if "__pycache__" in name or name.startswith("..") or "INSTALLER" in name]
    pip("--target", tmp_path / "there", wheel)
    env = {**os.environ, "PYTHONPATH": str(tmp_path / "there")}
    code = "import oelm, oelm.launch.run; print(oelm.__file__, oelm.__version__)"
    done = subprocess.run([sys.executable, "-P", "-c", code], env=env, capture_output=True, text=True, cwd=tmp_path)
    assert done.stdout.split() == [str(tmp_path / "there/oelm/__init__.py"), oelm.__version__], done.stderr
    assert (tmp_path / "there/bin/oelm").exists(), "with its command"


def test_an_installation_that_lists_no_files_is_one_message(tmp_path, monkeypatch):
    info = tmp_path / "site" / "oelm-9.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: oelm\nVersion: 9\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    with pytest.raises(LaunchError, match=r"(?s)cannot be copied|not installed in a way.*venv:"):
        build_wheel(tmp_path)


def test_without_a_source_tree_a_wheel_is_carried_and_installed(installed, monkeypatch):
    """Not a version from an index, where ours may never have been published."""
    copied = []

    def copy(machine, source, to, options, *, what):
        copied.append((source.name, to))

    monkeypatch.setattr(upload, "upload", copy)
    monkeypatch.setattr(upload, "_make_folders", lambda machine, folders: None)

    class Machine:
        address = "ssh://there"

    package = upload._upload_wheel(Machine(), "/there", lambda text: None)
    name = f"oelm-{metadata.version('oelm')}-py3-none-any.whl"
    assert copied == [(name, "/there/wheel")]
    assert (package.folder, package.file) == ("/there/wheel", f"./{name}")
    assert "oelm==" not in venv._MAKE
