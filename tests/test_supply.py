"""Where code comes from: never from a package index by the name `oelm`, and under licenses that are listed."""

import http.server
import os
import re
import subprocess
import sys
import threading
import zipfile
from importlib import metadata
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from oelm import installation
from oelm.installation import UPDATE, install_command, oelm_source_tree
from oelm.launch.backends.ssh import venv

ROOT = Path(__file__).parents[1]
TEXTS = [path for name in ("src", "docs", "studies", "examples", "benchmarks") for path in (ROOT / name).rglob("*")]
TEXTS += [path for path in ROOT.iterdir() if path.suffix in (".md", ".txt", ".toml") or path.name == "Makefile"]
BY_NAME = re.compile(r"(?:pip|uv|pipx|conda) (?:\w+ )?(?:install|add|download)(?: -\S+)* ['\"]?oelm\b")


def test_no_text_says_to_install_oelm_by_its_name():
    """On package indexes, that name is not ours."""
    assert BY_NAME.search("pip install --upgrade oelm")
    assert BY_NAME.search("pip install 'oelm[lab]'")
    assert not BY_NAME.search("pip install 'path/to/oelm[lab]'")
    said = [
        path for path in TEXTS if path.suffix in (".py", ".md", ".yaml", ".txt", ".toml") or path.name == "Makefile"
    ]
    assert len(said) > 200
    assert not [str(path) for path in said if BY_NAME.search(path.read_text(encoding="utf-8"))]
    assert "oelm" not in (ROOT / "constraints.txt").read_text().split()


def test_a_hint_names_where_this_oelm_came_from(monkeypatch, tmp_path):
    assert oelm_source_tree() == ROOT
    assert install_command("lab") in (f"pip install -e '{ROOT}[lab]'", f"pip install -e {ROOT}[lab]")
    monkeypatch.setattr(installation, "oelm_source_tree", lambda: None)
    (tmp_path / "my oelm").mkdir()
    installed = {"url": f"file://{tmp_path}/my%20oelm"}
    texts = [installed, {"url": "file:///gone"}, {"url": "https://example.org/oelm.whl"}, {}]
    hints = []
    for text in [*map(str, texts), None, "7", "{"]:

        class Distribution:
            read_text = staticmethod(lambda name, text=text: text and text.replace("'", '"'))

        monkeypatch.setattr(metadata, "distribution", lambda name, found=Distribution: found)
        hints.append(install_command("lab"))
    assert hints[0] == f"pip install '{tmp_path}/my oelm[lab]'"
    assert set(hints[1:]) == {"install oelm again, as you did before, with its extra 'lab'"}
    assert "pip" not in UPDATE


def test_a_package_in_a_folder_of_a_project_is_no_source_tree(monkeypatch, tmp_path):
    """`pip install --target vendor` puts it beside somebody's pyproject.toml."""
    (tmp_path / "pyproject.toml").touch()
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "vendor/oelm/installation.py"))
    assert oelm_source_tree() is None
    monkeypatch.setattr(installation, "__file__", str(tmp_path / "src/oelm/installation.py"))
    assert oelm_source_tree() == tmp_path


# -- pip on another machine -------------------------------------------------------------------------------------------


def write_wheel(folder: Path, name: str, version: str, *needs: str) -> Path:
    info = f"{name}-{version}.dist-info"
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", "Provides-Extra: method"]
    with zipfile.ZipFile(wheel, "w") as archive:
        text = "\n".join([*lines, "Provides-Extra: lab", *(f"Requires-Dist: {one}" for one in needs), ""])
        archive.writestr(f"{info}/METADATA", text)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return wheel


@pytest.fixture
def index(tmp_path):
    """A package index on the loopback interface, with a later oelm of somebody else; (address, what was asked for)."""
    asked, files = [], tmp_path / "index"
    files.mkdir()
    for name, version in (("oelm", "99.0"), ("leaf", "1.0"), ("torch", "1.0")):
        write_wheel(files, name, version)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            name = self.path.strip("/").rpartition("/")[2]
            found = files / name if name.endswith(".whl") else None
            pages = "".join(f'<a href="/{file.name}">{file.name}</a>' for file in files.glob(f"{name}-*"))
            self.send_response(200)
            self.send_header("Content-Type", "text/html" if found is None else "application/zip")
            self.end_headers()
            self.wfile.write(pages.encode() if found is None else found.read_bytes())

        def log_message(self, *words):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple", asked
        server.shutdown()


def test_pip_there_asks_nobody_for_oelm(index, tmp_path):
    """Even where the extras of a wheel name oelm itself. What it needs besides comes from the index."""
    address, asked = index
    wheel = write_wheel(tmp_path, "oelm", "0.1.0", 'oelm[method]; extra == "lab"', 'leaf; extra == "method"')
    lines = [line.strip() for line in venv._MAKE.splitlines() if re.search(r"\bpip\b", line)]
    assert 'case $package in .*.whl*) pip "$package" ;; *) pip -e "$package" ;; esac || exit' in lines, (
        "a file, or here"
    )
    assert not [line for line in lines if "oelm" in line], "never by name"
    env = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    words = ["-m", "pip", "--disable-pip-version-check", "install", "--dry-run", "--ignore-installed", "--no-cache-dir"]
    done = subprocess.run(
        [sys.executable, *words, "--index-url", address, f"./{wheel.name}[lab]"],
        cwd=tmp_path,
        env={**env, "PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "Would install leaf-1.0 oelm-0.1.0"
    assert any("leaf" in path for path in asked)
    assert not [path for path in asked if "oelm" in path]


# -- licenses ---------------------------------------------------------------------------------------------------------

# By what a package says of itself; the first that is found counts, those that ask for more before those that do not.
LICENSES = {
    "MPL-2.0": r"MPL-2\.0|Mozilla Public License 2\.0",
    "Apache-2.0": r"Apache",
    "PSF-2.0": r"PSF-2\.0|Python Software Foundation",
    "BSD": r"BSD",
    "ISC": r"ISC",
    "MIT": r"MIT",
}


def license_of(package: str) -> str | None:
    found = metadata.metadata(package)
    first = (found.get("License") or "").partition("\n")[0]
    classifiers = [text for text in found.get_all("Classifier") or () if text.startswith("License ::")]
    text = " ".join([found.get("License-Expression") or first, *classifiers])
    assert not re.search(r"GPL|SSPL|Proprietary|Commercial", text), (package, text)
    return next((name for name, pattern in LICENSES.items() if re.search(pattern, text)), None)


def test_every_dependency_has_a_license_that_is_listed():
    rows = re.findall(r"^\| (\S+) \| (.+) \|$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    listed = {canonicalize_name(name): kind for kind, names in rows if kind in LICENSES for name in names.split(", ")}
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pinned = [line.partition("==")[0] for line in lines if line and not line.startswith("#")]
    assert {canonicalize_name(name) for name in pinned} == set(listed)
    for name in pinned:
        try:
            assert license_of(name) == listed[canonicalize_name(name)], name
        except metadata.PackageNotFoundError:  # of another platform
            continue
