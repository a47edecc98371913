"""`environment.json`: what produced a run. Chosen fields only, never the whole environment, so never a secret.

Addresses of repositories and command lines, which may hold a token, are not among them. Each attempt is one: the latest
stands at the top, what differed before it under `earlier`.
"""

import os
import platform
import socket
import sys
import time
from pathlib import Path
from typing import Any

from mpadam.atomic import write_json
from mpadam.inherited import INSTRUCTIONS
from mpadam.machine import cpu_name, gpu, installed
from mpadam.source import PACKAGE, origin
from mpadam.study.run_folder import RunFolder, read_json
from mpadam.training.machine import DETERMINISM

PACKAGES = ("mpadam", "torch", "transformers", "tokenizers", "numpy", "safetensors", "triton", "transformer-engine",
            "flash-attn", "liger-kernel")  # fmt: skip
SLURM_FIELDS = ("SLURM_JOB_ID", "SLURM_JOB_NAME", "SLURM_JOB_PARTITION", "SLURM_JOB_NODELIST")


def write_environment(folder: RunFolder, *, device: str, step: int, places: list[dict[str, Any]]) -> None:
    """Write the environment of an attempt that begins after update `step`.

    places: `place` of each rank.
    """
    before = read_json(folder.environment) or {}
    known = before.pop("earlier", [])
    earlier = [old for old in [*(known if isinstance(known, list) else []), before] if old and isinstance(old, dict)]
    now = {"after_step": step, **environment(device), "world_size": len(places), "ranks": places}
    own = ("time", "host", "after_step")  # told of each attempt, though it be the same
    differing = [{key: old[key] for key in old if key in own or now.get(key) != old[key]} for old in earlier]
    write_json(folder.environment, {**now, "earlier": differing})


def place(device: str) -> dict[str, Any]:
    return {"host": socket.gethostname(), "device": _device(device)}


def environment(device: str, *, source: Path = PACKAGE) -> dict[str, Any]:
    """Commit, packages, device, host, Slurm job and container of this process.

    source: the package, or the root of a repository, whose commit is told (`mpadam.source`).
    """
    return {
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        **origin(source),
        "python": sys.version.split()[0],
        "packages": {name: found for name in PACKAGES if (found := installed(name)) is not None},
        "platform": platform.platform(),
        "host": socket.gethostname(),
        "cpu": cpu_name(),
        "cpu_instructions": {name: os.environ[name] for name in INSTRUCTIONS if name in os.environ},
        "determinism": {name: os.environ[name] for name in DETERMINISM if name in os.environ},
        "cpus": os.cpu_count(),
        "device": _device(device),
        "slurm": {name: os.environ[name] for name in SLURM_FIELDS if name in os.environ},
        "container": os.environ.get("APPTAINER_CONTAINER") or os.environ.get("SINGULARITY_CONTAINER"),
        "container_digest": _container_digest(),
    }


def _device(device: str) -> dict[str, Any]:
    if device != "cuda":
        return {"kind": device}
    import torch

    found = gpu(torch.cuda.current_device())
    major, minor = found["capability"]
    return {
        "kind": device,
        **found,
        "capability": f"{major}.{minor}",
        "cuda": torch.version.cuda,
        "cudnn": torch.backends.cudnn.version(),
    }


def _container_digest() -> str | None:
    """The digest that the image was labelled with when it was built."""
    found = read_json(Path("/.singularity.d/labels.json")) or {}
    return next((str(value) for key, value in sorted(found.items()) if key.endswith("digest")), None)
