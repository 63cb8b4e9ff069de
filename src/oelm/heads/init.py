"""Initialize a head's weights.

Everything is drawn and factored in float64 on the CPU from an explicit generator, so the same seed gives the same
reservoir on every device. Shape suffixes: B = blocks, D = rows of a block, M = model width.
"""

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


def identity_rows(head: int, num_rows: int, width: int) -> Tensor:
    """Rows `head * num_rows` to `(head + 1) * num_rows` of the identity: orthonormal and not random."""
    return torch.eye(width, dtype=torch.float64, device="cpu")[head * num_rows : (head + 1) * num_rows].clone()
