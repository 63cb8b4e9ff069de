"""Optimizers by name: what decays, what is in a group, what is kept, and that a stop cannot be seen in the result."""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import nn

import oelm
import tiny_study
import zoo
from oelm.bench.memory import count_memory, theoretical_memory
from oelm.errors import CellError, ModelError, Stopped, StudyError, TreatmentError
from oelm.study import optimizers
from oelm.study.load import study_from_dict
from oelm.study.recipe import OptimizerConfig
from oelm.train.checkpoint import group_values, load_group_values_, load_optimizer_, optimizer_tensors
from oelm.train.optim import MuonAdamW, make_optimizer, optimizer_state_bytes
from running import StopsAt, run_cell

FAMILIES = {family.name: family for family in zoo.FAMILIES}
BUILT_IN = ("adamw", "adam", "sgd", "adafactor", "muon")
CONFIGS = {
    "adamw": OptimizerConfig(lr=1e-2),
    "adam": OptimizerConfig(name="adam", lr=1e-2),
    "sgd": OptimizerConfig(name="sgd", lr=1e-2),
    "sgd-momentum": OptimizerConfig(name="sgd", lr=1e-2, options={"momentum": 0.9, "nesterov": True}),
    "adafactor": OptimizerConfig(name="adafactor", lr=1e-2),
    "muon": OptimizerConfig(name="muon", lr=1e-2),
}


class Blocks(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(5, 4)
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)) for _ in range(2))
        self.head = nn.Linear(4, 3)

    def forward(self, tokens):
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)


def model():
    return nn.ModuleDict({"embed": nn.Embedding(5, 4), "linear": nn.Linear(4, 4), "norm": nn.LayerNorm(4)})


def groups_of(model, recipe):
    """Names of the parameters by their decay."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    groups = make_optimizer(model, recipe).param_groups
    return {group["weight_decay"]: {names[p] for p in group["params"]} for group in groups}


def step(model, optimizer, number):
    tokens = torch.tensor([number % 5, 1, 2])
    nn.functional.cross_entropy(model(tokens), tokens % 3).backward()
    optimizer.step()
    optimizer.zero_grad()


@pytest.fixture
def own_optimizers() -> Iterator[None]:
    """Those that a test registers are forgotten after it."""
    before = dict(optimizers.OPTIMIZERS)
    yield
    optimizers.OPTIMIZERS.clear()
    optimizers.OPTIMIZERS.update(before)


def test_matrices_decay_and_vectors_do_not():
    groups = groups_of(model(), OptimizerConfig(lr=1e-3, weight_decay=0.1))
    vectors = {"linear.bias", "norm.weight", "norm.bias"}
    assert groups == {0.1: {"embed.weight", "linear.weight"}, 0.0: vectors}


def test_all_decay_when_asked():
    config = OptimizerConfig(lr=1e-3, weight_decay=0.1, weight_decay_on="all")
    assert set(map(len, groups_of(model(), config).values())) == {5}


def test_settings_arrive():
    optimizer = make_optimizer(model(), OptimizerConfig(lr=3e-4, betas=(0.8, 0.9), eps=1e-6))
    for group in optimizer.param_groups:
        assert (group["lr"], group["betas"], group["eps"]) == (3e-4, (0.8, 0.9), 1e-6)


def test_options_arrive():
    sgd = make_optimizer(Blocks(), CONFIGS["sgd-momentum"])
    assert all((group["momentum"], group["nesterov"]) == (0.9, True) for group in sgd.param_groups)
    muon = make_optimizer(Blocks(), OptimizerConfig(name="muon", lr=1e-3, options={"ns_steps": 3, "momentum": 0.5}))
    first = muon.param_groups[0]
    assert (first["ns_steps"], first["momentum"], first["adjust_lr_fn"]) == (3, 0.5, "match_rms_adamw")


def test_what_is_frozen_is_in_no_group():
    frozen = model()
    frozen["linear"].weight.requires_grad_(False)
    frozen["embed"].weight.requires_grad_(False)
    assert groups_of(frozen, OptimizerConfig(lr=1e-3)) == {0.0: {"linear.bias", "norm.weight", "norm.bias"}}


@pytest.mark.parametrize("name", CONFIGS)
def test_each_trains_what_learns_and_nothing_else(name):
    torch.manual_seed(0)
    trained = Blocks()
    trained.layers[0][0].weight.requires_grad_(False)
    before = {name: parameter.detach().clone() for name, parameter in trained.named_parameters()}
    optimizer = make_optimizer(trained, CONFIGS[name])
    grouped = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    assert {id(p) for p in grouped} == {id(p) for p in trained.parameters() if p.requires_grad}
    assert len(grouped) == len({id(p) for p in grouped}), "each is in one group"
    for number in range(3):
        step(trained, optimizer, number)
    moved = {name for name, p in trained.named_parameters() if not torch.equal(p, before[name])}
    assert moved == set(before) - {"layers.0.0.weight"}
    assert trained.layers[0][0].weight not in optimizer.state


def test_muon_has_the_matrices_of_the_blocks_and_adamw_the_rest():
    trained = Blocks()
    optimizer = make_optimizer(trained, CONFIGS["muon"])
    assert isinstance(optimizer, MuonAdamW)
    names = {parameter: name for name, parameter in trained.named_parameters()}
    muon = {names[p] for group in optimizer.muon.param_groups for p in group["params"]}
    assert muon == {"layers.0.0.weight", "layers.1.0.weight"}
    step(trained, optimizer, 0)
    assert set(optimizer.state[trained.layers[0][0].weight]) == {"momentum_buffer"}
    assert set(optimizer.state[trained.embed.weight]) == {"step", "exp_avg", "exp_avg_sq"}
    assert optimizer.muon.state is optimizer.state
    with pytest.raises(ModelError, match="Muon has nothing to train"):
        make_optimizer(model(), CONFIGS["muon"])


def test_muon_survives_its_own_state_dict():
    torch.manual_seed(0)
    one = Blocks()
    optimizer = make_optimizer(one, CONFIGS["muon"])
    step(one, optimizer, 0)
    other = Blocks()
    other.load_state_dict(one.state_dict())
    second = make_optimizer(other, CONFIGS["muon"])
    second.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    for each, its in ((one, optimizer), (other, second)):
        step(each, its, 1)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


@pytest.mark.parametrize("name", CONFIGS)
def test_the_memory_of_each_is_what_theory_says(name):
    trained = Blocks()
    optimizer = make_optimizer(trained, CONFIGS[name])
    step(trained, optimizer, 0)
    assert optimizer_state_bytes(trained, CONFIGS[name]) == count_memory(trained, optimizer).optimizer
    assert theoretical_memory(trained, CONFIGS[name]).optimizer == count_memory(trained, optimizer).optimizer


@pytest.mark.parametrize("name", CONFIGS)
def test_the_state_of_each_survives_a_checkpoint(name):
    torch.manual_seed(0)
    uninterrupted = Blocks()
    optimizer = make_optimizer(uninterrupted, CONFIGS[name])
    for number in range(3):
        step(uninterrupted, optimizer, number)
    resumed = Blocks()
    resumed.load_state_dict(uninterrupted.state_dict())
    other = make_optimizer(resumed, CONFIGS[name])
    load_optimizer_(resumed, other, optimizer_tensors(uninterrupted, optimizer))
    load_group_values_(other, json.loads(json.dumps(group_values(optimizer))))
    for number in range(3, 6):
        step(uninterrupted, optimizer, number)
        step(resumed, other, number)
    for p, q in zip(uninterrupted.parameters(), resumed.parameters(), strict=True):
        assert torch.equal(p, q)


class Counting(torch.optim.SGD):
    """Keeps numbers in plain Python, of a parameter and of a group, and has them decide about the step."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["scale"] = group.get("scale", 1.0) * 0.9
            group["lr"] *= group["scale"]
            for parameter in group["params"]:
                state = self.state[parameter]
                state["count"] = state.get("count", 0) + 1
                state["rate"] = 1.0 / (3 * state["count"])
                state["last"] = None
                parameter.grad.mul_(state["rate"])
        super().step()


def test_plain_numbers_of_an_optimizer_survive_a_checkpoint_with_their_types():
    def build(one):
        return Counting(one.parameters(), lr=0.1)

    torch.manual_seed(0)
    one, other = Blocks(), Blocks()
    first, second = build(one), build(other)
    for number in range(3):
        step(one, first, number)
    other.load_state_dict(one.state_dict())
    load_optimizer_(other, second, optimizer_tensors(one, first))
    load_group_values_(second, json.loads(json.dumps(group_values(first))))
    state = second.state[other.head.weight]
    assert (type(state["count"]), type(state["rate"]), state["last"]) == (int, float, None)
    for number in range(3, 6):
        step(one, first, number)
        step(other, second, number)
    assert all(torch.equal(p, q) for p, q in zip(one.parameters(), other.parameters(), strict=True))


def test_state_that_cannot_be_kept_is_an_error():
    one = Blocks()
    optimizer = torch.optim.SGD(one.parameters(), lr=0.1)
    optimizer.state[one.head.weight]["history"] = [1, 2]
    with pytest.raises(CellError, match="'history' of a parameter is list"):
        optimizer_tensors(one, optimizer)


# -- another learning rate for queries and keys ----------------------------------------------------------------------


def qk_names(groups, model):
    """Names of the parameters in the groups of queries and keys."""
    names = {parameter: name for name, parameter in model.named_parameters()}
    return {names[p] for group in groups if "lr_scale" in group for p in group["params"]}


def descend(model, optimizer, family, steps=1):
    for _ in range(steps):
        family.loss(model).backward()
        optimizer.step()
        optimizer.zero_grad()


@pytest.mark.parametrize("name", CONFIGS)
def test_queries_and_keys_have_a_share_of_the_rate(name):
    family = FAMILIES["bert"]  # with biases
    model = family.model()
    optimizer = make_optimizer(model, replace(CONFIGS[name], qk_lr=0.1, weight_decay=0.3))
    named = qk_names(optimizer.param_groups, model)
    assert named == {n for n, _ in model.named_parameters() if ".self.query." in n or ".self.key." in n}
    for group in optimizer.param_groups:
        assert group["lr"] == pytest.approx(1e-3 if "lr_scale" in group else 1e-2)
        assert group["weight_decay"] == (0.3 if group["params"][0].ndim == 2 else 0)
    assert "lr_scale" not in optimizer.param_groups[0], "whose rate is logged"
    assert oelm.apply(model).audit(optimizer=optimizer).ok


@pytest.mark.parametrize("name", CONFIGS)
def test_the_whole_share_is_no_other_rate(name):
    family, states = FAMILIES["oelm-gpt"], []
    for share in (None, 1.0):
        model = family.model().train(False)
        descend(model, make_optimizer(model, replace(CONFIGS[name], qk_lr=share)), family, steps=2)
        states.append(model.state_dict())
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_unfrozen_layers_go_to_the_groups_that_expect_them(name, kind):
    family = FAMILIES[kind]
    model = family.model().train(False)
    applied = oelm.apply(model, init="orthogonal", freeze="qk", separate_qk=True)
    optimizer = make_optimizer(model, replace(CONFIGS[name], qk_lr=0.1))
    assert not qk_names(optimizer.param_groups, model)
    descend(model, optimizer, family)
    applied.audit(optimizer=optimizer).check()
    for layer in (1, 0):
        unfrozen = applied.unfreeze([layer], optimizer=optimizer)
        names = {n for n, p in model.named_parameters() if any(p is one for one in unfrozen)}
        assert names <= qk_names(optimizer.param_groups, model)
    for group in optimizer.param_groups:
        assert len({p.ndim for p in group["params"]}) == 1, "matrices decay, vectors do not"
    descend(model, optimizer, family, steps=2)
    applied.audit(optimizer=optimizer).check()


def test_a_fused_matrix_has_two_rates_exactly():
    """Plain descent moves queries and keys by just the share, and the values as ever; names stay as they were."""
    family, moved = FAMILIES["gpt2"], {}
    before = family.model().state_dict()["transformer.h.0.attn.c_attn.weight"]
    for share in (None, 0.25):
        model = family.model().train(False)
        applied = oelm.apply(model, separate_qk=share is not None)
        config = OptimizerConfig(name="sgd", lr=0.5, qk_lr=share, weight_decay=0.0)
        descend(model, make_optimizer(model, config), family)
        assert applied.audit().ok
        moved[share] = model.state_dict()["transformer.h.0.attn.c_attn.weight"] - before
    width = before.shape[0]
    for rows, share in ((slice(0, 2 * width), 0.25), (slice(2 * width, None), 1.0)):
        torch.testing.assert_close(moved[0.25][:, rows], share * moved[None][:, rows], atol=1e-7, rtol=1e-4)


def test_what_cannot_have_a_rate_of_its_own_is_refused():
    fused = FAMILIES["gpt2"].model()
    with pytest.raises(ModelError, match=r"(?s)a learning rate of their own.*c_attn\.weight.*has other rows too"):
        make_optimizer(fused, OptimizerConfig(lr=1e-3, qk_lr=0.1))
    before = {name: tensor.clone() for name, tensor in fused.state_dict().items()}
    with pytest.raises(TreatmentError, match=r"(?s)cannot have frozen q.*queries and keys in one part"):
        oelm.apply(fused, init="orthogonal", freeze="q", separate_qk=True)
    assert all(torch.equal(tensor, before[name]) for name, tensor in fused.state_dict().items())
    undone = oelm.apply(fused, separate_qk=True)
    undone.undo()
    assert all(torch.equal(tensor, before[name]) for name, tensor in fused.state_dict().items())
    assert type(fused.transformer.h[0].attn.c_attn).__name__ == "Conv1D"


def test_a_study_sets_tunes_and_overrides_the_share():
    content = tiny_study.study("data", optimizer={"lr": 1e-3})
    content["arms"]["oelm-freeze"]["overrides"] = {"optimizer.qk_lr": 0.1}
    content["tune"] = {"optimizer.qk_lr": [0.1, 0.3, 1.0]}
    with pytest.raises(StudyError, match="qk_lr"):  # as for any setting: an arm has its own, or tunes it
        study_from_dict(content)
    del content["arms"]["oelm-freeze"]["overrides"]
    assert study_from_dict(content).tune.grid == {"optimizer.qk_lr": (0.1, 0.3, 1.0)}
    with pytest.raises(StudyError, match=r"recipe\.optimizer\.qk_lr +must be greater than 0"):
        study_from_dict(tiny_study.study("data", optimizer={"lr": 1e-3, "qk_lr": 0}))


# -- in a study ----------------------------------------------------------------------------------------------------


def left_behind(folder):
    rows = [json.loads(line) for line in (folder / "steps.jsonl").read_text().splitlines()]
    losses = [(row["step"], row["loss"], row["lr"], row["grad_norm"]) for row in rows]
    return losses, next(folder.glob("model/*.safetensors")).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "qk_lr"), [*((name, None) for name in BUILT_IN), ("adamw", 0.1), ("muon", 0.1)])
def test_stopped_and_resumed_is_uninterrupted(name, qk_lr, tmp_path, monkeypatch):
    monkeypatch.setenv("OELM_CACHE", str(tmp_path / "cache"))
    options = {"sgd": {"momentum": 0.9, "nesterov": True}}.get(name, {})
    content = tiny_study.study(
        tiny_study.write_data(tmp_path / "data"),
        optimizer={"name": name, "lr": 1e-3, "options": options, "qk_lr": qk_lr},
        budget={"steps": 4},
        evaluate={"every": 2},
        checkpoint={"every": 2, "keep": "final"},
    )
    if qk_lr is not None:
        content["arms"]["oelm-freeze"]["unfreeze"] = {"start": 0.2, "end": 0.7}
    study = study_from_dict(content)
    cell = {"arm": "oelm-freeze", "seed": 0}
    record = run_cell(study, **cell, out=tmp_path / "whole")
    assert record.status == "done"
    with pytest.raises(Stopped):
        run_cell(study, **cell, out=tmp_path / "stopped", progress=StopsAt(2))
    assert run_cell(study, **cell, out=tmp_path / "stopped").status == "done"
    whole, resumed = (left_behind(tmp_path / which / "tiny/oelm-freeze/seed-0") for which in ("whole", "stopped"))
    assert len(whole[0]) == 4
    assert whole == resumed


@pytest.mark.parametrize(
    ("optimizer", "at", "why"),
    [
        ({"name": "adamwe"}, "optimizer.name", "unknown optimizer 'adamwe'; did you mean 'adamw'?"),
        ({"name": "lion"}, "optimizer.name", "adafactor, muon (or your own, from a module in `plugins:`)"),
        ({"name": "sgd", "betas": [0.9, 0.95]}, "optimizer.betas", "'sgd' has none"),
        ({"name": "sgd", "options": {"momentun": 0.9}}, "options.momentun", "did you mean 'momentum'?"),
        ({"name": "sgd", "options": {"momentum": 1.5}}, "options.momentum", "must be less than 1, got 1.5"),
        ({"name": "sgd", "options": {"nesterov": True}}, "options", "nesterov needs a momentum"),
        ({"options": {"momentum": 0.9}}, "options.momentum", "unknown field"),
        ({"name": "muon", "options": {"adjust_lr": "x"}}, "options.adjust_lr", "one of match_rms_adamw, original"),
        ({"name": "adafactor", "options": {"clip_threshold": [1]}}, "options.clip_threshold", "must be"),
    ],
)
def test_an_optimizer_that_makes_no_sense(optimizer, at, why):
    with pytest.raises(StudyError) as error:
        study_from_dict(tiny_study.study("data", optimizer={"lr": 1e-3, **optimizer}))
    line = next(line for line in str(error.value).splitlines() if at in line)
    assert why in line


def test_only_elementwise_optimizers_are_sharded():
    for name in BUILT_IN:
        content = tiny_study.study("data", optimizer={"lr": 1e-3, "name": name}, parallel="fsdp")
        if name in ("muon", "adafactor"):
            with pytest.raises(StudyError, match=f"optimizer '{name}' cannot be sharded by 'fsdp'"):
                study_from_dict(content)
        else:
            study_from_dict(content)


def test_another_optimizer_in_an_arm_has_its_own_options():
    content = tiny_study.study("data", optimizer={"name": "sgd", "lr": 1e-3, "options": {"momentum": 0.9}})
    content["arms"]["oelm-freeze"]["overrides"] = {"optimizer.options.ns_steps": 3, "optimizer.name": "muon"}
    study = study_from_dict(content)
    recipe = oelm.study.overrides.apply_overrides(study.recipe, study.arms["oelm-freeze"].overrides)
    assert recipe.optimizer.options == {"ns_steps": 3}


def test_an_optimizer_of_ones_own(own_optimizers):
    oelm.register_optimizer("rmsprop", torch.optim.RMSprop, options={"alpha": 0.9, "centered": False})
    config = OptimizerConfig(name="rmsprop", lr=1e-3, options={"alpha": 0.5}, weight_decay=0.1)
    trained = Blocks()
    optimizer = make_optimizer(trained, config)
    assert isinstance(optimizer, torch.optim.RMSprop)
    assert [(g["lr"], g["alpha"], g["weight_decay"]) for g in optimizer.param_groups] == [
        (1e-3, 0.5, 0.1),
        (1e-3, 0.5, 0),
    ]
    assert optimizer_state_bytes(trained, config) is None, "not known, so not claimed"
    with pytest.raises(StudyError, match="optimizer 'rmsprop' exists already"):
        oelm.register_optimizer("rmsprop", torch.optim.RMSprop)
    oelm.register_optimizer("nothing", lambda groups, lr: None)
    with pytest.raises(StudyError, match=r"None is not a torch\.optim\.Optimizer"):
        make_optimizer(trained, OptimizerConfig(name="nothing", lr=1e-3))


@pytest.mark.parametrize(
    ("name", "build", "options", "why"),
    [
        ("my optimizer", torch.optim.SGD, {}, "cannot be the name"),
        ("adamw", torch.optim.SGD, {}, "exists already"),
        ("mine", "SGD", {}, "not a function or a class"),
        ("mine", torch.optim.SGD, {"lr": 1.0}, "cannot have an option 'lr'"),
        ("mine", torch.optim.SGD, {"betas": (0.9, 0.99)}, "must be a single value"),
    ],
)
def test_an_optimizer_that_cannot_be_registered(name, build, options, why, own_optimizers):
    with pytest.raises(StudyError, match=why):
        oelm.register_optimizer(name, build, options=options)
