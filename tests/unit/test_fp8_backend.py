"""Which backend a run's specification names, and what a machine must have for it."""

import pytest

from mpadam.study.auto import check_backend, resolve_backend

HOPPER, ADA, AMPERE = (9, 0), (8, 9), (8, 0)


@pytest.mark.parametrize(
    ("requested", "device", "capability", "installed", "resolved"),
    [
        ("auto", "cpu", None, False, "emulated"),
        ("auto", "cpu", HOPPER, True, "emulated"),
        ("auto", "cuda", HOPPER, True, "transformer_engine"),
        ("auto", "cuda", HOPPER, False, "native"),
        ("auto", "cuda", ADA, False, "native"),
        ("auto", "cuda", (10, 0), True, "transformer_engine"),
        ("auto", "cuda", AMPERE, True, "emulated"),
        ("native", "cpu", None, False, "emulated"),
        ("native", "cuda", None, False, "native"),
        ("transformer_engine", "cuda", None, False, "transformer_engine"),
        ("emulated", "cuda", HOPPER, True, "emulated"),
        ("emulated", "cpu", None, False, "emulated"),
    ],
)
def test_resolution(requested: str, device: str, capability: tuple | None, installed: bool, resolved: str) -> None:
    assert resolve_backend(requested, device=device, capability=capability, transformer_engine=installed) == resolved


@pytest.mark.parametrize(
    ("requested", "device", "message"),
    [
        ("transformer-engine", "cuda", "did you mean 'transformer_engine'"),
        ("x", "cuda", "Give auto, transformer_engine, native, emulated"),
        ("transformer_engine", "cpu", "fp8_backend: emulated"),
        ("auto", "cuda", "no GPU is in sight"),
    ],
)
def test_what_cannot_be_resolved(requested: str, device: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        resolve_backend(requested, device=device, capability=None, transformer_engine=False)


@pytest.mark.parametrize(
    ("backend", "device", "capability", "problem", "message"),
    [
        ("native", "cpu", None, None, "needs a CUDA device"),
        ("native", "cuda", None, None, "needs a CUDA device"),
        ("native", "cuda", AMPERE, None, "this one has 8.0"),
        ("transformer_engine", "cuda", AMPERE, None, "8.9 or higher"),
        ("transformer_engine", "cuda", HOPPER, "ImportError: no such thing", "no such thing.*pip install"),
    ],
)
def test_what_a_machine_lacks(
    backend: str, device: str, capability: tuple | None, problem: str | None, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        check_backend(backend, device=device, capability=capability, transformer_engine=problem)


def test_what_a_machine_has() -> None:
    check_backend("emulated", device="cpu", capability=None, transformer_engine="not installed")
    check_backend("native", device="cuda", capability=ADA, transformer_engine="not installed")
    check_backend("transformer_engine", device="cuda", capability=HOPPER, transformer_engine=None)
