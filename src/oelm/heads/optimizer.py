"""Parameters that join or leave an optimizer while it runs."""

from collections.abc import Iterable

import torch
from torch import nn


def add_to_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], *, alike: dict[int, list[nn.Parameter]]
) -> None:
    """Add each parameter to the group that holds others like it: of its own attention module (`alike`, by id) and of
    its own kind, matrix or vector; or failing that, only of its own kind.

    Existing groups are extended rather than new ones added, since learning-rate schedulers know only those.
    """
    groups = optimizer.param_groups
    held = {id(parameter) for group in groups for parameter in group["params"]}
    for parameter in parameters:
        if id(parameter) in held:
            continue
        near = {id(other) for other in alike.get(id(parameter), []) if _is_matrix(other) == _is_matrix(parameter)}
        with_kin = [group for group in groups if any(id(other) in near for other in group["params"])]
        of_kind = [group for group in groups if any(_is_matrix(p) == _is_matrix(parameter) for p in group["params"])]
        (with_kin or of_kind or groups)[0]["params"].append(parameter)


def remove_from_optimizer(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Take parameters out of all groups and forget their state."""
    leaving = {id(parameter): parameter for parameter in parameters}
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in leaving]
    for parameter in leaving.values():
        optimizer.state.pop(parameter, None)


def _is_matrix(parameter: nn.Parameter) -> bool:
    return parameter.ndim >= 2
