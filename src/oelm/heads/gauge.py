"""The gauge: where attention sees queries and keys only by their product, and a proof of it on the model itself.

For every invertible A, queries `A^T W_q` and keys `A^-1 W_k` have the logits of `W_q` and `W_k`, if these are plain
inner products. Rotary positions, norms of queries or keys, and shared key heads leave fewer such A, or none.
"""

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, TreatmentError
from oelm.heads.projection import Projection, param_slices
from oelm.treatment import Role

_TOLERANCE = 1e-5  # of what an attention module puts out, relative to its largest number
_TOKENS = 12  # of an input that is made up
_INSTEAD = "init 'orthogonalize' or 'polar', which need no gauge"


def why_no_gauge(layer: Mapping[Role, Projection], *, rotary: bool) -> str | None:
    """What leaves a layer no free choice of coordinates, as far as it can be seen without running it.

    `rotary` says whether the model `is_rotary`.
    """
    if layer.keys() != {"q", "k"}:
        return "the layer shares its queries or keys with another layer"
    query, key = layer["q"], layer["k"]
    names = [name for name, _ in query.attention.named_children()]
    if any(name.startswith(("q_", "k_", "query_", "key_")) and name.endswith(("norm", "ln")) for name in names):
        return "queries or keys are normalized after the projection (q/k norms)"
    if rotary:
        return "rotary positions turn queries and keys after the projection"
    if query.num_heads != key.num_heads:
        # Orthonormal keys, and queries that carry the rest, would be exact; of the known families none would need it:
        # those that share key heads have rotary positions.
        return f"{query.num_heads} query heads share {key.num_heads} key heads, which are in the frame of one at most"
    return None


def is_rotary(model: nn.Module) -> bool:
    """Whether positions turn queries and keys."""
    config = getattr(model, "config", None)
    if getattr(config, "alibi", False):  # Falcon names both, and uses one
        return False
    if getattr(config, "position_embedding_type", None) == "rotary" or getattr(config, "rotary_dim", None):
        return True
    return any("rotary" in type(module).__name__.lower() for module in model.modules())


def refuse_without_gauge(model: nn.Module, layers: Sequence[Mapping[Role, Projection]]) -> None:
    rotary = is_rotary(model)
    for layer in layers:
        for projection in layer.values():
            dtype = projection.weight_parameter.dtype
            if dtype not in (torch.float32, torch.float64):
                raise TreatmentError(
                    f"init 'frames' cannot be proved in {str(dtype).removeprefix('torch.')}",
                    where=projection.name,
                    hint="load the model in float32, and train it in mixed precision",
                )
        if reason := why_no_gauge(layer, rotary=rotary):
            where = next(iter(layer.values()))
            raise TreatmentError(
                "init 'frames' does not exist for this attention", where=where.name, why=reason, hint=_INSTEAD
            )


@contextmanager
def proving_same(
    model: nn.Module, layers: Sequence[Mapping[Role, Projection]], inputs: Mapping[str, Any] | None
) -> Iterator[None]:
    """Raise `TreatmentError` if what an attention module makes of the same input is changed inside."""
    with _evaluating(model):
        given = _inputs_of([layer["q"].attention for layer in layers], model, inputs or made_up_inputs(model))
        before = [_output(attention, call) for attention, call in given.items()]
    yield
    with _evaluating(model):
        for layer, (attention, call), old in zip(layers, given.items(), before, strict=True):
            change = _change(old, _output(attention, call))
            with _negated_keys(layer["k"]):  # attention that does not mind this would not mind anything
                sees = _change(old, _output(attention, call))
            where = f"{layer['q'].name}, layer {layer['q'].layer}"
            if sees < 10 * _TOLERANCE:
                raise ModelError(
                    "nothing can be proved of attention that is so flat: keys of the other sign change it by "
                    f"{sees:.1e} of its largest number",
                    where=where,
                    hint="pass a batch on which the model attends: oelm.apply(model, ..., inputs={...})",
                )
            if not change <= _TOLERANCE:
                raise _not_same(
                    layer, where, f"{change:.1e} of its largest number on {'your' if inputs else 'made-up'} inputs"
                )


def _not_same(layer: Mapping[Role, Projection], where: str, change: str) -> TreatmentError:
    adapted = any(projection.is_adapted for projection in layer.values())
    reason = (
        "an adapter that has been trained adds to the old coordinates"
        if adapted
        else "its logits are not plain inner products of queries and keys"
    )
    return TreatmentError(
        "init 'frames' does not exist for this attention: the same form has another output",
        where=where,
        why=f"changed by {change}, and {_TOLERANCE:.0e} is rounding; {reason}",
        hint="merge the trained adapter first, or add a new one" if adapted else _INSTEAD,
    )


def _change(old: Tensor, new: Tensor) -> float:
    return ((new - old).abs().max() / old.abs().max().clamp(min=torch.finfo(old.dtype).tiny)).item()


@contextmanager
def _negated_keys(key: Projection) -> Iterator[None]:
    rows = [rows for one in param_slices(key) for rows in one.all_rows()]
    for some in rows:
        some.neg_()
    try:
        yield
    finally:
        for some in rows:
            some.neg_()  # exactly what it was


@contextmanager
def _evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout and without gradients."""
    modes = {module: module.training for module in model.modules()}
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training


_Call = tuple[tuple[Any, ...], dict[str, Any]]
"""What a module is called with: arguments and keywords."""


def _inputs_of(attentions: Sequence[nn.Module], model: nn.Module, inputs: Mapping[str, Any]) -> dict[nn.Module, _Call]:
    """What every attention module is called with first, when the model runs."""
    seen: dict[nn.Module, _Call] = {}

    def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if module not in seen:
            seen[module] = copy.deepcopy((args, kwargs))  # a cache of keys is filled by the call

    handles = [attention.register_forward_pre_hook(hook, with_kwargs=True) for attention in attentions]
    try:
        model(**inputs)
    except Exception as error:  # a model may raise anything about what it cannot read
        raise ModelError(
            f"{type(model).__name__} does not run on these inputs, so nothing can be proved of its attention",
            why=f"{type(error).__name__}: {str(error)[:300]}",
            hint="pass a batch of the model: oelm.apply(model, ..., inputs={'input_ids': ...})",
        ) from error
    finally:
        for handle in handles:
            handle.remove()
    if missing := len(attentions) - len(seen):
        raise ModelError(
            f"{missing} attention modules did not run on the inputs, so nothing can be proved of them",
            hint="pass a batch that uses the whole model: oelm.apply(model, ..., inputs={...})",
        )
    return {attention: seen[attention] for attention in attentions}


def _output(attention: nn.Module, call: _Call) -> Tensor:
    args, kwargs = copy.deepcopy(call)
    output = attention(*args, **kwargs)
    first: Tensor = output if isinstance(output, Tensor) else output[0]
    return first


def made_up_inputs(model: nn.Module) -> dict[str, Tensor]:
    """A batch of the kind that a model of transformers says it takes."""
    config, device = getattr(model, "config", None), next(model.parameters()).device
    generator = torch.Generator("cpu").manual_seed(0)
    kind = getattr(model, "main_input_name", None)
    words = getattr(getattr(config, "text_config", config), "vocab_size", None)
    if kind == "input_ids" and isinstance(words, int):
        tokens = torch.randint(words, (2, _TOKENS), generator=generator, device="cpu").to(device)
        is_pair = getattr(config, "is_encoder_decoder", False)
        return {"input_ids": tokens, "decoder_input_ids": tokens} if is_pair else {"input_ids": tokens}
    if kind == "pixel_values" and isinstance(getattr(config, "image_size", None), int):
        shape = (1, config.num_channels, config.image_size, config.image_size)  # type: ignore[union-attr]
        return {
            "pixel_values": torch.randn(shape, generator=generator, device="cpu").to(
                device, next(model.parameters()).dtype
            )
        }
    raise ModelError(
        f"{type(model).__name__} does not say what its inputs are, so nothing can be proved of its attention",
        hint="pass a batch: oelm.apply(model, ..., inputs={'input_ids': ...})",
    )
