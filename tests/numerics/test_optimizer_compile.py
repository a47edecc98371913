"""A compiled step gives the eager weights within one ulp and the same stochastic roundings, is compiled once for each
kind of tensor and not again when a rate changes, and is eager where there is no compiler."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch._inductor import cpp_builder
from torch._inductor.exc import InvalidCxxCompiler
from torch._inductor.utils import fresh_cache, run_and_get_code

from mpadam.numerics import spacing
from mpadam.optim import compiled as compiled_module
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.registry import build_optimizer

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
sys.path.append(str(BENCHMARKS))  # scripts, and what they share
peak_bytes = import_module("allocations").peak_bytes

CASES = [
    ("m-plus-adam", "fp32"),
    ("m-plus-adam-sr", "bf16"),
    ("additive-twin-kahan", "bf16"),
    ("adamw-kahan", "fp8_e5m2"),
    ("m-plus-adam-apollo-e", "nvfp4"),
    ("adamw-eco-sr", "bf16"),
    ("adamw-eco", "fp8_e5m2"),
]
SHAPES = ((8, 300), (5,))  # a row that fills no block


def build(
    name: str, weight_format: str, *, compile: bool, shapes: Sequence[tuple[int, ...]] = SHAPES
) -> tuple[list[torch.nn.Parameter], LowPrecisionOptimizer]:
    generator = torch.Generator().manual_seed(0)
    params = [
        torch.nn.Parameter((torch.randn(shape, generator=generator) * 0.02).to(torch.bfloat16)) for shape in shapes
    ]
    groups = [{"params": params, "weight_format": weight_format}]
    return params, build_optimizer(groups, name, {}, masters=weight_format, state_dtype="fp32", compile=compile)


def give_gradients(params: Sequence[Tensor], t: int) -> None:
    for p in params:
        p.grad = (torch.randn(p.shape, generator=torch.Generator().manual_seed(t)) * 1e-2).to(p.dtype)


def ulp(before: torch.Tensor, after: torch.Tensor, weight_format: str) -> torch.Tensor:
    """One unit in the last place of |w| + |step|; for codes, of the largest weight.

    In float32 two: a compiled square root differs from the eager one in the last bit (torch 2.13, CPU), and each of
    the two branches takes one.
    """
    size = before.abs() + (after - before).abs()
    if weight_format == "fp32":
        return size * 2 * 2**-23
    if weight_format == "bf16":
        return spacing(size, "bf16")
    return after.abs().amax() / {"fp8_e5m2": 4, "nvfp4": 2}[weight_format]


def compare_carries(
    eager: LowPrecisionOptimizer, p: Tensor, compiled: LowPrecisionOptimizer, q: Tensor, weight_format: str
) -> None:
    """Weight and carry together agree to the carry's last place: a compiler that leaves out the cast of the weight
    has nothing to carry."""
    expected, got = (
        o.store_of(x).read().double() + o.state[x]["carry"].double() for o, x in ((eager, p), (compiled, q))
    )
    unit = ulp(eager.store_of(p).read(), eager.store_of(p).read(), weight_format)
    assert eager.state[p]["carry"].any()
    assert ((got - expected).abs() <= unit * 2**-7).all()


@pytest.mark.slow
@pytest.mark.parametrize(("name", "weight_format"), CASES)
def test_compiled_steps_agree_and_are_compiled_once(name: str, weight_format: str) -> None:
    eager_params, eager = build(name, weight_format, compile=False)
    params, compiled = build(name, weight_format, compile=True)
    graphs = []
    for t in range(1, 5):
        for optimizer in (eager, compiled):
            optimizer.param_groups[0]["lr"] = 1e-3 / t
        give_gradients(eager_params, t)
        give_gradients(params, t)
        before = [eager.store_of(p).read().clone() for p in eager_params]
        eager.step()
        compiled.step()
        graphs.append(counters["stats"]["unique_graphs"])
        for w, p, q in zip(before, eager_params, params, strict=True):
            expected, got = eager.store_of(p).read(), compiled.store_of(q).read()
            assert ((got - expected).abs() <= ulp(w, expected, weight_format)).all()
            torch.testing.assert_close(compiled.state[q]["v"], eager.state[p]["v"], rtol=1e-6, atol=0)
            if name.startswith("adamw-eco"):
                same = got == expected  # another rounding would be another error
                assert same.float().mean() > 0.9
                torch.testing.assert_close(
                    compiled.state[q]["m"][same], eager.state[p]["m"][same], rtol=1e-4, atol=1e-6
                )
            if "carry" in eager.state[p]:
                compare_carries(eager, p, compiled, q, weight_format)
        with torch.no_grad():  # the next update starts from the same weights and states
            for p, q in zip(eager_params, params, strict=True):
                q.copy_(p)
        compiled.load_state_dict(eager.state_dict())
    assert len(set(graphs)) == 1
    assert graphs[0] > 0


MODEL = ((96, 130), (70, 300), (128, 129), (96,), (96,))  # matrices of three shapes, and the gains of two norms


@pytest.mark.slow
def test_a_model_takes_two_graphs_whatever_its_shapes_and_rates() -> None:
    """One for the matrices and one for the gains; moving a rate, or the seed of the rounding, compiles nothing."""
    params, optimizer = build("m-plus-adam-sr", "bf16", compile=True, shapes=MODEL)
    before = counters["stats"]["unique_graphs"]
    give_gradients(params, 1)
    optimizer.step()
    assert counters["stats"]["unique_graphs"] - before == 2
    with torch._dynamo.config.patch(error_on_recompile=True):
        for t in range(2, 5):
            optimizer.param_groups[0] |= {"lr": 1e-4 / t, "lr_mult": 1e-3 / t, "weight_decay": 0.1 / t}
            give_gradients(params, t)
            optimizer.step()
        others, another = build("m-plus-adam-sr", "bf16", compile=True, shapes=((50, 600), (96,)))
        give_gradients(others, 1)
        another.step()
    assert counters["stats"]["unique_graphs"] - before == 2


@pytest.mark.slow
@pytest.mark.parametrize("weight_format", ["bf16", "fp8_e5m2"])
def test_stochastic_rounding_decides_as_the_eager_step(weight_format: str) -> None:
    """Decisions differ only where the compiled float32 weight does in its last place: fewer than one in 100,000."""
    shapes = ((1000, 1030),)  # the last block of a row is short
    [p], eager = build("adamw-sr", weight_format, compile=False, shapes=shapes)
    [q], compiled = build("adamw-sr", weight_format, compile=True, shapes=shapes)
    before = eager.store_of(p).read()
    for x, optimizer in ((p, eager), (q, compiled)):
        give_gradients([x], 1)
        optimizer.step()
    expected, got = eager.store_of(p).read(), compiled.store_of(q).read()
    assert (expected != before).float().mean() > 0.01
    assert (expected != got).float().mean() < 1e-5


def test_without_a_compiler_a_step_is_eager_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing() -> str:
        raise InvalidCxxCompiler

    monkeypatch.setattr(cpp_builder, "get_cpp_compiler", missing)
    compiled_module.can_compile.cache_clear()
    eager_params, eager = build("m-plus-adam", "bf16", compile=False)
    params, compiled = build("m-plus-adam", "bf16", compile=True)
    before = counters["stats"]["unique_graphs"]
    give_gradients(eager_params, 1)
    give_gradients(params, 1)
    with pytest.warns(UserWarning, match=r"no C\+\+ compiler.*eagerly.*compile=False"):
        compiled.step()
    with warnings.catch_warnings(action="error"):  # once is enough
        compiled.step()
    eager.step()
    eager.step()
    compiled_module.can_compile.cache_clear()
    assert counters["stats"]["unique_graphs"] == before
    assert all(torch.equal(p, q) for p, q in zip(eager_params, params, strict=True))


@pytest.mark.slow
def test_a_graph_for_any_length_uses_threads_whatever_it_is_compiled_for() -> None:
    """With many threads a tensor just long enough for that graph is too short for them, and the next may not be."""
    before = torch.get_num_threads()
    torch.set_num_threads(64)
    try:
        params, optimizer = build("adamw", "bf16", compile=True, shapes=((90, 100),))
        give_gradients(params, 1)
        compiled_module._compiled.cache_clear()
        torch._dynamo.reset()
        _, [*_, code] = run_and_get_code(optimizer.step)  # the first may be that of `compile_problem`
    finally:
        torch.set_num_threads(before)
    assert "omp parallel" in code


@pytest.mark.slow
def test_the_numbers_of_a_step_are_read_from_one_address() -> None:
    """A CPU's loop reads them again for every vector; from a dozen addresses that takes a tenth of the step's time."""
    params, optimizer = build("m-plus-adam", "bf16", compile=True, shapes=((90, 100),))
    give_gradients(params, 1)
    compiled_module._compiled.cache_clear()
    torch._dynamo.reset()
    _, [*_, code] = run_and_get_code(optimizer.step)  # the first may be that of `compile_problem`
    numbers = set(re.findall(r"const float\*\s+(in_ptr\d+)", code))
    read = re.findall(r"= (in_ptr\d+)\[static_cast<int64_t>\((\d+)L\)\]", code)
    found = {(pointer, place) for pointer, place in read if pointer in numbers}
    assert len(found) == 11  # 4 rates, 2 betas and what they leave of 1, eps, tau, clip
    assert len({pointer for pointer, _ in found}) == 1


def step_of_a_new_process() -> tuple[int, int, Tensor]:
    """A compiled step after dynamo has forgotten everything: hits and misses of the cache on disk, and the weight."""
    torch._dynamo.reset()
    compiled_module._compiled.cache_clear()
    counters["inductor"].clear()
    counters["aot_autograd"].clear()
    params, optimizer = build("adamw", "bf16", compile=True, shapes=((96, 130),))
    give_gradients(params, 1)
    optimizer.step()
    hits = counters["inductor"]["fxgraph_cache_hit"] + counters["aot_autograd"]["autograd_cache_hit"]
    return hits, counters["inductor"]["fxgraph_cache_miss"], params[0].detach().clone()


@pytest.mark.slow
def test_compiled_code_is_found_again_on_disk() -> None:
    """As by the next process: dynamo forgets everything, and what it asks for is in the cache."""
    found = []
    with fresh_cache():
        for _ in range(2):
            hits, misses, _ = step_of_a_new_process()
            found.append((hits, misses))
    assert found[0] == (0, 1)
    assert found[1][0] >= 1
    assert found[1][1] == 0


def test_code_for_other_vectors_is_not_taken_from_the_cache(monkeypatch) -> None:
    """Code for 512 bits that a machine with 256 finds in a shared cache would leave half of the weights as they are."""
    found = []
    with fresh_cache():
        for capability in (None, "default"):
            if capability:
                monkeypatch.setenv("ATEN_CPU_CAPABILITY", capability)  # a processor without vectors, for the compiler
            hits, _, weight = step_of_a_new_process()
            found.append((hits, weight))
    assert [hits for hits, _ in found] == [0, 0]
    assert torch.equal(found[0][1], found[1][1])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["m-plus-adam", "adamw-kahan", "adamw-sr"])
def test_a_compiled_step_needs_no_memory_of_its_own(name: str) -> None:
    """One pass over memory: nothing as large as a hundredth of the weight is allocated. Eager steps are the control."""
    taken = {}
    for compile in (True, False):
        [p], optimizer = build(name, "bf16", compile=compile, shapes=((300, 500),))
        give_gradients([p], 1)
        optimizer.step()
        taken[compile] = peak_bytes(optimizer.step, device="cpu")
    assert taken[True] < p.nbytes / 100
    assert taken[False] > p.nbytes
