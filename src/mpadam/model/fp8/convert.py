"""Turning a LLaMA into one that computes its projections in FP8, in place.

By role: query, key, value and output of attention, gate, up and down of the MLP. Embeddings, norms and the head keep
their precision (docs/algorithm.md, "Where"). Parameters stay the same objects under the same names.

    model = convert_to_fp8(build_model(...), backend="emulated")
"""

from collections.abc import Callable
from typing import TypeVar

from torch import distributed as dist
from torch import nn

from mpadam.model.fp8.compute import TorchFp8
from mpadam.model.fp8.linear import Fp8Linear, Slots
from mpadam.model.fp8.scaling import Fp8Recipe, Operand, ScalingState, all_reduce_max
from mpadam.model.fp8.transformer_engine import TransformerEngineFp8
from mpadam.study.auto import BACKENDS, FIELD, Bf16Products

# Role -> which input it multiplies. Layers with the same input share its scale, which would be the same anyway.
PROJECTIONS = {
    "q_proj": "qkv",
    "k_proj": "qkv",
    "v_proj": "qkv",
    "o_proj": "o_proj",
    "gate_proj": "gate_up",
    "up_proj": "gate_up",
    "down_proj": "down_proj",
}

Model = TypeVar("Model", bound=nn.Module)


def convert_to_fp8(
    model: Model,
    *,
    backend: str,
    recipe: Fp8Recipe | None = None,
    group: dist.ProcessGroup | None = None,
    products: Bf16Products | None = None,
) -> Model:
    """Replace the attention and MLP projections of `model` by FP8 layers; returns `model`.

    model: on the device and in the dtype in which it will compute.
    backend: transformer_engine, native or emulated, as `resolve_backend` returns it.
    group: ranks that train one model and so use one scale (the maximum over their magnitudes); None: this one alone.
    products: how `emulated` multiplies its bf16 matrices on a CPU (`mpadam.model.products`).
    Raises ValueError for an unknown backend, a model without projections, and a projection with a bias.
    """
    if backend not in CONVERTERS:
        raise ValueError(f"{FIELD} = {backend!r}: give one of {', '.join(BACKENDS)} (auto is resolved before)")
    CONVERTERS[backend](model, projections(model), recipe or Fp8Recipe(), group, products)
    return model


def projections(model: nn.Module) -> dict[str, nn.Linear]:
    """Name -> layer of the linear layers that compute in FP8, in the model's order."""
    found = {
        name: module
        for name, module in model.named_modules()
        if name.rpartition(".")[2] in PROJECTIONS and isinstance(module, nn.Linear)
    }
    if not found:
        raise ValueError(
            f"the model has no projections to compute in FP8: none of its layers is a {', a '.join(PROJECTIONS)}"
        )
    for name, linear in found.items():
        if linear.bias is not None:
            raise ValueError(f"{name} has a bias, which the FP8 layers do not: build the model without (bias=False)")
        if type(linear) is not nn.Linear:
            raise ValueError(f"{name} is a {type(linear).__name__} already: convert a freshly built model, once")
    return found


def _with_torch(backend: str) -> Callable[..., None]:
    def convert(
        model: nn.Module,
        linears: dict[str, nn.Linear],
        recipe: Fp8Recipe,
        group: dist.ProcessGroup | None,
        products: Bf16Products | None,
    ) -> None:
        slots: dict[str, Operand] = {}
        for name in linears:
            slots |= {_input_slot(name): "input", f"{name}.weight": "weight", f"{name}.output": "output_gradient"}
        device = next(iter(linears.values())).weight.device
        state = ScalingState(slots, recipe, device=device, amax_reduce=None if group is None else all_reduce_max(group))
        compute = TorchFp8(backend, state, group, products)
        for name, linear in linears.items():
            where = (state.index[slot] for slot in (_input_slot(name), f"{name}.weight", f"{name}.output"))
            model.set_submodule(name, Fp8Linear(linear, compute, Slots(*where)))

    return convert


def _input_slot(name: str) -> str:
    parent, _, role = name.rpartition(".")
    return f"{parent}.{PROJECTIONS[role]}.input".lstrip(".")


def _with_transformer_engine(
    model: nn.Module,
    linears: dict[str, nn.Linear],
    recipe: Fp8Recipe,
    group: dist.ProcessGroup | None,
    _products: Bf16Products | None,
) -> None:
    compute = TransformerEngineFp8(recipe, group)
    for name, linear in linears.items():
        model.set_submodule(name, compute.add_layer(name, linear))
    compute.wrap(getattr(model, "base_model", model))  # the loss calls the LLaMA below its head


CONVERTERS = {
    "transformer_engine": _with_transformer_engine,
    "native": _with_torch("native"),
    "emulated": _with_torch("emulated"),
}
