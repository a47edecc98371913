"""One step of an elementwise `torch.optim` optimizer, replayed in float32 on a sample of its elements.

The replica is an optimizer of the same class whose parameters are float32 copies of the sampled elements, with their
states and their gradients as the optimizer gets them (clipped, and divided by the scale that a fused optimizer has been
given by a `GradScaler`). Its step calls no hook and is neither fused nor compiled.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.optim import (
    ASGD,
    LBFGS,
    SGD,
    Adadelta,
    Adafactor,
    Adagrad,
    Adam,
    Adamax,
    AdamW,
    Muon,
    NAdam,
    Optimizer,
    RAdam,
    RMSprop,
    Rprop,
    SparseAdam,
)

from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.probes.tiles import Tiles

ELEMENTWISE = (SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, RMSprop, Adadelta, ASGD, Rprop)
_REFUSED: Mapping[type, str] = {
    LBFGS: "a line search moves all parameters together",
    Adafactor: "its second moment is shared by rows and columns, and its steps are scaled by the size of the tensor",
    Muon: "it orthogonalizes the whole matrix",
    SparseAdam: "it updates only those rows for which a sparse gradient exists",
}
_OTHER = "its class is unknown, so its step may depend on whole tensors"
#: ways to run the same step, which a replica does without
_WAYS = dict.fromkeys(("foreach", "fused", "capturable", "differentiable"), False)


def check_optimizer(optimizer: Optimizer) -> None:
    """ValueError with the reason for an optimizer whose update of a sample cannot be known."""
    kind = type(optimizer)
    if kind not in ELEMENTWISE and not isinstance(optimizer, LowPrecisionOptimizer):
        raise ValueError(
            f"optimizer = {kind.__name__}: UpdateProbe replays the step of sampled elements, and this optimizer is not "
            f"known to be elementwise ({_REFUSED.get(kind, _OTHER)}); use it with one of mpadam's optimizers or of "
            f"torch.optim's {', '.join(known.__name__ for known in ELEMENTWISE)}, without a wrapper"
        )


def check_parameter(name: str, p: Tensor) -> None:
    """ValueError for a parameter or a gradient that cannot be sampled."""
    faults = {
        "is a DTensor: probe a run whose parameters are not sharded (DDP)": isinstance(p, DTensor),
        "is complex: leave it out of the probed optimizer": p.is_complex(),
        "has a sparse gradient: use a dense one (nn.Embedding(sparse=False))": p.grad is not None and p.grad.is_sparse,
    }
    for fault, holds in faults.items():
        if holds:
            raise ValueError(f"parameter {name!r} {fault}; UpdateProbe cannot sample it")


class Replica:
    """The step that `optimizer` is about to make of the sampled elements; made in float32 when it is built.

    before: parameter -> its sampled weights.  grad: the gradient that belongs to them.
    after: what the step makes of them in float32.  All float32, [tiles, width].
    """

    def __init__(self, optimizer: Optimizer, samples: Mapping[Tensor, Tiles]) -> None:
        scale = getattr(optimizer, "grad_scale", None)
        self.before = {p: tiles.take(p) for p, tiles in samples.items()}
        self.grad = {p: _gradient(p, tiles, scale) for p, tiles in samples.items()}
        self.after = {p: before.clone() for p, before in self.before.items()}
        for p, after in self.after.items():
            after.grad = self.grad[p].clone()
        groups = [_group(group, self.after) for group in optimizer.param_groups]
        kind: Any = type(optimizer)
        copy = kind([group for group in groups if group["params"]])
        self._new = copy.state
        self._old: dict[Tensor, dict[str, Any]] = {}
        for p, tiles in samples.items():
            self._old[p] = _sampled(optimizer.state.get(p, {}), p, tiles)
            if self._old[p]:
                self._new[self.after[p]] = {
                    k: v.clone() if isinstance(v, Tensor) else v for k, v in self._old[p].items()
                }
        kind.step.__wrapped__(copy)  # without the hooks that all optimizers share

    def moments(self, p: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
        """State -> its sampled entries before and after the step, float32 [tiles, width]; none at the first step."""
        old, new = self._old[p], self._new[self.after[p]]
        shape = self.before[p].shape
        kept = [name for name, value in old.items() if isinstance(value, Tensor) and value.shape == shape]
        return {name: (old[name], new[name]) for name in kept if name != "step"}


def is_skipped(optimizer: Optimizer) -> bool:
    """Whether a fused optimizer will leave out this step, since a `GradScaler` has found an overflow."""
    found = getattr(optimizer, "found_inf", None)
    return found is not None and bool(found)


def _gradient(p: Tensor, tiles: Tiles, scale: Tensor | None) -> Tensor:
    assert p.grad is not None
    grad = tiles.take(p.grad)
    return grad if scale is None else grad / scale.to(grad.device)


def _group(group: Mapping[str, Any], copies: Mapping[Tensor, Tensor]) -> dict[str, Any]:
    """The options of a group as plain numbers, with the copies of its sampled parameters."""
    options = {key: _plain(value) for key, value in group.items() if key not in ("params", "param_names")}
    ways = {key: way for key, way in _WAYS.items() if key in options}
    return options | ways | {"params": [copies[p] for p in group["params"] if p in copies]}


def _plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(_plain, value))
    return value.item() if isinstance(value, Tensor) else value


def _sampled(state: Mapping[str, Any], p: Tensor, tiles: Tiles) -> dict[str, Any]:
    """The state of the sampled elements; what the whole parameter shares, such as `step`, is on the CPU."""
    found = {}
    for key, value in state.items():
        if not isinstance(value, Tensor):
            found[key] = value
        elif value.shape == p.shape and (p.dim() or key not in ("step", "mu_product", "eta", "mu")):
            found[key] = tiles.take(value)
        elif value.numel() == 1:
            found[key] = value.detach().to("cpu", torch.float32, copy=True)
        else:
            raise ValueError(
                f"state {key!r} has shape {tuple(value.shape)} and its parameter {tuple(p.shape)}: UpdateProbe replays "
                "states of one entry per weight only; probe the optimizer as torch has it"
            )
    return found
