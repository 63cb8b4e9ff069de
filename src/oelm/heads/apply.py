"""Apply a treatment to a model: check everything, write the heads, freeze."""

import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from torch import nn

from oelm.errors import ModelError, TreatmentError
from oelm.heads.applied import Applied, Snapshot
from oelm.heads.count import count
from oelm.heads.find import by_layer, find_projections, in_layers, refuse_sharded
from oelm.heads.freeze import (
    has_adapters,
    needs_split,
    set_requires_grad,
    should_freeze,
    split_fused,
    task_head_parameters,
)
from oelm.heads.gauge import proving_same, refuse_without_gauge
from oelm.heads.projection import Projection, param_slices
from oelm.heads.split import FusedSplit
from oelm.heads.write import write_heads
from oelm.treatment import FITS_WIDTH, WRITES_BIAS, Bias, Freeze, Init, Treatment, Unfreeze


class TreatmentFields(TypedDict, total=False):
    """The fields of `Treatment` as keywords of `apply`."""

    init: Init
    scale: str | float
    blend: float
    carry_bias: bool
    keep_orthonormal: bool
    freeze: Freeze
    bias: Bias
    layers: str | Sequence[int]
    unfreeze: Unfreeze | Mapping[str, float | str]


def apply(
    model: nn.Module,
    treatment: Treatment | None = None,
    *,
    seed: int = 0,
    inputs: Mapping[str, Any] | None = None,
    keep_undo: bool = True,
    separate_qk: bool = False,
    **fields: Unpack[TreatmentFields],
) -> Applied:
    """Treat the queries and keys of `model` in place; its class stays the same.

    The treatment is an `oelm.Treatment` or its fields as keywords. If it does not fit the model, an error is raised and
    the model is unchanged.

    treatment: an `oelm.Treatment`, instead of the keywords from `init` to `unfreeze`.
    seed: of random blocks (`orthogonal`, `orthogonal-global`, `gaussian`).
    inputs: a batch of the model, on which `frames` is proved to leave attention as it was; made up if left out.
    keep_undo: False saves the memory of the copy that `undo` needs, and that restores the model if `apply` is
        interrupted (`frames` makes it for as long as it may be refused).
    separate_qk: whether queries and keys of fused matrices become parameters of their own even where they learn, for a
        group of their own in the optimizer.
    init: how every head's block of weights is initialized: `keep`, `orthogonalize`, `orthogonal`, `polar`,
        `orthogonalize-global`, `orthogonal-global`, `frames`, `identity`, `gaussian`, `zero`.
    scale: `unit`, orthonormal rows unscaled (`gaussian`: entry std 1/sqrt(width)); `match`, the norm of the replaced
        block, or of the form for `frames`; `keep`, the spectrum of `frames`; a number, the entry std of `gaussian`.
        None is `keep` for `frames`, else `unit`, or no scale for `keep` and `zero`.
    blend: how far to go, from 0 to 1: of the weights, or of the spectrum of `frames`.
    carry_bias: whether the query bias is carried to the new coordinates of its head (`orthogonalize`, `polar`).
    keep_orthonormal: whether trainable rows are made orthonormal again after every step: `applied.retract()`.
    freeze: what is frozen: `none`, `q`, `k`, `qk`.
    bias: whether the biases of a frozen projection `freeze` with it or `train`.
    layers: which layers: `all`, `0-5`, `[0, 2, 4]`, `first:0.5`, `last:0.25`.
    unfreeze: an `oelm.Unfreeze`, or a mapping of its fields: a schedule that unfreezes layers.
    """
    treatment = _treatment(treatment, fields)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise TreatmentError(f"seed must be a non-negative integer, got {seed!r}")
    found = find_projections(model)
    treated = choose_treatable(model, found, treatment)
    frozen = [projection for projection in treated if projection.role in treatment.frozen_roles]
    apart = found if separate_qk else frozen
    if separate_qk:
        _check_splits(model, apart)
        _check_whole(frozen)
    slices = [param_slice for projection in treated for param_slice in param_slices(projection)]
    snapshot = Snapshot(requires_grad={name: parameter.requires_grad for name, parameter in model.named_parameters()})
    norms: dict[str, list[float]] = {}
    try:
        if treatment.init != "keep":
            if keep_undo or treatment.init == "frames":  # which may be refused after it was written
                for param_slice in slices:
                    if param_slice.kind == "weight" or treatment.init in WRITES_BIAS:
                        snapshot.copies[param_slice.key] = param_slice.copy()
            layers = by_layer(treated)
            proving = proving_same(model, layers, inputs) if treatment.init == "frames" else None
            norms = write_heads(model, layers, treatment, seed, proving=proving)
        for unsplit in split_fused(apart):
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
            counts=count(model, found),
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


def choose_treatable(model: nn.Module, found: Sequence[Projection], treatment: Treatment) -> list[Projection]:
    """Of all projections of a model, those to be treated; raises if the treatment does not fit the model."""
    treated = in_layers(found, treatment.layers)
    frozen = [projection for projection in treated if projection.role in treatment.frozen_roles]
    _check_untreated(found)
    _check_model(model, treated)
    _check_fit(treated, frozen, treatment)
    _check_adapters(treated, treatment)
    _check_splits(model, frozen)
    _check_task_head(model, frozen)
    if treatment.init == "frames":
        refuse_without_gauge(model, by_layer(treated))
    return treated


def _check_untreated(projections: Sequence[Projection]) -> None:
    for projection in projections:
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
    finite: set[int] = set()
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
        # A sum is finite only if all entries are; the full check is for sums that overflow, and for rows of values.
        parameter = projection.weight_parameter
        if id(parameter) not in finite and parameter.detach().sum().isfinite():
            finite.add(id(parameter))
        for head in range(projection.num_heads) if id(parameter) not in finite else ():
            if not projection.weight_rows(head).detach().isfinite().all():
                raise ModelError("the weight has NaN or infinite entries", where=f"{projection.name}, head {head}")


def _check_fit(treated: Sequence[Projection], frozen: Sequence[Projection], treatment: Treatment) -> None:
    """Refuse a treatment that does not fit the model's shapes."""
    for projection in treated:
        rows, width = projection.head_dim, projection.width
        if treatment.init not in ("keep", "gaussian", "zero") and rows > width:
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
        if treatment.scale == "match" and treatment.init != "frames":
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


def _check_adapters(treated: Sequence[Projection], treatment: Treatment) -> None:
    """Refuse a promise about weights that an adapter adds to, or that do not learn."""
    for projection in treated:
        if treatment.init == "zero" and projection.is_adapted:
            raise TreatmentError(
                "init 'zero' needs queries and keys without adapters",
                where=projection.name,
                why="an adapter would add to what is zero, and has no gradient there",
                hint="adapt other modules, such as the values",
            )
        if treatment.keep_orthonormal and not projection.weight_parameter.requires_grad:
            raise TreatmentError(
                "keep_orthonormal needs weights that are trainable",
                where=projection.name,
                why="an adapter learns in its place" if projection.is_adapted else "it is frozen",
                hint="omit keep_orthonormal: rows that do not learn stay as they are",
            )


def _check_splits(model: nn.Module, frozen: Sequence[Projection]) -> None:
    """Refuse to split a fused weight that something else needs."""
    fused = [projection for projection in frozen if needs_split(projection)]
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False)) if fused else {}
    for projection in fused:
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


def _check_whole(frozen: Sequence[Projection]) -> None:
    """Refuse to freeze queries or keys alone where both become one parameter."""
    roles = {projection.role for projection in frozen}
    for projection in frozen:
        if needs_split(projection) and projection.layout.query == projection.layout.key and len(roles) == 1:
            raise TreatmentError(
                f"a fused matrix cannot have frozen {projection.role} and a separate learning rate of the rest of Q/K",
                where=projection.name,
                why="it is split in two, queries and keys in one part and values in the other",
                hint="freeze='qk' or 'none', or the learning rate of all else",
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
