"""Time of one optimizer step over the parameters of a paper's LLaMA, ours compiled and what people would use.

    python benchmarks/optimizer_step.py                                  # 60m, 2 threads, bf16: some minutes
    python benchmarks/optimizer_step.py --size 60m --layers 2 --vocabulary 8000 --rounds 15
    python benchmarks/optimizer_step.py --device cuda --size 350m        # with the share of the measured copy bandwidth
    python benchmarks/optimizer_step.py --width 128 --layers 4 --vocabulary 500 --only m-plus-adam "m-plus-adam, eager"
    python benchmarks/optimizer_step.py --cpu-time --threads 1           # on a machine that others use

Gradients and weights are bf16, moments too; only projections are stored as codes, as in every run. All optimizers are
visited in turn in one process, so a slow spell of the machine hits all alike, and each ratio is the median of the
ratios of single rounds. `--cpu-time` counts the seconds of the one thread instead of those of the clock: other
processes then disturb it less. The first step of each is timed by itself; what it compiles, it compiles again, whatever
earlier processes have left on disk. `bytes` are those that a step has to move: reads and writes of weight, gradient
(read only), moments, carry and compute copy.

Writes BENCHMARK.csv and BENCHMARK.json into --out. torchao and optimi are compared where they are installed
(`--path FOLDER` adds a folder of packages).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from paper_set import PaperSet, first_step, foreach_m_plus_adam, moved_bytes
from report import Line, report
from torch._inductor.utils import fresh_cache

from mpadam.llama import PAPER_SIZES
from mpadam.measure.step_time import TORCH_FUSED, Subject, time_subjects

COMPILED = (
    *(("m-plus-adam", masters) for masters in ("bf16", "fp32", "fp8", "nvfp4s", "nvfp4")),
    *(("adamw", "bf16"), ("adamw-sr", "bf16"), ("adamw-kahan", "bf16"), ("m-plus-adam-sr", "bf16")),
)

EAGER = (("m-plus-adam", "bf16"), ("adamw", "bf16"), ("m-plus-adam", "fp8"))


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    sys.path += [str(folder) for folder in args.path]
    torch.set_num_threads(args.threads)
    size = PAPER_SIZES[args.size]
    size = replace(size, layers=args.layers or size.layers)
    if args.width:
        size = replace(size, hidden_size=args.width, intermediate_size=args.width * 43 // 16)
    weights = PaperSet(size, args.vocabulary, args.device)
    everyone = list(subjects(weights, wanted=partial(is_wanted, args)))
    clock = time.thread_time if args.cpu_time else time.perf_counter
    with fresh_cache():
        firsts = [first_step(subject) for subject in everyone]
        timings = time_subjects(everyone, warmup=2, rounds=args.rounds, steps=1, device=args.device, clock=clock)
    bandwidth = copy_bandwidth(args.device) if args.device == "cuda" else None
    lines = [
        Line(t.name, t.masters, t.samples, moved_bytes(t.name, t.masters, weights), first)
        for t, first in zip(timings, firsts, strict=True)
    ]
    about = {"parameters": weights.count(), "size": args.size, "layers": size.layers, "vocabulary": args.vocabulary,
             "rounds": args.rounds, "clock": "thread" if args.cpu_time else "wall"}  # fmt: skip
    report("optimizer_step", lines, about, reference=(TORCH_FUSED, "bf16"), device=args.device, bandwidth=bandwidth,
           out=args.out)  # fmt: skip
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--size", choices=list(PAPER_SIZES), default="60m")
    found.add_argument("--layers", type=int, help="fewer than the model has, for a quick look")
    found.add_argument("--width", type=int, help="hidden size, with an intermediate size in proportion to 60m's")
    found.add_argument("--vocabulary", type=int, default=32000)
    found.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    found.add_argument("--threads", type=int, default=2)
    found.add_argument("--rounds", type=int, default=15)
    found.add_argument("--cpu-time", action="store_true", help="seconds of the thread, not of the clock")
    found.add_argument("--masters", nargs="*", metavar="NAME", default=sorted({masters for _, masters in COMPILED}))
    found.add_argument(
        "--skip", nargs="*", metavar="NAME", default=[], help="leave these out, e.g. 'm-plus-adam, eager'"
    )
    found.add_argument("--only", nargs="*", metavar="NAME", default=[], help="these, and torch's fused AdamW")
    found.add_argument("--path", nargs="*", type=Path, default=[], help="folders with torchao and optimi")
    found.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    return found


def is_wanted(args: argparse.Namespace, name: str, masters: str) -> bool:
    """Whether an optimizer is to be timed."""
    chosen = not args.only or name in (*args.only, TORCH_FUSED)
    return chosen and masters in args.masters and name not in args.skip


def subjects(weights: PaperSet, *, wanted: Callable[[str, str], bool]) -> Iterator[Subject]:
    """Those that are wanted; the reference first."""
    for label, build in OTHERS.items():
        if wanted(label, "bf16"):
            try:
                yield weights.rival(label, build)
            except ImportError:
                print(f"{label}: not installed", file=sys.stderr)
    for name, masters in COMPILED:
        if wanted(name, masters):
            yield weights.ours(name, masters, compile=True)
    for name, masters in EAGER:
        if wanted(f"{name}, eager", masters):
            yield weights.ours(name, masters, compile=False)


def _torchao(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    from torchao.optim import _AdamW

    return _AdamW(params, bf16_stochastic_round=True)


def _optimi(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    import optimi

    return optimi.AdamW(params, lr=1e-3, kahan_sum=True)


OTHERS: dict[str, Callable[[list[torch.nn.Parameter]], Any]] = {
    TORCH_FUSED: lambda params: torch.optim.AdamW(params, fused=True),
    "torch AdamW, foreach": lambda params: torch.optim.AdamW(params, foreach=True),
    "M+Adam, foreach": foreach_m_plus_adam,
    "torchao AdamW, SR": _torchao,
    "optimi AdamW, Kahan": _optimi,
}


def copy_bandwidth(device: str) -> float:
    """Bytes per second that a copy of one GiB moves, read and written; the best of ten."""
    source = torch.empty(2**30, dtype=torch.uint8, device=device)
    target = torch.empty_like(source)
    copy = Subject("copy", "", lambda: target.copy_(source))
    [timing] = time_subjects([copy], warmup=3, rounds=10, steps=1, device=device)
    return 2 * 2**30 / min(timing.samples)


if __name__ == "__main__":
    sys.exit(main())
