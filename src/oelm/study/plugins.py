"""Plugins: modules that register tasks, metrics, optimizers and layouts, imported for the studies that name them.

A study says `plugins: [my_module]`. That is somebody's file, so nothing is imported on its word alone: the user agrees
with `--plugin my_module` (or `--plugin ./my_module.py`), or once and for all in a list of their own,
`trusted_plugins.yaml` in oelm's folder below `~/.config` (`XDG_CONFIG_HOME`).
"""

import importlib
import importlib.util
import os
import re
import shlex
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from oelm import yaml
from oelm.errors import StudyError

AGREED = "OELM_PLUGINS"
"""Environment variable with what the user has agreed to. The processes that we start inherit it."""
_NAME = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*", re.ASCII)


def is_plugin_name(name: object) -> bool:
    return isinstance(name, str) and _NAME.fullmatch(name) is not None


def agree_to_plugins(plugins: Iterable[str]) -> None:
    """Agree to the import of modules by name, or of files by path (`./my_module.py`), from here on."""
    agreed = _agreed_here()
    for plugin in plugins:
        entry = _entry(plugin)
        if entry not in agreed:
            agreed.append(entry)
    if agreed:
        os.environ[AGREED] = os.pathsep.join(agreed)


def trusted_plugins_file() -> Path:
    config = os.environ.get("XDG_CONFIG_HOME") or "~/.config"
    return Path(config).expanduser() / "oelm" / "trusted_plugins.yaml"


def import_plugins(names: Sequence[str]) -> None:
    """Import the modules that a study names, each once, where the user has agreed to it."""
    missing = [name for name in names if name not in sys.modules]
    # What a program has imported itself, the processes that it starts may import as well.
    agree_to_plugins(plugin_file(name) or name for name in names if name not in missing)
    files = {Path(entry).stem: Path(entry) for entry in _agreed_here() if entry.endswith(".py")}
    agreed = {*_agreed_here(), *files, *_trusted()}
    refused = [name for name in missing if name not in agreed]
    if refused:
        raise _not_agreed(refused)
    for name in missing:
        if name not in sys.modules:  # one may have imported another
            _import(name, files.get(name))


def plugin_arguments(names: Iterable[str]) -> list[str]:
    """The options that give another `oelm` command the consent which this one has for the plugins of a study."""
    return [word for name in names for word in ("--plugin", plugin_file(name) or name)]


def consent_options(names: Iterable[str]) -> str:
    """The end of a command that the user is to type: consent as it was given here, and none to what is trusted."""
    agreed, trusted, here = _agreed_here(), _trusted(), Path.cwd()
    words = []
    for name in names:
        file = next((Path(one) for one in agreed if one.endswith(".py") and Path(one).stem == name), None)
        if name in trusted:
            continue
        if name in agreed or file is None:
            words += ["--plugin", name]
        else:
            words += ["--plugin", f"./{file.relative_to(here)}" if file.is_relative_to(here) else str(file)]
    return f" {shlex.join(words)}" if words else ""


def plugin_file(name: str) -> str | None:
    """The file of an imported plugin that is a single one; None for a package, which must be installed."""
    module = sys.modules.get(name)
    file = getattr(module, "__file__", None)
    if not file or not file.endswith(".py") or "." in name or hasattr(module, "__path__"):
        return None
    return str(Path(file).resolve())


def _entry(plugin: str) -> str:
    if is_plugin_name(plugin) and not plugin.endswith(".py"):
        return plugin
    try:
        file = Path(plugin).expanduser()
    except RuntimeError as error:
        raise StudyError(f"there is no plugin {plugin}", why=str(error)) from error
    if file.suffix != ".py" or not is_plugin_name(file.stem) or "." in file.stem:
        raise StudyError(f"--plugin '{plugin}' is not a module", hint="--plugin my_module, or --plugin ./my_module.py")
    if not file.is_file():
        raise StudyError(f"there is no plugin {plugin}", where=str(file.absolute()))
    if os.pathsep in str(file.resolve()):
        raise StudyError(f"the path of plugin {plugin} cannot have a '{os.pathsep}' in it", where=str(file.resolve()))
    return str(file.resolve())


def _agreed_here() -> list[str]:
    return [entry for entry in os.environ.get(AGREED, "").split(os.pathsep) if entry]


def _trusted() -> list[str]:
    file = trusted_plugins_file()
    if not file.is_file():
        return []
    names = yaml.read(file) or []
    if not isinstance(names, list) or not all(map(is_plugin_name, names)):
        raise StudyError(f"{file} is not a list of plugins", why=f"it has {names!r}", hint="- my_module")
    return names


def _not_agreed(names: Sequence[str]) -> StudyError:
    one = names[0]
    return StudyError(
        f"the study needs the plugin{'s' if len(names) > 1 else ''} {', '.join(names)}; nothing was imported",
        why="a plugin is code that runs with your rights, so a study file cannot import one by itself",
        hint=f"if you trust it: {' '.join(f'--plugin {name}' for name in names)} (or --plugin ./{one}.py), once;\n"
        f"in Python: import {one}, before this;\n"
        f"or always: a line '- {one}' in {trusted_plugins_file()}",
    )


def _import(name: str, file: Path | None) -> None:
    try:
        with _without_cwd():
            if file is None:
                importlib.import_module(name)
            else:
                _import_file(name, file)
    except (Exception, SystemExit) as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name is not None
            and f"{name}.".startswith(f"{error.name}.")
        ):
            raise StudyError(
                f"plugin '{name}' was not found",
                why="it is not installed here; the folder of the study and the current one are not searched",
                hint=f"install it, or --plugin ./{name.split('.')[0]}.py",
            ) from error
        raise StudyError(
            f"plugin '{name}' cannot be imported", where=_line_of(error), why=f"{type(error).__name__}: {error}"
        ) from error


def _import_file(name: str, file: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


@contextmanager
def _without_cwd() -> Iterator[None]:
    """`python -m oelm` searches the current folder first: a downloaded study may lie there beside a module of a trusted
    name. Who wants it searched says so in PYTHONPATH."""
    wanted = {Path(part).resolve() for part in os.environ.get("PYTHONPATH", "").split(os.pathsep) if part}
    before, here = list(sys.path), Path.cwd()
    if here not in wanted:
        sys.path[:] = [part for part in before if part and Path(part).resolve() != here]
    try:
        yield
    finally:
        added = [part for part in sys.path if part not in before]
        sys.path[:] = [*before, *added]


def _line_of(error: BaseException) -> str | None:
    """File and line where a plugin failed; importlib's own frames are left out."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}"
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
    own = [frame for frame in frames if frame.filename != __file__ and "importlib" not in frame.filename]
    return f"{own[0].filename}, line {own[0].lineno}" if own else None
