"""Apollo-E: v_e in rank r instead of full size (docs/algorithm.md, (19) to (23)).

For a matrix the exponent gradient g_e is projected on its smaller dimension n, R = P g_e with P ~ N(0, 1/r) of shape
(r, n); only the second moment of R is kept. Each channel j of the larger dimension gets one factor,

    scale_j = sqrt(n / r) ||R~_j|| / ||R_j||,    R~ = R / (sqrt(v_r_hat) + eps),    0 where R_j is 0,

and the relative step is -eta_m scale g_e. Without sqrt(n/r) it would be 11 to 22 times too small. Elements of one
channel share their factor, so with an elementwise rho the weight moves by about eta_m |w| |g|, up to the channel's
factor: unlike the full v_e, which cancels |w|. So this is a rule of its own, not merely a compression.

P is never stored: it is a function of (seed, parameter id, number of the refresh), drawn again when it is needed. The
second moment is kept over a refresh: rows of P have the same distribution before and after, hence so has R.
"""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from mpadam.numerics.bits import random_bits
from mpadam.optim.card import Constants, Rates


def can_compress(shape: torch.Size, rank: int) -> bool:
    """Only a matrix whose smaller dimension is larger than the rank gains anything."""
    return len(shape) == 2 and min(shape) > rank


def projected_shape(shape: torch.Size, rank: int) -> torch.Size:
    """Shape of R: the smaller dimension of the matrix replaced by the rank."""
    rows, columns = shape
    return torch.Size((rank, columns) if rows <= columns else (rows, rank))


def projection_matrix(
    shape: torch.Size, rank: int, *, seed: int, tensor_id: int, refresh: int, device: torch.device
) -> Tensor:
    """P, float32 (rank, n), entries N(0, 1/rank) by Box-Muller from counter-based bits: the global RNG is not used."""
    n = min(shape)
    # Rounding uses steps 1, 2, ...; projections use -1, -2, ..., so that the two streams never share a bit.
    bits = random_bits(seed=seed, step=-1 - refresh, tensor_id=tensor_id, shape=torch.Size((2, rank, n)), device=device)
    uniform = ((bits.to(torch.int64) & 0xFFFFFFFF).to(torch.float64) + 0.5) * 2.0**-32
    normal = torch.sqrt(-2.0 * torch.log(uniform[0])) * torch.cos(2.0 * math.pi * uniform[1])
    return (normal / math.sqrt(rank)).to(torch.float32)


def projection_at(t: int, p: Tensor, group: Mapping[str, Any], *, tensor_id: int) -> Tensor:
    """The projection of update `t` (from 1) of parameter `p`, from the options of its group."""
    refresh = (t - 1) // group["apollo_refresh"]
    return projection_matrix(
        p.shape, group["apollo_rank"], seed=group["seed"], tensor_id=tensor_id, refresh=refresh, device=p.device
    )


def channel_scale(g_e: Tensor, projection: Tensor, v_r: Tensor, c: Constants, r: Rates) -> tuple[Tensor, Tensor]:
    """(scale, new v_r).

    g_e: float32 [rows, columns].  projection: float32 [rank, min(rows, columns)].
    v_r, the second moment of R: float32 [rank, columns] or [rows, rank].  scale: [1, columns] or [rows, 1].
    """
    wide = g_e.shape[0] <= g_e.shape[1]
    reduced = projection @ g_e if wide else g_e @ projection.T
    v_r = c.decay2.kept * v_r + c.decay2.taken * reduced * reduced
    normalized = reduced / ((v_r / r.correction).sqrt() + c.eps)
    dim = 0 if wide else 1
    size = torch.linalg.vector_norm(reduced, dim=dim, keepdim=True)
    ratio = torch.linalg.vector_norm(normalized, dim=dim, keepdim=True) / size
    scale = math.sqrt(projection.shape[1] / projection.shape[0]) * ratio
    return torch.where(size == 0, torch.zeros_like(scale), scale), v_r
