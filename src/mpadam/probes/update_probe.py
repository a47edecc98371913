"""`mpadam.UpdateProbe`: which updates of somebody's own training are rounded away. See docs/update-probe.md.

    probe = mpadam.UpdateProbe(optimizer, model)            # out="updates.jsonl", at most every 100 steps

Hooks of the optimizer read, before and after every so many steps, what the optimizer gets and what it has stored.
Nothing is written to weights, gradients, states or random generators.
"""

import inspect
import time
import warnings
from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.update import float32_arithmetic
from mpadam.probes.outlets import outlet
from mpadam.probes.replay import check_optimizer, check_parameter, is_skipped
from mpadam.probes.sampled import Sampled, sample_step
from mpadam.probes.tally import tally
from mpadam.probes.tiles import draw_tiles

_MOST = 0.01  # of the time, at the default interval


class UpdateProbe:
    """Measures, every `every` steps, which updates of `optimizer` the storage of the weights rounds away.

    optimizer: of mpadam, or an elementwise one of torch.optim.  model: whose names the parameters get.
    every: None stands for 100, and leaves a measurement out (`left_out`) that would bring all to over 1% of the time.
    out: path of a JSON lines file (appended to), a W&B run, a TensorBoard SummaryWriter, a function that takes a
        record, or a list of these.
    samples: elements of each parameter that are measured, about.  seed: of the sample alone.
    step: steps that the optimizer had made when a training is resumed.
    record: the last one, None until then.  seconds: of all measurements so far.
    Raises ValueError for an optimizer that is not elementwise, for a parameter that cannot be sampled, and for a file
    that cannot be written. Under DDP only rank 0 measures.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        model: nn.Module,
        *,
        every: int | None = None,
        out: Any = "updates.jsonl",
        samples: int = 1024,
        seed: int = 0,
        step: int = 0,
    ) -> None:
        self._bounded, every = every is None, 100 if every is None else every
        for key, value, least in (("every", every, 1), ("samples", samples, 1), ("seed", seed, 0), ("step", step, 0)):
            if type(value) is not int or value < least:
                raise ValueError(f"{key} = {value!r}: give a whole number from {least}, such as 100")
        check_optimizer(optimizer)
        self.optimizer, self.every, self.samples, self.seed, self.step = optimizer, every, samples, seed, step
        self.left_out = self._measured = 0
        self.record: dict[str, Any] | None = None
        self._names = _names(optimizer, model)
        self._check()
        self._write = outlet(out)
        self._pending: list[tuple[Tensor, Sampled]] = []
        self._first, self._warned = step, False
        self._unchecked, self.seconds, self._began = True, 0.0, time.perf_counter()
        self._hooks = (
            optimizer.register_step_pre_hook(torch.compiler.disable(self._before_step)),
            optimizer.register_step_post_hook(torch.compiler.disable(self._after_step)),
        )

    def close(self) -> None:
        """Measure no more. The optimizer goes on without the probe."""
        for hook in self._hooks:
            hook.remove()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def _warn(self, share: float) -> None:
        """Once, when the first measurements, which load code, no longer count for much."""
        if share > _MOST and not self._bounded and not self._warned and self.step >= self._first + 10 * self.every:
            self._warned, enough = True, round(self.every * share / _MOST)
            warnings.warn(
                f"UpdateProbe with every={self.every} takes {share:.1%} of the time, since these steps are short: "
                f"every={enough} would take 1%"
            )

    def _check(self) -> None:
        for p, name in self._names.items():
            check_parameter(name, p)

    def _before_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> tuple[tuple, dict] | None:
        self.step, self._pending = self.step + 1, []
        due = self._is_due()
        if not _leads() or not (due or self._unchecked):
            return None
        given = inspect.signature(type(optimizer).step).bind(*args, **kwargs).arguments
        closure = given.get("closure")
        if closure is None:
            self._look(due)
            return None
        return (optimizer, self._looking(closure, due)), {}

    def _is_due(self) -> bool:
        """Whether the step that comes is measured; counts those that are left out for the time they would take."""
        if self.step % self.every:
            return False
        too_long = self._bounded and self._next_total() > _MOST * (time.perf_counter() - self._began)
        self.left_out += too_long
        return not too_long

    def _next_total(self) -> float:
        """Seconds of all measurements, with one more as long as those before; 0 before the first."""
        return self.seconds * (1 + 1 / self._measured) if self._measured else 0.0

    def _looking(self, closure: Callable[[], Any], due: bool) -> Callable[[], Any]:
        """The closure, with a measurement when it has made the gradients."""

        def observed() -> Any:
            loss = closure()
            self._look(due)
            return loss

        return observed

    def _look(self, due: bool) -> None:
        began = time.perf_counter()
        self._names |= _names(self.optimizer, None, self._names)
        self._check()
        self._unchecked = False
        if due and not is_skipped(self.optimizer):
            with float32_arithmetic({p.device.type for p in self._names}):
                self._pending = self._sampled()
        self.seconds += time.perf_counter() - began

    def _sampled(self) -> list[tuple[Tensor, Sampled]]:
        own = isinstance(self.optimizer, LowPrecisionOptimizer)
        samples = {
            p: draw_tiles(p, size=self.samples, seed=self.seed, step=self.step, tensor_id=number)
            for number, p in enumerate(self._names)
            if p.grad is not None and p.numel() and (p in self.optimizer.state or not own)  # it adopts new ones later
        }
        return list(zip(samples, sample_step(self.optimizer, self._names, samples), strict=True))

    def _after_step(self, optimizer: Optimizer, args: tuple, kwargs: dict) -> None:
        if not self._pending:
            return
        began = time.perf_counter()
        with float32_arithmetic({p.device.type for p in self._names}):
            own = isinstance(optimizer, LowPrecisionOptimizer)
            found = tally([s if own else s.stepped(p) for p, s in self._pending], seed=self.seed, step=self.step)
        self._pending, self._measured = [], self._measured + 1
        now = time.perf_counter()
        self.seconds += now - began
        times = {"seconds": round(self.seconds, 4), "time_share": round(self.seconds / (now - self._began), 5)}
        times["left_out"] = self.left_out
        self.record = {"step": self.step, "optimizer": type(optimizer).__name__, **times, **found}
        self._write(self.record)
        self._warn(self.seconds / (now - self._began))


def _names(
    optimizer: Optimizer, model: nn.Module | None, known: Mapping[Tensor, str] | None = None
) -> dict[Tensor, str]:
    """Every parameter of the optimizer with its name in the model, or its place in the groups."""
    names = dict(known or {}) if model is None else {p: name for name, p in model.named_parameters()}
    return {
        p: names.get(p, f"group {g}, parameter {n}")
        for g, group in enumerate(optimizer.param_groups)
        for n, p in enumerate(group["params"])
    }


def _leads() -> bool:
    ranks = torch.distributed
    return not (ranks.is_available() and ranks.is_initialized()) or ranks.get_rank() == 0
