"""Load a model by folder or hub name, in the class it was saved as. Only safetensors is read."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from oelm.errors import FolderError

# Whatever is wrong with a folder, a library may raise anything about it.
_LOADING_FAILURES = Exception


def load_model(name: str | Path, auto_class: Any = None, **kwargs: Any) -> nn.Module:
    """A model with its weights, as the class it was saved as or as `auto_class` (any transformers class)."""
    kwargs.setdefault("trust_remote_code", False)  # left open, transformers would ask at the terminal
    options = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "trust_remote_code") if key in kwargs}
    cls = auto_class or _saved_class(load_config(name, **options))
    try:
        model = cls.from_pretrained(str(name), use_safetensors=True, **kwargs)
    except _LOADING_FAILURES as error:
        raise FolderError(f"no model could be loaded from {name}", why=_brief(error), hint=_hint(name)) from error
    assert isinstance(model, nn.Module)
    return model


def load_config(name: str | Path, **options: Any) -> Any:
    """The configuration of a folder, a `config.json`, or a hub name."""
    from transformers import AutoConfig

    import oelm.models.gpt  # noqa: F401  registers our own model type

    options.setdefault("trust_remote_code", False)
    if not Path(name).exists() and (str(name).count("/") > 1 or str(name).startswith((".", "/", "~"))):
        raise FolderError(f"no model configuration was found at {name}", why="there is no such folder or file")
    try:
        return AutoConfig.from_pretrained(str(name), **options)
    except _LOADING_FAILURES as error:
        raise FolderError(f"no model configuration was found at {name}", why=_brief(error), hint=_hint(name)) from error


def skeleton(config: Any) -> nn.Module:
    """The model of a configuration without weights, on the meta device."""
    cls = _saved_class(config)
    build = getattr(cls, "_from_config", None) or cls.from_config  # a model class, or an Auto class
    try:
        with torch.device("meta"):
            model = build(config)
    except _LOADING_FAILURES as error:
        raise FolderError("no model can be built from this configuration", why=_brief(error)) from error
    assert isinstance(model, nn.Module)
    return model


def _saved_class(config: Any) -> Any:
    import transformers

    import oelm.models.gpt as gpt

    name = next(iter(getattr(config, "architectures", None) or []), "")
    return getattr(transformers, name, None) or getattr(gpt, name, None) or transformers.AutoModel


def _brief(error: BaseException) -> str:
    """The first lines of what a library said, without its links and advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[:2])[:300]


def _hint(name: str | Path) -> str:
    if Path(name).exists():
        return "a folder with config.json and model.safetensors"
    return "check the path or the name; offline, give the path of a folder with config.json and model.safetensors"
