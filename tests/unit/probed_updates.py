"""Optimizers and their next update, for tests of what probes say of it."""

import torch
from torch import nn

from mpadam import AdamW, AdditiveTwin, Madam, MPlusAdam
from mpadam.numerics import Fp8Blocks
from mpadam.probes.survey import survey
from mpadam.probes.survival import count_survival, survival_record

SHAPE = (5, 40)
RULES = {
    "adamw": (AdamW, {"lr": 1e-2}),
    "madam": (Madam, {"lr": 1e-2}),
    "m-plus-adam": (MPlusAdam, {"lr": 1e-2, "lr_mult": 2e-2}),
    "rho-tensor": (MPlusAdam, {"lr": 1e-2, "lr_mult": 2e-2, "multiplicative_form": "normalized_rho_tensor"}),
    "apollo-e": (MPlusAdam, {"lr": 1e-2, "lr_mult": 2e-2, "second_moment": "apollo_e", "apollo_refresh": 2}),
    "unnormalized": (MPlusAdam, {"lr": 1e-2, "lr_mult": 0.5, "multiplicative_form": "unnormalized_rho"}),
    "additive-twin": (AdditiveTwin, {"lr": 1e-2, "lr_mult": 2e-2}),
}
FORMATS = ["fp32", "bf16", "fp8_e5m2", "fp8_e4m3", "nvfp4", "nvfp4_sticky", Fp8Blocks(power_of_two_scale=False)]
STORES = [
    *[(fmt, {"write_back": write_back}) for fmt in FORMATS for write_back in ("nearest", "stochastic", "kahan")],
    *[("fp8_e5m2", {"shadow": shadow}) for shadow in ("refreshed", "persistent")],
]


def normal(seed, shape=SHAPE, scale=1.0):
    return scale * torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def optimizer_of(rule, weight, **options):
    """An optimizer over one bf16 parameter, which is its only one, and that parameter with a gradient."""
    cls, rates = RULES[rule] if isinstance(rule, str) else rule
    p = nn.Parameter(weight.bfloat16())
    optimizer = cls([p], **{"state_dtype": "bf16", **rates, **options})
    optimizer.reload_weights({p: weight})
    return optimizer, p


def look(optimizer, p):
    return optimizer.preview(p)


def writer(look):
    """part of a step -> the stored weight that it alone would leave"""
    x, update = look.operands, look.update
    return look.plan.store.part_writer(x.stored, update.stored, update.before, x.bits())


def one_update(rule, weight, gradient, **options):
    """The first update of weights, before it is made."""
    optimizer, p = optimizer_of(rule, torch.tensor(weight), **options)
    p.grad = torch.tensor(gradient).bfloat16()
    return look(optimizer, p)


def of_branch(update, branch):
    """bin -> (intended, survived) of a branch."""
    record = survival_record(count_survival(update), update.plan.rule)
    return dict(zip(record["bins"], zip(*record[branch].values(), strict=True), strict=True))


def survey_of(optimizer, p):
    module = nn.Module()
    module.register_parameter("weight", p)
    return survey(module, optimizer)
