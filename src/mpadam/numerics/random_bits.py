"""Random bits for stochastic rounding: a pure function of (seed, step, tensor id, flat index), and of nothing else.

The global random state is neither read nor changed, so the bits are equal on every rank, at every world size, after
every resume, eager or compiled, on CPU and GPU (integer arithmetic only), and a run with stochastic rounding sees the
same batches as one without.

The generator is counter-based: the finalizer of SplitMix64 (Steele, Lea, Flood, "Fast splittable pseudorandom number
generators", OOPSLA 2014; constants of Stafford's variant 13), whose avalanche is close to ideal, applied to
`key + index * GOLDEN`. The key is the same finalizer chained over seed, step and tensor id. A second word of the key
goes in between the two multiplications, so that two tensors or steps never run through the same sequence with a shift.

    bits = random_bits(seed=0, step=t, tensor_id=3, shape=w.shape, device=w.device)
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

# The unsigned 64-bit constants of SplitMix64 written as the int64 that torch multiplies modulo 2**64.
_GOLDEN = 0x9E3779B97F4A7C15 - 2**64
_MULTIPLY_1 = 0xBF58476D1CE4E5B9 - 2**64
_MULTIPLY_2 = 0x94D049BB133111EB - 2**64


def random_bits(
    *,
    seed: int | Tensor,
    step: int | Tensor,
    tensor_id: int | Tensor,
    shape: int | Sequence[int] | None = None,
    numel: int | None = None,
    offset: int = 0,
    index: Tensor | None = None,
    device: torch.device | str | None = None,
) -> Tensor:
    """32 uniform random bits an element, as int32 of `shape` (or `(numel,)`, or the shape of `index`).

    seed, step, tensor_id: int64 numbers, or 0-d int64 tensors; give `step` as a tensor under torch.compile, or every
        step compiles anew.
    offset: flat index, in the unsharded parameter, of the first element of a contiguous shard.
    index: int64 flat index of every element, for a shard that is not contiguous; instead of `offset`.
    Raises ValueError where the size is not given, or given in ways that do not agree.
    """
    if index is None:
        size = _size(shape, numel)
        index = torch.arange(offset, offset + size.numel(), dtype=torch.int64, device=device).reshape(size)
    elif offset != 0 or ((shape is not None or numel is not None) and _size(shape, numel).numel() != index.numel()):
        raise ValueError(
            f"random_bits: index of shape {tuple(index.shape)} with offset={offset}, shape={shape}, numel={numel}: "
            "an index is the flat index of every element, so leave offset at 0 and let the sizes agree"
        )
    first, second = _key(seed, step, tensor_id)
    z = index * _GOLDEN + first
    z = (z ^ _shift_right(z, 30)) * _MULTIPLY_1 ^ second
    z = (z ^ _shift_right(z, 27)) * _MULTIPLY_2
    return (z >> 32).to(torch.int32)  # the high half; the last xor-shift of SplitMix64 would change its lowest bit only


def _size(shape: int | Sequence[int] | None, numel: int | None) -> torch.Size:
    if (shape is None) == (numel is None):
        raise ValueError(f"random_bits: shape={shape}, numel={numel}: give exactly one of shape, numel or index")
    sizes = numel if shape is None else shape
    return torch.Size([sizes]) if isinstance(sizes, int) else torch.Size(sizes or ())


def _key(seed: int | Tensor, step: int | Tensor, tensor_id: int | Tensor) -> tuple[Tensor, Tensor]:
    """Two 64-bit words, 0-d, where `step` lies if it is a tensor, else on the CPU (0-d CPU tensors mix with any)."""
    key = torch.zeros((), dtype=torch.int64, device=step.device if isinstance(step, Tensor) else None)
    for word in (seed, step, tensor_id):
        key = _finalize(key + _GOLDEN + word)
    return key, _finalize(key + _GOLDEN)


def _finalize(z: Tensor) -> Tensor:
    """SplitMix64's finalizer, a bijection of 64-bit words."""
    z = (z ^ _shift_right(z, 30)) * _MULTIPLY_1
    z = (z ^ _shift_right(z, 27)) * _MULTIPLY_2
    return z ^ _shift_right(z, 31)


def _shift_right(z: Tensor, count: int) -> Tensor:
    """Logical shift: torch's `>>` of int64 repeats the sign bit."""
    return (z >> count) & ((1 << (64 - count)) - 1)
