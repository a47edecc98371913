"""How a block scale that is no power of two may move under stochastic rounding: four rules, compared in NVFP4.

    python benchmarks/scale_rules.py                        # noise, growth and shrinking of weights
    python benchmarks/scale_rules.py --perplexity pilot     # and what the pilot's runs come to under each rule

    up              the smallest scale that holds the block, again at each write (what version 1 of the numerics did)
    stochastic      one of the two scales around amax / 6, at random, right in the mean
    hysteresis      the scale before, as long as 3 s < amax <= 6.4 s; else the smallest that holds the block
    powers of two   the scale before times a power of two (`mpadam.numerics.nvfp4`)

Noise is the RMS displacement from the unrounded trajectory after 300 updates of 1e-4 |w| with random signs, next to
that on the same grid with scales that never move and weights that clip. Growth is what the largest weights of blocks
gain in 300 updates of +1e-3 of them, over what they should; shrinking, the median of scale over the scale that weights
would be given again, after all have been taken to a hundredth in 228 updates. The tensor scale moves by powers of two
throughout.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor

from mpadam.numerics import Encoded, NvFp4, nvfp4, random_bits
from mpadam.numerics.blocks import divide, from_blocks, to_blocks
from mpadam.numerics.grids import E2M1, E4M3, round_to_grid
from mpadam.study.archive import open_study
from mpadam.study.paths import StudyPaths
from mpadam.study.spec import numerics_version, read_run_file, write_run_file

Rule = Callable[[Tensor, Tensor, Encoded], tuple[Tensor, Tensor]]
BLOCK = (1, 16)
EXAMPLE = Path(__file__).parents[1] / "results/example"


def moved_by(choose: Callable[[Tensor, Tensor, Tensor], Tensor]) -> Rule:
    """`nvfp4._moved_scales` with block scales from `choose(amax / 6, scale before, uniform)`, in tensor scales."""

    def scales(values: Tensor, bits: Tensor, previous: Encoded) -> tuple[Tensor, Tensor]:
        stored = previous.tensors["tensor_scale"]
        amax = values.abs().amax((2, 4), keepdim=True)
        factor = torch.where(amax.amax() > 2688 * stored, 2.0, 1.0)
        factor = torch.where(amax.amax() < 672 * stored, 0.25, factor)
        before = nvfp4._block_scale(previous) / factor
        uniform = ((bits.to(torch.int64).sum((2, 4), keepdim=True) & 0xFFFFFFFF).double() * 2.0**-32).float()
        scale = choose(divide(amax / 6, stored * factor), before.clamp(2.0**-6, E4M3.max), uniform)
        return stored * factor, scale.clamp(2.0**-6, E4M3.max)

    return scales


def up(fit: Tensor, before: Tensor, uniform: Tensor) -> Tensor:
    return nvfp4._round_up(fit.clamp(2.0**-6, E4M3.max))


def stochastic(fit: Tensor, before: Tensor, uniform: Tensor) -> Tensor:
    upper = up(fit, before, uniform)
    lower = round_to_grid(upper * (1 - 2.0**-4), E4M3)  # the value below, whether or not upper is a power of two
    return torch.where(uniform < (fit - lower) / (upper - lower), upper, lower)


def hysteresis(fit: Tensor, before: Tensor, uniform: Tensor) -> Tensor:
    return torch.where((fit > before / 2) & (fit <= before * (6.4 / 6)), before, up(fit, before, uniform))


RULES: dict[str, Rule] = {
    "up": moved_by(up),
    "stochastic": moved_by(stochastic),
    "hysteresis": moved_by(hysteresis),
    "powers of two": nvfp4._moved_scales,
}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--perplexity", metavar="STUDY", help="train the runs of results/example/STUDY under each rule")
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args(argv)
    print(f"{'rule':15}{'noise':>8}{'of fixed':>10}{'RMS(w)':>9}{'growth':>9}{'shrinking':>11}")
    fixed = noise(args.rows, on_first_grid)[0]
    for name, rule in RULES.items():
        with patch.object(nvfp4, "_moved_scales", rule):
            displaced, size = noise(args.rows, stored)
            print(f"{name:15}{displaced:8.3f}{displaced / fixed:10.2f}{size:9.3f}{growth(args.rows):9.2f}"
                  f"{shrinking(args.rows):11.2f}", flush=True)  # fmt: skip
    if args.perplexity:
        perplexities(EXAMPLE / args.perplexity, args.seeds)
    return 0


def start(rows: int) -> tuple[NvFp4, Encoded]:
    f = NvFp4(tensor_scale="pow2_sticky")
    return f, f.encode(0.02 * torch.randn(rows, 256, generator=torch.Generator().manual_seed(0)))


Write = Callable[[Tensor, int], Tensor]  # weights after an update and its number -> what is stored of them


def stored(f: NvFp4, first: Encoded) -> Write:
    """Writes of the format, each from what the one before has left."""
    now = [first]

    def write(x: Tensor, step: int) -> Tensor:
        bits = random_bits(seed=0, step=step, tensor_id=0, shape=x.shape)
        now[0] = f.encode(x, rounding="stochastic", bits=bits, previous=now[0])
        return f.decode(now[0])

    return write


def on_first_grid(f: NvFp4, first: Encoded) -> Write:
    """Writes onto the scales of `first`, beyond which weights clip."""
    scale = nvfp4._block_scale(first) * first.tensors["tensor_scale"]

    def write(x: Tensor, step: int) -> Tensor:
        bits = to_blocks(random_bits(seed=0, step=step, tensor_id=0, shape=x.shape), BLOCK)
        return from_blocks(round_to_grid(to_blocks(x, BLOCK) / scale, E2M1, "stochastic", bits) * scale, x.shape)

    return write


def noise(rows: int, writes: Callable[[NvFp4, Encoded], Write]) -> tuple[float, float]:
    """RMS displacement and RMS of the weights, in units of the RMS before."""
    f, first = start(rows)
    generator, write, w = torch.Generator().manual_seed(1), writes(f, first), f.decode(first)
    exact, before = w.double(), rms(w)
    for step in range(300):
        update = 1e-4 * w.abs() * (2 * torch.randint(0, 2, w.shape, generator=generator) - 1)
        exact += update
        w = write(w + update, step)
    return rms(w - exact) / before, rms(w) / before


def growth(rows: int) -> float:
    f, first = start(rows)
    write, w = stored(f, first), f.decode(first)
    blocks = to_blocks(w, BLOCK)
    update = from_blocks(1e-3 * blocks * (blocks.abs() == blocks.abs().amax(4, keepdim=True)), w.shape)
    now = w
    for step in range(300):
        now = write(now + update, step)
    return float(((now - w) / (300 * update))[update != 0].mean())


def shrinking(rows: int) -> float:
    f, now = start(rows)
    for step in range(228):
        x = f.decode(now) * 0.98
        bits = random_bits(seed=0, step=step, tensor_id=0, shape=x.shape)
        now = f.encode(x, rounding="stochastic", bits=bits, previous=now)
    fit = f.encode(f.decode(now))
    scales = [nvfp4._block_scale(e) * e.tensors["tensor_scale"] for e in (now, fit)]
    return float((scales[0] / scales[1]).median())


def rms(x: Tensor) -> float:
    return float(x.double().pow(2).mean().sqrt())


def perplexities(study: Path, seeds: int) -> None:
    """Train NVFP4's runs with stochastic rounding under each rule, with the rates that they have."""
    from mpadam.cli import main as mpadam

    with tempfile.TemporaryDirectory() as folder:
        data, root = Path(folder) / "data", Path(__file__).parents[1]
        config = [str(root / "config.yaml"), str(root / f"studies/{study.name}.yaml")]
        mpadam(["data", *(word for path in config for word in ("--config", path)), "--out", str(data)])
        records = open_study(StudyPaths(study.name, study.parent)).records
        runs = sorted(records.glob("runs/*/*/nvfp4-bf16/*-sr/seed*/run.yaml"))
        for name, rule in RULES.items():
            for run_file in runs:
                if int(run_file.parent.name.removeprefix("seed")) < seeds:
                    with patch.object(nvfp4, "_moved_scales", rule):
                        perplexity = trained(run_file, Path(folder) / name / run_file.relative_to(records).parent, data)
                    print(
                        f"{name:15}{run_file.parent.parent.name:18}{run_file.parent.name}{perplexity:9.2f}", flush=True
                    )


def trained(run_file: Path, folder: Path, data: Path) -> float:
    """Validation perplexity of the run of `run_file`, trained in `folder` as the program computes now."""
    from mpadam.training.run import train_folder
    from mpadam.training.stopping import Stopper

    run = read_run_file(run_file)
    version = numerics_version(run.spec.regime.masters, run.spec.optimizer.name)
    spec = run.spec.model_copy(update={"numerics_version": version})
    folder.mkdir(parents=True)
    write_run_file(folder / "run.yaml", run.model_copy(update={"spec": spec, "data": str(data), "probe_every": None}))
    train_folder(folder, stop=Stopper())
    return float(json.loads((folder / "summary.json").read_text())["val_ppl"])


if __name__ == "__main__":
    sys.exit(main())
