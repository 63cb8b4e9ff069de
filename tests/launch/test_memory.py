"""Memory by arithmetic: weights to the byte, activations that grow as they do, and a word when it will not fit."""

import copy

import pytest

import tiny_study
from oelm.bench.memory import theoretical_memory
from oelm.data.tasks import task_named
from oelm.launch.memory import estimate_memory
from oelm.launch.plan import plan
from oelm.models.build import build_model
from oelm.study.load import load_study, study_from_dict

SIZES = {"layers": 3, "width": 48, "heads": 4}
XL = ["recipe.model={name: oelm-gpt, preset: gpt2-1600}", "recipe.data.max_length=1024", "recipe.batch.size=512"]


def study(tmp_path, **recipe):
    return study_from_dict(tiny_study.study(tmp_path, **recipe))


def estimate(tmp_path, **recipe):
    return estimate_memory(study(tmp_path, **recipe), device="cpu")


class Vocabulary:
    pad_token_id, eos_token_id = 0, 1

    def __len__(self):
        return 300


@pytest.mark.parametrize("more", [{}, {"qk_norm": True}, {"ffn": 64, "context": 77}])
def test_weights_gradients_and_moments_are_those_of_the_model(tmp_path, more):
    made = study(tmp_path, model={"name": "oelm-gpt", **SIZES, **more})
    recipe = made.recipe
    model = build_model(recipe.model, task=task_named("sst2"), tokenizer=Vocabulary(), max_length=32, seed=0)
    known, found = theoretical_memory(model), estimate_memory(made, device="cpu")
    assert (found.weights, found.gradients) == (known.parameters, known.gradients)
    counters = known.optimizer - found.optimizer  # a number of steps for every tensor
    assert 0 <= counters < 8 * len(list(model.parameters()))


def test_activations_grow_with_batch_and_layers_and_not_with_checkpointing(tmp_path):
    model = {"name": "oelm-gpt", **SIZES, "dropout": 0.0}
    small, wide = (estimate(tmp_path, model=model, batch={"size": size}).activations for size in (8, 16))
    assert wide == 2 * small
    deep = estimate(tmp_path, model={**model, "layers": 30}, batch={"size": 8}).activations
    assert 8 * small < deep < 10 * small
    kept = estimate(tmp_path, model={**model, "layers": 30}, batch={"size": 8}, gradient_checkpointing=True)
    assert kept.activations < deep / 8


def test_what_is_not_known_is_not_estimated(tmp_path):
    assert estimate_memory(load_study("minilm-sst2"), device="cpu") is None


def test_a_plan_says_that_it_will_not_fit(tmp_path, monkeypatch):
    monkeypatch.setattr("oelm.launch.memory.memory_bytes", lambda: 16 * 2**30)
    data = copy.deepcopy(tiny_study.study(tmp_path))
    path = tiny_study.write_study(tmp_path, data)
    fits = plan(load_study(path), out=tmp_path / "runs", measure=False)
    assert fits.memory.fits
    assert "will not fit" not in str(fits)
    large = plan(load_study(path, XL), out=tmp_path / "runs", measure=False)
    assert not large.memory.fits
    assert "this will not fit: 16.00 GiB are there" in str(large)
    assert large.to_dict()["memory"]["fits"] is False
