"""How much of the gradient e5m2 loses: the share of non-zero values that become zero (`fp8_flushed_share`)."""

import torch
from torch import Tensor
from torch import distributed as dist


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
