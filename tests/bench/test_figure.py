"""The figures of a bench as files: all that was measured is in them, and the same numbers are the same bytes."""

import json
from xml.etree import ElementTree

import pytest

import made_bench
import tiny_study
from oelm.bench.figure import draw_bench, draw_shapes
from oelm.report.svg import PALETTE
from oelm.study.load import study_from_dict

ARM = "oelm-freeze"


@pytest.fixture
def study():
    return study_from_dict(tiny_study.study("data"))


def parsed(path):
    root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root


def words(root):
    return [element.text for element in root.iter("text")]


def marks(root):
    """Points in the colour of the first arm."""
    return [one for one in root.iter("use") if f"fill: {PALETTE[0]}" in one.get("style", "")]


def test_a_mark_for_every_shape(study, tmp_path):
    path = draw_shapes(study, made_bench.write_shapes(tmp_path, study, (ARM,)))
    assert path == tmp_path / "bench-shapes.svg"
    root = parsed(path)
    measured = json.loads((tmp_path / "bench-shapes.json").read_text())["points"]
    assert len(marks(root)) == len(measured) == 6
    assert {"128", "256", "512", ARM} <= set(words(root))
    assert any("32 tokens" in text for text in words(root))


def test_a_row_for_every_arm(study, tmp_path):
    path = draw_bench(study, made_bench.write_bench(tmp_path, study, {ARM: 0.95}))
    assert path == tmp_path / "bench.svg"
    root = parsed(path)
    assert ARM in words(root)
    colored = [one for one in root.iter() if PALETTE[0] in one.get("style", "") and one.tag in ("use", "path")]
    assert len(colored) >= 8, "four points and four intervals"


def test_the_same_numbers_are_the_same_bytes(study, tmp_path):
    made_bench.write_bench(made_bench.write_shapes(tmp_path, study, (ARM,)), study, {ARM: 0.95})
    for draw in (draw_bench, draw_shapes):
        first = draw(study, tmp_path).read_bytes()
        assert draw(study, tmp_path).read_bytes() == first
    made_bench.write_bench(tmp_path, study, {ARM: 0.97})
    assert draw_bench(study, tmp_path).read_bytes() != first


def test_too_few_rounds_for_an_interval(study, tmp_path):
    made_bench.write_shapes(tmp_path, study, (ARM,))

    def few(data):
        for point in data["points"]:
            point["ratio"] |= {"low": 0.0, "high": None, "rounds": 2}

    whole = len(list(parsed(draw_shapes(study, tmp_path)).iter("path")))
    made_bench.edited(tmp_path, few, name="bench-shapes.json")
    root = parsed(draw_shapes(study, tmp_path))
    assert len(marks(root)) == 6
    assert len(list(root.iter("path"))) == whole - 6


def test_it_is_one_picture_in_one_language(study, tmp_path):
    """What only the page needs is not in a file of its own."""
    text = draw_bench(study, made_bench.write_bench(tmp_path, study, {ARM: 0.95})).read_text(encoding="utf-8")
    assert "data-" not in text
    assert 'fill="#ffffff"' in text
