"""Optimiser: what decays, and what has a place in it."""

from torch import nn

from oelm.study.recipe import Optimizer
from oelm.train.optim import make_optimizer


def model():
    return nn.ModuleDict({"embed": nn.Embedding(5, 4), "linear": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})


def groups_of(model, recipe):
    """Names of the parameters by their decay."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = make_optimizer(model, recipe).param_groups
    return {group["weight_decay"]: {names[p] for p in group["params"]} for group in groups}


def test_matrices_decay_and_vectors_do_not():
    groups = groups_of(model(), Optimizer(lr=1e-3, weight_decay=0.1))
    vectors = {"linear.bias", "norm.weight", "norm.bias"}
    assert groups == {0.1: {"embed.weight", "linear.weight"}, 0.0: vectors}


def test_all_decay_when_asked():
    assert set(map(len, groups_of(model(), Optimizer(lr=1e-3, weight_decay=0.1, decay="all")).values())) == {5}


def test_what_is_frozen_has_no_place():
    frozen = model()
    frozen["linear"].weight.requires_grad_(False)
    frozen["embed"].weight.requires_grad_(False)
    assert groups_of(frozen, Optimizer(lr=1e-3)) == {0.0: {"linear.bias", "norm.weight", "norm.bias"}}


def test_settings_arrive():
    optimizer = make_optimizer(model(), Optimizer(lr=3e-4, betas=(0.8, 0.9), eps=1e-6))
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.8, 0.9), 1e-6)
