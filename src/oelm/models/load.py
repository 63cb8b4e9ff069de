"""Load a model by folder or hub name, in the class it was saved as. Only safetensors is read.

No weight is drawn at random, or dropped, but those of a task head; what was is kept with the model.
"""

import copy
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from textwrap import shorten
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.utils._python_dispatch import TorchDispatchMode

from oelm.errors import FolderError
from oelm.heads.freeze import in_task_head
from oelm.hub import why_not_fetched
from oelm.models.folder import Bounds, bounds_of, check_config, check_file, check_model_folder

# A library may raise anything about a folder.
_LOADING_FAILURES = Exception
# Tables that older versions saved with the weights, and models compute now.
_TABLES = (".position_ids", ".inv_freq", ".masked_bias", ".attn.bias")
# On the meta device, torch takes a millisecond for each; a mixture of experts has tens of thousands of weights.
_DRAWS = (torch.ops.aten.normal_.default, torch.ops.aten.uniform_.default)
_LARGEST = Bounds(weights=10**13)  # of a configuration that is only looked at


@dataclass(frozen=True, kw_only=True)
class ReplacedHead:
    """The task head of a loaded model, where it is another than the one that was saved."""

    new: tuple[str, ...] = ()
    """Weights that were not in the files, and are drawn at random."""
    dropped: tuple[str, ...] = ()
    """Weights in the files that the model has no place for."""


class ModelTooLarge(FolderError):
    def __init__(self, most: str, *, hint: str):
        super().__init__(
            f"the configuration asks for a model of more than {most}",
            why="that is not in its files, or does not fit into this machine",
            hint=f"look at the sizes in config.json: {hint}",
        )


def load_model(name: str | Path, auto_class: Any = None, **kwargs: Any) -> nn.Module:
    """A model with its weights, in the class it was saved as or in `auto_class` (any transformers class)."""
    check_model_folder(name)
    if auto_class is not None and not hasattr(auto_class, "from_pretrained"):
        return _sentence_transformer(name, auto_class, **kwargs)
    kwargs.setdefault("trust_remote_code", False)  # otherwise transformers would prompt
    options = {key: kwargs[key] for key in ("revision", "token", "cache_dir", "trust_remote_code") if key in kwargs}
    config = kwargs.get("config")
    if config is None or isinstance(config, str | Path):
        config = load_config(config or name, **options)
    cls = auto_class or _saved_class(config)
    if "device_map" not in kwargs:  # then it need not fit into this machine's memory
        check_size(config, cls, bounds=bounds_of(name))
    # Weights of another size are refused below, by name.
    always = {"output_loading_info": True, "ignore_mismatched_sizes": True, "use_safetensors": True}
    try:
        model, report = cls.from_pretrained(str(name), **{**_with_dtype(kwargs), **always})
    except _LOADING_FAILURES as error:
        raise FolderError(f"cannot load a model from {name}", why=_brief(error), hint=_hint(name)) from error
    assert isinstance(model, nn.Module)
    may_resize = bool(kwargs.get("ignore_mismatched_sizes"))
    model.__dict__["_oelm_replaced_head"] = _check_weights(model, report, name, may_resize=may_resize)
    return model


def replaced_head(model: nn.Module) -> ReplacedHead:
    """What `load_model` drew at random or dropped; nothing of any other model."""
    found: ReplacedHead = model.__dict__.get("_oelm_replaced_head", ReplacedHead())
    return found


def _check_weights(model: nn.Module, report: Mapping[str, Any], name: str | Path, *, may_resize: bool) -> ReplacedHead:
    """Refuse weights that are missing, unexpected or of another size, unless they are those of another task head.

    A head may be new in another class than the one that was saved, or if the caller asked for another size.
    """
    if getattr(model, "_hf_peft_config_loaded", False):
        raise FolderError(f"{name} is an adapter, not a model", hint="call merge_and_unload() and save the model")
    is_saved_class = type(model).__name__ in (getattr(model.config, "architectures", None) or ())
    tables = {table for table, _ in model.named_buffers()}
    missing, unexpected = (set(report[kind]) for kind in ("missing_keys", "unexpected_keys"))
    unexpected = {key for key in unexpected if key not in tables and not f".{key}".endswith(_TABLES)}
    resized = {key: f"saved {tuple(saved)}, configured {tuple(own)}" for key, saved, own in report["mismatched_keys"]}
    new = {*in_task_head(model, () if is_saved_class else missing), *in_task_head(model, resized if may_resize else ())}
    dropped = set(in_task_head(model, unexpected))
    wrong = [
        *(f"missing     {key}" for key in sorted(missing - new)),
        *(f"unexpected  {key}" for key in sorted(unexpected - dropped)),
        *(f"other size  {key}: {resized[key]}" for key in sorted(resized.keys() - new)),
    ]
    if wrong:
        raise FolderError(
            f"{len(wrong)} weights in {name} are not those of a {type(model).__name__} of its configuration",
            where="\n".join([*wrong[:8], *(["..."] if len(wrong) > 8 else [])]),
            why="what is missing would be drawn at random, and what has no place be dropped",
            hint="save the model again with save_pretrained; config.json must be the one that belongs to the weights",
        )
    return ReplacedHead(new=tuple(sorted(new)), dropped=tuple(sorted(dropped)))


def _sentence_transformer(name: str | Path, cls: Any, **kwargs: Any) -> nn.Module:
    """Its class takes the folder, and separate keywords for the inner model."""
    own = {key: kwargs.pop(key) for key in ("revision", "token", "trust_remote_code") if key in kwargs}
    inner = {"use_safetensors": True, **_with_dtype(kwargs)}
    # It does not say which weights it found: the model inside is loaded once alone, which does.
    inside = Path(name) / "0_Transformer"
    with torch.random.fork_rng(devices=[]):
        load_model(inside if inside.is_dir() else name, **own)
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
    from transformers import AutoConfig, PretrainedConfig

    options.setdefault("trust_remote_code", False)
    if Path(name).suffix == ".json" and Path(name).exists():
        check_file(Path(name))
    else:
        check_model_folder(name)
    if not Path(name).exists() and (str(name).count("/") > 1 or str(name).startswith((".", "/", "~"))):
        raise FolderError(f"no model configuration found at {name}", why="no such file or folder")
    if "cache_dir" not in options and (why := why_not_fetched(name)):
        raise FolderError(f"no model configuration found at {name}", why=why, hint=_hint(name))
    try:
        raw, _ = PretrainedConfig.get_config_dict(str(name), **options)
        check_config(raw, where=name)
        return AutoConfig.from_pretrained(str(name), **options)
    except FolderError:
        raise
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


def meta_model(config: Any, cls: Any = None, *, bounds: Bounds = _LARGEST) -> nn.Module:
    """The model of a configuration, on the meta device."""
    cls = cls or _saved_class(config)
    build = getattr(cls, "_from_config", None) or cls.from_config  # a model class, or an Auto class
    try:
        with torch.random.fork_rng(devices=[]), torch.device("meta"), _bounded(bounds):
            model = build(copy.deepcopy(config))
    except ModelTooLarge:
        raise
    except _LOADING_FAILURES as error:
        raise FolderError("cannot build a model from this configuration", why=_brief(error)) from error
    assert isinstance(model, nn.Module)
    return model


def check_size(config: Any, cls: Any, *, bounds: Bounds) -> None:
    """Refuse a configuration whose model would be too large, before anything is allocated for it."""
    try:
        meta_model(config, cls, bounds=bounds)
    except ModelTooLarge:
        raise
    except FolderError:
        pass  # some models cannot be built on meta; whoever builds it says what is wrong with the others


@contextmanager
def _bounded(bounds: Bounds) -> Iterator[None]:
    """Stop the building of a model, in this thread, as soon as it is larger than can be."""
    here = threading.get_ident()
    weights = modules = 0

    def on_tensor(tensor: Tensor, so_far: int = 0) -> int:
        size = so_far + tensor.numel() * tensor.itemsize // torch.float32.itemsize
        if size > bounds.weights:
            raise ModelTooLarge(f"{bounds.weights:,} weights", hint="hidden_size, vocab_size and the like")
        return size

    def on_kept(_: nn.Module, __: str, tensor: Tensor) -> None:
        nonlocal weights
        if threading.get_ident() == here:
            weights = on_tensor(tensor, weights)

    def on_module(_: nn.Module, __: str, ___: nn.Module) -> None:
        nonlocal modules
        if threading.get_ident() == here:
            modules += 1
            if modules > bounds.modules:
                raise ModelTooLarge(f"{bounds.modules:,} modules", hint="the number of layers")

    hooks = [
        register_module_parameter_registration_hook(on_kept),
        register_module_buffer_registration_hook(on_kept),  # masks and tables
        register_module_module_registration_hook(on_module),
    ]
    try:
        with _EveryTensor(on_tensor):
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _EveryTensor(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Looks at every tensor that is made, also at those that no module keeps; draws nothing where nothing is kept."""

    def __init__(self, look: Callable[[Tensor], object]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.look = look

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _DRAWS and args[0].is_meta:
            return args[0]
        made = func(*args, **(kwargs or {}))
        if isinstance(made, Tensor):
            self.look(made)
        return made


def _saved_class(config: Any) -> Any:
    """The class that was saved; the plain model of the configuration's type if transformers does not have it."""
    import transformers

    names = getattr(config, "architectures", None) or []
    if not isinstance(names, list | tuple) or not all(isinstance(name, str) for name in names):
        raise FolderError("the configuration does not say which model it is", why=f"architectures: {names!r}"[:200])
    name = next(iter(names), "")
    # The small GPT's classes are imported with its configuration; an older transformers has neither.
    ours = sys.modules.get("oelm.models.gpt")
    try:
        cls = getattr(transformers, name, None) or getattr(ours, name, None)
    except _LOADING_FAILURES as error:  # a part of transformers that needs something else
        raise FolderError(f"cannot load a {name}", why=_brief(error)) from error
    if cls is None:
        return transformers.AutoModel
    if not (isinstance(cls, type) and issubclass(cls, transformers.PreTrainedModel)):
        raise FolderError(
            f"the configuration names {name[:80]}, which is not a model", hint="look at architectures in config.json"
        )
    return cls


def _brief(error: BaseException) -> str:
    """The first lines of a library's message, without its links and advice."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {shorten(' '.join(lines[:2]), 300, placeholder=' ...')}"


def _hint(name: str | Path) -> str:
    if Path(name).exists():
        return "use a folder with config.json and model.safetensors"
    return "check the path or name; offline, use the path of a folder with config.json and model.safetensors"
