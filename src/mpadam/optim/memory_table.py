"""The tables of docs/memory.md, measured anew at each call.

python -m mpadam.optim.memory_table > docs/memory.md
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from mpadam.llama import PAPER_SIZES, PAPER_VOCABULARY, LlamaSize
from mpadam.numerics.formats import CARDS
from mpadam.optim.memory import Bytes, bytes_per_parameter
from mpadam.optim.names import optimizer_names, parse_optimizer_name
from mpadam.optim.registry import build_optimizer

MATRIX = (128, 512)
Measured = tuple[Bytes, float]  # with bf16 states, and the states alone in float32


def measure(name: str, weight_format: str) -> Measured:
    """Bytes per parameter of one projection with a bf16 parameter and gradient."""
    layer = nn.Linear(MATRIX[1], MATRIX[0], bias=False, dtype=torch.bfloat16)
    layer.weight.grad = torch.zeros_like(layer.weight)
    bf16, fp32 = (
        bytes_per_parameter(build_optimizer(layer, name, {}, masters=weight_format, state_dtype=dtype))
        for dtype in ("bf16", "fp32")
    )
    return bf16, fp32.states


def llama_parameters(size: LlamaSize) -> nn.Module:
    """The parameters of a paper's LLaMA by layer and shape, and nothing else of it; on the meta device: no memory."""
    h, f = size.hidden_size, size.intermediate_size
    with torch.device("meta"):
        model = nn.Module()
        model.embed_tokens = nn.Embedding(PAPER_VOCABULARY, h)
        model.layers = nn.ModuleList(_decoder_layer(h, f) for _ in range(size.layers))
        model.norm = nn.RMSNorm(h)
        model.lm_head = nn.Linear(h, PAPER_VOCABULARY, bias=False)
    return model.to(torch.bfloat16)


def _decoder_layer(h: int, f: int) -> nn.ModuleList:
    shapes = [(h, h)] * 4 + [(h, f), (h, f), (f, h)]
    return nn.ModuleList([nn.Linear(*shape, bias=False) for shape in shapes] + [nn.RMSNorm(h), nn.RMSNorm(h)])


def states_of_size(size: str, name: str, *, apollo_scope: str = "projections") -> float:
    """Bytes of bf16 states per parameter of a paper's size."""
    model = llama_parameters(PAPER_SIZES[size])
    optimizer = build_optimizer(model, name, {}, masters="bf16", state_dtype="bf16", apollo_scope=apollo_scope)
    return bytes_per_parameter(optimizer).states


def storage_rows() -> list[str]:
    """A row for all formats and optimizers of equal numbers."""
    by_numbers: dict[tuple[tuple[str, Measured], ...], list[str]] = {}
    for weight_format in CARDS:
        numbers = tuple((name, measure(name, weight_format)) for name in optimizer_names())
        by_numbers.setdefault(numbers, []).append(weight_format)
    return [row for numbers, formats in by_numbers.items() for row in _rows_of(formats, dict(numbers))]


def _rows_of(formats: list[str], numbers: dict[str, Measured]) -> list[str]:
    alike: dict[Measured, list[str]] = {}
    for name, measured in numbers.items():
        alike.setdefault(measured, []).append(name)
    return [
        f"| {', '.join(formats)} | {_short(names)} | {b.weight:.3f} | {b.compute_copy:.3f} | {b.gradient:.3f} "
        f"| {b.states:.3f} | {b.total:.3f} | {fp32:.3f} |\n"
        for (b, fp32), names in sorted(alike.items(), key=lambda item: item[0][0].total)
    ]


def _short(names: list[str]) -> str:
    """`adamw, adamw-sr` as `adamw[-sr]`."""
    suffixes: dict[str, list[str]] = {}
    for name in names:
        base = str(replace(parse_optimizer_name(name), write_back="nearest"))
        suffixes.setdefault(base, []).append(name.removeprefix(base).removeprefix("-"))
    return ", ".join(base + _choice(found) for base, found in suffixes.items())


def _choice(suffixes: list[str]) -> str:
    words = "/".join("-" + s for s in suffixes if s)
    return f"[{words}]" if words and "" in suffixes else words


def _apollo_rows() -> list[str]:
    rows = []
    for size in PAPER_SIZES:
        adamw = states_of_size(size, "adamw")
        full = states_of_size(size, "m-plus-adam") - adamw
        projections = states_of_size(size, "m-plus-adam-apollo-e") - adamw
        everything = states_of_size(size, "m-plus-adam-apollo-e", apollo_scope="all_2d") - adamw
        rows.append(f"| {size} | {full:.2f} | {projections:.2f} | {everything:.4f} |\n")
    return rows


_STORAGE = f"""# Memory

Made by `python -m mpadam.optim.memory_table > docs/memory.md`; a test fails when it is out of date.

Bytes per parameter, measured from the live tensors of one {MATRIX[0]} x {MATRIX[1]} projection with a bf16 parameter
and gradient. *Weight* is what is stored; *compute copy* is the parameter where it is not the weight itself (float32
masters, FP8 and NVFP4 codes); *states* are moments and Kahan's carry, first in bf16, in the last column with float32
moments (the carry stays bf16). `adamw[-sr]` is the name with and without the suffix.

M+Adam is AdamW and one state more. Kahan's carry costs 2 bytes: bf16 with a carry takes as much as a float32 master,
FP8 with a carry more than bf16 without. A row that is not a whole number of blocks long pays a whole scale for its
short block. ECO keeps what rounding lost in the first moment and takes no memory of its own.

| format | optimizers | weight | compute copy | gradient | states | total | states, fp32 |
|---|---|---|---|---|---|---|---|
"""
_APOLLO = """
## Apollo-E

Bytes of bf16 states per parameter above AdamW's, for the shapes of the paper's four sizes: with embedding and head
uncompressed (`apollo_scope="projections"`), and with every matrix compressed (`"all_2d"`).

| size | M+Adam | Apollo-E, projections | Apollo-E, all matrices |
|---|---|---|---|
"""


def table() -> str:
    """docs/memory.md."""
    return _STORAGE + "".join(storage_rows()) + _APOLLO + "".join(_apollo_rows())


if __name__ == "__main__":
    print(table(), end="")
