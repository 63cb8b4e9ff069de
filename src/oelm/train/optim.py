"""Optimiser of a recipe."""

from collections.abc import Iterable

import torch
from torch import nn

from oelm.study.recipe import Optimizer


def make_optimizer(model: nn.Module, recipe: Optimizer) -> torch.optim.AdamW:
    """AdamW on what learns, in at most two groups: what decays and what does not."""
    learns = [parameter for parameter in model.parameters() if parameter.requires_grad]
    decays = [p for p in learns if recipe.decay == "all" or p.ndim >= 2]
    rest = [p for p in learns if recipe.decay != "all" and p.ndim < 2]
    groups = [
        {"params": parameters, "weight_decay": decay}
        for parameters, decay in ((decays, recipe.weight_decay), (rest, 0.0))
        if parameters
    ]
    return torch.optim.AdamW(groups, lr=recipe.lr, betas=recipe.betas, eps=recipe.eps, fused=_can_fuse(learns))


def _can_fuse(parameters: Iterable[nn.Parameter]) -> bool:
    return all(p.device.type in ("cpu", "cuda", "xpu", "mps") and p.is_floating_point() for p in parameters)
