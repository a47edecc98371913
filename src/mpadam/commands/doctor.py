"""`mpadam doctor`: print what this machine can do and which regimes run natively, emulated or not at all.

Whether torch.compile works is tried.

    mpadam doctor --json
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from mpadam.arguments import Namespace, argument

if TYPE_CHECKING:
    from mpadam.model.capabilities import Machine


ARGUMENTS = (argument("--json", action="store_true", help="print JSON"),)


def run(args: Namespace) -> int:
    import json

    from mpadam.compiler import compile_problem
    from mpadam.model.capabilities import NVFP4_NOTE, as_dict, probe

    machine = probe()
    problems = {device: compile_problem(device) for device in ("cpu", *(["cuda"] if machine.gpus else []))}
    if args.json:
        print(json.dumps({**as_dict(machine), "compile_problems": problems}, indent=2))
        return 0
    compiles = [f"{'torch.compile':<20}on {device}: {problem or 'works'}" for device, problem in problems.items()]
    print("\n".join([*_machine_lines(machine), *compiles, "", *_regime_lines(machine), "", NVFP4_NOTE]))
    return 0


def _machine_lines(machine: Machine) -> list[str]:
    bf16 = "native" if machine.cpu_bf16 else "float32, since the CPU has no instructions for products of bf16 matrices"
    rows = [
        ("python", f"{machine.python}, {machine.platform}"),
        ("torch", f"{machine.torch}, CUDA {machine.cuda or 'not built in'}"),
        ("cpu", f"{machine.cpu}, {machine.cpu_threads} threads"),
        ("bf16 products", bf16),
        *(("gpu", _gpu(vars(gpu))) for gpu in machine.gpus),
        *([] if machine.gpus else [("gpu", "none")]),
        *((name.replace("_", "-"), version or "not installed") for name, version in machine.packages.items()),
        *((name, path or "not found") for name, path in machine.tools.items()),
    ]
    return [f"{name:<20}{value}" for name, value in rows]


def _gpu(gpu: dict) -> str:
    major, minor = gpu["capability"]
    return f"{gpu['name']}, compute capability {major}.{minor}, {gpu['memory_gib']} GiB"


def _regime_lines(machine: Machine) -> list[str]:
    from mpadam.model.capabilities import regime_support

    head = ("regime", "bytes/parameter", "masters", "products on CPU", "products on GPU")
    by_regime: dict[str, list[str]] = {}
    for support in regime_support(machine):
        cells = by_regime.setdefault(support.regime, [f"{support.bytes_per_parameter:.4f}", support.masters])
        engine = f" ({support.backend})" if support.products == "native" and support.backend else ""
        cells.append(support.products + engine)
    rows = [head, *((regime, *cells) for regime, cells in by_regime.items())]
    return ["  ".join(f"{cell:<16}" for cell in row).rstrip() for row in rows]
