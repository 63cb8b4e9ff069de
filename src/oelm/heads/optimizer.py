"""Parameters that join or leave an optimizer while it runs."""

from collections.abc import Iterable

import torch
from torch import nn


def add_to_optimizer(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Add each parameter to the group that holds others like it (matrices with matrices, vectors with vectors).

    Existing groups are extended rather than new ones added, since learning-rate schedulers know only those.
    """
    groups = optimizer.param_groups
    held = {id(parameter) for group in groups for parameter in group["params"]}
    for parameter in parameters:
        if id(parameter) in held:
            continue
        alike = [
            group for group in groups if any(_is_matrix(other) == _is_matrix(parameter) for other in group["params"])
        ]
        (alike or groups)[0]["params"].append(parameter)


def remove_from_optimizer(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Take parameters out of all groups and forget their state."""
    leaving = {id(parameter): parameter for parameter in parameters}
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in leaving]
    for parameter in leaving.values():
        optimizer.state.pop(parameter, None)


def _is_matrix(parameter: nn.Parameter) -> bool:
    return parameter.ndim >= 2
