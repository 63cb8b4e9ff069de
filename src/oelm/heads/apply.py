"""Apply a treatment to a model: check everything, write the heads, freeze.

Shape suffixes: B = heads at a time, H = heads, D = rows of a head, M = model width.
"""

import inspect
from collections.abc import Mapping, Sequence
from typing import TypedDict, Unpack

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, TreatmentError
from oelm.heads import init
from oelm.heads.applied import Applied, Snapshot
from oelm.heads.find import find_projections, projections_in, refuse_sharded
from oelm.heads.freeze import (
    has_adapters,
    needs_split,
    set_requires_grad,
    should_freeze,
    split_fused,
    task_head_parameters,
)
from oelm.heads.projection import ParamSlice, Projection, param_slices
from oelm.heads.split import FusedSplit
from oelm.seeds import seed_for
from oelm.treatment import FITS_WIDTH, GLOBAL, Bias, Freeze, Init, Treatment, Unfreeze

# Heads are written a quarter of a projection at a time: in float64 that stays below one layer's Q/K in memory.
_CHUNKS = 4


class TreatmentFields(TypedDict, total=False):
    """The fields of `Treatment` as keywords of `apply`."""

    init: Init
    scale: str | float
    freeze: Freeze
    bias: Bias
    layers: str | Sequence[int]
    unfreeze: Unfreeze | Mapping[str, float | str]


def apply(
    model: nn.Module,
    treatment: Treatment | None = None,
    *,
    seed: int = 0,
    keep_undo: bool = True,
    **fields: Unpack[TreatmentFields],
) -> Applied:
    """Treat the queries and keys of `model` in place; its class stays the same.

    The treatment is an `oelm.Treatment` or its fields as keywords. If it does not fit the model, an error is raised and
    the model is unchanged.

    treatment: an `oelm.Treatment`, instead of the keywords from `init` to `unfreeze`.
    seed: of random blocks (`orthogonal`, `orthogonal-global`, `gaussian`).
    keep_undo: False saves the memory of the copy that `undo` needs, and that restores the model if `apply` is
        interrupted.
    init: how every head's block of weights is initialized: `keep`, `orthogonalize`, `orthogonal`, `polar`,
        `orthogonalize-global`, `orthogonal-global`, `identity`, `gaussian`.
    scale: `unit`, orthonormal rows unscaled (`gaussian`: entry std 1/sqrt(width)); `match`, the norm of the replaced
        block; a number, the entry std of `gaussian`. None is `unit`, or no scale for `keep`.
    freeze: what is frozen: `none`, `q`, `k`, `qk`.
    bias: whether the biases of a frozen projection `freeze` with it or `train`.
    layers: which layers: `all`, `0-5`, `[0, 2, 4]`, `first:0.5`, `last:0.25`.
    unfreeze: an `oelm.Unfreeze`, or a mapping of its fields: a schedule that unfreezes layers.
    """
    treatment = _treatment(treatment, fields)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise TreatmentError(f"seed must be a non-negative integer, got {seed!r}")
    treated = projections_in(model, treatment.layers)
    frozen = [projection for projection in treated if projection.role in treatment.frozen_roles]
    _check_untreated(model)
    _check_model(model, treated)
    _check_fit(treated, frozen, treatment)
    _check_splits(model, frozen)
    _check_task_head(model, frozen)

    slices = [param_slice for projection in treated for param_slice in param_slices(projection)]
    snapshot = Snapshot(requires_grad={name: parameter.requires_grad for name, parameter in model.named_parameters()})
    norms: dict[str, list[float]] = {}
    try:
        for projection in treated if treatment.init != "keep" else ():
            param_slice = ParamSlice(projection, "weight")
            if treatment.scale == "match":
                norms[param_slice.key] = param_slice.norms()
            if keep_undo:
                snapshot.copies[param_slice.key] = param_slice.copy()
            _write(projection, treatment, seed)
        for unsplit in split_fused(frozen):
            snapshot.unsplits.append(unsplit)
        snapshot.nested.extend(_disable_nested_tensors(model))
        to_freeze = [
            param_slice
            for param_slice in slices
            if should_freeze(treatment, param_slice) and param_slice.parameter.requires_grad
        ]
        set_requires_grad(to_freeze, False)
        if keep_undo:  # training will change what stays trainable
            for param_slice in slices:
                if param_slice.parameter.requires_grad and param_slice.key not in snapshot.copies:
                    snapshot.copies[param_slice.key] = param_slice.copy()
        return Applied(
            model,
            treatment=treatment,
            seed=seed,
            slices=slices,
            freezable=[param_slice.key for param_slice in to_freeze],
            norms=norms,
            snapshot=snapshot if keep_undo else None,
        )
    except BaseException:
        snapshot.restore_(model, slices)
        raise


def _with_fields(signature: inspect.Signature) -> inspect.Signature:
    """Every field of `Treatment` with its default instead of `**fields`, for `help` and notebooks.

    The function itself takes `**fields` to know which fields were passed.
    """
    own = [p for p in signature.parameters.values() if p.kind is not p.VAR_KEYWORD]
    return signature.replace(parameters=[*own, *inspect.signature(Treatment).parameters.values()])


apply.__signature__ = _with_fields(inspect.signature(apply))  # type: ignore[attr-defined]


def _disable_nested_tensors(model: nn.Module) -> list[nn.TransformerEncoder]:
    """torch's encoder packs padded batches for a fast path that a split attention does not support."""
    encoders = [
        module
        for module in model.modules()
        if isinstance(module, nn.TransformerEncoder)
        and getattr(module, "use_nested_tensor", False)
        and any(isinstance(inner, FusedSplit) for inner in module.modules())
    ]
    for encoder in encoders:
        encoder.use_nested_tensor = False
    return encoders


def _treatment(treatment: Treatment | None, fields: TreatmentFields) -> Treatment:
    if treatment is None:
        return Treatment.from_dict(dict(fields))
    if not isinstance(treatment, Treatment):
        raise TreatmentError(f"treatment must be an oelm.Treatment, got {type(treatment).__name__}")
    if fields:
        raise TreatmentError(
            f"pass either a Treatment or its fields as keywords, got both: {', '.join(sorted(fields))}",
            hint="use dataclasses.replace(treatment, ...) to change a field",
        )
    return treatment


def _check_untreated(model: nn.Module) -> None:
    for projection in find_projections(model):
        if projection.attention.__dict__.get("_oelm_treated"):
            raise ModelError(
                "the model is already treated",
                where=projection.name,
                hint="call applied.undo() first; a copy of a treated model counts as treated",
            )


def _check_model(model: nn.Module, treated: Sequence[Projection]) -> None:
    """Refuse a model whose weights cannot be treated in place."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ModelError(
            "the model is wrapped in DistributedDataParallel, which has already fixed the gradients it reduces",
            hint="call oelm.apply(model, ...) first, then DistributedDataParallel(model)",
        )
    refuse_sharded(treated)
    for projection in treated:
        adapter = getattr(projection.attention, projection.path, None)
        if getattr(adapter, "merged", False):
            raise ModelError(
                "an adapter is merged into the weight", where=projection.name, hint="call model.unmerge_adapter()"
            )
        if not projection.is_parameter:
            raise ModelError(
                "the weight is a buffer, which is not trainable",
                where=projection.name,
                hint="register it as a Parameter",
            )
        if projection.weight_rows(0).is_meta:
            raise ModelError(
                "the weight is on the meta device and has no data",
                where=projection.name,
                hint="load the weights first; `oelm inspect --config` works without weights",
            )
        for head in range(projection.num_heads):
            # A sum is finite only if all entries are; the full check is for sums that overflow.
            rows = projection.weight_rows(head).detach()
            if not rows.sum().isfinite() and not rows.isfinite().all():
                raise ModelError("the weight has NaN or infinite entries", where=f"{projection.name}, head {head}")


def _check_fit(treated: Sequence[Projection], frozen: Sequence[Projection], treatment: Treatment) -> None:
    """Refuse a treatment that does not fit the model's shapes."""
    for projection in treated:
        rows, width = projection.head_dim, projection.width
        if treatment.init not in ("keep", "gaussian") and rows > width:
            raise TreatmentError(
                f"{rows} rows per head cannot be orthonormal in a width of {width}", where=projection.name
            )
        if treatment.init in FITS_WIDTH and rows * projection.num_heads > width:
            raise TreatmentError(
                f"'{treatment.init}' needs all heads' rows to fit the width: "
                f"{projection.num_heads} heads x {rows} rows = {rows * projection.num_heads} > {width}",
                where=projection.name,
                hint="use a head-wise init: 'orthogonalize', 'orthogonal' or 'polar'",
            )
        if treatment.scale == "match":
            for head in range(projection.num_heads):
                if not projection.weight_rows(head).any():
                    raise TreatmentError(
                        "scale 'match' needs a block that is not zero", where=f"{projection.name}, head {head}"
                    )
    for projection in frozen:
        one_bias = projection.bias_name == "in_proj_bias" and not projection.shares_matrix and projection.has_bias
        if one_bias and treatment.bias == "freeze":
            raise TreatmentError(
                "this attention has separate q, k, v weights but a single bias, which cannot be partially frozen",
                where=projection.bias_path,
                hint="use bias='train'",
            )


def _check_splits(model: nn.Module, frozen: Sequence[Projection]) -> None:
    """Refuse to split a fused weight that something else needs."""
    uses: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        uses[id(parameter)] = uses.get(id(parameter), 0) + 1
    for projection in frozen:
        if not needs_split(projection):
            continue
        if not _can_split(projection.owner):
            raise ModelError(
                f"the fused weight of a {type(projection.owner).__name__} cannot be split safely",
                where=projection.name,
                why="its own forward method would be lost",
                hint="use a plain nn.Linear, or separate matrices for q and k",
            )
        if uses[id(projection.weight_parameter)] > 1:
            raise ModelError(
                "a fused weight that several modules share cannot be partially frozen",
                where=projection.name,
                hint="share the module instead of the weight, or freeze='none'",
            )
        if has_adapters(projection.attention):
            raise ModelError(
                "a trainable fused weight inside an adapter cannot be partially frozen",
                where=projection.name,
                hint="freeze the base model, as PEFT does, or apply before adding the adapter",
            )


def _can_split(owner: nn.Module) -> bool:
    """Whether the module is a plain linear map: of torch, or of transformers (Conv1D, FalconLinear)."""
    return type(owner) in (nn.Linear, nn.MultiheadAttention) or type(owner).__module__.startswith("transformers.")


def _check_task_head(model: nn.Module, frozen: Sequence[Projection]) -> None:
    heads = {id(parameter): name for name, parameter in task_head_parameters(model).items()}
    for projection in frozen:
        if id(projection.weight_parameter) in heads:
            raise TreatmentError(
                "the treatment would freeze part of the task head or pooler",
                where=f"{projection.name} (layer {projection.layer})",
                hint="exclude that layer with layers=...",
            )


def _write(projection: Projection, treatment: Treatment, seed: int) -> None:
    """Replace the weights of every head of one projection."""
    number = projection.num_heads
    at_once = number if treatment.init in GLOBAL else max(1, number // _CHUNKS)
    for first in range(0, number, at_once):
        heads = range(first, min(first + at_once, number))
        for head, block_DM in zip(heads, _blocks(projection, heads, treatment, seed), strict=True):
            projection.write_(head, block_DM)


def _blocks(projection: Projection, heads: range, treatment: Treatment, seed: int) -> Tensor:
    """New weights for some heads, (B, D, M) in float64 on the CPU."""
    kind, scale = treatment.init, treatment.scale
    rows, width = projection.head_dim, projection.width
    reads = kind in ("orthogonalize", "orthogonalize-global", "polar")
    norm_B11: Tensor | None = None
    if reads or scale == "match":
        source_BDM = _weights(projection, heads)
        norm_B11 = torch.linalg.matrix_norm(source_BDM, keepdim=True)
    if not reads:
        source_BDM = _new_blocks(projection, heads, treatment, seed)
    match kind:
        case "orthogonalize" | "orthogonal":
            blocks_BDM = init.orthonormalize_rows(source_BDM)
        case "orthogonalize-global" | "orthogonal-global":
            stacked = init.orthonormalize_rows(source_BDM.reshape(1, len(heads) * rows, width))
            blocks_BDM = stacked.reshape(len(heads), rows, width)
        case "polar":
            blocks_BDM = init.nearest_orthonormal_rows(source_BDM)
        case _:
            blocks_BDM = source_BDM
    if scale == "match":
        assert norm_B11 is not None
        blocks_BDM *= norm_B11 / torch.linalg.matrix_norm(blocks_BDM, keepdim=True)
    elif kind == "gaussian":
        blocks_BDM *= scale if isinstance(scale, float) else width**-0.5
    return blocks_BDM


def _weights(projection: Projection, heads: range) -> Tensor:
    # To the CPU first: not every device supports float64.
    out = torch.empty(len(heads), projection.head_dim, projection.width, dtype=torch.float64, device="cpu")
    for index, head in enumerate(heads):
        out[index].copy_(projection.weight_rows(head).detach().cpu())
    return out


def _new_blocks(projection: Projection, heads: range, treatment: Treatment, seed: int) -> Tensor:
    """New blocks independent of the old weights, (B, D, M); every head has its own random stream."""
    rows, width = projection.head_dim, projection.width
    if treatment.init == "identity":
        return torch.stack([init.identity_rows(head, rows, width) for head in heads])

    def gaussian(head: int) -> Tensor:
        generator = torch.Generator()
        generator.manual_seed(seed_for(seed, "qk", projection.layer, projection.role, head))
        return init.gaussian_rows(rows, width, generator=generator)

    return torch.stack([gaussian(head) for head in heads])
