"""Each init writes what its definition says, compared with the definition computed directly."""

import pytest
import torch

import oelm
from oelm.heads.find import find_projections
from zoo import FAMILIES

NAMES = ["bert", "gpt2", "gpt-neox", "falcon-new"]
some_families = pytest.mark.parametrize("family", [f for f in FAMILIES if f.name in NAMES], ids=lambda f: f.name)


def blocks(model, role="q", layer=1):
    """(heads, head_dim, width) of one projection, in float64."""
    projection = next(p for p in find_projections(model) if (p.role, p.layer) == (role, layer))
    return torch.stack([projection.weight_rows(head).detach() for head in range(projection.num_heads)]).double()


def qr(matrix):
    """Orthonormal rows with the signs of R's diagonal made positive."""
    q, r = torch.linalg.qr(matrix.mT)
    return (q * torch.where(r.diagonal() >= 0, 1.0, -1.0)).mT


def treated(family, init, **fields):
    model = family.model()
    oelm.apply(model, init=init, **fields)
    return model


@some_families
@pytest.mark.parametrize("role", ["q", "k"])
def test_from_the_weights_that_are_there(family, role):
    before = blocks(family.model(), role)
    heads, rows, width = before.shape
    expected = {
        "orthogonalize": torch.stack([qr(block) for block in before]),
        "polar": torch.stack([u @ vh for u, _, vh in (torch.linalg.svd(b, full_matrices=False) for b in before)]),
        "orthogonalize-global": qr(before.reshape(-1, width)).reshape(heads, rows, width),
        "keep": before,
    }
    for init, block in expected.items():
        for seed in (0, 1):  # the weights decide, not the seed
            assert torch.allclose(blocks(treated(family, init, seed=seed), role), block, atol=1e-6), init
    assert not torch.allclose(expected["orthogonalize"], expected["polar"], atol=1e-3)
    assert not torch.allclose(expected["orthogonalize"], expected["orthogonalize-global"], atol=1e-3)


@some_families
def test_orthogonalize_keeps_each_heads_row_space(family):
    before, after = blocks(family.model()), blocks(treated(family, "orthogonalize"))
    assert torch.allclose(before @ after.mT @ after, before, atol=1e-5)


@some_families
@pytest.mark.parametrize("role", ["q", "k"])
def test_from_a_fresh_draw(family, role):
    """Decided by the seed, the layer, the role and the head, and not by the weights."""
    heads, rows, width = blocks(family.model(), role).shape
    gaussian = []
    for head in range(heads):
        generator = torch.Generator().manual_seed(oelm.seed_for(3, "qk", 1, role, head))
        gaussian.append(torch.randn(rows, width, generator=generator, dtype=torch.float64))
    expected = {
        "orthogonal": torch.stack([qr(block) for block in gaussian]),
        "orthogonal-global": qr(torch.cat(gaussian)).reshape(heads, rows, width),
        "gaussian": torch.stack(gaussian) / width**0.5,
    }
    for init, block in expected.items():
        assert torch.allclose(blocks(treated(family, init, seed=3), role), block, atol=1e-6), init
        other = family.model(seed=9)
        oelm.apply(other, init=init, seed=3)
        assert torch.allclose(blocks(other, role), block, atol=1e-6), init


@some_families
def test_identity(family):
    after = blocks(treated(family, "identity", seed=4))
    assert torch.equal(after.flatten(0, 1), torch.eye(after.shape[2], dtype=torch.float64)[: after[..., 0].numel()])


@some_families
@pytest.mark.parametrize("init", ["orthogonal", "polar", "gaussian", "identity", "orthogonalize-global"])
def test_match_only_rescales_each_head(family, init):
    before = blocks(family.model())
    unit, match = (blocks(treated(family, init, scale=scale, seed=2)) for scale in ("unit", "match"))
    factor = torch.linalg.matrix_norm(before) / torch.linalg.matrix_norm(unit)
    assert torch.allclose(match, unit * factor[:, None, None], atol=1e-6)
    assert factor.std() > 0, "each head has a factor of its own"
