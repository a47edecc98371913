"""A training step on a GPU makes the host wait only where something is logged or checked.

Without a GPU: the step runs on torch's device `meta`, whose tensors have no values. What would bring a value to the
host, or copy between host and device and wait for it, is an error there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from mpadam.data import TokenData
from mpadam.optim import base
from mpadam.study.run_folder import RunFolder
from mpadam.study.spec import read_run_file
from mpadam.training import loop
from mpadam.training.session import Session, open_session
from tests.unit.training_runs import make_data, make_run

DEVICE = "meta"
READS = {"_local_scalar_dense", "equal", "is_nonzero", "nonzero", "masked_select", "_unique2", "unique_dim"}
BY_MASK = {"index", "index_put", "index_put_", "_index_put_impl_"}  # with booleans they count them first


def wait(what: object) -> AssertionError:
    return AssertionError(f"the host waits: {what}")


class NoReads(TorchDispatchMode):
    """Operations by which the host would wait for the device raise; pinned: what may be copied to it."""

    def __init__(self, pinned: list[Tensor]) -> None:
        super().__init__()
        self.pinned = pinned
        self.copies = 0

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = function._schema.name.removeprefix("aten::")
        tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        if any(x.device.type == DEVICE for x in tensors):
            masked = name in BY_MASK and any(x is not None and x.dtype == torch.bool for x in args[1])
            if name in READS or masked or self._is_copy_from_device(name, args, kwargs):
                raise wait(function)
        out = function(*args, **kwargs)
        source = args[1] if name == "copy_" else args[0] if name == "_to_copy" else None
        if source is not None and source.device.type == "cpu" and out.device.type == DEVICE:
            if not (kwargs.get("non_blocking") or args[2:3] == (True,)) or not any(source is x for x in self.pinned):
                raise wait(f"{function} to the device")
            self.copies += 1
        return out

    @staticmethod
    def _is_copy_from_device(name: str, args: Any, kwargs: Any) -> bool:
        if name == "copy_":
            return args[0].device.type == "cpu"
        return name == "_to_copy" and torch.device(kwargs.get("device") or DEVICE).type == "cpu"


class NoNumbers(TorchFunctionMode):
    """Numbers of the host that become a tensor on the device are a copy, too, which torch does not dispatch."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if function in (torch.tensor, torch.as_tensor) and torch.device(kwargs.get("device") or "cpu").type == DEVICE:
            raise wait("numbers of the host are copied to the device")
        return function(*args, **kwargs)


@contextmanager
def no_waits(pinned: list[Tensor]) -> Iterator[NoReads]:
    with NoReads(pinned) as seen, NoNumbers():
        yield seen


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> TokenData:
    return make_data(tmp_path_factory.mktemp("waits"))


@pytest.fixture
def pinned(monkeypatch: pytest.MonkeyPatch) -> list[Tensor]:
    """Tensors whose memory was asked to be pinned, which takes a GPU."""
    found: list[Tensor] = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda self: found.append(self) or self)
    monkeypatch.setattr(base, "check_gradients", lambda *_, **__: True)  # refuses this device
    return found


def session_of(folder: Path, data: TokenData, **changes: Any) -> Session:
    """A run on the device after its first update: at the first, the optimizer looks at its weights."""
    fields = {"log_every": 100, "evaluate_every": 100, "check_nonfinite_every": 100, "steps": 100}
    run = read_run_file(make_run(folder, data, **fields | changes) / "run.yaml")
    training = run.spec.training.model_copy(update={"device": DEVICE})
    run = run.model_copy(update={"spec": run.spec.model_copy(update={"training": training})})
    session = open_session(run, RunFolder(folder), data)
    for state in session.optimizer.state.values():
        state["step"] = 1
    return session


def step(session: Session, number: int) -> loop.Gradients:
    loop.set_rates(session, number)
    gradients = loop.backward(session, number)
    loop.update(session, gradients)
    return gradients


RUNS: dict[str, dict[str, Any]] = {
    "bf16": {},
    "sdpa": {"attention": "sdpa"},
    "micro-batches": {"micro_batch_size": 2},
    "fp32 masters": {"masters": "fp32", "state_dtype": "fp32", "name": "adamw"},
    "stochastic": {"name": "m-plus-adam-sr"},
    "kahan": {"name": "adamw-kahan"},
    "apollo": {"name": "m-plus-adam-apollo-e"},
    "fp8": {"masters": "fp8", "compute": "fp8", "fp8_backend": "native"},
    "nvfp4": {"masters": "nvfp4"},
}


@pytest.mark.parametrize("changes", RUNS.values(), ids=RUNS)
def test_i18_no_step_waits_for_the_gpu(
    tmp_path: Path, data: TokenData, pinned: list[Tensor], changes: dict[str, Any]
) -> None:
    session = session_of(tmp_path, data, **changes)
    with no_waits(pinned) as seen:
        unseen = [step(session, number) for number in (2, 3)]
    assert seen.copies == 2 * 3  # inputs and labels of updates 2 and 3, and of 4, which comes next
    assert {gradients.values.device.type for gradients in unseen} == {DEVICE}


def test_what_makes_the_host_wait_is_noticed(tmp_path: Path, data: TokenData, pinned: list[Tensor]) -> None:
    session = session_of(tmp_path, data)
    waits: list[Callable[[Tensor], object]] = [
        Tensor.tolist,
        lambda x: bool((x == 0).all()),
        Tensor.cpu,
        lambda x: torch.equal(x, x + 1),
        lambda x: x.copy_(torch.zeros(2)),
        lambda x: x.copy_(torch.zeros(2), non_blocking=True),
        lambda x: torch.zeros(2).copy_(x),
        lambda x: torch.tensor([1.0], device=x.device),
        lambda x: x[x > 0],
    ]
    with no_waits(pinned):
        values = step(session, 2).values
        for read in waits:
            with pytest.raises(AssertionError, match="the host waits"):
                read(values)
