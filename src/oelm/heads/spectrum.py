"""Spectra: the singular values of every head's form, and how far treatments would move what it attends to.

Shape suffixes: B = query heads, D = rows of a head, M = model width, H = query heads, Q = queries of all texts.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from oelm.errors import ModelError, OelmError
from oelm.facts import HeadSpectrum
from oelm.heads.apply import apply
from oelm.heads.attention import Maps, attention_maps, divergences
from oelm.heads.find import by_layer, find_projections
from oelm.heads.gauge import is_rotary, why_no_gauge
from oelm.heads.init import frames
from oelm.heads.measure import measure
from oelm.heads.projection import Projection
from oelm.treatment import Role, Treatment

# What is tried on the model, by the name of its column.
TREATMENTS = {
    "unit": Treatment(init="orthogonalize", scale="unit"),
    "match": Treatment(init="orthogonalize", scale="match"),
    "frames unit": Treatment(init="frames", scale="unit"),
    "frames match": Treatment(init="frames", scale="match"),
}
Inputs = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Spectra:
    """All heads of a model, layer by layer."""

    heads: tuple[HeadSpectrum, ...]
    refused: dict[str, str]
    """By treatment that does not exist for this model: the reason."""


def measure_spectra(model: nn.Module, batches: Sequence[Inputs]) -> Spectra:
    """The spectrum of every head, and the KL divergence that each treatment would make on some batches.

    The model is treated and restored, bit for bit, once for every treatment.
    """
    layers = [layer for layer in by_layer(find_projections(model)) if layer.keys() == {"q", "k"}]
    before = [attention_maps(model, inputs) for inputs in batches]
    moved: dict[str, list[Tensor | None]] = {}
    refused: dict[str, str] = {}
    for name, treatment in TREATMENTS.items():
        try:
            applied = apply(model, treatment, inputs=batches[0])
        except OelmError as error:
            refused[name] = _reason(model, layers, treatment, error)
            continue
        try:
            moved[name] = _divergence_by_head(before, [attention_maps(model, inputs) for inputs in batches])
        finally:
            applied.undo()
    return Spectra(heads=tuple(head for layer in layers for head in _spectra(layer, moved)), refused=refused)


def _reason(
    model: nn.Module, layers: Sequence[Mapping[Role, Projection]], treatment: Treatment, error: OelmError
) -> str:
    rotary = is_rotary(model)
    gauges = (why_no_gauge(layer, rotary=rotary) for layer in layers) if treatment.init == "frames" else ()
    return next(filter(None, gauges), str(error).splitlines()[0])


def _divergence_by_head(before: Sequence[Maps], after: Sequence[Maps]) -> list[Tensor | None]:
    """By layer: the mean over the queries of all batches, (H,)."""
    by_batch = [divergences(old, new) for old, new in zip(before, after, strict=True)]
    found: list[Tensor | None] = []
    for of_layer in zip(*by_batch, strict=True):
        known_HQ = [some for some in of_layer if some is not None]
        found.append(torch.cat(known_HQ, dim=1).mean(1) if len(known_HQ) == len(of_layer) else None)
    return found


def _spectra(layer: Mapping[Role, Projection], moved: Mapping[str, list[Tensor | None]]) -> list[HeadSpectrum]:
    query, key = layer["q"], layer["k"]
    each = query.num_heads // key.num_heads  # query heads that share a key head
    query_BDM, key_BDM = _weights(query), _weights(key).repeat_interleave(each, dim=0)
    spectrum_BD = frames(query_BDM, key_BDM).spectrum
    rows: dict[Role, list[float]] = {role: [row.deviation for row in measure(layer[role])] for role in layer}
    found = []
    for head in range(query.num_heads):
        divergence_H = {name: by_layer[query.layer] for name, by_layer in moved.items()}
        found.append(
            HeadSpectrum(
                layer=query.layer,
                head=head,
                spectrum=tuple(spectrum_BD[head].tolist()),
                deviation=max(rows["q"][head], rows["k"][head // each]),
                kl={name: None if some is None else some[head].item() for name, some in divergence_H.items()},
            )
        )
    return found


def _weights(projection: Projection) -> Tensor:
    weight_BDM = torch.stack([projection.weight_rows(head).detach().cpu() for head in range(projection.num_heads)])
    if not weight_BDM.isfinite().all():
        raise ModelError("the weight has NaN or infinite entries", where=projection.name)
    return weight_BDM.double()
