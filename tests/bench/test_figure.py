"""The figure of a bench as a file: all that was measured is in it, and the same numbers are the same bytes."""

import pytest

import made_bench
import tiny_study
from drawn import parsed, words
from oelm.report.figures.palette import PALETTE
from oelm.report.figures.timed import draw_bench
from oelm.study.load import study_from_dict

ARM = "oelm-freeze"


@pytest.fixture
def study():
    return study_from_dict(tiny_study.study("data"))


def test_a_row_for_every_arm(study, tmp_path):
    path = draw_bench(study, made_bench.write_bench(tmp_path, study, {ARM: 0.95}))
    assert path == tmp_path / "bench.svg"
    root = parsed(path)
    assert ARM in words(root)
    colored = [one for one in root.iter() if PALETTE[0] in one.get("style", "") and one.tag in ("use", "path")]
    assert len(colored) >= 8, "four points and four intervals"


def test_the_same_numbers_are_the_same_bytes(study, tmp_path):
    made_bench.write_bench(tmp_path, study, {ARM: 0.95})
    first = draw_bench(study, tmp_path).read_bytes()
    assert draw_bench(study, tmp_path).read_bytes() == first
    made_bench.write_bench(tmp_path, study, {ARM: 0.97})
    assert draw_bench(study, tmp_path).read_bytes() != first


def test_it_is_one_picture_in_one_language(study, tmp_path):
    """What only the page needs is not in a file of its own."""
    text = draw_bench(study, made_bench.write_bench(tmp_path, study, {ARM: 0.95})).read_text(encoding="utf-8")
    assert "data-" not in text
    assert 'fill="#ffffff"' in text
