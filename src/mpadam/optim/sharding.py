"""Where a parameter's elements lie when it is sharded (DTensor): the local tensor and its flat indices.

Rounding bits belong to an element of the whole parameter, so every world size draws the same ones.
"""

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset


@torch.no_grad()
def local(tensor: Tensor) -> Tensor:
    """This rank's part of a DTensor (it shares the storage); any other tensor as it is."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def local_gradient(grad: Tensor, param: Tensor) -> Tensor:
    """This rank's part of a gradient, placed as its parameter is."""
    if isinstance(grad, DTensor) and isinstance(param, DTensor) and grad.placements != param.placements:
        grad = grad.redistribute(param.device_mesh, param.placements)
    return local(grad)


def flat_position(shape: torch.Size, local_shape: tuple[int, ...], offset: tuple[int, ...]) -> int | Tensor:
    """Flat index, in a tensor of `shape`, of the block of `local_shape` that starts at `offset`.

    One number, that of the first element, where the block is contiguous in the whole; else the index of every
    element, int64 of `local_shape`.
    """
    if tuple(local_shape[1:]) == tuple(shape[1:]):
        return offset[0] * shape[1:].numel() if len(shape) else 0
    index = torch.zeros(local_shape, dtype=torch.int64, device="cpu")
    for dim, (start, size) in enumerate(zip(offset, local_shape, strict=True)):
        along = (torch.arange(size, device="cpu") + start) * shape[dim + 1 :].numel()
        index += along.reshape([-1 if d == dim else 1 for d in range(len(shape))])
    return index


def position_of(param: Tensor) -> int | Tensor:
    """`flat_position` of this rank's part of `param`; 0 for a tensor that is not sharded."""
    if not isinstance(param, DTensor):
        return 0
    local_shape, offset = compute_local_shape_and_global_offset(param.shape, param.device_mesh, param.placements)
    position = flat_position(param.shape, local_shape, offset)
    return position.to(param.device) if isinstance(position, Tensor) else position


def is_split(param: Tensor) -> bool:
    """Whether this rank holds less than the whole parameter."""
    return isinstance(param, DTensor) and any(not placement.is_replicate() for placement in param.placements)


def splits(param: Tensor, *, last: int) -> bool:
    """Whether the sharding cuts one of the `last` dimensions; the answer is the same on every rank."""
    if not isinstance(param, DTensor):
        return False
    cut = [
        placement.dim % param.ndim >= param.ndim - last
        for size, placement in zip(param.device_mesh.shape, param.placements, strict=True)
        if size > 1 and isinstance(placement, Shard)
    ]
    return any(cut)


def as_part(param: Tensor, tensor: Tensor) -> Tensor:
    """`tensor`, this rank's part of something kept for `param`, as a DTensor that is placed as `param` is; as it is for
    a parameter that is not sharded. So torch.distributed.checkpoint knows the parts of one whole from copies."""
    if not isinstance(param, DTensor):
        return tensor
    shape = list(tensor.shape)
    for placement in param.placements:
        if isinstance(placement, Shard):  # what rows are split into runs along them: see checks.check_sharding
            shape[placement.dim % param.ndim] = param.shape[placement.dim % param.ndim]
    whole = torch.Size(shape)
    stride = torch.empty(whole, device="meta").stride()
    return DTensor.from_local(tensor, param.device_mesh, param.placements, run_check=False, shape=whole, stride=stride)


def part_of(param: Tensor, tensor: Tensor) -> Tensor:
    """This rank's part of what `as_part` gave; ValueError if it is split otherwise than `param`."""
    if not isinstance(tensor, DTensor):
        return tensor
    placed = (tensor.device_mesh, tensor.placements)
    if not isinstance(param, DTensor) or placed != (param.device_mesh, param.placements):
        raise ValueError(
            f"the checkpoint has a state of shape {tuple(tensor.shape)} that is sharded otherwise than its parameter "
            f"of shape {tuple(param.shape)}: save and load through torch.distributed.checkpoint, which shards it again"
        )
    return local(tensor)
