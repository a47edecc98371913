"""Random bits for stochastic rounding: a pure function of (seed, step, tensor id, flat index), and of nothing else.

The global random state is neither read nor changed, so the bits are equal on every rank, at every world size, after
every resume, eager or compiled, on CPU and GPU (integer arithmetic only), and a run with stochastic rounding sees the
same batches as one without.

The generator is counter-based: the two-round 32-bit hash `16 21f0aaad 15 735a2d97 15` (found by a search for the
smallest avalanche bias: C. Wellons, "Prospecting for Hash Functions", 2018, and its table of results), applied twice:

    bits = hash(hash(index ^ key_0) ^ key_1)

The two words of the key are two chains of the same hash over seed, tensor id and step.

    bits = random_bits(seed=0, step=t, tensor_id=3, shape=w.shape, device=w.device)
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_WORD = 0xFFFFFFFF
_CHAINS = (0x243F6A88, 0x85A308D3)  # where the two words of the key start: digits of pi
_INDEX_HIGH = 0x13198A2E  # spreads the high half of an index (a tensor of more than 2**32 elements)


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
    """32 uniform random bits per element, as int32 of `shape` (or `(numel,)`, or the shape of `index`).

    seed, step, tensor_id: int64 numbers, or 0-d int64 tensors; give `step` as a tensor under torch.compile, or every
        step compiles again.
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
    words = [seed, tensor_id, step]
    if torch.compiler.is_compiling():
        # A symbolic number would go through the hash as one expression that doubles in each line.
        words = [
            torch.full((), w, dtype=torch.int64, device=index.device) if not isinstance(w, Tensor) else w for w in words
        ]
    return bits_of(index, bit_keys(*words))


def bit_keys(seed: int | Tensor, tensor_id: int | Tensor, step: int | Tensor) -> tuple[int | Tensor, int | Tensor]:
    """The two words of the key, which every element of one tensor shares in one step."""
    key_0, key_1 = (_key(start, (seed, tensor_id, step)) for start in _CHAINS)
    return key_0, key_1


def bits_of(index: Tensor, keys: tuple[int | Tensor, int | Tensor], *, short: bool = False) -> Tensor:
    """32 random bits for every flat index (int64), as int32: `random_bits` from keys that are there already.

    short: whether every index is below 2**32; its high half, which is zero then, is not looked at.
    """
    bits = (index & _WORD) ^ keys[0]
    _hash_in_place(bits)
    bits ^= keys[1] if short else ((index >> 32) * _INDEX_HIGH & _WORD) ^ keys[1]
    _hash_in_place(bits)
    return bits.to(torch.int32)


def more_bits(bits: Tensor) -> Tensor:
    """Other bits for a second rounding of the same elements: one more turn of the hash on each word of `bits`."""
    words = bits.to(torch.int64) & _WORD
    _hash_in_place(words)
    return words.to(torch.int32)


def _size(shape: int | Sequence[int] | None, numel: int | None) -> torch.Size:
    if (shape is None) == (numel is None):
        raise ValueError(f"random_bits: shape={shape}, numel={numel}: give exactly one of shape, numel or index")
    sizes = numel if shape is None else shape
    return torch.Size([sizes]) if isinstance(sizes, int) else torch.Size(sizes or ())


def _key(start: int, words: Sequence[int | Tensor]) -> int | Tensor:
    """One 32-bit word that depends on all 64-bit `words`; a number as long as they are."""
    key: int | Tensor = start
    for word in words:
        for half in (word & _WORD, (word >> 32) & _WORD):
            key = _hash(key ^ half)
    return key


# 32-bit words are held in int64 and the multipliers are below 2**31, so that no product overflows: signed overflow is
# undefined in the C++ that torch.compile writes, and its compiler was seen to drop the end of the loop for it.
_MULTIPLIERS = (0x21F0AAAD, 0x735A2D97)


def _hash(x: int | Tensor) -> int | Tensor:
    x = x ^ (x >> 16)
    x = x * _MULTIPLIERS[0] & _WORD
    x = x ^ (x >> 15)
    x = x * _MULTIPLIERS[1] & _WORD
    return x ^ (x >> 15)


def _hash_in_place(x: Tensor) -> None:
    """`_hash` without new memory, whose allocation would take most of the time on a CPU."""
    x ^= x >> 16
    x *= _MULTIPLIERS[0]
    x &= _WORD
    x ^= x >> 15
    x *= _MULTIPLIERS[1]
    x &= _WORD
    x ^= x >> 15
