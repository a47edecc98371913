"""The ranks of a training: one process, or several that train one model together (data parallel).

    torchrun --standalone --nproc-per-node 4 -m mpadam train --run-dir D        or: mpadam train --processes 4 ...

Rank 0 leads: it alone holds the lock, writes the folder and reads what is in it; the others do as it says. Ranks read
disjoint rows of the same global batch and sum gradients in float32 (`gradients.sum_over_ranks_`); torch's own DDP would
average them in the parameters' dtype. What decides something (loss, norm, a reason to stop) is made the same bits on
all ranks, so all of them take the same way, and each takes part in the same collectives.

Nothing here imports torch until there are several ranks.
"""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import ProcessGroup

TORCHRUN = "TORCHELASTIC_RUN_ID"  # the variable by which its processes know that it has started them
T = TypeVar("T")


@dataclass(frozen=True)
class Ranks:
    """This process among those that train one model. `size` of 1: alone, and every method is the identity."""

    rank: int = 0
    size: int = 1
    group: ProcessGroup | None = None

    @property
    def leads(self) -> bool:
        return self.rank == 0

    @property
    def _dist(self) -> Any:
        return import_module("torch.distributed")

    def rows(self, global_batch_size: int) -> slice:
        """The rows of a global batch that this rank computes; ValueError if ranks would not all have as many."""
        if global_batch_size % self.size:
            raise ValueError(
                f"training.global_batch_size {global_batch_size} cannot be shared by {self.size} processes: start a "
                "number of processes that divides it"
            )
        share = global_batch_size // self.size
        return slice(self.rank * share, (self.rank + 1) * share)

    def together(self, action: Callable[[], T]) -> T:
        """What `action` returns on rank 0, which alone carries it out; an exception there is raised on all ranks."""
        if self.size == 1:
            return action()
        if not self.leads:
            result, failure = self._from_leading(None)
            if failure is not None:
                raise failure
            return result
        try:
            result = action()
        except Exception as error:
            self._from_leading((None, _sendable(error)))
            raise
        self._from_leading((result, None))
        return result

    def total(self, *counts: int) -> tuple[int, ...]:
        return self._reduced(counts, "SUM")

    def largest(self, *values: int) -> tuple[int, ...]:
        return self._reduced(values, "MAX")

    def any_reason(self, reason: str | None) -> str | None:
        """Why this rank has to stop, or that another one has to; None if no rank has to."""
        (asked,) = self.total(reason is not None)
        return (reason or "another process was told to stop") if asked else None

    def sum_(self, tensor: Tensor) -> Tensor:
        """Sum over all ranks, in place and in the tensor's dtype; the same bits on each."""
        if self.size > 1:
            self._dist.all_reduce(tensor, group=self.group)
        return tensor

    def as_leading_(self, tensor: Tensor) -> Tensor:
        """Rank 0's bits, in place."""
        if self.size > 1:
            self._dist.broadcast(tensor, src=0, group=self.group)
        return tensor

    def gather(self, value: T) -> list[T]:
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        self._dist.all_gather_object(values, value, group=self.group)
        return values

    def check_same(self, named: dict[str, Tensor]) -> None:
        """Raise RuntimeError if a tensor has not the same bits on all ranks."""
        if self.size == 1:
            return
        sums = {name: _bit_sum(tensor) for name, tensor in named.items()}
        highest = self.largest(*sums.values())
        lowest = [-value for value in self.largest(*(-value for value in sums.values()))]
        differing = [name for name, low, high in zip(sums, lowest, highest, strict=True) if low != high]
        if differing:
            raise RuntimeError(f"the ranks of this training no longer hold the same bits: {', '.join(differing)}")

    def _reduced(self, values: tuple[int, ...], operation: str) -> tuple[int, ...]:
        if self.size == 1:
            return tuple(int(value) for value in values)
        import torch

        tensor = torch.tensor(values, dtype=torch.int64)  # on the CPU: no wait for a GPU
        self._dist.all_reduce(tensor, op=getattr(self._dist.ReduceOp, operation), group=self.group)
        return tuple(tensor.tolist())

    def _from_leading(self, value: Any) -> Any:
        """The value that rank 0 gives; the others' own does not matter."""
        import torch

        values = [value]
        self._dist.broadcast_object_list(values, src=0, group=self.group, device=torch.device("cpu"))
        return values[0]


ALONE = Ranks()


@contextmanager
def joined() -> Iterator[Ranks]:
    """The ranks that torchrun (its environment variables) has started this process among; alone without it.

    Collectives run over NCCL on GPUs and over gloo on the CPU. On a GPU machine each rank takes its own device.
    Raises ValueError if there are more processes than GPUs.
    """
    size = int(os.environ["WORLD_SIZE"]) if TORCHRUN in os.environ else 1  # other launchers set WORLD_SIZE too
    if size == 1:
        yield ALONE
        return
    import torch
    from torch import distributed as dist

    local, gpus = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
    if 0 < gpus <= local:
        raise ValueError(f"more processes than GPUs: process {local} (from 0) on a machine with {gpus}; start {gpus}")
    if gpus:
        torch.cuda.set_device(local)
    dist.init_process_group("cpu:gloo,cuda:nccl" if gpus else "gloo")
    yield Ranks(dist.get_rank(), size, dist.group.WORLD)
    dist.destroy_process_group()  # not after an error of this rank alone: the others may be waiting in a collective


def _sendable(error: Exception) -> Exception:
    """The exception, or what can be said of it if it cannot be sent to another process."""
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error


def _bit_sum(tensor: Tensor) -> int:
    """Sum of a tensor's bits read as integers: differs if one element does."""
    import torch

    integer = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[tensor.element_size()]
    return int(tensor.detach().contiguous().view(integer).sum(dtype=torch.int64))
