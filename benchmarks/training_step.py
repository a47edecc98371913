"""Training throughput, ours against a minimal loop around the same Transformers model and torch's fused AdamW.

    python benchmarks/training_step.py                                   # 60m and 130m, a few steps, CPU: minutes
    python benchmarks/training_step.py --sizes 60m --layers 2 --vocabulary 4000 --rounds 9
    python benchmarks/training_step.py --device cuda --batch 64 --rounds 30
    python benchmarks/training_step.py --sizes 60m --only-example         # the first example against torch, alone

A step is forward, backward, clipping and optimizer on one batch of random tokens, bf16 weights and states, the same
attention (sdpa) and the same initial weights in both. Ours is what `mpadam train` does in a step: loss and gradient of
the head in chunks, gradient norm, clipping, rounding of gradients, the compiled optimizer. The minimal loop is what one
would write: `model(input_ids, labels=...).loss.backward()`, `clip_grad_norm_`, `AdamW(fused=True)`. Equal settings is
ours with AdamW; M+Adam is measured next to it. *First example* is the minimal loop with the optimizer of the first
example of docs/optimizers.md in place of torch's, options that it does not give at their defaults; its optimizer and
torch's are timed alone as well. All take turns in one process; `--cpu-time` counts the seconds of the thread. The first
step of each is timed by itself, and what it compiles, it compiles again.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
from paper_set import first_step
from report import Line, report
from torch import Tensor, nn
from torch._inductor.utils import fresh_cache
from torch.optim import Optimizer

from mpadam import MPlusAdam
from mpadam.llama import PAPER_SIZES
from mpadam.measure.step_time import Subject, time_subjects
from mpadam.model.build import build_model
from mpadam.model.loss import loss_sum
from mpadam.optim.groups import parameter_groups
from mpadam.optim.registry import build_optimizer
from mpadam.study.spec import ModelSpec
from mpadam.training.gradients import global_norm, settle_

CLIP = 1.0
MINIMAL = "minimal loop, fused AdamW"
EXAMPLE = "minimal loop, first example"
ALONE = ", optimizer alone"


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    torch.set_num_threads(args.threads)
    clock = time.thread_time if args.cpu_time else time.perf_counter
    lines = []
    for name in args.sizes:
        spec = model_spec(name, args)
        tokens = torch.randint(spec.vocab_size, (args.batch, args.length), generator=torch.Generator().manual_seed(0))
        tokens = tokens.to(args.device)
        everyone = [
            *minimal(MINIMAL, name, build_model(spec, seed=0, device=args.device), tokens, fused_adamw),
            *minimal(EXAMPLE, name, build_model(spec, seed=0, device=args.device), tokens, first_example),
        ]
        if not args.only_example:
            rest = ("adamw", "m-plus-adam")
            everyone += [Subject(o, name, ours(spec, tokens, o, args.device, args.compile)) for o in rest]
        with fresh_cache():
            firsts = [first_step(subject) for subject in everyone]
            timings = time_subjects(everyone, warmup=2, rounds=args.rounds, steps=1, device=args.device, clock=clock)
        lines += [Line(t.name, t.masters, t.samples, None, s) for t, s in zip(timings, firsts, strict=True)]
    about = {
        key: vars(args)[key] for key in ("batch", "length", "layers", "vocabulary", "rounds", "compile", "cpu_time")
    }
    for name in args.sizes:
        own = [line for line in lines if line.variant == name]
        for variant in (name, name + ALONE):
            kept = [line for line in lines if line.variant == variant]
            file = f"training_step-{variant.replace(', ', '-').replace(' ', '-')}"
            report(file, kept, about, reference=(MINIMAL, variant), device=args.device, out=args.out)
        tokens_per_s = {
            line.name: args.batch * args.length / sorted(line.samples)[len(line.samples) // 2] for line in own
        }
        print("tokens/s: " + ", ".join(f"{key} {value:,.0f}" for key, value in tokens_per_s.items()) + "\n")
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--sizes", nargs="*", choices=list(PAPER_SIZES), default=["60m", "130m"])
    found.add_argument("--layers", type=int, help="fewer than the model has, for a quick look")
    found.add_argument("--vocabulary", type=int, default=32000)
    found.add_argument("--batch", type=int, default=2)
    found.add_argument("--length", type=int, default=256)
    found.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--rounds", type=int, default=5)
    found.add_argument("--only-example", action="store_true", help="the first example and torch's fused AdamW")
    found.add_argument("--no-compile", dest="compile", action="store_false", help="our optimizer eagerly")
    found.add_argument("--cpu-time", action="store_true", help="seconds of the thread, not of the clock")
    found.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    return found


def model_spec(name: str, args: argparse.Namespace) -> ModelSpec:
    size = replace(PAPER_SIZES[name], layers=args.layers or PAPER_SIZES[name].layers)
    return ModelSpec(**vars(size), vocab_size=args.vocabulary, sequence_length=args.length, attention="sdpa")


def fused_adamw(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.1, fused=True)


def first_example(model: nn.Module) -> Optimizer:
    """As docs/optimizers.md makes it."""
    return MPlusAdam(parameter_groups(model, weight_format="bf16"), lr=1e-3, lr_mult=4e-3, tie_lr_mult=True)


def minimal(
    label: str, name: str, model: nn.Module, tokens: Tensor, build: Callable[[nn.Module], Optimizer]
) -> tuple[Subject, Subject]:
    """The loop that one would write around Transformers and an optimizer, and the step of its optimizer alone."""
    optimizer = build(model)

    def step() -> None:
        optimizer.zero_grad()
        model(input_ids=tokens, labels=tokens, use_cache=False).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()

    return Subject(label, name, step), Subject(label, name + ALONE, optimizer.step)


def ours(spec: ModelSpec, tokens: Tensor, name: str, device: str, compile: bool) -> Callable[[], object]:
    """A step of `mpadam train` (`mpadam.training.loop`: backward, update)."""
    model = build_model(spec, seed=0, device=device)
    optimizer = build_optimizer(model, name, {}, masters="bf16", state_dtype="bf16", compile=compile)
    scale = 1.0 / (tokens.shape[0] * (tokens.shape[1] - 1))

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        loss_sum(model, tokens, tokens, scale=scale)[0].backward()
        gradients = [p.grad for p in model.parameters() if p.grad is not None]
        settle_(gradients, norm=global_norm(gradients), limit=CLIP, dtype="bf16")
        optimizer.step()

    return step


if __name__ == "__main__":
    sys.exit(main())
