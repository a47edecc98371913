"""FP8 computation by Transformer Engine: its own Linear layer, its own delayed scaling.

Unseen on hardware: this project was built where no GPU has Transformer Engine. What is called, and with what, is held
by contract tests against stand-in modules and against its own Python files.

The parameter stays the model's own `weight`; Transformer Engine's layer is kept out of the module tree and is lent
the weight for each call, so names and state dicts are those of the bf16 model. Sizes that are not multiples of 16 are
filled up with zeros before the call and cut after it.

Each forward pass of the model is one autocast region, as Transformer Engine asks for, and its history advances when
the region and its backward pass end: once per *micro-batch*, where `native` and `emulated` advance once per step. They
are the same where a rank computes its share of a batch in one piece.

Its scaling state is kept as plain tensors and restored in place. `get_extra_state` would pickle it, which
`set_extra_state` refuses to load.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from typing import Any

import torch
from torch import Tensor, nn
from torch import distributed as dist
from torch.func import functional_call
from torch.nn import functional

from mpadam.model.fp8.products import ALIGNMENT, filled_up
from mpadam.model.fp8.scaling import FlushCount, Fp8Recipe

_E5M2_FLUSHED = 2.0**-17  # magnitudes up to half of the smallest e5m2 value become zero


class TransformerEngineFp8:
    """FP8 computation of one model: recipe, autocast regions and the state of its layers."""

    backend = "transformer_engine"

    def __init__(self, recipe: Fp8Recipe, group: dist.ProcessGroup | None) -> None:
        self._te = import_module("transformer_engine.pytorch")
        definitions = import_module("transformer_engine.common.recipe")
        self.recipe = definitions.DelayedScaling(
            margin=recipe.margin,
            fp8_format=definitions.Format.HYBRID,
            amax_history_len=recipe.amax_history,
            amax_compute_algo="max",
            reduce_amax=group is not None,
        )
        self.group, self.enabled = group, True
        self.layers: dict[str, TransformerEngineLinear] = {}
        self.flushed: FlushCount | None = None
        self._regions: list[AbstractContextManager[Any]] = []

    def add_layer(self, name: str, linear: nn.Linear) -> TransformerEngineLinear:
        """The layer to put in place of `linear`."""
        sizes = [size + -size % ALIGNMENT for size in (linear.in_features, linear.out_features)]
        weight = linear.weight
        engine = self._te.Linear(*sizes, bias=False, params_dtype=weight.dtype, device=weight.device)
        engine.weight = nn.Parameter(weight.new_empty(0))  # lent in each call
        with torch.no_grad(), self._region():  # with gradients, leaving it would advance every history in the process
            engine.init_fp8_metadata()
        self.layers[name] = TransformerEngineLinear(linear, self, engine)
        return self.layers[name]

    def wrap(self, module: nn.Module) -> None:
        """Make each forward pass of `module` an autocast region."""
        module.register_forward_pre_hook(lambda *_: self._enter())
        module.register_forward_hook(lambda *_: self._leave(), always_call=True)

    def advance(self) -> None:
        """Nothing: Transformer Engine advances at the end of each region and of its backward pass."""

    def state_dict(self) -> dict[str, Tensor]:
        return {name: tensor.clone() for name, tensor in self._scaling().items()}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Take the state of `state_dict`; ValueError if it is that of other layers or of another recipe."""
        own = self._scaling()
        sizes, found = ({name: tuple(tensor.shape) for name, tensor in tensors.items()} for tensors in (own, state))
        if differing := sorted(name for name in sizes | found if sizes.get(name) != found.get(name)):
            first = differing[0]
            raise ValueError(
                f"FP8 state does not fit this model: {first} has size {found.get(first)} in the state and "
                f"{sizes.get(first)} in the model: load the checkpoint into the model, and with the fp8_backend and "
                "the amax_history, that it was saved from"
            )
        for name, tensor in own.items():
            tensor.copy_(state[name])

    @contextmanager
    def evaluation(self, enabled: bool) -> Iterator[None]:
        """FP8 on or off; the state is afterwards what it was, whatever Transformer Engine recorded."""
        state = self.state_dict() if enabled else None
        before, self.enabled = self.enabled, enabled
        try:
            yield
        finally:
            self.enabled = before
            if state is not None:
                self.load_state_dict(state)

    def _scaling(self) -> dict[str, Tensor]:
        """The tensors that Transformer Engine's casts and updates share, so they are changed in place only."""
        return {
            f"{name}.{direction}.{kind}": getattr(layer.engine.fp8_meta[direction], kind)
            for name, layer in self.layers.items()
            for direction in ("scaling_fwd", "scaling_bwd")
            for kind in ("scale", "amax_history")
        }

    def _region(self) -> AbstractContextManager[Any]:
        return self._te.autocast(enabled=True, recipe=self.recipe, amax_reduction_group=self.group)

    def _enter(self) -> None:
        if self.enabled:
            region = self._region()
            region.__enter__()
            self._regions.append(region)

    def _leave(self) -> None:
        if self._regions:
            self._regions.pop().__exit__(None, None, None)


class TransformerEngineLinear(nn.Linear):
    """A bias-free nn.Linear computed by Transformer Engine, sharing the weight of the layer that it stands for."""

    def __init__(self, linear: nn.Linear, compute: TransformerEngineFp8, engine: nn.Module) -> None:
        nn.Module.__init__(self)
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight
        self.register_parameter("bias", None)
        self.compute, self._engine = compute, (engine,)  # a tuple hides it from the module tree
        self.train(linear.training)

    @property
    def engine(self) -> Any:
        return self._engine[0]

    def forward(self, x: Tensor) -> Tensor:
        """x: (..., in_features) -> (..., out_features); the leading sizes may be anything, zero too."""
        if not self.compute.enabled or x.numel() == 0:
            return functional.linear(x, self.weight)
        self.engine.train(self.training)
        flat = x.reshape(-1, self.in_features)
        y = functional_call(self.engine, {"weight": filled_up(self.weight)}, (filled_up(flat),))
        y = y[: flat.shape[0], : self.out_features]
        if self.compute.flushed is not None and y.requires_grad:
            y.register_hook(self._count_flushed)
        return y.reshape(*x.shape[:-1], self.out_features)

    def _count_flushed(self, gradient: Tensor) -> None:
        if self.compute.flushed is not None:
            scaled = gradient.float() * self.engine.fp8_meta["scaling_bwd"].scale[0]
            nonzero = gradient != 0
            self.compute.flushed.add(nonzero.sum(), (nonzero & (scaled.abs() <= _E5M2_FLUSHED)).sum())
