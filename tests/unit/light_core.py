"""What the package does in an environment of torch, numpy and what they need; test_light_core.py starts this there.

    python -I light_core.py FOLDER      prints JSON: what of the package imports, how commands end, how weights train

FOLDER is empty: commands that would read or write are pointed at it.
"""

import contextlib
import importlib
import io
import json
import pkgutil
import sys
from pathlib import Path

import mpadam

STUDY = "--config {folder}/config.yaml"
#: a command line of each command, complete enough to be parsed
COMMANDS = {
    "aggregate": STUDY,
    "claims": STUDY,
    "data": f"{STUDY} --out {{folder}}/data",
    "diagnose": "matrix-fitting --out {folder}",
    "doctor": "",
    "download": STUDY,
    "evaluate": "--run-dir {folder}",
    "exhibit": "tables/table2 --folder {folder}",
    "export": "{folder} {folder}/out",
    "extend": "--trials {folder} --searched {{}} --out {folder}/out",
    "from-reference": "torchrun",
    "keep": "{folder} {folder}/out",
    "measure": "memory --out {folder}",
    "plan": STUDY,
    "probe": "report {folder}/updates.jsonl",
    "probes": STUDY,
    "site": STUDY,
    "spec": "--request {{}} --manifest {folder}/manifest.json --out {folder}/run.yaml",
    "status": STUDY,
    "study": STUDY,
    "tokenize": f"{STUDY} --out {{folder}}/data --shard train",
    "tokenizer": f"{STUDY} --out {{folder}}/data",
    "train": "--run-dir {folder}",
    "tune": "--trials {folder} --searched {{}} --out {folder}/out",
}
FORMATS = ("bf16", "fp8_e5m2", "nvfp4")


def commands(folder: str) -> dict[str, tuple[int, str]]:
    """Exit code and standard error of each command, and of the help."""
    from mpadam.cli import main

    found = {}
    with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(SystemExit):
        main(["--help"])
    for command, arguments in COMMANDS.items():
        with contextlib.redirect_stderr(io.StringIO()) as said:
            code = main([command, *arguments.format(folder=folder).split()])
        found[command] = (code, said.getvalue())
    return found


def names() -> dict[str, str]:
    """Public name -> the error that it ends with, "" where there is none."""
    found = {}
    for name in mpadam.__all__:
        try:
            getattr(mpadam, name)
            found[name] = ""
        except ImportError as error:
            found[name] = f"{type(error).__name__}: {error}"
    return found


def modules() -> dict[str, str]:
    """Module of the package -> the error that its import ends with, "" where there is none."""
    found = {}
    for path in sorted(Path(mpadam.__path__[0]).rglob("*.py")):
        parts = path.relative_to(mpadam.__path__[0]).with_suffix("").parts
        name = ".".join(("mpadam", *parts)).removesuffix(".__init__")
        if name != "mpadam.__main__":
            try:
                importlib.import_module(name)
                found[name] = ""
            except ImportError as error:
                found[name] = f"{type(error).__name__}: {error}"
    return found


def losses(weight_format: str, *, compile: bool) -> tuple[float, float]:
    """The loss of a single layer, so that one kernel is compiled, before and after some steps."""
    import torch

    torch.manual_seed(0)
    layer = torch.nn.Linear(32, 4, bias=False).to(torch.bfloat16)
    optimizer = mpadam.MPlusAdam(
        layer.parameters(), lr=3e-2, lr_mult=1e-2, weight_format=weight_format, compile=compile
    )
    x = torch.randn(64, 32, dtype=torch.bfloat16)
    y = x[:, :4].argmax(1)
    seen = []
    for _ in range(8):
        loss = torch.nn.functional.cross_entropy(layer(x).float(), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        seen.append(loss.item())
    return seen[0], seen[-1]


def graphs() -> int:
    from torch._dynamo.utils import counters

    return int(counters["stats"]["unique_graphs"])


def main(folder: str) -> None:
    lazy = "torch" not in sys.modules
    ended = commands(folder)
    public = names()
    eager = {name: losses(name, compile=False) for name in FORMATS}
    before = graphs()
    compiled = {name: losses(name, compile=True) for name in FORMATS}
    found = {
        "installed": sorted(m.name for m in pkgutil.iter_modules([str(Path(mpadam.__path__[0]).parent)])),
        "lazy": lazy, "commands": ended, "names": public, "modules": modules(), "eager": eager, "compiled": compiled,
        "graphs": graphs() - before,
    }  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
