"""How training and evaluation drive the FP8 layers of a model. All of it accepts a model without FP8, and then does
nothing, so that a loop needs no case for it.

    with fp8_step(model, count_flushed=True) as step:      # all micro-batches of one optimizer step
        loss.backward()
    step.share                                             # fp8_flushed_share of this step, or None
    with fp8_enabled(model, False):                        # evaluation in bf16; True: in FP8, scales as they are
        evaluate(...)
    checkpoint["fp8"] = fp8_state_dict(model)              # between steps
    load_fp8_state_dict(model, checkpoint["fp8"])
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import nn

from mpadam.model.fp8.compute import TorchFp8
from mpadam.model.fp8.linear import Fp8Linear
from mpadam.model.fp8.scaling import FlushCount
from mpadam.model.fp8.transformer_engine import TransformerEngineFp8, TransformerEngineLinear


def fp8_compute(model: nn.Module) -> TorchFp8 | TransformerEngineFp8 | None:
    """What the FP8 layers of a model share, None if it has none."""
    for module in model.modules():
        if isinstance(module, Fp8Linear | TransformerEngineLinear):
            return module.compute
    return None


def compile_casts(model: nn.Module) -> None:
    """Put casts to FP8 through torch.compile from now on, where the backend has one that can: `native`."""
    compute = fp8_compute(model)
    if isinstance(compute, TorchFp8):
        compute.compiled = True


@contextmanager
def fp8_step(model: nn.Module, *, count_flushed: bool = False) -> Iterator[FlushCount]:
    """One optimizer step: inside, forward and backward of all its micro-batches; on leaving, the history advances.

    count_flushed: count what e5m2 makes of the gradients: two more passes over each, so for steps that are logged.
    Gives a FlushCount whose `share` is set on leaving. With several ranks all must enter and leave, with the same
    `count_flushed`: magnitudes and counts are reduced then.
    """
    compute, count = fp8_compute(model), FlushCount()
    if compute is None:
        yield count
        return
    compute.flushed = count if count_flushed else None
    try:
        yield count
    finally:
        compute.flushed = None
    if count_flushed:
        count.close(compute.group)
    compute.advance()


@contextmanager
def fp8_enabled(model: nn.Module, enabled: bool) -> Iterator[None]:
    """For evaluation: compute in FP8 or not, and leave the scaling state as it is."""
    compute = fp8_compute(model)
    if compute is None:
        yield
        return
    with compute.evaluation(enabled):
        yield


def fp8_state_dict(model: nn.Module) -> dict[str, Any]:
    """Backend and scaling state, for a checkpoint between two steps; {} for a model without FP8."""
    compute = fp8_compute(model)
    return {} if compute is None else {"backend": compute.backend, "state": compute.state_dict()}


def load_fp8_state_dict(model: nn.Module, saved: Mapping[str, Any]) -> None:
    """Restore the state of `fp8_state_dict` bit for bit; ValueError if it is another backend's or another model's."""
    compute = fp8_compute(model)
    own, other = (None if compute is None else compute.backend), saved.get("backend")
    if own != other:
        raise ValueError(
            f"the checkpoint has FP8 state of {other or 'no'} backend, the model computes with {own or 'none'}: resume "
            "with the precision and the fp8_backend that the run started with"
        )
    if compute is not None:
        compute.load_state_dict(saved["state"])
