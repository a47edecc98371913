"""The parameters of a paper's LLaMA with weights and gradients, and optimizers over them, ours and others'.

PaperSet(PAPER_SIZES["60m"], vocabulary=32000).ours("m-plus-adam", "bf16", compile=True).step()
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from mpadam.llama import LlamaSize
from mpadam.measure.step_time import GRADIENT, WEIGHT, Subject
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.memory import parameter_bytes
from mpadam.optim.registry import build_optimizer

PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

_Tensors = list[Tensor] | tuple[Tensor, ...]


class _Norm(nn.Module):
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(size))


@dataclass
class PaperSet:
    """size, vocabulary: of the model.  bytes: that a step of (name, masters) moves, noted as subjects are built."""

    size: LlamaSize
    vocabulary: int = 32000
    device: str = "cpu"
    bytes: dict[tuple[str, str], int] = field(default_factory=dict)

    def model(self) -> nn.Module:
        """Modules with the model's parameters in bf16, their roles told by type and name; every one has a gradient."""
        h, f = self.size.hidden_size, self.size.intermediate_size
        shapes = {**dict.fromkeys(PROJECTIONS, (h, h)), "gate_proj": (h, f), "up_proj": (h, f), "down_proj": (f, h)}
        parts: dict[str, nn.Module] = {"embed_tokens": nn.Embedding(self.vocabulary, h, device="meta")}
        for n in range(self.size.layers):
            for name, (columns, rows) in shapes.items():
                parts[f"{n}_{name}"] = nn.Linear(columns, rows, bias=False, device="meta")
            parts |= {f"{n}_{name}": _Norm(h) for name in ("input_norm", "post_norm")}
        parts |= {"norm": _Norm(h), "lm_head": nn.Linear(h, self.vocabulary, bias=False, device="meta")}
        model = nn.ModuleDict(parts).to_empty(device=self.device).to(torch.bfloat16)
        stream = torch.Generator().manual_seed(0)
        for p in model.parameters():
            p.data.copy_(torch.randn(p.shape, generator=stream) * WEIGHT)
            p.grad = (torch.randn(p.shape, generator=stream) * GRADIENT).to(p)
        return model

    def count(self) -> int:
        """Parameters."""
        return self.size.parameters() - 2 * (32000 - self.vocabulary) * self.size.hidden_size

    def optimizer(self, name: str, masters: str, *, compile: bool) -> LowPrecisionOptimizer:
        """An optimizer of ours over the parameters, compiled or eager; states as wide as the weights."""
        state_dtype = "fp32" if masters == "fp32" else "bf16"
        return build_optimizer(self.model(), name, {}, masters=masters, state_dtype=state_dtype, compile=compile)

    def ours(self, name: str, masters: str, *, compile: bool) -> Subject:
        """The step of such an optimizer."""
        optimizer = self.optimizer(name, masters, compile=compile)
        label = name if compile else f"{name}, eager"
        self.bytes[label, masters] = step_bytes(optimizer)
        return Subject(label, masters, optimizer.step)

    def rival(self, label: str, build: Callable[[list[nn.Parameter]], Any]) -> Subject:
        """Another optimizer over the same parameters, all bf16."""
        parameters = list(self.model().parameters())
        optimizer = build(parameters)
        self.bytes[label, "bf16"] = 0
        return Subject(label, "bf16", optimizer.step)


def first_step(subject: Subject) -> float:
    """Seconds of a step; of the first, with all that is compiled and allocated in it."""
    begin = time.perf_counter()
    subject.step()
    return time.perf_counter() - begin


def step_bytes(optimizer: LowPrecisionOptimizer) -> int:
    """Bytes that a step has to move."""
    kept = [parameter_bytes(optimizer, p) for group in optimizer.param_groups for p in group["params"]]
    # Weight, copy and states are written and all but the copy read; the gradient is only read.
    return int(sum(2 * b.weight + b.compute_copy + b.gradient + 2 * b.states for b in kept))


def moved_bytes(name: str, masters: str, weights: PaperSet) -> int | None:
    """Bytes that a step has to move, or None where only a stopwatch knows."""
    return weights.bytes.get((name, masters)) or None


@dataclass
class ForeachMPlusAdam:
    """M+Adam as torch's `foreach` optimizers are written: a list operation for each line, all in float32.

    The yardstick of what a compiler saves, not an optimizer to train with: one group, and rates that stay.
    """

    params: list[Tensor]
    lr: float = 8e-5
    lr_mult: float = 4e-3
    betas: tuple[float, float] = (0.87, 0.98)
    eps: float = 1e-20
    decay: float = 8e-5 * 0.1 + 4e-3 * 0.01
    t: int = 0

    def __post_init__(self) -> None:
        self.m, self.v, self.v_e = ([torch.zeros_like(p) for p in self.params] for _ in range(3))

    @torch.no_grad()
    def step(self) -> None:
        self.t += 1
        b1, b2 = self.betas
        w = [p.float() for p in self.params]
        g = [p.grad.float() for p in self.params if p.grad is not None]
        g_e = torch._foreach_mul(torch._foreach_mul(w, g), 0.6931471805599453)
        m = _average(self.m, g, b1)
        roots = []
        for kept, new in ((self.v, g), (self.v_e, g_e)):
            moment = _average(kept, torch._foreach_mul(new, new), b2)
            root = torch._foreach_sqrt(torch._foreach_div(moment, 1 - b2**self.t))
            roots.append(torch._foreach_add(root, self.eps))
        u_a = torch._foreach_mul(torch._foreach_div(m, roots[0]), -self.lr / (1 - b1**self.t))
        u_m = torch._foreach_mul(torch._foreach_div(g_e, roots[1]), -self.lr_mult)
        u_m = torch._foreach_div(u_m, torch._foreach_clamp_min(torch._foreach_abs(w), 1e-8))
        u_m = torch._foreach_clamp_max(torch._foreach_clamp_min(u_m, -0.75), 0.75)
        delta = torch._foreach_add(u_a, torch._foreach_mul(w, u_m))
        delta = torch._foreach_add(delta, torch._foreach_mul(w, -self.decay))
        torch._foreach_copy_(self.params, torch._foreach_add(w, delta))


def _average(kept: list[Tensor], new: _Tensors, beta: float) -> _Tensors:
    """The moving average in float32, which is rounded into `kept`."""
    average = torch._foreach_mul([t.float() for t in kept], beta)
    torch._foreach_add_(average, new, alpha=1 - beta)
    torch._foreach_copy_(kept, average)
    return average


def foreach_m_plus_adam(params: list[nn.Parameter]) -> ForeachMPlusAdam:
    """`ForeachMPlusAdam` over parameters."""
    return ForeachMPlusAdam(list(params))
