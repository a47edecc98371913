"""A LLaMA with FP8 projections: what is converted, resume and evaluation (F8), agreement with bf16."""

import io
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from mpadam.model.build import build_model
from mpadam.model.fp8.control import fp8_compute, fp8_enabled, fp8_state_dict, fp8_step, load_fp8_state_dict
from mpadam.model.fp8.convert import PROJECTIONS, convert_to_fp8, projections
from mpadam.model.fp8.linear import Fp8Linear
from mpadam.model.fp8.products import PRODUCTS, Product
from mpadam.model.loss import loss_sum, token_nll
from mpadam.optim.groups import listing, parameter_groups
from mpadam.optim.registry import build_optimizer
from mpadam.study.spec import ModelSpec

LENGTH, VOCABULARY = 16, 64
SPEC = ModelSpec(
    hidden_size=32,
    intermediate_size=53,  # awkward on purpose, like 5461
    layers=2,
    heads=2,
    vocab_size=VOCABULARY,
    sequence_length=LENGTH,
    attention="eager",
)


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def tokens(rows: int, seed: int) -> Tensor:
    """Sequences that count upwards with a step of their own: easy to learn."""
    generator = torch.Generator().manual_seed(seed)
    start, stride = (torch.randint(1, 8, (rows, 1), generator=generator) for _ in range(2))
    return (start + stride * torch.arange(LENGTH)) % VOCABULARY


def llama(backend: str = "emulated") -> nn.Module:
    return convert_to_fp8(build_model(SPEC, seed=0), backend=backend)


class Training:
    """Model, optimizer and loop in a few lines."""

    def __init__(self, *, fp8: bool = True, masters: str = "bf16") -> None:
        self.model = llama() if fp8 else build_model(SPEC, seed=0)
        values = {"lr": 1e-2, "lr_mult": 1e-2}
        self.optimizer = build_optimizer(self.model, "m-plus-adam", values, masters=masters, state_dtype="bf16")
        self.losses: list[float] = []

    def step(self, t: int, micro_batches: int = 1) -> None:
        self.optimizer.zero_grad()
        with fp8_step(self.model):
            for rows in tokens(8, seed=t).chunk(micro_batches):
                loss, _ = loss_sum(self.model, rows, rows, scale=1 / (8 * (LENGTH - 1)))
                loss.backward()
                self.losses.append(loss.item())
        self.optimizer.step()

    def evaluate(self, *, fp8: bool, batch_size: int = 5) -> float:
        self.model.eval()
        with fp8_enabled(self.model, fp8), torch.no_grad():
            nll = [token_nll(self.model, rows, rows) for rows in tokens(13, seed=99).split(batch_size)]
        self.model.train()
        return torch.cat(nll).double().mean().item()

    def save(self) -> io.BytesIO:
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "fp8": fp8_state_dict(self.model),
        }
        file = io.BytesIO()
        torch.save(state, file)
        file.seek(0)
        return file

    def load(self, file: io.BytesIO) -> None:
        state = torch.load(file, weights_only=True)
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        load_fp8_state_dict(self.model, state["fp8"])

    def bits(self) -> list[Tensor]:
        state = fp8_compute(self.model).state
        return [*(p.detach() for p in self.model.parameters()), state.history, state.scale]


def test_exactly_the_projections_compute_in_fp8() -> None:
    plain, model = build_model(SPEC, seed=0), llama()
    converted = {name for name, module in model.named_modules() if isinstance(module, Fp8Linear)}
    assert converted == {
        f"model.layers.{layer}.{part}"
        for layer in range(2)
        for part in (*(f"self_attn.{r}_proj" for r in "qkvo"), *(f"mlp.{r}_proj" for r in ("gate", "up", "down")))
    }
    assert {name.rpartition(".")[2] for name in converted} == set(PROJECTIONS)
    assert type(model.lm_head) is nn.Linear
    assert projections(plain).keys() == converted


def test_parameters_keep_their_identity_names_and_roles() -> None:
    model = build_model(SPEC, seed=0)
    before = dict(model.named_parameters())
    roles = listing(model, parameter_groups(model))
    convert_to_fp8(model, backend="emulated")
    after = dict(model.named_parameters())
    assert list(after) == list(before)
    assert all(after[name] is before[name] for name in before)
    assert model.state_dict().keys() == build_model(SPEC, seed=0).state_dict().keys()
    assert listing(model, parameter_groups(model)) == roles


def test_conversion_draws_no_random_numbers() -> None:
    model = build_model(SPEC, seed=0)
    state = torch.get_rng_state()
    convert_to_fp8(model, backend="emulated")
    assert torch.equal(torch.get_rng_state(), state)


def test_scaled_tensors_of_a_layer() -> None:
    """One scale for what query, key and value have in common: their input; and for gate and up."""
    names = [n for n in fp8_compute(llama()).state.names if ".0." in n]
    assert sorted(n.removeprefix("model.layers.0.") for n in names) == sorted(
        [f"self_attn.{r}_proj.{what}" for r in "qkvo" for what in ("weight", "output")]
        + [f"mlp.{r}_proj.{what}" for r in ("gate", "up", "down") for what in ("weight", "output")]
        + ["self_attn.qkv.input", "self_attn.o_proj.input", "mlp.gate_up.input", "mlp.down_proj.input"]
    )


def test_a_common_input_is_cast_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two layers: 2 x 4 inputs, 2 x 7 weights, and 2 x 7 output gradients."""
    product, formats = PRODUCTS["emulated"], []
    counting = lambda *args: (formats.append(args[-1]), product.cast(*args))[1]  # noqa: E731
    monkeypatch.setitem(PRODUCTS, "emulated", Product(counting, product.multiply))
    Training().step(0)
    assert (formats.count("e4m3"), formats.count("e5m2")) == (8 + 14, 14)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (nn.ModuleDict({"lm_head": nn.Linear(16, 16)}), {"backend": "emulated"}, "no projections"),
        (nn.ModuleDict({"q_proj": nn.Linear(16, 16)}), {"backend": "emulated"}, "q_proj has a bias"),
        (nn.ModuleDict({"q_proj": nn.Linear(16, 16, bias=False)}), {"backend": "auto"}, "fp8_backend = 'auto'"),
    ],
)
def test_what_cannot_be_converted(model: nn.Module, options: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        convert_to_fp8(model, **options)


def test_converting_twice_is_refused() -> None:
    with pytest.raises(ValueError, match="Fp8Linear already"):
        convert_to_fp8(llama(), backend="emulated")


@pytest.mark.parametrize("masters", ["bf16", "fp8"])
def test_resume_is_bitwise_f8(masters: str) -> None:
    """F8: 20 steps against 10, a checkpoint, and 10 in a new process's objects; two micro-batches a step."""
    whole, first, second = (Training(masters=masters) for _ in range(3))
    for t in range(20):
        whole.step(t, micro_batches=2)
    for t in range(10):
        first.step(t, micro_batches=2)
    second.load(first.save())
    for t in range(10, 20):
        second.step(t, micro_batches=2)
    assert whole.losses == first.losses + second.losses
    assert all(torch.equal(a, b) for a, b in zip(whole.bits(), second.bits(), strict=True))
    assert whole.losses[-1] < whole.losses[0] - 0.5


@pytest.mark.parametrize("fp8", [False, True])
def test_evaluation_every_step_changes_no_bit_f8(fp8: bool) -> None:
    without, evaluated = Training(), Training()
    for t in range(8):
        without.step(t)
        evaluated.step(t)
        evaluated.evaluate(fp8=fp8)
    assert without.losses == evaluated.losses
    assert all(torch.equal(a, b) for a, b in zip(without.bits(), evaluated.bits(), strict=True))


@pytest.mark.parametrize("fp8", [False, True])
def test_same_validation_loss_at_any_batch_size(fp8: bool) -> None:
    training = Training()
    for t in range(6):
        training.step(t)
    losses = [training.evaluate(fp8=fp8, batch_size=size) for size in (1, 3, 8, 13)]
    assert max(losses) - min(losses) <= 1e-4 * losses[0]
    assert (training.evaluate(fp8=True) != training.evaluate(fp8=False)) is True


def test_fp8_follows_bf16() -> None:
    """Same start, same batches: after 30 steps the losses are close, and below where they began."""
    low, plain = Training(), Training(fp8=False)
    for t in range(30):
        low.step(t)
        plain.step(t)
    assert low.evaluate(fp8=False) == pytest.approx(plain.evaluate(fp8=False), abs=0.3)
    assert low.evaluate(fp8=False) < 3.0 < low.losses[0]


def test_checkpoints_of_another_precision_are_refused() -> None:
    plain = build_model(SPEC, seed=0)
    assert fp8_state_dict(plain) == {}
    load_fp8_state_dict(plain, {})
    with pytest.raises(ValueError, match="emulated backend, the model computes with none"):
        load_fp8_state_dict(plain, fp8_state_dict(llama()))
    with pytest.raises(ValueError, match="no backend, the model computes with emulated"):
        load_fp8_state_dict(llama(), {})
    with pytest.raises(ValueError, match="native backend, the model computes with emulated"):
        load_fp8_state_dict(llama(), fp8_state_dict(llama("native")))


def test_a_model_without_fp8_needs_no_case() -> None:
    plain = build_model(SPEC, seed=0)
    rows = tokens(2, seed=0)
    with fp8_step(plain, count_flushed=True) as step, fp8_enabled(plain, True):
        loss_sum(plain, rows, rows, scale=1.0)[0].backward()
    assert step.share is None
    assert fp8_compute(plain) is None
