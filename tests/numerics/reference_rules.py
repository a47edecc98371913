"""The update rules in float64, written from the equations of docs/algorithm.md and from nothing else.

Slow, plain numpy, one branch after the other; it shares no code with `mpadam`. A test starts it at every step from the
product's own weight and states (teacher forcing), so that errors cannot add up and hide.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]


@dataclass(frozen=True)
class Hyper:
    """Hyper-parameters by their names in the paper; `clip` is r_max, `form` the multiplicative form."""

    eta_a: float = 0.0
    eta_m: float = 0.0
    b1: float = 0.0
    b2: float = 0.98
    eps: float = 1e-20
    wd: float = 0.0
    wd_mult: float = 0.0
    tau: float = 1e-8
    clip: float | None = 0.75
    form: str = "normalized_rho"
    block_exponent: float = 0.0


@dataclass(frozen=True)
class Result:
    """w_new before rounding, the new states, and the magnitude that rounding errors of float32 are measured by:
    |w| and every term of the step, each without the cancellation inside it."""

    w_new: F64
    states: dict[str, F64]
    magnitude: F64


def adam_branch(g: F64, s: dict[str, F64], h: Hyper, t: int) -> tuple[F64, F64, dict[str, F64]]:
    """u_a, its magnitude, m and v."""
    m = h.b1 * s["m"] + (1 - h.b1) * g
    v = h.b2 * s["v"] + (1 - h.b2) * g**2
    m_hat = m / (1 - h.b1**t)
    v_hat = v / (1 - h.b2**t)
    u_a = -h.eta_a * m_hat / (np.sqrt(v_hat) + h.eps)
    m_abs = (h.b1 * np.abs(s["m"]) + (1 - h.b1) * np.abs(g)) / (1 - h.b1**t)
    return u_a, h.eta_a * m_abs / (np.sqrt(v_hat) + h.eps), {"m": m, "v": v}


def rho(w: F64, h: Hyper) -> F64 | float:
    match h.form:
        case "relative":
            return 1.0
        case "normalized_rho_tensor":
            return max(float(np.sqrt(np.mean(w**2))), h.tau)
        case "normalized_rho" | "unnormalized_rho":
            return np.maximum(np.abs(w), h.tau)
    raise AssertionError(h.form)


def block_factors(w: F64, exponent: float, block: int = 256) -> F64:
    """Of the multiplicative rate: block by block, from the largest magnitude of each and their geometric mean."""
    blocks = [np.s_[i, j : j + block] for i in range(len(w)) for j in range(0, w.shape[1], block)]
    largest = [np.abs(w[where]).max() for where in blocks]
    alive = [size for size in largest if size > 0]
    typical = np.exp(np.mean(np.log(alive))) if alive else 1.0
    factors = np.ones_like(w)
    for where, size in zip(blocks, largest, strict=True):
        if size > 0:
            factors[where] = (size / typical) ** exponent
    return factors


def multiplicative_branch(
    w: F64, g: F64, s: dict[str, F64], h: Hyper, t: int, *, projection: F64 | None = None
) -> tuple[F64, dict[str, F64]]:
    """u_m and the state of v_e (`v_r` with Apollo-E, none for `unnormalized_rho`)."""
    g_e = np.log(2) * w * g
    states: dict[str, F64] = {}
    if h.form == "unnormalized_rho":
        r = -h.eta_m * g_e
    elif projection is not None:
        scale, states["v_r"] = apollo_scale(g_e, s["v_r"], projection, h, t)
        r = -h.eta_m * scale * g_e
    else:
        states["v_e"] = h.b2 * s["v_e"] + (1 - h.b2) * g_e**2
        r = -h.eta_m * g_e / (np.sqrt(states["v_e"] / (1 - h.b2**t)) + h.eps)
    if h.block_exponent:
        r = r * block_factors(w, h.block_exponent)
    u_m = r / rho(w, h)
    return (u_m if h.clip is None else np.clip(u_m, -h.clip, h.clip)), states


def apollo_scale(g_e: F64, v_r: F64, projection: F64, h: Hyper, t: int) -> tuple[F64, F64]:
    """Channel by channel, as the text says it: the channels run along the larger dimension."""
    wide = g_e.shape[0] <= g_e.shape[1]
    channels = g_e.T if wide else g_e  # (channels, n)
    second = v_r.T if wide else v_r  # (channels, r)
    r, n = projection.shape
    new, scale = np.empty_like(second), np.empty(len(channels))
    for j, channel in enumerate(channels):
        reduced = projection @ channel
        new[j] = h.b2 * second[j] + (1 - h.b2) * reduced**2
        normalized = reduced / (np.sqrt(new[j] / (1 - h.b2**t)) + h.eps)
        size = np.linalg.norm(reduced)
        scale[j] = 0.0 if size == 0 else np.sqrt(n / r) * np.linalg.norm(normalized) / size
    return (scale[None, :], new.T) if wide else (scale[:, None], new)


def adamw(w: F64, g: F64, s: dict[str, F64], h: Hyper, t: int, *, projection: F64 | None = None) -> Result:
    u_a, size, states = adam_branch(g, s, h, t)
    decay = h.eta_a * h.wd * w
    return Result(w + u_a - decay, states, np.abs(w) + size + np.abs(decay))


def madam(w: F64, g: F64, s: dict[str, F64], h: Hyper, t: int, *, projection: F64 | None = None) -> Result:
    u_m, states = multiplicative_branch(w, g, s, h, t, projection=projection)
    decay = h.eta_m * h.wd_mult * w
    return Result(w + w * u_m - decay, states, np.abs(w) + np.abs(w * u_m) + np.abs(decay))


def m_plus_adam(w: F64, g: F64, s: dict[str, F64], h: Hyper, t: int, *, projection: F64 | None = None) -> Result:
    u_a, size, additive = adam_branch(g, s, h, t)
    u_m, multiplicative = multiplicative_branch(w, g, s, h, t, projection=projection)
    decay = h.eta_a * h.wd * w + h.eta_m * h.wd_mult * w
    magnitude = np.abs(w) + size + np.abs(w * u_m) + np.abs(decay)
    return Result(w + w * u_m + u_a - decay, additive | multiplicative, magnitude)


def additive_twin(w: F64, g: F64, s: dict[str, F64], h: Hyper, t: int, *, projection: F64 | None = None) -> Result:
    u_a, size, states = adam_branch(g, s, h, t)
    second = -h.eta_m * g / (np.sqrt(states["v"] / (1 - h.b2**t)) + h.eps)
    if h.clip is not None:
        second = np.clip(second, -h.clip * np.abs(w), h.clip * np.abs(w))
    decay = h.eta_a * h.wd * w + h.eta_m * h.wd_mult * w
    return Result(w + u_a + second - decay, states, np.abs(w) + size + np.abs(second) + np.abs(decay))


def eco_alpha(v: F64, h: Hyper, t: int) -> F64:
    """What ECO multiplies the rounding error of the weight by before it adds it to m (docs/algorithm.md, (35))."""
    return (1 - h.b1**t) / h.eta_a * (1 - 1 / h.b1) * (np.sqrt(v / (1 - h.b2**t)) + h.eps)


RULES = {"adamw": adamw, "madam": madam, "m-plus-adam": m_plus_adam, "additive-twin": additive_twin}
