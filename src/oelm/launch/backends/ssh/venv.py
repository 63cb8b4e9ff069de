"""Environment: the virtual environment of a study on another machine: one that is named, or one that is made there."""

import hashlib
from collections.abc import Callable, Mapping
from importlib import metadata

from oelm.errors import LaunchError
from oelm.launch.backends.cluster import Cluster, activation_script
from oelm.launch.backends.ssh.host import RemoteResult, SshHost, check_written, run_remote
from oelm.launch.backends.ssh.upload import Package
from oelm.version import __version__

# How the scripts end when something is missing.
_NO_MODULES, _NO_PYTHON, _NO_OELM, _BUSY = 80, 81, 82, 83
_AT_HOME = 'case $1 in "~/"*) set -- "$HOME/${1#"~/"}" "${@:2}" ;; esac\n'
_FIND = """
cd -- "$1" 2>/dev/null && [ -x bin/python ] || exit 81
pwd
bin/python -P -m oelm --version || exit 82
"""
# One launch at a time makes it, and it is made when everything is in it. torch goes first, so that nothing else asks
# for another build of it. pip is called in the folder of the package, for it reads paths in a way of its own.
_MAKE = """
python=$1 folder=$2 made_from=$3 source=$4 package=$5
shift 5
cd -- "$folder" && exec 8>>.venv.lock && flock 8 || exit 82
if [ "$(cat .venv/made-from 2>/dev/null)" != "$made_from" ]; then
  for lock in runs/*/run.lock; do
    [ ! -e "$lock" ] || flock -n "$lock" true || exit 83
  done
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || exit 81
  (
    pip() { "$folder/.venv/bin/python" -m pip --disable-pip-version-check install -q "$@"; }
    "$python" -m venv --clear .venv && cd -- "$source" || exit
    [ ! -f constraints.txt ] || export PIP_CONSTRAINT=constraints.txt
    pip torch || exit
    case $package in .*.whl*) pip "$package" ;; *) pip -e "$package" ;; esac || exit
    [ $# -eq 0 ] || pip --no-deps "$@"
  ) >environment.log 2>&1 || { tail -n 3 environment.log >&2; exit 82; }
  printf %s "$made_from" >.venv/made-from || exit 82
fi
echo "$folder/.venv"
.venv/bin/python -P -m oelm --version || exit 82
"""


def enter_venv(cluster: Cluster, venv: str | None) -> str:
    """The beginning of a script that needs the environment."""
    return activation_script(cluster.modules, venv, no_modules=_NO_MODULES, no_venv=_NO_PYTHON)


def ensure_venv(
    machine: SshHost, cluster: Cluster, *, folder: str, package: Package | None, log: Callable[[str], None]
) -> str:
    """The path of the environment there, after making it if none is named. It holds this version of oelm."""
    begin = enter_venv(cluster, None) + _AT_HOME
    problems = {_NO_MODULES: f"the modules {' '.join(cluster.modules)} cannot be loaded there"}
    if cluster.venv is not None:
        answer = run_remote(machine, begin + _FIND, cluster.venv)
        problems[_NO_PYTHON] = f"there is no virtual environment {cluster.venv} there"
        problems[_NO_OELM] = f"oelm cannot be called in {cluster.venv} there"
        return _check_venv(
            machine, answer, problems, hint=f"oelm {__version__} in it, or another `venv:` in cluster.yaml"
        )
    log(f"looking for the environment on {machine.address.host}; if it must be made, that takes minutes")
    assert package is not None
    words = (cluster.ssh.python, folder, _made_from(package), package.folder, f"{package.file}{_extra()}", *_packages())
    answer = run_remote(machine, begin + _MAKE, *words)
    problems[_NO_PYTHON] = f"'{cluster.ssh.python}' is not Python 3.11 or later there"
    problems[_NO_OELM] = f"the environment {folder}/.venv could not be made"
    problems[_BUSY] = "the environment there must be made anew, and another study is running in it"
    hints = {_NO_PYTHON: "`ssh: {python: python3.12}` in cluster.yaml", _BUSY: "wait for it, or another folder"}
    hint = hints.get(answer.code, "`venv:` in cluster.yaml, for one that is there already")
    return _check_venv(machine, answer, problems, hint=hint)


def _check_venv(machine: SshHost, answer: RemoteResult, problems: Mapping[int, str], *, hint: str) -> str:
    """The path, if all is well."""
    problem = problems.get(answer.code, "the environment there cannot be used")
    check_written(machine, answer, "the environment", problem=problem, why=answer.stderr.strip(), hint=hint)
    venv, version = answer.stdout.strip().splitlines()[-2:]
    if version != f"oelm {__version__}":
        why = f"there it is {version}, here it is oelm {__version__}"
        what = f"{venv} has another version; nothing was started"
        raise LaunchError(what, where=str(machine.address), why=why, hint=hint)
    return venv


def _made_from(package: Package) -> str:
    """What decides what is in an environment that we make."""
    text = f"{__version__} {package.fingerprint} {_extra()} {' '.join(_packages())}"
    return hashlib.sha256(text.encode()).hexdigest()


def _extra() -> str:
    """All that a study needs, where the package is divided into parts; adapters, if they are installed here."""
    parts = metadata.metadata("oelm").get_all("Provides-Extra") or ()
    extra = "adapters" if _is_installed("peft") and "adapters" in parts else "lab"
    return f"[{extra}]" if extra in parts else ""


def _packages() -> list[str]:
    """Packaged data and models that are installed here: a study may name them."""
    needed = [text.partition(";") for text in metadata.requires("oelm") or ()]
    return sorted(name for name, _, when in needed if "quickstart" in when and _is_installed(name))


def _is_installed(package: str) -> bool:
    try:
        metadata.version(package)
    except metadata.PackageNotFoundError:
        return False
    return True
