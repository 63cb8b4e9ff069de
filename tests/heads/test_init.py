"""Draws: orthonormal, uniform, in float64, and the same whatever the weights look like."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from oelm.heads import init as draw

EXACT = 1e-12


def deviation(rows: torch.Tensor) -> float:
    return (rows @ rows.mT - torch.eye(rows.shape[-2], dtype=rows.dtype)).abs().max().item()


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def householder(block: torch.Tensor) -> torch.Tensor:
    q, r = torch.linalg.qr(block.mT)
    signs = torch.where(r.diagonal() >= 0, 1.0, -1.0).double()
    return (q * signs).mT


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 12), st.integers(0, 30), st.floats(-6, 6), st.integers(0, 10**6))
def test_equals_qr_with_positive_diagonal(rows, extra, decades, seed):
    """CholeskyQR gives what the definition says: the QR factor whose R has a positive diagonal."""
    block = torch.randn(rows, rows + extra, generator=generator(seed), dtype=torch.float64)
    block *= torch.logspace(0, decades, rows, dtype=torch.float64)[:, None]  # badly scaled rows
    out = draw.orthonormalize_rows(block[None])[0]
    assert deviation(out) < EXACT
    triangle = block @ out.mT  # R^T: lower triangular with a positive diagonal
    assert (triangle.diagonal() > 0).all()
    assert triangle.triu(1).abs().max() < 1e-9 * block.abs().max()


def test_keeps_the_row_space():
    block = torch.randn(5, 40, generator=generator(0), dtype=torch.float64)
    out = draw.orthonormalize_rows(block[None])[0]
    assert torch.allclose(block @ out.mT @ out, block, atol=1e-12)


@pytest.mark.parametrize("condition", [1e3, 1e6, 1e9, 1e13])
def test_ill_conditioned_blocks_are_orthonormal_too(condition):
    left = torch.linalg.qr(torch.randn(8, 8, generator=generator(1), dtype=torch.float64))[0]
    right = torch.linalg.qr(torch.randn(32, 8, generator=generator(2), dtype=torch.float64))[0].mT
    block = (
        left @ torch.diag(torch.logspace(0, -torch.tensor(condition).log10().item(), 8, dtype=torch.float64)) @ right
    )
    well = torch.randn(8, 32, generator=generator(3), dtype=torch.float64)
    out = draw.orthonormalize_rows(torch.stack([well, block]))
    assert deviation(out[0]) < EXACT
    assert deviation(out[1]) < EXACT
    assert torch.allclose(out[0], householder(well), atol=1e-12)
    # the signs of R's diagonal are positive, whichever way it was factored
    assert ((block @ out[1].mT).diagonal() > 0).all()


def test_a_zero_pivot_does_not_zero_a_row():
    """The predecessor's sign(diag(R)) made such rows vanish."""
    block = torch.randn(4, 16, generator=generator(4), dtype=torch.float64)
    block[2] = 0
    block[3] = block[0]
    out = draw.orthonormalize_rows(block[None])[0]
    assert deviation(out) < EXACT


def test_gaussian_qr_is_uniform():
    """Uniform among orthonormal blocks: every entry has mean 0 and second moment 1/M, also on the diagonal.

    Without the sign fix the diagonal would be of one sign.
    """
    blocks = [draw.gaussian_rows(2, 6, generator=generator(seed)) for seed in range(4000)]
    samples = draw.orthonormalize_rows(torch.stack(blocks))
    error = 4 / 4000**0.5  # four standard errors of a unit variable
    assert samples.mean(0).abs().max() < error
    assert (samples.square().mean(0) - 1 / 6).abs().max() < error
    assert (samples[:, 0, 0] > 0).double().mean().sub(0.5).abs() < error


def test_polar_is_the_nearest_orthonormal_block():
    block = torch.randn(3, 5, 20, generator=generator(5), dtype=torch.float64)
    polar = draw.nearest_orthonormal_rows(block)
    qr = draw.orthonormalize_rows(block)
    assert deviation(polar[1]) < EXACT
    assert ((polar - block).square().sum((1, 2)) < (qr - block).square().sum((1, 2))).all()
    # of an orthonormal block it is the block itself
    assert torch.allclose(draw.nearest_orthonormal_rows(qr), qr, atol=1e-12)


def test_identity_heads_are_the_rows_of_the_identity():
    heads = torch.cat([draw.identity_rows(head, 3, 12) for head in range(4)])
    assert torch.equal(heads, torch.eye(12, dtype=torch.float64))


def test_blocks_do_not_depend_on_how_many_are_done_at_once():
    blocks = torch.randn(4, 6, 24, generator=generator(6), dtype=torch.float64)
    together = draw.orthonormalize_rows(blocks)
    alone = torch.cat([draw.orthonormalize_rows(block[None]) for block in blocks])
    assert torch.allclose(together, alone, atol=1e-13)
    assert torch.equal(together.float(), alone.float())
