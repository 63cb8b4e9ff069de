"""Count the weights of a model, those that are trainable, and what freezing saves."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from torch import Tensor, nn

from oelm.errors import UnknownLayout
from oelm.facts import Counts
from oelm.heads.find import find_projections, projections_in
from oelm.heads.freeze import should_freeze
from oelm.heads.projection import Projection, param_slices
from oelm.heads.sharded import is_sharded
from oelm.treatment import Treatment


def count(model: nn.Module, found: Sequence[Projection] | None = None) -> Counts:
    """Count the weights of any model, treated or not; its projections are found anew unless they are given."""
    seen: set[object] = set()
    trainable = frozen = buffers = 0
    for parameter in model.parameters():
        if _is_new(parameter, seen):
            if parameter.requires_grad:
                trainable += parameter.numel()
            else:
                frozen += parameter.numel()
    for buffer in saved_buffers(model):
        if _is_new(buffer, seen):
            buffers += buffer.numel()
    try:
        qk = sum(
            projection.num_heads * projection.head_dim * (projection.width + projection.has_bias)
            for projection in (find_projections(model) if found is None else found)
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


def _is_new(tensor: Tensor, seen: set[object]) -> bool:
    # Meta and sharded tensors have no address; among those, tied weights are one object.
    storage: object = id(tensor)
    if not tensor.is_meta and not is_sharded(tensor):
        storage = (tensor.device, tensor.data_ptr(), tensor.shape)
    if storage in seen:
        return False
    seen.add(storage)
    return True


@dataclass(frozen=True, kw_only=True)
class Savings:
    """What freezing saves in theory. What it saves in practice is measured, never assumed."""

    frozen: int
    """Weights that the treatment freezes."""
    memory_bytes: int
    """Gradient and two Adam moments of the frozen weights."""
    linear_work: float
    """Upper bound of the speed-up of a training step, as a share of the work in linear layers: of forward, input
    gradient and weight gradient, which cost the same, frozen weights save the last."""

    def to_dict(self) -> dict[str, float]:
        return asdict(self)


def freezing_savings(model: nn.Module, treatment: Treatment) -> Savings:
    """What a treatment would freeze and save; works on the meta device."""
    treated = projections_in(model, treatment.layers)
    slices = [
        param_slice
        for projection in treated
        for param_slice in param_slices(projection)
        if should_freeze(treatment, param_slice) and param_slice.parameter.requires_grad
    ]
    # Each Linear counts as often as it occurs in the model: a tied output head is work, its embedding is not.
    linear = sum(
        parameter.numel()
        for module in model.modules()
        if not isinstance(module, nn.Embedding)
        for parameter in module.parameters(recurse=False)
        if parameter.ndim == 2
    )
    return Savings(
        frozen=sum(param_slice.numel for param_slice in slices),
        memory_bytes=sum(3 * param_slice.numel * param_slice.rows(0).element_size() for param_slice in slices),
        linear_work=sum(one.numel for one in slices if one.kind == "weight") / (3 * linear),
    )
