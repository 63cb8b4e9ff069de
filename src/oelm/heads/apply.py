"""Apply a treatment to a model: check everything, write the heads, freeze, remember.

Shape suffixes: B = heads at a time, H = heads, D = rows of a head, M = model width.
"""

from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, TreatmentError
from oelm.heads import draw
from oelm.heads.applied import Applied, Before
from oelm.heads.find import find_projections, projections_in, refuse_sharded
from oelm.heads.freeze import freezes, needs_split, set_learning, split_fused
from oelm.heads.integrity import has_adapters, task_head
from oelm.heads.region import Region, regions_of
from oelm.heads.split import Split
from oelm.heads.view import Projection
from oelm.seeds import seed_for
from oelm.treatment import FITS_WIDTH, GLOBAL, Bias, Freeze, Init, Treatment, Unfreeze

# Heads are written a quarter of a projection at a time: in float64 that stays below one layer's Q/K in memory.
_CHUNKS = 4


class TreatmentFields(TypedDict, total=False):
    """The fields of `Treatment`, as keywords of `apply`."""

    init: Init
    scale: str | float
    freeze: Freeze
    bias: Bias
    layers: str | Sequence[int]
    unfreeze: Unfreeze | dict[str, Any]


def apply(
    model: nn.Module,
    treatment: Treatment | None = None,
    *,
    seed: int = 0,
    keep_undo: bool = True,
    **fields: Unpack[TreatmentFields],
) -> Applied:
    """Treat the queries and keys of `model` in place; it stays the user's own class.

    The treatment is an `oelm.Treatment` or its fields as keywords. If anything about it does not fit the model, an
    error says so and the model is exactly as it was. `keep_undo=False` saves the memory of the copy that `undo` needs
    (and that an interruption half-way would be repaired from).
    """
    treatment = _treatment(treatment, dict(fields))
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise TreatmentError(f"seed must be a whole number from 0, got {seed!r}")
    treated = projections_in(model, treatment.layers)
    frozen = [projection for projection in treated if projection.role in treatment.frozen_roles]
    _check_untreated(model)
    _check_model(model, treated)
    _check_fit(treated, frozen, treatment)
    _check_splits(model, frozen)
    _check_integrity(model, frozen)

    regions = [region for projection in treated for region in regions_of(projection)]
    before = Before(flags={name: parameter.requires_grad for name, parameter in model.named_parameters()})
    norms: dict[str, list[float]] = {}
    try:
        for projection in treated if treatment.init != "keep" else ():
            region = Region(projection, "weight")
            if treatment.scale == "match":
                norms[region.key] = region.norms()
            if keep_undo:
                before.copies[region.key] = region.copy()
            _write(projection, treatment, seed)
        for unsplit in split_fused(frozen):
            before.unsplits.append(unsplit)
        before.nested.extend(_leave_nested_tensors(model))
        to_freeze = [region for region in regions if freezes(treatment, region) and region.parameter.requires_grad]
        set_learning(to_freeze, False)
        if keep_undo:  # what goes on learning will be changed by training
            for region in regions:
                if region.parameter.requires_grad and region.key not in before.copies:
                    before.copies[region.key] = region.copy()
        return Applied(
            model,
            treatment=treatment,
            seed=seed,
            regions=regions,
            freezable=[region.key for region in to_freeze],
            norms=norms,
            before=before if keep_undo else None,
        )
    except BaseException:
        before.restore_(model, regions)
        raise


def _leave_nested_tensors(model: nn.Module) -> list[nn.TransformerEncoder]:
    """torch's encoder packs padded batches for a fast path that a split attention does not take."""
    encoders = [
        module
        for module in model.modules()
        if isinstance(module, nn.TransformerEncoder)
        and getattr(module, "use_nested_tensor", False)
        and any(isinstance(inner, Split) for inner in module.modules())
    ]
    for encoder in encoders:
        encoder.use_nested_tensor = False
    return encoders


def _treatment(treatment: Treatment | None, fields: dict[str, Any]) -> Treatment:
    if treatment is None:
        return Treatment.from_dict(fields)
    if not isinstance(treatment, Treatment):
        raise TreatmentError(f"a treatment is an oelm.Treatment, got {type(treatment).__name__}")
    if fields:
        raise TreatmentError(
            f"say the treatment once: as a Treatment, or by {', '.join(sorted(fields))}",
            hint="dataclasses.replace(treatment, ...) changes a field of one",
        )
    return treatment


def _check_untreated(model: nn.Module) -> None:
    for projection in find_projections(model):
        if projection.attention.__dict__.get("_oelm_treated"):
            raise ModelError(
                "the model has been treated already",
                where=projection.name,
                hint="applied.undo() first; a copy of a treated model counts as treated",
            )


def _check_model(model: nn.Module, treated: Sequence[Projection]) -> None:
    """Refuse a model that cannot be treated exactly as it is."""
    if isinstance(model, nn.parallel.DistributedDataParallel):
        raise ModelError(
            "the model is wrapped in DistributedDataParallel, which has fixed what it reduces",
            hint="oelm.apply(model, ...) first, then DistributedDataParallel(model)",
        )
    refuse_sharded(treated)
    for projection in treated:
        adapter = getattr(projection.attention, projection.path, None)
        if getattr(adapter, "merged", False):
            raise ModelError(
                "an adapter is merged into the weight", where=projection.name, hint="model.unmerge_adapter()"
            )
        held = projection.weight_rows(0)
        if not projection.is_parameter:
            raise ModelError(
                "the weight is kept in a buffer, where nothing learns",
                where=projection.name,
                hint="make it a Parameter",
            )
        if held.is_meta:
            raise ModelError(
                "the weight is on the meta device: there is nothing to treat",
                where=projection.name,
                hint="load the weights first; `oelm inspect --config` needs none",
            )
        for head in range(projection.num_heads):
            # A sum is finite only if all entries are; the careful look is for sums that overflow.
            rows = projection.weight_rows(head).detach()
            if not rows.sum().isfinite() and not rows.isfinite().all():
                raise ModelError("the weight has NaN or infinite entries", where=f"{projection.name}, head {head}")


def _check_fit(treated: Sequence[Projection], frozen: Sequence[Projection], treatment: Treatment) -> None:
    """Refuse a treatment that does not exist for this model's shapes."""
    for projection in treated:
        rows, width = projection.head_dim, projection.width
        if treatment.init not in ("keep", "gaussian") and rows > width:
            raise TreatmentError(
                f"{rows} rows of a head cannot be orthonormal in a width of {width}", where=projection.name
            )
        if treatment.init in FITS_WIDTH and rows * projection.num_heads > width:
            raise TreatmentError(
                f"'{treatment.init}' needs all heads' rows to fit the width: "
                f"{projection.num_heads} heads x {rows} rows = {rows * projection.num_heads} > {width}",
                where=projection.name,
                hint="a head-wise init: 'orthogonalize', 'orthogonal' or 'polar'",
            )
        if treatment.scale == "match":
            for head in range(projection.num_heads):
                if not projection.weight_rows(head).any():
                    raise TreatmentError(
                        "scale 'match' of a block that is zero would be zero", where=f"{projection.name}, head {head}"
                    )
    for projection in frozen:
        one_bias = projection.bias_name == "in_proj_bias" and not projection.shares_matrix and projection.has_bias
        if one_bias and treatment.bias == "freeze":
            raise TreatmentError(
                "this attention has separate q, k, v weights but one bias for all, which cannot be frozen in part",
                where=projection.bias_path,
                hint="bias='train'",
            )


def _check_splits(model: nn.Module, frozen: Sequence[Projection]) -> None:
    """Refuse to split a fused weight that something else would miss."""
    holders: dict[int, int] = {}
    for _, parameter in model.named_parameters(remove_duplicate=False):
        holders[id(parameter)] = holders.get(id(parameter), 0) + 1
    for projection in frozen:
        if not needs_split(projection):
            continue
        if not _can_split(projection.owner):
            raise ModelError(
                f"the fused weight of a {type(projection.owner).__name__} cannot be split safely",
                where=projection.name,
                why="what its own forward does with the weight would be lost",
                hint="keep it in a plain nn.Linear, or q and k in matrices of their own",
            )
        if holders[id(projection.weight_parameter)] > 1:
            raise ModelError(
                "a fused weight that several modules share cannot be frozen in part",
                where=projection.name,
                hint="share the module instead of the weight, or freeze='none'",
            )
        if has_adapters(projection.attention):
            raise ModelError(
                "a fused weight inside an adapter learns as a whole and cannot be frozen in part",
                where=projection.name,
                hint="freeze the base model, as PEFT does, or treat the model before the adapter is added",
            )


def _can_split(owner: nn.Module) -> bool:
    """Plain linear maps: torch's own, and those of transformers (Conv1D, FalconLinear)."""
    return type(owner) in (nn.Linear, nn.MultiheadAttention) or type(owner).__module__.startswith("transformers.")


def _check_integrity(model: nn.Module, frozen: Sequence[Projection]) -> None:
    heads = {id(parameter): name for name, parameter in task_head(model).items()}
    for projection in frozen:
        if id(projection.weight_parameter) in heads:
            raise TreatmentError(
                "this treatment would freeze a part of the task head or pooler",
                where=f"{projection.name} (layer {projection.layer})",
                hint="leave that layer out with layers=...",
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
    init, scale = treatment.init, treatment.scale
    rows, width = projection.head_dim, projection.width
    reads = init in ("orthogonalize", "orthogonalize-global", "polar")
    norm_B11: Tensor | None = None
    if reads or scale == "match":
        source_BDM = _weights(projection, heads)
        norm_B11 = torch.linalg.matrix_norm(source_BDM, keepdim=True)
    if not reads:
        source_BDM = _fresh(projection, heads, treatment, seed)
    match init:
        case "orthogonalize" | "orthogonal":
            blocks_BDM = draw.orthonormalize_rows(source_BDM)
        case "orthogonalize-global" | "orthogonal-global":
            whole = draw.orthonormalize_rows(source_BDM.reshape(1, len(heads) * rows, width))
            blocks_BDM = whole.reshape(len(heads), rows, width)
        case "polar":
            blocks_BDM = draw.nearest_orthonormal_rows(source_BDM)
        case _:
            blocks_BDM = source_BDM
    if scale == "match":
        assert norm_B11 is not None
        blocks_BDM *= norm_B11 / torch.linalg.matrix_norm(blocks_BDM, keepdim=True)
    elif init == "gaussian":
        blocks_BDM *= scale if isinstance(scale, float) else width**-0.5
    return blocks_BDM


def _weights(projection: Projection, heads: range) -> Tensor:
    # to the CPU first: not every device knows float64
    out = torch.empty(len(heads), projection.head_dim, projection.width, dtype=torch.float64, device="cpu")
    for index, head in enumerate(heads):
        out[index].copy_(projection.weight_rows(head).detach().cpu())
    return out


def _fresh(projection: Projection, heads: range, treatment: Treatment, seed: int) -> Tensor:
    """New blocks that do not depend on the old weights, (B, D, M); every head has a stream of its own."""
    rows, width = projection.head_dim, projection.width
    if treatment.init == "identity":
        return torch.stack([draw.identity_rows(head, rows, width) for head in heads])

    def gaussian(head: int) -> Tensor:
        generator = torch.Generator()
        generator.manual_seed(seed_for(seed, "qk", projection.layer, projection.role, head))
        return draw.gaussian_rows(rows, width, generator=generator)

    return torch.stack([gaussian(head) for head in heads])
