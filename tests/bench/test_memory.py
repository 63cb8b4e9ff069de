"""Memory: the tensors of a real step are those that theory says, in this process and in a fresh one."""

import os
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch

import oelm
import tiny_study
from oelm.bench import memory
from oelm.bench.memory import checkpoint_bytes, count_memory, measure_peak_memory, theoretical_memory
from oelm.errors import CellError
from oelm.heads.count import freezing_savings
from oelm.study.load import load_study, study_from_dict
from oelm.study.recipe import OptimizerConfig
from oelm.train.optim import make_optimizer
from oelm.treatment import Treatment
from zoo import FAMILIES

pytestmark = pytest.mark.slow

ZOO = {family.name: family for family in FAMILIES}
TREATMENTS = {
    "qk": Treatment(freeze="qk"),
    "k": Treatment(freeze="k"),
    "first half": Treatment(freeze="qk", layers="first:0.5"),
    "biases train": Treatment(freeze="qk", bias="train"),
}


def stepped(name, treatment):
    """(model, with gradients, after the step, optimizer) of one real step."""
    family = ZOO[name]
    model = oelm.apply(family.model(), treatment).model
    optimizer = make_optimizer(model, OptimizerConfig(lr=1e-3))
    family.loss(model).backward()
    before = count_memory(model, optimizer)
    optimizer.step()
    optimizer.zero_grad()
    return model, before, count_memory(model, optimizer), optimizer


@pytest.mark.parametrize("treatment", TREATMENTS.values(), ids=TREATMENTS)
@pytest.mark.parametrize("name", ["oelm-gpt", "llama", "gpt2", "gpt-neox", "bert"])
def test_what_is_held_is_what_theory_says(name, treatment):
    baseline, _, _, all_of_it = stepped(name, Treatment())
    model, before, after, optimizer = stepped(name, treatment)
    expected, without = theoretical_memory(model), theoretical_memory(baseline)
    assert (before.gradients, before.optimizer) == (expected.gradients, 0)
    assert (after.gradients, after.optimizer) == (0, expected.optimizer)
    assert before.parameters == after.parameters == expected.parameters == without.parameters
    frozen = freezing_savings(ZOO[name].model(), treatment)
    assert frozen.memory_bytes == 12 * frozen.frozen
    saved = without.learning - before.gradients - after.optimizer
    counters = 4 * (len(all_of_it.state) - len(optimizer.state))  # Adam counts its steps for every tensor
    assert saved == frozen.memory_bytes + counters
    assert saved >= 0.95 * frozen.memory_bytes


def test_a_checkpoint_is_the_weights_and_the_moments():
    model, _, after, optimizer = stepped("gpt2", TREATMENTS["qk"])
    size = checkpoint_bytes(model, optimizer)
    tied = sum(parameter.nbytes for parameter in model.parameters())
    assert (size.weights, size.optimizer, size.total) == (tied, after.optimizer, tied + after.optimizer)


def test_parameters_that_share_storage_count_once():
    model = ZOO["oelm-gpt"].model()
    assert model.lm_head.weight is model.model.embed_tokens.weight
    assert theoretical_memory(model).parameters == 4 * oelm.apply(model, freeze="none").counts.total


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    return tiny_study.make(tmp_path_factory.mktemp("study"))


@pytest.fixture(scope="module")
def study(path):
    return load_study(path)


@pytest.fixture(scope="module")
def peaks(study):
    with ThreadPoolExecutor(2) as pool:
        arms = ("baseline", "oelm-freeze")
        return dict(zip(arms, pool.map(lambda arm: measure_peak_memory(study, arm, steps=2), arms), strict=True))


def test_the_bytes_of_a_fresh_process(peaks):
    for peak in peaks.values():
        assert peak.steps == 2
        for part in ("parameters", "gradients", "optimizer"):
            assert getattr(peak, part) == getattr(peak.theory, part), part
        assert peak.checkpoint.total == peak.parameters + peak.optimizer
        assert peak.peak >= peak.before > 0
        assert peak.peak >= peak.parameters + peak.learning
        assert 0 <= peak.activations <= peak.peak - peak.before


def test_freezing_saves_what_theory_says(peaks):
    baseline, frozen = peaks["baseline"], peaks["oelm-freeze"]
    weights = 2 * 2 * 128 * 128  # queries and keys of two layers
    assert baseline.learning - frozen.learning == 12 * weights + 4 * 4
    assert baseline.gradients - frozen.gradients == 4 * weights
    assert baseline.parameters == frozen.parameters
    assert baseline.checkpoint.total - frozen.checkpoint.total == 8 * weights + 4 * 4


def test_nothing_is_left_beside_the_study(path, peaks):
    assert sorted(file.name for file in path.parent.iterdir()) == ["data", "tiny.yaml"]


def test_what_is_wrong_with_the_arm_is_said(study, forked_python):
    with pytest.raises(CellError, match="there is no arm 'oelm-frezze'; did you mean 'oelm-freeze'"):
        measure_peak_memory(study, "oelm-frezze")


def test_data_that_are_not_there(tmp_path, forked_python):
    study = study_from_dict(tiny_study.study(tmp_path / "nowhere"))
    with pytest.raises(CellError, match=r"the memory of arm 'baseline' could not be measured(.*\n)*.*nowhere"):
        measure_peak_memory(study, "baseline")


@pytest.mark.parametrize(
    ("does", "said"),
    [
        ("echo 'noise' >&2; kill -9 $$", r"was ended by SIGKILL, as it is when memory is full\n.*noise"),
        ("echo Traceback >&2; echo 'RuntimeError: no room' >&2; exit 1", r"ended with code 1\n.*why +RuntimeError"),
        ("echo 'no json'", "ended with code 0"),
    ],
)
def test_a_process_that_dies_is_told_of(study, tmp_path, monkeypatch, does, said):
    fake = tmp_path / "python"
    fake.write_text(f"#!/bin/sh\n{does}\n")
    fake.chmod(0o755)
    monkeypatch.setattr(memory.sys, "executable", os.fspath(fake))
    with pytest.raises(CellError, match=said):
        measure_peak_memory(study, "baseline")


def test_a_plain_optimizer_needs_less():
    """What is held is looked at, not assumed."""
    model = ZOO["bert"].model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    ZOO["bert"].loss(model).backward()
    optimizer.step()
    assert count_memory(model, optimizer).optimizer == 0
    assert count_memory(model, optimizer).gradients == theoretical_memory(model).gradients
