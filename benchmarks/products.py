"""One forward and backward pass in bf16 on each route of its matrix products, next to the same pass in float32.

    python benchmarks/products.py                       # this processor
    ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=AVX2 python benchmarks/products.py     # as one with AVX2 alone

The model is the smoke study's larger one, with its vocabulary, unless options say otherwise. `native` are torch's own
bf16 products, `float32` those of `mpadam.model.products`, the route of processors without bf16 instructions. All take
turns in one process; what is reported is the CPU time of one thread.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from report import Line, report

from mpadam.machine import native_bf16_products
from mpadam.measure.step_time import Subject, time_subjects
from mpadam.model.build import build_model
from mpadam.model.loss import loss_sum
from mpadam.model.products import bf16_products
from mpadam.study.auto import Bf16Products
from mpadam.study.spec import ModelSpec

FLOAT32 = ("float32 model", "fp32")


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    torch.set_num_threads(1)
    everyone = [
        Subject(*FLOAT32, one_pass(args, torch.float32, None)),
        *(Subject(route, "bf16", one_pass(args, torch.bfloat16, route)) for route in ("native", "float32")),
    ]
    timings = time_subjects(everyone, warmup=1, rounds=args.rounds, steps=1, device="cpu", clock=time.thread_time)
    lines = [Line(t.name, t.masters, t.samples) for t in timings]
    about = {**vars(args), "out": str(args.out), "instructions for bf16 products": native_bf16_products()}
    report("products", lines, about, reference=FLOAT32, device="cpu", out=args.out)
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"hidden": 96, "intermediate": 256, "layers": 3, "heads": 3, "vocabulary": 768}.items():
        found.add_argument(f"--{name}", type=int, default=default)
    found.add_argument("--batch", type=int, default=32)
    found.add_argument("--length", type=int, default=128)
    found.add_argument("--attention", choices=["eager", "sdpa"], default="eager")
    found.add_argument("--rounds", type=int, default=9)
    found.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    return found


def one_pass(args: argparse.Namespace, dtype: torch.dtype, route: Bf16Products | None) -> Callable[[], object]:
    """A training's forward and backward pass over one batch of random tokens."""
    spec = ModelSpec(
        hidden_size=args.hidden,
        intermediate_size=args.intermediate,
        layers=args.layers,
        heads=args.heads,
        vocab_size=args.vocabulary,
        sequence_length=args.length,
        attention=args.attention,
    )
    model = build_model(spec, seed=0, dtype=dtype)
    tokens = torch.randint(args.vocabulary, (args.batch, args.length), generator=torch.Generator().manual_seed(0))
    scale = 1.0 / (args.batch * (args.length - 1))

    def run() -> None:
        model.zero_grad(set_to_none=True)
        with bf16_products(route):
            loss, _ = loss_sum(model, tokens, tokens, scale=scale)
        loss.backward()

    return run


if __name__ == "__main__":
    sys.exit(main())
