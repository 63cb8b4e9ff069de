"""Write the heads of a layer: new weights for its queries and keys, and biases in their coordinates.

Everything is computed in float64 on the CPU. Shape suffixes: B = heads at a time, D = rows of a head, M = model width.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from oelm.errors import TreatmentError
from oelm.heads import init
from oelm.heads.projection import Projection
from oelm.seeds import seed_for
from oelm.treatment import GLOBAL, Role, Treatment

# Heads are written an eighth of a layer at a time: in float64 that stays below one layer's Q/K in memory.
_CHUNKS = 8
# Singular values of a form below this share of the largest are rounding.
_RANK = 1e-12

Layer = Mapping[Role, Projection]
"""The query and the key projection of an attention module; one of them, if another layer has the other's weights."""


def write_layer(layer: Layer, treatment: Treatment, seed: int, *, carries: bool) -> dict[Role, list[float]]:
    """Replace the weights of every head; returns the norm that every head should have, where that is promised.

    `carries` says whether biases are turned with their heads.
    """
    norms: dict[Role, list[float]] = {role: [] for role in layer}
    groups = min(projection.num_heads for projection in layer.values())
    at_once = groups if treatment.init in GLOBAL else max(1, groups // _CHUNKS)
    for first in range(0, groups, at_once):
        heads: dict[Role, range] = {}
        for role, projection in layer.items():
            each = projection.num_heads // groups  # query heads that share a key head
            heads[role] = range(first * each, min(first + at_once, groups) * each)
        old = {role: _weights(projection, heads[role]) for role, projection in layer.items()}
        if treatment.init == "frames":
            new = _frames(layer, heads, old, treatment)
        else:
            new = {role: _blocks(layer[role], heads[role], old[role], treatment, seed) for role in layer}
        if carries and layer.keys() == {"q", "k"}:
            _carry_biases(layer, heads, old, new, turns_keys=treatment.init == "frames")
        for role, projection in layer.items():
            for head, block_DM in zip(heads[role], new[role], strict=True):
                projection.write_(head, block_DM)
                if treatment.init == "zero" and projection.has_bias:
                    projection.bias_rows(head).detach().mul_(1 - treatment.blend)
            if treatment.scale == "match" and treatment.blend == 1:
                promised = new if treatment.init == "frames" else old
                norms[role] += torch.linalg.matrix_norm(promised[role]).tolist()
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


def _frames(
    layer: Layer, heads: Mapping[Role, range], old: Mapping[Role, Tensor], treatment: Treatment
) -> dict[Role, Tensor]:
    """Both roles in the singular frames of their form, each with the root of its spectrum for lengths."""
    query_BDM, spectrum_BD, key_BDM = init.frames(old["q"], old["k"])
    is_zero_BD = spectrum_BD <= _RANK * spectrum_BD[:, :1]
    if treatment.scale != "keep":
        if is_zero_BD.any():
            head = heads["q"][int(is_zero_BD.any(-1).nonzero()[0])]
            raise TreatmentError(
                f"the form of a head has rank {int((~is_zero_BD[head - heads['q'][0]]).sum())} of "
                f"{spectrum_BD.shape[1]}: a flat spectrum would make directions up",
                where=f"{layer['q'].name}, head {head}",
                hint="scale 'keep', which leaves what is zero at zero",
            )
        flat_B1 = torch.linalg.vector_norm(spectrum_BD, dim=-1, keepdim=True) / spectrum_BD.shape[1] ** 0.5
        flat_B1 = flat_B1 if treatment.scale == "match" else torch.ones_like(flat_B1)
        spectrum_BD = torch.lerp(spectrum_BD, flat_B1.expand_as(spectrum_BD), treatment.blend)
    root_BD1 = spectrum_BD.sqrt()[..., None]
    # Where the form is zero the query is, and not the key: a query bias may still need that direction.
    zero_BD1 = is_zero_BD[..., None]
    return {"q": query_BDM * root_BD1.masked_fill(zero_BD1, 0), "k": key_BDM * root_BD1.masked_fill(zero_BD1, 1)}


def _carry_biases(
    layer: Layer, heads: Mapping[Role, range], old: Mapping[Role, Tensor], new: Mapping[Role, Tensor], turns_keys: bool
) -> None:
    if layer["q"].has_bias:
        each = len(heads["q"]) // len(heads["k"])
        old_key, new_key = (keys["k"].repeat_interleave(each, dim=0) for keys in (old, new))
        _write_biases(layer["q"], heads["q"], init.carry_query_bias(_biases(layer["q"], heads["q"]), old_key, new_key))
    if turns_keys and layer["k"].has_bias:  # without effect on attention, but then it is what it was
        turned_BD = init.turn_bias(_biases(layer["k"], heads["k"]), old["k"], new["k"])
        _write_biases(layer["k"], heads["k"], turned_BD)


def _weights(projection: Projection, heads: range) -> Tensor:
    # To the CPU first: not every device supports float64.
    out = torch.empty(len(heads), projection.head_dim, projection.width, dtype=torch.float64, device="cpu")
    for index, head in enumerate(heads):
        out[index].copy_(projection.weight_rows(head).detach().cpu())
    return out


def _biases(projection: Projection, heads: range) -> Tensor:
    return torch.stack([projection.bias_rows(head).detach().cpu().double() for head in heads])


def _write_biases(projection: Projection, heads: range, biases_BD: Tensor) -> None:
    for head, bias_D in zip(heads, biases_BD, strict=True):
        projection.bias_rows(head).detach().copy_(bias_D)


def _gaussian(projection: Projection, heads: range, seed: int) -> Tensor:
    """Blocks of independent normal entries; every head has its own random stream."""

    def draw(head: int) -> Tensor:
        generator = torch.Generator()
        generator.manual_seed(seed_for(seed, "qk", projection.layer, projection.role, head))
        return init.gaussian_rows(projection.head_dim, projection.width, generator=generator)

    return torch.stack([draw(head) for head in heads])
