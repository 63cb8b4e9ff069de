"""Find the queries and keys of a model: every attention module, by the table of layouts."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, UnknownLayout
from oelm.heads.layouts import ARRANGEMENTS, Layout, layout_of
from oelm.heads.split import Split
from oelm.heads.view import HeadView, Projection, owner_of, weight_name_of
from oelm.heads.whole import is_sharded
from oelm.treatment import Role, select_layers

_FLOATS = (torch.float16, torch.bfloat16, torch.float32, torch.float64)


def find_heads(model: nn.Module) -> list[HeadView]:
    """Every query and key head of the model, in the model's own order. Nothing is changed."""
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
        raise ModelError(f"a model is a torch.nn.Module, got {type(model).__name__}")
    attentions = _attentions(model)
    projections: list[Projection] = []
    seen: set[tuple[int, int]] = set()
    layer = 0
    for path, attention, layout in attentions:
        found = {_place(p): p for role in ("q", "k") for p in [_projection(role, layer, path, attention, layout)]}
        if len(found) == 1:
            raise UnknownLayout("query and key share one weight, so they cannot be told apart", where=path)
        new = [
            projection for place, projection in found.items() if place not in seen
        ]  # others are tied to earlier ones
        seen |= found.keys()
        projections += new
        layer += bool(new)
    return projections


def num_layers(model: nn.Module) -> int:
    return 1 + max(projection.layer for projection in find_projections(model))


def projections_in(model: nn.Module, layers: str | Iterable[int]) -> list[Projection]:
    """The projections of the layers that a treatment's `layers` means in this model."""
    chosen = set(select_layers(layers, num_layers(model)))
    return [projection for projection in find_projections(model) if projection.layer in chosen]


def _attentions(model: nn.Module) -> list[tuple[str, nn.Module, Layout]]:
    """Every attention module with its path and layout, or the reason why not."""
    known: list[tuple[str, nn.Module, Layout]] = []
    strangers: list[tuple[str, nn.Module]] = []
    for path, module in model.named_modules():
        inside_known = any(path.startswith(f"{parent}.") for parent, _, _ in known[-1:])
        layout = None if inside_known else layout_of(module)
        if layout is not None:
            known.append((path, module, layout))
        elif not inside_known and "attention" in type(module).__name__.lower():
            strangers.append((path, module))
    for path, module, layout in known:
        if layout.refused:
            raise UnknownLayout(
                f"the heads of {type(module).__name__} have no query and key rows of their own",
                where=f"{path}  ({_children(module)})",
                why=layout.refused,
            )
    # A module around a known attention (BertAttention around BertSelfAttention) is no stranger.
    strangers = [
        (path, module)
        for path, module in strangers
        if any(True for _ in module.parameters())
        and not any(other.startswith(f"{path}.") or not path for other, _, _ in known)
        and not any(inner is not module and "attention" in type(inner).__name__.lower() for inner in module.modules())
    ]
    if strangers or not known:
        raise _unknown(model, strangers)
    return known


def _unknown(model: nn.Module, strangers: list[tuple[str, nn.Module]]) -> UnknownLayout:
    model_type = getattr(getattr(model, "config", None), "model_type", None)
    subject = f"model type '{model_type}'" if model_type else type(model).__name__
    if not strangers:
        return UnknownLayout(
            f"no attention module was found in {subject}",
            hint="oelm.register_layout(YourAttention, query=..., key=...), see docs/layouts.md",
        )
    path, module = strangers[0]
    more = f"  and {len(strangers) - 1} more" if len(strangers) > 1 else ""
    return UnknownLayout(
        f"no Q/K layout is known for {subject}",
        where=f"{path or '(the model itself)'}  {type(module).__name__}  ({_children(module)}){more}",
        why="guessing from shapes would treat the wrong rows in some models",
        hint="oelm.register_layout(...), see docs/layouts.md",
    )


def _projection(role: Role, layer: int, path: str, attention: nn.Module, layout: Layout) -> Projection:
    held_at = layout.query if role == "q" else layout.key
    if not hasattr(attention, held_at):
        raise UnknownLayout(f"{type(attention).__name__} has no '{held_at}'", where=f"{path}  ({_children(attention)})")
    owner = owner_of(attention, held_at)
    name = weight_name_of(attention, held_at)
    where = _vanilla(f"{path}.{held_at}" if path else held_at) + (".weight" if name == "weight" else "")
    shape = _shape(owner, name, where, transposed=layout.transposed)
    rows, width = shape
    head_dim = getattr(attention, layout.head_dim, None)
    if not isinstance(head_dim, int) or head_dim < 1 or rows % head_dim:
        raise UnknownLayout(
            f"{type(attention).__name__}.{layout.head_dim} should be the rows of a head, got {head_dim!r}",
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
            f"arrangement '{layout.arrangement}' places head rows outside their matrix or over each other",
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
    """(H, K) from the number of D-row blocks in the matrix at hand."""
    if layout.query != layout.key:  # each role knows its own matrix, and asks only for its own number
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
    """(rows, width) of the matrix, without putting a split one together."""
    if isinstance(owner, Split):
        reservoir, rest = getattr(owner, f"{name}_reservoir"), getattr(owner, f"{name}_rest")
        return reservoir.shape[0] + rest.shape[0], rest.shape[1]
    if hasattr(owner, "parametrizations"):
        raise ModelError(
            "the weight is computed by a parametrization, so it cannot be written or frozen by itself",
            where=where,
            hint="torch.nn.utils.parametrize.remove_parametrizations(...) first",
        )
    matrix = getattr(owner, name, None)
    if not isinstance(matrix, Tensor) or matrix.ndim != 2:
        seen = f"shape {tuple(matrix.shape)}" if isinstance(matrix, Tensor) else type(matrix).__name__
        raise ModelError(
            f"a query or key weight should be a matrix, got {seen}",
            where=where,
            why="quantised and sharded weights do not show the matrix they stand for",
            hint="load the model unquantised and unsharded, treat it, then quantise or shard",
        )
    if (type(matrix.data) is not Tensor and not is_sharded(matrix)) or matrix.dtype not in _FLOATS:
        raise _not_plain(matrix, where)
    rows, width = matrix.shape[::-1] if transposed else matrix.shape
    return rows, width


def refuse_sharded(projections: Iterable[Projection]) -> None:
    """For those who need rows that share storage with the model, to write them or to hand them out."""
    for projection in projections:
        for parameter in projection.owner.parameters(recurse=False):
            if is_sharded(parameter):
                raise _not_plain(parameter, projection.name)


def _not_plain(matrix: Tensor, where: str) -> ModelError:
    return ModelError(
        f"the weight is not a plain floating-point tensor, but {type(matrix).__name__} of {matrix.dtype}",
        where=where,
        why="quantised and sharded weights cannot be made orthonormal",
        hint="treat the unquantised, unsharded model, then quantise or shard it",
    )


def _place(projection: Projection) -> tuple[int, int]:
    """Which tensor, and where in it: equal for tied weights."""
    owner = projection.owner
    return id(owner if isinstance(owner, Split) else getattr(owner, projection.weight_name)), projection.starts[0]


def _vanilla(path: str) -> str:
    """The path in the untreated model: without the prefix of torch.compile and the levels PEFT puts in."""
    path = path.removeprefix("_orig_mod.")
    return path.removeprefix("base_model.model.")


def _children(module: nn.Module) -> str:
    names = [name for name, _ in module.named_children()] or [name for name, _ in module.named_parameters()]
    return ", ".join(names)
