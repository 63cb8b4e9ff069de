"""The gauge: where attention sees queries and keys only by their product, and a proof of it on the model itself.

For every invertible A, queries `A^T W_q` and keys `A^-1 W_k` have the logits of `W_q` and `W_k`, if these are plain
inner products. Rotary positions, norms of queries or keys, and shared key heads leave fewer such A, or none.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, TreatmentError
from oelm.heads.projection import Projection, param_slices
from oelm.treatment import Role

_TOLERANCE = 1e-5  # of what an attention module puts out, relative to its largest number, in float32
_TOKENS = 12  # of an input that is made up
_INSTEAD = "init 'orthogonalize' or 'polar', which need no gauge"


def why_no_gauge(model: nn.Module, layer: Mapping[Role, Projection]) -> str | None:
    """What leaves a layer no free choice of coordinates, as far as it can be seen without running it."""
    if layer.keys() != {"q", "k"}:
        return "the layer shares its queries or keys with another layer"
    query, key = layer["q"], layer["k"]
    names = [name for name, _ in query.attention.named_children()]
    if any(name.startswith(("q_", "k_", "query_", "key_")) and name.endswith(("norm", "ln")) for name in names):
        return "queries or keys are normalized after the projection (q/k norms)"
    if _is_rotary(model):
        return "rotary positions turn queries and keys after the projection"
    if query.num_heads != key.num_heads:
        return f"{query.num_heads} query heads share {key.num_heads} key heads"
    return None


def _is_rotary(model: nn.Module) -> bool:
    config = getattr(model, "config", None)
    if getattr(config, "alibi", False):  # Falcon names both, and uses one
        return False
    if getattr(config, "position_embedding_type", None) == "rotary" or getattr(config, "rotary_dim", None):
        return True
    return any("rotary" in type(module).__name__.lower() for module in model.modules())


def refuse_without_gauge(model: nn.Module, layers: Sequence[Mapping[Role, Projection]]) -> None:
    for layer in layers:
        for projection in layer.values():
            dtype = projection.weight_parameter.dtype
            if dtype not in (torch.float32, torch.float64):
                raise TreatmentError(
                    f"init 'frames' cannot be proved in {str(dtype).removeprefix('torch.')}",
                    where=projection.name,
                    hint="load the model in float32, and train it in mixed precision",
                )
        if reason := why_no_gauge(model, layer):
            where = next(iter(layer.values()))
            raise TreatmentError(
                "init 'frames' does not exist for this attention", where=where.name, why=reason, hint=_INSTEAD
            )


@contextmanager
def proving_same(
    model: nn.Module, layers: Sequence[Mapping[Role, Projection]], inputs: Mapping[str, Any] | None
) -> Iterator[None]:
    """Raise `TreatmentError` if what the attention modules put out is changed inside."""
    attentions = [layer["q"].attention for layer in layers]
    given = inputs if inputs is not None else made_up_inputs(model)
    before = _run(model, attentions, given)
    yield
    after = _run(model, attentions, given)
    with _negated_keys(layers):  # attention that does not mind this would not mind anything
        other = _run(model, attentions, given)
    for number, (layer, old, new, far) in enumerate(zip(layers, before, after, other, strict=True), start=1):
        change, sees = _change(old, new), _change(old, far)
        # What the layers before have rounded adds up.
        bound = number * _TOLERANCE
        if sees < 10 * bound:
            raise ModelError(
                "nothing can be proved of attention that is so flat: keys of the other sign change it by "
                f"{sees:.1e} of its largest number",
                where=f"{layer['q'].name}, layer {layer['q'].layer}",
                hint="pass a batch on which the model attends: oelm.apply(model, ..., inputs={...})",
            )
        if not change <= bound:
            raise TreatmentError(
                "init 'frames' does not exist for this attention: the same form has another output",
                where=f"{layer['q'].name}, layer {layer['q'].layer}",
                why=f"changed by {change:.1e} of its largest number on {'your' if inputs else 'made-up'} inputs, "
                f"and {bound:.0e} is rounding; its logits are not plain inner products of queries and keys",
                hint=_INSTEAD,
            )


def _change(old: Tensor, new: Tensor) -> float:
    return ((new - old).abs().max() / old.abs().max().clamp(min=torch.finfo(old.dtype).tiny)).item()


@contextmanager
def _negated_keys(layers: Sequence[Mapping[Role, Projection]]) -> Iterator[None]:
    rows = [rows for layer in layers for one in param_slices(layer["k"]) for rows in one.all_rows()]
    for some in rows:
        some.neg_()
    try:
        yield
    finally:
        for some in rows:
            some.neg_()  # exactly what it was


def _run(model: nn.Module, attentions: Sequence[nn.Module], inputs: Mapping[str, Any]) -> list[Tensor]:
    """What every attention module puts out, in float32, without dropout."""
    seen: dict[nn.Module, Tensor] = {}

    def hook(module: nn.Module, args: object, output: Any) -> None:
        first = output if isinstance(output, Tensor) else output[0]
        seen.setdefault(module, first.detach().float())

    modes = {module: module.training for module in model.modules()}
    handles = [attention.register_forward_hook(hook) for attention in attentions]
    model.eval()
    try:
        with torch.no_grad():
            model(**inputs)
    finally:
        for module, training in modes.items():
            module.training = training
        for handle in handles:
            handle.remove()
    if missing := [attention for attention in attentions if attention not in seen]:
        raise ModelError(
            f"{len(missing)} attention modules did not run on the inputs, so nothing can be proved of them",
            hint="pass a batch that uses the whole model: oelm.apply(model, ..., inputs={...})",
        )
    return [seen[attention] for attention in attentions]


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
