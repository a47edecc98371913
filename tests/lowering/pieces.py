"""Compiled pieces of forward and backward pass: counted in the 60m model's shapes, and run in Triton's interpreter.

    python -m tests.lowering.pieces FOLDER PIECE...

For each piece FOLDER/PIECE.json has kernels and bytes of each graph, and the largest difference of each result of
the interpreted kernels from eager's; FOLDER/PIECE/ has the kernels' sources in the model's shapes, for `assembled`.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
from lowered import as_in_training, lower, on_h100
from torch import Tensor

from mpadam.model.compiled import OPTIONS, add_norm, gated, norm, rotary
from mpadam.model.fp8.products import native_whole
from mpadam.model.loss import chunk_loss
from tests.lowering.interpreted import start

ROWS, HIDDEN, INTERMEDIATE, VOCABULARY, CHUNK = 65_536, 512, 1376, 32_000, 2097
EPS = 1e-6
_KERNEL = re.compile(r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str", re.DOTALL)


class Piece(NamedTuple):
    """function: as compiled.
    large: arguments as in the 60m model, once or more; bytes are told for each number of the first argument.
    small: arguments that are computed with."""

    function: Callable[..., Any]
    large: list[tuple[Any, ...]]
    small: tuple[Any, ...]


def _empty(*shape: int, gradient: bool = True, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    """Memory that nobody touches."""
    return torch.empty(shape, dtype=dtype, requires_grad=gradient)


def _drawn(*shape: int, gradient: bool = True, seed: int = 0) -> Tensor:
    drawn = torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))
    return drawn.bfloat16().requires_grad_(gradient)


def _turns(length: int, width: int) -> tuple[Tensor, Tensor]:
    return _drawn(1, length, width, gradient=False, seed=1), _drawn(1, length, width, gradient=False, seed=2)


def _loss_arguments() -> tuple[Any, ...]:
    targets = torch.tensor([5, 2999, -100, 0, 1234])
    return 4 * _drawn(5, 3000, gradient=False), targets, torch.tensor(0.01)


def pieces() -> dict[str, Piece]:
    hidden, inner, scale = (ROWS, HIDDEN), (ROWS, INTERMEDIATE), torch.tensor(37.0)
    logits = _empty(CHUNK, VOCABULARY, gradient=False)
    targets = _empty(CHUNK, gradient=False, dtype=torch.int64)
    turns = [_empty(1, 256, 64, gradient=False) for _ in range(2)]
    heads = [_empty(256, 8, 256, 64) for _ in range(2)]
    x, y, weight = _drawn(24, 96), _drawn(24, 96, seed=1), _drawn(96)
    casts = [(_empty(*shape, gradient=False), scale, "e4m3") for shape in (hidden, (HIDDEN, INTERMEDIATE))]
    return {
        "loss": Piece(chunk_loss, [(logits, targets, scale)], _loss_arguments()),
        "cast": Piece(native_whole, casts, (x.detach(), scale, "e4m3")),
        "norm": Piece(norm, [(_empty(*hidden), _empty(HIDDEN), EPS)], (x, weight, EPS)),
        "add_norm": Piece(add_norm, [(_empty(*hidden), _empty(*hidden), _empty(HIDDEN), EPS)], (x, y, weight, EPS)),
        "rotary": Piece(rotary, [(*heads, *turns)], (_drawn(2, 2, 12, 8), _drawn(2, 2, 12, 8, seed=1), *_turns(12, 8))),
        "gated": Piece(gated, [(_empty(*inner), _empty(*inner))], (x, y)),
    }


def _results(function: Callable[..., Any], arguments: tuple[Any, ...]) -> dict[str, Tensor]:
    """What a piece gives, and gradients of its arguments."""
    given = [a.detach().clone().requires_grad_(a.requires_grad) if isinstance(a, Tensor) else a for a in arguments]
    out = function(*given)
    outputs = out if isinstance(out, tuple) else (out,)
    found = {f"output {n}": each.detach() for n, each in enumerate(outputs)}
    needing = [a for a in given if isinstance(a, Tensor) and a.requires_grad]
    if needing:
        torch.autograd.backward(outputs, [_drawn(*each.shape, gradient=False, seed=7) for each in outputs])
    return found | {f"gradient {n}": a.grad for n, a in enumerate(needing) if a.grad is not None}


def _distances(one: dict[str, Tensor], other: dict[str, Tensor]) -> dict[str, float]:
    """The largest difference of each result, as a share of its largest number; exactly 0 where bits are equal."""
    assert one.keys() == other.keys()
    found = {}
    for name, mine in one.items():
        theirs = other[name]
        assert mine.dtype is theirs.dtype
        wide, reference = mine.double(), theirs.double()
        assert bool(reference.isfinite().all())
        found[name] = float((wide - reference).abs().max() / reference.abs().max())
    return found


def _look_at(name: str, piece: Piece, folder: Path) -> None:
    counted = [(graph, given[0].numel()) for given in piece.large for graph in lower(piece.function, given, OPTIONS)]
    (folder / name).mkdir()
    for graph, _ in counted:
        for kernel, source in re.findall(
            r"async_compile\.triton\('(\w+)', '''(.*?)''', device_str", graph.code, re.DOTALL
        ):
            (folder / name / f"{kernel}.py").write_text(source)
    torch._dynamo.reset()
    with as_in_training(OPTIONS):
        compiled = torch.compile(piece.function, fullgraph=True, dynamic=False, backend=on_h100())
        mine = _results(compiled, piece.small)
    result = {
        "kernels": [len(graph.kernels) for graph, _ in counted],
        "bytes": [graph.bytes / units for graph, units in counted],
        "differences": _distances(mine, _results(piece.function, piece.small)),
    }
    (folder / f"{name}.json").write_text(json.dumps(result))


if __name__ == "__main__":
    start()
    everything = pieces()
    for piece_name in sys.argv[2:]:
        _look_at(piece_name, everything[piece_name], Path(sys.argv[1]))
