"""The figure of the shapes as a file: all that was measured is in it, and only of the study as it is."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import tiny_study
from drawn import parsed, words
from made_bench import LOAD, edited, ratio
from made_runs import PROVENANCE
from oelm.errors import CellError, StudyError
from oelm.report.figures.palette import PALETTE
from oelm.runs.bench import ArmTiming
from oelm.study.cells import Cell, resolve_cell
from oelm.study.load import study_from_dict
from oelm.study.study import Study

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # not for longer: its names are not for the other tests
    patch.syspath_prepend(BENCHMARKS)
    from shape_figure import draw_shapes, plot_shapes
    from shapes_file import SHAPES_FILE, Shape, Shapes, ShapeTiming

ARM = "oelm-freeze"


@pytest.fixture
def study():
    return study_from_dict(tiny_study.study("data"))


def timing(median: float, *, ceiling: float, width: int, length: int, batch: int) -> ShapeTiming:
    base = ArmTiming(step_seconds=1.0, outliers=0, ratios={})
    arm = replace(base, ratios={"step": ratio(median)}, ceiling=ceiling, at_most=0.08)
    shape = Shape(width=width, length=length, batch=batch)
    return ShapeTiming(shape=shape, layers=2, rounds=64, stopped_by="precision", arms={"baseline": base, ARM: arm})


def write_shapes(folder: Path, study: Study, /, **parts: Any) -> Path:
    """A saving that grows with the width towards the ceiling."""
    found = Shapes(
        study=study.name,
        against=study.compare.baseline,
        seed=0,
        precision=0.01,
        seconds=60.0,
        stopped="done",
        points=tuple(
            timing(1 - 0.005 * doublings, ceiling=0.0055 * doublings, width=2**doublings, length=length, batch=batch)
            for doublings in (7, 8, 9)
            for length, batch in ((32, 8), (128, 32))
        ),
        excluded=(),
        spec={name: resolve_cell(study, Cell(arm=name, seed=study.seeds[0])) for name in study.arms},
        system=LOAD,
        warnings=(),
        provenance=PROVENANCE,
    )
    SHAPES_FILE.write(folder, replace(found, **parts))
    return folder


def marks(root):
    """Points in the color of the first arm."""
    return [one for one in root.iter("use") if f"fill: {PALETTE[0]}" in one.get("style", "")]


def test_a_mark_for_every_shape(study, tmp_path):
    path = draw_shapes(study, write_shapes(tmp_path, study))
    assert path == tmp_path / "bench-shapes.svg"
    root = parsed(path)
    measured = json.loads((tmp_path / "bench-shapes.json").read_text())["points"]
    assert len(marks(root)) == len(measured) == 6
    assert {"128", "256", "512", ARM} <= set(words(root))
    assert any("32 tokens" in text for text in words(root))


def test_too_few_rounds_for_an_interval(study, tmp_path):
    write_shapes(tmp_path, study)

    def few(data):
        for point in data["points"]:
            point["arms"][ARM]["ratios"]["step"] |= {"low": 0.0, "high": None, "rounds": 2}

    whole = len(list(parsed(draw_shapes(study, tmp_path)).iter("path")))
    edited(tmp_path, few, name="bench-shapes.json")
    root = parsed(draw_shapes(study, tmp_path))
    assert len(marks(root)) == 6
    assert len(list(root.iter("path"))) == whole - 6


def test_the_same_numbers_are_the_same_bytes(study, tmp_path):
    write_shapes(tmp_path, study)
    first = draw_shapes(study, tmp_path).read_bytes()
    assert draw_shapes(study, tmp_path).read_bytes() == first


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("treatment/freeze", "q", "treatment.freeze: was 'q', is "),
        ("recipe/model/preset", "mini-256", "recipe.model.preset: was 'mini-256'"),  # it has other layers too
        ("recipe/max_grad_norm", 0.5, "recipe.max_grad_norm: was 0.5, is 1.0"),
        ("recipe/precision", "bf16", "recipe.precision: was 'bf16', is 'fp32'"),
        ("recipe/compile", True, "recipe.compile: was True, is False"),
        ("recipe/gradient_checkpointing", True, "recipe.gradient_checkpointing: was True"),
        ("recipe/batch/accumulate", 4, "recipe.batch.accumulate: was 4, is 1"),
        ("recipe/data/tokenizer/vocab", 400, "recipe.data.tokenizer.vocab: was 400, is 300"),
        ("recipe/batch/size", 8, None),  # a shape has its own
        ("recipe/data/max_length", 512, None),
        ("recipe/optimizer/lr", 1.0, None),
        ("recipe/data/path", "elsewhere", None),
    ],
)
@pytest.mark.parametrize("arm", [ARM, "baseline"])
def test_shapes_of_a_study_that_was_changed_since_are_refused(study, tmp_path, arm, path, value, message):
    def change(data):
        *parents, last = path.split("/")
        inner = data["spec"][arm]
        for part in parents:
            inner = inner[part]
        inner[last] = value

    edited(write_shapes(tmp_path, study), change, name=SHAPES_FILE.name)
    if message is None:
        assert draw_shapes(study, tmp_path).exists()
        return
    with pytest.raises(StudyError, match=f"changed since {arm} was timed") as error:
        draw_shapes(study, tmp_path)
    assert message in str(error.value)


def test_shapes_of_another_study_are_refused(study, tmp_path):
    with pytest.raises(StudyError, match="another study, x"):
        draw_shapes(study, write_shapes(tmp_path, study, study="x"))
    with pytest.raises(StudyError, match="measured against oelm-freeze; the study compares with baseline"):
        draw_shapes(study, write_shapes(tmp_path, study, against=ARM))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: "{half", "is damaged"),
        (lambda text: text.replace('"format": 2', '"format": 3'), "has format 3"),
        (lambda text: text.replace('"spec": {', '"made": {'), "spec"),
        (lambda text: text.replace('"spec": {"baseline"', '"spec": {"other"'), "spec of arm 'baseline'"),
        (lambda text: text.replace('"width": 128', '"width": -1', 1), "points.0.shape.width"),
    ],
)
def test_a_damaged_file_is_one_message(study, tmp_path, change, message):
    path = write_shapes(tmp_path, study) / SHAPES_FILE.name
    path.write_text(change(json.dumps(json.loads(path.read_text()))))
    with pytest.raises(CellError, match=message):
        draw_shapes(study, tmp_path)


def test_more_shapes_than_can_be_told_apart_are_counted(study):
    points = [timing(0.97, ceiling=0.04, width=64, length=length, batch=8) for length in range(1, 15)]
    svg, caption = plot_shapes(study, points)
    assert svg.count(">oelm-freeze, width 64, ") + svg.count('"oelm-freeze, width 64, ') >= 11
    assert "Not drawn for lack of space: 3 more." in caption
