"""Find the queries and keys of a model: every attention module in the table of layouts."""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, UnknownLayout
from oelm.heads.layouts import ARRANGEMENTS, Layout, layout_of
from oelm.heads.projection import HeadView, Projection, owner_of, weight_name_of
from oelm.heads.sharded import is_sharded
from oelm.heads.split import FusedSplit
from oelm.treatment import Role, select_layers

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def find_heads(model: nn.Module) -> list[HeadView]:
    """Every query and key head of the model, in the model's own order. The model is not changed."""
    projections = find_projections(model)
    refuse_sharded(projections)
    return [HeadView(projection, head) for projection in projections for head in range(projection.num_heads)]


def find_projections(model: nn.Module) -> list[Projection]:
    """The query and key projection of every attention module, q before k, layer by layer.

    A layer is an attention module, numbered in the order in which the model registers them: one per block in encoders
    and decoders; in encoder-decoders first the encoder's, then self and cross attention of each decoder block. Modules
    or weights shared by several layers (ALBERT) appear once.
    """
    if not isinstance(model, nn.Module):
        raise ModelError(f"model must be a torch.nn.Module, got {type(model).__name__}")
    attentions = _attentions(model)
    projections: list[Projection] = []
    seen: set[tuple[int, int]] = set()
    layer = 0
    for path, attention, layout in attentions:
        found = {_storage(p): p for role in ("q", "k") for p in [_projection(role, layer, path, attention, layout)]}
        if len(found) == 1:
            raise UnknownLayout("query and key share one weight and cannot be treated separately", where=path)
        new = [projection for storage, projection in found.items() if storage not in seen]  # others are tied weights
        seen |= found.keys()
        projections += new
        layer += bool(new)
    return projections


def by_layer(projections: Iterable[Projection]) -> list[dict[Role, Projection]]:
    """The projections of each attention module together, by role."""
    layers: dict[int, dict[Role, Projection]] = {}
    for projection in projections:
        layers.setdefault(projection.layer, {})[projection.role] = projection
    return list(layers.values())


def num_layers(model: nn.Module) -> int:
    return 1 + find_projections(model)[-1].layer


def projections_in(model: nn.Module, layers: str | Iterable[int]) -> list[Projection]:
    """The projections of the layers that `layers` selects in this model."""
    return in_layers(find_projections(model), layers)


def in_layers(found: Sequence[Projection], layers: str | Iterable[int]) -> list[Projection]:
    """Of all projections of a model, those of the layers that `layers` selects."""
    chosen = set(select_layers(layers, 1 + found[-1].layer))
    return [projection for projection in found if projection.layer in chosen]


def _attentions(model: nn.Module) -> list[tuple[str, nn.Module, Layout]]:
    """Every attention module with its path and layout; raises if a layout is unknown or unsupported."""
    known: list[tuple[str, nn.Module, Layout]] = []
    unknown_modules: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        inside_known = any(path.startswith(f"{parent}.") for parent, _, _ in known[-1:])
        layout = None if inside_known else layout_of(module)
        if layout is not None:
            known.append((path, module, layout))
        elif not inside_known and "attention" in type(module).__name__.lower():
            unknown_modules.append((path, module))
    for path, module, layout in known:
        if layout.refused:
            raise UnknownLayout(
                f"{type(module).__name__} is not supported: its heads have no separate query and key rows",
                where=f"{path}  ({_children(module)})",
                why=layout.refused,
            )
    # A wrapper of a known attention (BertAttention around BertSelfAttention) is not unknown.
    unknown_modules = [
        (path, module)
        for path, module in unknown_modules
        if any(True for _ in module.parameters())
        and not any(other.startswith(f"{path}.") or not path for other, _, _ in known)
        and not any(inner is not module and "attention" in type(inner).__name__.lower() for inner in module.modules())
    ]
    if unknown_modules or not known:
        raise _unknown_layout(model, unknown_modules)
    return known


def _unknown_layout(model: nn.Module, unknown_modules: list[tuple[str, nn.Module]]) -> UnknownLayout:
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    subject = f"model type '{model_type}'" if model_type else type(model).__name__
    if not unknown_modules:
        return UnknownLayout(
            f"no attention module found in {subject}",
            hint="oelm.register_layout(YourAttention, query=..., key=...), see docs/layouts.md",
        )
    path, module = unknown_modules[0]
    more = f"  and {len(unknown_modules) - 1} more" if len(unknown_modules) > 1 else ""
    return UnknownLayout(
        f"no Q/K layout registered for {subject}",
        where=f"{path or '(the model itself)'}  {type(module).__name__}  ({_children(module)}){more}",
        why="guessing from shapes would treat the wrong rows of some models",
        hint="oelm.register_layout(...), see docs/layouts.md",
    )


def _projection(role: Role, layer: int, path: str, attention: nn.Module, layout: Layout) -> Projection:
    attribute = layout.query if role == "q" else layout.key
    if not hasattr(attention, attribute):
        raise UnknownLayout(
            f"{type(attention).__name__} has no '{attribute}'", where=f"{path}  ({_children(attention)})"
        )
    owner = owner_of(attention, attribute)
    name = weight_name_of(attention, attribute)
    where = _vanilla(f"{path}.{attribute}" if path else attribute) + (".weight" if name == "weight" else "")
    rows, width = _shape(owner, name, where, transposed=layout.transposed)
    head_dim = getattr(attention, layout.head_dim, None)
    if not isinstance(head_dim, int) or head_dim < 1 or rows % head_dim:
        raise UnknownLayout(
            f"{type(attention).__name__}.{layout.head_dim} must be the number of rows per head, got {head_dim!r}",
            where=f"{where}  ({rows} rows)",
            hint="register_layout(..., head_dim=<attribute>)",
        )
    blocks = rows // head_dim
    heads, key_heads = _head_numbers(attention, layout, blocks, where)
    number = heads if role == "q" else key_heads
    index = ARRANGEMENTS[layout.arrangement]
    starts = tuple(index(role, head, heads, key_heads) * head_dim for head in range(number))
    if not starts or max(starts) + head_dim > rows or len(set(starts)) < number:
        raise UnknownLayout(
            f"arrangement '{layout.arrangement}' puts head rows outside their matrix or on top of each other",
            where=f"{where}  ({rows} rows, heads of {head_dim} at {list(starts)})",
        )
    return Projection(
        layer=layer,
        role=role,
        name=where,
        attention=attention,
        layout=layout,
        head_dim=head_dim,
        width=width,
        starts=starts,
    )


def _head_numbers(attention: nn.Module, layout: Layout, blocks: int, where: str) -> tuple[int, int]:
    """(H, K) from the number of D-row blocks in the matrix."""
    if layout.query != layout.key:  # each role has its own matrix, and only its own number is used
        return blocks, blocks // 2 if layout.arrangement == "key-value" else blocks
    key_heads = getattr(attention, layout.key_heads, 0) if layout.key_heads else blocks / 3
    heads = blocks - 2 * key_heads
    if not key_heads or key_heads != int(key_heads) or heads < key_heads or heads % key_heads:
        raise UnknownLayout(
            f"{blocks} blocks of rows cannot be {heads:g} query, {key_heads:g} key and {key_heads:g} value heads",
            where=where,
            hint="register_layout(..., key_heads=<attribute with the number of key heads>)",
        )
    return int(heads), int(key_heads)


def _shape(owner: nn.Module, name: str, where: str, *, transposed: bool) -> tuple[int, int]:
    """(rows, width) of the matrix, without joining a split one."""
    if isinstance(owner, FusedSplit):
        reservoir, rest = getattr(owner, f"{name}_reservoir"), getattr(owner, f"{name}_rest")
        return reservoir.shape[0] + rest.shape[0], rest.shape[1]
    if hasattr(owner, "parametrizations"):
        raise ModelError(
            "the weight is parametrized and cannot be written or frozen directly",
            where=where,
            hint="call torch.nn.utils.parametrize.remove_parametrizations(...) first",
        )
    matrix = getattr(owner, name, None)
    if not isinstance(matrix, Tensor) or matrix.ndim != 2:
        found = f"shape {tuple(matrix.shape)}" if isinstance(matrix, Tensor) else type(matrix).__name__
        raise ModelError(
            f"a query or key weight must be a matrix, got {found}",
            where=where,
            why="quantized and sharded weights do not expose their matrix",
            hint="load the model unquantized and unsharded, apply, then quantize or shard",
        )
    if (type(matrix.data) is not Tensor and not is_sharded(matrix)) or matrix.dtype not in _FLOATS:
        raise _not_plain(matrix, where)
    rows, width = matrix.shape[::-1] if transposed else matrix.shape
    return rows, width


def refuse_sharded(projections: Iterable[Projection]) -> None:
    """Refuse sharded weights, where rows that share storage with the model are needed."""
    for projection in projections:
        for parameter in projection.owner.parameters(recurse=False):
            if is_sharded(parameter):
                raise _not_plain(parameter, projection.name)


def _not_plain(matrix: Tensor, where: str) -> ModelError:
    return ModelError(
        f"the weight must be a plain floating-point tensor, got {type(matrix).__name__} of {matrix.dtype}",
        where=where,
        why="quantized and sharded weights cannot be made orthonormal",
        hint="apply to the unquantized, unsharded model, then quantize or shard it",
    )


def _storage(projection: Projection) -> tuple[int, int]:
    """(tensor, first row): equal for tied weights."""
    owner = projection.owner
    return id(owner if isinstance(owner, FusedSplit) else getattr(owner, projection.weight_name)), projection.starts[0]


def _vanilla(path: str) -> str:
    """The path in the untreated model, without the prefixes of torch.compile and PEFT."""
    path = path.removeprefix("_orig_mod.")
    return path.removeprefix("base_model.model.")


def _children(module: nn.Module) -> str:
    names = [name for name, _ in module.named_children()] or [name for name, _ in module.named_parameters()]
    return ", ".join(names)
