"""Dropout that does not wait for its random numbers.

On a CPU, torch draws one uniform number after the other in double precision: a sixth of a step of a small GPT on two
cores. Sixteen bits an element are enough, and four elements come with each draw.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

_VALUES = 2**16


class Dropout(nn.Dropout):
    """torch's, and on a CPU the same distribution sooner."""

    def forward(self, input: Tensor) -> Tensor:
        return dropout(input, self.p) if self.training else input


def quicken_dropout_(model: nn.Module) -> None:
    """Let the dropout layers of anyone's model be of this kind."""
    for module in model.modules():
        if type(module) is nn.Dropout and not module.inplace:
            module.__class__ = Dropout


def dropout(given: Tensor, p: float) -> Tensor:
    """`given` with a share p of its elements at 0 and the others larger, so that its mean stays.

    On a CPU the share is rounded to 1/65536.
    """
    if given.device.type != "cpu" or torch.compiler.is_compiling():
        return F.dropout(given, p)
    dropped = round(p * _VALUES)
    if dropped in (0, _VALUES):
        return given if dropped == 0 else torch.zeros_like(given)
    size = given.numel()
    bits = torch.empty(-(-size // 4), dtype=torch.int64).random_(-(2**63), None).view(torch.int16)[:size]
    kept = (bits >= dropped - _VALUES // 2).view(given.shape)
    return given * kept.to(given.dtype).mul_(_VALUES / (_VALUES - dropped))
