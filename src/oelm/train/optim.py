"""Optimiser and schedule of a recipe."""

import math
from collections.abc import Iterable

import torch
from torch import nn

from oelm.study.recipe import Optimizer, Schedule


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


def lr_at(step: int, *, total: int, peak: float, schedule: Schedule) -> float:
    """The learning rate of step `step` (from 0) of `total`: a pure function, so there is no state to lose."""
    warmup = round(schedule.warmup if schedule.warmup >= 1 else schedule.warmup * total)
    if step < warmup:
        return peak * (step + 1) / (warmup + 1)
    if schedule.name == "constant":
        return peak
    share = (step - warmup) / max(1.0, total - warmup)
    falling = 1 - share if schedule.name == "linear" else (1 + math.cos(math.pi * share)) / 2
    return peak * (schedule.floor + (1 - schedule.floor) * falling)
