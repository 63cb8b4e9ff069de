"""`oelm inspect`: where a model keeps its queries and keys, and what a treatment would freeze and save."""

import json
from typing import Annotated, Any

import typer

from oelm.errors import FolderError
from oelm.format import format_columns
from oelm.treatment import Treatment


def inspect(
    model: Annotated[str | None, typer.Argument(help="Folder of a saved model, or hub name")] = None,
    config: Annotated[
        str | None, typer.Option(help="Config to inspect without weights: config.json, folder or hub name")
    ] = None,
    freeze: Annotated[str, typer.Option(help="What to freeze: none, q, k, qk")] = "qk",
    layers: Annotated[str, typer.Option(help="Layers, e.g. all, 0-5, first:0.5, last:0.25")] = "all",
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON")] = False,
) -> None:
    """Show the heads of a model, and what a treatment would freeze and save"""
    if (model is None) == (config is None):
        raise FolderError("say which model: `oelm inspect MODEL`, or `oelm inspect --config FILE` without weights")
    treatment = Treatment.from_dict({"freeze": freeze, "layers": layers})
    facts = _facts(model, config, treatment)
    if as_json:
        typer.echo(json.dumps(facts, indent=2))
    else:
        _show(facts)


def _facts(model: str | None, config: str | None, treatment: Treatment) -> dict[str, Any]:
    from oelm.cli.quiet import quiet_loading
    from oelm.heads.count import count, freezing_savings
    from oelm.heads.find import find_projections
    from oelm.heads.measure import measure
    from oelm.models.load import load_config, load_model, meta_model

    with quiet_loading():
        loaded = load_model(model) if model is not None else meta_model(load_config(config or ""))
    projections = find_projections(loaded)
    return {
        "model": model or config,
        "class": type(loaded).__name__,
        "weights": model is not None,
        "counts": count(loaded).to_dict(),
        "treatment": treatment.to_dict(),
        "saving": freezing_savings(loaded, treatment).to_dict(),
        "projections": [
            {
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
            for projection in projections
        ],
        "orthonormality": (
            [row.to_dict() for projection in projections for row in measure(projection)] if model is not None else None
        ),
    }


def _show(facts: dict[str, Any]) -> None:
    counts, save, treatment = facts["counts"], facts["saving"], facts["treatment"]
    weights = "" if facts["weights"] else ", without weights"
    typer.echo(f"{facts['class']}  {facts['model']}{weights}")
    typer.echo(
        f"{counts['total']:,} weights, {counts['qk']:,} of them Q/K ({100 * counts['qk'] / counts['total']:.3f} %), "
        f"{counts['buffers']:,} in buffers\n"
    )
    typer.echo("\n".join(format_columns(_rows(facts), left=("", "head", "layout", "name"))))
    typer.echo(
        f"\nfreeze {treatment['freeze']}, layers {treatment['layers']}: {save['frozen']:,} weights frozen "
        f"({100 * save['frozen'] / counts['total']:.3f} %), {counts['total'] - save['frozen']:,} trainable;\n"
        f"saves {save['memory_bytes'] / 2**20:,.1f} MiB of gradients and Adam moments, and at most "
        f"{100 * save['linear_work']:.2f} % of the work in linear layers"
    )


def _rows(facts: dict[str, Any]) -> list[tuple[str, ...]]:
    measured: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for row in facts["orthonormality"] or []:
        measured.setdefault((row["layer"], row["role"]), []).append(row)
    columns = ("max |WW'-I|", "singular values", "norm") if measured else ()
    rows = [("layer", "", "heads", "head", "layout", *columns, "name")]
    for projection in facts["projections"]:
        cells = [
            str(projection["layer"]),
            projection["role"],
            str(projection["heads"]),
            f"{projection['head_dim']}x{projection['width']}",
            projection["layout"],
        ]
        if measured:
            heads = measured[projection["layer"], projection["role"]]
            norms = [head["norm"] for head in heads]
            cells += [
                f"{max(head['deviation'] for head in heads):.1e}",
                f"{min(head['smallest'] for head in heads):.3g} to {max(head['largest'] for head in heads):.3g}",
                f"{min(norms):.3g} to {max(norms):.3g}",
            ]
        rows.append((*cells, projection["name"]))
    return rows
