"""What an optimizer remembers of a parameter, to notice that something else has written to it."""

from typing import NamedTuple

import torch
from torch import Tensor


def place_of(param: Tensor) -> tuple[int, int]:
    """Changes with every in-place write that autograd sees, and when the parameter gets another storage."""
    if param.is_inference():
        raise ValueError(
            f"a parameter of shape {tuple(param.shape)} is an inference tensor, which cannot be trained: it was "
            "made or moved under torch.inference_mode(); use torch.no_grad() there"
        )
    return param._version, param.data_ptr()


_RUN = 307
"""Words of 8 bytes in one sum of a checksum: a prime, so that over many rows the runs start at every place of a row,
and rows, columns or heads that change places end up in other sums. Within one run such a change may not show."""
GPU_LOOKS_EVERY = 16
"""Updates between two checks of the values of a copy on a GPU, where a check costs as much host time as the update."""
_LINE, _PERIOD, _WHOLE = 8, 8 * 51, 2**12
"""A check of a long copy (over 2**12 words) on a CPU reads one cache line of 51, others at each update: 3 to 6 % of a
compiled step, where all of it took 7 to 29. Usual rows share no factor with 51, so columns are found too."""


def _words(x: Tensor) -> tuple[Tensor, Tensor]:
    """The bits of `x` as words of 8 bytes, and the elements after the last whole word."""
    flat = x.detach().contiguous().view(-1)
    per_word = 8 // flat.element_size()
    flat = flat.clone() if flat.storage_offset() % per_word else flat
    whole = len(flat) // per_word * per_word
    return flat[:whole].view(torch.int64), flat[whole:]


def checksum(x: Tensor) -> Tensor:
    """int64 sums over all bits of `x`, one sum per run of words; the rest as it is."""
    words, rest = _words(x)
    summed = len(words) // _RUN * _RUN
    return torch.cat((words[:summed].view(-1, _RUN).sum(1), words[summed:], rest.view(torch.int16).to(torch.int64)))


def sample(x: Tensor, step: int) -> Tensor:
    """Lines of the words of `x`, others at each step; the checksum of all of it if it is short."""
    words, _ = _words(x)
    if len(words) <= _WHOLE:
        return checksum(x)
    first = _LINE * (step % (_PERIOD // _LINE))
    return words[: len(words) // _PERIOD * _PERIOD].view(-1, _PERIOD)[:, first : first + _LINE].clone()


class Seen(NamedTuple):
    """A parameter as its store left it.

    place: tells cheaply that it may have been written to.  bits: a checksum or a sample of its values, which `p.data`
    and NumPy change without a trace in `place`; None where they are not looked at.
    """

    place: tuple[int, int]
    bits: Tensor | None
