"""A revision in the recipe is the one that is asked for."""

import pytest

import tiny_study
from oelm.models import folder
from oelm.study.load import study_from_dict
from oelm.train import cell
from oelm.train.progress import Progress


class Asked(Exception):
    pass


@pytest.mark.parametrize(
    ("tokenizer", "asked"),
    [
        (None, ("some/model", "b" * 40)),
        ({"name": "some/tokenizer", "revision": "c" * 40}, ("some/tokenizer", "c" * 40)),
        ({"name": "some/tokenizer"}, ("some/tokenizer", None)),
        ({"name": "minilm-l6"}, ("/packaged", None)),
    ],
)
def test_the_revision_of_a_tokenizer(tmp_path, monkeypatch, tokenizer, asked):
    def load(name, *, revision):
        raise Asked(name, revision)

    monkeypatch.setattr(cell, "load_tokenizer", load)
    monkeypatch.setattr(folder, "resolve_name", lambda name: "/packaged" if name == "minilm-l6" else name)
    content = tiny_study.study(tiny_study.write_data(tmp_path), model={"name": "some/model", "revision": "b" * 40})
    content["recipe"]["data"]["tokenizer"] = tokenizer
    with pytest.raises(Asked) as found:
        cell.load_data(study_from_dict(content).recipe, Progress())
    assert found.value.args == asked
