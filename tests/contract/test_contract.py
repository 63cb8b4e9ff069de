"""The promises of the method, each one test, each on every model family of the zoo."""

import copy

import pytest
import torch
import transformers
from torch import nn

import oelm
from oelm.heads.find import find_projections
from oelm.treatment import FITS_WIDTH
from zoo import FAMILIES, Family, attentive

MODELS = "transformers.models"
# One of every way to keep queries and keys; the others are left out by `make check`.
QUICK = {"bert", "llama", "oelm-gpt", "gpt2", "gpt-neox", "falcon-new", "torch-encoder"}
ORTHONORMAL = ["identity", "orthogonal", "orthogonal-global", "orthogonalize", "orthogonalize-global", "polar"]

# One of every way to write and to keep heads that is not in ORTHONORMAL.
TREATMENTS = {
    "frames": {"init": "frames", "freeze": "qk"},
    "frames-match": {"init": "frames", "scale": "match", "freeze": "qk"},
    "no-attention": {"init": "zero", "freeze": "qk"},
    "half-way": {"init": "polar", "blend": 0.5, "freeze": "qk"},
    "bias-left": {"init": "orthogonalize", "carry_bias": False, "freeze": "qk"},
    "kept": {"init": "orthogonalize", "scale": "match", "keep_orthonormal": True},
}

families = pytest.mark.parametrize(
    "family",
    [pytest.param(one, id=one.name, marks=() if one.name in QUICK else pytest.mark.slow) for one in FAMILIES],
)


def qk_names(model: nn.Module) -> set[str]:
    """Parameters of the untreated model that hold query or key rows."""
    projections = find_projections(model)
    return {p.name for p in projections} | {p.bias_path for p in projections if p.has_bias}


def snapshot(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


def assert_same_bits(first: dict[str, torch.Tensor], second: dict[str, torch.Tensor]) -> None:
    assert list(first) == list(second)
    for name, tensor in first.items():
        assert torch.equal(tensor, second[name]), name


def fits(family_model: nn.Module, init: str) -> bool:
    return all(
        p.head_dim <= p.width and (init not in FITS_WIDTH or p.num_heads * p.head_dim <= p.width)
        for p in find_projections(family_model)
    )


def train(
    family: Family, model: nn.Module, optimizer: torch.optim.Optimizer, *, steps: int = 3, applied: oelm.Applied = None
) -> None:
    model.train()
    for _ in range(steps):
        family.loss(model).backward()
        optimizer.step()
        if applied is not None:
            applied.retract()
        optimizer.zero_grad()
    model.eval()


def adamw(model: nn.Module) -> torch.optim.AdamW:
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2, weight_decay=0.1)


@families
def test_the_layout_is_the_models_own(family):
    """Disturb one head's rows: in the model's own attention maps only that head (for K: its group) changes."""
    model = family.model()
    views = oelm.find_heads(model)
    assert {view.layer for view in views} == set(range(family.num_layers))
    assert family.arrangement in {view.projection.layout.arrangement for view in views}
    oelm.prove_layout(model, maps=family.maps)


@families
def test_the_default_attention_has_the_same_heads(family):
    """Older transformers have a class for each way to compute attention; the zoo is built with the plain one."""
    model = family.model()
    if not hasattr(model, "config"):
        pytest.skip("there is one attention only")
    config = copy.deepcopy(model.config)
    config._attn_implementation = None
    default = type(model)(config)
    assert [repr(view) for view in oelm.find_heads(default)] == [repr(view) for view in oelm.find_heads(model)]


@families
def test_the_layout_is_still_right_after_the_split(family):
    model = family.model()
    oelm.apply(model, init="keep", freeze="qk")
    oelm.prove_layout(model, maps=family.maps)


@families
def test_a_view_shares_storage_with_the_model(family):
    model = family.model()
    view = oelm.find_heads(model)[-1]
    before = family.logits(model)
    view.weight.mul_(3.0)
    assert not torch.equal(family.logits(model), before)
    assert view.weight.shape == (view.projection.head_dim, view.projection.width)


@families
@pytest.mark.parametrize("init", ORTHONORMAL)
@pytest.mark.parametrize("scale", ["unit", "match"])
def test_orthonormal_means_orthonormal(family, init, scale):
    """Per head, in every layer; `match` keeps every head's norm."""
    model = family.model()
    if not fits(model, init):
        with pytest.raises(oelm.TreatmentError, match="fit the width"):
            oelm.apply(model, init=init, scale=scale)
        return
    norms = [row.norm for row in oelm.orthonormality(model)]
    oelm.apply(model, init=init, scale=scale).audit().check()
    for row, norm in zip(oelm.orthonormality(model), norms, strict=True):
        if scale == "unit":
            assert row.deviation < 1e-5
        else:
            assert row.norm == pytest.approx(norm, rel=1e-5)
            assert row.largest / row.smallest == pytest.approx(1.0, abs=1e-5)


def fitting(family: Family) -> dict[str, dict[str, object]]:
    return {name: fields for name, fields in TREATMENTS.items() if family.has_gauge or fields["init"] != "frames"}


def rows_of(model: nn.Module, name: str) -> torch.Tensor:
    """Which entries of a tensor of the untreated model are query or key rows."""
    mask = torch.zeros(model.state_dict()[name].shape, dtype=torch.bool)
    for projection in find_projections(model):
        window = mask.mT if projection.layout.transposed and mask.ndim == 2 else mask
        for head, start in enumerate(projection.starts):
            if name == projection.name:
                window[start : start + projection.head_dim] = True
            elif projection.has_bias and name == projection.bias_path:
                first = projection.bias_rows(head).storage_offset()
                window[first : first + projection.head_dim] = True
    return mask


@families
def test_every_treatment_writes_queries_and_keys_and_nothing_else(family):
    """And takes it back; torch's generator does not move, nor does the mode of any module."""
    model, batch = attentive(family), family.batch()
    before, masks = snapshot(model), {name: rows_of(model, name) for name in qk_names(model)}
    modes = [module.training for module in model.modules()]
    state = torch.get_rng_state()
    for fields in fitting(family).values():
        applied = oelm.apply(model, **fields, inputs=batch)
        applied.audit().check()
        after = model.state_dict()
        assert list(after) == list(before), fields
        for name, tensor in before.items():
            others = ~masks[name] if name in masks else slice(None)
            assert torch.equal(after[name][others], tensor[others]), (fields, name)
        applied.undo()
        assert_same_bits(before, model.state_dict())
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes


@families
def test_every_treatment_is_kept_by_training_and_survives_a_stop_and_the_trip(family, tmp_path):
    """Frozen bits stay; what goes on from the saved state has the same bits; plain transformers loads the model."""
    for name, fields in fitting(family).items():
        models = [attentive(family) for _ in range(2)]
        whole, resumed = (oelm.apply(model, **fields, inputs=family.batch()) for model in models)
        frozen = {one.key: one.copy() for one in whole.frozen}
        optimizer = adamw(models[0])
        train(family, models[0], optimizer, steps=1, applied=whole)
        states = copy.deepcopy((models[0].state_dict(), optimizer.state_dict()))
        torch.manual_seed(1)  # of dropout
        train(family, models[0], optimizer, steps=1, applied=whole)
        whole.audit(optimizer=optimizer).check()
        assert all(torch.equal(one.copy(), frozen[one.key]) for one in whole.frozen), name

        models[1].load_state_dict(states[0])
        optimizer = adamw(models[1])
        optimizer.load_state_dict(states[1])
        torch.manual_seed(1)
        train(family, models[1], optimizer, steps=1, applied=resumed)
        assert_same_bits(models[0].state_dict(), models[1].state_dict())

        if hasattr(models[0], "save_pretrained"):
            whole.save_pretrained(tmp_path / name)
            plain = type(models[0]).from_pretrained(tmp_path / name, attn_implementation="eager")
            assert_same_bits(models[0].state_dict(), plain.state_dict())


@families
def test_nothing_else_moved(family):
    """All other weights are bitwise those of the untreated model, and torch's generator did not move."""
    model = family.model()
    before = snapshot(model)
    touched = qk_names(model)
    state = torch.get_rng_state()
    oelm.apply(model, init="orthogonal", freeze="qk")
    assert torch.equal(torch.get_rng_state(), state)
    after = model.state_dict()
    assert list(after) == list(before)
    projections = find_projections(model)
    for name, tensor in before.items():
        if name not in touched:
            assert torch.equal(after[name], tensor), name
    # inside a fused tensor, the value rows and all biases stay too
    for name in touched:
        rows = [p for p in projections if p.name == name]
        mask = torch.zeros(before[name].shape, dtype=torch.bool)
        for projection in rows:
            for start in projection.starts:
                window = mask.mT if projection.layout.transposed else mask
                window[start : start + projection.head_dim] = True
        assert torch.equal(after[name][~mask], before[name][~mask]), name
        assert not rows or not torch.equal(after[name][mask], before[name][mask]), name


@families
def test_arms_of_one_seed_agree_on_all_other_weights(family):
    first, second = family.model(), family.model()
    oelm.apply(first, init="orthogonal", freeze="qk", seed=1)
    oelm.apply(second, init="gaussian", scale=0.02, freeze="none", seed=1)
    others = set(first.state_dict()) - qk_names(first)
    assert others
    for name in others:
        assert torch.equal(first.state_dict()[name], second.state_dict()[name]), name


@families
def test_a_seed_is_a_reservoir(family):
    """The same seed draws the same blocks, another seed others, and no two heads the same."""
    models = [family.model() for _ in range(3)]
    for model, seed in zip(models, (5, 5, 6), strict=True):
        oelm.apply(model, init="orthogonal", seed=seed)
    same, again, other = (oelm.find_heads(model) for model in models)
    assert all(torch.equal(a.weight, b.weight) for a, b in zip(same, again, strict=True))
    assert not any(torch.equal(a.weight, b.weight) for a, b in zip(same, other, strict=True))
    assert len({view.weight.flatten()[0].item() for view in same}) == len(same)


@families
@pytest.mark.parametrize("freeze", ["qk", "q", "k"])
def test_frozen_means_frozen(family, freeze):
    """Bitwise equal after AdamW with weight decay; in no group, no gradient, no state; all else moved."""
    model = family.model()
    applied = oelm.apply(model, init="orthogonalize", freeze=freeze)
    optimizer = adamw(model)
    applied.audit(optimizer=optimizer).check()
    frozen = {param_slice.key: param_slice.copy() for param_slice in applied.frozen}
    assert {key.split("[")[0] for key in frozen} <= qk_names(model)
    expected = [r for r in applied.slices if r.projection.role in freeze]
    assert sorted(frozen) == sorted(param_slice.key for param_slice in expected)
    train(family, model, optimizer)
    for param_slice in applied.frozen:
        assert torch.equal(param_slice.copy(), frozen[param_slice.key]), param_slice.key
    applied.audit(optimizer=optimizer).check()


@families
def test_frozen_rows_are_the_rows_of_the_saved_model(family):
    """What `state_dict` shows under the vanilla name has the frozen rows where the layout says."""
    model = family.model()
    oelm.apply(model, init="orthogonal", freeze="qk")
    state = model.state_dict()
    for view in oelm.find_heads(model):
        matrix = state[view.name].mT if view.projection.layout.transposed else state[view.name]
        start = view.projection.starts[view.head]
        assert torch.equal(matrix[start : start + view.projection.head_dim], view.weight)


@families
def test_splitting_does_not_change_the_model(family):
    """Logits of the model frozen as it is equal the untreated model's to 1e-6; the state dict to the last bit."""
    model = family.model()
    before, logits = snapshot(model), family.logits(model)
    applied = oelm.apply(model, init="keep", freeze="qk")
    assert_same_bits(before, model.state_dict())
    assert torch.allclose(family.logits(model), logits, rtol=1e-6, atol=1e-6)
    if family.arrangement == "separate":
        assert torch.equal(family.logits(model), logits)
    applied.audit().check()


@families
def test_a_frozen_weight_computes_no_gradient(family):
    """The parts that are frozen are leaves without gradient; the rest of a fused weight has one of its own size."""
    model = family.model()
    applied = oelm.apply(model, freeze="qk")
    family.loss(model).backward()
    for param_slice in applied.frozen:
        assert param_slice.parameter.grad is None
    gradients = sum(p.grad.numel() for p in model.parameters() if p.grad is not None)
    assert gradients == applied.counts.trainable


@families
def test_undo_gives_the_model_back_bit_for_bit(family):
    model = family.model()
    before, objects = snapshot(model), dict(model.named_parameters())
    kinds = [type(module) for module in model.modules()]
    applied = oelm.apply(model, init="orthogonal", freeze="qk")
    applied.undo()
    assert_same_bits(before, model.state_dict())
    assert [type(module) for module in model.modules()] == kinds
    assert all(p.requires_grad for p in model.parameters())
    assert {name: id(p) for name, p in model.named_parameters()} == {name: id(p) for name, p in objects.items()}
    oelm.apply(model, init="orthogonal", freeze="qk")  # and it can be treated again


@families
def test_state_dicts_travel_between_treated_and_untreated(family):
    treated, plain = family.model(seed=0), family.model(seed=1)
    applied = oelm.apply(treated, init="orthogonal", freeze="qk")
    plain.load_state_dict(treated.state_dict())
    assert torch.allclose(family.logits(plain), family.logits(treated), rtol=1e-6, atol=1e-6)
    # and back: frozen tensors take what they are given, and the audit says that they moved
    other = family.model(seed=2)
    treated.load_state_dict(other.state_dict())
    assert_same_bits(other.state_dict(), treated.state_dict())
    codes = {finding.code for finding in applied.audit().findings}
    assert codes == {"FROZEN-MOVED"}


@families
def test_a_model_survives_the_trip(family, tmp_path):
    """Save, load with plain transformers, same logits, same keys; and back through oelm, frozen and verified."""
    model = family.model()
    if not hasattr(model, "save_pretrained"):
        with pytest.raises(oelm.ModelError, match="no save_pretrained"):
            oelm.apply(model, freeze="qk").save_pretrained(tmp_path)
        return
    applied = oelm.apply(model, init="orthogonalize", freeze="qk", seed=3)
    train(family, model, adamw(model))
    logits = family.logits(model)
    applied.save_pretrained(tmp_path)

    plain = type(model).from_pretrained(tmp_path, attn_implementation="eager")
    assert list(plain.state_dict()) == list(model.state_dict())
    assert torch.allclose(family.logits(plain.eval()), logits, rtol=1e-6, atol=1e-6)

    again, reapplied = oelm.from_pretrained(tmp_path, attn_implementation="eager")
    assert type(again) is type(model)
    assert torch.equal(family.logits(again.eval()), logits)
    assert [param_slice.key for param_slice in reapplied.frozen] == [param_slice.key for param_slice in applied.frozen]
    assert reapplied.counts == applied.counts
    assert reapplied.treatment == applied.treatment
    assert reapplied.seed == 3
    optimizer = adamw(again)
    train(family, again, optimizer)
    reapplied.audit(optimizer=optimizer).check()


@families
def test_layers_given_back_learn_and_taken_back_stop(family):
    model = family.model()
    applied = oelm.apply(model, init="orthogonal", freeze="qk")
    optimizer = adamw(model)
    train(family, model, optimizer, steps=1)
    last = family.num_layers - 1
    given = applied.unfreeze(layers=[last], optimizer=optimizer)
    assert given
    before = [p.clone() for p in given]
    train(family, model, optimizer, steps=2)
    assert not any(torch.equal(p, b) for p, b in zip(given, before, strict=True) if p.ndim > 1)
    applied.audit(optimizer=optimizer).check()
    assert applied.refreeze(layers=[last], optimizer=optimizer)
    kept = {param_slice.key: param_slice.copy() for param_slice in applied.frozen}
    train(family, model, optimizer, steps=2)
    assert all(torch.equal(param_slice.copy(), kept[param_slice.key]) for param_slice in applied.frozen)
    applied.audit(optimizer=optimizer).check()


@families
def test_only_the_chosen_layers_are_treated(family):
    if family.num_layers < 2:
        pytest.skip("all layers of this family share one set of weights")
    model = family.model()
    before = {(v.layer, v.role, v.head): v.weight.clone() for v in oelm.find_heads(model)}
    applied = oelm.apply(model, init="orthogonal", freeze="qk", layers=[1])
    for view in oelm.find_heads(model):
        same = torch.equal(view.weight, before[view.layer, view.role, view.head])
        assert same == (view.layer != 1)
    assert {param_slice.projection.layer for param_slice in applied.frozen} == {1}


@families
def test_counts(family):
    model = family.model()
    counts = oelm.count(model)
    assert counts.trainable == sum(p.numel() for p in model.parameters())
    assert counts.total == sum({id(t): t.numel() for t in model.state_dict(keep_vars=True).values()}.values())
    slices = oelm.apply(model, freeze="qk").slices
    treated = oelm.count(model)
    assert treated.qk == counts.qk == sum(param_slice.numel for param_slice in slices)
    assert treated.total == counts.total
    assert treated.frozen == counts.frozen + counts.qk


@families
def test_the_table_shows_both_roles(family):
    applied = oelm.apply(family.model(), init="orthogonal", freeze="q")
    lines = str(applied).splitlines()
    assert lines[1].split() == ["layers", "heads", "head", "layout", "frozen", "trainable", "total", "share"]
    numbers = {line.split()[0]: line.split()[-5:-2] for line in lines[2:6]}
    assert set(numbers) == {"q", "k", "other", "all"}
    counts = applied.counts
    assert numbers["all"] == [f"{n:,}" for n in (counts.frozen, counts.trainable, counts.total)]
    assert numbers["q"][1] == numbers["k"][0] == "0"
    assert len(lines) == 7, "no word of adapters"


@families
def test_copies_are_models_of_their_own(family):
    """A deep copy (as EMA makes) has the same bits, computes the same, is of its own, and is known to be treated."""
    model = family.model()
    oelm.apply(model, init="orthogonal", freeze="qk")
    twin = copy.deepcopy(model)
    assert_same_bits(model.state_dict(), twin.state_dict())
    assert torch.equal(family.logits(model), family.logits(twin))
    oelm.find_heads(twin)[0].weight.zero_()
    assert not torch.equal(oelm.find_heads(model)[0].weight, oelm.find_heads(twin)[0].weight)
    with pytest.raises(oelm.ModelError, match="already treated"):
        oelm.apply(twin, freeze="qk")


@families
def test_low_precision(family):
    """In bfloat16 the heads are orthonormal to the precision of the type, and freezing is as exact."""
    model = family.model().to(torch.bfloat16)
    applied = oelm.apply(model, init="orthogonalize", freeze="qk")
    applied.audit().check()
    assert max(row.deviation for row in oelm.orthonormality(model)) < 2 * torch.finfo(torch.bfloat16).eps


@pytest.mark.skipif(
    int(transformers.__version__.split(".")[0]) < 5, reason="the table is written for the pinned transformers"
)
def test_the_zoo_has_every_family_of_the_table():
    from oelm.heads.layouts import _layouts

    proven = {
        f"{type(p.attention).__module__}.{type(p.attention).__qualname__}"
        for family in FAMILIES
        for p in find_projections(family.model())
    }
    known = {name for name, layouts in _layouts.items() if not any(layout.refused for layout in layouts)}
    # names of older transformers: proven there, by `make compat`
    known -= {
        f"{MODELS}.distilbert.modeling_distilbert.MultiHeadSelfAttention",
        f"{MODELS}.vit.modeling_vit.ViTSelfAttention",
    }
    # cross attention of the BERT kin is generated from BERT's, which the zoo has
    kin = {name for name in known if name.endswith("CrossAttention")}
    assert known - proven - kin == {"oelm.heads.split.SplitMultiheadAttention"}
