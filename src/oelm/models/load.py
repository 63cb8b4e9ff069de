"""Load a model by folder or hub name, in the class it was saved as. Only safetensors is read."""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from oelm.errors import FolderError

# A library may raise anything about a folder.
_LOADING_FAILURES = Exception


def refuse_file(name: str | Path) -> None:
    """Refuse a file where the folder of a model is expected."""
    path = Path(name)
    if not path.is_file():
        return
    if path.suffix == ".json":
        raise FolderError(f"{name} is a file, not a folder", hint=f"oelm inspect --config {name}")
    if path.suffix == ".safetensors":
        raise FolderError(
            f"{name} has weights but no model configuration",
            hint=f"pass its folder, with config.json: {path.parent}",
        )
    raise FolderError(
        f"{name} is a file, not a folder with config.json and model.safetensors",
        why="torch.save writes a pickle, which can run arbitrary code when loaded: oelm never loads one",
        hint="call model.save_pretrained(FOLDER) in the script that wrote it, and pass FOLDER",
    )


def load_model(name: str | Path, auto_class: Any = None, **kwargs: Any) -> nn.Module:
    """A model with its weights, in the class it was saved as or in `auto_class` (any transformers class)."""
    refuse_file(name)
    if auto_class is not None and not hasattr(auto_class, "from_pretrained"):
        return _sentence_transformer(name, auto_class, **kwargs)
    kwargs.setdefault("trust_remote_code", False)  # otherwise transformers would prompt
    options = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "trust_remote_code") if key in kwargs}
    cls = auto_class or _saved_class(load_config(name, **options))
    try:
        model = cls.from_pretrained(str(name), use_safetensors=True, **_with_dtype(kwargs))
    except _LOADING_FAILURES as error:
        raise FolderError(f"cannot load a model from {name}", why=_brief(error), hint=_hint(name)) from error
    assert isinstance(model, nn.Module)
    return model


def _sentence_transformer(name: str | Path, cls: Any, **kwargs: Any) -> nn.Module:
    """Its class takes the folder, and separate keywords for the inner model."""
    own = {key: kwargs.pop(key) for key in ("revision", "token", "trust_remote_code") if key in kwargs}
    inner = {"use_safetensors": True, **_with_dtype(kwargs)}
    try:
        model = cls(str(name), device="cpu", model_kwargs=inner, **own)
    except _LOADING_FAILURES as error:
        raise FolderError(f"cannot load a model from {name}", why=_brief(error)) from error
    assert isinstance(model, nn.Module)
    return model


def sentence_transformer_class(folder: str | Path) -> Any:
    """The class SentenceTransformer: without it, the folder would load as the inner model."""
    try:
        from sentence_transformers import SentenceTransformer
    except ImportError as error:
        raise FolderError(
            f"{folder} is a SentenceTransformer, but sentence-transformers is not installed",
            why=str(error),
            hint="pip install sentence-transformers",
        ) from error
    return SentenceTransformer


def _with_dtype(kwargs: Mapping[str, Any]) -> Mapping[str, Any]:
    """The keywords for this transformers: before version 5 it loaded in float32 by default, not in the saved dtype."""
    import transformers

    if int(transformers.__version__.split(".")[0]) >= 5:
        return kwargs
    others = {key: value for key, value in kwargs.items() if key not in ("dtype", "torch_dtype")}
    return {"torch_dtype": kwargs.get("dtype", kwargs.get("torch_dtype", "auto")), **others}


def load_config(name: str | Path, **options: Any) -> Any:
    """The configuration of a folder, a `config.json`, or a hub name."""
    from transformers import AutoConfig

    options.setdefault("trust_remote_code", False)
    if Path(name).suffix != ".json":
        refuse_file(name)
    if not Path(name).exists() and (str(name).count("/") > 1 or str(name).startswith((".", "/", "~"))):
        raise FolderError(f"no model configuration found at {name}", why="no such file or folder")
    try:
        return AutoConfig.from_pretrained(str(name), **options)
    except _LOADING_FAILURES as error:
        if "oelm-gpt" in str(error):
            _refuse_older_transformers(name)
        raise FolderError(f"no model configuration found at {name}", why=_brief(error), hint=_hint(name)) from error


def _refuse_older_transformers(name: str | Path) -> None:
    try:
        import oelm.models.gpt_config  # noqa: F401
    except ImportError as error:
        raise FolderError(
            f"{name} is an oelm-gpt model, which this transformers cannot load",
            why=str(error),
            hint="pip install --upgrade transformers",
        ) from error


def meta_model(config: Any) -> nn.Module:
    """The model of a configuration, on the meta device."""
    cls = _saved_class(config)
    build = getattr(cls, "_from_config", None) or cls.from_config  # a model class, or an Auto class
    try:
        with torch.device("meta"):
            model = build(config)
    except _LOADING_FAILURES as error:
        raise FolderError("cannot build a model from this configuration", why=_brief(error)) from error
    assert isinstance(model, nn.Module)
    return model


def _saved_class(config: Any) -> Any:
    import transformers

    name = next(iter(getattr(config, "architectures", None) or []), "")
    # The small GPT's classes are imported with its configuration; an older transformers has neither.
    ours = sys.modules.get("oelm.models.gpt")
    return getattr(transformers, name, None) or getattr(ours, name, None) or transformers.AutoModel


def _brief(error: BaseException) -> str:
    """The first lines of a library's message, without its links and advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: " + " ".join(lines[:2])[:300]


def _hint(name: str | Path) -> str:
    if Path(name).exists():
        return "use a folder with config.json and model.safetensors"
    return "check the path or name; offline, use the path of a folder with config.json and model.safetensors"
