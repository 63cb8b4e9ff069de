"""Upload: what a study needs on another machine: the project, oelm itself, and data that the study names.

The project is the working copy that the current folder is in. It keeps its shape there, and the study runs in the
same folder of it, so that a relative path means there what it means here.
"""

import copy
import hashlib
import socket
import subprocess
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oelm.errors import LaunchError
from oelm.installation import oelm_source_tree
from oelm.launch.backends.ssh.host import SshHost, check_written, escape_pattern, run_remote, upload
from oelm.launch.backends.ssh.wheel import build_wheel
from oelm.runs.git import git_output, git_status
from oelm.study.plugins import plugin_file

_SIGNS = (".git", "pyproject.toml", "cluster.yaml")  # of the uppermost folder of a project
_NEVER = (".git", ".venv", "__pycache__")
# --delete-after: what was removed here must not be imported there, and the .gitignore there must be the new one before
# it is asked. What is ignored is not removed.
_MIRROR = ("-rlpt", "--delete-after")
# Of data, links are followed: what they point to is not there. Of another study, its checkpoints are not needed.
_DATA = ("-rtL", "--delete-after", "--exclude=.git", "--exclude=/*/seed-*/checkpoints")
_ORIGIN = "model.from"
_NAMED = ("data.path", "data.tokenizer.name", "model.name", _ORIGIN)
"""Where a recipe may name a folder or file."""
_OUR_MODEL = "oelm-gpt"


@dataclass(frozen=True, kw_only=True)
class Package:
    """oelm itself, to be installed there."""

    folder: str
    """Where pip is called there."""
    file: str
    """What pip installs, from there: `.` or the name of a wheel."""
    fingerprint: str
    """Changes when the environment must be made anew."""


@dataclass(frozen=True, kw_only=True)
class Upload:
    """Where it is there."""

    study: Mapping[str, object]
    """The study, with the paths of the data as they are there."""
    folder: str
    """What the current folder is here."""
    package: Package | None
    """None if an environment there has oelm already."""


def sync_project(
    machine: SshHost,
    study: Mapping[str, object],
    *,
    to: str,
    out: Path,
    with_oelm: bool,
    running: Sequence[str],
    log: Callable[[str], None],
) -> Upload:
    """Copy all of it into the folder `to` there, in which other studies may be `running`."""
    here, project, tree = Path.cwd().resolve(), find_project(Path.cwd()), oelm_source_tree() if with_oelm else None
    homes = {} if tree is None else {tree: f"{to}/oelm"}
    homes |= {} if project is None else {project: _home_of(project, to)}
    moved, data = _relocate(study, project, to, log)
    if tree is not None and running:
        _check_same(machine, tree, homes[tree], running)
    _make_folders(machine, [*homes.values(), *data.values()])
    for folder, home in homes.items():
        log(f"copying {folder} to {machine.address}")
        _mirror(machine, folder, home, without=[*_NEVER, *_runs_in(folder, out)])
    for path, name in data.items():  # after the project, of which they may be a part that git ignores
        log(f"copying {path} to {machine.address}")
        upload(machine, path, name, _DATA, what=str(path))
    package = None
    if with_oelm:
        package = _upload_wheel(machine, to, log) if tree is None else _source_package(tree, homes[tree])
    return Upload(
        study=moved,
        folder=to if project is None else "/".join([homes[project], *here.relative_to(project).parts]),
        package=package,
    )


def _source_package(tree: Path, home: str) -> Package:
    """The source is used as it is in its tree; what decides about the environment are its requirements."""
    digest = hashlib.sha256(home.encode())
    for file in (tree / "pyproject.toml", tree / "constraints.txt"):
        digest.update(file.read_bytes() if file.is_file() else b"-")
    return Package(folder=home, file=".", fingerprint=digest.hexdigest())


def _upload_wheel(machine: SshHost, to: str, log: Callable[[str], None]) -> Package:
    """Where oelm was installed from a wheel, another machine cannot be sure to find the same one anywhere."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        home = f"{to}/wheel"
        log(f"copying {wheel.name}, made from what is installed here, to {machine.address}")
        _make_folders(machine, [home])
        upload(machine, wheel, home, ["-t"], what=wheel.name)
        digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
        return Package(folder=home, file=f"./{wheel.name}", fingerprint=digest)


def find_project(folder: Path) -> Path | None:
    """The project that a folder is in, if it is in one. A home folder is none, and nothing above it."""
    home = Path.home().resolve()
    folder = folder.resolve()
    for path in (folder, *folder.parents):
        if path == Path(path.anchor) or path == home or path in home.parents:
            return None
        if any((path / sign).exists() for sign in _SIGNS):
            return path
    return None


def _check_same(machine: SshHost, tree: Path, at: str, running: Sequence[str]) -> None:
    """The cells of a study are made with one source: it is not changed below one that is running."""
    options = ["-rlc", "--delete", "--dry-run", "--itemize-changes", "--exclude=__pycache__"]
    answer = upload(machine, tree / "src", f"{at}/src", options, what="oelm itself")
    changed = [line.split(maxsplit=1)[1] for line in answer.stdout.splitlines() if line.startswith(("<f", "*deleting"))]
    if changed:
        raise LaunchError(
            f"oelm here is not the one that {', '.join(running)} is running with there; nothing was started",
            where=f"{at}/src on {machine.address.host}",
            why=f"different there: {', '.join(changed[:3])}",
            hint="wait for it, or another folder: ssh://user@host/folder",
        )


def _runs_in(folder: Path, out: Path) -> Iterator[str]:
    yield "/runs"
    if folder in out.resolve().parents:
        yield f"/{out.resolve().relative_to(folder).as_posix()}"


def _mirror(machine: SshHost, source: Path, to: str, *, without: Sequence[str]) -> None:
    """Make a folder there what this one is, without what is ignored."""
    rules, ignored = [f"--exclude={escape_pattern(path)}" for path in without], _ignored(source)
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", errors="surrogateescape") as file:
        if ignored is None:
            rules.append("--filter=:- .gitignore")
        else:
            file.write("\0".join(map(escape_pattern, ignored)))
            file.flush()
            rules += ["--from0", f"--exclude-from={file.name}", "--filter=:-r .gitignore"]  # r: is not removed there
        upload(machine, source, to, [*_MIRROR, *rules], what=str(source))


def _ignored(folder: Path) -> list[str] | None:
    """What git ignores below a folder, as `/path`. None where git cannot tell, and rsync reads .gitignore by itself:
    it knows no exceptions (`!keep.txt`), and no files above the folder."""
    status = ("-z", "--untracked-files=all", "--ignored=matching", "--", ".")
    try:
        above = git_output(folder, "rev-parse", "--show-prefix", timeout=60)
        found = git_status(folder, *status, timeout=600)
    except (OSError, ValueError, subprocess.SubprocessError):
        return None
    prefix = above.decode(errors="surrogateescape").removesuffix("\n")
    rows = found.decode(errors="surrogateescape").split("\0")
    paths = [row[3:] for row in rows if row.startswith("!! ")]
    if any(prefix.startswith(path) for path in paths):  # all of it is ignored by a working copy that is not its own
        return None
    return ["/" + path.removeprefix(prefix) for path in paths]


def upload_plugins(machine: SshHost, plugins: Iterable[str], *, to: str) -> list[str]:
    """Copy plugins that are single files into a folder below `to` there, where packages must be installed; returns
    the options that allow all of them."""
    words = []
    for name in plugins:
        file = plugin_file(name)
        if file is not None:
            _make_folders(machine, [f"{to}/plugins"])
            upload(machine, Path(file), f"{to}/plugins", ["-t"], what=file)
        words += ["--plugin", name if file is None else f"{to}/plugins/{name}.py"]
    return words


# -- data ----------------------------------------------------------------------------------------------------------


def _relocate(
    study: Mapping[str, object], project: Path | None, to: str, log: Callable[[str], None]
) -> tuple[Mapping[str, object], dict[Path, str]]:
    """The study as it is to be read there; and the local files that it names, with the folder there of each."""
    data: dict[Path, str] = {}

    def moved(path: str, value: Any) -> Any:
        """What a recipe says at a path, as it is there."""
        if isinstance(value, dict):  # a file or folder for each split
            return {split: moved(path, each) for split, each in value.items()}
        found = _local(value) if path in _NAMED and isinstance(value, str) else None
        if found is None or found == project:
            return value
        # The run folder of another study may be there already, with more in it: its copy has a place of its own.
        inside = project is not None and project in found.parents and path != _ORIGIN
        if project is not None and inside:
            name = f"{_home_of(project, to)}/{found.relative_to(project).as_posix()}"
        else:
            name = f"{to}/data/{_label(found)}" + (f"/{found.name}" if found.is_file() else "")
        data[found] = name.rpartition("/")[0] if found.is_file() else name
        if inside and not Path(value).expanduser().is_absolute():
            return value
        if path != "data.path":  # which has no part in what a cell is
            log(f"recipe.{path} is {name} there: these cells do not mix with cells that are made here")
        return name

    there: dict[str, Any] = copy.deepcopy(dict(study))
    model, source = there["recipe"]["model"], there["recipe"]["data"]
    model["name"] = moved("model.name", model.get("name"))
    model["from"] = moved(_ORIGIN, model.get("from"))
    source["path"] = moved("data.path", source.get("path"))
    if source.get("tokenizer") is not None:
        source["tokenizer"]["name"] = moved("data.tokenizer.name", source["tokenizer"].get("name"))
    for arm in there["arms"].values():
        arm["overrides"] = {path: moved(path, value) for path, value in (arm.get("overrides") or {}).items()}
    return there, data


def _home_of(project: Path, to: str) -> str:
    """Where a project is there. Others may use the same folder."""
    return f"{to}/project/{_label(project)}"


def _local(name: str) -> Path | None:
    """The file or folder of a name. A name that is none may be one there, or on the hub."""
    if name == _OUR_MODEL:
        return None
    try:
        path = Path(name).expanduser().resolve()
        if not path.exists():
            return None
    except (OSError, RuntimeError, ValueError):
        return None
    home = Path.home().resolve()
    if path == home or path in home.parents:
        raise LaunchError(f"{name} is too much to be copied", why="all of the home folder is in it")
    return path


def _label(path: Path) -> str:
    """A name for a file or folder of this machine, the same each time."""
    digest = hashlib.sha256(f"{socket.gethostname()}:{path}".encode(errors="surrogateescape")).hexdigest()
    return f"{path.stem if path.is_file() else path.name}-{digest[:12]}"


def _make_folders(machine: SshHost, folders: Sequence[str]) -> None:
    answer = run_remote(machine, 'mkdir -p -- "$@"', *folders)
    check_written(machine, answer, "anything", problem="no folders can be made there")
