"""The spectrum of a head is that of its form, and what a treatment would move is what it moves."""

import math

import pytest
import torch

import oelm
import zoo
from oelm.errors import ModelError
from oelm.facts import HeadSpectrum
from oelm.heads import spectrum
from oelm.heads.attention import attention_maps, divergences
from oelm.heads.find import find_projections
from oelm.heads.spectrum import TREATMENTS, measure_spectra
from oelm.treatment import Treatment
from zoo import attentive

FAMILIES = {family.name: family for family in zoo.FAMILIES}


def own_divergence(before, after):
    """Of a model's own maps, head by head."""
    terms = (before * (before.log() - after.log())).nan_to_num(0.0)
    return terms.sum(-1).mean((0, 2))


@pytest.mark.parametrize("name", ["bert", "gpt2", "oelm-gpt", "oelm-gpt-qk-norm"])
def test_the_divergence_is_that_of_the_models_own_maps(name):
    family = FAMILIES[name]
    model = attentive(family).eval()
    with torch.no_grad():
        before, maps = family.maps(model), attention_maps(model, family.batch())
        oelm.apply(model, init="orthogonalize", scale="unit")
        after = family.maps(model)
    found = divergences(maps, attention_maps(model, family.batch()))
    for mine, old, new in zip(found, before, after, strict=True):
        torch.testing.assert_close(mine.mean(1).float(), own_divergence(old, new), rtol=1e-3, atol=1e-5)
    assert all(torch.equal(one, torch.zeros_like(one)) for one in divergences(maps, maps))


def test_padding_has_no_part_in_it():
    family = FAMILIES["bert"]
    model = attentive(family).eval()
    tokens = torch.randint(3, zoo.VOCAB, (1, 4), generator=torch.Generator().manual_seed(1))
    padded = {"input_ids": torch.cat([tokens, tokens], 1), "attention_mask": torch.tensor([[1] * 4 + [0] * 4])}
    plain = {"input_ids": tokens}
    before = [attention_maps(model, inputs) for inputs in (plain, padded)]
    oelm.apply(model, init="orthogonalize")
    short, long = (
        divergences(old, attention_maps(model, inputs)) for old, inputs in zip(before, (plain, padded), strict=True)
    )
    for one, other in zip(short, long, strict=True):
        assert one.shape == other.shape == (4, 4)
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


@pytest.mark.parametrize("name", ["bert", "llama"])
def test_the_spectrum_is_that_of_the_form(name):
    family = FAMILIES[name]
    model = attentive(family)
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    spectra = measure_spectra(model, [family.batch()])
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items()), "it is restored"
    query, key = find_projections(model)[:2]
    each = query.num_heads // key.num_heads
    for one in spectra.heads[: query.num_heads]:
        form = query.weight_rows(one.head).double().mT @ key.weight_rows(one.head // each).double()
        values = torch.linalg.svdvals(form)[: query.head_dim]
        assert one.spectrum == pytest.approx(values.tolist(), rel=1e-4)
        assert 1 <= one.rank <= query.head_dim
    assert [(one.layer, one.head) for one in spectra.heads] == [
        (layer, head) for layer in (0, 1) for head in range(query.num_heads)
    ]


def test_what_does_not_exist_says_why_and_the_rest_is_measured():
    llama = measure_spectra(attentive(FAMILIES["llama"]), [FAMILIES["llama"].batch()])
    assert set(llama.refused) == {"frames unit", "frames match"}
    assert all("rotary" in reason for reason in llama.refused.values())
    assert all(one.kl["unit"] > 0 for one in llama.heads)
    albert = measure_spectra(attentive(FAMILIES["albert"]), [FAMILIES["albert"].batch()])
    assert all(one.kl["unit"] is None for one in albert.heads), "a layer that is used twice has no one map"


def test_frames_with_their_spectrum_move_nothing(monkeypatch):
    family = FAMILIES["bert"]
    monkeypatch.setattr(spectrum, "TREATMENTS", {**TREATMENTS, "kept": Treatment(init="frames")})
    heads = measure_spectra(attentive(family), [family.batch()]).heads
    assert max(one.kl["kept"] for one in heads) < 1e-6
    assert min(one.kl["frames match"] for one in heads) > 1e-3


def test_the_effective_rank():
    def rank(*values):
        return HeadSpectrum(layer=0, head=0, spectrum=values, deviation=0.0, kl={}).rank

    assert rank(2.0, 2.0, 2.0) == pytest.approx(3)
    assert rank(1.0, 0.0, 0.0) == pytest.approx(1)
    assert rank(0.0, 0.0) == 0
    assert rank(math.sqrt(3), 1.0) == pytest.approx(16 / 10)


def test_weights_that_are_not_numbers_are_refused():
    model = FAMILIES["bert"].model()
    with torch.no_grad():
        find_projections(model)[0].weight_rows(0).fill_(torch.nan)
    with pytest.raises(ModelError, match="NaN"):
        measure_spectra(model, [FAMILIES["bert"].batch()])
