"""What holds for every format, over shapes and magnitudes: hypothesis looks for a counterexample.

pytest tests/numerics/test_formats_properties.py
"""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from mpadam.numerics import Encoded, Format, Fp8Blocks, NvFp4, get_format, random_bits
from mpadam.numerics.formats import CARDS

OTHERS = [
    Fp8Blocks(fmt="e4m3", block_size=8),
    Fp8Blocks(fmt="e5m2", block_size=8, power_of_two_scale=False),
    Fp8Blocks(fmt="e4m3", block_size=5, power_of_two_scale=False),
    Fp8Blocks(fmt="e5m2", block_size=3, block_rows=2),
    Fp8Blocks(fmt="e4m3", block_size=4, block_rows=3, power_of_two_scale=False),
]
FORMATS = {name: get_format(name) for name in CARDS}
every_format = pytest.mark.parametrize("f", [*FORMATS.values(), *OTHERS], ids=lambda f: f.name)
quick = settings(max_examples=40, deadline=None)


@st.composite
def tensors(draw: st.DrawFn, special: bool = False) -> torch.Tensor:
    """Any shape of up to three dimensions: all of float32, or values of a narrow range such as weights have."""
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=19))
    anything = st.floats(width=32, allow_nan=special, allow_infinity=special)
    weights = st.floats(-0.0625, 0.0625, width=32)
    numbers = draw(hnp.arrays(np.float32, shape, elements=draw(st.sampled_from([anything, weights]))))
    return torch.from_numpy(np.ascontiguousarray(numbers)).reshape(shape)


def bits_for(x: torch.Tensor, step: int = 1) -> torch.Tensor:
    return random_bits(seed=0, step=step, tensor_id=0, shape=x.shape)


def same_bits(a: Encoded, b: Encoded) -> bool:
    return a.shape == b.shape and all(bytes_of(t) == bytes_of(b.tensors[name]) for name, t in a.tensors.items())


def bytes_of(t: torch.Tensor) -> bytes:
    return t.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


@every_format
@quick
@given(data=st.data())
def test_encoding_what_was_decoded_changes_no_code_and_no_scale(f: Format, data: st.DataObject) -> None:
    x = data.draw(tensors())
    encoded = f.encode(x)
    decoded = f.decode(encoded)
    assert same_bits(f.encode(decoded, previous=encoded), encoded)
    if not isinstance(f, NvFp4):  # their tensor scale is the exception, see the next test
        assert same_bits(f.encode(decoded), encoded)


@quick
@given(x=tensors())
def test_without_the_previous_tensor_scale_nvfp4_settles_within_two_ulps(x: torch.Tensor) -> None:
    """amax / 2688 is NVIDIA's definition, and what s decodes to, divided by 2688, is not always s in float32."""
    f = NvFp4()
    first = f.encode(x)
    last = f.encode(f.decode(f.encode(f.decode(first))))
    assert torch.equal(last.codes, first.codes)
    assert torch.equal(last.tensors["scales"], first.tensors["scales"])
    assert (
        abs(int(last.tensors["tensor_scale"].view(torch.int32) - first.tensors["tensor_scale"].view(torch.int32))) <= 2
    )
    assert same_bits(f.encode(f.decode(last)), last)


@quick
@given(x=tensors())
def test_without_the_previous_tensor_scale_sticky_nvfp4_keeps_its_values(x: torch.Tensor) -> None:
    f = NvFp4(tensor_scale="pow2_sticky")
    decoded = f.decode(f.encode(x))
    assert torch.equal(f.decode(f.encode(decoded)), decoded)


@every_format
@quick
@given(data=st.data())
def test_stochastic_rounding_moves_no_value_of_the_format(f: Format, data: st.DataObject) -> None:
    x = data.draw(tensors())
    stored = f.encode(x, rounding="stochastic", bits=bits_for(x))
    w = f.decode(stored)
    for step in (2, 3):
        again = f.encode(w, rounding="stochastic", bits=bits_for(x, step), previous=stored)
        assert bytes_of(f.decode(again)) == bytes_of(w)
    nearest = f.encode(x)
    w = f.decode(nearest)
    again = f.encode(w, rounding="stochastic", bits=bits_for(x, 4), previous=nearest)
    assert bytes_of(f.decode(again)) == bytes_of(w)


@every_format
@quick
@given(data=st.data(), rounding=st.sampled_from(["nearest", "stochastic"]))
def test_finite_stays_finite_zeros_stay_and_nothing_lost_comes_back_plausible(f, data, rounding: str) -> None:
    x = data.draw(tensors(special=True))
    encoded = f.encode(x, rounding=rounding, bits=bits_for(x) if rounding == "stochastic" else None)
    decoded = f.decode(encoded)
    assert decoded.shape == x.shape
    assert not decoded[~x.isfinite()].isfinite().any()
    alive = decoded[x.isfinite()]
    if not isinstance(f, NvFp4):  # there the neighbours in the block are reported with it
        largest = torch.finfo(torch.bfloat16).max  # above, bf16 to nearest overflows as the hardware does
        assert alive[x[x.isfinite()].abs() <= largest].isfinite().all()
    zeros = (x == 0) & decoded.isfinite()
    assert not decoded[zeros].any()
    assert torch.equal(decoded[zeros].signbit(), x[zeros].signbit())


@pytest.mark.parametrize("f", [f for f in FORMATS.values() if f.dtype is None] + OTHERS, ids=lambda f: f.name)
@pytest.mark.parametrize("rounding", ["nearest", "stochastic"])
def test_the_largest_float32_saturates_and_the_result_stays(f: Format, rounding: str) -> None:
    x = torch.tensor([[torch.finfo(torch.float32).max, 3.1e38, -3.3e38, -2.9e38]] * 2)
    bits = bits_for(x) if rounding == "stochastic" else None
    encoded = f.encode(x, rounding=rounding, bits=bits)
    decoded = f.decode(encoded)
    assert decoded.isfinite().all()
    assert torch.equal(decoded.sign(), x.sign())
    again = f.encode(decoded, rounding=rounding, bits=bits, previous=encoded)
    assert torch.equal(f.decode(again), decoded)


@every_format
def test_a_tensor_that_is_a_part_of_another_is_encoded_as_its_copy(f: Format) -> None:
    whole = torch.randn(9, 40, generator=torch.Generator().manual_seed(0))
    for part in (whole[1:], whole[2:, 3:], whole.t()[5:], whole.flatten()[7:]):
        got, want = f.encode(part), f.encode(part.clone(memory_format=torch.contiguous_format))
        assert all(torch.equal(got.tensors[name], tensor) for name, tensor in want.tensors.items())
        assert torch.equal(f.decode(got), f.decode(want))


@every_format
@quick
@given(data=st.data())
def test_nearest_is_off_by_at_most_half_a_step(f: Format, data: st.DataObject) -> None:
    x = data.draw(tensors())
    encoded = f.encode(x)
    bound = largest_error(f, x, encoded)
    held = x.abs() <= (65504.0 * 448 if isinstance(f, Fp8Blocks) and not f.power_of_two_scale else 3.38e38)
    assert ((f.decode(encoded).double() - x.double()).abs() <= bound)[held].all()


def largest_error(f: Format, x: torch.Tensor, encoded: Encoded) -> torch.Tensor:
    """Half a step, from the width of the mantissa and the smallest step of the block."""
    magnitude = x.abs().double()
    if isinstance(f, Fp8Blocks):
        mantissa, smallest = {"e4m3": (3, 2.0**-9), "e5m2": (2, 2.0**-16)}[f.fmt]
        stored = encoded.tensors["scales"]
        scale = torch.exp2(stored.double() - 127) if f.power_of_two_scale else stored.double()
        largest_scale = scale.max() if scale.numel() else 0.0
        return torch.maximum(
            magnitude * 2.0 ** -(mantissa + 1), torch.full_like(magnitude, smallest * largest_scale / 2)
        )
    if isinstance(f, NvFp4):
        amax = magnitude.max() if x.numel() else 0.0
        # The step below the largest weight is 2 block scales, each at most 1/16 larger than the weight needs; a
        # sticky tensor scale is not finer than 2**-110.
        return torch.full_like(magnitude, amax / 6 * (1 + 1 / 16)) + 2.0**-116
    return torch.maximum(magnitude * 2.0**-8, torch.tensor(2.0**-134, dtype=torch.float64))


@every_format
@quick
@given(data=st.data())
def test_storage_is_its_own_contiguous_and_of_the_size_it_says(f: Format, data: st.DataObject) -> None:
    x = data.draw(tensors())
    encoded = f.encode(x)
    stored = list(encoded.tensors.values())
    assert encoded.nbytes == sum(t.numel() * t.element_size() for t in stored)
    assert all(t.is_contiguous() and t.untyped_storage().data_ptr() != x.untyped_storage().data_ptr() for t in stored
               if t.numel())  # fmt: skip
    view = torch.stack([x, x], dim=-1)[..., 0]
    assert same_bits(f.encode(view), encoded)


@pytest.mark.parametrize("name", FORMATS)
def test_the_registry_gives_formats_by_name(name: str) -> None:
    f = get_format(name)
    assert f.name == name
    assert isinstance(f, Format)
    assert get_format(f) is f
    assert hash(f) == hash(get_format(name))
    assert (f.dtype is None) == (name not in ("fp32", "bf16"))


def test_an_unknown_name_is_refused_with_suggestions() -> None:
    with pytest.raises(ValueError, match=r"did you mean fp8_e5m2.*nvfp4_sticky"):
        get_format("fp8_e5m3")


@every_format
def test_every_format_refuses_wrong_arguments(f: Format) -> None:
    with pytest.raises(ValueError, match="random_bits"):
        f.encode(torch.ones(3), rounding="stochastic")
    with pytest.raises(ValueError, match="float32"):
        f.encode(torch.ones(3, dtype=torch.bfloat16))
    assert not f.decode(f.encode(torch.ones(3, requires_grad=True))).requires_grad


@every_format
def test_storage_survives_a_checkpoint_with_weights_only(f: Format, tmp_path) -> None:
    encoded = f.encode(torch.randn(5, 33))
    torch.save(dict(encoded.tensors), tmp_path / "w.pt")
    loaded = torch.load(tmp_path / "w.pt", weights_only=True)
    assert same_bits(Encoded(loaded, encoded.shape), encoded)
    assert {name: t.dtype for name, t in loaded.items()} == {name: t.dtype for name, t in encoded.tensors.items()}


def special_weights() -> torch.Tensor:
    """Rows that are no multiple of a block, with every kind of value the formats treat on its own."""
    x = torch.randn(12, 301, generator=torch.Generator().manual_seed(0)) * 0.02
    x[0, 5], x[1, 290], x[1, 7] = float("nan"), float("inf"), -float("inf")
    x[2], x[3], x[4] = 0.0, -0.0, 1e-40
    x[5] *= 1e-30
    x[6] *= 1e30
    x[7, ::2] = -0.0
    return x


def encode_and_decode(
    f: Format, x: torch.Tensor, previous: Encoded, step: torch.Tensor, ident: int
) -> list[torch.Tensor]:
    bits = random_bits(seed=1, step=step, tensor_id=ident, shape=x.shape, device=x.device)
    stochastic = f.encode(x, rounding="stochastic", bits=bits, previous=previous)
    nearest = f.encode(x, previous=previous)
    # A cast to bf16 and back is what a compiler likes to leave out.
    decoded = f.decode(nearest, torch.bfloat16).to(torch.float32)
    return [*stochastic.tensors.values(), f.decode(stochastic), *nearest.tensors.values(), decoded]


def equal(a: torch.Tensor, b: torch.Tensor) -> bool:
    """All bits equal, but for the payload of a NaN."""
    a, b = a.cpu(), b.cpu()
    if not a.is_floating_point():
        return torch.equal(a, b)
    return torch.equal(a.isnan(), b.isnan()) and bytes_of(a.nan_to_num()) == bytes_of(b.nan_to_num())


@pytest.mark.parametrize("f", [f for f in FORMATS.values() if f.dtype is None] + OTHERS, ids=lambda f: f.name)
def test_no_stored_bit_depends_on_whether_subnormals_are_flushed(f: Format) -> None:
    """As a compiled GPU kernel may do; but for a weight that is subnormal itself, which is then gone beforehand."""
    x = special_weights()
    x[4] = 1e-37
    previous = f.encode(x * 1.01)
    want = encode_and_decode(f, x, previous, torch.tensor(1), 0)
    if not torch.set_flush_denormal(True):
        pytest.skip("this CPU cannot flush subnormals")
    try:
        got = encode_and_decode(f, x, previous, torch.tensor(1), 0)
    finally:
        torch.set_flush_denormal(False)
    assert all(equal(a, b) for a, b in zip(got, want, strict=True))


COMPILED = [FORMATS[n] for n in ("bf16", "fp8_e5m2", "nvfp4", "nvfp4_sticky")] + [
    Fp8Blocks(fmt="e4m3", power_of_two_scale=False)
]


# One of each kind: compiling takes ten seconds each.
@pytest.mark.slow
@pytest.mark.parametrize("f", [COMPILED[0], COMPILED[3], COMPILED[4]], ids=lambda f: f.name)
def test_compiled_in_one_graph_every_bit_is_as_eager(f: Format) -> None:
    """Three things once broke here: products that overflow in generated C++, casts that were left out, and rows whose
    last, short block a fused loop forgot."""
    x = special_weights()
    previous = f.encode(x * 1.01)
    torch._dynamo.reset()
    compiled = torch.compile(encode_and_decode, fullgraph=True)
    for step, ident in [(1, 0), (2, 0)]:
        got = compiled(f, x, previous, torch.tensor(step), ident)
        want = encode_and_decode(f, x, previous, torch.tensor(step), ident)
        assert all(equal(a, b) for a, b in zip(got, want, strict=True))


@pytest.mark.slow
def test_compiled_bits_need_no_graph_for_every_step_and_tensor() -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()

    def draw(step: torch.Tensor, tensor_id: int) -> torch.Tensor:
        return random_bits(seed=1, step=step, tensor_id=tensor_id, shape=1000)

    compiled = torch.compile(draw, fullgraph=True)
    for step in range(3):
        for tensor_id in range(4):
            assert torch.equal(compiled(torch.tensor(step), tensor_id), draw(torch.tensor(step), tensor_id))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] <= 2


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("f", COMPILED, ids=lambda f: f.name)
@pytest.mark.parametrize("compile_it", [False, True], ids=["eager", "compiled"])
def test_f3_cpu_and_gpu_agree_in_every_bit(f: Format, compile_it: bool) -> None:
    x = special_weights()
    previous = f.encode(x * 1.01)
    want = encode_and_decode(f, x, previous, torch.tensor(3), 5)
    torch._dynamo.reset()
    run = torch.compile(encode_and_decode, fullgraph=True) if compile_it else encode_and_decode
    there = Encoded({name: t.cuda() for name, t in previous.tensors.items()}, previous.shape)
    got = run(f, x.cuda(), there, torch.tensor(3, device="cuda"), 5)
    assert all(equal(a, b) for a, b in zip(got, want, strict=True))
