"""Freeze and unfreeze: `requires_grad` of slices, what must stay trainable, and an optimizer's parameter groups."""

from collections.abc import Iterable, Iterator, Sequence

import torch
from torch import nn

from oelm.heads.projection import ParamSlice, Projection
from oelm.heads.split import FusedSplit, RowPlan, Unsplit, split_
from oelm.treatment import Treatment

# Common names of the task head in plain torch models; in transformers models it is what is outside the base model.
_HEAD_NAMES = {"classifier", "score", "head", "heads", "lm_head", "fc_out", "qa_outputs", "output_projection"}


def should_freeze(treatment: Treatment, param_slice: ParamSlice) -> bool:
    """Whether the treatment freezes this slice."""
    return param_slice.projection.role in treatment.frozen_roles and (
        param_slice.kind == "weight" or treatment.bias == "freeze"
    )


def split_fused(projections: Sequence[Projection]) -> Iterator[Unsplit]:
    """Split every fused matrix of `projections` so that these can be frozen and the rest of it trained."""
    fused: dict[int, list[Projection]] = {}
    for projection in projections:
        if needs_split(projection):
            fused.setdefault(id(projection.owner), []).append(projection)
    for of_one_matrix in fused.values():
        yield _split(of_one_matrix)


def needs_split(projection: Projection) -> bool:
    """Whether the matrix is fused and it or its bias trainable; one that was frozen entirely needs no split."""
    owner = projection.owner
    if not projection.shares_matrix or isinstance(owner, FusedSplit):
        return False
    fused = (getattr(owner, name, None) for name in (projection.weight_name, projection.bias_name))
    return any(tensor is not None and tensor.requires_grad for tensor in fused)


def _split(projections: Sequence[Projection]) -> Unsplit:
    first = projections[0]
    owner, head_dim = first.owner, first.head_dim
    matrix = getattr(owner, first.weight_name)
    rows = matrix.shape[1] if first.layout.transposed else matrix.shape[0]
    chosen = {start for projection in projections for start in projection.starts}
    in_reservoir = [block * head_dim in chosen for block in range(rows // head_dim)]
    plan = RowPlan.from_blocks(in_reservoir, head_dim)
    return split_(owner, plan, transposed=first.layout.transposed)


def set_requires_grad(slices: Sequence[ParamSlice], requires_grad: bool) -> list[nn.Parameter]:
    """Set `requires_grad` of slices; returns the parameters whose flag changed, each once."""
    changed: dict[int, nn.Parameter] = {}
    for param_slice in slices:
        parameter = param_slice.parameter
        if parameter.requires_grad != requires_grad:
            parameter.requires_grad_(requires_grad)
            if not requires_grad:
                parameter.grad = None
            changed[id(parameter)] = parameter
    return list(changed.values())


def task_head_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """Parameters of the task head and the pooler, by name: these must stay trainable."""
    if has_adapters(model):
        return {}  # an adapter method sets what is trainable itself
    parameters = dict(model.named_parameters())
    found = {name: parameters[name] for name in in_task_head(model, parameters)}
    output = _output_embeddings(model)
    if output is not None:  # possibly tied to the embeddings, thus in the base model
        ids = {id(parameter) for parameter in output.parameters()}
        found |= {name: parameter for name, parameter in parameters.items() if id(parameter) in ids}
    return found


def in_task_head(model: nn.Module, names: Iterable[str]) -> list[str]:
    """The names of weights that belong to a task head or a pooler; the model may have no weights of these names.

    In transformers models that is what is outside the base model. Its weights may be named without its prefix: so they
    are saved by the base model itself.
    """
    base = getattr(model, "base_model", None)
    if not isinstance(base, nn.Module):
        return [name for name in names if {"pooler", *_HEAD_NAMES} & set(name.split("."))]
    path = next((path for path, module in model.named_modules() if module is base), "")
    others = {name for name, _ in model.named_children()} if base is not model else set()
    inside = {name for name, child in base.named_children() if child is not _output_embeddings(model)}
    inside |= {name for name, _ in base.named_parameters(recurse=False)}
    inside.add(getattr(model, "base_model_prefix", path))

    def is_outside(name: str) -> bool:
        first = name.split(".")[0]
        return not name.startswith(f"{path}.") if first in others else first not in inside

    return [name for name in names if "pooler" in name.split(".") or is_outside(name)]


def _output_embeddings(model: nn.Module) -> nn.Module | None:
    get_output = getattr(model, "get_output_embeddings", None)
    output = get_output() if callable(get_output) else None
    return output if isinstance(output, nn.Module) else None


def has_adapters(model: nn.Module) -> bool:
    """Whether PEFT wraps layers of the model."""
    return any(hasattr(module, "base_layer") for module in model.modules())


def add_to_optimizer(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], *, alike: dict[int, list[nn.Parameter]]
) -> None:
    """Add each parameter to the group that `expects` it (by id), or else to the one with similar ones: of its own
    attention module (`alike`, by id) and of its own kind, matrix or vector; otherwise, only of its own kind.

    Existing groups are extended rather than new ones added, since learning-rate schedulers only know those.
    """
    groups = optimizer.param_groups
    present = {id(parameter) for group in groups for parameter in group["params"]}
    for parameter in parameters:
        if id(parameter) in present:
            continue
        expecting = [group for group in groups if id(parameter) in group.get("expects", ())]
        siblings = {id(other) for other in alike.get(id(parameter), []) if _is_matrix(other) == _is_matrix(parameter)}
        with_sibling = [group for group in groups if any(id(other) in siblings for other in group["params"])]
        of_kind = [group for group in groups if any(_is_matrix(p) == _is_matrix(parameter) for p in group["params"])]
        (expecting or with_sibling or of_kind or groups)[0]["params"].append(parameter)


def remove_from_optimizer(optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter]) -> None:
    """Remove parameters from all groups, and their state."""
    removed = {id(parameter): parameter for parameter in parameters}
    for group in optimizer.param_groups:
        group["params"] = [parameter for parameter in group["params"] if id(parameter) not in removed]
    for parameter in removed.values():
        optimizer.state.pop(parameter, None)


def _is_matrix(parameter: nn.Parameter) -> bool:
    return parameter.ndim >= 2
