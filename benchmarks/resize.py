"""Resize: the model of a study in another width. Heads stay as wide as they are, so there are more or fewer of them."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from torch import nn

from oelm.bench.flops import work_of
from oelm.errors import ModelError, StudyError
from oelm.heads.find import find_projections

# What grows with the width, by the names that families have for it. Of width and heads, transformers knows the names.
_FEED_FORWARD = ("intermediate_size", "n_inner", "ffn_dim", "hidden_dim", "d_ff", "ffn_hidden_size")
_KEY_HEADS = ("num_key_value_heads", "num_kv_heads")
_MAY_BE_THE_WIDTH = ("embedding_size", "word_embed_proj_dim", "pooler_hidden_size")
_ROUNDED = 0.02  # of a layer's work, where a width of its parts does not come out as an integer


def config_width(model: nn.Module) -> int:
    return find_projections(model)[0].width


def width_step(model: nn.Module) -> int:
    """Widths are multiples of this: of one head, or where queries share keys, of one group of heads."""
    return config_width(model) // min(projection.num_heads for projection in find_projections(model))


def resize_config(model: nn.Module, width: int) -> Any:
    """The configuration of a model with its layers and vocabulary in another width.

    A model of it is built without weights and looked at: its heads must be as wide as before and as many as the width
    says, and the linear maps of its layers as much work as the square of the width.
    """
    own, step = config_width(model), width_step(model)
    config: Any = copy.deepcopy(model.config)
    if width == own:
        return config
    if width % step:
        near = sorted({max(1, round(part * own / step)) * step for part in (0.5, 1, 2)})
        raise StudyError(
            f"a width of {width} is not a multiple of {step}",
            why=f"the heads of a {type(model).__name__} of width {own} keep their size",
            hint=f"--widths {','.join(map(str, near))}",
        )
    heads = getattr(config, "num_attention_heads", None)
    if getattr(config, "hidden_size", None) != own or not isinstance(heads, int):
        raise _refused(model, "its configuration does not say one width and one number of heads")
    config.hidden_size, config.num_attention_heads = width, heads * width // own
    for name in (*_FEED_FORWARD, *_KEY_HEADS, *_MAY_BE_THE_WIDTH):
        size = getattr(config, name, None)
        if isinstance(size, int) and (name not in _MAY_BE_THE_WIDTH or size == own):
            setattr(config, name, round(size * width / own))
    _check(model, config, width)
    return config


def meta_model(kind: type[nn.Module], config: Any) -> nn.Module:
    """A model without weights, on the meta device."""
    with torch.device("meta"):
        return kind(copy.deepcopy(config))


def _check(model: nn.Module, config: Any, width: int) -> None:
    own = config_width(model)
    try:
        meta = meta_model(type(model), config)
    except (RuntimeError, ValueError, TypeError, AttributeError) as error:
        first = str(error).strip().partition("\n")[0]
        raise _refused(model, f"{type(error).__name__}: {first}") from error
    wanted = [(one.head_dim, one.num_heads * width, one.width * width) for one in find_projections(model)]
    if wanted != [(one.head_dim, one.num_heads * own, one.width * own) for one in find_projections(meta)]:
        raise _refused(model, "its heads do not follow its width")
    before, after = (work_of(each, batch=1, length=2).linear_forward for each in (model, meta))
    if not math.isclose(after, before * (width / own) ** 2, rel_tol=_ROUNDED):
        raise _refused(model, "not all that is in its layers follows its width")


def _refused(model: nn.Module, why: str) -> ModelError:
    return ModelError(
        f"a {type(model).__name__} cannot be made in another width", why=why, hint="--lengths and --batches alone"
    )
