"""Every field of `oelm.json`, changed in several ways: all of it is noticed, and a forged checksum helps only where the
weights cannot tell."""

import json
import shutil

import pytest
import torch

import oelm
from heads.test_save import forge
from oelm.heads.audit import _check_geometry, audit_folder
from zoo import FAMILIES

BERT = next(f for f in FAMILIES if f.name == "bert")
TRAINED = 1  # a layer that was unfrozen, trained, and frozen again
FIELDS = ("oelm", "treatment", "seed", "frozen", "unfrozen", "written", "counts")
PARTS = {
    "treatment": (
        "init",
        "scale",
        "blend",
        "carry_bias",
        "keep_orthonormal",
        "freeze",
        "bias",
        "layers",
        "unfreeze",
    ),
    "counts": ("total", "trainable", "buffers", "qk"),
}
SCHEDULE = {"start": 0.5, "end": 1.0, "order": "top-down"}


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """(treated, base), by init: trained in one layer, of which the keys were frozen again."""
    folders = {}
    for init in ("orthogonal", "orthogonalize", "keep"):
        folder = tmp_path_factory.mktemp(init)
        model = BERT.model()
        model.save_pretrained(folder / "base")
        applied = oelm.apply(model, init=init, freeze="qk", seed=2)
        applied.unfreeze(layers=[TRAINED])
        with torch.no_grad():
            for param_slice in applied.slices:
                if param_slice.projection.layer == TRAINED:
                    param_slice.parameter.add_(torch.randn(param_slice.parameter.shape) * 0.1)
        applied.save_pretrained(folder / "treated")
        folders[init] = (folder / "treated", folder / "base")
    return folders


@pytest.fixture
def copied(saved, tmp_path):
    def copy(init):
        treated, base = saved[init]
        shutil.copytree(treated, tmp_path / init, dirs_exist_ok=True)
        return tmp_path / init, base

    return copy


def is_noticed(folder, against=None):
    try:
        return not audit_folder(folder, against=against).ok
    except oelm.OelmError:
        return True


def leaves(data, path=()):
    """Paths to everything in it, objects and lists included."""
    entries = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    for key, value in entries:
        yield (*path, key)
        yield from leaves(value, (*path, key))


def others(value):
    """What could be in its place: another value of its type, and other types."""
    if isinstance(value, bool):
        yield not value
    elif isinstance(value, int):
        yield from (value + 1, value - 1, -value - 1)
    elif isinstance(value, str):
        yield from ("", value[:-1] + ("0" if value[-1:] != "0" else "1"), value.upper() + "x")
    elif isinstance(value, list):
        yield from (value[1:] or ["x"], [*value, "x"], [*value, *value[:1]] if value else ["x", "x"])
    elif isinstance(value, dict):
        yield from ({}, {**value, "x": 1})
    yield from (other for other in (None, True, 7, 1.5, "x", [], {}) if type(other) is not type(value))


def placed(data, path, value):
    *before, last = path
    for key in before:
        data = data[key]
    if value is ...:
        del data[last]
    else:
        data[last] = value


def test_the_fixture_holds_what_it_says(saved):
    for treated, base in saved.values():
        data = json.loads((treated / "oelm.json").read_text())
        assert tuple(data) == ("format", "sha256", *FIELDS)
        assert all(tuple(data[name]) == parts for name, parts in PARTS.items())
        assert len(data["frozen"]) == len(data["unfrozen"]) == len(data["written"]) == 4
        audit_folder(treated).check()
        audit_folder(treated, against=base).check()


def test_every_change_is_noticed(copied):
    """Six of sixty passed the audit: `written` and `counts` were believed."""
    folder, _ = copied("orthogonal")
    path = folder / "oelm.json"
    text = path.read_text()
    tried = 0
    for place in list(leaves(json.loads(text))):
        was = json.loads(text)
        for key in place:
            was = was[key]
        for value in (..., *others(was)):
            data = json.loads(text)
            placed(data, place, value)
            path.write_text(json.dumps(data, indent=2) + "\n")
            with pytest.raises(oelm.FolderError):
                audit_folder(folder)
            with pytest.raises(oelm.FolderError):
                oelm.from_pretrained(folder)
            tried += 1
    for damage in (
        lambda text: text[:-10],
        lambda text: text.replace('"seed": 2', '"seed": 02'),
        lambda text: text * 2,
    ):
        path.write_text(damage(text))
        assert is_noticed(folder)
    assert tried > 200


# With a forged checksum these pass without the base, and why that is so.
HARMLESS = {
    ("oelm",): "the version is only shown",
    ("treatment", "unfreeze"): "a plan for training, which the weights know nothing of",
    ("treatment", "scale"): "any norm may be that of the rows that were replaced, which only the base knows",
    ("treatment", "init"): "any orthonormal rows may be made of some base",
    ("treatment", "bias"): "left out, it is what it was",
    ("treatment", "layers"): "left out, it is what it was",
    ("treatment", "blend"): "any weights may be part of the way from some base",
    ("treatment", "carry_bias"): "left out, it is what it was",
    ("treatment", "keep_orthonormal"): "left out, it is what it was",
    ("written", "bias"): "only the base knows whether a bias was carried, or trained",
}


@pytest.mark.slow
def test_a_forged_checksum_does_not_help_where_the_weights_can_tell(copied):
    """What is drawn is known from the seed: here the audit needs no base."""
    folder, _ = copied("orthogonal")
    path = folder / "oelm.json"
    text = path.read_text()
    content = json.loads(text)
    one_of_each = {name: (*list(content[name])[:2], 0, 1) for name in ("frozen", "unfrozen", "written")}
    passed = {}
    for place in leaves(content):
        if place[0] not in FIELDS or (len(place) > 1 and place[1] not in one_of_each.get(place[0], place)):
            continue
        was = content
        for key in place:
            was = was[key]
        values = [..., *others(was)]
        if place == ("treatment", "init"):
            values += ["keep", "polar", "orthogonalize", "gaussian", "identity"]
        elif place[0] == "treatment":
            values += [SCHEDULE, "match", "none", "q", "train", "first:0.5", [0]]
        for value in values:
            path.write_text(text)
            forge(folder, lambda data, place=place, value=value: placed(data, place, value))
            if not is_noticed(folder):
                is_bias = place[0] == "written" and len(place) > 1 and str(was).endswith("bias")
                passed.setdefault(("written", "bias") if is_bias else place, []).append(value)
    assert passed.keys() == HARMLESS.keys()
    assert set(passed["treatment", "init"]) == {"orthogonalize", "polar"}
    assert passed["treatment", "bias"] == passed["treatment", "layers"] == [...]
    assert passed["written", "bias"] == [...]
    assert set(passed["treatment", "scale"]) == {..., None, "match"}


@pytest.mark.parametrize(
    ("init", "place", "value"),
    [
        ("orthogonal", ("treatment", "init"), "orthogonalize"),
        ("orthogonal", ("treatment", "init"), "polar"),
        ("orthogonal", ("treatment", "scale"), "match"),
        ("orthogonalize", ("treatment", "init"), "polar"),
        ("orthogonalize", ("treatment", "init"), "orthogonalize-global"),
        ("orthogonalize", ("treatment", "scale"), "match"),
        ("orthogonalize", ("written",), []),
        ("keep", ("written",), []),
        ("keep", ("treatment",), {"init": "orthogonalize", "freeze": "qk"}),
    ],
)
def test_what_only_the_base_can_tell_is_noticed_with_it(copied, init, place, value):
    folder, base = copied(init)
    forge(folder, lambda data: placed(data, place, value))
    assert is_noticed(folder, against=base)


@pytest.mark.parametrize("init", ["orthogonal", "orthogonalize", "keep"])
def test_a_tensor_that_was_trained_is_not_called_written(copied, init):
    folder, base = copied(init)
    forge(folder, lambda data: data["written"].append(data["unfrozen"][0]))
    assert is_noticed(folder, against=base)
    assert is_noticed(folder) == (init != "keep"), "what was kept has no other mark than its base"


def test_the_seed_of_a_treatment_that_draws_nothing_is_of_no_use(copied):
    folder, base = copied("orthogonalize")
    forge(folder, lambda data: data.update(seed=3))
    audit_folder(folder, against=base).check()


@pytest.mark.parametrize("value", [0.0, 1e-30])
def test_a_head_without_length_is_a_finding(value):
    """There is no scale to take off it; found by `make torture`, in a file whose hashes had been made to fit."""
    applied = oelm.apply(BERT.model(), init="orthogonalize", freeze="qk")
    weight = next(one for one in applied.slices if one.kind == "weight")
    with torch.no_grad():
        weight.parameter.fill_(value)
    _, findings = _check_geometry([weight], applied.treatment)
    assert {finding.code for finding in findings} == {"WRONG-SCALE", "NOT-ORTHONORMAL"}
