"""Memory of training steps: what is allocated at the peak, and between steps, against what must live.

    python benchmarks/memory.py                                          # CPU, a 60m of two layers: a minute
    python benchmarks/memory.py --device cuda --size 130m --layers 0 --vocabulary 32000 --batch 64

What must live through an optimizer step: weights, compute copies, gradients and states, counted from the tensors that
an optimizer holds (`mpadam.optim.memory`). On a CPU every allocation and release of torch is followed by its profiler
while the step runs; on a GPU the allocator keeps the same numbers. `peak` is the most that was allocated during the
optimizer's step; its ratio to what must live is to be at most 1.1 on a GPU. `forward` is the peak of forward and
backward, for comparison: where that is larger, the optimizer adds nothing to a job's memory.
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path

import torch
from allocations import peak_bytes
from report import Line, report

from mpadam.llama import PAPER_SIZES
from mpadam.model.build import build_model
from mpadam.model.loss import loss_sum
from mpadam.optim.memory import parameter_bytes
from mpadam.optim.registry import build_optimizer
from mpadam.study.spec import ModelSpec

CASES = (("adamw", "bf16"), ("m-plus-adam", "bf16"), ("m-plus-adam-kahan", "bf16"), ("m-plus-adam", "fp8"),
         ("m-plus-adam", "nvfp4s"), ("m-plus-adam", "fp32"))  # fmt: skip


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    spec = model_spec(args)
    lines = []
    for name, masters in CASES:
        found = measured(spec, name, masters, args)
        print(f"{name}, {masters}: " + ", ".join(f"{key} {value / 2**20:.1f} MiB" for key, value in found.items()))
        lines.append(Line(name, masters, (found["peak"] / found["must live"],)))
    about = {"size": args.size, "layers": spec.layers, "vocabulary": args.vocabulary, "compiled": args.compile}
    report(
        "memory", lines, about, reference=("", ""), device=args.device, out=args.out, unit="peak / must live", scale=1
    )
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--size", choices=list(PAPER_SIZES), default="60m")
    found.add_argument("--layers", type=int, default=2, help="0: all")
    found.add_argument("--vocabulary", type=int, default=4000)
    found.add_argument("--batch", type=int, default=1)
    found.add_argument("--length", type=int, default=64)
    found.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    found.add_argument("--compile", action="store_true", help="the compiled step")
    found.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    return found


def model_spec(args: argparse.Namespace) -> ModelSpec:
    size = PAPER_SIZES[args.size]
    size = replace(size, layers=args.layers or size.layers)
    return ModelSpec(**vars(size), vocab_size=args.vocabulary, sequence_length=args.length, attention="sdpa")


def measured(spec: ModelSpec, name: str, masters: str, args: argparse.Namespace) -> dict[str, float]:
    """Bytes: must live, allocated at the peak of an optimizer step, at the peak of forward and backward."""
    state_dtype = "fp32" if masters == "fp32" else "bf16"
    model = build_model(spec, seed=0, device=args.device)
    optimizer = build_optimizer(model, name, {}, masters=masters, state_dtype=state_dtype, compile=args.compile)
    tokens = torch.zeros((args.batch, args.length), dtype=torch.int64, device=args.device)

    def gradients() -> None:
        loss_sum(model, tokens, tokens, scale=1.0 / tokens.numel())[0].backward()

    gradients()
    optimizer.step()  # compiles
    held = sum(parameter_bytes(optimizer, p).total for p in model.parameters())
    peak = held + peak_bytes(optimizer.step, device=args.device)
    optimizer.zero_grad(set_to_none=True)
    without = sum(parameter_bytes(optimizer, p).total for p in model.parameters())
    return {"must live": held, "peak": peak, "forward": without + peak_bytes(gradients, device=args.device)}


if __name__ == "__main__":
    sys.exit(main())
