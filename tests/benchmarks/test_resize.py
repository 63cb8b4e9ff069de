"""Another width: the same family, layers, vocabulary and size of a head, and everything in a layer follows."""

from pathlib import Path

import pytest
import torch

from oelm.errors import ModelError, StudyError
from oelm.heads.find import find_projections
from zoo import FAMILIES

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
with pytest.MonkeyPatch.context() as patch:  # not for longer: its names are not for the other tests
    patch.syspath_prepend(BENCHMARKS)
    from resize import config_width, meta_model, resize_config, width_step

MAIN = ["oelm-gpt", "bert", "gpt2", "distilbert", "llama"]
OTHERS = ["gpt-neox", "modernbert", "albert", "deberta-v2", "qwen3", "falcon-new"]  # a way each to name its sizes


def model_of(name):
    return next(family for family in FAMILIES if family.name == name).model()


@pytest.mark.parametrize("name", [*MAIN, *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_heads_layers_and_layout(name):
    model = model_of(name)
    own, step = config_width(model), width_step(model)
    for width in (step, own + step, 2 * own):
        other = meta_model(type(model), resize_config(model, width))
        assert type(other) is type(model)
        before, after = find_projections(model), find_projections(other)
        for one, two in zip(before, after, strict=True):
            assert (two.head_dim, two.width) == (one.head_dim, width)
            assert two.num_heads * own == one.num_heads * width
            assert two.arrangement == one.arrangement
        shapes = {path: parameter.shape for path, parameter in model.named_parameters()}
        for path, parameter in other.named_parameters():
            for size, was in zip(parameter.shape, shapes.pop(path), strict=True):
                assert size == was or abs(size - was * width / own) < 1, path
        assert not shapes
        assert other.config.vocab_size == model.config.vocab_size
    assert config_width(model) == own, "the model itself is left as it was"


def test_the_feed_forward_width_follows():
    """GPT-2 may say none of its own, which means four times the width."""
    assert resize_config(model_of("bert"), 48).intermediate_size == 64
    assert resize_config(model_of("distilbert"), 48).hidden_dim == 64
    gpt2 = model_of("gpt2")
    assert resize_config(gpt2, 48).n_inner == 64
    whole = type(gpt2)(type(gpt2.config)(**{**gpt2.config.to_dict(), "n_inner": None}))
    other = resize_config(whole, 48)
    assert other.n_inner is None
    assert meta_model(type(gpt2), other).transformer.h[0].mlp.c_fc.weight.shape == (48, 192)


def test_groups_of_heads_stay_as_large():
    llama = model_of("llama")
    assert width_step(llama) == 24
    config = resize_config(llama, 72)
    assert (config.num_attention_heads, config.num_key_value_heads, config.head_dim) == (9, 3, 8)


@pytest.mark.parametrize("name", MAIN)
def test_a_resized_model_runs(name):
    model = model_of(name)
    other = type(model)(resize_config(model, 2 * config_width(model)))
    out = other(torch.arange(12).view(2, 6) % 60 + 3).logits
    assert torch.isfinite(out).all()


def test_its_own_width_is_its_own_configuration():
    model = model_of("bart")
    assert resize_config(model, config_width(model)).to_dict() == model.config.to_dict()


@pytest.mark.parametrize(("name", "told"), [("bart", "heads do not follow"), ("falcon-multi-query", "heads do not")])
def test_families_that_have_no_one_width_are_refused(name, told):
    model = model_of(name)
    with pytest.raises(ModelError, match=told) as error:
        resize_config(model, 2 * config_width(model))
    assert "cannot be made in another width" in str(error.value)


def test_a_layer_that_does_not_follow_is_refused():
    """A family with a name for its feed-forward width that nobody here knows."""
    model = model_of("bert")

    class Stubborn(type(model)):
        def __init__(self, config):
            config.intermediate_size = 32
            super().__init__(config)

    with pytest.raises(ModelError, match="not all that is in its layers"):
        resize_config(Stubborn(model.config), 48)


@pytest.mark.parametrize("width", [5, 25, 50])
def test_a_width_between_heads_is_refused(width):
    with pytest.raises(StudyError, match=f"{width} is not a multiple of 6") as error:
        resize_config(model_of("bert"), width)
    assert "--widths 12,24,48" in str(error.value)
