"""The kernels that torch.compile would write for an H100, counted where there is none: nothing is compiled to run.

    pretended.pretend_h100()
    lower(function, arguments, options)      its forward and, where an argument needs a gradient, its backward pass

Tensors of the CPU stand for those of the GPU. A kernel reads and writes each buffer that it uses; one that reads a
buffer again in a further loop over the same row is counted as reading it again, though a row may still be in a cache.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any

import torch
from pretended import DEVICE
from torch import Tensor, fx
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import min_cut_rematerialization_partition
from torch._inductor import compile_fx, config
from torch._inductor.decomposition import select_decomp_table
from torch._inductor.graph import GraphLowering
from torch._subclasses.fake_tensor import FakeTensor


@dataclass(frozen=True)
class Graph:
    """What one pass of a function becomes. kernels: inductor's names of them. bytes: read and written by all."""

    kernels: tuple[str, ...]
    bytes: int
    code: str


class _Written(BaseException):
    """A graph's code is there; what would load it is not needed. Inductor would wrap an Exception."""


def on_h100(compile: Callable[..., Any] = compile_fx.compile_fx_inner) -> Any:
    """A backend of torch.compile: graphs of the forward and the backward pass are traced on the CPU, then taken for the
    GPU's. torch's CPU build follows gradients of no other tensors."""

    def write(graph: fx.GraphModule, inputs: list[Any]) -> Any:
        return compile(graph, _on_cuda(graph, inputs))

    return aot_autograd(
        fw_compiler=write,
        bw_compiler=write,
        inference_compiler=write,
        decompositions=select_decomp_table(),
        partition_fn=min_cut_rematerialization_partition,
    )


@contextmanager
def as_in_training(options: dict[str, Any]) -> Iterator[None]:
    """Options of torch.compile, and the flag that is part of what decides how sums are ordered; no cache."""
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    try:
        with config.patch(options | {"fx_graph_cache": False, "fx_graph_remote_cache": False}):
            yield
    finally:
        torch.use_deterministic_algorithms(before)


def lower(function: Callable[..., Any], arguments: tuple[Any, ...], options: dict[str, Any]) -> list[Graph]:
    """What `torch.compile(function, options=...)` makes of a call in a training: forward pass, then backward pass.

    arguments: CPU tensors, 0-d ones taken for numbers that a kernel is given; and other values.
    """
    found: list[Graph] = []
    torch._dynamo.reset()

    def write(graph: fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        with suppress(_Written):
            compile_fx.compile_fx_inner(graph, inputs)
        return _never_called

    lazily = torch._functorch.config.patch(force_non_lazy_backward_lowering=True)
    with as_in_training(options), lazily, _stopped(found), suppress(_Called):
        torch.compile(function, fullgraph=True, dynamic=False, backend=on_h100(write))(*arguments)
    return found


class _Called(BaseException):
    """The compiled function would run now."""


def _never_called(*_: Any) -> Any:
    raise _Called


_never_called._boxed_call = True  # type: ignore[attr-defined]


@contextmanager
def _stopped(found: list[Graph]) -> Iterator[None]:
    """Where inductor would load its code, keep the kernels and go no further."""

    def stop(graph: GraphLowering) -> Any:
        code, _ = graph.codegen()
        text = code.value if hasattr(code, "value") else str(code)
        found.append(_counted(graph, text))
        raise _Written

    names = ("compile_to_module", "_compile_to_module")
    real = {name: getattr(GraphLowering, name) for name in names}
    for name in names:
        setattr(GraphLowering, name, stop)
    try:
        yield
    finally:
        for name, method in real.items():
            setattr(GraphLowering, name, method)


def _counted(graph: GraphLowering, text: str) -> Graph:
    if "extern_kernels." in text or "torch.ops." in text.partition("def call(")[2]:
        raise RuntimeError("the graph has calls that are no Triton kernels, which this does not count")
    sizes: dict[str, int] = {}
    for node in graph.scheduler.nodes:
        for buffer, size in node.get_read_write_buffer_accesses(include_reads=True, include_writes=True).items():
            sizes[buffer] = max(sizes.get(buffer, 0), size)
    moved, _, _ = graph.count_bytes()
    names = []
    for name, arguments in re.findall(r"^\s+(triton_\w+)\.run\((.*?), stream=", text, re.MULTILINE):
        code = text[text.index(f"def {name}(") :].partition("''', device_str")[0]
        moved += _read_again(code, arguments.split(", "), sizes)
        names.append(name)
    # Sums over rows and over columns in one kernel: it leaves partial sums, which torch adds up and casts.
    for elements in re.findall(r"workspace_\d+ = empty_strided_cuda\(\((\d+), \)", text):
        moved += 2 * 4 * int(elements)
        names += ["sum", "cast"]
    return Graph(tuple(names), moved, text)


def _read_again(code: str, arguments: list[str], sizes: dict[str, int]) -> int:
    """Bytes that a kernel reads in further loops over what one loop has read already."""
    parameters = code[code.index("(") + 1 : code.index(")")].split(", ")
    loops = re.split(r"^    for r0_offset in ", code, flags=re.MULTILINE)[1:]
    again = 0
    for parameter, argument in zip(parameters, arguments, strict=False):
        times = sum(f"tl.load({parameter} " in loop for loop in loops)
        again += max(0, times - 1) * sizes.get(argument, 0)
    return again


def _on_cuda(graph: fx.GraphModule, inputs: list[Any]) -> list[Any]:
    """Take the graph's tensors for CUDA ones, numbers (0-d) apart; returns the inputs."""
    places = [node for node in graph.graph.nodes if node.op == "placeholder"]
    numbers, given = set(), []
    for node, value in zip(places, inputs, strict=True):
        if isinstance(value, Tensor) and value.dim() == 0:
            numbers.add(node)
            given.append(value)
            continue
        node.meta["val"] = _taken(node.meta.get("val"))
        given.append(_taken(value))
    for node in graph.graph.nodes:
        if node.op in ("placeholder", "output"):
            continue
        value, tensors = (
            node.meta.get("val"),
            [n for n in node.all_input_nodes if isinstance(n.meta.get("val"), Tensor)],
        )
        if tensors and numbers.issuperset(tensors) and isinstance(value, Tensor) and value.dim() == 0:
            numbers.add(node)
            continue
        if isinstance(node.kwargs.get("device"), torch.device):
            node.kwargs = {**node.kwargs, "device": DEVICE}
        node.meta["val"] = _taken(value)
    return given


def _taken(value: Any) -> Any:
    if not isinstance(value, FakeTensor):
        return value
    empty = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")
    return FakeTensor(value.fake_mode, empty, DEVICE)
