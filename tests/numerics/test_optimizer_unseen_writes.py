"""Writes to a parameter that autograd's version counter does not see: `p.data`, NumPy, the storage (N10)."""

from __future__ import annotations

from typing import Any

import pytest
from test_optimizer_identity import KINDS, build, ends, parameters, same, train
from torch import nn

from mpadam import AdamW, MPlusAdam

UNSEEN = {
    "data": lambda p: p.data.mul_(2),
    "one of data": lambda p: p.data.view(-1)[-2].add_(1.0),
    "numpy": lambda p: p.detach().numpy().__imul__(2),
    "one of numpy": lambda p: p.detach().numpy().reshape(-1).__setitem__(1, 3.0),
    "storage": lambda p: p.untyped_storage().fill_(1),
}


@pytest.mark.parametrize("write", UNSEEN)
@pytest.mark.parametrize("kind", ["kahan", "master", "codes"])
def test_n10_a_write_that_autograd_does_not_see_is_a_write(kind: str, write: str) -> None:
    """The next step took it back where the parameter is a copy, and added the carry of other weights to it."""
    named = parameters("a", "b", shape=(64, 96))
    options = KINDS[kind]
    if "numpy" in write:  # which has no bfloat16: a float32 copy
        named = {n: nn.Parameter(p.detach().float()) for n, p in named.items()}
        options = {"weight_format": "bf16"} | options if kind != "master" else {"weight_format": "bf16"}
    optimizer = MPlusAdam(named.items(), lr=1e-2, lr_mult=1e-2, **options)
    train(optimizer, named)
    UNSEEN[write](named["b"])
    before = ends(optimizer, named)
    with pytest.raises(ValueError, match=r"call optimizer.reload_weights\(\)"):
        train(optimizer, named, 4, 4)
    assert same(before, ends(optimizer, named))
    optimizer.reload_weights()
    train(optimizer, named, 4, 6)


@pytest.mark.parametrize(
    "write",
    [
        lambda x: x.mul_(2),
        lambda x: x.neg_(),
        lambda x: x[100:104].zero_(),
        lambda x: x[:, 7].add_(1.0),
        lambda x: x.copy_(x.roll(1, 0)),
        lambda x: x.copy_(x.flip(1)),
    ],
)
def test_n10_a_long_copy_is_sampled(write: Any) -> None:
    named = parameters("a", shape=(512, 512))
    optimizer = build(named, "master")
    train(optimizer, named, 1, 1)
    write(named["a"].data)
    with pytest.raises(ValueError, match=r"call optimizer.reload_weights\(\)"):
        train(optimizer, named, 2, 2)


def test_n10_one_element_of_a_long_copy_is_found_when_it_is_written_again_and_again() -> None:
    named = parameters("a", shape=(160, 128))
    optimizer = AdamW(named.values(), weight_format="fp32")
    train(optimizer, named, 1, 1)

    def write_and_step() -> None:
        for _ in range(52):
            named["a"].data[1, 1] = 5.0
            train(optimizer, named, 2, 2)

    with pytest.raises(ValueError, match=r"call optimizer.reload_weights\(\)"):
        write_and_step()
