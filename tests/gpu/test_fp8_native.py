"""Native FP8 on a GPU that has it, against the emulation and the CPU. Skipped, with the reason, anywhere else."""

import math

import pytest
import torch
from torch import Tensor, nn

from mpadam.model.build import build_model
from mpadam.model.capabilities import probe, require
from mpadam.model.fp8.control import fp8_compute, fp8_enabled, fp8_state_dict, fp8_step, load_fp8_state_dict
from mpadam.model.fp8.convert import convert_to_fp8
from mpadam.model.loss import loss_sum, token_nll
from mpadam.numerics import saturating_cast
from mpadam.study.auto import FP8_CAPABILITY
from mpadam.study.spec import ModelSpec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available() or torch.cuda.get_device_capability() < FP8_CAPABILITY,
        reason="needs a CUDA device of compute capability 8.9 or higher",
    ),
]


def sqnr(result: Tensor, reference: Tensor) -> float:
    noise = (result.double() - reference.double()).square().sum().item()
    return 10 * math.log10(reference.double().square().sum().item() / noise) if noise else math.inf


def run_layer(backend: str, shape: tuple[int, int, int]) -> list[Tensor]:
    """Output, input gradient and weight gradient of the second step."""
    m, n, k = shape
    generator = torch.Generator("cuda").manual_seed(0)
    model = nn.ModuleDict({"up_proj": nn.Linear(k, n, bias=False)}).to("cuda", torch.bfloat16)
    model["up_proj"].weight.data.normal_(0, 0.02, generator=generator)
    convert_to_fp8(model, backend=backend)
    x = torch.randn(m, k, device="cuda", generator=generator).bfloat16().requires_grad_()
    dy = (torch.randn(m, n, device="cuda", generator=generator) * 1e-5).bfloat16()
    for _ in range(2):
        x.grad = model["up_proj"].weight.grad = None
        with fp8_step(model):
            y = model["up_proj"](x)
            y.backward(dy)
    return [y.detach(), x.grad, model["up_proj"].weight.grad]


@pytest.mark.parametrize(
    "shape", [(256, 512, 512), (256, 1376, 512), (255, 5461, 2048), (17, 2048, 5461), (1, 16, 16), (0, 16, 32)]
)
def test_against_the_emulation(shape: tuple[int, int, int]) -> None:
    """Floors of the project; accumulation in float32 should be far above them."""
    native, emulated = run_layer("native", shape), run_layer("emulated", shape)
    for a, b, floor in zip(native, emulated, (18, 17, 17), strict=True):
        assert a.shape == b.shape
        assert a.numel() == 0 or not b.any() or sqnr(a, b) > floor


@pytest.mark.parametrize("fmt", ["e4m3", "e5m2"])
def test_casts_are_those_of_the_cpu_f2_f3(fmt: str) -> None:
    x = torch.arange(2**16, dtype=torch.int32).to(torch.uint16).view(torch.bfloat16).float()
    for scale in (1.0, 0.3, 2.0**40):
        cpu, gpu = saturating_cast(x * scale, fmt), saturating_cast(x.cuda() * scale, fmt).cpu()
        number = ~cpu.float().isnan()
        assert torch.equal(cpu.view(torch.uint8)[number], gpu.view(torch.uint8)[number])
        assert gpu.float()[~number].isnan().all()


def test_training_resumes_bitwise_and_evaluation_changes_nothing_f8() -> None:
    spec = ModelSpec(hidden_size=64, intermediate_size=173, layers=2, heads=2, vocab_size=64, sequence_length=32,
                     attention="sdpa")  # fmt: skip
    ids = torch.randint(0, 64, (8, 32), generator=torch.Generator().manual_seed(0)).cuda()

    def steps(model: nn.Module, count: int, *, evaluate: bool = False) -> list[float]:
        losses = []
        for _ in range(count):
            with fp8_step(model):
                loss, _ = loss_sum(model, ids, ids, scale=1 / (8 * 31))
                loss.backward()
            losses.append(loss.item())
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.sub_(parameter.grad, alpha=0.1)
                    parameter.grad = None
            if evaluate:
                with fp8_enabled(model, True):
                    token_nll(model, ids, ids)
        return losses

    torch.use_deterministic_algorithms(True, warn_only=True)
    whole, first, second = (
        convert_to_fp8(build_model(spec, seed=0, device="cuda"), backend="native") for _ in range(3)
    )
    expected = steps(whole, 20)
    losses = steps(first, 10, evaluate=True)
    second.load_state_dict(first.state_dict())
    load_fp8_state_dict(second, fp8_state_dict(first))
    losses += steps(second, 10)
    torch.use_deterministic_algorithms(False)
    assert losses == expected
    assert torch.equal(fp8_compute(whole).state.history, fp8_compute(second).state.history)
    assert losses[-1] < losses[0]


def test_this_machine_may_train_with_it() -> None:
    require(backend="native", device="cuda", machine=probe())
