"""Batches on the device of a rank: the next one is read and copied while the present one is computed.

Copies to a GPU start from pinned memory, so the host goes on at once.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mpadam.data import Batch, TrainBatches


@dataclass(frozen=True)
class Fed:
    """This rank's rows of the global batch of update `step` = 1, 2, ...; input_ids, labels: int64 (B, L)."""

    step: int
    input_ids: Tensor
    labels: Tensor
    positions: int
    target_tokens: int


class Feed:
    """What a rank computes at each update, as long as it takes one update after the other."""

    def __init__(self, batches: TrainBatches, rows: slice, device: str) -> None:
        self._batches, self._rows, self._device = batches, rows, device
        self._ahead: Fed | None = None

    def read(self, step: int) -> Fed:
        batch = self._batches.batch(step - 1, self._rows)  # which counts from 0
        return Fed(step, *to_tensors(batch, self._device), batch.positions, batch.target_tokens)

    def take(self, step: int) -> Fed:
        """The batch of an update: the one that was prepared, if it is this one."""
        fed, self._ahead = self._ahead, None
        return fed if fed is not None and fed.step == step else self.read(step)

    def prepare(self, step: int) -> None:
        self._ahead = self.read(step)


def to_tensors(batch: Batch, device: torch.device | str) -> tuple[Tensor, Tensor]:
    """Input and labels of a batch, int64 (B, L), on the device."""
    return _on(device, batch.input_ids), _on(device, batch.labels)


def _on(device: torch.device | str, array: npt.NDArray[np.int64]) -> Tensor:
    tensor = torch.from_numpy(array)
    return tensor if torch.device(device).type == "cpu" else tensor.pin_memory().to(device, non_blocking=True)
