"""`oelm inspect`: where a model keeps its queries and keys, and what a treatment would freeze and save."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from oelm.cli.echo import echo
from oelm.cli.spectrum import format_spectra, read_sentences, spectra_of
from oelm.errors import FolderError, MissingPart, ReportError, is_installed
from oelm.facts import Counts
from oelm.format import format_columns
from oelm.treatment import Treatment

if TYPE_CHECKING:
    from oelm.heads.count import Savings
    from oelm.heads.measure import Orthonormality
    from oelm.heads.projection import Projection
    from oelm.heads.spectrum import Spectra
    from oelm.models.load import ReplacedHead


def inspect(
    model: Annotated[str | None, typer.Argument(help="Folder of a saved model, hub name, or minilm-l6")] = None,
    config: Annotated[
        str | None, typer.Option(help="Config to inspect without weights: config.json, folder or hub name")
    ] = None,
    freeze: Annotated[str, typer.Option(help="What to freeze: none, q, k, qk")] = "qk",
    layers: Annotated[str, typer.Option(help="Layers, e.g. all, 0-5, first:0.5, last:0.25")] = "all",
    spectrum: Annotated[
        bool, typer.Option("--spectrum", help="The spectrum of every head, and how far treatments would move attention")
    ] = False,
    text: Annotated[Path | None, typer.Option(help="With --spectrum: a file of sentences, one a line")] = None,
    figure: Annotated[Path | None, typer.Option(help="With --spectrum: a file for its picture, .svg")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Show the heads of a model, and what a treatment would freeze and save"""
    if (model is None) == (config is None):
        raise FolderError("say which model: `oelm inspect MODEL`, or `oelm inspect --config FILE` without weights")
    _check_options(model, spectrum=spectrum, text=text, figure=figure)
    sentences = None if text is None else read_sentences(text)
    treatment = Treatment.from_dict({"freeze": freeze, "layers": layers})
    facts = _inspect(model, config, treatment, spectrum=spectrum, sentences=sentences)
    if figure is not None and facts.spectra is not None:
        from oelm.report.figures.spectrum import draw_spectra

        draw_spectra(facts.spectra.heads, figure)
    echo(json.dumps(facts.to_dict(), indent=2) if as_json else str(facts))


def _check_options(model: str | None, *, spectrum: bool, text: Path | None, figure: Path | None) -> None:
    for option, given in (("--text", text), ("--figure", figure)):
        if given is not None and not spectrum:
            raise FolderError(f"{option} goes with --spectrum")
    if spectrum and model is None:
        raise FolderError("--spectrum needs weights, and --config has none", hint="oelm inspect MODEL --spectrum")
    if figure is not None:
        if figure.suffix != ".svg":
            raise ReportError(
                f"{figure} is not the name of an SVG file", hint=f"--figure {figure.stem or 'spectrum'}.svg"
            )
        if not is_installed("matplotlib"):
            raise MissingPart("matplotlib", extra="report", needed_by="--figure")


@dataclass(frozen=True, kw_only=True)
class ModelFacts:
    """The heads of a model, and what a treatment would freeze and save of it."""

    model: str
    class_name: str
    counts: Counts
    treatment: Treatment
    saving: Savings
    projections: list[Projection]
    heads: list[Orthonormality] | None
    """None without weights."""
    replaced: ReplacedHead
    treated: str | None
    """The treatment in its `oelm.json`, in words; None without one."""
    spectra: Spectra | None = None
    """None unless it was asked for."""
    measured_on: str = ""
    """What the attention of `spectra` was measured on, in words."""

    def to_dict(self) -> dict[str, object]:
        return {
            "model": self.model,
            "class": self.class_name,
            "weights": self.heads is not None,
            "new_weights": list(self.replaced.new),
            "dropped_weights": list(self.replaced.dropped),
            "treated": self.treated,
            "counts": self.counts.to_dict(),
            "treatment": self.treatment.to_dict(),
            "saving": self.saving.to_dict(),
            "projections": [_as_dict(projection) for projection in self.projections],
            "orthonormality": None if self.heads is None else [head.to_dict() for head in self.heads],
            "spectra": None if self.spectra is None else self._spectra_as_dict(self.spectra),
        }

    def _spectra_as_dict(self, spectra: Spectra) -> dict[str, object]:
        heads = [head.to_dict() for head in spectra.heads]
        return {"measured_on": self.measured_on, "heads": heads, "refused": spectra.refused}

    def __str__(self) -> str:
        counts, saving, qk = self.counts, self.saving, self.counts.qk or 0
        weights = "" if self.heads is not None else ", without weights"
        lines = [
            f"{self.class_name}  {self.model}{weights}",
            *([] if self.treated is None else [f"treated when it was saved: {self.treated}"]),
            f"{counts.total:,} weights, {qk:,} of them Q/K ({100 * qk / counts.total:.3f} %), "
            f"{counts.buffers:,} in buffers",
            *_list_weights("not in the files, drawn at random", self.replaced.new),
            *_list_weights("in the files, and not in this class", self.replaced.dropped),
            "",
            *format_columns(self._rows(), left=("", "head", "layout", "name")),
            f"\nfreeze {self.treatment.freeze}, layers {self.treatment.layers}: {saving.frozen:,} weights frozen "
            f"({100 * saving.frozen / counts.total:.3f} %), {counts.total - saving.frozen:,} trainable;\n"
            f"saves {saving.memory_bytes / 2**20:,.1f} MiB of gradients and Adam moments, and at most "
            f"{100 * saving.linear_work:.2f} % of the work in linear layers",
        ]
        if self.spectra is not None:
            lines += ["", *format_spectra(self.spectra, self.measured_on)]
        return "\n".join(lines)

    def _rows(self) -> list[tuple[str, ...]]:
        columns = ("max |WW'-I|", "singular values", "norm") if self.heads else ()
        rows = [("layer", "", "heads", "head", "layout", *columns, "name")]
        for one in self.projections:
            heads = [head for head in self.heads or () if (head.layer, head.role) == (one.layer, one.role)]
            shape = f"{one.head_dim}x{one.width}"
            rows.append(
                (str(one.layer), one.role, str(one.num_heads), shape, one.arrangement, *_ranges(heads), one.name)
            )
        return rows


def _list_weights(label: str, names: tuple[str, ...]) -> list[str]:
    more = f" and {len(names) - 8} more" if len(names) > 8 else ""
    return [f"{label}: {', '.join(names[:8])}{more}"] if names else []


def _ranges(heads: list[Orthonormality]) -> tuple[str, ...]:
    """Deviation, singular values and norm of the heads of a projection, if they were measured."""
    if not heads:
        return ()
    norms = [head.norm for head in heads]
    return (
        f"{max(head.deviation for head in heads):.1e}",
        f"{min(head.smallest for head in heads):.3g} to {max(head.largest for head in heads):.3g}",
        f"{min(norms):.3g} to {max(norms):.3g}",
    )


def _as_dict(projection: Projection) -> dict[str, object]:
    return {
        "layer": projection.layer,
        "role": projection.role,
        "name": projection.name,
        "layout": projection.arrangement,
        "heads": projection.num_heads,
        "head_dim": projection.head_dim,
        "width": projection.width,
        "bias": projection.has_bias,
        "dtype": str(projection.weight_rows(0).dtype).removeprefix("torch."),
    }


def _treatment_in(folder: str) -> str | None:
    from oelm.heads.save import OELM_JSON, read_oelm_json

    if not (Path(folder) / OELM_JSON).is_file():
        return None
    try:
        return str(read_oelm_json(folder).treatment)
    except FolderError:  # the heads can be looked at all the same
        return f"unknown, as its {OELM_JSON} cannot be read (oelm audit {folder})"


def _inspect(
    model: str | None, config: str | None, treatment: Treatment, *, spectrum: bool, sentences: list[str] | None
) -> ModelFacts:
    from oelm.cli.quiet import quiet_loading
    from oelm.heads.count import count, freezing_savings
    from oelm.heads.find import find_projections
    from oelm.heads.measure import measure
    from oelm.models.folder import resolve_name
    from oelm.models.load import load_config, load_model, meta_model, replaced_head

    model = None if model is None else resolve_name(model)
    with quiet_loading():
        loaded = load_model(model) if model is not None else meta_model(load_config(config or ""))
    projections = find_projections(loaded)
    spectra, measured_on = spectra_of(loaded, model or "", sentences) if spectrum else (None, "")
    return ModelFacts(
        model=model or config or "",
        class_name=type(loaded).__name__,
        counts=count(loaded),
        treatment=treatment,
        saving=freezing_savings(loaded, treatment),
        projections=projections,
        heads=None if model is None else [head for one in projections for head in measure(one)],
        replaced=replaced_head(loaded),
        treated=None if model is None else _treatment_in(model),
        spectra=spectra,
        measured_on=measured_on,
    )
