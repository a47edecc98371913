"""Everything that only a GPU can settle, in about ten minutes: writes gpu_check.json and, next to it, one page.

    python benchmarks/gpu_check.py                       # a Hopper GPU
    python benchmarks/gpu_check.py --parts products bits # some of the parts
    python benchmarks/gpu_check.py --small               # tiny sizes on a CPU, under a minute: to see that it works

| part       | what it settles                                                                                      |
|------------|------------------------------------------------------------------------------------------------------|
| libraries  | versions of packages, driver and NVIDIA's libraries, and that none of the latter is loaded twice     |
| casts      | casts to FP8 are the CPU's; a layer's saved state, loaded by another process, goes on with equal bits |
| products   | native FP8 and Transformer Engine against the emulation and each other, on each projection of the    |
|            | four LLaMA sizes: output, both gradients, and times                                                  |
| bits       | 60m for 30 steps, trained twice, and killed and resumed at 15: equal bits in bf16, native FP8,       |
|            | Transformer Engine and FlashAttention; Liger close to eager                                          |
| waits      | host synchronisations within a step                                                                  |
| plan       | tokens/s and peak memory of the four sizes against `mpadam plan`                                     |
| optimizers | compiled against eager steps in units in the last place, and GB/s, for each storage format           |
| regimes    | a training in each regime (masters x compute) learns                                                 |

Each case has a process of its own: one that fails, hangs or crashes ends no other. A case that cannot be tried here is
listed as "not here" with the reason. Both files are written after each part. Exit code 1 if there is a fault: another
result than expected, a ratio below the floor (18 dB output, 17 dB gradients), weights more than 1 ulp (float32: 32)
away, a speed or memory beyond the plan, a synchronisation; also where nothing could be tried.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu import libraries, optimizers, products, rates, runs, waits
from gpu.parts import Case, Row, Setting, page, tried

from mpadam.atomic import write_json, write_text
from mpadam.llama import PAPER_SIZES, LlamaSize
from mpadam.numerics.formats import BY_MASTERS
from mpadam.study.load import load_study

PARTS: dict[str, Callable[[Setting], Iterator[Case]]] = {
    "libraries": libraries.cases,
    "casts": products.cast_cases,
    "products": products.product_cases,
    "bits": runs.bits_cases,
    "waits": waits.cases,
    "plan": rates.cases,
    "optimizers": optimizers.cases,
    "regimes": runs.regime_cases,
}
FULL: dict[str, Any] = {
    "device": "cuda", "sizes": PAPER_SIZES, "trained": "60m", "vocabulary": 32_000, "sequence_length": 256, "steps": 30,
    "batch": 128, "micro_batch": 64, "positions": 65_536, "repeats": 10, "masters": tuple(BY_MASTERS), "compile": True,
    "values": {"lr": 1e-3, "lr_mult": 4e-3},
}  # fmt: skip
SMALL: dict[str, Any] = {
    "device": "cpu", "sizes": {"tiny": LlamaSize(32, 48, 1, 2), "awkward": LlamaSize(32, 53, 1, 2)},
    "trained": "awkward", "vocabulary": 64, "sequence_length": 16, "steps": 10, "batch": 8, "micro_batch": 4,
    "positions": 40, "repeats": 1, "masters": ("bf16",), "compile": False, "values": {"lr": 3e-3, "lr_mult": 1e-2},
}  # fmt: skip
CONFIGURATION = Path(__file__).parents[1] / "config.yaml"


def main(argv: list[str] | None = None) -> int:
    args = parser().parse_args(argv)
    started, found = time.perf_counter(), {}
    with tempfile.TemporaryDirectory(prefix="mpadam-gpu-check-") as folder:
        amounts = SMALL if args.small else FULL
        setting = Setting(**amounts, config=load_study([CONFIGURATION]), folder=Path(folder))
        for name in args.parts:
            found[name] = [row for case in PARTS[name](setting) for row in shown(name, tried(case))]
            about = {"sizes": "small" if args.small else "full", "device": setting.device}
            write(args.out, {**about, "seconds": round(time.perf_counter() - started)}, found)
    print((args.out / "gpu_check.md").read_text(encoding="utf-8"), end="")
    return int(not succeeded(found))


def succeeded(found: dict[str, list[Row]]) -> bool:
    """No fault, and something was tried; a list of packages is no trial."""
    rows = [row for part in found.values() for row in part]
    tried_here = [not row.absent for name, part in found.items() if name != "libraries" for row in part]
    return not any(row.fault for row in rows) and (any(tried_here) or not tried_here)


def parser() -> argparse.ArgumentParser:
    wanted = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    wanted.add_argument("--small", action="store_true", help="tiny sizes on the CPU")
    wanted.add_argument("--parts", nargs="+", choices=list(PARTS), default=list(PARTS), metavar="PART")
    wanted.add_argument("--out", type=Path, default=Path("results/benchmarks"))
    return wanted


def shown(part: str, rows: list[Row]) -> list[Row]:
    """The rows, after a line for each on standard error."""
    for row in rows:
        verdict = row.fault or (f"not here: {row.absent}" if row.absent else "good")
        print(f"{part}: {row.case}: {verdict}", file=sys.stderr, flush=True)
    return rows


def write(out: Path, about: dict[str, Any], found: dict[str, list[Row]]) -> None:
    """All that was found so far, as JSON and as Markdown."""
    out.mkdir(parents=True, exist_ok=True)
    parts = {name: [row.as_json() for row in rows] for name, rows in found.items()}
    write_json(out / "gpu_check.json", {"about": about, "parts": parts})
    write_text(out / "gpu_check.md", page(about, found))


if __name__ == "__main__":
    sys.exit(main())
