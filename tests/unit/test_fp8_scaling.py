"""Delayed scaling, against a plain list-keeping version of its definition."""

import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mpadam.model.fp8.scaling import MAX_SCALE, Fp8Recipe, ScalingState

SLOTS = {"a.input": "input", "a.weight": "weight", "a.output": "output_gradient"}
LARGEST = [448.0, 448.0, 57344.0]


def state(amax_reduce=None, **recipe: int) -> ScalingState:
    return ScalingState(SLOTS, Fp8Recipe(**recipe), device=torch.device("cpu"), amax_reduce=amax_reduce)


def step(scaling: ScalingState, *amaxes: float) -> None:
    for slot, amax in enumerate(amaxes):
        scaling.record(slot, torch.tensor(amax))
    scaling.advance()


def test_starts_at_one_and_is_delayed_by_a_step() -> None:
    scaling = state()
    assert scaling.scale.tolist() == [1.0, 1.0, 1.0]
    scaling.record(0, torch.tensor(4.0))
    assert scaling.scale[0] == 1.0
    scaling.advance()
    assert scaling.scale[0] == 112.0
    assert torch.equal(scaling.inverse, 1 / scaling.scale)


def test_forty_steps_of_the_definition() -> None:
    """scale = fp8_max / (amax * 2**margin), amax = max of the last 16, kept where that is 0 or not finite."""
    generator = torch.Generator().manual_seed(0)
    amaxes = torch.rand(40, 3, generator=generator).exp().pow(9)
    amaxes[3, 0], amaxes[5, 1], amaxes[7, 2] = torch.nan, torch.inf, 1e-40
    amaxes[:4, 1] = 0.0  # nothing seen in the first steps
    scaling = state(margin=2)
    past: list[list[float]] = [[], [], []]
    expected = [1.0, 1.0, 1.0]
    for row in amaxes:
        step(scaling, *row.tolist())
        for slot in range(3):
            past[slot].append(row[slot].item())
            recent = past[slot][-16:]
            peak = math.inf if any(math.isnan(a) for a in recent) else max(recent)
            if peak > 0 and math.isfinite(peak):
                expected[slot] = LARGEST[slot] / (peak * 4)
        torch.testing.assert_close(scaling.scale, torch.tensor(expected), rtol=1e-6, atol=0)
    assert len(set(expected)) == 3


def test_a_step_keeps_the_largest_of_its_micro_batches() -> None:
    """The history advances once a step: 1 x 16 and 16 x 1 have the same scales."""
    whole, parts = state(), state()
    for t in range(20):
        pieces = [float(1 + (7 * i + t) % 16) for i in range(16)]
        for amax in pieces:
            parts.record(0, torch.tensor(amax))
        parts.advance()
        step(whole, max(pieces))
    assert torch.equal(whole.history[:, 0], parts.history[:, 0])
    assert torch.equal(whole.scale[0], parts.scale[0])


def test_tiny_magnitudes_give_a_finite_scale() -> None:
    scaling = state()
    step(scaling, 1e-30, 2.0**-126, 1e-45)
    assert torch.equal(scaling.scale, torch.full((3,), MAX_SCALE))
    assert torch.isfinite(scaling.inverse).all()
    assert (scaling.inverse > 0).all()


def test_what_a_backward_pass_holds_does_not_change() -> None:
    scaling = state()
    held = scaling.inverse[0]
    step(scaling, 7.0)
    assert held == 1.0
    assert scaling.inverse[0] == 7.0 / 448.0


def test_state_dict_is_a_copy_and_restores_every_bit_f8() -> None:
    first, second = state(), state()
    for t in range(20):
        step(first, 1.0 + t, 3.3 * t, 0.1**t)
    first.record(1, torch.tensor(5.0))
    saved = first.state_dict()
    step(first, 9e9, 9e9, 9e9)
    second.load_state_dict(saved)
    assert second.amax[1] == 5.0
    for _ in range(20):
        step(second, 2.0, 2.0, 2.0)
    again = state()
    again.load_state_dict(saved)
    for key in ("scale", "history", "amax"):
        assert torch.equal(again.state_dict()[key], saved[key])


def test_state_of_another_model_or_recipe_is_refused() -> None:
    other = ScalingState({"b.input": "input"}, Fp8Recipe(), device=torch.device("cpu"))
    for own in (other, state(amax_history=8)):
        with pytest.raises(ValueError, match="does not fit this model"):
            own.load_state_dict(state().state_dict())


def test_amax_reduce_sees_the_step_before_it_enters_the_history() -> None:
    def other_rank(amax: torch.Tensor) -> None:
        assert torch.equal(amax, torch.tensor([1.0, 2.0, torch.inf]))
        torch.maximum(amax, torch.tensor([100.0, 1.0, 1.0]), out=amax)

    scaling = state(amax_reduce=other_rank)
    step(scaling, 1.0, 2.0, math.nan)
    assert scaling.scale.tolist() == pytest.approx([4.48, 224.0, 1.0])


@pytest.mark.parametrize(("values", "key"), [({"amax_history": 0}, "amax_history"), ({"margin": -1}, "margin")])
def test_recipe_out_of_range(values: dict, key: str) -> None:
    with pytest.raises(ValueError, match=key):
        Fp8Recipe(**values)


RANK = """
import json, sys, torch
from torch import nn, distributed as dist
from mpadam.model.fp8.control import fp8_compute, fp8_step
from mpadam.model.fp8.convert import convert_to_fp8
rank = int(sys.argv[1])

def steps():
    torch.manual_seed(0)
    model = nn.ModuleDict({"q_proj": nn.Linear(16, 16, bias=False)}).bfloat16()
    convert_to_fp8(model, backend="emulated", group=dist.group.WORLD)
    x = torch.full((4, 16), [1.0, 100.0][rank]).bfloat16()
    shares = []
    for t in range(3):
        with fp8_step(model, count_flushed=True) as step:
            (model["q_proj"](x).float() * [1e-7, 1.0][rank]).sum().backward()
        shares.append(step.share)
    state = fp8_compute(model).state
    return {"history": state.history.tolist(), "scale": state.scale.tolist(), "shares": shares}

dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
print(json.dumps(steps()), flush=True)
dist.barrier()
# By now no model holds the group: one that lives on is torn down at exit, where gloo's threads may abort the process.
dist.destroy_process_group()
"""


def test_ranks_use_one_scale_f8(tmp_path: Path) -> None:
    """F8: two ranks, whose inputs have amax 1 and 100; and the flushed share is that of both."""
    command = [sys.executable, "-c", RANK]
    processes = [
        subprocess.Popen([*command, str(rank), str(tmp_path / "store")], stdout=subprocess.PIPE, text=True)
        for rank in range(2)
    ]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    first, second = map(json.loads, outputs)
    assert first == second
    assert [row[0] for row in first["history"][:4]] == [100.0, 100.0, 100.0, 0.0]
    assert first["scale"][0] == pytest.approx(4.48)
    assert first["shares"] == [0.5, 0.0, 0.0]  # 1e-7 is lost at scale 1, and kept at 57344
