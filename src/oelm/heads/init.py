"""Initialize a head's weights.

Everything is drawn and factored in float64 on the CPU from an explicit generator, so the same seed gives the same
reservoir on every device. Shape suffixes: B = blocks, D = rows of a block, M = model width.
"""

from typing import NamedTuple

import torch
from torch import Tensor

# CholeskyQR loses orthogonality with the square of the condition number; what it loses is measured, not guessed.
_CHOLESKY_TOLERANCE = 1e-12


def gaussian_rows(num_rows: int, width: int, *, generator: torch.Generator) -> Tensor:
    """A `(num_rows, width)` float64 block of independent standard normal entries."""
    return torch.randn(num_rows, width, generator=generator, dtype=torch.float64, device="cpu")


def orthonormalize_rows(blocks_BDM: Tensor) -> Tensor:
    """QR of each block's transpose, with the signs of R's diagonal made positive: same row space, orthonormal rows.

    Without the signs, QR of a Gaussian would not be uniform. CholeskyQR is tried first: it is the same factorization in
    a few matrix products. Blocks whose result is not orthonormal to 1e-12 are factored by Householder QR.
    """
    gram_BDD = blocks_BDM @ blocks_BDM.mT
    lower_BDD, _ = torch.linalg.cholesky_ex(gram_BDD)
    eye_DD = torch.eye(gram_BDD.shape[-1], dtype=gram_BDD.dtype, device=gram_BDD.device)
    rows_BDM: Tensor = torch.linalg.solve_triangular(lower_BDD, eye_DD, upper=False) @ blocks_BDM
    error_B = (rows_BDM @ rows_BDM.mT - eye_DD).abs().amax((-2, -1))
    for block in (~(error_B < _CHOLESKY_TOLERANCE)).nonzero().flatten().tolist():  # `not <` catches NaN
        rows_BDM[block] = _householder_rows(blocks_BDM[block])
    return rows_BDM


def _householder_rows(block_DM: Tensor) -> Tensor:
    q_MD, r_DD = torch.linalg.qr(block_DM.mT)
    # A zero pivot must not zero a row: its sign counts as positive.
    signs_D = torch.where(r_DD.diagonal() >= 0, 1.0, -1.0).to(q_MD.dtype)
    rows_DM: Tensor = (q_MD * signs_D).mT
    return rows_DM


def nearest_orthonormal_rows(blocks_BDM: Tensor) -> Tensor:
    """The polar factor `U V^T` of each block: the nearest block with orthonormal rows."""
    left_BDD, _, right_BDM = torch.linalg.svd(blocks_BDM, full_matrices=False)
    rows_BDM: Tensor = left_BDD @ right_BDM
    return rows_BDM


class Frames(NamedTuple):
    """The singular frames and the spectrum of every head's form `W_q^T W_k`: what attention can see of it."""

    query: Tensor
    """Orthonormal rows, (B, D, M)."""
    spectrum: Tensor
    """Descending, (B, D)."""
    key: Tensor
    """Orthonormal rows, (B, D, M)."""


def frames(query_BDM: Tensor, key_BDM: Tensor) -> Frames:
    """`W_q^T W_k = U S V^T` of each block, by the SVD of a D x D core: `U^T`, `S` and `V^T`."""
    # W_q^T = Q_q R_q and W_k^T = Q_k R_k, so the form is Q_q C Q_k^T with the core C = R_q R_k^T = P S T^T.
    query_BMD, query_BDD = torch.linalg.qr(query_BDM.mT)
    key_BMD, key_BDD = torch.linalg.qr(key_BDM.mT)
    left_BDD, spectrum_BD, right_BDD = torch.linalg.svd(query_BDD @ key_BDD.mT)
    rows_BDM, key_rows_BDM = (query_BMD @ left_BDD).mT, right_BDD @ key_BMD.mT
    # A singular vector has no sign of its own, and libraries differ: the largest entry of a query is positive.
    largest_BD1 = rows_BDM.gather(-1, rows_BDM.abs().argmax(-1, keepdim=True))
    signs_BD1 = torch.where(largest_BD1 >= 0, 1.0, -1.0).to(rows_BDM.dtype)
    return Frames(rows_BDM * signs_BD1, spectrum_BD, key_rows_BDM * signs_BD1)


def carry_query_bias(bias_BD: Tensor, old_key_BDM: Tensor, new_key_BDM: Tensor, *, orthogonal: bool = True) -> Tensor:
    """The bias of a query that gives the new keys the logits that it gave the old ones: `W_k'^T b' = W_k^T b`.

    By least squares: exact where the new rows span the old ones, as those of `orthogonalize`, `polar` and `frames` do.
    Rows that are `orthogonal` need no inverse.
    """
    wanted_B1M = bias_BD[:, None] @ old_key_BDM
    carried_BD1: Tensor = new_key_BDM @ wanted_B1M.mT
    if orthogonal:
        carried_BD1 /= torch.linalg.vector_norm(new_key_BDM, dim=-1, keepdim=True).square()
    else:
        carried_BD1 = torch.linalg.pinv(new_key_BDM @ new_key_BDM.mT, hermitian=True) @ carried_BD1
    return carried_BD1.squeeze(-1)


def turn_bias(bias_BD: Tensor, old_BDM: Tensor, new_BDM: Tensor) -> Tensor:
    """`A b` for the `A` with `W' = A W`: a bias in the new coordinates of its head."""
    inverse_BDD = torch.linalg.pinv(old_BDM @ old_BDM.mT, hermitian=True)
    turned_BD1: Tensor = new_BDM @ (old_BDM.mT @ (inverse_BDD @ bias_BD[..., None]))
    return turned_BD1.squeeze(-1)


def identity_rows(head: int, num_rows: int, width: int) -> Tensor:
    """Rows `head * num_rows` to `(head + 1) * num_rows` of the identity: orthonormal and not random."""
    return torch.eye(width, dtype=torch.float64, device="cpu")[head * num_rows : (head + 1) * num_rows].clone()
