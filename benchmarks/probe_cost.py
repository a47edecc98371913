"""What a probe of an update costs, in steps of the same model: the basis of `probe_every` in config.yaml.

    OMP_NUM_THREADS=1 python benchmarks/probe_cost.py
    OMP_NUM_THREADS=1 python benchmarks/probe_cost.py --model 512 1376 4 8 --batch 16 --vocabulary 4096 --rounds 5

One process on the CPU, random tokens; every round times a step (forward, backward, clipping, optimizer), the survey of
the update (survival, descent, staleness), a measurement of `mpadam.UpdateProbe` with its default sample, and the loss
after it, one after the other, so that a slow spell of the machine hits all alike. Medians of the rounds. `for 2%` is
the shortest interval between surveys at which the survey costs under 2% of the steps between them; `every=100` is the
share of the time that UpdateProbe takes if it measures every 100 steps. The optimizer `torch` is torch's AdamW, with
fp32 or bf16 weights, which has no survey.

Survey and optimizer both go through the weights some number of times, whatever the batch is; forward and backward grow
with it. At the paper's 131,072 positions per step they outweigh both, so a small batch as here is the expensive case.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from itertools import product

import torch

from mpadam import UpdateProbe
from mpadam.model.build import build_model
from mpadam.model.loss import loss_sum, token_nll
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.registry import build_optimizer
from mpadam.probes.survey import survey
from mpadam.study.spec import ModelSpec
from mpadam.training.gradients import global_norm, settle_

RATES = {"adamw": {"lr": 1e-3}, "m-plus-adam": {"lr": 8e-5, "lr_mult": 4e-3}}


class Subject:
    """A model, its optimizer and a batch."""

    def __init__(self, arguments: argparse.Namespace, masters: str, name: str) -> None:
        hidden, intermediate, layers, heads = arguments.model
        spec = ModelSpec(
            hidden_size=hidden,
            intermediate_size=intermediate,
            layers=layers,
            heads=heads,
            vocab_size=arguments.vocabulary,
            sequence_length=arguments.length,
            attention="eager",
        )
        self.model = build_model(spec, seed=0)
        self.optimizer: torch.optim.Optimizer
        if name == "torch":
            torch.nn.Module.to(self.model, {"fp32": torch.float32, "bf16": torch.bfloat16}[masters])
            self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=RATES["adamw"]["lr"])
        else:
            self.optimizer = build_optimizer(self.model, name, RATES[name.removesuffix("-sr")], masters=masters)
        self.probe = UpdateProbe(self.optimizer, self.model, every=1, out=lambda record: None)
        self.tokens = torch.randint(arguments.vocabulary, (arguments.batch, arguments.length))
        self.parameters = sum(p.numel() for p in self.model.parameters())

    def gradients(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        loss, _ = loss_sum(self.model, self.tokens, self.tokens, scale=1.0 / self.tokens.numel())
        loss.backward()
        tensors = [p.grad for p in self.model.parameters() if p.grad is not None]
        settle_(tensors, norm=global_norm(tensors), limit=1.0, dtype="bf16")

    def survey(self) -> None:
        if isinstance(self.optimizer, LowPrecisionOptimizer):
            survey(self.model, self.optimizer)

    def step(self) -> dict[str, float]:
        """Seconds of the step, and of the look at it."""
        before = self.probe.seconds
        both = seconds(self.optimizer.step)
        probe = self.probe.seconds - before
        return {"optimizer": both - probe, "probe": probe}

    def times(self) -> dict[str, float]:
        """Seconds of each part, in the order of training."""
        return {
            "gradients": seconds(self.gradients),
            "survey": seconds(self.survey),
            **self.step(),
            "loss": seconds(lambda: token_nll(self.model, self.tokens, self.tokens)),
        }


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--model", type=int, nargs=4, default=(64, 176, 2, 2), help="hidden, intermediate, layers, heads"
    )
    parser.add_argument("--vocabulary", type=int, default=1024)
    parser.add_argument("--batch", type=int, default=32, help="sequences of a step")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--masters", nargs="+", default=("fp32", "bf16", "fp8", "nvfp4"))
    parser.add_argument("--optimizers", nargs="+", default=("torch", "adamw", "m-plus-adam"))
    arguments = parser.parse_args()
    torch.manual_seed(0)
    print(
        "masters  optimizer       parameters  step ms  survey ms  loss ms  survey/optimizer  look/step  for 2%"
        "  probe ms  every=100"
    )
    for masters, name in product(arguments.masters, arguments.optimizers):
        if name == "torch" and masters not in ("fp32", "bf16"):
            continue
        subject = Subject(arguments, masters, name)
        subject.times()  # allocates
        rounds = [subject.times() for _ in range(arguments.rounds)]
        median = {part: statistics.median(r[part] for r in rounds) for part in rounds[0]}
        step = median["gradients"] + median["optimizer"]
        print(
            f"{masters:8} {name:15} {subject.parameters:10,} {1e3 * step:8.1f} {1e3 * median['survey']:10.1f} "
            f"{1e3 * median['loss']:8.1f} {median['survey'] / median['optimizer']:17.1f} "
            f"{(median['survey'] + median['loss']) / step:10.2f} {median['survey'] / step / 0.02:7.0f} "
            f"{1e3 * median['probe']:9.1f} {median['probe'] / step:9.2f}%",
            flush=True,
        )


if __name__ == "__main__":
    main()
