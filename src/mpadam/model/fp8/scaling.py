"""Delayed scaling: which FP8 formats are used where, and how scales follow from past magnitudes.

The recipe of the paper (docs/algorithm.md, (42)): Transformer Engine's `hybrid` delayed scaling. Inputs and weights are
e4m3 in the forward pass, output gradients e5m2 in the backward pass; a tensor is multiplied by

    scale = fp8_max / (amax * 2**margin),   amax = the largest magnitude of the last `amax_history` steps

before it is cast, so casting needs no pass over the tensor to find its own magnitude first.

The state has for each scaled tensor its scale, its past magnitudes, and this step's magnitude. All layers of a model
share one object, so a step costs a few operations on vectors, and one collective where ranks share their scales. A
*slot* is one scaled tensor: the input, weight or output gradient of a layer.

When the history advances: once an optimizer step, after the last micro-batch. Until then `record` keeps the maximum,
so a step has one set of scales, whether its batch is computed in one piece or in sixteen, on one rank or on many.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor
from torch import distributed as dist

from mpadam.numerics.grids import get_grid

Operand = Literal["input", "weight", "output_gradient"]
OPERAND_FORMATS: dict[Operand, str] = {"input": "e4m3", "weight": "e4m3", "output_gradient": "e5m2"}
#: Magnitudes below 2**-84 get no larger scale: so 1/scale is a normal float32, and no value below 2**27 overflows.
MAX_SCALE = 2.0**100


@dataclass(frozen=True)
class Fp8Recipe:
    """Hybrid delayed scaling.

    amax_history: optimizer steps whose largest magnitude decides a scale.
    margin: binades left free above that magnitude.
    """

    amax_history: int = 16
    margin: int = 0

    def __post_init__(self) -> None:
        if self.amax_history < 1:
            raise ValueError(f"amax_history = {self.amax_history}: give at least 1 step (the paper has 16)")
        if not 0 <= self.margin <= 8:
            raise ValueError(f"margin = {self.margin}: give 0 to 8 binades (the paper has 0); e4m3 has 15 in all")


class ScalingState:
    """Scales of all slots of a model.

    slots: name -> operand, in a fixed order.
    amax_reduce: makes a vector the same on all ranks by maximum, in place; None: this process is alone.

    `scale` and `inverse` (1/scale), both float32 (slots,), are what casts and products use; they change in `advance`
    only, and are then new tensors, so what a backward pass still holds stays as it was.
    """

    def __init__(
        self,
        slots: Mapping[str, Operand],
        recipe: Fp8Recipe,
        *,
        device: torch.device,
        amax_reduce: Callable[[Tensor], object] | None = None,
    ) -> None:
        self.recipe, self.amax_reduce = recipe, amax_reduce
        self.names = list(slots)
        self.index = {name: i for i, name in enumerate(self.names)}
        self._largest = torch.tensor(
            [get_grid(OPERAND_FORMATS[operand]).max for operand in slots.values()], device=device
        )
        self.history = torch.zeros(recipe.amax_history, len(slots), device=device)
        self.amax = torch.zeros(len(slots), device=device)
        self._set_scale(torch.ones(len(slots), device=device))

    def record(self, slot: int, amax: Tensor) -> None:
        """Note a magnitude (float32 scalar) seen in this step."""
        torch.maximum(self.amax[slot], amax, out=self.amax[slot])

    @torch.no_grad()
    def advance(self) -> None:
        """End the step: its magnitudes enter the history, and the next step's scales follow from it.

        A scale stays as it is where the history's maximum is 0 (nothing seen) or not finite.
        """
        amax = self.amax.nan_to_num(nan=torch.inf, posinf=torch.inf)  # a collective need not treat NaN alike everywhere
        if self.amax_reduce is not None:
            self.amax_reduce(amax)
        self.history = torch.cat([amax[None], self.history[:-1]])
        self.amax = torch.zeros_like(amax)
        peak = self.history.amax(dim=0)
        wanted = (self._largest / peak * 2.0**-self.recipe.margin).clamp(max=MAX_SCALE)
        self._set_scale(torch.where((peak > 0) & torch.isfinite(peak), wanted, self.scale))

    def _set_scale(self, scale: Tensor) -> None:
        self.scale, self.inverse = scale, scale.reciprocal()

    def state_dict(self) -> dict[str, Any]:
        """Copies of everything that decides later steps: names of the slots, scale, history, magnitudes so far."""
        return {"names": list(self.names), **{key: getattr(self, key).clone() for key in ("scale", "history", "amax")}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take the state of `state_dict` bit for bit; ValueError if it is that of another model or recipe."""
        if list(state["names"]) != self.names or state["history"].shape != self.history.shape:
            raise ValueError(
                f"FP8 state of {len(state['names'])} scaled tensors with a history of {len(state['history'])} steps "
                f"does not fit this model, which has {len(self.names)} and {len(self.history)}: load the checkpoint "
                "into the model and with the amax_history that it was saved from"
            )
        for key in ("history", "amax"):
            setattr(self, key, state[key].to(getattr(self, key).device, copy=True))
        self._set_scale(state["scale"].to(self.scale.device, copy=True))


def all_reduce_max(group: dist.ProcessGroup) -> Callable[[Tensor], object]:
    """An `amax_reduce` for the ranks of a process group: all then use one scale."""
    return lambda amax: dist.all_reduce(amax, op=dist.ReduceOp.MAX, group=group)


# --- what e5m2 loses --------------------------------------------------------------------------------------------------


class FlushCount:
    """Counts over the layers and micro-batches of one step.

    share: flushed / non-zero, after `close`; None before, and where nothing was non-zero or counted.
    """

    def __init__(self) -> None:
        self.share: float | None = None
        self._counts: list[tuple[Tensor, Tensor]] = []

    def add(self, nonzero: Tensor, flushed: Tensor) -> None:
        """Counts of one tensor, integer scalars; they stay on their device."""
        self._counts.append((nonzero, flushed))

    def close(self, group: dist.ProcessGroup | None) -> None:
        """Sum up, over the ranks of `group` too: then all of them must call it."""
        if not self._counts:
            return
        total = torch.stack([torch.stack(pair) for pair in self._counts]).sum(dim=0)
        self._counts.clear()
        if group is not None:
            dist.all_reduce(total, group=group)
        nonzero, flushed = total.tolist()
        self.share = flushed / nonzero if nonzero else None


def count_flushed(gradient: Tensor, cast: Tensor) -> tuple[Tensor, Tensor]:
    """Number of non-zero values of `gradient`, and of those whose `cast` is zero."""
    nonzero = torch.count_nonzero(gradient)
    if cast.dtype.itemsize == 1:  # torch.float8_* cannot be counted; codes 0x00 and 0x80 are zero
        cast = cast.view(torch.int8).bitwise_left_shift(1)
    return nonzero, nonzero - torch.count_nonzero(cast)
