"""Figures 7 to 9: dtypes of the tensors of a projection, and formats of what is multiplied, as one training step really
used them.

    produce(Dataflow(), Path("results/smoke"))
    trace = trace_step(Dataflow(), {"masters": "fp8", "compute": "fp8"})

Hooks see the tensors that go in and out of the layer; a dispatch mode sees every matrix product that torch carries out
for it; the optimizer shows the arithmetic of the update before it is made; states and stored weight are looked at
afterwards. Formats that no dtype tells (FP8 values that an emulated product holds in bf16) are found from values.
Nothing is read from the configuration.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from mpadam.atomic import write_json
from mpadam.data import TokenData
from mpadam.model.fp8.linear import Fp8Linear
from mpadam.numerics.grids import BF16, E4M3, E5M2, FP32, get_grid, round_to_grid
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.names import hyperparameters_of
from mpadam.study.auto import Auto
from mpadam.study.config import StudyConfig
from mpadam.study.diagnostics import Dataflow
from mpadam.study.grid import run_keys
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import RunFile, resolve, run_request
from mpadam.training.loop import backward, set_rates, update
from mpadam.training.session import Session, open_session

LAYER = "model.layers.0.mlp.down_proj"
_DTYPES = {
    torch.float32: "fp32",
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float8_e4m3fn: "e4m3",
    torch.float8_e5m2: "e5m2",
    torch.uint8: "uint8",
}
#: coarsest first: the first that holds all values of a tensor is its format
_GRIDS = (E5M2, E4M3, BF16, FP32)
_PRODUCTS = ("mm", "addmm", "addmm_", "_scaled_mm")
_KINDS = {"forward": {"X", "W"}, "input gradient": {"W", "dY"}, "weight gradient": {"X", "dY"}}


@dataclass(frozen=True)
class Seen:
    """A tensor: its dtype, and the coarsest format that holds all its values."""

    dtype: str
    values: str

    @staticmethod
    def of(x: Tensor) -> Seen:
        return Seen(dtype_name(x), format_of(x))


@dataclass(frozen=True)
class Product:
    """A matrix product: names and looks of its operands, and the result's dtype."""

    left: tuple[str, Seen]
    right: tuple[str, Seen]
    result: str


@dataclass(frozen=True)
class Trace:
    """One step, as it was seen.

    tensors: X, W, Y, dY, dX, dW of the layer.  products: "forward", "input gradient", "weight gradient".
    sums: what partial sums of such products are kept in.  gradient: what the optimizer was given.
    states: name -> dtype.  arithmetic: dtype of the update.  store: format, write-back and shadow of the layer's
    weight.  stored: name -> dtype of the tensors that hold it.  others: role -> format of the weights outside the
    projections.
    """

    layer: str
    optimizer: str
    tensors: dict[str, Seen]
    products: dict[str, Product]
    sums: str
    gradient: Seen
    states: dict[str, str]
    arithmetic: str
    store: dict[str, str]
    stored: dict[str, str]
    others: dict[str, str]


@dataclass
class _Notes:
    """What the hooks saw: tensors by name, operands and result of each product, dtypes of the update."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    products: dict[str, tuple[dict[str, Tensor], Tensor]] = field(default_factory=dict)
    arithmetic: set[str] = field(default_factory=set)

    def tensor(self, name: str, x: Tensor | None) -> None:
        assert x is not None
        self.tensors[name] = x.detach().clone()


def produce(options: Dataflow, root: Path) -> None:
    """Write diagnostics/dataflow/<figure>.json, what was seen, under `root`."""
    folder = root / "diagnostics" / "dataflow"
    folder.mkdir(parents=True, exist_ok=True)
    for name, regime in options.figures.items():
        write_json(folder / f"{name}.json", {"regime": regime, **asdict(trace_step(options, regime))})


def trace_step(options: Dataflow, regime: dict[str, Any]) -> Trace:
    """Train a tiny model for a few steps, since FP8 scales are arbitrary at first, and watch the last of them."""
    with TemporaryDirectory() as folder:
        session = tiny_session(options, regime, Path(folder))
        for step in range(1, STEPS):
            _step(session, step)
        layer = session.model.get_submodule(LAYER)
        assert isinstance(layer, nn.Linear)
        return _trace(session, layer, _watched_step(session, layer, STEPS))


def _step(session: Session, step: int) -> None:
    set_rates(session, step)
    update(session, backward(session, step))


# --- watching --------------------------------------------------------------------------------------------------------


def _watched_step(session: Session, layer: nn.Linear, step: int) -> _Notes:
    notes = _Notes()
    products = _Products(layer, notes)

    def after_forward(module: nn.Module, args: tuple[Tensor, ...], y: Tensor) -> None:
        for name, tensor in (("X", args[0]), ("W", layer.weight), ("Y", y)):
            notes.tensor(name, tensor)
        products.watching = False

    def after_backward(module: nn.Module, dx: Any, dy: Any) -> None:
        notes.tensor("dX", dx[0])
        notes.tensor("dY", dy[0])
        products.watching = False

    def before_update(optimizer: LowPrecisionOptimizer, *_: Any) -> None:
        coming = optimizer.preview(layer.weight).update
        notes.arithmetic |= {dtype_name(x) for x in (coming.before, coming.step.delta, *coming.moments.values())}

    hooks = [
        layer.register_forward_pre_hook(products.watch),
        layer.register_forward_hook(after_forward),
        layer.register_full_backward_pre_hook(products.watch),
        layer.register_full_backward_hook(after_backward),
        session.optimizer.register_step_pre_hook(before_update),
        layer.weight.register_post_accumulate_grad_hook(lambda p: notes.tensor("dW", p.grad)),
    ]
    try:
        with products:
            _step(session, step)
    finally:
        for hook in hooks:
            hook.remove()
    return notes


class _Products(TorchDispatchMode):
    """Sees every operation of a step, and notes the matrix products of one layer while that layer computes."""

    def __init__(self, layer: nn.Linear, notes: _Notes) -> None:
        super().__init__()
        self._features = {layer.in_features, layer.out_features}
        self._inside = layer.in_features
        self._notes = notes
        self.watching = False

    def watch(self, *_: Any) -> None:
        self.watching = True

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if self.watching and func._schema.name.removeprefix("aten::") in _PRODUCTS:
            *_, left, right = (arg for arg in args if isinstance(arg, Tensor) and arg.ndim == 2)
            operands = {self._name(x): x.clone() for x in (left, right)}
            kind = next(kind for kind, names in _KINDS.items() if names == set(operands))
            self._notes.products[kind] = (operands, result)
        return result

    def _name(self, x: Tensor) -> str:
        """X (positions, in), W (out, in) and dY (positions, out), or transposed: all three sizes differ."""
        if set(x.shape) == self._features:
            return "W"
        return "X" if self._inside in x.shape else "dY"


# --- telling ---------------------------------------------------------------------------------------------------------


def _trace(session: Session, layer: nn.Linear, notes: _Notes) -> Trace:
    p, optimizer = layer.weight, session.optimizer
    store, state = optimizer.store_of(p), optimizer.state[p]
    formats = _operand_formats(layer, notes)
    (arithmetic,) = notes.arithmetic
    plan = store.plan
    assert p.grad is not None
    return Trace(
        layer=LAYER,
        optimizer=session.spec.optimizer.name,
        tensors={name: Seen.of(x) for name, x in notes.tensors.items()},
        products={kind: _product(*seen, formats) for kind, seen in notes.products.items()},
        sums=partial_sums(_multiply(layer), notes.products["forward"][0]["X"]),
        gradient=Seen.of(p.grad),
        states={name: dtype_name(state[name]) for name in ("m", "v", "v_e", "v_r") if name in state},
        arithmetic=arithmetic,
        store={"format": plan.format.name, "write_back": plan.write_back, "shadow": plan.shadow},
        stored={name.removeprefix("weight."): dtype_name(x) for name, x in store.tensors.items()},
        others={
            group["role"]: str(group["weight_format"])
            for group in optimizer.param_groups
            if group["role"] != "projection"
        },
    )


def _product(operands: dict[str, Tensor], result: Tensor, formats: dict[str, str]) -> Product:
    seen = []
    for name, x in operands.items():
        values = formats.get(name) or format_of(x)
        assert _holds(values, x), f"{name} was cast to {values}, but has other values"
        seen.append((name, Seen(dtype_name(x), values)))
    return Product(seen[0], seen[1], dtype_name(result))


def _operand_formats(layer: nn.Linear, notes: _Notes) -> dict[str, str]:
    """What an FP8 layer casts X, W and dY to, found by casting values that no coarser format holds.

    The operands' own values do not tell: a weight that is stored in e5m2 stays on that grid when it is cast to e4m3.
    """
    if not isinstance(layer, Fp8Linear):
        return {}
    casts = {
        "X": partial(layer.compute.cast_input, slot=layer.slots.input),
        "W": partial(layer.compute.cast_weight, slot=layer.slots.weight),
        "dY": partial(layer.compute.cast_gradient, slot=layer.slots.output_gradient),
    }
    generator = torch.Generator().manual_seed(0)
    found = {}
    for name, cast in casts.items():
        tensor = notes.tensors[name]
        spread = torch.randn(64, 64, generator=generator).to(tensor.device, tensor.dtype) * tensor.std()
        found[name] = format_of(cast(spread, record=False).values)
    return found


def _multiply(layer: nn.Linear) -> Callable[[Tensor, Tensor], Tensor]:
    if not isinstance(layer, Fp8Linear):
        return torch.mm
    compute, one = layer.compute, torch.ones((), device=layer.weight.device)
    return lambda a, b: compute.multiply(a, b, one, one, torch.bfloat16)


def partial_sums(multiply: Callable[[Tensor, Tensor], Tensor], like: Tensor) -> str:
    """Whether 2^16 + 1 - 2^16 is 1 in a product of matrices like `like`: in float32 it is, in 16 bits it is not."""
    left, right = torch.zeros(16, 16), torch.zeros(16, 16)
    left[0, :3] = torch.tensor([256.0, 1.0, -256.0])
    right[:3, 0] = torch.tensor([256.0, 1.0, 256.0])
    a, b = (x.to(device=like.device, dtype=like.dtype) for x in (left, right))
    return "fp32" if multiply(a, b)[0, 0].item() == 1.0 else "less than fp32"


def dtype_name(x: Tensor) -> str:
    return _DTYPES.get(x.dtype, str(x.dtype).removeprefix("torch."))


def format_of(x: Tensor) -> str:
    """The coarsest of e5m2, e4m3, bf16 and fp32 that holds all values of `x`."""
    return next(grid.name for grid in _GRIDS if _holds(grid.name, x))


def _holds(name: str, x: Tensor) -> bool:
    x32 = x.to(torch.float32)
    return torch.equal(round_to_grid(x32, get_grid(name)), x32)


# --- the step that is watched: a tiny training, through the trainer's own functions -----------------------------------


VOCABULARY, LENGTH, ROWS = 64, 16, 6
HIDDEN, INTERMEDIATE = 32, 48  # no two sizes of a product are equal, so that its operands are known by their shapes
STEPS = 3


def tiny_session(options: Dataflow, regime: dict[str, Any], folder: Path) -> Session:
    """A session of a one-layer LLaMA on random tokens, at its first step; files go to `folder`.

    Raises ValueError for a regime that a study could not have.
    """
    data = _token_data(folder)
    return open_session(_run_file(options, regime, data.manifest), RunFolder(folder), data)


def _run_file(options: Dataflow, regime: dict[str, Any], manifest: dict[str, Any]) -> RunFile:
    config = StudyConfig.model_validate(_study(options, regime))
    request = run_request(config, run_keys(config)[0])
    auto = Auto(compile=False, fp8_backend=options.fp8_backend)
    return resolve(request, manifest=manifest, selected={}, data=".", auto=auto)


def _study(options: Dataflow, regime: dict[str, Any]) -> dict[str, Any]:
    schedule = {"kind": "constant", "warmup": 0.0}
    rates = {"lr": 1e-3, "lr_mult": 1e-2}
    values = {key: rates[key] for key in rates if key in hyperparameters_of(options.optimizer)}
    return {
        "study": "dataflow",
        "data": {"source": "builtin", "sequences": "pack", "sequence_length": LENGTH, "validation_tokens": LENGTH},
        "tokenizer": {"source": "bpe", "vocab_size": 258},
        "models": {
            "tiny": {
                "hidden_size": HIDDEN,
                "intermediate_size": INTERMEDIATE,
                "layers": 1,
                "heads": 2,
                "steps_1x": STEPS,
            }
        },
        "budgets": [1],
        "regimes": {"regime": regime},
        "optimizers": {"traced": {"optimizer": options.optimizer, "values": values}},
        "seeds": [0],
        "training": {
            "global_batch_size": ROWS * options.micro_batches,
            "micro_batch_size": ROWS,
            "schedule": schedule,
            "schedule_mult": schedule,
            "gradient_dtype": options.gradient_dtype,
            "state_dtype": options.state_dtype,
            "device": "cuda" if options.fp8_backend == "native" else "cpu",
            "threads": 1,
            "compile": False,
            "fp8_backend": options.fp8_backend,
            "attention": "eager",
        },
        "tuning": {"mode": "fixed"},
        "grids": [{"name": "all"}],
    }


def _token_data(folder: Path) -> TokenData:
    """Token files of random tokens: enough sequences for all steps, and two validation documents."""
    draw = np.random.default_rng(0)
    shards = []
    for split, documents in (("train", 64), ("validation", 2)):
        tokens = draw.integers(1, VOCABULARY, size=documents * 4 * LENGTH, dtype=np.uint16)
        ends = np.arange(1, documents + 1, dtype="<u8") * (4 * LENGTH)
        place = folder / "tokens" / split
        place.mkdir(parents=True)
        tokens.astype("<u2").tofile(place / "tokens.bin")
        ends.tofile(place / "ends.bin")
        files = {name: {"bytes": (place / name).stat().st_size} for name in ("tokens.bin", "ends.bin")}
        counts = {"documents": documents, "tokens": len(tokens)}
        shards.append({"name": split, "split": split, "dtype": "<u2", "counts": counts, "files": files})
    manifest = {
        "fingerprint": "random",
        "tokenizer_fingerprint": "none",
        "vocab_size": VOCABULARY,
        "pad_id": 0,
        "train_sequences": 10**6,
        "shards": shards,
    }
    return TokenData(folder, manifest)
