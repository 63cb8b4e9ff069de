"""Environment: the virtual environment of a study on another machine: one that is named, or one that is made there."""

import hashlib
import shlex
from collections.abc import Callable, Mapping
from importlib import metadata

from oelm.errors import LaunchError
from oelm.launch.cargo import tree_of_oelm
from oelm.launch.cluster import Cluster
from oelm.launch.ssh import Answer, Machine, ask, is_full, no_room
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
# for another build of it. pip is called in the folder of the tree, for it reads paths in a way of its own.
_MAKE = """
python=$1 folder=$2 made_from=$3 tree=$4 wanted=$5
shift 5
cd -- "$folder" && exec 8>>.venv.lock && flock 8 || exit 82
if [ "$(cat .venv/made-from 2>/dev/null)" != "$made_from" ]; then
  for lock in runs/*/compare.lock; do
    [ ! -e "$lock" ] || flock -n "$lock" true || exit 83
  done
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || exit 81
  (
    pip() { "$folder/.venv/bin/python" -m pip --disable-pip-version-check install -q "$@"; }
    "$python" -m venv --clear .venv && cd -- "$tree" || exit
    [ ! -f constraints.txt ] || export PIP_CONSTRAINT=constraints.txt
    pip torch || exit
    if [ "$wanted" = . ]; then pip -e .; else pip "$wanted"; fi || exit
    [ $# -eq 0 ] || pip --no-deps "$@"
  ) >environment.log 2>&1 || { tail -n 3 environment.log >&2; exit 82; }
  printf %s "$made_from" >.venv/made-from || exit 82
fi
echo "$folder/.venv"
.venv/bin/python -P -m oelm --version || exit 82
"""


def entering(cluster: Cluster, venv: str | None) -> str:
    """The beginning of a script that needs the environment."""
    lines = []
    if cluster.modules:
        lines.append(f"{shlex.join(['module', 'load', *cluster.modules])} || exit {_NO_MODULES}")
    if venv is not None:
        lines.append(f"export VIRTUAL_ENV={shlex.quote(venv)} PATH={shlex.quote(f'{venv}/bin')}:$PATH")
    return "".join(f"{line}\n" for line in lines)


def ready_environment(
    machine: Machine, cluster: Cluster, *, folder: str, tree: str | None, told: Callable[[str], None]
) -> str:
    """The path of the environment there, after making it if none is named. It holds this version of oelm."""
    begin = entering(cluster, None) + _AT_HOME
    problems = {_NO_MODULES: f"the modules {' '.join(cluster.modules)} cannot be loaded there"}
    if cluster.venv is not None:
        answer = ask(machine, begin + _FIND, cluster.venv)
        problems[_NO_PYTHON] = f"there is no virtual environment {cluster.venv} there"
        problems[_NO_OELM] = f"oelm cannot be called in {cluster.venv} there"
        return _judged(machine, answer, problems, hint=f"oelm {__version__} in it, or another `venv:` in cluster.yaml")
    told(f"looking for the environment on {machine.place.host}; if it must be made, that takes minutes")
    wanted = f"oelm=={__version__}" if tree is None else "."
    words = (cluster.ssh.python, folder, _made_from(tree), tree or folder, wanted, *_packages())
    answer = ask(machine, begin + _MAKE, *words)
    problems[_NO_PYTHON] = f"'{cluster.ssh.python}' is no Python 3.11 or later there"
    problems[_NO_OELM] = f"the environment {folder}/.venv could not be made"
    problems[_BUSY] = "the environment there must be made anew, and another study is running in it"
    hints = {_NO_PYTHON: "`ssh: {python: python3.12}` in cluster.yaml", _BUSY: "wait for it, or another folder"}
    hint = hints.get(answer.code, "`venv:` in cluster.yaml, for one that is there already")
    return _judged(machine, answer, problems, hint=hint)


def _judged(machine: Machine, answer: Answer, problems: Mapping[int, str], *, hint: str) -> str:
    """The path, if all is well."""
    where = str(machine.place)
    if answer.code and is_full(answer.complained):
        raise no_room("the environment", answer, where=where)
    if answer.code:
        what = problems.get(answer.code, "the environment there cannot be used")
        raise LaunchError(f"{what}; nothing was started", where=where, why=answer.complained.strip(), hint=hint)
    venv, version = answer.said.strip().splitlines()[-2:]
    if version != f"oelm {__version__}":
        why = f"there it is {version}, here it is oelm {__version__}"
        raise LaunchError(f"{venv} has another version; nothing was started", where=where, why=why, hint=hint)
    return venv


def _made_from(tree: str | None) -> str:
    """What decides what is in an environment that we make. The source itself is used as it lies in its tree."""
    digest = hashlib.sha256(f"{__version__} {tree} {' '.join(_packages())}".encode())
    here = tree_of_oelm()
    for file in () if here is None else (here / "pyproject.toml", here / "constraints.txt"):
        digest.update(file.read_bytes() if file.is_file() else b"-")
    return digest.hexdigest()


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
