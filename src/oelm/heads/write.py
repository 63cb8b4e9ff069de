"""Write the heads of a layer: new weights for its queries and keys, and biases in their coordinates.

Everything is computed in float64 on the CPU. Shape suffixes: B = heads at a time, D = rows of a head, M = model width.
"""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn

from oelm.errors import TreatmentError
from oelm.heads import init
from oelm.heads.gauge import is_rotary, why_no_gauge
from oelm.heads.projection import ParamSlice, Projection, SliceKind
from oelm.seeds import seed_for
from oelm.treatment import GLOBAL, TURNED, Role, Treatment

# Heads are written a quarter of a projection at a time, or an eighth of two where a role needs the other: in float64
# that stays below one layer's Q/K in memory.
_CHUNKS = 4
# Singular values of a form below this share of the largest are rounding.
_RANK = 1e-12

Layer = Mapping[Role, Projection]
"""The query and the key projection of an attention module; one of them, if another layer has the other's weights."""


def write_heads(
    model: nn.Module,
    layers: Sequence[Layer],
    treatment: Treatment,
    seed: int,
    *,
    proving: AbstractContextManager[None] | None = None,
) -> dict[str, list[float]]:
    """Replace the weights of every layer; returns the norms that its heads are promised, by slice.

    `proving` is around what must not change attention: `frames`, before a spectrum is flattened.
    """
    norms: dict[str, list[float]] = {}
    with proving or nullcontext():
        turned = treatment.carry_bias and treatment.init in TURNED
        rotary = turned and is_rotary(model)
        for layer in layers:
            carries = turned and why_no_gauge(layer, rotary=rotary) is None
            for role, of_heads in _write_layer(layer, treatment, seed, carries=carries).items():
                if of_heads:
                    norms[ParamSlice(layer[role], "weight").key] = of_heads
    if treatment.init == "frames" and treatment.scale != "keep":
        for layer in layers:
            norm_of_heads = _flatten_layer(layer, treatment)
            if treatment.scale == "match" and treatment.blend == 1:
                norms |= {ParamSlice(projection, "weight").key: norm_of_heads for projection in layer.values()}
    return norms


def _write_layer(layer: Layer, treatment: Treatment, seed: int, *, carries: bool) -> dict[Role, list[float]]:
    """Replace the weights of every head; returns the norm that it had, where it is kept.

    `carries` says whether biases are turned with their heads.
    """
    norms: dict[Role, list[float]] = {role: [] for role in layer}
    together: list[Layer] = [layer] if treatment.init == "frames" else [{role: layer[role]} for role in layer]
    for some in together:
        num_heads = min(projection.num_heads for projection in some.values())
        at_once = num_heads if treatment.init in GLOBAL else max(1, num_heads // (_CHUNKS * len(some)))
        for first in range(0, num_heads, at_once):
            heads = range(first, min(first + at_once, num_heads))
            old = {role: _weights(projection, heads) for role, projection in some.items()}
            if treatment.init == "frames":
                new = _frames(old)
            else:
                new = {role: _blocks(some[role], heads, old[role], treatment, seed) for role in some}
            if carries and "k" in some:
                _carry_biases(layer, heads, old["k"], new["k"], treatment)
            for role, projection in some.items():
                _write_rows(projection, "weight", heads, new[role])
                if treatment.init == "zero" and projection.has_bias:
                    for bias_D in projection.rows("bias", heads):
                        bias_D.detach().mul_(1 - treatment.blend)
                if treatment.scale == "match" and treatment.blend == 1 and treatment.init != "frames":
                    norms[role] += torch.linalg.matrix_norm(old[role]).tolist()
    return norms


def _blocks(projection: Projection, heads: range, old_BDM: Tensor, treatment: Treatment, seed: int) -> Tensor:
    """New weights for some heads, each role by itself."""
    width = projection.width
    match treatment.init:
        case "orthogonalize":
            blocks_BDM = init.orthonormalize_rows(old_BDM)
        case "orthogonal":
            blocks_BDM = init.orthonormalize_rows(_gaussian(projection, heads, seed))
        case "orthogonalize-global" | "orthogonal-global":
            rows_BDM = old_BDM if treatment.init == "orthogonalize-global" else _gaussian(projection, heads, seed)
            blocks_BDM = init.orthonormalize_rows(rows_BDM.reshape(1, -1, width)).reshape(rows_BDM.shape)
        case "polar":
            blocks_BDM = init.nearest_orthonormal_rows(old_BDM)
        case "identity":
            blocks_BDM = torch.stack([init.identity_rows(head, projection.head_dim, width) for head in heads])
        case "zero":
            blocks_BDM = torch.zeros_like(old_BDM)
        case _:
            blocks_BDM = _gaussian(projection, heads, seed)
            if treatment.scale != "match":
                blocks_BDM *= treatment.scale if isinstance(treatment.scale, float) else width**-0.5
    if treatment.scale == "match":
        norm_B11 = torch.linalg.matrix_norm(old_BDM, keepdim=True)
        blocks_BDM *= norm_B11 / torch.linalg.matrix_norm(blocks_BDM, keepdim=True)
    return blocks_BDM if treatment.blend == 1 else torch.lerp(old_BDM, blocks_BDM, treatment.blend)


def _frames(old: Mapping[Role, Tensor]) -> dict[Role, Tensor]:
    """Both roles in the singular frames of their form, each with the root of its spectrum for lengths."""
    query_BDM, spectrum_BD, key_BDM = init.frames(old["q"], old["k"])
    root_BD1 = spectrum_BD.sqrt()[..., None]
    # Where the form is zero the query is, and not the key: a query bias may still need that direction.
    zero_BD1 = (spectrum_BD <= _RANK * spectrum_BD[:, :1])[..., None]
    return {"q": query_BDM * root_BD1.masked_fill(zero_BD1, 0), "k": key_BDM * root_BD1.masked_fill(zero_BD1, 1)}


@torch.no_grad()
def _flatten_layer(layer: Layer, treatment: Treatment) -> list[float]:
    """Go from the spectrum to a flat one, as far as `blend` says, in heads that are in their frames; returns the norm
    that queries and keys of every head have then."""
    norms = []
    for head in range(layer["q"].num_heads):
        one = range(head, head + 1)
        rows = {role: _weights(projection, one)[0] for role, projection in layer.items()}
        lengths = {role: torch.linalg.vector_norm(rows_DM, dim=1) for role, rows_DM in rows.items()}
        spectrum_D = lengths["q"] * lengths["k"]
        rounding = torch.finfo(layer["q"].weight_parameter.dtype).eps * spectrum_D.max()
        rank, num_rows = int((spectrum_D > rounding).sum()), len(spectrum_D)
        if rank < num_rows:
            raise TreatmentError(
                f"the form of a head has rank {rank} of {num_rows}: a flat spectrum would make directions up",
                where=f"{layer['q'].name}, head {head}",
                hint="scale 'keep', which leaves what is zero at zero",
            )
        flat_1 = torch.linalg.vector_norm(spectrum_D, keepdim=True) / num_rows**0.5
        flat_1 = flat_1 if treatment.scale == "match" else torch.ones_like(flat_1)
        spectrum_D = torch.lerp(spectrum_D, flat_1.expand_as(spectrum_D), treatment.blend)
        for role, projection in layer.items():
            factor_D = spectrum_D.sqrt() / lengths[role]
            _write_rows(projection, "weight", one, (rows[role] * factor_D[:, None])[None])
            if projection.has_bias:  # a query bias is seen through the keys, a key bias is turned with them
                turn_D = factor_D if role == "k" else lengths["k"] / spectrum_D.sqrt()
                _write_rows(projection, "bias", one, _biases(projection, one) * turn_D)
        norms.append(spectrum_D.sum().sqrt().item())
    return norms


def _carry_biases(layer: Layer, heads: range, old_BDM: Tensor, new_BDM: Tensor, treatment: Treatment) -> None:
    """Biases in the coordinates of the new keys, of a layer with as many key heads as query heads."""
    is_frames = treatment.init == "frames"
    if layer["q"].has_bias:
        bias_BD, orthogonal = _biases(layer["q"], heads), is_frames or treatment.blend == 1
        carried_BD = init.carry_query_bias(bias_BD, old_BDM, new_BDM, orthogonal=orthogonal)
        _write_rows(layer["q"], "bias", heads, carried_BD)
    if is_frames and layer["k"].has_bias:  # without effect on attention, but then it is what it was
        turned_BD = init.turn_bias(_biases(layer["k"], heads), old_BDM, new_BDM)
        _write_rows(layer["k"], "bias", heads, turned_BD)


def _weights(projection: Projection, heads: range) -> Tensor:
    # To the CPU first: not every device supports float64.
    out = torch.empty(len(heads), projection.head_dim, projection.width, dtype=torch.float64, device="cpu")
    for block_DM, rows_DM in zip(out, projection.rows("weight", heads), strict=True):
        block_DM.copy_(rows_DM.detach().cpu())
    return out


def _biases(projection: Projection, heads: range) -> Tensor:
    return torch.stack([bias_D.detach().cpu().double() for bias_D in projection.rows("bias", heads)])


def _write_rows(projection: Projection, kind: SliceKind, heads: range, values: Tensor) -> None:
    for rows, of_head in zip(projection.rows(kind, heads), values, strict=True):
        rows.detach().copy_(of_head)


def _gaussian(projection: Projection, heads: range, seed: int) -> Tensor:
    """Blocks of independent normal entries; every head has its own random stream."""

    def draw(head: int) -> Tensor:
        generator = torch.Generator()
        generator.manual_seed(seed_for(seed, "qk", projection.layer, projection.role, head))
        return init.gaussian_rows(projection.head_dim, projection.width, generator=generator)

    return torch.stack([draw(head) for head in heads])
