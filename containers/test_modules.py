"""Part of `apptainer test IMAGE`: every package imports, and each of CUDA's libraries is loaded once.

test_modules.py MODULE...    modules of the H100 image alone; they need NVIDIA's driver (`apptainer test --nv`)
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import pkgutil
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

import mpadam

NAMES = (
    *("torch", "transformers", "accelerate", "tokenizers", "datasets", "safetensors", "pandas", "seaborn", "sympy"),
    "networkx",
)
#: Libraries of which a process must not hold two: Transformer Engine looks for some by itself.
CUDA = ("libcublas", "libcublasLt", "libcudart", "libcudnn", "libcurand", "libnccl", "libnvrtc")


def main(on_gpu: Sequence[str]) -> None:
    walked = (module.name for module in pkgutil.walk_packages(mpadam.__path__, "mpadam."))
    names = [*NAMES, *(name for name in walked if name != "mpadam.__main__")]
    if has_driver():
        names += on_gpu
    elif on_gpu:
        absent = [name for name in on_gpu if importlib.util.find_spec(name.partition(".")[0]) is None]
        assert not absent, absent
        print(f"no NVIDIA driver here: {', '.join(on_gpu)} not imported; apptainer test --nv on a GPU node does")
    for name in names:
        importlib.import_module(name)
    assert mpadam.__file__.startswith("/opt/mpadam/"), mpadam.__file__
    assert not any(part.startswith(("/root", "/home")) for part in sys.path), sys.path
    twice = loaded_twice(Path("/proc/self/maps").read_text(encoding="utf-8").splitlines())
    assert not twice, twice
    print(f"{len(names)} modules imported, mpadam {mpadam.__version__}")


def has_driver() -> bool:
    """Whether NVIDIA's driver is there: extensions that are linked against it do not load without."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def loaded_twice(maps: Iterable[str]) -> dict[str, list[str]]:
    """Library of CUDA -> its files, for those of which a process has more than one; maps: lines of /proc/PID/maps."""
    files: dict[str, set[str]] = defaultdict(set)
    for line in maps:
        path = line.partition("/")[2].strip()
        name = Path(path).name.partition(".so")[0]
        if name in CUDA:
            files[name].add(f"/{path}")
    return {name: sorted(found) for name, found in files.items() if len(found) > 1}


if __name__ == "__main__":
    main(sys.argv[1:])
