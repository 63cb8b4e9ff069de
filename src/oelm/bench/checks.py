"""What a bench may be asked for. Whatever cannot be measured is refused before anything is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from oelm.analysis.timed import OF_A_STEP
from oelm.errors import CellError, StudyError, did_you_mean
from oelm.records.store import writing
from oelm.study.plan import restricted
from oelm.study.study import Study

_DEVICE = "ACCELERATE_TORCH_DEVICE"  # the one way to ask for a device: Accelerate's own


def chosen_arms(study: Study, arms: Sequence[str] | None) -> Study:
    """The study with these arms alone, and the one that all are compared with."""
    names = list(study.arms) if arms is None else list(dict.fromkeys([study.compare.against, *arms]))
    for name in names:
        if name not in study.arms:
            close = did_you_mean(name, study.arms)
            raise StudyError(f"the study has no arm '{name}'{close}", hint=f"one of {', '.join(study.arms)}")
    return restricted(study, arms=names)


def check_asked(study: Study, *, precision: float, budget: float) -> None:
    if len(study.arms) < 2:
        raise StudyError(f"one arm, '{study.compare.against}', cannot be compared", hint="--arms with another one")
    if not 0 < precision < 1:
        raise StudyError(f"a precision of {precision:g} is not between 0 and 1", hint="--precision 0.01")
    if not budget > 0:
        raise StudyError(f"a budget of {budget:g} s is no time", hint="--budget 5m")
    _check_device()
    for arm in study.arms.values():
        other = [path for path in arm.changes if path.split(".")[0] in OF_A_STEP]
        if other:
            raise StudyError(
                f"arm '{arm.name}' is of another shape",
                where=f"arms.{arm.name}.changes.{other[0]}",
                why="its steps would be compared with those of another model, batch, clipping or precision",
            )


def _check_device() -> None:
    """Accelerate takes a device by its word, and fails at the first tensor."""
    asked = os.environ.get(_DEVICE)
    try:
        torch.empty(0, device=asked)
    except (RuntimeError, AssertionError) as error:
        raise CellError(
            f"there is no device '{asked}' here",
            where=_DEVICE,
            why=str(error).partition("\n")[0],
            hint=f"unset {_DEVICE} takes the GPU if there is one, and else the CPU",
        ) from error


def check_place(folder: Path) -> None:
    """Before minutes of measuring, whether they can be written down afterwards. Nothing is left there."""
    with writing(folder):
        there = next(place for place in (folder, *folder.absolute().parents) if place.exists())
        tempfile.TemporaryFile(dir=there).close()
