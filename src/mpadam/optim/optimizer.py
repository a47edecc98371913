"""`MPlusAdam`, `AdamW`, `Madam` and the control `AdditiveTwin`, for any training loop.

    optimizer = MPlusAdam(model.parameters(), lr=8e-5, lr_mult=4e-3)
    loss.backward(); optimizer.step(); optimizer.zero_grad()

Options that all of them share, each also per parameter group:

weight_format   what the weights are kept in: a name ("fp32" "bf16" "fp8_e4m3" "fp8_e5m2" "nvfp4" "nvfp4_sticky"), a
                format object, or None for the parameter's own dtype. If it is not the parameter's dtype, the optimizer
                holds the weight and the parameter is its compute copy.
write_back      "nearest" | "stochastic" | "kahan": how an update is rounded into the format.
state_dtype     of the moments: "fp32" | "bf16" (or the torch dtypes), None for the parameter's dtype.
carry_dtype     of Kahan's carry; None is "bf16", which holds 8 bits below the weight's own.
shadow          "none" | "refreshed" | "persistent", with shadow_dtype (None: as the states): only for stored codes.
seed            of the rounding bits and of Apollo-E's projections.
compile         torch.compile the step.

A standard scheduler moves `lr`; `tie_lr_mult=True` moves `lr_mult` along with it. Every bad value is a ValueError that
names key, value and remedy. Equations: `mpadam.optim.rules`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from mpadam.numerics.base import Format
from mpadam.optim.base import LowPrecisionOptimizer

WeightFormat = str | Format | None
Dtype = str | torch.dtype | None


class AdamW(LowPrecisionOptimizer):
    """AdamW with a decoupled decay `lr * weight_decay * w`."""

    rule = "adamw"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.87, 0.98),
        eps: float = 1e-20,
        weight_decay: float = 0.1,
        write_back: str = "nearest",
        weight_format: WeightFormat = None,
        state_dtype: Dtype = None,
        carry_dtype: Dtype = None,
        shadow: str = "none",
        shadow_dtype: Dtype = None,
        seed: int = 0,
        compile: bool = False,
    ) -> None:
        super().__init__(params, _options(locals()))


class Madam(LowPrecisionOptimizer):
    """The multiplicative branch alone. Its only rate is multiplicative, and called `lr`.

    multiplicative_form: the form of the branch; "relative", the default, is nearest to Madam as it was published
        (w * (1 -+ lr * g / rms(g))) [our reading].
    """

    rule = "madam"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 4e-3,
        *,
        beta2: float = 0.98,
        eps: float = 1e-20,
        weight_decay: float = 0.01,
        tau: float = 1e-8,
        max_relative_step: float | None = 0.75,
        multiplicative_form: str = "relative",
        second_moment: str = "full",
        apollo_rank: int = 4,
        apollo_refresh: int = 200,
        apollo_scope: str = "projections",
        write_back: str = "nearest",
        weight_format: WeightFormat = None,
        state_dtype: Dtype = None,
        carry_dtype: Dtype = None,
        shadow: str = "none",
        shadow_dtype: Dtype = None,
        seed: int = 0,
        compile: bool = False,
    ) -> None:
        super().__init__(params, _options(locals()))


class MPlusAdam(LowPrecisionOptimizer):
    """M+Adam (paper.md section 2): an Adam branch and a multiplicative branch, w_new = w + w u_m + u_a - decay.

    lr, lr_mult: additive and multiplicative rate (`--lr` and `--m_adam_lr_e` of the reference; never swap them).
    weight_decay, weight_decay_mult: decays, each times its own rate.
    tau, max_relative_step: least rho, and the clip of u_m (None: Algorithm 1, no clip).
    multiplicative_form: "normalized_rho" | "normalized_rho_tensor" | "relative" | "unnormalized_rho".
    block_scale_exponent: each block of 256 weights of a row has lr_mult times (its scale / the tensor's typical one) to
        this power; 0, the default, is the paper's rule, others are an ablation of it [our reading].
    second_moment: "full", or "apollo_e" for v_e in rank `apollo_rank`, projected anew every `apollo_refresh` updates;
        `apollo_scope` "projections" (groups with that role, and groups without a role) or "all_2d".
    tie_lr_mult: lr_mult is multiplied by lr / (lr at construction), so that one scheduler moves both.
    """

    rule = "m-plus-adam"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 8e-5,
        lr_mult: float = 4e-3,
        *,
        betas: tuple[float, float] = (0.87, 0.98),
        eps: float = 1e-20,
        weight_decay: float = 0.1,
        weight_decay_mult: float = 0.01,
        tau: float = 1e-8,
        max_relative_step: float | None = 0.75,
        multiplicative_form: str = "normalized_rho",
        block_scale_exponent: float = 0.0,
        second_moment: str = "full",
        apollo_rank: int = 4,
        apollo_refresh: int = 200,
        apollo_scope: str = "projections",
        write_back: str = "nearest",
        weight_format: WeightFormat = None,
        state_dtype: Dtype = None,
        carry_dtype: Dtype = None,
        shadow: str = "none",
        shadow_dtype: Dtype = None,
        seed: int = 0,
        compile: bool = False,
        tie_lr_mult: bool = False,
    ) -> None:
        super().__init__(params, _options(locals()))


class AdditiveTwin(LowPrecisionOptimizer):
    """M+Adam with its second branch made additive: the control of the claim that the gain is multiplicative."""

    rule = "additive-twin"

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 8e-5,
        lr_mult: float = 4e-3,
        *,
        betas: tuple[float, float] = (0.87, 0.98),
        eps: float = 1e-20,
        weight_decay: float = 0.1,
        weight_decay_mult: float = 0.01,
        max_relative_step: float | None = 0.75,
        write_back: str = "nearest",
        weight_format: WeightFormat = None,
        state_dtype: Dtype = None,
        carry_dtype: Dtype = None,
        shadow: str = "none",
        shadow_dtype: Dtype = None,
        seed: int = 0,
        compile: bool = False,
        tie_lr_mult: bool = False,
    ) -> None:
        super().__init__(params, _options(locals()))


def _options(arguments: dict[str, Any]) -> dict[str, Any]:
    """The keyword arguments of a constructor as the defaults of its groups."""
    return {key: value for key, value in arguments.items() if key not in ("self", "params", "__class__")}
