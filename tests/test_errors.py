"""Errors: one base, which no `except ValueError` takes for its own."""

from contextlib import suppress

import pytest
from torch import nn

import oelm
import tiny_study
from oelm.bench.flops import work_of
from oelm.errors import DiskError, OelmError, Stopped
from oelm.runs import lease
from zoo import FAMILIES


def subclasses(kind: type) -> list[type]:
    return [found for child in kind.__subclasses__() for found in (child, *subclasses(child))]


def test_no_error_of_ours_is_a_value_error():
    kinds = subclasses(OelmError)
    assert {Stopped, DiskError, lease.LeaseLost, oelm.TreatmentError} <= set(kinds)
    assert [kind for kind in (OelmError, *kinds) if issubclass(kind, ValueError)] == []
    assert [kind for kind in kinds if kind.__name__.startswith("_")] == [], "commands print the name"


def test_a_sweep_that_skips_bad_values_does_not_go_on_without_a_disk(tmp_path):
    """What is skipped is a value that torch or transformers does not take."""
    study = oelm.load_study(tiny_study.make(tmp_path))
    (tmp_path / "runs").write_text("a file, not a folder")

    def sweep() -> None:
        for _ in range(2):
            with suppress(ValueError):
                oelm.run(study, out=tmp_path / "runs")

    with pytest.raises(DiskError, match="in the way"):
        sweep()


def test_a_model_that_refuses_its_input_is_one_thing_and_a_stop_is_another():
    model = next(family for family in FAMILIES if family.name == "gpt2").model()

    def stop(module: nn.Module, args: object) -> None:
        raise Stopped("stopped", signal=15)

    model.register_forward_pre_hook(stop)
    with pytest.raises(Stopped):
        work_of(model, batch=1, length=4)
