"""Checkpoints keep every dtype and bit, in every rule x write-back x format, also in another process (O3)."""

from __future__ import annotations

import copy
import hashlib
import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from mpadam import AdamW, MPlusAdam
from mpadam.numerics import Fp8Blocks
from mpadam.numerics.formats import CARDS
from mpadam.optim.base import LowPrecisionOptimizer
from mpadam.optim.names import optimizer_names
from mpadam.optim.registry import build_optimizer


def parameters(dtype: torch.dtype = torch.bfloat16) -> list[torch.nn.Parameter]:
    generator = torch.Generator().manual_seed(8)
    return [
        torch.nn.Parameter((torch.randn(s, generator=generator) * 0.02).to(dtype)) for s in ((6, 40), (40, 6), (5,))
    ]


def build(params: list, name: str, weight_format: str, state_dtype: str = "fp32") -> LowPrecisionOptimizer:
    groups = [{"params": params, "weight_format": weight_format}]
    values = {"lr": 1e-3} | ({"apollo_refresh": 3} if "apollo" in name else {})
    return build_optimizer(groups, name, values, masters=weight_format, state_dtype=state_dtype, seed=9)


def run(optimizer: torch.optim.Optimizer, params: list, first: int, last: int) -> None:
    """Updates first..last; the gradient of an update depends on its number only."""
    for t in range(first, last + 1):
        generator = torch.Generator().manual_seed(t)
        for p in params:
            p.grad = (torch.randn(p.shape, generator=generator) * 1e-2).to(p.dtype)
        optimizer.step()


def through_file(value: object) -> object:
    buffer = io.BytesIO()
    torch.save(value, buffer)
    buffer.seek(0)
    return torch.load(buffer, weights_only=True)


def assert_equal_states(a: torch.optim.Optimizer, b: torch.optim.Optimizer) -> None:
    """Every entry of every state: same type, dtype, shape and bits."""
    left, right = a.state_dict()["state"], b.state_dict()["state"]
    assert left.keys() == right.keys()
    for key, state in left.items():
        assert state.keys() == right[key].keys()
        for name, value in state.items():
            other = right[key][name]
            assert type(value) is type(other), name
            if isinstance(value, Tensor):
                assert (value.dtype, value.shape) == (other.dtype, other.shape), name
                assert torch.equal(value.view(torch.uint8), other.view(torch.uint8)) if value.dim() else value == other
            else:
                assert value == other, name


@pytest.mark.parametrize("weight_format", CARDS)
@pytest.mark.parametrize("name", optimizer_names())
def test_o3_saved_reloaded_and_continued_is_uninterrupted(name: str, weight_format: str) -> None:
    params = parameters()
    optimizer = build(params, name, weight_format)
    run(optimizer, params, 1, 2)
    saved = through_file({"params": [p.detach() for p in params], "optimizer": optimizer.state_dict()})

    resumed_params = parameters()
    resumed = build(resumed_params, name, weight_format)
    with torch.no_grad():
        for p, value in zip(resumed_params, saved["params"], strict=True):  # type: ignore[index]
            p.copy_(value)
    resumed.load_state_dict(saved["optimizer"])  # type: ignore[index]
    assert_equal_states(optimizer, resumed)

    run(optimizer, params, 3, 4)
    run(resumed, resumed_params, 3, 4)
    assert_equal_states(optimizer, resumed)
    assert all(torch.equal(a, b) for a, b in zip(params, resumed_params, strict=True))


def test_o3_every_dtype_beside_bf16_parameters_survives() -> None:
    params = parameters()
    optimizer = build(params, "m-plus-adam-kahan", "nvfp4", state_dtype="fp32")
    run(optimizer, params, 1, 3)
    restored = build(parameters(), "m-plus-adam-kahan", "nvfp4", state_dtype="fp32")
    restored.load_state_dict(through_file(optimizer.state_dict()))  # type: ignore[arg-type]
    dtypes = {k: v.dtype for k, v in restored.state_dict()["state"][0].items() if isinstance(v, Tensor)}
    assert dtypes == {
        "m": torch.float32, "v": torch.float32, "v_e": torch.float32, "carry": torch.bfloat16,
        "weight.codes": torch.uint8, "weight.scales": torch.uint8, "weight.tensor_scale": torch.float32,
    }  # fmt: skip


def test_loading_sets_compute_copies_and_copies_the_tensors() -> None:
    params, others = parameters(), parameters()
    optimizer, restored = build(params, "adamw", "fp8_e5m2"), build(others, "adamw", "fp8_e5m2")
    run(optimizer, params, 1, 3)
    saved = optimizer.state_dict()
    restored.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(params, others, strict=True))
    run(restored, others, 4, 4)
    assert not torch.equal(saved["state"][0]["m"], restored.state[others[0]]["m"])  # no shared memory
    run(optimizer, params, 4, 4)
    assert_equal_states(optimizer, restored)


@pytest.mark.parametrize("model_first", [True, False])
def test_model_and_optimizer_may_be_loaded_in_either_order(model_first: bool) -> None:
    def load_model() -> None:
        with torch.no_grad():
            for p, value in zip(others, params, strict=True):
                p.copy_(value)

    params, others = parameters(), parameters()
    optimizer, restored = build(params, "adamw-kahan", "fp8_e4m3"), build(others, "adamw-kahan", "fp8_e4m3")
    run(optimizer, params, 1, 3)
    steps = [load_model, lambda: restored.load_state_dict(optimizer.state_dict())]
    for load in steps if model_first else reversed(steps):
        load()
    run(optimizer, params, 4, 5)
    run(restored, others, 4, 5)
    assert_equal_states(optimizer, restored)


def test_shadows_and_format_objects_survive() -> None:
    def make(params: list) -> MPlusAdam:
        return MPlusAdam(
            params, weight_format=Fp8Blocks("e4m3", block_size=16), shadow="persistent", shadow_dtype="fp32"
        )

    params, others = parameters(), parameters()
    optimizer, restored = make(params), make(others)
    run(optimizer, params, 1, 3)
    restored.load_state_dict(through_file(optimizer.state_dict()))  # type: ignore[arg-type]
    assert restored.state[others[0]]["shadow"].dtype == torch.float32
    run(optimizer, params, 4, 6)
    run(restored, others, 4, 6)
    assert_equal_states(optimizer, restored)


def test_deep_copies_go_on_alike_and_apart() -> None:
    params = parameters()
    optimizer = MPlusAdam(params, weight_format=Fp8Blocks("e4m3", block_size=16), write_back="stochastic")
    run(optimizer, params, 1, 3)
    twin_params, twin = copy.deepcopy((params, optimizer))
    run(optimizer, params, 4, 6)
    run(twin, twin_params, 4, 6)
    assert_equal_states(optimizer, twin)
    run(twin, twin_params, 7, 7)
    assert optimizer.state[params[0]]["step"] == 6


def test_hooks_of_the_user_see_tensors() -> None:
    """Loading hides tensors from torch's cast; a user's hooks must not notice."""
    params = parameters()
    optimizer = build(params, "adamw", "fp8_e5m2")
    run(optimizer, params, 1, 2)
    seen: list[object] = []
    optimizer.register_load_state_dict_pre_hook(lambda _, state: seen.append(state["state"][0]["m"]))
    optimizer.register_load_state_dict_post_hook(lambda o: seen.append(o.state[params[0]]["weight.codes"]))
    optimizer.load_state_dict(optimizer.state_dict())
    assert [type(value) for value in seen] == [Tensor, Tensor]
    assert seen[1].dtype == torch.uint8  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("name", "weight_format", "message"),
    [
        ("additive-twin", "bf16", "rule = 'm-plus-adam' and the optimizer 'additive-twin'"),
        ("m-plus-adam-relative", "bf16", "multiplicative_form = 'normalized_rho'"),
        ("m-plus-adam-kahan", "bf16", "write_back = 'nearest' and the optimizer 'kahan'"),
        ("m-plus-adam-apollo-e", "bf16", "second_moment = 'full'"),
        ("m-plus-adam", "fp8_e4m3", "weight_format = 'bf16' and the optimizer 'fp8_e4m3'"),
    ],
)
def test_a_checkpoint_of_another_optimizer_is_refused(name: str, weight_format: str, message: str) -> None:
    params = parameters()
    saved = build(params, "m-plus-adam", "bf16").state_dict()
    other_params = parameters()
    other = build(other_params, name, weight_format)
    before = [p.detach().clone() for p in other_params]
    with pytest.raises(ValueError, match=message):
        other.load_state_dict(saved)
    assert all(torch.equal(a, b) for a, b in zip(before, other_params, strict=True))
    run(other, other_params, 1, 1)  # and it still works


def test_a_checkpoint_of_other_shapes_or_of_torch_is_refused() -> None:
    wide, tall = torch.nn.Parameter(torch.zeros(4, 6)), torch.nn.Parameter(torch.zeros(6, 4))
    with pytest.raises(ValueError, match="for parameter 0"):
        AdamW([wide]).load_state_dict(AdamW([tall]).state_dict())
    with pytest.raises(ValueError, match="rule = None"):
        AdamW([wide]).load_state_dict(torch.optim.AdamW([tall]).state_dict())


_RESUME = """
import sys, torch
sys.path.insert(0, sys.argv[2])
import test_optimizer_checkpoints as t
params = t.parameters()
optimizer = t.build(params, "m-plus-adam-sr", "fp8_e5m2")
torch.manual_seed(12345)  # another global state than the first process
optimizer.load_state_dict(torch.load(sys.argv[1], weights_only=True))
t.run(optimizer, params, 6, 10)
print(t.digest(optimizer, params))
"""


def digest(optimizer: LowPrecisionOptimizer, params: list) -> str:
    """SHA-256 over all weights and stored tensors."""
    tensors = [t for p in params for t in (p.detach(), *optimizer.store_of(p).tensors.values())]
    return hashlib.sha256(b"".join(t.contiguous().view(torch.uint8).numpy().tobytes() for t in tensors)).hexdigest()


def test_another_process_goes_on_with_the_same_bits(tmp_path: Path) -> None:
    params = parameters()
    optimizer = build(params, "m-plus-adam-sr", "fp8_e5m2")
    run(optimizer, params, 1, 5)
    torch.save(optimizer.state_dict(), tmp_path / "optimizer.pt")
    run(optimizer, params, 6, 10)
    command = [sys.executable, "-c", _RESUME, str(tmp_path / "optimizer.pt"), str(Path(__file__).parent)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    assert done.stdout.strip() == digest(optimizer, params)
