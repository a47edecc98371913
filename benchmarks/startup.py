"""CPU seconds of starting: `mpadam --help`, what `mpadam train` loads beyond torch and LlamaForCausalLM, and a compiled
optimizer's first step, where nothing is compiled yet and where an earlier process left its code on disk.

    python benchmarks/startup.py
    python benchmarks/startup.py --rounds 9 --out results/benchmarks
    python benchmarks/startup.py --no-compile                            # without the last: a minute a round

Each sample is a process of its own, and its CPU time (user and system) what counts: unlike the time on the wall it is
much the same on a machine that others use. One round has each process once, in turn. `train, loaded` imports all that
a training job imports before it reads its run; the last line is what that adds in each round.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from arguments import count
from processes import run
from report import Line, report

HERE = Path(__file__).parent
IMPORTS = "import torch; from transformers.models.llama.modeling_llama import LlamaForCausalLM"
TRAINING = "import mpadam.commands.train, mpadam.training.run, mpadam.training.session, mpadam.training.loop"
PROCESSES = {
    "python, nothing": [sys.executable, "-c", "pass"],
    "mpadam --help": [sys.executable, "-m", "mpadam", "--help"],
    "torch and LlamaForCausalLM": [sys.executable, "-c", IMPORTS],
    "mpadam train, loaded": [sys.executable, "-c", TRAINING],
}
FIRST_STEP = """
from dataclasses import replace
from paper_set import PaperSet
from arguments import count

from mpadam.llama import PAPER_SIZES
PaperSet(replace(PAPER_SIZES["60m"], layers=1), vocabulary=1000).ours("m-plus-adam", "%s", compile=True).step()
"""
STEPPED = ("bf16", "fp8", "nvfp4s")  # how weights are kept
BASE, LOADED = "torch and LlamaForCausalLM", "mpadam train, loaded"


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=count, default=5)
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="no compiled steps")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    args = parser.parse_args(argv)
    for command in PROCESSES.values():
        run(command)  # writes bytecode, fills the file cache
    samples: dict[str, list[float]] = {name: [] for name in PROCESSES}
    for _ in range(args.rounds):
        for name, command in PROCESSES.items():
            samples[name].append(run(command).cpu_seconds)
        for masters in STEPPED if args.compile else ():
            for name, seconds in first_steps(masters).items():
                samples.setdefault(name, []).append(seconds)
    added = tuple(loaded - base for loaded, base in zip(samples[LOADED], samples[BASE], strict=True))
    lines = [Line(name, "", tuple(found)) for name, found in samples.items()] + [Line("train adds", "", added)]
    about = {"rounds": args.rounds, "clock": "CPU of the process"}
    report("startup", lines, about, reference=(BASE, ""), device="cpu", out=args.out, unit="s", scale=1.0)
    return 0


def first_steps(masters: str) -> dict[str, float]:
    """CPU seconds of two processes that build M+Adam and step once: the second finds what the first compiled.

    Compiled without helpers of its own, whose time would not be seen.
    """
    command = [sys.executable, "-c", FIRST_STEP % masters]
    with tempfile.TemporaryDirectory(prefix="mpadam-startup-") as cache:
        settings = {"TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        return {
            f"first step, {masters}, {how}": run(command, cwd=HERE, **settings).cpu_seconds
            for how in ("nothing compiled", "compiled before")
        }


if __name__ == "__main__":
    sys.exit(main())
