"""Native FP8 against its emulation, and a short training in every regime, on one GPU: prints tables as Markdown.

    python benchmarks/gpu_check.py                       # a Hopper GPU, a few minutes; no Transformer Engine needed
    python benchmarks/gpu_check.py --device cpu --small  # the same code on tiny sizes, to see that the script works

1. Casts: the GPU's FP8 codes are the CPU's, for every bf16 value at several scales.
2. Products: for each projection shape of the four LLaMA sizes, output and both gradients of the native layer against
   the emulated one (signal to quantisation noise, dB) and the time of a forward and backward pass.
3. Training: some steps of a LLaMA in each regime (masters x compute) with M+Adam on invented sequences.
4. Speed, not with --small: optimizer_step.py (share of the measured copy bandwidth, ratio to torch's fused AdamW),
   training_step.py (tokens/s beside a minimal loop) and memory.py (peak against what must live), each a process.

Exit code 1 if codes differ, a ratio is below the floor (18 dB output, 17 dB gradients), a loss does not fall, or a
benchmark fails.
"""

from __future__ import annotations

import argparse
import math
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from mpadam.model.build import build_model
from mpadam.model.fp8.control import fp8_step
from mpadam.model.fp8.convert import convert_to_fp8
from mpadam.model.loss import loss_sum
from mpadam.model.sizes import PAPER_SIZES, LlamaSize
from mpadam.numerics import saturating_cast
from mpadam.optim.names import MASTERS
from mpadam.optim.registry import build_optimizer
from mpadam.study.spec import ModelSpec

FLOORS = {"output": 18.0, "input gradient": 17.0, "weight gradient": 17.0}
SCALES = (1.0, 0.3, 737.1, 2.0**40)
WARM_UP = 3
PRODUCT_COLUMNS = ("size", "projection", "tokens x in x out", *(f"{name} dB" for name in FLOORS),
                   "bf16 ms", "native ms", "emulated ms")  # fmt: skip
TRAINING_COLUMNS = ("regime", "first loss", "last loss", "flushed, first step", "flushed, last step", "ms a step",
                    "peak GiB")  # fmt: skip


SPEED = (
    "optimizer_step.py --size 350m --rounds 20 --masters bf16 fp8 nvfp4s",
    "training_step.py --sizes 60m 130m --batch 64 --rounds 20",
    "memory.py --size 130m --layers 0 --vocabulary 32000 --batch 16 --length 256 --compile",
)


@dataclass(frozen=True)
class Plan:
    """How much of it all: `positions` a product and `steps` a training."""

    sizes: dict[str, LlamaSize]
    positions: int
    repeats: int
    trained: LlamaSize
    vocabulary: int
    sequences: int
    sequence_length: int
    steps: int


FULL = Plan(PAPER_SIZES, 65536, 10, PAPER_SIZES["60m"], 32000, 64, 256, 50)
SMALL_SIZES = {"tiny": LlamaSize(32, 48, 1, 2), "awkward": LlamaSize(32, 53, 1, 2)}
SMALL = Plan(SMALL_SIZES, 40, 1, SMALL_SIZES["awkward"], 64, 4, 16, 6)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--small", action="store_true", help="tiny sizes")
    args = parser.parse_args(argv)
    started = time.perf_counter()
    plan, device = SMALL if args.small else FULL, torch.device(args.device)
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False  # sums in float32, as in training
    print(header(device) + "\n")
    faults = check_casts(device)
    faults += table(PRODUCT_COLUMNS, products(plan, device))
    faults += table(TRAINING_COLUMNS, trainings(plan, device))
    faults += speed(plan, device)
    print(f"{time.perf_counter() - started:.0f} s. " + ("; ".join(faults) or "All as it should be."))
    return bool(faults)


def header(device: torch.device) -> str:
    """Device and versions."""
    versions = f"torch {torch.__version__}, CUDA {torch.version.cuda}, Python {platform.python_version()}"
    if device.type == "cpu":
        return f"CPU ({platform.machine()}); {versions}"
    major, minor = torch.cuda.get_device_capability()
    return f"{torch.cuda.get_device_name()}, compute capability {major}.{minor}; {versions}"


def table(columns: tuple[str, ...], lines: Iterator[tuple[str, list[str]]]) -> list[str]:
    """Print a table as its lines come; returns their faults."""
    print(row(*columns) + "\n|" + "---|" * len(columns))
    faults = []
    for line, problems in lines:
        print(line, flush=True)
        faults += problems
    print()
    return faults


def row(*cells: str) -> str:
    return "| " + " | ".join(cells) + " |"


def check_casts(device: torch.device) -> list[str]:
    """Faults: formats in which some bf16 value, at some scale, is cast to another value than on the CPU."""
    values = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
    faults = []
    for fmt in ("e4m3", "e5m2"):
        for scale in SCALES:
            here = saturating_cast(values * scale, fmt).float()
            there = saturating_cast(values.to(device) * scale, fmt).cpu().float()
            differing = int(((here != there) & ~(here.isnan() & there.isnan())).sum())
            if differing:
                faults.append(f"{differing} casts to {fmt} at scale {scale} differ from the CPU's")
    print(f"Casts to e4m3 and e5m2 of 65,536 values at {len(SCALES)} scales: {'; '.join(faults) or 'as on the CPU'}.\n")
    return faults


# --- products --------------------------------------------------------------------------------------------------------


def products(plan: Plan, device: torch.device) -> Iterator[tuple[str, list[str]]]:
    """A line and its faults for each projection shape."""
    for name, size in plan.sizes.items():
        h, f = size.hidden_size, size.intermediate_size
        for projection, k, n in (("q, k, v, o", h, h), ("gate, up", h, f), ("down", f, h)):
            yield compare_product(name, projection, plan, (k, n), device)


def compare_product(
    name: str, projection: str, plan: Plan, shape: tuple[int, int], device: torch.device
) -> tuple[str, list[str]]:
    k, n = shape
    generator = torch.Generator(device=device).manual_seed(k * n)
    x = torch.randn(plan.positions, k, device=device, generator=generator).bfloat16()
    weight = (torch.randn(n, k, device=device, generator=generator) * 0.02).bfloat16()
    dy = (torch.randn(plan.positions, n, device=device, generator=generator) * 1e-5).bfloat16()
    results, times = {}, {}
    for backend in ("bf16", "native", "emulated"):
        step = layer_step(backend, x, weight, dy)
        for _ in range(WARM_UP):  # after the first step, FP8 has scales
            results[backend] = step()
        times[backend] = milliseconds(step, plan.repeats, device)
    ratios = [sqnr(a, b) for a, b in zip(results["native"], results["emulated"], strict=True)]
    faults = [
        f"{name} {projection}: {what} at {ratio:.1f} dB"
        for (what, floor), ratio in zip(FLOORS.items(), ratios, strict=True)
        if not ratio > floor
    ]
    cells = (f"{plan.positions} x {k} x {n}", *(f"{r:.1f}" for r in ratios), *(f"{t:.2f}" for t in times.values()))
    return row(name, projection, *cells), faults


def layer_step(backend: str, x: Tensor, weight: Tensor, dy: Tensor) -> Callable[[], tuple[Tensor, Tensor, Tensor]]:
    """A forward and backward pass of one layer: output, input gradient, weight gradient."""
    model = nn.ModuleDict({"up_proj": nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")})
    model["up_proj"].weight = nn.Parameter(weight)
    if backend != "bf16":
        convert_to_fp8(model, backend=backend)
    x = x.detach().requires_grad_()

    def step() -> tuple[Tensor, Tensor, Tensor]:
        x.grad = model["up_proj"].weight.grad = None
        with fp8_step(model):
            y = model["up_proj"](x)
            y.backward(dy)
        assert x.grad is not None
        return y.detach(), x.grad, model["up_proj"].weight.grad

    return step


def sqnr(result: Tensor, reference: Tensor) -> float:
    """Signal to noise in dB."""
    noise = (result.float() - reference.float()).square().sum(dtype=torch.float64)
    return 10 * math.log10(reference.float().square().sum(dtype=torch.float64) / noise) if noise else math.inf


def milliseconds(step: Callable[[], object], repeats: int, device: torch.device) -> float:
    _wait(device)
    start = time.perf_counter()
    for _ in range(repeats):
        step()
    _wait(device)
    return (time.perf_counter() - start) / repeats * 1e3


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


# --- training --------------------------------------------------------------------------------------------------------


def trainings(plan: Plan, device: torch.device) -> Iterator[tuple[str, list[str]]]:
    """A line and its faults for each regime."""
    for masters in MASTERS:
        for compute in ("bf16", "fp8"):
            yield train(plan, masters, compute, device)


def train(plan: Plan, masters: str, compute: str, device: torch.device) -> tuple[str, list[str]]:
    """Some steps of M+Adam from the same start, on the same sequences."""
    size = vars(plan.trained)
    spec = ModelSpec(**size, vocab_size=plan.vocabulary, sequence_length=plan.sequence_length, attention="sdpa")
    model = build_model(spec, seed=0, device=str(device))
    if compute == "fp8":
        convert_to_fp8(model, backend="native")
    values = {"lr": 1e-3, "lr_mult": 4e-3}
    state_dtype = "fp32" if masters == "fp32" else "bf16"
    optimizer = build_optimizer(model, "m-plus-adam", values, masters=masters, state_dtype=state_dtype)
    losses, shares, seconds = [], [], []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for t in range(plan.steps):
        ids = invented(plan, seed=t).to(device)
        start = time.perf_counter()
        optimizer.zero_grad()
        with fp8_step(model, count_flushed=t in (0, plan.steps - 1)) as step:
            loss, _ = loss_sum(model, ids, ids, scale=1 / (ids.shape[0] * (ids.shape[1] - 1)))
            loss.backward()
        optimizer.step()
        losses.append(loss.item())
        seconds.append(time.perf_counter() - start)
        shares.append(step.share)
    peak = f"{torch.cuda.max_memory_allocated() / 2**30:.1f}" if device.type == "cuda" else ""
    flushed = ("" if share is None else f"{share:.2%}" for share in (shares[0], shares[-1]))
    regime, typical = f"{masters}-{compute}", sorted(seconds)[len(seconds) // 2] * 1e3
    line = row(regime, f"{losses[0]:.3f}", f"{losses[-1]:.3f}", *flushed, f"{typical:.1f}", peak)
    return line, [] if losses[-1] < losses[0] else [f"{regime}: loss {losses[0]:.3f} to {losses[-1]:.3f}"]


def invented(plan: Plan, *, seed: int) -> Tensor:
    """Sequences that count upwards, each with a stride of its own, in a thousand of the vocabulary's tokens."""
    generator = torch.Generator().manual_seed(seed)
    tokens = min(plan.vocabulary, 1000)
    start = torch.randint(tokens, (plan.sequences, 1), generator=generator)
    stride = torch.randint(1, 8, (plan.sequences, 1), generator=generator)
    return (start + stride * torch.arange(plan.sequence_length)) % tokens


# --- speed -----------------------------------------------------------------------------------------------------------


def speed(plan: Plan, device: torch.device) -> list[str]:
    """Run the benchmarks of `SPEED`; their faults."""
    faults = []
    for command in SPEED if plan is FULL and device.type == "cuda" else ():
        script, *options = command.split()
        path = Path(__file__).with_name(script)
        run = subprocess.run([sys.executable, str(path), "--device", "cuda", *options], check=False)
        faults += [f"{script} ended with code {run.returncode}"] if run.returncode else []
        print()
    return faults


if __name__ == "__main__":
    sys.exit(main())
