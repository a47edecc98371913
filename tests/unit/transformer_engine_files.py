"""Transformer Engine's own Python files, of the pinned version, with its native library replaced by this module.

`fetched` takes them from the wheel in the package index. `loaded` imports them on a machine without CUDA:

- of its packages only what is asked for is run: a name that an `__init__.py` imports is imported when it is used, for
  the rest wants Triton, einops and more;
- `transformer_engine_torch`, the native library, is `Native`: casts to FP8 and products of FP8 matrices, on a CPU;
- `onnx` and `onnxscript`, for an export that is not used here, are empty;
- torch says that there is a Hopper GPU, and what is to be made or to be on "cuda" is on the CPU.
"""

import ast
import enum
import re
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import resolve_name
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from mpadam.numerics import saturating_cast

PINS = Path(__file__).parents[2] / "envs" / "gpu.txt"
ROOT = "transformer_engine"
LAZY = (
    ROOT,
    *(f"{ROOT}.pytorch{part}" for part in ("", ".module", ".ops", ".tensor", ".tensor.storage", ".triton")),
)
EMPTY = ("onnx", "onnxscript", f"{ROOT}.pytorch.triton.pad")
SETTINGS = {
    "NVTE_PROJECT_BUILDING": "1",  # importing it loads no library of CUDA
    "NVTE_UNFUSED_FP8_UPDATE": "1",  # histories and scales are updated in Python
    "NVTE_TORCH_COMPILE": "0",
}


def pinned() -> str:
    """Version of Transformer Engine in the H100 image."""
    (version,) = re.findall(r"^transformer-engine(?:\[.*\])?==(\S+)$", PINS.read_text(), re.MULTILINE)
    return version


def fetched(cache: Path) -> Path:
    """The folder in `cache` with the unpacked wheel; skips the test where no package index answers."""
    folder = cache / pinned()
    if not folder.exists():
        with TemporaryDirectory(dir=cache) as scratch:
            with zipfile.ZipFile(download(Path(scratch))) as archive:
                archive.extractall(f"{scratch}/files")
            try:
                Path(scratch, "files").rename(folder)
            except OSError:  # another process was faster
                assert folder.exists()
    return folder


def download(folder: Path) -> Path:
    """The wheel, downloaded into `folder`."""
    pip = (sys.executable, "-m", "pip", "--disable-pip-version-check", "--retries", "0", "download")
    options = ("--no-deps", "--only-binary", ":all:", "--dest", str(folder), f"transformer-engine=={pinned()}")
    run = subprocess.run([*pip, *options], capture_output=True, text=True, check=False)
    if run.returncode:
        assert "from versions:" not in run.stderr or "from versions: none" in run.stderr, run.stderr  # a wrong pin
        why = next((line for line in run.stderr.splitlines() if line.startswith("ERROR")), "no message from pip")
        pytest.skip(f"Transformer Engine's wheel cannot be had from a package index here: {why}")
    (wheel,) = folder.glob("*.whl")
    return wheel


@contextmanager
def loaded(folder: Path, patch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """`transformer_engine.pytorch`, importable as such inside."""
    before = set(sys.modules)
    for name, value in SETTINGS.items():
        patch.setenv(name, value)
    pretend_hopper(patch)
    for name in EMPTY:
        patch.setitem(sys.modules, name, MagicMock(__spec__=None))
    patch.setitem(sys.modules, "transformer_engine_torch", Native("transformer_engine_torch"))
    for name in LAZY:
        patch.setitem(sys.modules, name, Lazy(name, folder))
    try:
        with OnCpu():
            yield sys.modules[f"{ROOT}.pytorch"]
    finally:
        for name in {name for name in sys.modules if name.split(".")[0] == ROOT} - before:
            del sys.modules[name]


class Lazy(ModuleType):
    """A package of which only those imports of its `__init__.py` are run that somebody asks for."""

    def __init__(self, name: str, folder: Path) -> None:
        super().__init__(name)
        self.__path__ = [str(folder.joinpath(*name.split(".")))]
        self.__package__ = name
        self._sources: dict[str, str] = {}
        for node in ast.parse(Path(self.__path__[0], "__init__.py").read_text()).body:
            if isinstance(node, ast.ImportFrom):
                source = resolve_name("." * node.level + (node.module or ""), name)
                self._sources |= {alias.asname or alias.name: source for alias in node.names}

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name not in self.__dict__.get("_sources", {}):
            raise AttributeError(f"{self.__name__} has no {name}")
        return getattr(import_module(self._sources[name]), name)


def pretend_hopper(patch: pytest.MonkeyPatch) -> None:
    properties = SimpleNamespace(major=9, minor=0, multi_processor_count=132)
    for name, value in {
        "is_available": True,
        "current_device": 0,
        "get_device_capability": (9, 0),
        "get_device_properties": properties,
        "is_current_stream_capturing": False,
        "synchronize": None,
    }.items():
        patch.setattr(torch.cuda, name, lambda *_, value=value: value)
    patch.setattr(Tensor, "cuda", lambda x: x)


class OnCpu(TorchFunctionMode):
    """What is made on "cuda" is made on the CPU, and every tensor says that it is on a GPU."""

    def __torch_function__(self, func: Any, types: Any, args: tuple = (), kwargs: dict | None = None) -> Any:
        if func == Tensor.is_cuda.__get__:
            return True
        kwargs = dict(kwargs or {})
        if kwargs.get("device") is not None and torch.device(kwargs["device"]).type == "cuda":
            kwargs["device"] = "cpu"
        return func(*args, **kwargs)


# --- the native library ----------------------------------------------------------------------------------------------


class DType(enum.IntEnum):
    kByte, kInt32, kFloat32, kFloat16, kBFloat16, kFloat8E4M3, kFloat8E5M2, kFloat4E2M1 = range(8)  # noqa: N815


FORMATS = {DType.kFloat8E4M3: "e4m3", DType.kFloat8E5M2: "e5m2"}
TORCH = {DType.kFloat8E4M3: torch.float8_e4m3fn, DType.kFloat8E5M2: torch.float8_e5m2}
OUT = {DType.kFloat32: torch.float32, DType.kBFloat16: torch.bfloat16}


class Native(ModuleType):
    """`transformer_engine_torch`: what a linear layer with delayed scaling calls; other names are there and empty.

    products: of each product whether its sums were promoted to float32 on the way ("split accumulator").
    """

    DType = DType
    FP8FwdTensors = enum.IntEnum(
        "FP8FwdTensors",
        {f"GEMM{i + 1}_{what}": 3 * i + j for i in range(3) for j, what in enumerate(("INPUT", "WEIGHT", "OUTPUT"))},
    )
    FP8BwdTensors = enum.IntEnum(
        "FP8BwdTensors",
        {f"GRAD_{what}{i + 1}": 2 * i + j for i in range(3) for j, what in enumerate(("OUTPUT", "INPUT"))},
    )

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.products: list[bool] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        setattr(self, name, MagicMock(name=name))
        return getattr(self, name)

    @staticmethod
    def quantize(x: Tensor, quantizer: Any) -> Any:
        """`x` in FP8 by the scale of a quantizer, whose amax is noted; with its transpose where that is wanted."""
        storage = import_module(f"{ROOT}.pytorch.tensor.storage.float8_tensor_storage").Float8TensorStorage
        assert quantizer.internal
        quantizer.amax.copy_(x.abs().max())
        values = saturating_cast(x.float() * quantizer.scale, FORMATS[quantizer.dtype])
        data = values.to(TORCH[quantizer.dtype]).view(torch.uint8)
        return storage(
            data=data,
            fp8_scale_inv=quantizer.scale.reciprocal().reshape(1),
            fp8_dtype=quantizer.dtype,
            fake_dtype=x.dtype,
            data_transpose=data.t().contiguous() if quantizer.columnwise_usage else None,
            quantizer=quantizer,
        )

    def generic_gemm(self, a: Any, transa: bool, b: Any, transb: bool, *rest: Any, **options: Any) -> tuple:
        """op(b) times op(a) of two FP8 matrices, as cuBLAS, which counts columns first, sees them."""
        out, quantizer, dtype, bias, *_, accumulate, split_accumulator = rest
        assert (out, quantizer, bias, accumulate) == (None, None, None, False)
        assert (options["alpha"], options["beta"]) == (1.0, 0.0)
        self.products.append(split_accumulator)
        first = decoded(b, not transb).t() if transb else decoded(b, not transb)
        second = decoded(a, transa).t() if transa else decoded(a, transa)
        return (first @ second).to(OUT[dtype]), None, None, None


def decoded(matrix: Any, row_wise: bool) -> Tensor:
    """The numbers of an FP8 matrix: from its own data or, as Hopper wants every second operand, its transpose's."""
    data = matrix._data if row_wise else matrix._transpose.t()
    return data.view(TORCH[matrix._fp8_dtype]).float() * matrix._scale_inv
