"""The table that `print(applied)` shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from oelm.table import aligned

if TYPE_CHECKING:
    from oelm.heads.applied import Applied

_COLUMNS = ("", "layers", "heads", "head", "layout", "frozen", "trainable", "total", "share")


def applied_table(applied: Applied) -> str:
    """Per role and in all: layers, heads, layout, and how many weights are frozen and trainable."""
    counts = applied.counts
    rows = [_role_row(applied, role, counts.total) for role in ("q", "k")]
    qk_frozen = sum(region.numel for region in applied.frozen)
    qk = sum(region.numel for region in applied.regions)
    rest = ("other", "", "", "", "", counts.frozen - qk_frozen, counts.trainable - (qk - qk_frozen), counts.total - qk)
    rows.append((*map(_shown, rest), _share(counts.total - qk, counts.total)))
    everything = ("all", "", "", "", "", counts.frozen, counts.trainable, counts.total)
    rows.append((*map(_shown, everything), _share(counts.total, counts.total)))
    title = f"{type(applied.model).__name__}: {applied.treatment}, seed {applied.seed}"
    frozen = f"frozen {counts.frozen:,} of {counts.total:,} weights ({_share(counts.frozen, counts.total)})"
    return "\n".join([title, *aligned([_COLUMNS, *rows], left=("", "head", "layout")), frozen, *_adapters(applied)])


def _adapters(applied: Applied) -> list[str]:
    """An adapter on a frozen projection still changes what it computes; that should not go unnoticed."""
    adapted = {region.projection.role for region in applied.frozen if region.projection.is_adapted}
    if not adapted:
        return []
    roles = " and ".join(role for role in ("q", "k") if role in adapted)
    return [f"adapters on {roles} learn: the base weights are frozen, what they compute with the adapter is not"]


def _role_row(applied: Applied, role: str, total: int) -> tuple[str, ...]:
    regions = [region for region in applied.regions if region.projection.role == role]
    projections = [region.projection for region in regions if region.kind == "weight"]
    numel = sum(region.numel for region in regions)
    frozen = sum(region.numel for region in applied.frozen if region.projection.role == role)
    heads = sorted({projection.num_heads for projection in projections})
    shapes = sorted({f"{projection.head_dim}x{projection.width}" for projection in projections})
    layouts = sorted({projection.arrangement for projection in projections})
    cells = (role, len(projections), _list(heads), _list(shapes), _list(layouts), frozen, numel - frozen, numel)
    return (*map(_shown, cells), _share(numel, total))


def _shown(cell: object) -> str:
    return f"{cell:,}" if isinstance(cell, int) else str(cell)


def _list(values: list[int] | list[str]) -> str:
    return ", ".join(map(str, values))


def _share(part: int, whole: int) -> str:
    return f"{100 * part / whole:.3f} %"
