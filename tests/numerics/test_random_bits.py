"""random_bits: a pure function, uniform, and without correlation between neighbours of any kind.

The generator is written again below in plain Python; every statistical check is also run on a weak generator, which
must fail it.

    pytest tests/numerics/test_random_bits.py
"""

import math

import numpy as np
import pytest
import torch

from mpadam.numerics import random_bits

N = 1 << 16
GOLDEN_FIRST = [689962861, -1760223441, 6046215, -1769318129]
GOLDEN_LATER = [1766148080, 1666760023, -182424875, 2102962247]


def hash32(x: int) -> int:
    for shift, multiplier in ((16, 0x21F0AAAD), (15, 0x735A2D97)):
        x = ((x ^ (x >> shift)) * multiplier) % 2**32
    return x ^ (x >> 15)


def reference(seed: int, step: int, tensor_id: int, index: int) -> int:
    keys = []
    for start in (0x243F6A88, 0x85A308D3):
        key = start
        for word in (seed, tensor_id, step):
            key = hash32(key ^ word % 2**32)
            key = hash32(key ^ (word >> 32) % 2**32)
        keys.append(key)
    return hash32(hash32(index % 2**32 ^ keys[0]) ^ ((index >> 32) * 0x13198A2E) % 2**32 ^ keys[1])


def unsigned(bits: torch.Tensor) -> np.ndarray:
    return bits.reshape(-1).numpy().view(np.uint32)


def draw(seed: int = 0, step: int = 1, tensor_id: int = 0, n: int = N) -> np.ndarray:
    return unsigned(random_bits(seed=seed, step=step, tensor_id=tensor_id, shape=n))


def weak(seed: int = 0, step: int = 1, tensor_id: int = 0, n: int = N) -> np.ndarray:
    """What the checks must catch: a counter times a constant, neighbours a constant apart."""
    start = seed * 7 + step * 13 + tensor_id * 31
    return (((np.arange(n, dtype=np.uint64) + np.uint64(start)) * np.uint64(0x9E3779B9)) % 2**32).astype(np.uint32)


@pytest.mark.parametrize(
    ("seed", "step", "tensor_id"), [(0, 0, 0), (0, 1, 0), (7, 100_000, 41), (2**40 + 3, -5, 2**33), (2**62, 2**31, 1)]
)
def test_equals_the_generator_written_in_plain_python(seed: int, step: int, tensor_id: int) -> None:
    index = torch.tensor([0, 1, 2, 1000, 2**31, 2**32 - 1, 2**32, 2**33 + 5, 2**45])
    got = random_bits(seed=seed, step=step, tensor_id=tensor_id, index=index)
    assert unsigned(got).tolist() == [reference(seed, step, tensor_id, i) for i in index.tolist()]


def test_golden_values() -> None:
    """Frozen: a change of these changes every stochastically rounded run, and must raise numerics_version."""
    got = random_bits(seed=0, step=1, tensor_id=0, shape=4)
    assert got.dtype == torch.int32
    assert got.tolist() == GOLDEN_FIRST
    assert random_bits(seed=3, step=1000, tensor_id=17, shape=4, offset=2**20).tolist() == GOLDEN_LATER


def test_a_step_may_be_a_number_or_a_tensor() -> None:
    as_number = random_bits(seed=5, step=12, tensor_id=3, shape=100)
    as_tensors = random_bits(seed=torch.tensor(5), step=torch.tensor(12), tensor_id=torch.tensor(3), shape=100)
    assert torch.equal(as_number, as_tensors)


def test_shards_draw_the_bits_of_the_whole() -> None:
    key = {"seed": 1, "step": 2, "tensor_id": 3}
    whole = random_bits(**key, shape=(6, 10))
    assert torch.equal(random_bits(**key, shape=(2, 10), offset=30), whole[3:5])
    assert torch.equal(random_bits(**key, numel=17, offset=11), whole.flatten()[11:28])
    columns = torch.arange(60).reshape(6, 10)[:, 4:7]
    assert torch.equal(random_bits(**key, index=columns), whole[:, 4:7])
    assert torch.equal(random_bits(**key, index=columns, shape=columns.shape), whole[:, 4:7])
    assert torch.equal(columns, torch.arange(60).reshape(6, 10)[:, 4:7])  # the index is not written to


def test_sizes() -> None:
    key = {"seed": 0, "step": 0, "tensor_id": 0}
    assert random_bits(**key, shape=()).shape == ()
    assert random_bits(**key, shape=(3, 0)).shape == (3, 0)
    assert random_bits(**key, shape=torch.Size([2, 3])).shape == (2, 3)
    assert random_bits(**key, numel=5).shape == (5,)


@pytest.mark.parametrize(
    "size",
    [
        {},
        {"shape": (2,), "numel": 2},
        {"index": torch.arange(3), "offset": 1},
        {"index": torch.arange(3), "shape": (2,)},
    ],
)
def test_sizes_that_do_not_agree_are_refused(size: dict) -> None:
    with pytest.raises(ValueError, match="random_bits"):
        random_bits(seed=0, step=0, tensor_id=0, **size)


def test_the_global_random_state_is_neither_read_nor_changed() -> None:
    torch.manual_seed(0)
    before = torch.get_rng_state()
    first = random_bits(seed=0, step=1, tensor_id=0, shape=1000)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(1)
    assert torch.equal(random_bits(seed=0, step=1, tensor_id=0, shape=1000), first)


def worst_bit(words: np.ndarray) -> float:
    """Largest deviation of a bit's share of ones from 1/2, in standard deviations."""
    ones = np.array([((words >> b) & 1).mean() for b in range(32)])
    return float(np.abs(ones - 0.5).max() * 2 * math.sqrt(words.size))


def worst_chi_square(words: np.ndarray) -> float:
    """Largest chi-square over the four bytes (255 degrees of freedom), in standard deviations."""
    chis = []
    for byte in range(4):
        counts = np.bincount((words >> (8 * byte)) & 255, minlength=256)
        chis.append(((counts - words.size / 256) ** 2 / (words.size / 256)).sum())
    return float(np.abs((np.array(chis) - 255) / math.sqrt(2 * 255)).max())


def correlation(a: np.ndarray, b: np.ndarray) -> float:
    """Correlation as uniform numbers and of the worst pair of equal bits, in standard deviations."""
    r = abs(np.corrcoef(a / 2**32, b / 2**32)[0, 1]) * math.sqrt(a.size)
    return max(float(r), worst_bit(a ^ b))


@pytest.mark.parametrize("key", [(0, 1, 0), (0, 2, 0), (1, 1, 5), (123, 99_999, 64)])
def test_uniform(key: tuple[int, int, int]) -> None:
    words = draw(*key)
    assert worst_bit(words) < 4.5
    assert worst_chi_square(words) < 5
    assert abs((words / 2**32).mean() - 0.5) * math.sqrt(12 * N) < 4.5


def test_no_correlation_between_neighbouring_steps_ids_seeds_and_indices() -> None:
    words = draw()
    for other in (draw(step=2), draw(step=0), draw(tensor_id=1), draw(seed=1), draw(step=1 + 2**32)):
        assert correlation(words, other) < 4.5
    for lag in (1, 2, 16, 256, 512, 1376):
        assert correlation(words[:-lag], words[lag:]) < 4.5
    # One tensor's step t and its neighbour's step t + 1, and the sums of the keys equal.
    assert correlation(draw(step=5, tensor_id=4), draw(step=4, tensor_id=5)) < 4.5


def test_the_checks_catch_a_weak_generator() -> None:
    assert correlation(weak(), weak(step=2)) > 100
    assert correlation(weak()[:-1], weak()[1:]) > 100
    assert worst_chi_square(weak()) > 5


def test_avalanche_every_input_bit_turns_every_output_bit_with_probability_one_half() -> None:
    n = 1 << 12
    index = torch.arange(n) * 7919
    base = unsigned(random_bits(seed=1, step=2, tensor_id=3, index=index))
    flips = [random_bits(seed=1, step=2, tensor_id=3, index=index ^ (1 << b)) for b in range(36)]
    flips += [random_bits(seed=1 ^ (1 << b), step=2, tensor_id=3, index=index) for b in range(40)]
    flips += [random_bits(seed=1, step=2 ^ (1 << b), tensor_id=3, index=index) for b in range(40)]
    flips += [random_bits(seed=1, step=2, tensor_id=3 ^ (1 << b), index=index) for b in range(40)]
    # 156 x 32 shares of 4096 draws: the largest of so many stays below 5 standard deviations.
    assert max(worst_bit(base ^ unsigned(flip)) for flip in flips) < 5
