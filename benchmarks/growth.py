"""How times grow: an optimizer's step with parameters, aggregate, claims and site with runs, a dry run with jobs.

    python benchmarks/growth.py                                          # some ten minutes
    python benchmarks/growth.py --rounds 1 --points 2
    python benchmarks/growth.py --redraw results/benchmarks/growth.json  # the plot again from what was measured

Steps are timed by the clock. Commands and dry runs are processes of their own, and what counts is their CPU time: much
the same on a machine that others use, and without waiting for a Slurm that does not answer. The runs are made up (the
tests' fake study, more and more seeds): what is written and read is what real ones have, but for the length of their
logs. The jobs are those of studies that are there, and of the paper's with more seeds.

Writes growth.csv, growth.json and growth.png into --out.
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import torch
from arguments import count
from curves import Curve, Point, draw, read_curves, report
from paper_set import PaperSet
from processes import run
from report import circumstances

from mpadam.llama import PAPER_SIZES
from mpadam.measure.step_time import TORCH_FUSED, Subject, time_subjects

ROOT = Path(__file__).parents[1]
STEPS = (("adamw", "bf16"), ("m-plus-adam", "bf16"), ("m-plus-adam", "fp8"), ("m-plus-adam", "nvfp4s"))
SETS = (("60m", 1, 4000), ("60m", 4, 8000), ("60m", 8, 32000), ("130m", 12, 32000), ("350m", 24, 32000))
COMMANDS = ("aggregate", "claims", "site")
SEEDS = (1, 4, 16, 64)  # of the made-up study: 16 runs each
DRY_RUNS = (
    ("all", "--configfile", "studies/smoke.yaml"),
    ("all_paper", "--configfile", "studies/smoke.yaml"),
    ("all_paper", "--configfile", "studies/one-gpu.yaml"),
    ("all",),
    ("all_paper",),
    ("all_paper", "--config", f"seeds={list(range(8))}"),
    ("all_paper", "--config", f"seeds={list(range(16))}"),
)


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    if args.points == 1:
        parser().error("--points 1: two or more make a curve")
    args.out.mkdir(parents=True, exist_ok=True)
    if args.redraw:
        draw(read_curves(args.redraw), args.out / "growth.png")
        return 0
    torch.set_num_threads(args.threads)
    parts = {"steps": steps, "commands": commands, "dry-run": dry_runs}
    curves = [curve for what in args.what for curve in parts[what](args)]
    about = {"rounds": args.rounds, **circumstances("cpu")}
    report(curves, about, out=args.out)
    return 0


def parser() -> argparse.ArgumentParser:
    found = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    found.add_argument("--what", nargs="+", choices=["steps", "commands", "dry-run"],
                       default=["steps", "commands", "dry-run"])  # fmt: skip
    found.add_argument("--rounds", type=count, default=3)
    found.add_argument("--threads", type=count, default=2)
    found.add_argument("--points", type=count, help="only this many sizes of each, the smallest; two or more")
    found.add_argument("--redraw", type=Path, metavar="GROWTH.JSON")
    found.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    return found


def steps(args: argparse.Namespace) -> Iterator[Curve]:
    """Seconds of a compiled step on a CPU, over parameter sets of growing size."""
    found: dict[str, list[Point]] = {}
    for name, layers, vocabulary in SETS[: args.points]:
        weights = PaperSet(replace(PAPER_SIZES[name], layers=layers), vocabulary)
        # One after the other: each has weights, gradients and states of its own, and the largest would not all fit.
        for curve, build in _steps(weights).items():
            [timing] = time_subjects([build()], warmup=2, rounds=3 * args.rounds, steps=1, device="cpu")
            found.setdefault(curve, []).append(Point(weights.count(), timing.samples))
    for curve, points in found.items():
        yield Curve(curve, "parameters", tuple(points), per=10**6)


def _steps(weights: PaperSet) -> dict[str, Callable[[], Subject]]:
    """Name of a curve -> what builds its optimizer."""
    fused = partial(weights.rival, TORCH_FUSED, partial(torch.optim.AdamW, fused=True))
    ours = {f"{name}, {masters}": partial(weights.ours, name, masters, compile=True) for name, masters in STEPS}
    return {TORCH_FUSED: fused, **ours}


def commands(args: argparse.Namespace) -> Iterator[Curve]:
    """CPU seconds of the commands that make a study's tables, verdicts and pages."""
    sys.path.insert(0, str(ROOT / "tests" / "unit"))
    from analysis_fakes import fake_study

    found: dict[str, list[Point]] = {command: [] for command in COMMANDS}
    with tempfile.TemporaryDirectory(prefix="mpadam-growth-") as folder:
        for seeds in SEEDS[: args.points]:
            study = fake_study(Path(folder) / str(seeds), seeds=list(range(seeds)))
            runs = sum(1 for _ in study.paths.results.rglob("summary.json"))
            for command in COMMANDS:
                call = [sys.executable, "-m", "mpadam", command, "--config", str(study.config_file)]
                call += ["--results", str(study.paths.results)]
                samples = tuple(run(call).cpu_seconds for _ in range(args.rounds))
                found[command].append(Point(runs, samples))
    for command, points in found.items():
        yield Curve(f"mpadam {command}", "runs", tuple(points))


def dry_runs(args: argparse.Namespace) -> Iterator[Curve]:
    """CPU seconds of a dry run: of the smoke study, one for a single GPU, the paper's, and that with more seeds."""
    points = []
    for words in DRY_RUNS[: args.points]:
        call = [sys.executable, "-m", "snakemake", "-n", "--forceall", *words]  # whatever has been made already
        seconds, told = zip(*(run(call, cwd=ROOT) for _ in range(args.rounds)), strict=True)
        [jobs] = set(re.findall(r"^total\s+(\d+)$", told[0], flags=re.MULTILINE))
        points.append(Point(int(jobs), seconds))
    yield Curve("snakemake -n", "jobs", tuple(points))


if __name__ == "__main__":
    sys.exit(main())
