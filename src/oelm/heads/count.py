"""Counts: how many weights a model has, and how many of them learn."""

from dataclasses import dataclass

from torch import Tensor, nn

from oelm.errors import UnknownLayout
from oelm.heads.find import find_projections
from oelm.heads.whole import is_sharded


@dataclass(frozen=True, kw_only=True)
class Counts:
    """Numbers of weights: unique storage over parameters *and* the floating-point buffers that are saved.

    Buffers count because frozen weights may be kept in them; tables that are recomputed on loading (rotary frequencies,
    position numbers) are no weights and do not.
    """

    total: int
    trainable: int
    buffers: int
    """The part of `total` that is kept in buffers, where nothing learns."""
    qk: int | None
    """Query and key weights and biases, or None where the layout is not known."""

    @property
    def frozen(self) -> int:
        return self.total - self.trainable

    def to_dict(self) -> dict[str, int | None]:
        return {
            "total": self.total,
            "trainable": self.trainable,
            "frozen": self.frozen,
            "buffers": self.buffers,
            "qk": self.qk,
        }


def count(model: nn.Module) -> Counts:
    """Count a model's weights without treating anything."""
    seen: set[object] = set()
    trainable = frozen = buffers = 0
    for parameter in model.parameters():
        if _new(parameter, seen):
            if parameter.requires_grad:
                trainable += parameter.numel()
            else:
                frozen += parameter.numel()
    for buffer in saved_buffers(model):
        if _new(buffer, seen):
            buffers += buffer.numel()
    try:
        qk = sum(
            projection.num_heads * projection.head_dim * (projection.width + projection.has_bias)
            for projection in find_projections(model)
        )
    except UnknownLayout:
        qk = None
    return Counts(total=trainable + frozen + buffers, trainable=trainable, buffers=buffers, qk=qk)


def saved_buffers(model: nn.Module) -> list[Tensor]:
    """The floating-point buffers that `state_dict` saves."""
    return [
        buffer
        for module in model.modules()
        for name, buffer in module.named_buffers(recurse=False)
        if name not in module._non_persistent_buffers_set and buffer.is_floating_point()
    ]


def _new(tensor: Tensor, seen: set[object]) -> bool:
    # Tensors on the meta device, or sharded over processes, have no address; there, tied weights are one object.
    place: object = id(tensor)
    if not tensor.is_meta and not is_sharded(tensor):
        place = (tensor.device, tensor.data_ptr(), tensor.shape)
    if place in seen:
        return False
    seen.add(place)
    return True
